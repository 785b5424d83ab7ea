//! `plimsoll export git`: writes all branches of a store to a Git repository.

use plimsoll::{Db, Durability};
use plimsoll_git::{Export, ExportCounts};

use crate::args::{ExportGit, Globals};
use crate::bytes::show_bytes;
use crate::commands::import::report::print_items;
use crate::effort::Effort;
use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::output::{Fact, Output, Reader};
use crate::progress::Progress;
use crate::size::count_of;
use crate::stderr::say;
use crate::store;

pub(crate) fn run(globals: &Globals, args: &ExportGit, output: &mut Output) -> Outcome {
    let interrupt = Interrupt::listen()?;
    let effort = Effort::start();
    let durability = Durability::Buffered;
    let db =
        store::open_to_write_unless(Some(&interrupt), globals, &args.store, false, durability)?;
    let exported = export(&db, args, &interrupt)?;
    let limit_bytes = db.stats().memory.limit_bytes;
    db.close()?;
    let Some(counts) = exported else {
        say("interrupted; run the same command again to continue");
        return Ok(Exit::Interrupted);
    };
    let why = "Git does not accept these keys as paths, or another key is one of their parent \
               folders";
    print_items(&counts.unfit, ["key", "keys"], why, |key| show_bytes(&key[..key.len().min(200)]));
    let why = "Git does not accept these names, or they collide with another branch's name; \
               rename them with `plimsoll branch rename`";
    print_items(&counts.branches, ["branch", "branches"], why, Clone::clone);
    let written = count_of(counts.commits, "commit was exported", "commits were exported");
    output.report(&format!("However, {written}."), |output| {
        output.facts(&facts(&counts, &effort, limit_bytes, output.reader()))
    })?;
    Ok(Exit::Done)
}

/// Exports; `None` if interrupted.
fn export(
    db: &Db,
    args: &ExportGit,
    interrupt: &Interrupt,
) -> Result<Option<ExportCounts>, Failure> {
    let mut export = Export::open(db, &args.repository)?;
    let progress = Progress::of_items(Some(export.count_commits()), "commits");
    while export.next_commit()? {
        progress.set(export.counts().commits);
        if interrupt.was_received() {
            export.flush()?;
            return Ok(None);
        }
    }
    drop(progress);
    Ok(Some(export.finish(args.force)?))
}

fn facts(counts: &ExportCounts, effort: &Effort, limit_bytes: u64, reader: Reader) -> Vec<Fact> {
    let mut facts = vec![
        Fact::count("commits", counts.commits),
        Fact::count("objects", counts.objects),
        Fact::count("branches and tags", counts.refs),
    ];
    facts.extend(effort.facts(limit_bytes, " (git's own processes are not counted)"));
    let left_out =
        [("keys left out", counts.unfit.count), ("branches left out", counts.branches.count)];
    let shown = left_out.iter().filter(|(_, count)| *count > 0 || reader == Reader::Json);
    facts.extend(shown.map(|&(name, count)| Fact::count(name, count)));
    facts
}
