//! `plimsoll watch`: prints changes of keys under a prefix on a branch, with their values, as they
//! are committed (see [`crate::changes`]). With expiries, the store stays open.

use std::time::Duration;

use plimsoll::{
    Change, Commit, Commits, Db, Durability, Error, Glsn, InvalidInput, ValueReader, WatchEvent,
};
use plimsoll_disk::clock::{Clock, SystemClock};
use serde_json::Map;

use crate::args::{Globals, Watch};
use crate::branches::{Followed, was_deleted};
use crate::bytes::{preview, show_key};
use crate::changes::{Changes, Waited, sync_newest_segment};
use crate::commands::shown_change::{deleted_range_end, op_of, put_keys, show_keys};
use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::output::{Output, Reader, Style};
use crate::stderr::say;
use crate::time::{of_system, show_time};
use crate::values::{beginning, write_field, write_json_member};
use crate::{branches, keyspaces, store};

/// How often a command that keeps the store open checks for a signal.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) fn run(globals: &Globals, args: Watch, output: &mut Output) -> Outcome {
    if args.expiries {
        return run_with_expiries(globals, &args, output);
    }
    let clock = SystemClock::new();
    let interrupt = Interrupt::listen()?;
    let prefix = args.keys.optional(args.prefix.clone())?.unwrap_or_default();
    let mut printer =
        Printer { hex: args.keys.hex, left: args.limit.unwrap_or(u64::MAX), width: output.width() };
    let mut from = args.from.map(Glsn);
    let mut followed = Followed::new(args.on.name());
    loop {
        // Watch before the store is opened, so that no change is missed.
        let changes = Changes::watch(&args.store);
        let begun = clock.monotonic_nanos();
        let db = store::open_to_read(globals, &args.store)?;
        sync_newest_segment(&args.store)?;
        let keyspace = keyspaces::known_keyspace(&db, args.keys.keyspace())?;
        let from_now = || db.newest().next();
        let start = from.unwrap_or_else(from_now);
        let Some(branch) = followed.find(&db)? else {
            let name = followed.name_when_deleted();
            let rest = Deleted { name: &name, keyspace: keyspace.name(), prefix: &prefix };
            printer.print_all(&mut db.log().commits(start)?, Some(&rest), &interrupt, output)?;
            output.flush()?;
            return match (printer.left, interrupt.was_received()) {
                (0, _) => Ok(Exit::Done),
                (_, true) => Ok(Exit::Interrupted),
                _ => Err(followed.deleted()),
            };
        };
        let mut commits = branch.watch(&keyspace, &prefix, start)?;
        // Drop the branch, because it keeps the store open.
        drop(branch);
        printer.print_all(&mut commits, None, &interrupt, output)?;
        from = Some(commits.position());
        close(db, commits)?;
        output.flush()?;
        if printer.left == 0 {
            return Ok(Exit::Done);
        }
        let ended = clock.monotonic_nanos();
        if interrupt.was_received() {
            return Ok(Exit::Interrupted);
        }
        match changes.wait(&interrupt, output, false) {
            Waited::Changed => {}
            Waited::Interrupted => return Ok(Exit::Interrupted),
            Waited::ReaderLeft => return Err(Failure::ReaderLeft),
        }
        // If another process writes continuously, leave it half of the time.
        let idle = clock.monotonic_nanos().saturating_sub(ended);
        clock.sleep(Duration::from_nanos((ended - begun).saturating_sub(idle)));
    }
}

/// Prints expiries, too. The feed must retain the values that expire, so the store stays open.
fn run_with_expiries(globals: &Globals, args: &Watch, output: &mut Output) -> Outcome {
    let interrupt = Interrupt::listen()?;
    let prefix = args.keys.optional(args.prefix.clone())?.unwrap_or_default();
    let mut printer =
        Printer { hex: args.keys.hex, left: args.limit.unwrap_or(u64::MAX), width: output.width() };
    let db = store::open_to_write_unless(
        Some(&interrupt),
        globals,
        &args.store,
        false,
        Durability::Sync,
    )?;
    let keyspace = keyspaces::known_keyspace(&db, args.keys.keyspace())?;
    let start = args.from.map_or_else(|| db.newest().next(), Glsn);
    let branch = branches::find(&db, args.on.name())?;
    let mut events = branch.watch(&keyspace, &prefix, start)?.with_expiries()?;
    drop(branch);
    let mut wait = Duration::ZERO;
    while printer.left > 0 && !interrupt.was_received() {
        match events.next_timeout(std::mem::take(&mut wait)) {
            Ok(Some(WatchEvent::Commit(commit))) => printer.print_commit(&commit, None, output)?,
            Ok(Some(WatchEvent::Expiry(change))) => printer.print(&change, output)?,
            Ok(_) => {
                output.flush()?;
                if output.reader_has_left() {
                    return Err(Failure::ReaderLeft);
                }
                wait = SIGNAL_INTERVAL;
            }
            Err(error @ Error::Dropped { .. }) => {
                output.flush()?;
                say(error);
            }
            Err(error) => return Err(error.into()),
        }
    }
    drop(events);
    db.close()?;
    output.flush()?;
    Ok(if printer.left == 0 { Exit::Done } else { Exit::Interrupted })
}

fn close(db: Db, commits: Commits) -> Result<(), Failure> {
    drop(commits);
    Ok(db.close()?)
}

/// The changes that are wanted of a branch that was deleted.
struct Deleted<'a> {
    /// The name of the branch in its commits.
    name: &'a str,
    keyspace: &'a str,
    prefix: &'a [u8],
}

impl Deleted<'_> {
    fn has(&self, change: &Change) -> bool {
        change.branch() == Some(self.name)
            && change.keyspace() == Some(self.keyspace)
            && change.key().starts_with(self.prefix)
    }
}

struct Printer {
    hex: bool,
    /// Number of changes that may still be printed.
    left: u64,
    width: usize,
}

impl Printer {
    /// Prints the changes committed so far, or those of them that a deleted branch had.
    fn print_all(
        &mut self,
        commits: &mut Commits,
        deleted: Option<&Deleted<'_>>,
        interrupt: &Interrupt,
        output: &mut Output,
    ) -> Result<(), Failure> {
        while self.left > 0 && !interrupt.was_received() {
            let commit = match commits.next_timeout(Duration::ZERO) {
                Ok(Some(commit)) => commit,
                Ok(None) => return Ok(()),
                Err(error @ Error::Dropped { .. }) => {
                    output.flush()?;
                    say(error);
                    continue;
                }
                Err(Error::InvalidInput(InvalidInput::NoBranch { name })) => {
                    return Err(was_deleted(&name));
                }
                Err(error) => return Err(error.into()),
            };
            // Deleting a branch deletes everything that was written on it.
            if deleted.is_some() && commit.changes_branch()? {
                continue;
            }
            self.print_commit(&commit, deleted, output)?;
        }
        Ok(())
    }

    fn print_commit(
        &mut self,
        commit: &Commit,
        deleted: Option<&Deleted<'_>>,
        output: &mut Output,
    ) -> Result<(), Failure> {
        for change in commit.changes()? {
            if self.left == 0 {
                return Ok(());
            }
            let change = change?;
            if deleted.is_none_or(|deleted| deleted.has(&change)) {
                self.print(&change, output)?;
            }
        }
        Ok(())
    }

    fn print(&mut self, change: &Change, output: &mut Output) -> Result<(), Failure> {
        self.left -= 1;
        match output.reader() {
            Reader::People => self.print_for_people(change, output),
            Reader::Pipe => self.print_fields(change, output),
            Reader::Json => self.print_json(change, output),
        }
    }

    fn print_fields(&self, change: &Change, output: &mut Output) -> Result<(), Failure> {
        let sign = match op_of(change) {
            "delete_range" => "--",
            "expire" => "!",
            "delete" => "-",
            _ => "+",
        };
        output.raw(
            format!("{}\t{sign}\t{}", change.glsn(), show_key(change.key(), self.hex)).as_bytes(),
        )?;
        if let Some(end) = deleted_range_end(change) {
            output.raw(
                format!("\t{}", end.map_or_else(String::new, |end| show_key(end, self.hex)))
                    .as_bytes(),
            )?;
        }
        if !change.is_delete() {
            output.raw(b"\t")?;
        }
        if let Some(value) = change.value_reader()? {
            write_field(value, output)?;
        }
        output.raw(b"\n")
    }

    fn print_json(&self, change: &Change, output: &mut Output) -> Result<(), Failure> {
        let mut object = Map::new();
        object.insert("glsn".to_owned(), change.glsn().0.into());
        object.insert("time".to_owned(), show_time(of_system(change.time())).into());
        object.insert("op".to_owned(), op_of(change).into());
        put_keys(&mut object, change, self.hex);
        if change.is_delete() {
            return output.json(&object);
        }
        output.open_object(&object)?;
        write_json_member(&|| open(change), output)?;
        output.raw(b"}\n")
    }

    fn print_for_people(&self, change: &Change, output: &mut Output) -> Result<(), Failure> {
        let key = show_keys(change, self.hex);
        let (sign, style) = match (change.is_expiry(), change.is_delete()) {
            (true, _) => ('!', Style::Bad),
            (false, true) => ('-', Style::Bad),
            (false, false) => ('+', Style::Good),
        };
        let left = self.width.saturating_sub(key.chars().count() + 14).max(24);
        let value = match change.value_reader()? {
            Some(value) => {
                let bytes = value.len();
                // A character takes at most four bytes.
                preview(&beginning(value, left * 4)?, bytes, left)
            }
            None => String::new(),
        };
        let key = output.paint(style, &format!("{sign} {key}"));
        output.line(format!("{:>8}  {key}  {value}", change.glsn().0).trim_end())
    }
}

fn open(change: &Change) -> Result<ValueReader, Failure> {
    Ok(change.value_reader()?.expect("it is a put"))
}
