//! The work of the keeper for all processes, and how another process becomes the keeper.
#![allow(clippy::disallowed_methods, reason = "tests look at the files")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use plimsoll::{Db, Error, Glsn, Keyspace, Options, Retention};
use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::job_pool::running;
use plimsoll_disk::os::OsDisk;

use crate::members::{default, number, open, options, trim_beyond, verify};

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
            assert_eq!(
                db.get(&space, format!("{at}.{row:05}")).unwrap().unwrap()[..],
                vec![at; 600]
            );
        }
    }
    // 16 MB were written, and no memtable holds more than 2 MB.
    assert!(
        members.iter().all(|db| db.stats().index.tables > 0),
        "all of them read the keeper's runs"
    );
    drop(members);
    verify(&path);
}

#[test]
fn another_member_becomes_the_keeper_when_the_keeper_leaves() {
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
fn a_member_verifies_and_backs_up_while_the_keeper_merges_and_trims() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let options =
        || options().segment_bytes(1 << 20).retention(Retention::Latest).memtable_bytes(256 << 10);
    let (keeper, other) =
        (Db::open(&path, options()).unwrap(), Db::open(&path, options()).unwrap());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let space = default(&keeper);
            let mut round = 0u64;
            while !over.load(Ordering::SeqCst) {
                round += 1;
                let mut tx = keeper.begin();
                (0..200u64).for_each(|row| {
                    tx.put(&space, row.to_be_bytes(), vec![round as u8; 700]).unwrap()
                });
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
                assert_eq!(
                    copied.get(&space, row.to_be_bytes()).unwrap().unwrap(),
                    vec![round as u8; 700]
                );
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
    let options =
        || options().segment_bytes(1 << 20).retention(Retention::Latest).memtable_bytes(256 << 10);
    let (keeper, other) =
        (Db::open(&path, options()).unwrap(), Db::open(&path, options()).unwrap());
    let space = default(&keeper);
    let overwrite = |round: u8| {
        for _ in 0..10 {
            let mut tx = keeper.begin();
            (0..300u64)
                .for_each(|row| tx.put(&space, row.to_be_bytes(), vec![round; 700]).unwrap());
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
    let (mut before, mut first) = (runs(), Glsn::NONE);
    let mut asked = 0;
    let report = other.verify(&mut |_| {
        asked += 1;
        if asked == 1 {
            // Read only now, because the keeper's threads may have had something to remove before.
            (before, first) = (runs(), keeper.stats().log.first);
            assert_eq!(
                overwrite(2),
                first,
                "the log was trimmed while another member read all of it"
            );
            assert!(
                before.is_subset(&runs()),
                "runs were removed while another member read all of them"
            );
        }
    });
    assert!(report.unwrap().problems.is_empty() && asked > 0);
    // Afterwards they are removed.
    overwrite(3);
    trim_beyond(&keeper, keeper.newest(), first);
    let begun = Instant::now();
    while !before.is_disjoint(&runs()) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", runs());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn any_member_may_request_the_work_of_the_keeper() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let options = || options().segment_bytes(1 << 20).memtable_bytes(256 << 10);
    let (keeper, one, two) =
        (Db::open(&path, options()), Db::open(&path, options()), Db::open(&path, options()));
    let (keeper, one, two) = (keeper.unwrap(), one.unwrap(), two.unwrap());
    let of_one = default(&one);
    for round in 0..60u64 {
        one.put(&of_one, format!("{:03}", round % 20), vec![round as u8; 60_000]).unwrap();
        if round % 20 == 19 {
            one.flush().unwrap();
        }
    }
    // A flush is counted slightly after other members see it.
    let begun = Instant::now();
    while keeper.stats().index.flushes < 3 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", keeper.stats().index);
    }
    one.compact().unwrap();
    assert!(keeper.stats().index.compactions > 0, "the keeper was asked");
    assert_eq!(one.stats().index.compactions, 0);
    let until = two.newest();
    let first = trim_beyond(&two, until, Glsn(20));
    assert!(first <= until, "{first}");
    assert_eq!(keeper.log().bounds().first, first);
    assert_eq!(one.log().trim(Glsn(2)).unwrap(), first);
    let ahead = one.log().trim(Glsn(until.0 + 2));
    assert!(matches!(ahead, Err(Error::Future { .. })), "{ahead:?}");
    // Commits that were made before the request are in the runs when it is answered.
    for round in 0..20u64 {
        let (before, begun) = (keeper.stats().index.flushes, Instant::now());
        one.put(&of_one, "last", round.to_le_bytes()).unwrap();
        one.compact().unwrap();
        while keeper.stats().index.flushes == before {
            assert!(begun.elapsed() < Duration::from_secs(60), "round {round}");
        }
    }
    // A request that is made when the keeper has left, or leaves meanwhile, is answered
    // nevertheless.
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

#[test]
fn a_keeper_that_does_not_answer_is_replaced_and_may_resume() {
    // Suspended while idle, or in the middle of a merge.
    for steps in [0, 2, 5, 9] {
        replace_a_keeper_after(steps);
    }
}

fn replace_a_keeper_after(steps: u64) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let quick = || {
        options().memtable_bytes(256 << 10).segment_bytes(256 << 10).retention(Retention::Latest)
    };
    // Without threads it does only what the test calls, and serves no requests of other members.
    let one = Db::open(&path, quick().background(false)).unwrap();
    let of_one = default(&one);
    let write = |db: &Db, space: &Keyspace, round: u64| {
        for some in 0..20 {
            let mut tx = db.begin();
            for row in 0..50 {
                tx.put(
                    space,
                    format!("{:04}", some * 50 + row),
                    [round.to_le_bytes(); 40].concat(),
                )
                .unwrap();
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
    let keepers = |db: &Db| -> Vec<bool> {
        db.members().unwrap().iter().map(|member| member.is_keeper).collect()
    };
    let two = Db::open(&path, quick()).unwrap();
    let of_two = default(&two);
    for _ in 0..steps {
        one.step().unwrap();
    }
    assert_eq!(keepers(&two), [true, false]);
    let mut round = 8;
    for _ in 0..8 {
        write(&two, &of_two, round);
        round += 1;
    }
    two.compact().unwrap();
    assert_eq!(keepers(&two), [false, true]);
    check(&two, &of_two, round - 1);
    // It resumes where it was suspended.
    for _ in 0..30 {
        one.step().unwrap();
    }
    check(&one, &of_one, round - 1);
    write(&one, &of_one, round);
    check(&two, &of_two, round);
    one.flush().unwrap();
    assert!(matches!(one.compact(), Err(Error::NotKeeper { .. })));
    assert_eq!(keepers(&one), [false, true]);
    // It becomes the keeper again when there is no other.
    two.close().unwrap();
    write(&one, &of_one, round);
    one.flush().unwrap();
    one.compact().unwrap();
    assert_eq!(keepers(&one), [true]);
    check(&one, &of_one, round);
    one.close().unwrap();
    verify(&path);
}

/// A clock that panics once, in the thread with this name that reads it.
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
        let thread = std::thread::current();
        let is_here = [thread.name(), running::job()].contains(&Some(self.in_thread));
        assert!(!is_here || !self.is_armed.swap(false, Ordering::SeqCst), "on purpose");
        self.clock.monotonic_nanos()
    }

    fn sleep(&self, duration: Duration) {
        self.clock.sleep(duration);
    }
}

#[test]
fn a_keeper_that_has_lost_a_thread_is_replaced() {
    for in_thread in ["plimsoll-keeper", "flush"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let clock = Arc::new(PanicsOnce {
            clock: SystemClock::new(),
            in_thread,
            is_armed: AtomicBool::new(false),
        });
        let small = || options().memtable_bytes(256 << 10);
        let one = Db::open(
            &path,
            small().world(Arc::new(OsDisk::new()), Arc::<PanicsOnce>::clone(&clock)),
        )
        .unwrap();
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
        // Its thread that answers pings is alive, but no thread may wait forever for a flush or a
        // merge. Another thread may do the work before the one that must panic.
        let begun = Instant::now();
        while clock.is_armed.load(Ordering::SeqCst) {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "{in_thread} has not read the clock"
            );
            write(100);
            if in_thread == "plimsoll-keeper" {
                two.compact().unwrap();
            }
        }
        (0..20).for_each(|_| write(100));
        two.compact().unwrap();
        let keepers: Vec<bool> =
            two.members().unwrap().iter().map(|member| member.is_keeper).collect();
        assert_eq!(keepers, [false, true], "{in_thread}");
        assert_eq!(one.snapshot().prefix(&default(&one), "").unwrap().count() as u64, rows);
        drop(one);
        two.close().unwrap();
        verify(&path);
    }
}
