//! What one process does for all that have the store open: compaction and trims on demand. The others ask the keeper, and wait for its answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use plimsoll_disk::worker::{Bell, Next, Worker};
use plimsoll_log::glsn::Glsn;
use plimsoll_log::members::{Asked, Members};

use crate::engine::trim::LogSpace;
use crate::engine::{Engine, steps, trim};
use crate::index::follow::KeeperWatch;
use crate::txn::committer::Committer;
use crate::types::error::{Error, Lift, Result};

/// The longest wait for the keeper until a look at whether it is there.
const LOOK: Duration = Duration::from_millis(100);

/// The longest sleep of the thread that does what is asked for: each request wakes it.
const SLEEP: Duration = Duration::from_secs(600);

/// Merges everything: here, or where the index is written.
pub(crate) fn compact(store: &Engine) -> Result<()> {
    store.check_writable()?;
    match ask(store, Asked::Compact, Members::ask_to_compact)? {
        Answer::Done => Ok(()),
        Answer::DoItHere => steps::compact(&store.space, &store.committer),
    }
}

/// Frees whole segments of the log below `until`: here, or where the index is written.
pub(crate) fn trim(store: &Engine, until: Glsn) -> Result<Glsn> {
    store.check_writable()?;
    let newest = store.newest()?;
    if until > newest.next() {
        return Err(Error::Future { asked: until, newest });
    }
    match ask(store, Asked::Trim, |members| members.ask_to_trim(until))? {
        Answer::Done => {
            store.file_log.catch_up().lift()?;
            Ok(store.reader.log.bounds().first)
        }
        Answer::DoItHere => trim::trim(&store.space, &store.committer, until),
    }
}

/// What came of a request.
enum Answer {
    /// The keeper has done it.
    Done,
    /// This process writes the index.
    DoItHere,
}

/// Asks the keeper, and waits for its answer.
fn ask(store: &Engine, what: Asked, ask: impl FnOnce(&Members) -> u64) -> Result<Answer> {
    let Some(members) = store.space.members().filter(|members| !members.is_keeper()) else {
        return Ok(Answer::DoItHere);
    };
    if !store.options.background {
        // It may be that only this thread has its steps done.
        return Err(Error::NotKeeper { pid: members.keeper_pid() });
    }
    let clock = &store.options.clock;
    let number = ask(members);
    let mut watch = KeeperWatch::new(members, &**clock);
    loop {
        let seen = members.state();
        match members.answer(what, number) {
            Some(true) => return Ok(Answer::Done),
            Some(false) => return Err(Error::NotKeeper { pid: members.keeper_pid() }),
            None => {}
        }
        store.check_writable()?;
        // If there is no keeper, this one is it.
        store.reader.index.follow(members)?;
        if members.is_keeper() {
            return Ok(Answer::DoItHere);
        }
        if let Some(stopped) = watch.stopped(members, &**clock)
            && store.reader.index.replace(members, stopped)?
        {
            return Ok(Answer::DoItHere);
        }
        members.wait_for_change(seen, LOOK);
    }
}

/// Starts the thread that does what others ask for while this process is the keeper. `alarm` is called if it panics.
pub(crate) fn serve(
    members: &Arc<Members>,
    is_ending: &Arc<AtomicBool>,
    alarm: impl Fn() + Send + 'static,
    space: &Arc<LogSpace>,
    committer: &Arc<Committer>,
) -> Result<Worker> {
    let (members, is_ending) = (Arc::clone(members), Arc::clone(is_ending));
    let (space, committer) = (Arc::clone(space), Arc::clone(committer));
    let step = move |_| {
        let seen = members.state();
        serve_those_asked(&members, &is_ending, &space, &committer);
        if is_ending.load(Ordering::Acquire) {
            return Next::End;
        }
        members.wait_for_change(seen, SLEEP);
        Next::Again
    };
    Ok(Worker::start("plimsoll-keeper", &Arc::new(Bell::default()), alarm, step)?)
}

/// Does what others have asked for, if this process is the keeper.
pub(crate) fn serve_those_asked(members: &Members, is_ending: &AtomicBool, space: &LogSpace, committer: &Committer) {
    let is_asked = |what| members.is_keeper().then(|| members.is_asked(what)).flatten();
    for what in [Asked::Compact, Asked::Trim] {
        let Some(number) = is_asked(what) else { continue };
        let done = match what {
            Asked::Compact => steps::compact(space, committer),
            Asked::Trim => trim::trim(space, committer, members.trim_wanted()).map(drop),
        };
        // What a process does not finish that ends is for the next keeper.
        let has_ended = is_ending.load(Ordering::Acquire) || committer.reader.check_open().is_err();
        if !has_ended || done.is_ok() {
            members.answered(what, number, done.is_ok());
        }
    }
}
