//! `plimsoll import git`: imports the history of a repository, one transaction per commit.

pub(super) mod report;
mod whole;

use plimsoll::{Db, Durability};
use plimsoll_git::{Counts, Cut, Import, Repository};

use crate::args::{Globals, ImportGit};
use crate::effort::Effort;
use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::keyspaces;
use crate::output::Output;
use crate::progress::Progress;
use crate::size::count_of;
use crate::stderr::say;
use crate::store;

pub(crate) fn run(globals: &Globals, args: &ImportGit, output: &mut Output) -> Outcome {
    let interrupt = Interrupt::listen()?;
    let effort = Effort::start();
    keyspaces::check_writable(&args.keyspace.keyspace)?;
    // Open the repository before the store, so that a wrong path does not leave an empty store
    // behind.
    let repository = Repository::open(&args.repository, &args.branch)?;
    if args.all {
        return whole::run(globals, args, &repository, &interrupt, output);
    }
    let durability = if args.sync { Durability::Sync } else { Durability::Buffered };
    let db = store::open_to_write_unless(Some(&interrupt), globals, &args.store, true, durability)?;
    let Some(mut import) = Import::open(&db, &repository, &args.keyspace.keyspace)? else {
        let limit_bytes = db.stats().memory.limit_bytes;
        db.close()?;
        let facts =
            report::facts(&Counts::default(), &effort, limit_bytes, &args.store, output.reader());
        report::print_up_to_date(&repository, facts, output)?;
        return Ok(Exit::Done);
    };
    let ended = apply(&mut import, args, &interrupt);
    let counts = import.into_counts();
    let ended = close(db, ended);
    report::print_left_out(&counts);
    match ended {
        Ok((ended, limit_bytes)) => {
            output.report(&format!("However, {}.", imported(&counts)), |output| {
                output.facts(&report::facts(
                    &counts,
                    &effort,
                    limit_bytes,
                    &args.store,
                    output.reader(),
                ))
            })?;
            if matches!(ended, Ended::Complete) {
                return Ok(Exit::Done);
            }
            say(format_args!("interrupted; {}; {CONTINUE}", imported(&counts)));
            Ok(Exit::Interrupted)
        }
        Err(failure) if counts.transactions > 0 => {
            Err(failure.advise(&format!("Before that, {}; {CONTINUE}.", imported(&counts))))
        }
        Err(failure) => Err(failure),
    }
}

const CONTINUE: &str = "run the same command again to continue";

fn imported(counts: &Counts) -> String {
    count_of(counts.transactions, "commit was imported", "commits were imported")
}

/// The outcome of an import without an error.
enum Ended {
    Complete,
    Interrupted,
}

/// Imports until the end of the history or until interrupted.
fn apply(
    import: &mut Import<'_>,
    args: &ImportGit,
    interrupt: &Interrupt,
) -> Result<Ended, Failure> {
    if let Some(cut) = import.cut() {
        print_cut(cut, args);
    }
    let progress = progress(import)?;
    while import.next_commit()? {
        let counts = import.counts();
        progress.set(counts.transactions + counts.commits.count);
        if progress.visible() {
            progress.say(report::in_words(counts));
        }
        if interrupt.was_received() {
            return Ok(Ended::Interrupted);
        }
    }
    Ok(Ended::Complete)
}

fn print_cut(cut: Cut, args: &ImportGit) {
    match cut {
        Cut::Missing { first } => {
            say(format_args!(
                "a parent of commit {first} is missing, so the history begins with that commit"
            ));
        }
        Cut::Shallow { first } => say(format_args!(
            "{}: a shallow clone; the parents of commit {first} are not in it, so the history \
             begins with that commit\nFor the whole history, run `git fetch --unshallow` there \
             and import it into a new store.",
            args.repository.display()
        )),
    }
}

/// A progress bar with a total on a terminal. Elsewhere the commits are not counted, because
/// counting takes git a while.
fn progress(import: &Import<'_>) -> Result<Progress, Failure> {
    let progress = Progress::of_items(None, "commits");
    if !progress.visible() {
        return Ok(progress);
    }
    Ok(Progress::of_items(import.count_commits()?, "commits"))
}

/// Closes the store after a successful import; also returns its memory budget.
fn close(db: Db, ended: Result<Ended, Failure>) -> Result<(Ended, u64), Failure> {
    let (ended, limit_bytes) = (ended?, db.stats().memory.limit_bytes);
    db.close()?;
    Ok((ended, limit_bytes))
}
