//! `plimsoll log`: lists log entries, newest or oldest first, from a cursor (`cursor`), or as they
//! are committed (`follow`).

mod cursor;
mod entry;
mod follow;
mod glsns;

use jiff::{SignedDuration, Timestamp};
use plimsoll::{Db, Durability, Error, Glsn};

use crate::args::{Globals, Log};
use crate::branches::Followed;
use crate::commands::sync::short;
use crate::exit::{Exit, Failure, Outcome};
use crate::keyspaces;
use crate::moment;
use crate::output::Output;
use crate::stderr::say;
use crate::store;

use self::entry::{Printer, Wanted};
use self::glsns::{Glsns, Order};

pub(crate) fn run(globals: &Globals, args: Log, output: &mut Output) -> Outcome {
    let mut walk = Walk::new(args, output)?;
    if walk.args.follow {
        return follow::run(globals, &mut walk, output);
    }
    if let Some(name) = walk.args.cursor.clone() {
        return cursor::run(globals, &name, &mut walk, output);
    }
    // Ids are computed when they are first asked for, and kept in the store.
    let db = match walk.args.ids {
        true => store::open_to_write(globals, &walk.args.store, false, Durability::Sync)?,
        false => store::open_to_read(globals, &walk.args.store)?,
    };
    walk.print_all(&db, output)
}

/// Prints the log of an open store without following it.
pub(crate) fn print(db: &Db, args: Log, output: &mut Output) -> Outcome {
    Walk::new(args, output)?.print_all(db, output)
}

/// The note that a partial clone lacks earlier commits.
fn note_of_boundary(db: &Db) -> Result<Option<String>, Failure> {
    let boundary = db.boundary_commits()?;
    let Some(first) = boundary.first() else { return Ok(None) };
    let others = match boundary.len() - 1 {
        0 => String::new(),
        others => format!(" and {others} more"),
    };
    Ok(Some(format!(
        "note: the store is a partial clone: its history begins with commit {}{others}; the \
         changes of such a commit are its complete state",
        short(*first)
    )))
}

/// A scan of the log, which can be resumed.
struct Walk {
    args: Log,
    key: Option<Vec<u8>>,
    /// Number of entries that may still be printed.
    left: u64,
    /// The last entry printed.
    last: u64,
    /// Number of damaged entries that were skipped.
    skipped: u64,
    /// The branch that was asked for, and whether it was deleted since it was found.
    followed: Option<Followed>,
    is_deleted: bool,
    printer: Printer,
}

impl Walk {
    fn new(mut args: Log, output: &Output) -> Result<Self, Failure> {
        let key = args.keys.optional(args.key.take())?;
        let left = args.limit.unwrap_or(u64::MAX);
        let printer = Printer::new(args.ops, args.keys.hex, args.until, output);
        let printer = if args.ids { printer.show_ids() } else { printer };
        let printer = if args.cursor.is_some() { printer.skip_cursors() } else { printer };
        let followed = args.branch.as_deref().map(|name| Followed::new(Some(name)));
        let (last, skipped, is_deleted) = (0, 0, false);
        Ok(Self { args, key, left, last, skipped, followed, is_deleted, printer })
    }

    /// The exit code of a successful scan.
    fn exit(&self) -> Exit {
        if self.skipped == 0 { Exit::Done } else { Exit::Corrupt }
    }

    fn check_start(&self, db: &Db) -> Result<(), Failure> {
        let (newest, first) = (db.newest(), db.log().bounds().first);
        match self.args.from {
            Some(asked) if asked > newest.0 => {
                Err(Error::Future { asked: Glsn(asked), newest }.into())
            }
            Some(asked) if asked.max(1) < first.0 => {
                Err(Error::Trimmed { asked: Glsn(asked), first, keyspace: None }.into())
            }
            _ => Ok(()),
        }
    }

    /// Prints all requested entries.
    fn print_all(mut self, db: &Db, output: &mut Output) -> Outcome {
        self.check_start(db)?;
        let order = if self.args.reverse { Order::OldestFirst } else { Order::NewestFirst };
        let from = self.args.from.unwrap_or(0).max(db.log().bounds().first.0);
        self.print(db, from, db.newest(), order, output)?;
        let is_whole = self.args.from.is_none() && self.args.since.is_none();
        if self.left > 0
            && is_whole
            && let Some(note) = note_of_boundary(db)?
        {
            output.flush()?;
            say(format_args!("{note}"));
        }
        Ok(self.exit())
    }

    /// Prints the entries from `from` to `newest`.
    fn print(
        &mut self,
        db: &Db,
        from: u64,
        newest: Glsn,
        order: Order,
        output: &mut Output,
    ) -> Result<(), Failure> {
        let (since, until) = self.times(db)?;
        let wanted = self.wanted(db)?;
        self.is_deleted = matches!(wanted, Wanted::OnDeleted(_));
        let to = self.args.to.unwrap_or(u64::MAX).min(newest.0).min(until);
        let mut glsns = self.glsns(db, &wanted, from.max(since), to, order)?;
        while self.left > 0 {
            let Some(glsn) = glsns.next() else { break };
            let printed = match glsn {
                Ok(glsn) => {
                    let printed = self.printer.print(db, &wanted, glsn, output);
                    printed
                        .map(|printed| printed.then_some(glsn))
                        .map_err(|failure| name_entry(&self.args, glsn, failure))
                }
                Err(failure) => Err(failure),
            };
            match printed {
                Ok(Some(glsn)) => {
                    self.left -= 1;
                    self.last = glsn;
                }
                Ok(None) => {}
                Err(failure) if self.args.skip_damaged && failure.exit() == Some(Exit::Corrupt) => {
                    output.flush()?;
                    say(format_args!("left out: {failure}"));
                    self.skipped += 1;
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    /// The entries that are wanted.
    fn wanted(&mut self, db: &Db) -> Result<Wanted, Failure> {
        let Some(followed) = &mut self.followed else { return Ok(Wanted::All) };
        Ok(match followed.find(db)? {
            Some(branch) => Wanted::OnBranch(branch),
            None => Wanted::OnDeleted(followed.name_when_deleted()),
        })
    }

    /// The error once the branch is deleted.
    fn deleted(&self) -> Failure {
        self.followed.as_ref().expect("a branch was asked for").deleted()
    }

    /// The GLSN range that covers the requested times.
    fn times(&self, db: &Db) -> Result<(u64, u64), Failure> {
        if self.args.since.is_none() && self.args.until.is_none() {
            return Ok((0, u64::MAX));
        }
        let keyspaces = plimsoll_git::moments::keyspaces(db)?;
        let last_at = |time| moment::last_at(db, &keyspaces, time);
        let before =
            |time: Timestamp| time.checked_sub(SignedDuration::from_micros(1)).unwrap_or(time);
        let since = self.args.since.map(|since| last_at(before(since))).transpose()?;
        let until = self.args.until.map(last_at).transpose()?;
        Ok((since.map_or(0, |last| last + 1), until.unwrap_or(u64::MAX)))
    }

    fn glsns<'a>(
        &self,
        db: &'a Db,
        wanted: &Wanted,
        from: u64,
        to: u64,
        order: Order,
    ) -> Result<Glsns<'a>, Failure> {
        match (&self.key, self.args.stream) {
            // A deleted branch has no history of a key.
            (Some(_), _) if self.is_deleted => Err(self.deleted()),
            (Some(key), _) => {
                let keyspace = keyspaces::keyspace_ever(db, self.args.keys.keyspace())?;
                let main = || db.main();
                let branch = wanted.branch().cloned().unwrap_or_else(main);
                glsns::of_key(&branch, &keyspace, key, from..=to, order)
            }
            (None, Some(stream)) => Ok(glsns::of_stream(db, stream, from..=to, order)),
            (None, None) => Ok(glsns::all(from..=to, order)),
        }
    }
}

/// Names the unreadable entry and adds advice.
fn name_entry(args: &Log, glsn: u64, failure: Failure) -> Failure {
    if failure.exit() != Some(Exit::Corrupt) {
        return failure;
    }
    let store = args.store.display();
    failure.lead(&format!("the entry with GLSN {glsn} cannot be read: ")).advise(&format!(
        "`plimsoll verify {store}` names its keyspace and keys, if they are known, and the \
         command that removes it from the store; --skip-damaged prints everything else."
    ))
}
