//! Several processes on one store. Here each one is a separate opening in this process, which makes
//! no difference to the locks, the shared words and the files.
#![allow(clippy::disallowed_methods, reason = "tests look at the files")]

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use plimsoll::{Db, Durability, Error, Glsn, InvalidInput, Keyspace, Moment, Options, Retention};

pub(crate) fn options() -> Options {
    Options::new().memory_bytes(16 << 20).shared(true)
}

pub(crate) fn open(path: &Path) -> Db {
    Db::open(path, options()).unwrap()
}

pub(crate) fn default(db: &Db) -> Keyspace {
    db.keyspace("default").unwrap()
}

pub(crate) fn number(db: &Db, space: &Keyspace, key: &str) -> u64 {
    db.get(space, key).unwrap().map_or(0, |value| u64::from_le_bytes(value[..].try_into().unwrap()))
}

pub(crate) fn verify(path: &Path) {
    let report =
        Db::open(path, Options::new().memory_bytes(16 << 20)).unwrap().verify(&mut |_| {}).unwrap();
    assert!(report.problems.is_empty(), "{report:?}");
}

/// Trims the log until it begins beyond `wanted`. First, each member has to check and to publish
/// that it does not need the flushed part.
pub(crate) fn trim_beyond(db: &Db, until: Glsn, wanted: Glsn) -> Glsn {
    let begun = Instant::now();
    loop {
        let first = db.log().trim(until).unwrap();
        if first > wanted {
            return first;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "the log begins at {first}, not beyond {wanted}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_state_at_a_time_includes_commits_of_others_until_then() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let one = open(&path);
    let two = Db::open(&path, options().background(false)).unwrap();
    let (of_one, of_two) = (default(&one), default(&two));
    for round in 1..20u64 {
        one.put(&of_one, "key", round.to_le_bytes()).unwrap();
        let later = std::time::SystemTime::now() + Duration::from_secs(60);
        let then = two.snapshot_at(Moment::Time(later)).unwrap();
        assert_eq!(then.get(&of_two, "key").unwrap().unwrap()[..], round.to_le_bytes());
    }
}

#[test]
fn a_commit_of_one_member_is_visible_to_the_others_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (one, two) = (open(&path), open(&path));
    let (of_one, of_two) = (default(&one), default(&two));
    for round in 0..200u64 {
        let (writer, reader, written, read) = match round % 2 {
            0 => (&one, &two, &of_one, &of_two),
            _ => (&two, &one, &of_two, &of_one),
        };
        let glsn = writer.put(written, "key", round.to_le_bytes()).unwrap();
        assert_eq!(number(reader, read, "key"), round);
        assert!(reader.newest() >= glsn);
        assert_eq!(reader.snapshot().get(read, "key").unwrap().unwrap()[..], round.to_le_bytes());
        let mut tx = reader.begin();
        assert_eq!(tx.get(read, "key").unwrap().unwrap()[..], round.to_le_bytes());
        tx.put(read, "other", round.to_le_bytes()).unwrap();
        tx.commit().unwrap();
    }
    let three = open(&path);
    assert_eq!(number(&three, &default(&three), "other"), 199);
    // A keyspace that one member creates is visible to the others.
    let made = one.create_keyspace("made", Retention::Latest).unwrap();
    one.put(&made, "a", "b").unwrap();
    let found = two.keyspace("made").unwrap();
    assert_eq!(two.get(&found, "a").unwrap().unwrap(), b"b");
    one.close().unwrap();
    two.put(&found, "a", "c").unwrap();
    drop(two);
    assert_eq!(three.get(&three.keyspace("made").unwrap(), "a").unwrap().unwrap(), b"c");
    drop(three);
    verify(&path);
}

#[test]
fn commits_of_a_buffered_member_are_durable_when_it_has_left() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let stays = Db::open(&path, options().background(false)).unwrap();
    let leaves =
        Db::open(&path, options().background(false).durability(Durability::Buffered)).unwrap();
    let (of_stays, of_leaves) = (default(&stays), default(&leaves));
    let glsn = leaves.put(&of_leaves, "key", "value").unwrap();
    assert!(stays.newest() < glsn);
    leaves.close().unwrap();
    assert_eq!(stays.newest(), glsn);
    assert_eq!(stays.get(&of_stays, "key").unwrap().unwrap(), b"value");
}

#[test]
fn transactions_of_several_members_conflict_as_those_of_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (one, two) = (open(&path), open(&path));
    let (of_one, of_two) = (default(&one), default(&two));
    one.put(&of_one, "key", 1u64.to_le_bytes()).unwrap();
    let mut behind = two.begin();
    assert_eq!(behind.get(&of_two, "key").unwrap().unwrap()[..], 1u64.to_le_bytes());
    one.put(&of_one, "key", 2u64.to_le_bytes()).unwrap();
    behind.put(&of_two, "other", "x").unwrap();
    assert!(matches!(behind.commit(), Err(Error::Conflict { .. })));
    // Increments are not lost, whichever member makes them.
    let members: Vec<Db> = (0..4).map(|_| open(&path)).collect();
    std::thread::scope(|scope| {
        for db in &members {
            scope.spawn(move || {
                let space = default(db);
                for _ in 0..50 {
                    let add = |tx: &mut plimsoll::Transaction| -> plimsoll::Result<()> {
                        let now = tx
                            .get(&space, "sum")?
                            .map_or(0, |value| u64::from_le_bytes(value[..].try_into().unwrap()));
                        tx.put(&space, "sum", (now + 1).to_le_bytes())
                    };
                    while let Err(error) = db.transact(add) {
                        assert!(matches!(error, Error::Conflict { .. }), "{error}");
                    }
                }
            });
        }
    });
    assert_eq!(number(&one, &of_one, "sum"), 200);
    assert_eq!(number(&two, &of_two, "sum"), 200);
}

#[test]
fn no_member_drops_versions_that_a_snapshot_of_another_one_needs() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (keeper, other) = (open(&path), open(&path));
    let kept = keeper.create_keyspace("kept", Retention::Latest).unwrap();
    for row in 0..500u64 {
        keeper.put(&kept, row.to_be_bytes(), vec![1; 2000]).unwrap();
    }
    let of_other = other.keyspace("kept").unwrap();
    let held = other.snapshot();
    for round in 2..6u8 {
        for row in 0..500u64 {
            keeper.put(&kept, row.to_be_bytes(), vec![round; 2000]).unwrap();
        }
        keeper.compact().unwrap();
        for row in [0u64, 250, 499] {
            assert_eq!(held.get(&of_other, row.to_be_bytes()).unwrap().unwrap()[..], vec![1; 2000]);
        }
    }
    assert_eq!(
        held.range(&of_other, ..).unwrap().filter(|row| row.as_ref().unwrap().1[0] == 1).count(),
        500
    );
    drop(held);
    // Once it is dropped, its space is freed.
    let begun = Instant::now();
    while keeper.stats().index.history_runs.iter().sum::<u64>() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", keeper.stats().index);
        std::thread::sleep(Duration::from_millis(100));
        keeper.compact().unwrap();
    }
}

#[test]
fn a_store_that_is_open_alone_is_not_shared_and_one_that_is_shared_is_not_open_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let alone = Db::open(&path, Options::new().memory_bytes(16 << 20)).unwrap();
    assert!(matches!(Db::open(&path, options()), Err(Error::Locked { .. })));
    drop(alone);
    let shared = [open(&path), open(&path)];
    let Err(Error::Locked { who, .. }) = Db::open(&path, Options::new().memory_bytes(16 << 20))
    else {
        panic!()
    };
    let process = format!("a process that shares it (pid {})", std::process::id());
    assert!(who.contains(&process), "{who}");
    drop(shared);
    verify(&path);
}

#[test]
fn a_follower_of_the_log_is_woken_by_commits_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (one, two) = (open(&path), open(&path));
    let (seen, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut follow = two.log().follow(two.newest().next(), None).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                if follow.next_timeout(Duration::from_secs(120)).unwrap().is_some() {
                    seen.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        let space = default(&one);
        for round in 0..50u64 {
            one.put(&space, "key", round.to_le_bytes()).unwrap();
            let begun = Instant::now();
            while seen.load(Ordering::SeqCst) <= round {
                // Less than the 20 seconds after which a member checks even if it is not woken.
                assert!(
                    begun.elapsed() < Duration::from_secs(15),
                    "commit {round} did not wake the follower"
                );
                std::thread::yield_now();
            }
        }
        over.store(true, Ordering::SeqCst);
        one.put(&space, "key", "last").unwrap();
    });
}

#[test]
fn the_log_is_freed_once_no_member_needs_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let options = || options().segment_bytes(1 << 20).retention(Retention::Latest);
    let keeper = Db::open(&path, options()).unwrap();
    let fill = |db: &Db| {
        let space = default(db);
        for some in 0..100u64 {
            let mut tx = db.begin();
            (0..100u64)
                .for_each(|row| tx.put(&space, row.to_be_bytes(), vec![some as u8; 500]).unwrap());
            tx.commit().unwrap();
        }
    };
    let log_files = || {
        std::fs::read_dir(path.join("log"))
            .unwrap()
            .filter(|file| file.as_ref().unwrap().path().extension().is_some_and(|of| of == "seg"))
            .count()
    };
    fill(&keeper);
    let begun = Instant::now();
    keeper.compact().unwrap();
    // A compaction skips freeing the log while another thread does so.
    while log_files() > 2 {
        assert!(begun.elapsed() < Duration::from_secs(60), "alone: {}", log_files());
        keeper.compact().unwrap();
    }
    let other = Db::open(&path, options()).unwrap();
    let held = other.snapshot();
    fill(&other);
    fill(&keeper);
    assert_eq!(held.get(&default(&other), 7u64.to_be_bytes()).unwrap().unwrap(), vec![99; 500]);
    drop(held);
    let begun = Instant::now();
    while log_files() > 3 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{} segments", log_files());
        keeper.compact().unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(other.get(&default(&other), 7u64.to_be_bytes()).unwrap().unwrap(), vec![99; 500]);
}

#[test]
fn a_resting_member_applies_new_commits_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (one, two) = (open(&path), open(&path));
    let space = default(&one);
    for _ in 0..3 {
        let glsn = one.put(&space, "key", "value").unwrap();
        let begun = Instant::now();
        let has_seen = || two.members().unwrap().iter().all(|member| member.floor >= glsn);
        while !has_seen() {
            // Less than the 20 seconds after which a member checks even if it is not woken.
            assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", two.members());
            std::thread::sleep(Duration::from_millis(20));
        }
        // Nothing is committed, so the members check rarely from now on.
        std::thread::sleep(Duration::from_millis(1500));
    }
}

#[test]
fn a_spilled_transaction_is_visible_to_all_members() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (one, two) = (open(&path), open(&path));
    let (of_one, of_two) = (default(&one), default(&two));
    let mut tx = two.begin();
    for row in 0..20_000u64 {
        tx.put(&of_two, row.to_be_bytes(), vec![3; 700]).unwrap();
    }
    tx.commit().unwrap();
    two.put(&of_two, "large", vec![5; 900_000]).unwrap();
    for db in [&one, &two] {
        let space = if std::ptr::eq(db, &one) { &of_one } else { &of_two };
        assert_eq!(db.snapshot().len(space).unwrap(), 20_001);
        assert_eq!(db.get(space, 19_999u64.to_be_bytes()).unwrap().unwrap(), vec![3; 700]);
        assert_eq!(db.get(space, "large").unwrap().unwrap(), vec![5; 900_000]);
    }
    one.compact().unwrap();
    assert_eq!(two.snapshot().len(&of_two).unwrap(), 20_001);
    assert_eq!(two.get(&of_two, 1u64.to_be_bytes()).unwrap().unwrap(), vec![3; 700]);
    assert_eq!(two.get(&of_two, "large").unwrap().unwrap(), vec![5; 900_000]);
    drop((one, two));
    verify(&path);
}

#[test]
fn a_cursor_of_one_member_retains_the_log_in_all() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let sized = || Db::open(&path, options().segment_bytes(1 << 20)).unwrap();
    let (keeper, other) = (sized(), sized());
    let (of_keeper, of_other) = (default(&keeper), default(&other));
    keeper.put(&of_keeper, "key", vec![1; 100]).unwrap();
    let next = other.log().cursor("mailer", Glsn(1)).unwrap();
    for round in 0..40u64 {
        other.put(&of_other, "key", vec![round as u8; 60_000]).unwrap();
    }
    assert_eq!(keeper.log().cursors(), other.log().cursors());
    assert_eq!(keeper.log().cursor("mailer", keeper.newest()).unwrap(), next);
    let first = keeper.log().trim(keeper.newest()).unwrap();
    assert!(first <= next, "the log begins at {first}, the cursor reads on from {next}");
    assert_eq!(other.log().commits(next).unwrap().next().unwrap().unwrap().glsn(), next);
    // Both may move it; it never moves backwards.
    keeper.log().advance_cursor("mailer", Glsn(30)).unwrap();
    let back = other.log().advance_cursor("mailer", Glsn(20));
    assert!(
        matches!(back, Err(Error::InvalidInput(InvalidInput::CursorGoesBack { .. }))),
        "{back:?}"
    );
    other.log().advance_cursor("mailer", Glsn(35)).unwrap();
    assert_eq!(keeper.log().cursors()[0].next, Glsn(35));
    trim_beyond(&keeper, keeper.newest(), first);
    other.log().drop_cursor("mailer").unwrap();
    assert_eq!(keeper.log().cursors(), []);
    trim_beyond(&keeper, keeper.newest(), Glsn(35));
}

#[test]
fn opening_a_shared_store_waits_for_a_process_that_is_closing_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let alone = || Db::open(&path, Options::new().memory_bytes(16 << 20));
    drop(alone().unwrap());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // It opens and closes the store repeatedly.
            while !over.load(Ordering::Relaxed) {
                drop(alone());
            }
        });
        for _ in 0..60 {
            match Db::open(&path, options()) {
                Ok(db) => drop(db),
                Err(Error::Locked { .. }) => {}
                Err(error) => panic!("{error} [{error:?}]"),
            }
        }
        over.store(true, Ordering::Relaxed);
    });
}
