//! Several processes on one store. Here each is a store of its own in this process: the locks, the shared words and the files do not know the
//! difference.
#![allow(clippy::disallowed_methods, reason = "tests look at the files")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use plimsoll::{Db, Durability, Error, Glsn, InvalidInput, Keyspace, Options, Retention};
use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::os::OsDisk;

fn options() -> Options {
    Options::new().memory_bytes(16 << 20).shared(true)
}

fn open(path: &Path) -> Db {
    Db::open(path, options()).unwrap()
}

fn default(db: &Db) -> Keyspace {
    db.keyspace("default").unwrap()
}

fn number(db: &Db, space: &Keyspace, key: &str) -> u64 {
    db.get(space, key).unwrap().map_or(0, |value| u64::from_le_bytes(value[..].try_into().unwrap()))
}

fn verify(path: &Path) {
    let report = Db::open(path, Options::new().memory_bytes(16 << 20)).unwrap().verify(&mut |_| {}).unwrap();
    assert!(report.problems.is_empty(), "{report:?}");
}

#[test]
fn what_one_commits_the_others_read_at_once() {
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
    // A keyspace that one makes is there for the others.
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
fn what_a_buffered_member_has_committed_is_durable_when_it_has_left() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let stays = Db::open(&path, options().background(false)).unwrap();
    let leaves = Db::open(&path, options().background(false).durability(Durability::Buffered)).unwrap();
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
    // Increments are not lost, whoever makes them.
    let members: Vec<Db> = (0..4).map(|_| open(&path)).collect();
    std::thread::scope(|scope| {
        for db in &members {
            scope.spawn(move || {
                let space = default(db);
                for _ in 0..50 {
                    let add = |tx: &mut plimsoll::Transaction| -> plimsoll::Result<()> {
                        let now =
                            tx.get(&space, "sum")?.map_or(0, |value| u64::from_le_bytes(value[..].try_into().unwrap()));
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
fn members_with_little_memory_follow_what_the_keeper_flushes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let members: Vec<Db> = (0..3).map(|_| open(&path)).collect();
    let rows = 9000u64;
    std::thread::scope(|scope| {
        for (at, db) in members.iter().enumerate() {
            scope.spawn(move || {
                let space = default(db);
                for some in 0..rows / 30 {
                    let mut tx = db.begin();
                    for row in some * 30..(some + 1) * 30 {
                        let key = format!("{at}.{:05}", row * 7919 % rows);
                        tx.put(&space, key, vec![at as u8; 600]).unwrap();
                    }
                    tx.commit().unwrap();
                }
            });
        }
    });
    for db in &members {
        let space = default(db);
        let all = db.snapshot();
        assert_eq!(all.len(&space).unwrap(), 3 * rows);
        for (at, row) in (0..3u8).flat_map(|at| [0, 700, rows - 1].map(|row| (at, row))) {
            assert_eq!(db.get(&space, format!("{at}.{row:05}")).unwrap().unwrap()[..], vec![at; 600]);
        }
    }
    // 16 MB were written, and no memtable holds more than 2.
    assert!(members.iter().all(|db| db.stats().index.tables > 0), "all of them read the keeper's runs");
    drop(members);
    verify(&path);
}

#[test]
fn another_member_keeps_the_index_when_the_keeper_leaves() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (first, second) = (open(&path), open(&path));
    let fill = |db: &Db, from: u64| {
        let space = default(db);
        for some in 0..300 {
            let mut tx = db.begin();
            for row in 0..30 {
                tx.put(&space, (from + some * 30 + row).to_be_bytes(), vec![7; 600]).unwrap();
            }
            tx.commit().unwrap();
        }
    };
    fill(&first, 0);
    fill(&second, 9000);
    first.close().unwrap();
    fill(&second, 18000);
    assert_eq!(second.snapshot().len(&default(&second)).unwrap(), 27000);
    second.compact().unwrap();
    drop(second);
    verify(&path);
}

#[test]
fn what_a_snapshot_of_one_member_needs_no_other_one_drops() {
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
    assert_eq!(held.range(&of_other, ..).unwrap().filter(|row| row.as_ref().unwrap().1[0] == 1).count(), 500);
    drop(held);
    // Once it is dropped, space comes back.
    let begun = Instant::now();
    while keeper.stats().index.history_runs.iter().sum::<u64>() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", keeper.stats().index);
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
    let shared = open(&path);
    assert!(matches!(Db::open(&path, Options::new().memory_bytes(16 << 20)), Err(Error::Locked { .. })));
    drop(shared);
    verify(&path);
}

#[test]
fn a_follower_of_the_log_is_woken_by_commits_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (one, two) = (open(&path), open(&path));
    let (seen, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut follow = two.log().follow(two.newest().next(), None).unwrap();
            while !over.load(Ordering::SeqCst) {
                if follow.next_timeout(Duration::from_secs(5)).unwrap().is_some() {
                    seen.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        std::thread::sleep(Duration::from_millis(50));
        let space = default(&one);
        for round in 0..50u64 {
            one.put(&space, "key", round.to_le_bytes()).unwrap();
            let begun = Instant::now();
            while seen.load(Ordering::SeqCst) <= round {
                assert!(begun.elapsed() < Duration::from_secs(4), "commit {round} did not wake it");
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
            (0..100u64).for_each(|row| tx.put(&space, row.to_be_bytes(), vec![some as u8; 500]).unwrap());
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
    keeper.compact().unwrap();
    assert!(log_files() <= 2, "alone: {}", log_files());
    let other = Db::open(&path, options()).unwrap();
    let held = other.snapshot();
    fill(&other);
    fill(&keeper);
    assert_eq!(held.get(&default(&other), 7u64.to_be_bytes()).unwrap().unwrap(), vec![99; 500]);
    drop(held);
    let begun = Instant::now();
    while log_files() > 3 {
        assert!(begun.elapsed() < Duration::from_secs(30), "{} segments", log_files());
        keeper.compact().unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(other.get(&default(&other), 7u64.to_be_bytes()).unwrap().unwrap(), vec![99; 500]);
}

#[test]
fn a_member_that_rests_takes_in_what_others_begin_to_commit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (one, two) = (open(&path), open(&path));
    let space = default(&one);
    for _ in 0..3 {
        let glsn = one.put(&space, "key", "value").unwrap();
        let begun = Instant::now();
        let has_seen = || two.members().unwrap().iter().all(|member| member.floor >= glsn);
        while !has_seen() {
            assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", two.members());
            std::thread::sleep(Duration::from_millis(20));
        }
        // Nothing is committed: they look seldom from now on.
        std::thread::sleep(Duration::from_millis(1500));
    }
}

#[test]
fn a_transaction_that_was_spilled_is_there_for_all() {
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
fn a_member_verifies_and_backs_up_while_the_keeper_merges_and_trims() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let options = || options().segment_bytes(1 << 20).retention(Retention::Latest).memtable_bytes(256 << 10);
    let (keeper, other) = (Db::open(&path, options()).unwrap(), Db::open(&path, options()).unwrap());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let space = default(&keeper);
            let mut round = 0u64;
            while !over.load(Ordering::SeqCst) {
                round += 1;
                let mut tx = keeper.begin();
                (0..200u64).for_each(|row| tx.put(&space, row.to_be_bytes(), vec![round as u8; 700]).unwrap());
                tx.put(&space, "large", vec![round as u8; 300_000]).unwrap();
                tx.put(&space, "round", round.to_le_bytes()).unwrap();
                tx.commit().unwrap();
                if round.is_multiple_of(4) {
                    keeper.compact().unwrap();
                    keeper.log().trim(keeper.newest()).unwrap();
                }
            }
        });
        let space = default(&other);
        while number(&other, &space, "round") < 5 {
            std::thread::yield_now();
        }
        for backup in 0..6 {
            let report = other.verify(&mut |_| {}).unwrap();
            assert!(report.problems.is_empty(), "{report:?}");
            let before = number(&other, &space, "round");
            let copy = dir.path().join(format!("backup{backup}"));
            other.backup(&copy).unwrap();
            let copied = Db::open(&copy, Options::new().memory_bytes(16 << 20)).unwrap();
            let space = default(&copied);
            let round = number(&copied, &space, "round");
            assert!(round >= before, "{round} in the copy, {before} before it was made");
            for row in [0u64, 100, 199] {
                assert_eq!(copied.get(&space, row.to_be_bytes()).unwrap().unwrap(), vec![round as u8; 700]);
            }
            assert_eq!(copied.get(&space, "large").unwrap().unwrap(), vec![round as u8; 300_000]);
            assert!(copied.verify(&mut |_| {}).unwrap().problems.is_empty());
        }
        over.store(true, Ordering::SeqCst);
    });
    drop((keeper, other));
    verify(&path);
}

#[test]
fn while_a_member_verifies_no_file_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let options = || options().segment_bytes(1 << 20).retention(Retention::Latest).memtable_bytes(256 << 10);
    let (keeper, other) = (Db::open(&path, options()).unwrap(), Db::open(&path, options()).unwrap());
    let space = default(&keeper);
    let overwrite = |round: u8| {
        for _ in 0..10 {
            let mut tx = keeper.begin();
            (0..300u64).for_each(|row| tx.put(&space, row.to_be_bytes(), vec![round; 700]).unwrap());
            tx.commit().unwrap();
        }
        keeper.compact().unwrap();
        keeper.log().trim(keeper.newest()).unwrap()
    };
    overwrite(1);
    let runs = || -> std::collections::BTreeSet<_> {
        let files = std::fs::read_dir(path.join("index")).unwrap().map(|file| file.unwrap().path());
        files.filter(|file| file.extension().is_some_and(|of| of == "run")).collect()
    };
    let (before, first) = (runs(), keeper.stats().log.first);
    let mut asked = 0;
    let report = other.verify(&mut |_| {
        asked += 1;
        if asked == 1 {
            assert_eq!(overwrite(2), first, "the log was trimmed while another member reads all of it");
            assert!(before.is_subset(&runs()), "runs were removed while another member reads all of them");
        }
    });
    assert!(report.unwrap().problems.is_empty() && asked > 0);
    // Afterwards they go.
    assert!(overwrite(3) > first);
    let begun = Instant::now();
    while !before.is_disjoint(&runs()) {
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", runs());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_cursor_of_one_member_holds_the_log_back_in_all() {
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
    // Both may move it; it never goes back.
    keeper.log().advance_cursor("mailer", Glsn(30)).unwrap();
    let back = other.log().advance_cursor("mailer", Glsn(20));
    assert!(matches!(back, Err(Error::InvalidInput(InvalidInput::CursorGoesBack { .. }))), "{back:?}");
    other.log().advance_cursor("mailer", Glsn(35)).unwrap();
    assert_eq!(keeper.log().cursors()[0].next, Glsn(35));
    assert!(keeper.log().trim(keeper.newest()).unwrap() > first);
    other.log().drop_cursor("mailer").unwrap();
    assert_eq!(keeper.log().cursors(), []);
    assert!(keeper.log().trim(keeper.newest()).unwrap() > Glsn(35));
}

#[test]
fn what_the_keeper_does_for_all_any_member_may_ask_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let options = || options().segment_bytes(1 << 20).memtable_bytes(256 << 10);
    let (keeper, one, two) = (Db::open(&path, options()), Db::open(&path, options()), Db::open(&path, options()));
    let (keeper, one, two) = (keeper.unwrap(), one.unwrap(), two.unwrap());
    let of_one = default(&one);
    for round in 0..60u64 {
        one.put(&of_one, format!("{:03}", round % 20), vec![round as u8; 60_000]).unwrap();
        if round % 20 == 19 {
            one.flush().unwrap();
        }
    }
    // A flush is counted a moment after others know of it.
    let begun = Instant::now();
    while keeper.stats().index.flushes < 3 {
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", keeper.stats().index);
    }
    one.compact().unwrap();
    assert!(keeper.stats().index.compactions > 0, "the keeper was asked");
    assert_eq!(one.stats().index.compactions, 0);
    let until = two.newest();
    let first = two.log().trim(until).unwrap();
    assert!(first > Glsn(20) && first <= until, "{first}");
    assert_eq!(keeper.log().bounds().first, first);
    assert_eq!(one.log().trim(Glsn(2)).unwrap(), first);
    let ahead = one.log().trim(Glsn(until.0 + 2));
    assert!(matches!(ahead, Err(Error::Future { .. })), "{ahead:?}");
    // What was committed when it was asked is in the runs when it has answered.
    for round in 0..20u64 {
        let before = keeper.stats().index.flushes;
        one.put(&of_one, "last", round.to_le_bytes()).unwrap();
        one.compact().unwrap();
        assert!(keeper.stats().index.flushes > before, "round {round}");
    }
    // Who asks when the keeper has left, or leaves meanwhile, is answered all the same.
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| (0..20).for_each(|_| two.compact().unwrap()));
        keeper.close().unwrap();
        asking.join().unwrap();
    });
    one.compact().unwrap();
    two.compact().unwrap();
    assert_eq!(two.get(&default(&two), "007").unwrap().unwrap()[..], vec![47u8; 60_000][..]);
    drop((one, two));
    verify(&path);
}

/// Waits until all members have what `is_wanted` says; the sum of their budgets is never above `total`.
fn until_memory(path: &Path, total: u64, is_wanted: impl Fn(&[u64]) -> bool) {
    let begun = Instant::now();
    loop {
        let members = plimsoll::members(path, &Options::new()).unwrap();
        let budgets: Vec<u64> = members.iter().map(|member| member.memory_bytes).collect();
        assert!(budgets.iter().sum::<u64>() <= total, "{budgets:?}");
        if is_wanted(&budgets) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{budgets:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn members_share_one_line_of_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let total = 96 << 20;
    let sharing = || Options::new().shared(true).memory_total(total);
    let one = Db::open(&path, sharing()).unwrap();
    let space = default(&one);
    until_memory(&path, total, |budgets| budgets == [total]);
    // What is in memory of the first one has to go when others come.
    let fill = |db: &Db, from: u64| {
        for some in from..from + 60 {
            let mut tx = db.begin();
            for row in 0..100 {
                tx.put(&space, format!("{:06}", some * 100 + row), vec![some as u8; 3000]).unwrap();
            }
            tx.commit().unwrap();
        }
    };
    fill(&one, 0);
    let two = Db::open(&path, sharing()).unwrap();
    let three = Db::open(&path, sharing()).unwrap();
    until_memory(&path, total, |budgets| budgets == [total / 3; 3]);
    for db in [&one, &two, &three] {
        assert_eq!(db.stats().memory.limit_bytes, total / 3);
        assert_eq!(db.get(&default(db), "000017").unwrap().unwrap()[..], [0; 3000]);
    }
    // One that wants less gets that.
    let visitor = open(&path);
    let left = (total - (16 << 20)) / 3;
    until_memory(&path, total, |budgets| budgets == [left, left, left, 16 << 20]);
    assert_eq!(visitor.members().unwrap().iter().filter(|member| member.is_here).count(), 1);
    fill(&one, 60);
    let refused = two.set_memory(32 << 20);
    assert!(
        matches!(refused, Err(Error::InvalidInput(InvalidInput::MemoryIsShared { total_bytes })) if total_bytes == total)
    );
    let more: Vec<Db> = (0..2).map(|_| Db::open(&path, sharing()).unwrap()).collect();
    until_memory(&path, total, |budgets| budgets == [16 << 20; 6]);
    let refused = Db::open(&path, sharing());
    let Err(Error::InvalidInput(InvalidInput::NoMemoryForAnother { members: 6, .. })) = refused else {
        panic!("{refused:?}");
    };
    drop((one, more, visitor));
    until_memory(&path, total, |budgets| budgets == [total / 2; 2]);
    // The last one that gives a total gives it for all.
    let four = Db::open(&path, sharing().memory_total(60 << 20)).unwrap();
    until_memory(&path, total, |budgets| budgets == [20 << 20; 3]);
    assert_eq!(four.get(&default(&four), "000017").unwrap().unwrap()[..], [0; 3000]);
    drop((two, three, four));
    assert_eq!(plimsoll::members(&path, &Options::new()).unwrap(), []);
    verify(&path);
}

#[test]
fn a_keeper_that_does_not_answer_is_replaced_and_may_go_on() {
    // In the middle of nothing, or of a merge.
    for steps in [0, 2, 5, 9] {
        replace_a_keeper_after(steps);
    }
}

fn replace_a_keeper_after(steps: u64) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let quick = || options().memtable_bytes(256 << 10).segment_bytes(256 << 10).retention(Retention::Latest);
    // Without threads it does what it is told to, and answers nobody.
    let one = Db::open(&path, quick().background(false)).unwrap();
    let of_one = default(&one);
    let write = |db: &Db, space: &Keyspace, round: u64| {
        for some in 0..20 {
            let mut tx = db.begin();
            for row in 0..50 {
                tx.put(space, format!("{:04}", some * 50 + row), [round.to_le_bytes(); 40].concat()).unwrap();
            }
            tx.commit().unwrap();
        }
    };
    let check = |db: &Db, space: &Keyspace, round: u64| {
        let mut rows = 0;
        for row in db.snapshot().prefix(space, "").unwrap() {
            assert_eq!(row.unwrap().1[..], [round.to_le_bytes(); 40].concat());
            rows += 1;
        }
        assert_eq!(rows, 1000);
    };
    for round in 1..8 {
        write(&one, &of_one, round);
        one.flush().unwrap();
    }
    let keepers = |db: &Db| -> Vec<bool> { db.members().unwrap().iter().map(|member| member.is_keeper).collect() };
    let two = Db::open(&path, quick()).unwrap();
    let of_two = default(&two);
    for _ in 0..steps {
        one.step().unwrap();
    }
    assert_eq!(keepers(&two), [true, false]);
    let begun = Instant::now();
    let mut round = 8;
    for _ in 0..8 {
        write(&two, &of_two, round);
        round += 1;
    }
    two.compact().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
    assert_eq!(keepers(&two), [false, true]);
    check(&two, &of_two, round - 1);
    // It goes on where it stopped.
    for _ in 0..30 {
        one.step().unwrap();
    }
    check(&one, &of_one, round - 1);
    write(&one, &of_one, round);
    check(&two, &of_two, round);
    one.flush().unwrap();
    assert!(matches!(one.compact(), Err(Error::NotKeeper { .. })));
    assert_eq!(keepers(&one), [false, true]);
    // It is the keeper again when there is no other.
    two.close().unwrap();
    write(&one, &of_one, round);
    one.flush().unwrap();
    one.compact().unwrap();
    assert_eq!(keepers(&one), [true]);
    check(&one, &of_one, round);
    one.close().unwrap();
    verify(&path);
}

/// A clock that panics once, in the thread of this name that looks at it.
#[derive(Debug)]
struct PanicsOnce {
    clock: SystemClock,
    in_thread: &'static str,
    is_armed: AtomicBool,
}

impl Clock for PanicsOnce {
    fn wall_micros(&self) -> u64 {
        self.clock.wall_micros()
    }

    fn monotonic_nanos(&self) -> u64 {
        let is_here = std::thread::current().name() == Some(self.in_thread);
        assert!(!is_here || !self.is_armed.swap(false, Ordering::SeqCst), "on purpose");
        self.clock.monotonic_nanos()
    }

    fn sleep(&self, duration: Duration) {
        self.clock.sleep(duration);
    }
}

#[test]
fn a_keeper_that_has_lost_a_thread_is_replaced() {
    for in_thread in ["plimsoll-keeper", "plimsoll-flush"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let clock = Arc::new(PanicsOnce { clock: SystemClock::new(), in_thread, is_armed: AtomicBool::new(false) });
        let small = || options().memtable_bytes(256 << 10);
        let one = Db::open(&path, small().world(Arc::new(OsDisk::new()), Arc::<PanicsOnce>::clone(&clock))).unwrap();
        let two = Db::open(&path, small()).unwrap();
        let of_two = default(&two);
        clock.is_armed.store(true, Ordering::SeqCst);
        let mut rows = 0u64;
        let mut write = |count: u64| {
            let mut tx = two.begin();
            for row in rows..rows + count {
                tx.put(&of_two, row.to_be_bytes(), [7; 1000]).unwrap();
            }
            tx.commit().unwrap();
            rows += count;
        };
        // It answers nudges by another thread, which lives. Who waits for a flush, or for a merge, is not to wait for ever. Another thread may be
        // faster than the one that is to panic.
        let begun = Instant::now();
        while clock.is_armed.load(Ordering::SeqCst) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{in_thread} has not looked at the clock");
            write(100);
            if in_thread == "plimsoll-keeper" {
                two.compact().unwrap();
            }
        }
        (0..20).for_each(|_| write(100));
        two.compact().unwrap();
        let keepers: Vec<bool> = two.members().unwrap().iter().map(|member| member.is_keeper).collect();
        assert_eq!(keepers, [false, true], "{in_thread}");
        assert_eq!(one.snapshot().prefix(&default(&one), "").unwrap().count() as u64, rows);
        drop(one);
        two.close().unwrap();
        verify(&path);
    }
}

#[test]
fn a_member_that_was_far_behind_takes_everything_in_within_its_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let quick = || options().memtable_bytes(256 << 10).segment_bytes(1 << 20).retention(Retention::Latest);
    let one = Db::open(&path, quick()).unwrap();
    let of_one = default(&one);
    // Without threads it takes in what it needs when it is asked.
    let two = Db::open(&path, quick().background(false)).unwrap();
    let of_two = default(&two);
    for round in 0..20_000u64 {
        let mut tx = one.begin();
        for at in 0..4 {
            let bytes = if round % 64 == 0 { 5_000 } else { 200 };
            tx.put(&of_one, format!("{:03}", (round * 7 + at) % 200), vec![round as u8; bytes]).unwrap();
        }
        tx.commit().unwrap();
    }
    one.put(&of_one, "last", "1").unwrap();
    assert_eq!(two.get(&of_two, "last").unwrap().unwrap(), b"1");
    let memory = two.stats().memory;
    let memtables: u64 = memory.by_kind.iter().filter(|(kind, _)| *kind == "memtables").map(|(_, bytes)| *bytes).sum();
    assert!(memtables > 0);
    assert!(memtables < 2 << 20, "{memory:?}");
    drop((one, two));
    verify(&path);
}

#[test]
fn who_shares_a_store_waits_for_one_that_is_just_closing_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let alone = || Db::open(&path, Options::new().memory_bytes(16 << 20));
    drop(alone().unwrap());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // It comes and goes.
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
