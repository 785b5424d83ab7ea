//! `plimsoll import git`: the history of a repository, one commit one transaction.
//!
//! Law: what names the last imported commit is written in that commit's transaction. So whatever stops an import, the next one goes on
//! behind the last commit that the store holds whole.

#[path = "../../../git/src/apply.rs"]
mod apply;
mod report;
#[path = "../../../git/src/bookmark.rs"]
mod resume;

use plimsoll::{Db, Durability};

use crate::args::{Globals, ImportGit};
use crate::effort::Effort;
use crate::exit::{Exit, Failure, Outcome};
use crate::git::feed::Feed;
use crate::git::object_id::ObjectId;
use crate::git::repository::Repository;
use crate::imported;
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::progress::Progress;
use crate::size::count_of;
use crate::store;

use self::apply::{Applier, Counts};

pub(crate) fn run(globals: &Globals, args: &ImportGit, output: &mut Output) -> Outcome {
    let interrupt = Interrupt::listen()?;
    let effort = Effort::start();
    // Before the store: a repository that is none leaves no empty store behind.
    let repository = Repository::open(&args.repository, &args.branch)?;
    let durability = if args.sync { Durability::Sync } else { Durability::Buffered };
    let db = store::open_to_write(globals, &args.store, true, durability)?;
    let mut counts = Counts::default();
    let ended = import(&db, &repository, args, &interrupt, &mut counts);
    let limit_bytes = db.stats().memory.limit_bytes;
    let ended = match ended {
        Ok(ended) => db.close().map(|()| ended).map_err(Failure::from),
        failed => failed,
    };
    counts.report_left_out();
    match ended {
        Ok(Ended::UpToDate(commit)) => {
            report::print_up_to_date(&commit, &repository, output)?;
            Ok(Exit::Done)
        }
        Ok(Ended::Complete) => {
            report::print(&counts, &effort, limit_bytes, &args.store, output)?;
            Ok(Exit::Done)
        }
        Ok(Ended::Interrupted) => {
            report::print(&counts, &effort, limit_bytes, &args.store, output)?;
            output.flush()?;
            eprintln!("plimsoll: interrupted; {}; {CONTINUE}", imported(&counts));
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

/// How an import ended that did not fail.
enum Ended {
    Complete,
    UpToDate(ObjectId),
    Interrupted,
}

fn import(
    db: &Db,
    repository: &Repository,
    args: &ImportGit,
    interrupt: &Interrupt,
    counts: &mut Counts,
) -> Result<Ended, Failure> {
    let bookmark = resume::read(db, &args.keyspace.keyspace)?;
    if let Some(bookmark) = bookmark {
        resume::check(&bookmark, repository, &args.branch)?;
        if bookmark.commit == *repository.tip() {
            return Ok(Ended::UpToDate(bookmark.commit));
        }
    }
    let after = bookmark.map(|bookmark| bookmark.commit);
    let mut feed = Feed::open(repository, after)?;
    if let Some(cut) = feed.cut() {
        eprintln!("plimsoll: a parent of commit {cut} is missing, so the history begins with that commit");
    }
    let progress = progress(repository, after.as_ref())?;
    let keyspace = db.keyspace(&args.keyspace.keyspace)?;
    let bookmarks = db.keyspace(imported::KEYSPACE)?;
    let root = bookmark.map(|bookmark| bookmark.root);
    let mut applier = Applier::new(db, keyspace, bookmarks, &args.branch, root)?;
    while applier.next(&mut feed, counts)? {
        progress.set(counts.transactions + counts.commits.count);
        if progress.visible() {
            progress.say(counts.in_words());
        }
        if interrupt.came() {
            return Ok(Ended::Interrupted);
        }
    }
    Ok(Ended::Complete)
}

/// A bar with a total where somebody sees it: to count the commits takes git a while.
fn progress(repository: &Repository, after: Option<&ObjectId>) -> Result<Progress, Failure> {
    let progress = Progress::of_items(None, "commits");
    if !progress.visible() {
        return Ok(progress);
    }
    let total = repository.count(after)?;
    Ok(Progress::of_items(total, "commits"))
}
