//! Forked processes that do not execute another program.
#![allow(unsafe_code, reason = "forks")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests look at the files and wait for the real clock"
)]

use std::fs;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll::{Db, Error, Glsn, Keyspace, Moment, Options, Retention};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(code: i32) -> !;
}

/// Runs `body` in a forked child, which then exits without running any more of the test.
pub(crate) fn in_child(body: impl FnOnce() -> i32) -> Pid {
    // SAFETY: the child runs `body` in its only thread, and then exits.
    match unsafe { fork() } {
        // SAFETY: as above.
        0 => unsafe { _exit(catch_unwind(AssertUnwindSafe(body)).unwrap_or(100)) },
        pid => Pid::from_raw(pid).expect("a child's process id"),
    }
}

/// Closes the standard streams of a child, which nobody reads.
pub(crate) fn close_standard_streams() {
    for fd in 0..3 {
        // SAFETY: the child uses them only to report panics; these reports are lost.
        unsafe { rustix::io::close(fd) };
    }
}

/// A child that has not ended after this time is stuck.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The exit code of a child, if it ends in time; otherwise it is killed.
pub(crate) fn wait_for(child: Pid) -> Option<i32> {
    let begun = Instant::now();
    while begun.elapsed() < TIMEOUT {
        if let Some((_, status)) = waitpid(Some(child), WaitOptions::NOHANG).unwrap() {
            return status.exit_status();
        }
        thread::sleep(Duration::from_millis(2));
    }
    end(child);
    None
}

/// Kills a child.
fn end(child: Pid) {
    let _ = kill_process(child, Signal::KILL);
    let _ = waitpid(Some(child), WaitOptions::empty());
}

fn options(is_shared: bool) -> Options {
    Options::new().memory_bytes(16 << 20).shared(is_shared)
}

fn open(path: &Path, is_shared: bool) -> (Db, Keyspace) {
    let db = Db::open(path, options(is_shared)).unwrap();
    let space = db.keyspace("default").unwrap();
    (db, space)
}

/// Makes a list of calls by their text, and returns those that did not fail with the error of a
/// forked child.
macro_rules! not_refused {
    ($($call:expr),* $(,)?) => {{
        let mut failed = Vec::new();
        $(match $call {
            Err(Error::InForkedChild { .. }) => {}
            other => {
                let other = other.map(|_| "it succeeded");
                failed.push(format!("{}: {other:?}", stringify!($call)))
            }
        })*
        failed
    }};
}

#[test]
fn a_forked_child_gets_an_error_and_harms_nothing() {
    for is_shared in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (path, report) = (dir.path().join("store"), dir.path().join("report"));
        let (db, space) = open(&path, is_shared);
        let large = vec![7; 1 << 20];
        for key in 0..2000u32 {
            db.put(&space, key.to_be_bytes(), [1; 100]).unwrap();
        }
        db.put(&space, "large", &large).unwrap();
        let other = db.create_keyspace("other", Retention::Forever).unwrap();
        db.put(&other, "a", "b").unwrap();
        db.flush().unwrap();
        db.log().cursor("reader", Glsn(1)).unwrap();
        let snapshot = db.snapshot();
        let (mut tx, mut untouched) = (Some(db.begin()), db.begin());
        tx.as_mut().unwrap().put(&space, "of a transaction", &large).unwrap();
        let mut walk = snapshot.range(&space, ..).unwrap();
        walk.advance().unwrap().unwrap();
        let mut scan = db.log().scan(Glsn(1).., None).unwrap();
        scan.next().unwrap().unwrap();
        let (mut follow, mut watch) =
            (db.log().follow(Glsn(1), None).unwrap(), db.watch(&space, "", Glsn(1)).unwrap());
        let (mut history, mut diff) =
            (db.history(&other, "a").unwrap(), db.diff(&space, Glsn(1), db.newest(), "").unwrap());
        let mut load = db.begin_bulk_load(&space).unwrap();
        let mut reader = snapshot.get_reader(&space, "large").unwrap().unwrap();
        let files = || {
            let names = |name: &str| {
                fs::read_dir(path.join(name)).unwrap().map(|entry| entry.unwrap().file_name())
            };
            let mut names: Vec<_> = names("log").chain(names("index")).collect();
            names.sort_unstable();
            names
        };
        let before = files();
        let child = in_child(|| {
            let mut failed = not_refused![
                db.get(&space, "a"),
                db.get_with(&space, "a", |_| ()),
                db.put(&space, "a", "b"),
                db.delete(&space, "a"),
                db.begin().get(&space, "a"),
                db.begin().put(&space, "a", "b"),
                db.begin_ordered().get(&space, "a"),
                db.transact(|tx| tx.put(&space, "a", "b")),
                db.pop_first(&space),
                db.sync(),
                db.bulk_load(&space, [("a", "b")]),
                db.keyspace("new"),
                db.create_keyspace("newer", Retention::Latest),
                db.set_retention(&other, Retention::Latest),
                db.drop_keyspace(&other),
                db.keyspace_size(&space, 10),
                db.approximate_len(&space, ..),
                db.snapshot().get(&space, "a"),
                db.snapshot_at(Moment::Glsn(Glsn(1))),
                db.watch(&space, "", Glsn(1)),
                db.history(&space, "a"),
                db.diff(&space, Glsn(1), Glsn(2), ""),
                db.members(),
                db.set_memory(17 << 20),
                db.verify(&mut |_| {}),
                db.backup(dir.path().join("backup")),
                db.backup_copy(dir.path().join("copy")),
                db.flush(),
                db.compact(),
                db.log().append(1, &[b"a"]),
                db.log().read(Glsn(1)),
                db.log().scan(Glsn(1).., None),
                db.log().commits(Glsn(1)),
                db.log().commit(Glsn(1)),
                db.log().follow(Glsn(1), None),
                db.log().cursor("new", Glsn(1)),
                db.log().advance_cursor("reader", Glsn(2)),
                db.log().drop_cursor("reader"),
                db.log().trim(Glsn(2)),
                snapshot.get(&space, "a"),
                snapshot.get_reader(&space, "large"),
                snapshot.contains_key(&space, "a"),
                snapshot.keyspace("default"),
                snapshot.len(&space),
                walk.advance(),
                scan.next().unwrap(),
                follow.next_timeout(Duration::ZERO),
                watch.next_timeout(Duration::ZERO),
                history.next().unwrap(),
                diff.next().unwrap(),
                untouched.put(&space, "a", "b"),
                untouched.delete(&space, "a"),
                load.put("a", "b"),
                db.begin_bulk_load(&space),
            ];
            if !matches!(db.get_resident(&space, "a", |_| ()), Err(Error::InForkedChild { .. })) {
                failed.push("get_resident".to_owned());
            }
            if reader.read(&mut [0; 10]).is_ok() {
                failed.push("a reader of a value".to_owned());
            }
            // Calls that cannot fail do not hang.
            let _ = (
                db.newest(),
                db.keyspaces(),
                db.stats(),
                db.warnings(),
                db.is_caught_up(),
                db.id(),
            );
            drop((
                tx.take(),
                untouched,
                walk,
                scan,
                follow,
                watch,
                history,
                diff,
                load,
                reader,
                snapshot,
            ));
            failed.extend(not_refused![db.clone().close()]);
            fs::write(&report, failed.join("\n")).unwrap();
            0
        });
        assert_eq!(wait_for(child), Some(0), "shared: {is_shared}");
        assert_eq!(fs::read_to_string(&report).unwrap(), "", "shared: {is_shared}");
        assert_eq!(files(), before, "shared: {is_shared}");
        // The parent continues.
        let mut tx = tx.expect("only the child has dropped it");
        tx.put(&space, "b", "c").unwrap();
        tx.commit().unwrap();
        db.put(&space, "large", &large).unwrap();
        db.flush().unwrap();
        assert!(db.verify(&mut |_| {}).unwrap().problems.is_empty());
        db.close().unwrap();
    }
}

#[test]
fn a_parent_commits_a_bulk_load_that_its_child_has_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let (db, space) = open(&dir.path().join("store"), false);
    let rows = 400_000_u32;
    let mut load = Some(db.begin_bulk_load(&space).unwrap());
    for number in 0..rows {
        load.as_mut()
            .unwrap()
            .put(number.wrapping_mul(0x9e37_79b1).to_be_bytes(), [1; 10])
            .unwrap();
        if number % 50_000 == 49_999 {
            let child = in_child(|| {
                drop(load.take());
                0
            });
            assert_eq!(wait_for(child), Some(0), "{number}");
        }
    }
    load.expect("only the children have dropped it").commit().unwrap();
    assert_eq!(db.snapshot().iter(&space).unwrap().count(), rows as usize);
    assert!(db.verify(&mut |_| {}).unwrap().problems.is_empty());
    db.close().unwrap();
}

#[test]
fn children_forked_while_threads_work_drop_everything_and_exit() {
    for is_shared in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (db, space) = open(&dir.path().join("store"), is_shared);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for thread in 0..3u32 {
                let (db, space, is_over) = (&db, &space, &is_over);
                scope.spawn(move || {
                    for round in 0.. {
                        if is_over.load(Ordering::Relaxed) {
                            break;
                        }
                        let bytes = if round % 50 == 0 { 300 << 10 } else { 200 };
                        db.put(space, (thread, round % 500).0.to_be_bytes(), vec![3; bytes])
                            .unwrap();
                        let snapshot = db.snapshot();
                        snapshot.range(space, ..).unwrap().advance().unwrap();
                    }
                });
            }
            for _ in 0..20 {
                let (snapshot, mut tx, last) = (db.snapshot(), db.begin(), db.clone());
                tx.put(&space, "of a transaction", vec![1; 300 << 10]).unwrap();
                let mut walk = snapshot.range(&space, ..).unwrap();
                walk.advance().unwrap();
                let child = in_child(move || {
                    drop((walk, tx, snapshot));
                    // In the child no other handle is ever dropped: the first one dropped here is
                    // not the last handle, the second one is.
                    let all = [last.clone(), last];
                    drop(all);
                    0
                });
                let ended = wait_for(child);
                is_over.fetch_or(ended != Some(0), Ordering::Relaxed);
                assert_eq!(ended, Some(0), "shared: {is_shared}");
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert!(db.verify(&mut |_| {}).unwrap().problems.is_empty());
    }
}

/// Starts a process that has the store open, and a child of it that outlives it. Returns both once
/// the store is open.
fn process_with_child(path: &Path, ready: &Path, is_shared: bool) -> (Pid, Pid) {
    let parent = in_child(|| {
        let (db, space) = open(path, is_shared);
        db.put(&space, "from", "the parent").unwrap();
        let child = in_child(|| {
            thread::sleep(Duration::from_secs(600));
            0
        });
        db.put(&space, "round", "none yet").unwrap();
        let text = child.as_raw_nonzero().to_string();
        fs::write(ready.with_extension("half"), text).unwrap();
        fs::rename(ready.with_extension("half"), ready).unwrap();
        for round in 0u64.. {
            db.put(&space, "round", round.to_be_bytes()).unwrap();
        }
        0
    });
    let begun = Instant::now();
    let child = loop {
        match fs::read_to_string(ready) {
            Ok(text) => break Pid::from_raw(text.parse().unwrap()).unwrap(),
            Err(_) => assert!(begun.elapsed() < TIMEOUT, "the parent has not opened the store"),
        }
        thread::sleep(Duration::from_millis(2));
    };
    (parent, child)
}

/// How long another process waits for the store after its holder was killed and its child is still
/// alive.
fn wait_after_a_death(is_shared: bool) -> Duration {
    let dir = tempfile::tempdir().unwrap();
    let (path, ready) = (dir.path().join("store"), dir.path().join("ready"));
    // The parent is the first member and so the keeper; it holds the turn most of the time.
    let (parent, child) = process_with_child(&path, &ready, is_shared);
    let beside = is_shared.then(|| open(&path, true));
    thread::sleep(Duration::from_millis(50));
    end(parent);
    let begun = Instant::now();
    let (db, space) = beside.unwrap_or_else(|| open(&path, false));
    db.put(&space, "from", "the other").unwrap();
    db.flush().unwrap();
    let members = db.members().unwrap();
    let took = begun.elapsed();
    assert!(kill_process(child, Signal::CONT).is_ok(), "the child has ended");
    end(child);
    assert_eq!(members.len(), usize::from(is_shared), "{members:?}");
    assert!(db.get(&space, "round").unwrap().is_some());
    took
}

#[test]
fn a_child_keeps_no_lock_of_its_dead_parent() {
    for is_shared in [false, true] {
        // With a lock that is not released, every attempt would wait at least twice as long.
        let mut waits = (0..10).map(|_| wait_after_a_death(is_shared));
        assert!(waits.any(|took| took < Duration::from_secs(5)), "shared: {is_shared}");
    }
}

#[test]
fn a_child_opens_the_shared_store_of_its_parent_itself() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (db, space) = open(&path, true);
    db.put(&space, "from", "the parent").unwrap();
    let child = in_child(|| {
        let (own, space) = open(&path, true);
        assert_eq!(own.get(&space, "from").unwrap().unwrap(), b"the parent");
        assert_eq!(own.members().unwrap().len(), 2);
        own.put(&space, "from", "the child").unwrap();
        own.close().unwrap();
        0
    });
    assert_eq!(wait_for(child), Some(0));
    assert_eq!(db.get(&space, "from").unwrap().unwrap(), b"the child");
    assert_eq!(db.members().unwrap().len(), 1);
}
