//! The change feed: each commit once, in order, with its values, from any GLSN that the log holds.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use plimsoll::{Change, Commit, Commits, Db, Error, Glsn, Keyspace, Options, Result, Retention};

const BUDGET: u64 = 16 << 20;
const LONG: Duration = Duration::from_secs(600);

fn options() -> Options {
    Options::new().memory_bytes(BUDGET)
}

fn open(path: &Path) -> Db {
    Db::open(path, options()).unwrap()
}

/// The existing commits, up to an error.
fn all(commits: &mut Commits) -> Vec<Commit> {
    commits.map(Result::unwrap).collect()
}

fn pairs(commit: &Commit) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let pair = |change: Change| {
        (change.key().to_vec(), change.value().unwrap().map(|value| value.to_vec()))
    };
    commit.changes().unwrap().map(|change| pair(change.unwrap())).collect()
}

/// Processes the commits of a writer at full speed, with a new watch after every few commits, until
/// it has seen `last`.
fn follow_and_stop(db: &Db, from: &Keyspace, into: &Keyspace, stops: u64, last: u32) {
    let mut random = 1u64;
    for _ in 0..stops {
        let position = db
            .get(into, "position")
            .unwrap()
            .map(|at| u64::from_le_bytes(at[..].try_into().unwrap()));
        let mut watch = db.watch(from, "watched/", Glsn(position.unwrap_or(1))).unwrap();
        random = random.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
        for _ in 0..1 + random % 7 {
            let commit = watch.next_timeout(LONG).unwrap().unwrap();
            let mut tx = db.begin();
            let mut is_last = false;
            for change in commit.changes().unwrap() {
                let change = change.unwrap();
                let count = tx.get(into, change.key()).unwrap().map_or(0, |count| count[0]);
                tx.put(into, change.key(), [count + 1]).unwrap();
                is_last |= change.key() == format!("watched/{last:05}").as_bytes();
            }
            tx.put(into, "position", watch.position().0.to_le_bytes()).unwrap();
            tx.commit().unwrap();
            if is_last {
                return;
            }
        }
    }
    panic!("the last commit was not delivered");
}

#[test]
fn a_follower_that_stores_its_position_sees_each_change_once_across_restarts() {
    const COMMITS: u32 = 300;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    for opening in 0..3 {
        let db = open(&path);
        let (source, target) = (db.keyspace("source").unwrap(), db.keyspace("target").unwrap());
        let numbers = opening * COMMITS..(opening + 1) * COMMITS;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in numbers.clone() {
                    let mut tx = db.begin();
                    tx.put(&source, format!("watched/{number:05}"), "x").unwrap();
                    tx.put(&source, format!("other/{number}"), "x").unwrap();
                    tx.commit().unwrap();
                    db.put(&source, "between", number.to_le_bytes()).unwrap();
                }
            });
            follow_and_stop(&db, &source, &target, 1000, numbers.end - 1);
        });
        db.close().unwrap();
    }
    let db = open(&path);
    let target = db.keyspace("target").unwrap();
    let counts: Vec<_> =
        db.snapshot().prefix(&target, "watched/").unwrap().map(Result::unwrap).collect();
    assert_eq!(counts.len() as u32, 3 * COMMITS);
    assert!(counts.iter().all(|(_, count)| *count == [1]));
}

#[test]
fn a_feed_of_several_writers_at_full_speed_is_in_order_and_complete() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir.path().join("store"));
    let ks = db.keyspace("default").unwrap();
    let from = db.newest().next();
    let done = AtomicBool::new(false);
    let (feed, glsns) = std::thread::scope(|scope| {
        let feed = scope.spawn(|| {
            let (mut commits, mut seen) = (db.log().commits(from).unwrap(), Vec::new());
            loop {
                let is_done = done.load(Ordering::Acquire);
                while let Some(commit) = commits.next_timeout(Duration::from_millis(1)).unwrap() {
                    seen.push((commit.glsn(), pairs(&commit)));
                }
                if is_done {
                    return seen;
                }
            }
        });
        let writer = |id: u8| {
            let (db, ks) = (&db, &ks);
            scope.spawn(move || -> BTreeMap<Glsn, u32> {
                let put = |number: u32| {
                    (db.put(ks, [id], [&number.to_le_bytes()[..], &[id; 2000]].concat()), number)
                };
                (0..400).map(put).map(|(glsn, number)| (glsn.unwrap(), number)).collect()
            })
        };
        let writers = [writer(1), writer(2), writer(3)];
        let glsns = writers.map(|writer| writer.join().unwrap());
        done.store(true, Ordering::Release);
        (feed.join().unwrap(), glsns)
    });
    let written: BTreeMap<_, _> = (1..)
        .zip(glsns)
        .flat_map(|(id, of)| of.into_iter().map(move |at| (at.0, (id, at.1))))
        .collect();
    let expected = written.into_iter().map(|(glsn, (id, number))| {
        let value = [&number.to_le_bytes()[..], &vec![id as u8; 2000]].concat();
        (glsn, vec![(vec![id as u8], Some(value))])
    });
    assert!(feed.into_iter().eq(expected));
}

#[test]
fn a_watch_returns_the_keys_under_its_prefix_and_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir.path().join("store"));
    let (ks, next) = (db.keyspace("one").unwrap(), db.keyspace("two").unwrap());
    let keys: [&[u8]; 9] =
        [b"", b"a", b"a\0", b"a\xff", b"a\xff\xff", b"b", b"\xfe", b"\xff", b"\xff\xff\x01"];
    let mut tx = db.begin();
    for key in keys {
        tx.put(&ks, key, key).unwrap();
        tx.put(&next, key, "of the next keyspace").unwrap();
    }
    let together = tx.commit().unwrap();
    let alone: Vec<Glsn> = keys.iter().map(|key| db.delete(&ks, key).unwrap()).collect();
    for prefix in [
        &b""[..],
        b"a",
        b"a\xff",
        b"a\xff\xff",
        b"a\xff\xff\xff",
        b"b",
        b"\xff",
        b"\xff\xff",
        b"\xff\xff\xff",
    ] {
        let mut wanted: Vec<&[u8]> =
            keys.into_iter().filter(|key| key.starts_with(prefix)).collect();
        wanted.sort_unstable();
        let mut watch = db.watch(&ks, prefix, Glsn(1)).unwrap();
        let commits = all(&mut watch);
        assert_eq!(watch.position(), db.newest().next());
        let mut commits = commits.iter();
        if !wanted.is_empty() {
            let commit = commits.next().unwrap();
            let all: Vec<_> = wanted.iter().map(|key| (key.to_vec(), Some(key.to_vec()))).collect();
            assert_eq!((commit.glsn(), pairs(commit)), (together, all), "{prefix:?}");
        }
        let deleted: Vec<_> = commits.map(|commit| (commit.glsn(), pairs(commit))).collect();
        let wanted = keys.iter().zip(&alone).filter(|(key, _)| key.starts_with(prefix));
        let wanted: Vec<_> =
            wanted.map(|(key, glsn)| (*glsn, vec![(key.to_vec(), None)])).collect();
        assert_eq!(deleted, wanted, "{prefix:?}");
    }
    assert!(db.watch(&ks, [7; 4097], Glsn(1)).is_ok());
}

#[test]
fn large_values_are_read_whole_or_in_pieces_within_the_budget() {
    const LARGE: usize = 9 << 20;
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir.path().join("store"));
    let ks = db.keyspace("default").unwrap();
    let from = db.newest().next();
    let mut tx = db.begin();
    for key in 0..4u8 {
        tx.put_reader(&ks, [key], &mut std::io::repeat(key).take(LARGE as u64)).unwrap();
    }
    tx.put(&ks, "in the log", vec![9; 70_000]).unwrap();
    tx.commit().unwrap();
    let commit = db.log().commits(from).unwrap().next().unwrap().unwrap();
    let changes: Vec<Change> = commit.changes().unwrap().map(Result::unwrap).collect();
    drop(commit);
    assert_eq!(changes[4].value().unwrap().unwrap(), &[9; 70_000][..]);
    for (key, change) in (0..4u8).zip(&changes) {
        assert_eq!((change.key(), change.value_len()), (&[key][..], Some(LARGE as u64)));
        assert!(change.value().unwrap().unwrap().iter().all(|byte| *byte == key));
        let (mut reader, mut piece, mut read) =
            (change.value_reader().unwrap().unwrap(), vec![0; 30_000], 0);
        loop {
            let bytes = reader.read(&mut piece).unwrap();
            if bytes == 0 {
                break;
            }
            assert!(piece[..bytes].iter().all(|byte| *byte == key));
            read += bytes;
        }
        assert_eq!(read, LARGE);
    }
    let memory = db.stats().memory;
    assert!(memory.peak_bytes <= BUDGET, "{memory:?}");
}

#[test]
fn a_transaction_that_is_larger_than_the_budget_passes_through_the_feed_and_a_watch_sees_its_part()
{
    const COUNT: u32 = 250_000;
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir.path().join("store"));
    let ks = db.keyspace("default").unwrap();
    let key = |number: u32| format!("{:08x}", number.wrapping_mul(0x9e37_79b1));
    let mut tx = db.begin();
    for number in 0..COUNT {
        tx.put(&ks, key(number), [number.to_le_bytes(); 25].concat()).unwrap();
    }
    let glsn = tx.commit().unwrap();
    let value_of: BTreeMap<String, u32> = (0..COUNT).map(|number| (key(number), number)).collect();
    let is_whole = |commits: &mut Commits, prefix: &str| {
        let commit = commits.next().unwrap().unwrap();
        assert_eq!(commit.glsn(), glsn);
        let mut wanted =
            value_of.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
        for change in commit.changes().unwrap() {
            let (change, wanted) = (change.unwrap(), wanted.next().unwrap());
            assert_eq!(change.key(), wanted.0.as_bytes());
            assert_eq!(
                change.value().unwrap().unwrap(),
                &[wanted.1.to_le_bytes(); 25].concat()[..]
            );
        }
        assert_eq!(wanted.next(), None);
        assert!(commits.next().is_none());
    };
    is_whole(&mut db.log().commits(glsn).unwrap(), "");
    for prefix in ["0", "7f", "80", "ffff", "fff"] {
        is_whole(&mut db.watch(&ks, prefix, glsn).unwrap(), prefix);
    }
    let mut nothing = db.watch(&ks, "fffffffff", glsn).unwrap();
    assert!(nothing.next().is_none());
    assert_eq!(nothing.position(), glsn.next());
    let memory = db.stats().memory;
    assert!(memory.peak_bytes <= BUDGET, "{memory:?}");
}

#[test]
fn a_feed_from_a_trimmed_glsn_fails_with_the_first_remaining_one_unless_a_cursor_keeps_it() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options().segment_bytes(64 << 10)).unwrap();
    let ks = db.create_keyspace("latest", Retention::Latest).unwrap();
    let from = db.newest().next();
    let write = || {
        for number in 0..60u32 {
            db.put(&ks, (number % 10).to_be_bytes(), vec![number as u8; 3000]).unwrap();
        }
        let mut tx = db.begin();
        tx.put_reader(&ks, "in a blob file", &mut std::io::repeat(1).take(3 << 20)).unwrap();
        tx.commit().unwrap();
    };
    let kept = db.log().cursor("kept", from).unwrap();
    write();
    let last = db.newest();
    write();
    db.compact().unwrap();
    db.log().trim(db.newest()).unwrap();
    let mut feed = db.log().commits(kept).unwrap();
    let mut watch = db.watch(&ks, 5u32.to_be_bytes(), kept).unwrap();
    let held = feed.next().unwrap().unwrap();
    watch.next().unwrap().unwrap();
    let small_and_large = [held.glsn(), last].map(|glsn| {
        let commit = db.log().commit(glsn).unwrap().unwrap();
        let change = commit.changes().unwrap().next().unwrap().unwrap();
        let mut reader = change.value_reader().unwrap().unwrap();
        reader.read_exact(&mut [0; 100]).unwrap();
        (change, reader)
    });
    drop(held);
    db.log().drop_cursor("kept").unwrap();
    let first = db.log().trim(db.newest()).unwrap();
    assert!(first > last);
    let trimmed = |asked| Error::Trimmed { asked, first, keyspace: None };
    assert_eq!(db.log().commits(kept).unwrap_err(), trimmed(kept));
    assert_eq!(db.watch(&ks, "", kept).unwrap_err(), trimmed(kept));
    let at = feed.position();
    assert_eq!(feed.next_timeout(LONG).unwrap_err(), trimmed(at));
    assert_eq!(feed.next().unwrap().unwrap_err(), trimmed(at));
    assert!(feed.next().is_none(), "an error ends a loop");
    assert_eq!(feed.next().unwrap().unwrap_err(), trimmed(at), "and the commit is not skipped");
    assert!(matches!(watch.next_timeout(LONG), Err(Error::Trimmed { .. })));
    for (change, mut reader) in small_and_large {
        assert_eq!(change.value().unwrap_err(), trimmed(change.glsn()));
        assert!(
            reader
                .read_to_end(&mut Vec::new())
                .unwrap_err()
                .to_string()
                .contains("no longer retained")
        );
    }
    assert!(db.log().commits(first).unwrap().all(|commit| commit.is_ok()));
}

#[test]
fn reading_the_changes_of_a_large_commit_fails_once_it_is_trimmed() {
    for is_elsewhere in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let db = Db::open(&path, options().segment_bytes(64 << 10)).unwrap();
        let ks = db.create_keyspace("latest", Retention::Latest).unwrap();
        let rows =
            |value: u8| (0..60_000u32).map(move |number| (number.to_be_bytes(), [value; 100]));
        let glsn = db.bulk_load(&ks, rows(1)).unwrap();
        let large: Vec<_> = (100_000..100_070u32).map(u32::to_be_bytes).collect();
        for key in &large {
            db.put(&ks, key, vec![2; 80 << 10]).unwrap();
        }
        let other = is_elsewhere.then(|| Db::open(&path, options().read_only(true)).unwrap());
        let reader = other.as_ref().unwrap_or(&db);
        let commit = reader.log().commit(glsn).unwrap().unwrap();
        let mut changes = commit.changes().unwrap();
        assert!(changes.by_ref().take(10).all(|change| change.is_ok()));
        // More files than are kept open, so that those of the commit are closed.
        let space = reader.keyspace("latest").unwrap();
        assert!(large.iter().all(|key| reader.get(&space, key).unwrap().is_some()));
        // Only the log refers to its runs now, and then the log no longer does.
        db.bulk_load(&ks, rows(2)).unwrap();
        for number in 0..60u32 {
            db.put(&ks, number.to_be_bytes(), vec![3; 3000]).unwrap();
        }
        db.compact().unwrap();
        assert!(db.log().trim(db.newest()).unwrap() > glsn);
        reader.drop_pages();
        let ended = changes.find(Result::is_err).unwrap();
        assert!(
            matches!(ended, Err(Error::Trimmed { asked, .. }) if asked == glsn),
            "{is_elsewhere}: {ended:?}"
        );
        assert!(changes.next().is_none());
    }
}

#[test]
fn the_deletions_of_a_dropped_keyspace_are_the_last_that_a_watch_sees() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir.path().join("store"));
    let ks = db.keyspace("users").unwrap();
    let put = db.put(&ks, "ada", "1").unwrap();
    let mut watch = db.watch(&ks, "", Glsn(1)).unwrap();
    assert_eq!(watch.next().unwrap().unwrap().glsn(), put);
    let dropped = db.drop_keyspace(&ks).unwrap();
    let anew = db.keyspace("users").unwrap();
    let put = db.put(&anew, "ada", "2").unwrap();
    let commits = all(&mut watch);
    assert_eq!(commits.len(), 1);
    assert_eq!(
        (commits[0].glsn(), pairs(&commits[0])),
        (dropped.glsn, vec![(b"ada".to_vec(), None)])
    );
    let change = commits[0].changes().unwrap().next().unwrap().unwrap();
    assert_eq!((change.keyspace(), change.is_delete()), (Some("users"), true));
    let commits = all(&mut db.watch(&anew, "a", Glsn(1)).unwrap());
    assert_eq!((commits.len(), commits[0].glsn()), (1, put));
}

#[test]
fn commits_wake_a_watch_and_unrelated_ones_advance_its_position() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir.path().join("store"));
    let ks = db.keyspace("default").unwrap();
    let from = db.newest().next();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let mut watch = db.watch(&ks, "wanted", from).unwrap();
            (watch.next_timeout(LONG).unwrap().map(|commit| commit.glsn()), watch)
        });
        db.put(&ks, "other", "1").unwrap();
        let glsn = db.put(&ks, "wanted", "1").unwrap();
        let (woken, mut watch) = waiting.join().unwrap();
        assert_eq!(woken, Some(glsn));
        let other = db.put(&ks, "other", "2").unwrap();
        assert!(watch.next_timeout(Duration::from_millis(1)).unwrap().is_none());
        assert_eq!(watch.position(), other.next());
    });
}

#[test]
fn a_wait_is_ended_through_a_handle_and_the_next_one_continues() {
    let dir = tempfile::tempdir().unwrap();
    for shared in [false, true] {
        let db = Db::open(dir.path().join(shared.to_string()), options().shared(shared)).unwrap();
        let ks = db.keyspace("default").unwrap();
        let mut watch = db.watch(&ks, "wanted", db.newest().next()).unwrap();
        let mut follow = db.log().follow(db.newest().next(), Some(7)).unwrap();
        let (of_watch, of_follow) = (watch.handle(), follow.handle());
        std::thread::scope(|scope| {
            let watching = scope.spawn(|| watch.next_timeout(Duration::MAX).unwrap().is_none());
            let following = scope.spawn(|| follow.next_timeout(Duration::MAX).unwrap().is_none());
            let other = db.put(&ks, "other", "1").unwrap();
            while of_watch.position() <= other {
                std::thread::yield_now();
            }
            of_watch.end_wait();
            of_follow.end_wait();
            assert!(watching.join().unwrap() && following.join().unwrap());
        });
        // Ended before it begins.
        of_watch.end_wait();
        of_watch.end_wait();
        assert!(watch.next_timeout(LONG).unwrap().is_none());
        // A commit that already exists is returned without a wait.
        of_watch.end_wait();
        let glsn = db.put(&ks, "wanted", "1").unwrap();
        assert_eq!(watch.next_timeout(LONG).unwrap().map(|commit| commit.glsn()), Some(glsn));
        assert!(watch.next_timeout(LONG).unwrap().is_none());
        std::thread::scope(|scope| {
            let watching =
                scope.spawn(|| watch.next_timeout(LONG).unwrap().map(|commit| commit.glsn()));
            let glsn = db.put(&ks, "wanted", "2").unwrap();
            assert_eq!(watching.join().unwrap(), Some(glsn));
        });
    }
}

/// Each watch waits in its own thread.
#[test]
fn a_thousand_waiting_watches_see_the_commits_under_their_prefixes() {
    let dir = tempfile::tempdir().unwrap();
    for shared in [false, true] {
        let db = Db::open(dir.path().join(shared.to_string()), options().shared(shared)).unwrap();
        let ks = db.keyspace("default").unwrap();
        let from = db.newest().next();
        let watch = |n: u32| db.watch(&ks, format!("{n:04}/"), from).unwrap();
        let mut watches: Vec<Commits> = (0..1000).map(watch).collect();
        let handles: Vec<_> = watches.iter().map(Commits::handle).collect();
        let (seen, committed) = std::thread::scope(|scope| {
            let wait = |watch: &'_ mut Commits| {
                let mut seen = Vec::new();
                while let Some(commit) = watch.next_timeout(LONG).unwrap() {
                    assert_eq!(commit.changes().unwrap().count(), 1);
                    seen.push(commit.glsn());
                }
                seen
            };
            let waiting: Vec<_> =
                watches.iter_mut().map(|watch| scope.spawn(move || wait(watch))).collect();
            // The last commit is for all of them.
            let mut committed = Vec::new();
            for round in 0..11 {
                let mut tx = db.begin();
                for n in (0..1000).filter(|n| round == 10 || n % 10 == round) {
                    tx.put(&ks, format!("{n:04}/{round}"), "value").unwrap();
                }
                committed.push(tx.commit().unwrap());
            }
            for handle in &handles {
                while handle.position() <= committed[10] {
                    std::thread::sleep(Duration::from_millis(1));
                }
                handle.end_wait();
            }
            let seen = waiting.into_iter().map(|watch| watch.join().unwrap());
            (seen.collect::<Vec<_>>(), committed)
        });
        for (n, seen) in seen.into_iter().enumerate() {
            assert_eq!(seen, [committed[n % 10], committed[10]], "watch {n}, shared: {shared}");
        }
    }
}

#[test]
fn a_feed_leaves_out_cursors_that_move_and_entries_of_streams() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir.path().join("store"));
    let ks = db.keyspace("default").unwrap();
    db.log().append(7, &[b"first"]).unwrap();
    let mut feed = db.log().commits(db.newest().next()).unwrap();
    db.log().cursor("reader", db.newest()).unwrap();
    for count in [1, 31, 32, 33, 100] {
        let payloads = vec![&b"of a stream"[..]; count];
        db.log().append(7, &payloads).unwrap();
        let glsn = db.put(&ks, "a", "1").unwrap();
        db.log().append(8, &payloads).unwrap();
        db.log().advance_cursor("reader", glsn).unwrap();
        let commits = all(&mut feed);
        assert_eq!(commits.iter().map(Commit::glsn).collect::<Vec<_>>(), [glsn], "{count}");
        assert_eq!(feed.position(), db.newest().next());
    }
}
