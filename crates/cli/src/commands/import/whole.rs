//! `plimsoll import git --all`: imports all commits, branches and tags of a repository.

use plimsoll::Durability;
use plimsoll_git::{Counts, Repository, WholeImport};

use super::{CONTINUE, imported, report};
use crate::args::{Globals, ImportGit};
use crate::effort::Effort;
use crate::exit::{Exit, Outcome};
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::progress::Progress;
use crate::stderr::say;
use crate::store;

pub(super) fn run(
    globals: &Globals,
    args: &ImportGit,
    repository: &Repository,
    interrupt: &Interrupt,
    output: &mut Output,
) -> Outcome {
    let effort = Effort::start();
    let durability = Durability::Buffered;
    let db = store::open_to_write_unless(Some(interrupt), globals, &args.store, true, durability)?;
    let Some(mut import) = WholeImport::open(&db, repository)? else {
        let limit_bytes = db.stats().memory.limit_bytes;
        db.close()?;
        let facts =
            report::facts(&Counts::default(), &effort, limit_bytes, &args.store, output.reader());
        report::print_up_to_date(repository, facts, output)?;
        return Ok(Exit::Done);
    };
    let progress = Progress::of_items(None, "commits");
    let mut visited = 0;
    loop {
        let next = import.next_commit();
        let counts = import.counts();
        let advise = |failure: crate::exit::Failure| match counts.transactions {
            0 => failure,
            _ => failure.advise(&format!("Before that, {}; {CONTINUE}.", imported(counts))),
        };
        if !next.map_err(|error| advise(error.into()))? {
            break;
        }
        visited += 1;
        progress.set(visited);
        if progress.visible() {
            progress.say(report::in_words(counts));
        }
        if interrupt.was_received() {
            let imported = imported(counts);
            drop((progress, import));
            db.close()?;
            say(format_args!("interrupted; {imported}; {CONTINUE}"));
            return Ok(Exit::Interrupted);
        }
    }
    drop(progress);
    let counts = import.finish()?;
    let limit_bytes = db.stats().memory.limit_bytes;
    db.close()?;
    report::print_diverged(&counts);
    output.report(&format!("However, {}.", imported(&counts)), |output| {
        output.facts(&report::facts(&counts, &effort, limit_bytes, &args.store, output.reader()))
    })?;
    Ok(Exit::Done)
}
