//! Operations that one process performs for all that have the store open: compaction and trims on
//! demand. The other processes ask the keeper and wait for its answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use plimsoll_disk::worker::{Bell, Next, Worker};
use plimsoll_log::glsn::Glsn;
use plimsoll_log::members::{Members, RequestKind};

use crate::engine::trim::LogSpace;
use crate::engine::{Engine, compact_and_free, trim};
use crate::index::shared::follow::KeeperWatch;
use crate::txn::committer::Committer;
use crate::types::error::{Error, Lift, Result};

/// The longest wait for the keeper before checking whether it is still alive.
const LOOK: Duration = Duration::from_millis(100);

/// The longest sleep of the thread that serves requests; each request wakes it.
const SLEEP: Duration = Duration::from_secs(600);

/// Merges everything: in this process if it writes the index, otherwise in the keeper.
pub(crate) fn compact(store: &Engine) -> Result<()> {
    store.check_writable()?;
    store.reader.log.check_own().lift()?;
    match ask(store, RequestKind::Compact, |members| members.requests.ask_to_compact())? {
        Answer::Done => Ok(()),
        Answer::RunHere => compact_and_free::compact(&store.space, &store.committer),
    }
}

/// Frees whole segments of the log below `until`: in this process if it writes the index, otherwise
/// in the keeper.
pub(crate) fn trim(store: &Engine, until: Glsn) -> Result<Glsn> {
    store.check_writable()?;
    store.reader.log.check_own().lift()?;
    let newest = store.newest()?;
    if until > newest.next() {
        return Err(Error::Future { asked: until, newest });
    }
    match ask(store, RequestKind::Trim, |members| members.requests.ask_to_trim(until))? {
        Answer::Done => {
            store.reader.log.catch_up().lift()?;
            Ok(store.reader.log.bounds().first)
        }
        Answer::RunHere => trim::trim(&store.space, &store.committer, until),
    }
}

/// The result of a request.
enum Answer {
    /// The keeper has performed the operation.
    Done,
    /// This process writes the index, so it performs the operation itself.
    RunHere,
}

/// Asks the keeper, and waits for its answer.
fn ask(store: &Engine, what: RequestKind, ask: impl FnOnce(&Members) -> u64) -> Result<Answer> {
    let Some(members) = store.membership.members().filter(|members| !members.keeper.is_keeper())
    else {
        return Ok(Answer::RunHere);
    };
    if !store.options.background {
        // Do not wait: without background threads, the steps of the keeper may be performed by this
        // very thread.
        return Err(Error::NotKeeper { pid: members.keeper.pid() });
    }
    let clock = &store.options.clock;
    let number = ask(members);
    let mut watch = KeeperWatch::new(members, &**clock);
    loop {
        let seen = members.table.state();
        match members.requests.answer(what, number) {
            Some(true) => return Ok(Answer::Done),
            Some(false) => return Err(Error::NotKeeper { pid: members.keeper.pid() }),
            None => {}
        }
        store.check_writable()?;
        // If there is no keeper, this process becomes the keeper.
        store.reader.index.following.follow(members)?;
        if members.keeper.is_keeper() {
            return Ok(Answer::RunHere);
        }
        if let Some(stopped) = watch.stopped(members, &**clock)
            && store.reader.index.following.replace(members, stopped)?
        {
            return Ok(Answer::RunHere);
        }
        members.table.wait_for_change(seen, LOOK);
    }
}

/// Starts the thread that serves requests of other processes while this one is the keeper. `alarm`
/// is called if the thread panics.
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
        let seen = members.table.state();
        serve_pending(&members, &is_ending, &space, &committer);
        if is_ending.load(Ordering::Acquire) {
            return Next::End;
        }
        members.table.wait_for_change(seen, SLEEP);
        Next::Again
    };
    Ok(Worker::start("plimsoll-keeper", &Arc::new(Bell::default()), alarm, step)?)
}

/// Serves the requests of other processes, if this process is the keeper.
pub(crate) fn serve_pending(
    members: &Members,
    is_ending: &AtomicBool,
    space: &LogSpace,
    committer: &Committer,
) {
    let is_asked =
        |what| members.keeper.is_keeper().then(|| members.requests.is_asked(what)).flatten();
    for what in [RequestKind::Compact, RequestKind::Trim] {
        let Some(number) = is_asked(what) else { continue };
        let done = apply_all_durably(committer).and_then(|()| match what {
            RequestKind::Compact => compact_and_free::compact(space, committer),
            RequestKind::Trim => {
                trim::trim(space, committer, members.requests.trim_requested()).map(drop)
            }
        });
        // If this process ends mid-request, the next keeper serves it.
        let has_ended = is_ending.load(Ordering::Acquire) || committer.reader.check_open().is_err();
        if !has_ended || done.is_ok() {
            members.requests.answered(what, number, done.is_ok());
        }
    }
}

/// Applies everything that the requesting process has committed, which may not be durable, and
/// makes it durable.
fn apply_all_durably(committer: &Committer) -> Result<()> {
    committer.fresh_and_ordered()?;
    committer.sequencer.wait_visible()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use plimsoll_disk::thread::spawn;

    use super::*;
    use crate::engine::open::open;
    use crate::txn::transaction::Transaction;
    use crate::types::options::{Durability, Options};

    #[test]
    fn a_keeper_can_be_closed_right_after_a_request_to_trim() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let join = || open(&path, Options::new().memory_bytes(16 << 20).shared(true)).unwrap();
        let (keeper, other) = (join(), join());
        let mut tx = Transaction::new(&keeper.committer);
        tx.put(&keeper.reader.keyspaces.find("default").unwrap().0, b"row", b"value").unwrap();
        tx.commit().unwrap();
        keeper.flush().unwrap();
        let clock = &keeper.options.clock;
        let wait_until = |is_so: &dyn Fn() -> bool| {
            while !is_so() {
                clock.sleep(Duration::from_millis(1));
            }
        };
        // The serving thread has begun, and accesses the log only once the store is being closed.
        let no_commit = keeper.committer.sequencer.lock().unwrap();
        other.membership.members().unwrap().requests.ask_to_trim(Glsn(2));
        wait_until(&|| keeper.catalog.horizon.trim_requested.load(Ordering::SeqCst) > 0);
        let (closed, is_closed) = mpsc::channel();
        let closing = Arc::clone(&keeper);
        let closer = spawn("closer", move || closed.send(closing.close())).unwrap();
        wait_until(&|| keeper.check_open().is_err());
        clock.sleep(Duration::from_millis(200));
        drop(no_commit);
        is_closed.recv_timeout(Duration::from_secs(60)).unwrap().unwrap();
        closer.join().unwrap().unwrap();
    }

    #[test]
    fn a_request_can_trim_the_log_up_to_commits_that_are_not_durable() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let options = || Options::new().memory_bytes(16 << 20).shared(true);
        let _keeper = open(&path, options()).unwrap();
        let other = open(&path, options().durability(Durability::Buffered)).unwrap();
        for key in 0..3u8 {
            let mut tx = Transaction::new(&other.committer);
            tx.put(&other.reader.keyspaces.find("default").unwrap().0, [key], b"value").unwrap();
            tx.commit().unwrap();
        }
        trim(&other, other.visible().next()).unwrap();
    }
}
