//! `plimsoll archive`: sends new data of a store to an archive. `restore` and `verify` of an
//! archive are here, too.

use std::path::Path;
use std::time::Duration;

use plimsoll::{Db, Error as StoreError, Glsn, Moment};
use plimsoll_archive::{Archive, Damage, Error, PushReport};
use plimsoll_disk::clock::{Clock, SystemClock};
use serde_json::{Value, json};

use crate::args::{Archive as Args, Globals, Restore};
use crate::changes::{Changes, Waited};
use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::moment::At;
use crate::output::{Fact, Output, Reader, Style};
use crate::progress::Progress;
use crate::size::{count_of, show_size};
use crate::stderr::say;
use crate::store;

/// Maximum number of attempts if another process drops the files being read.
const ATTEMPTS_MAX: u32 = 16;

/// The time for which the command sleeps before it checks for a signal.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) fn run(globals: &Globals, args: &Args, output: &mut Output) -> Outcome {
    let interrupt = Interrupt::listen()?;
    let mut archive = Archive::open(&args.archive)?.cancel_on(interrupt.flag());
    if let Some(time) = args.keep {
        archive = archive.keep(time);
    }
    let mut archiver = Archiver { globals, store: &args.store, archive, member: None };
    if args.follow {
        return follow(args, &mut archiver, &interrupt, output);
    }
    let report = archiver.pass().map_err(interrupted)?;
    warn_of_damage(&report);
    let is_base = if report.is_base { "yes" } else { "no" };
    let facts = [
        Fact::new("newest GLSN", report.glsn.to_string(), report.glsn.0),
        Fact::count("objects sent", report.objects),
        Fact::bytes("bytes sent", report.bytes),
        Fact::new("with the index", is_base, report.is_base),
    ];
    output.report("Everything is in the archive.", |output| output.facts(&facts))?;
    Ok(Exit::Done)
}

fn follow(
    args: &Args,
    archiver: &mut Archiver<'_>,
    interrupt: &Interrupt,
    output: &mut Output,
) -> Outcome {
    let clock = SystemClock::new();
    let mut said = String::new();
    loop {
        // Watch before the store is read, so that no change is missed.
        let changes = Changes::watch(&args.store);
        let begun = clock.monotonic_nanos();
        let passed = archiver.pass();
        let is_again = match passed {
            Ok(report) => {
                warn_of_damage(&report);
                said.clear();
                if report.objects > 0 {
                    print_pass(&report, output)?;
                    output.flush()?;
                }
                false
            }
            Err(Error::Store(StoreError::Cancelled)) => return Ok(Exit::Interrupted),
            Err(error) if passes(&error) => {
                let error = error.to_string();
                if said != error {
                    say(format_args!("{error}; trying again"));
                    said = error;
                }
                true
            }
            Err(error) => return Err(error.into()),
        };
        let took = Duration::from_nanos(clock.monotonic_nanos() - begun);
        // A store that is opened for each pass is left alone at least half of the time.
        let pause = if archiver.member.is_some() { args.every } else { args.every.max(2 * took) };
        while Duration::from_nanos(clock.monotonic_nanos() - begun) < pause {
            if interrupt.was_received() {
                return Ok(Exit::Interrupted);
            }
            let passed = Duration::from_nanos(clock.monotonic_nanos() - begun);
            clock.sleep(SIGNAL_INTERVAL.min(pause.saturating_sub(passed)));
        }
        if is_again || archiver.member.is_some() {
            // A commit changes the files before it is durable, and a member reads it only once it
            // is durable.
            if output.reader_has_left() {
                return Err(Failure::ReaderLeft);
            }
            continue;
        }
        match changes.wait(interrupt, output, false) {
            Waited::Changed => {}
            Waited::Interrupted => return Ok(Exit::Interrupted),
            Waited::ReaderLeft => return Err(Failure::ReaderLeft),
        }
    }
}

/// Whether a later pass may succeed without any change by the user.
fn passes(error: &Error) -> bool {
    matches!(
        error,
        Error::Storage { .. }
            | Error::Store(
                StoreError::Stalled { .. }
                    | StoreError::Trimmed { .. }
                    | StoreError::Behind { .. }
                    | StoreError::Locked { .. }
            )
    )
}

fn warn_of_damage(report: &PushReport) {
    for Damage { object, what } in &report.damage {
        say(format_args!("damaged: {object}: {what}; continuing from an earlier manifest"));
    }
}

fn print_pass(report: &PushReport, output: &mut Output) -> Result<(), Failure> {
    if output.reader() == Reader::Json {
        return output.json(&json!({
            "newest_glsn": report.glsn.0,
            "objects_sent": report.objects,
            "bytes_sent": report.bytes,
            "with_the_index": report.is_base,
        }));
    }
    output.line(&format!("archived up to GLSN {}: {}", report.glsn, show_size(report.bytes)))
}

fn interrupted(error: Error) -> Failure {
    match error {
        Error::Store(StoreError::Cancelled) => {
            Failure::new(Exit::Interrupted, "interrupted. The archive is unchanged.")
        }
        error => error.into(),
    }
}

/// Makes passes over a store that other processes may write.
struct Archiver<'a> {
    globals: &'a Globals,
    store: &'a Path,
    archive: Archive,
    /// The store, if it is shared. As a member, this process keeps the others from freeing files
    /// during a pass.
    member: Option<Db>,
}

impl Archiver<'_> {
    fn pass(&mut self) -> Result<PushReport, Error> {
        let mut pass = self.try_pass();
        for _ in 1..ATTEMPTS_MAX {
            match pass {
                // Another process dropped the files meanwhile.
                Err(Error::Store(StoreError::Trimmed { .. } | StoreError::Behind { .. })) => {
                    pass = self.try_pass();
                }
                _ => break,
            }
        }
        pass
    }

    fn try_pass(&mut self) -> Result<PushReport, Error> {
        let (db, is_member) = match self.member.take() {
            Some(db) => (db, true),
            None => store::open_member_or_reader(self.globals, self.store)?,
        };
        let report = self.archive.push(&db);
        // Stay a member while the archive cannot be reached, because the member holds the log.
        let stays = is_member && !matches!(report, Err(Error::Store(_)));
        self.member = stays.then_some(db);
        report
    }
}

/// The archive that a path or URL names; `None` if it names something else.
pub(crate) fn find(source: &Path) -> Result<Option<Archive>, Failure> {
    let text = source.to_string_lossy();
    match Archive::is_at(source) || text.contains("://") {
        true => Ok(Some(Archive::open(&text)?)),
        false => Ok(None),
    }
}

/// `plimsoll restore` of an archive.
pub(crate) fn restore(
    globals: &Globals,
    args: &Restore,
    archive: Archive,
    output: &mut Output,
) -> Outcome {
    let at = match &args.at {
        None | Some(At::Newest) => Moment::Newest,
        Some(At::Glsn(glsn)) => Moment::Glsn(Glsn(*glsn)),
        Some(At::Time(time)) => Moment::Time((*time).into()),
        Some(At::Branch { .. }) => {
            return Err(Failure::usage(
                "an archive is restored with all branches; give a GLSN or a time",
            ));
        }
        Some(At::Commit(_) | At::Tag(_)) => {
            return Err(Failure::usage(
                "an archive is not searched for commit ids or tags; give a GLSN or a time",
            ));
        }
    };
    let interrupt = Interrupt::listen()?;
    let archive = archive.cancel_on(interrupt.flag());
    let report =
        archive.restore(&args.store, store::options(globals), at).map_err(|error| match error {
            Error::Store(StoreError::Cancelled) => {
                Failure::new(Exit::Interrupted, "interrupted. There is no store.")
            }
            error => error.into(),
        })?;
    let is_whole = report.is_whole && report.problems.is_empty();
    let done = if report.is_whole {
        "The store is restored."
    } else {
        "The store is restored, and ends before the requested moment, because the archive is \
         damaged."
    };
    output.report(done, |output| {
        if output.reader() == Reader::Json {
            return output.json(&json!({
                "newest_glsn": report.glsn.0,
                "is_whole": report.is_whole,
                "damage": damage_json(&report.damage),
                "problems": report.problems,
                "objects": report.objects,
                "bytes": report.bytes,
            }));
        }
        print_damage(&report.damage, output)?;
        report.problems.iter().try_for_each(|problem| output.line(problem))?;
        output.facts(&[
            Fact::new("newest GLSN", report.glsn.to_string(), report.glsn.0),
            Fact::count("objects read", report.objects),
            Fact::bytes("bytes restored", report.bytes),
        ])
    })?;
    Ok(if is_whole { Exit::Done } else { Exit::No })
}

/// `plimsoll verify` of an archive.
pub(crate) fn verify(archive: Archive, output: &mut Output) -> Outcome {
    let interrupt = Interrupt::listen()?;
    let archive = archive.cancel_on(interrupt.flag());
    let progress = Progress::of_items(Some(0), "objects");
    let report = archive.verify(&mut |step| progress.set_of(step.done, step.total))?;
    drop(progress);
    let ranges: Vec<[u64; 2]> =
        report.restorable.iter().map(|range| [range.start().0, range.end().0]).collect();
    output.report("Everything was read and checked.", |output| {
        if output.reader() == Reader::Json {
            return output.json(&json!({
                "newest_glsn": report.glsn.0,
                "restorable": ranges,
                "damage": damage_json(&report.damage),
                "notes": damage_json(&report.notes),
                "objects": report.objects,
                "bytes": report.bytes,
            }));
        }
        print_damage(&report.damage, output)?;
        for note in &report.notes {
            output.line(&format!("note: {}: {}", note.object, note.what))?;
        }
        for [first, last] in &ranges {
            output.line(&format!("restorable: GLSN {first} to {last}"))?;
        }
        let verdict = match report.damage.len() {
            0 => output.paint(Style::Good, "no problems"),
            count => output.paint(Style::Bad, &count_of(count as u64, "problem", "problems")),
        };
        let objects = count_of(report.objects, "object", "objects");
        output.line(&format!("{verdict}; read {} in {objects}", show_size(report.bytes)))
    })?;
    Ok(if report.damage.is_empty() { Exit::Done } else { Exit::No })
}

fn print_damage(damage: &[Damage], output: &mut Output) -> Result<(), Failure> {
    damage.iter().try_for_each(|damage| {
        let line = format!("damaged: {}: {}", damage.object, damage.what);
        let line = output.paint(Style::Bad, &line);
        output.line(&line)
    })
}

fn damage_json(damage: &[Damage]) -> Vec<Value> {
    let one = |damage: &Damage| json!({"object": damage.object, "what": damage.what});
    damage.iter().map(one).collect()
}
