//! Processes that have a shared store open read-only: they see every commit at once, and change
//! nothing.
#![allow(clippy::disallowed_methods, reason = "tests look at the files")]

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use plimsoll::{Db, Error, Glsn, InvalidInput, Keyspace, Options, Retention};
use plimsoll_disk::clock::SystemClock;
use plimsoll_disk::layer::DiskLayer;
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::sharing::{LockFile, SharedWords};
use plimsoll_disk::vfs::{Caching, DirLock, Disk, File, LockError, Open};

/// Less than the 20 seconds after which a process checks even if it is not woken.
const WOKEN_MAX: Duration = Duration::from_secs(15);

/// The disk of a process that may read everything and write nothing.
#[derive(Debug)]
struct NoRight(OsDisk);

fn no_right<T>() -> io::Result<T> {
    Err(io::ErrorKind::PermissionDenied.into())
}

impl DiskLayer for NoRight {
    fn below(&self) -> &dyn Disk {
        &self.0
    }

    fn open(&self, path: &Path, open: Open, caching: Caching) -> io::Result<Arc<dyn File>> {
        if open == Open::Read { self.0.open(path, open, caching) } else { no_right() }
    }
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        if self.0.entry(path)?.is_some() {
            Err(io::ErrorKind::AlreadyExists.into())
        } else {
            no_right()
        }
    }
    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        no_right()
    }
    fn remove(&self, _: &Path) -> io::Result<()> {
        no_right()
    }
    fn remove_dir(&self, _: &Path) -> io::Result<()> {
        no_right()
    }
    fn hard_link(&self, _: &Path, _: &Path) -> io::Result<()> {
        no_right()
    }
    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        no_right()
    }
    fn lock(&self, _: &Path) -> Result<Box<dyn DirLock>, LockError> {
        Err(LockError::Io(io::ErrorKind::PermissionDenied.into()))
    }
    fn lock_shared(&self, _: &Path) -> Result<Box<dyn DirLock>, LockError> {
        Err(LockError::Io(io::ErrorKind::PermissionDenied.into()))
    }
    fn lock_file(&self, _: &Path) -> io::Result<Box<dyn LockFile>> {
        no_right()
    }
    fn shared_words(&self, _: &Path, _: usize) -> io::Result<Arc<dyn SharedWords>> {
        no_right()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Right {
    ToWrite,
    ToRead,
}

fn options() -> Options {
    Options::new()
        .memory_bytes(16 << 20)
        .memtable_bytes(256 << 10)
        .segment_bytes(1 << 20)
        .shared(true)
}

fn reading(right: Right) -> Options {
    match right {
        Right::ToWrite => options().read_only(true),
        Right::ToRead => options()
            .read_only(true)
            .world(Arc::new(NoRight(OsDisk::new())), Arc::new(SystemClock::new())),
    }
}

fn read(path: &Path, right: Right) -> Db {
    Db::open(path, reading(right)).unwrap()
}

fn default(db: &Db) -> Keyspace {
    db.keyspace("default").unwrap()
}

fn number(db: &Db, key: &str) -> u64 {
    let value = db.get(&default(db), key).unwrap();
    value.map_or(0, |value| u64::from_le_bytes(value[..8].try_into().unwrap()))
}

fn files(path: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    for folder in ["log", "index", "warm"] {
        let Ok(files) = std::fs::read_dir(path.join(folder)) else { continue };
        found.extend(
            files
                .map(|file| file.unwrap())
                .map(|file| (file.path(), file.metadata().unwrap().len())),
        );
    }
    found.sort();
    found
}

/// Compacts until the log is freed. The first attempts may fail because another process has
/// published a need, or because another thread frees the log at that time.
fn compact_until(db: &Db, is_freed: impl Fn() -> bool) {
    let begun = Instant::now();
    db.compact().unwrap();
    while !is_freed() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the log is not freed");
        std::thread::sleep(Duration::from_millis(50));
        db.compact().unwrap();
    }
}

fn follows(right: Right) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    // A process for which nothing is retained may lose log records that it has not loaded yet, if
    // segments are small.
    let segment_bytes = if right == Right::ToWrite { 1 << 20 } else { 64 << 20 };
    let one = Db::open(&path, options().retention(Retention::Latest).segment_bytes(segment_bytes))
        .unwrap();
    let of_one = default(&one);
    one.put(&of_one, "key", 1u64.to_le_bytes()).unwrap();
    let reader = read(&path, right);
    let of_reader = default(&reader);
    for round in 2..3000u64 {
        let mut value = vec![round as u8; 600];
        value[..8].copy_from_slice(&round.to_le_bytes());
        let glsn = one.put(&of_one, "key", &value).unwrap();
        one.put(&of_one, format!("{:03}", round % 300), &value).unwrap();
        if round % 20 == 0 {
            one.put(&of_one, "large", vec![round as u8; 300_000]).unwrap();
            assert_eq!(
                reader.get(&of_reader, "large").unwrap().unwrap(),
                vec![round as u8; 300_000]
            );
        }
        assert_eq!(number(&reader, "key"), round);
        assert!(reader.newest() >= glsn);
        assert_eq!(reader.snapshot().get(&of_reader, "key").unwrap().unwrap(), value);
    }
    let begun = Instant::now();
    while one.stats().index.flushes <= 2 || reader.stats().index.tables == 0 {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "no runs were made ({} flushes), or the reader did not load them ({} tables)",
            one.stats().index.flushes,
            reader.stats().index.tables
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(matches!(reader.put(&of_reader, "key", "x"), Err(Error::ReadOnly)));
    let made = one.create_keyspace("made", Retention::Latest).unwrap();
    one.put(&made, "a", "b").unwrap();
    assert_eq!(reader.get(&reader.keyspace("made").unwrap(), "a").unwrap().unwrap(), b"b");
    let seen: Vec<bool> = one.members().unwrap().iter().map(|member| member.is_reader).collect();
    assert_eq!(seen, if right == Right::ToWrite { vec![false, true] } else { vec![false] });
    // All writers leave, and others join.
    one.close().unwrap();
    assert_eq!(number(&reader, "key"), 2999);
    let left = files(&path);
    drop(read(&path, right));
    let early = read(&path, right);
    assert_eq!(number(&early, "key"), 2999);
    assert_eq!(files(&path), left, "a read-only process changes nothing");
    let two = Db::open(&path, options()).unwrap();
    two.put(&default(&two), "key", 3000u64.to_le_bytes()).unwrap();
    for db in [&reader, &early] {
        assert_eq!(number(db, "key"), 3000);
    }
    two.close().unwrap();
    // A process that has the store alone does not publish its commits.
    let alone = Db::open(&path, options().shared(false)).unwrap();
    alone.put(&default(&alone), "key", 3001u64.to_le_bytes()).unwrap();
    for db in [&reader, &early] {
        let refused = db.get(&default(db), "key");
        assert!(
            matches!(&refused, Err(Error::Behind { cause }) if cause.contains("without sharing")),
            "{refused:?}"
        );
    }
    let refused = Db::open(&path, reading(right));
    assert!(matches!(refused, Err(Error::Locked { .. })), "{refused:?}");
    alone.close().unwrap();
    let three = Db::open(&path, options()).unwrap();
    three.put(&default(&three), "other", 1u64.to_le_bytes()).unwrap();
    for db in [&reader, &early] {
        assert_eq!(number(db, "key"), 3001);
        assert_eq!(number(db, "other"), 1);
    }
}

#[test]
fn a_read_only_process_sees_commits_of_every_process_at_once() {
    follows(Right::ToWrite);
}

#[test]
fn a_reader_without_write_permission_still_sees_every_commit_at_once() {
    follows(Right::ToRead);
}

#[test]
fn no_process_drops_versions_that_a_read_only_process_needs() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let keeper = Db::open(&path, options()).unwrap();
    let kept = keeper.create_keyspace("kept", Retention::Latest).unwrap();
    let fill = |round: u8| {
        for row in 0..500u64 {
            keeper.put(&kept, row.to_be_bytes(), vec![round; 2000]).unwrap();
        }
        keeper.compact().unwrap();
    };
    fill(1);
    let reader = read(&path, Right::ToWrite);
    let of_reader = reader.keyspace("kept").unwrap();
    let held = reader.snapshot();
    (2..6).for_each(fill);
    for row in [0u64, 250, 499] {
        assert_eq!(held.get(&of_reader, row.to_be_bytes()).unwrap().unwrap(), vec![1; 2000]);
        assert_eq!(reader.get(&of_reader, row.to_be_bytes()).unwrap().unwrap(), vec![5; 2000]);
    }
    // The writers may leave meanwhile, and another one may join.
    keeper.close().unwrap();
    let next = Db::open(&path, options()).unwrap();
    let of_next = next.keyspace("kept").unwrap();
    for row in 0..500u64 {
        next.put(&of_next, row.to_be_bytes(), vec![6; 2000]).unwrap();
    }
    next.compact().unwrap();
    assert_eq!(
        held.range(&of_reader, ..).unwrap().filter(|row| row.as_ref().unwrap().1[0] == 1).count(),
        500
    );
}

#[test]
fn reads_of_versions_that_are_not_retained_fail_and_are_never_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let keeper = Db::open(&path, options().retention(Retention::Latest)).unwrap();
    let of_keeper = default(&keeper);
    // Without threads it applies commits only when it is read.
    let reader = Db::open(&path, reading(Right::ToRead).background(false)).unwrap();
    let held = reader.snapshot();
    let fill = |round: u8| {
        let mut tx = keeper.begin();
        for row in 0..500u64 {
            tx.put(&of_keeper, row.to_be_bytes(), vec![round; 2000]).unwrap();
        }
        tx.commit().unwrap();
        keeper.compact().unwrap();
    };
    fill(1);
    let space = default(&reader);
    assert_eq!(reader.get(&space, 7u64.to_be_bytes()).unwrap().unwrap(), vec![1; 2000]);
    (2..9).for_each(fill);
    // The log that it would have to apply is gone, so it continues from the index.
    let (made, log) = (keeper.create_keyspace("made", Retention::Latest).unwrap(), keeper.log());
    keeper.put(&made, "key", "of another keyspace").unwrap();
    log.cursor("cursor", log.bounds().first).unwrap();
    compact_until(&keeper, || log.bounds().first > reader.log().bounds().next);
    for row in 0..500u64 {
        assert_eq!(reader.get(&space, row.to_be_bytes()).unwrap().unwrap(), vec![8; 2000]);
    }
    assert_eq!(reader.snapshot().len(&space).unwrap(), 500);
    assert_eq!(reader.newest(), keeper.newest());
    let made_there = reader.snapshot().keyspace("made").unwrap().unwrap();
    assert_eq!(reader.get(&made_there, "key").unwrap().unwrap(), b"of another keyspace");
    assert_eq!(reader.log().cursors(), keeper.log().cursors());
    // A snapshot from before the first commit may not be readable any more, but its reads are never
    // wrong.
    match held.get(&space, 7u64.to_be_bytes()) {
        Ok(value) => assert!(value.is_none(), "{:?}", held.at()),
        Err(error) => assert!(matches!(error, Error::Trimmed { .. }), "{error:?}"),
    }
    drop(held);
    let again = reader;
    let held = again.snapshot();
    assert_eq!(held.get(&space, 7u64.to_be_bytes()).unwrap().unwrap(), vec![8; 2000]);
    for round in 9..14 {
        fill(round);
        assert_eq!(again.get(&space, 7u64.to_be_bytes()).unwrap().unwrap(), vec![round; 2000]);
        match held.get(&space, 7u64.to_be_bytes()) {
            Ok(value) => assert_eq!(value.unwrap(), vec![8; 2000]),
            Err(error) => assert!(matches!(error, Error::Trimmed { .. }), "{error:?}"),
        }
    }
}

#[test]
fn a_read_only_follower_is_woken_by_commits() {
    for right in [Right::ToWrite, Right::ToRead] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let one = Db::open(&path, options()).unwrap();
        let reader = read(&path, right);
        let (seen, over) = (AtomicU64::new(0), AtomicBool::new(false));
        let mut follow = reader.log().follow(reader.newest().next(), None).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    if follow.next_timeout(Duration::from_secs(120)).unwrap().is_some() {
                        seen.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
            for round in 0..20u64 {
                one.put(&default(&one), "key", round.to_le_bytes()).unwrap();
                let begun = Instant::now();
                while seen.load(Ordering::SeqCst) <= round {
                    assert!(
                        begun.elapsed() < WOKEN_MAX,
                        "commit {round} did not wake the follower"
                    );
                    std::thread::yield_now();
                }
            }
            over.store(true, Ordering::SeqCst);
            one.put(&default(&one), "key", "last").unwrap();
        });
    }
}

#[test]
fn a_read_only_follower_is_woken_by_writers_that_join_after_all_have_left() {
    for right in [Right::ToWrite, Right::ToRead] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let mut writer = Some(Db::open(&path, options()).unwrap());
        let put = |db: &Db, value: &[u8]| db.put(&default(db), "key", value).unwrap();
        let reader = read(&path, right);
        let (seen, over) = (AtomicU64::new(0), AtomicBool::new(false));
        let mut follow = reader.log().follow(reader.newest().next(), None).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    if follow.next_timeout(Duration::from_secs(120)).unwrap().is_some() {
                        seen.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
            let is_woken = |round: u64| {
                // It waits again.
                std::thread::sleep(Duration::from_millis(100));
                if round % 2 == 1 {
                    writer.take().unwrap().close().unwrap();
                    writer = Some(Db::open(&path, options()).unwrap());
                }
                put(writer.as_ref().unwrap(), &round.to_le_bytes());
                let begun = Instant::now();
                while seen.load(Ordering::SeqCst) <= round && begun.elapsed() < WOKEN_MAX {
                    std::thread::sleep(Duration::from_millis(1));
                }
                seen.load(Ordering::SeqCst) > round
            };
            let woken: Vec<bool> = (0..6).map(is_woken).collect();
            over.store(true, Ordering::SeqCst);
            put(writer.as_ref().unwrap(), b"last");
            assert_eq!(woken, [true; 6], "{right:?}");
        });
    }
}

#[test]
fn a_follower_goes_on_after_one_that_had_the_store_alone_has_freed_the_log_that_it_was_to_take_in()
{
    for right in [Right::ToWrite, Right::ToRead] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let writing = || options().retention(Retention::Latest);
        let one = Db::open(&path, writing()).unwrap();
        one.put(&default(&one), "key", 1u64.to_le_bytes()).unwrap();
        let reader = read(&path, right);
        let space = default(&reader);
        assert_eq!(number(&reader, "key"), 1);
        let held = reader.snapshot();
        one.close().unwrap();
        let alone = Db::open(&path, writing().shared(false)).unwrap();
        for round in 0..4000u64 {
            alone.put(&default(&alone), (round % 10).to_le_bytes(), vec![7; 1000]).unwrap();
        }
        alone.put(&default(&alone), "key", 2u64.to_le_bytes()).unwrap();
        compact_until(&alone, || alone.log().bounds().first > reader.log().bounds().next);
        alone.close().unwrap();
        let next = Db::open(&path, writing()).unwrap();
        for round in 3..6u64 {
            assert_eq!(number(&reader, "key"), round - 1);
            next.put(&default(&next), "key", round.to_le_bytes()).unwrap();
            assert_eq!(number(&reader, "key"), round);
        }
        assert_eq!(reader.get(&space, 9u64.to_le_bytes()).unwrap().unwrap(), vec![7; 1000]);
        // The snapshot either returns its value, or fails because a version that it needs was
        // dropped.
        match held.get(&space, "key") {
            Ok(value) => assert_eq!(value.unwrap(), 1u64.to_le_bytes()),
            Err(error) => assert!(matches!(error, Error::Trimmed { .. }), "{error:?}"),
        }
        drop(held);
        // It does not pin anything that it does not need.
        let first = next.log().bounds().first;
        for round in 0..4000u64 {
            next.put(&default(&next), (round % 10).to_le_bytes(), vec![8; 1000]).unwrap();
        }
        assert_eq!(reader.get(&space, 9u64.to_le_bytes()).unwrap().unwrap(), vec![8; 1000]);
        compact_until(&next, || next.log().bounds().first > first);
    }
}

#[test]
fn a_process_without_write_permission_is_told_that_it_cannot_hold_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let one = Db::open(&path, options()).unwrap();
    one.put(&default(&one), "key", 1u64.to_le_bytes()).unwrap();
    assert!(read(&path, Right::ToWrite).hold_log(Glsn(1)).is_ok());
    let refused = read(&path, Right::ToRead).hold_log(Glsn(1));
    assert!(
        matches!(refused, Err(Error::InvalidInput(InvalidInput::CannotHoldLog { .. }))),
        "{refused:?}"
    );
}

#[test]
fn following_a_store_that_was_never_shared_fails_without_write_permission() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    drop(Db::open(&path, options().shared(false)).unwrap());
    let refused = Db::open(&path, reading(Right::ToRead));
    assert!(
        matches!(refused, Err(Error::InvalidInput(InvalidInput::NobodyToFollow { .. }))),
        "{refused:?}"
    );
    // With write permission it waits for other processes to join.
    let reader = read(&path, Right::ToWrite);
    assert_eq!(reader.newest(), Glsn::NONE);
    let one = Db::open(&path, options()).unwrap();
    one.put(&default(&one), "key", 7u64.to_le_bytes()).unwrap();
    assert_eq!(number(&reader, "key"), 7);
}

#[test]
fn a_read_only_process_does_not_make_others_join() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let writer = Db::open(&path, options()).unwrap();
    let reader = read(&path, Right::ToWrite);
    writer.close().unwrap();
    // The lock of a child that the writer has forked.
    let held = OsDisk::new().lock_shared(&path).unwrap();
    let refused = Db::open(&path, options());
    assert!(matches!(refused, Err(Error::Locked { .. })), "{refused:?}");
    drop(held);
    Db::open(&path, options()).unwrap().close().unwrap();
    drop(reader);
}

#[test]
fn a_store_whose_log_is_trimmed_up_to_its_newest_commit_is_opened_beside_its_writers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let options = || Options::new().memory_bytes(16 << 20).shared(true);
    let writer = Db::open(&path, options().retention(Retention::Latest)).unwrap();
    let keyspace = writer.keyspace("default").unwrap();
    for round in 0..3_u8 {
        let newest = writer.put(&keyspace, "key", [round]).unwrap();
        writer.compact().unwrap();
        // The trim leaves a segment without records, which nothing has synced.
        assert_eq!(writer.log().trim(newest.next()).unwrap(), newest.next());
        let reader = Db::open(&path, options().read_only(true)).unwrap();
        let read = |reader: &Db| {
            reader.get(&reader.keyspace("default").unwrap(), "key").unwrap().unwrap().to_vec()
        };
        assert_eq!((reader.newest(), read(&reader)), (newest, vec![round]));
        let newer = writer.put(&keyspace, "key", [round + 100]).unwrap();
        assert_eq!((read(&reader), reader.newest()), (vec![round + 100], newer));
    }
}
