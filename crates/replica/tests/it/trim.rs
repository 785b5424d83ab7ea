//! Trimming the log of a cluster, and members whose next batch was removed.

use std::io::{self, ErrorKind, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use std::time::Duration;

use plimsoll::order::{Appended, Order, OrderError};
use plimsoll::{Db, Error as StoreError};
use plimsoll_archive::{Bucket, Folders, Object, Put, bucket_at};
use plimsoll_replica::testing::wrap_buckets;
use plimsoll_replica::{BucketOrder, Error, Leave, join, leave, open_member, status, trim};

use crate::members::{World, get, options, put, try_put};

/// A cluster with the members `one`, which is open, and `two`, which is closed and up to date.
pub(crate) fn world(rows: u64) -> (World, Db) {
    let world = World::new();
    join(&world.url(), world.path("two"), options()).unwrap();
    let one = world.open("one");
    put_rows(&one, 0..rows);
    (world, one)
}

pub(crate) fn put_rows(db: &Db, numbers: std::ops::Range<u64>) {
    numbers.for_each(|number| put(db, &format!("key {number}"), "1"));
}

/// The member has the rows, and its files are sound.
pub(crate) fn has_rows(world: &World, name: &str, rows: u64) {
    let db = world.open(name);
    db.sync().unwrap();
    for number in 0..rows {
        let key = format!("key {number}");
        assert_eq!(get(&db, &key).as_deref(), Some("1"), "{name}: {key}");
    }
    assert_eq!(get(&db, "first").as_deref(), Some("1"), "{name}");
    db.close().unwrap();
    let report = plimsoll::verify(world.path(name), options(), &mut |_| {}).unwrap();
    assert_eq!(report.problems, Vec::<String>::new(), "{name}");
    for left in ["base.new", "base.ready", "base.old", "base.check", "base.check.new-archive"] {
        assert!(!world.path(name).join(left).exists(), "{name}: {left}");
    }
}

pub(crate) fn positions(world: &World) -> Vec<u64> {
    let number = |path: &PathBuf| {
        u64::from_str_radix(path.file_name().unwrap().to_str().unwrap(), 16).unwrap()
    };
    world.log().iter().map(number).collect()
}

/// The folders of the bases.
pub(crate) fn archives(world: &World) -> Vec<String> {
    let names = std::fs::read_dir(world.path("bucket")).unwrap();
    let mut names: Vec<_> =
        names.map(|name| name.unwrap().file_name().to_str().unwrap().to_owned()).collect();
    names.retain(|name| name == "base" || name.starts_with("base-"));
    names.sort();
    names
}

#[test]
fn a_trimmed_log_keeps_as_many_batches_as_asked_for() {
    let (world, one) = world(20);
    let last = *positions(&world).last().unwrap();
    let report = trim(&one, 6).unwrap();
    assert_eq!((report.first, report.last, report.base), (last - 5, last, Some(1)));
    assert_eq!(report.removed, last - 6);
    assert_eq!(positions(&world), (last - 5..=last).collect::<Vec<_>>());
    assert_eq!(report.base_glsn, one.newest());
    // Nothing is left to do.
    let again = trim(&one, 6).unwrap();
    assert_eq!((again.first, again.base, again.removed), (last - 5, None, 0));
    // Everybody goes on.
    put_rows(&one, 20..23);
    let status = status(&world.url(), options()).unwrap().cluster.unwrap();
    assert_eq!((status.batches, status.last), (9, last + 3));
    let base = status.newest_base.unwrap();
    assert_eq!((base.number, base.first, base.position), (1, last - 5, last));
    one.close().unwrap();
    // Behind, a new one, and the one that has trimmed.
    join(&world.url(), world.path("three"), options()).unwrap();
    for name in ["two", "three", "one"] {
        has_rows(&world, name, 23);
    }
}

#[test]
fn only_what_is_new_is_sent_and_old_bases_are_removed() {
    let (world, one) = world(10);
    one.put(&one.keyspace("default").unwrap(), "large", vec![7; 600_000]).unwrap();
    trim(&one, 1).unwrap();
    assert_eq!(archives(&world), ["base", "base-1-1"]);
    put_rows(&one, 10..14);
    let report = trim(&one, 1).unwrap();
    assert!(report.bytes_sent < 100_000 && report.bytes_verified > 600_000, "{report:?}");
    assert_eq!(archives(&world), ["base-1-1"]);
    put_rows(&one, 14..16);
    one.close().unwrap();
    // Another member makes the next ones.
    let two = world.open("two");
    two.sync().unwrap();
    trim(&two, 1).unwrap();
    put_rows(&two, 16..18);
    let archives_now = archives(&world);
    assert!(archives_now.len() == 2 && archives_now.contains(&"base-1-1".to_owned()));
    trim(&two, 1).unwrap();
    assert_eq!(archives(&world).len(), 1, "{:?}", archives(&world));
    put_rows(&two, 18..20);
    two.close().unwrap();
    join(&world.url(), world.path("three"), options()).unwrap();
    for name in ["one", "two", "three"] {
        has_rows(&world, name, 20);
    }
}

#[test]
fn a_member_that_falls_behind_while_it_is_open_says_so_and_is_restored_when_reopened() {
    let (world, one) = world(3);
    let left = Arc::new(AtomicU64::new(u64::MAX));
    let two = with_requests(&left, || world.open("two"));
    two.sync().unwrap();
    // As a machine without its network.
    left.store(0, Ordering::Relaxed);
    put_rows(&one, 3..12);
    trim(&one, 2).unwrap();
    one.close().unwrap();
    left.store(u64::MAX, Ordering::Relaxed);
    let behind = two.sync().unwrap_err();
    assert!(matches!(&behind, StoreError::Behind { .. }), "{behind}");
    assert!(behind.to_string().contains("Close the store"), "{behind}");
    let refused = try_put(&two, "x", "1").unwrap_err();
    assert!(matches!(&refused, StoreError::Behind { .. }), "{refused}");
    assert_eq!(get(&two, "key 2").as_deref(), Some("1"), "reads go on");
    assert_eq!(positions(&world).len(), 2, "nothing was appended");
    two.close().unwrap();
    has_rows(&world, "two", 12);
    put(&world.open("two"), "x", "1");
}

/// A bucket whose requests fail from a certain one on, as if the process had been killed.
#[derive(Debug)]
struct Mortal {
    bucket: Arc<dyn Bucket>,
    left: Arc<AtomicU64>,
}

impl Mortal {
    /// Whether this request is made. That at which the process dies is made or not.
    fn lives(&self) -> io::Result<()> {
        let left = &self.left;
        match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => Ok(()),
            Err(_) => Err(io::Error::new(ErrorKind::PermissionDenied, "the process was killed")),
        }
    }
}

impl Bucket for Mortal {
    fn put_new(&self, name: &str, bytes: &mut dyn Read) -> io::Result<Put> {
        self.lives().and_then(|()| self.bucket.put_new(name, bytes))
    }

    fn get(&self, name: &str) -> io::Result<Option<Object>> {
        self.lives().and_then(|()| self.bucket.get(name))
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.lives().and_then(|()| self.bucket.list(folder))
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        self.lives().and_then(|()| self.bucket.delete(name))
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        self.lives().and_then(|()| self.bucket.exists(name))
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.lives().and_then(|()| self.bucket.replace(name, bytes))
    }

    fn sync(&self, folder: &str) -> io::Result<()> {
        self.lives().and_then(|()| self.bucket.sync(folder))
    }

    fn folder(&self) -> io::Result<Option<PathBuf>> {
        self.bucket.folder()
    }
}

/// Calls `call` with buckets that fail after `left` requests.
pub(crate) fn with_requests<T>(left: &Arc<AtomicU64>, call: impl FnOnce() -> T) -> T {
    let left = Arc::clone(left);
    wrap_buckets(Some(Arc::new(move |bucket| {
        Arc::new(Mortal { bucket, left: Arc::clone(&left) }) as Arc<dyn Bucket>
    })));
    let done = call();
    wrap_buckets(None);
    done
}

#[test]
fn a_trim_that_is_killed_at_any_request_loses_nothing_and_is_continued() {
    let mut killed = 0;
    for requests in (0..).step_by(5) {
        let (world, one) = world(8);
        trim(&one, 6).unwrap();
        put_rows(&one, 8..12);
        let before = positions(&world);
        let done = with_requests(&Arc::new(AtomicU64::new(requests)), || trim(&one, 2));
        // The log has no gaps, and its end.
        let now = positions(&world);
        assert!(before.ends_with(&now) && now.len() >= 2, "{requests}: {now:?}");
        put_rows(&one, 12..13);
        if requests % 25 == 0 {
            has_rows(&world, "two", 13);
            join(&world.url(), world.path("three"), options()).unwrap();
            has_rows(&world, "three", 13);
        }
        let is_over = done.is_ok();
        killed += u64::from(!is_over);
        trim(&one, 2).unwrap();
        assert_eq!(positions(&world).len(), 2, "{requests}");
        one.close().unwrap();
        has_rows(&world, "one", 13);
        if is_over {
            break;
        }
    }
    assert!(killed > 10, "{killed}");
}

#[test]
fn a_restoration_that_is_killed_at_any_request_begins_again() {
    let mut killed = 0;
    let (world, one) = world(8);
    trim(&one, 2).unwrap();
    one.close().unwrap();
    let behind = world.path("behind");
    super::members::copy(&world.path("two"), &behind);
    let hasty = || options().order_timeout(Duration::from_millis(20));
    for requests in (0..).step_by(7) {
        std::fs::remove_dir_all(world.path("two")).unwrap();
        super::members::copy(&behind, &world.path("two"));
        let left = Arc::new(AtomicU64::new(requests));
        let opened = with_requests(&left, || open_member(world.path("two"), hasty()));
        // Without the bucket it opens, and reads go on.
        let is_killed = left.load(Ordering::Relaxed) == 0;
        killed += u64::from(is_killed);
        if let Ok(db) = opened {
            assert_eq!(get(&db, "first").as_deref(), Some("1"));
            drop(db);
        }
        has_rows(&world, "two", 8);
        if !is_killed {
            break;
        }
    }
    assert!(killed > 10, "{killed}");
}

/// As if it had been killed at each step after the base was complete.
#[test]
fn a_replacement_of_files_that_was_interrupted_continues() {
    for step in 0..6 {
        let (world, one) = world(8);
        trim(&one, 2).unwrap();
        one.close().unwrap();
        join(&world.url(), world.path("other"), options()).unwrap();
        for name in ["CLUSTER", "REPLICA", "LOCK"] {
            let _ = std::fs::remove_file(world.path("other").join(name));
        }
        let two = world.path("two");
        std::fs::rename(world.path("other"), two.join("base.new")).unwrap();
        std::fs::write(two.join("base.ready"), b"").unwrap();
        if step >= 1 {
            std::fs::remove_file(two.join("REPLICA")).unwrap();
        }
        if step >= 2 {
            std::fs::remove_dir_all(two.join("index")).unwrap();
        }
        if step >= 3 {
            std::fs::rename(two.join("base.new/index"), two.join("index")).unwrap();
        }
        if step >= 4 {
            std::fs::remove_dir_all(two.join("log")).unwrap();
            std::fs::rename(two.join("base.new/log"), two.join("log")).unwrap();
        }
        if step >= 5 {
            std::fs::remove_dir_all(two.join("base.new")).unwrap();
        }
        has_rows(&world, "two", 8);
    }
}

#[test]
fn a_base_that_cannot_be_read_back_removes_nothing() {
    #[derive(Debug)]
    struct Rotten(Arc<dyn Bucket>);
    impl Bucket for Rotten {
        fn put_new(&self, name: &str, bytes: &mut dyn Read) -> io::Result<Put> {
            let mut object = Vec::new();
            bytes.read_to_end(&mut object)?;
            if name.starts_with("segments/") {
                let middle = object.len() / 2;
                object[middle] ^= 1;
            }
            self.0.put_new(name, &mut &object[..])
        }
        fn get(&self, name: &str) -> io::Result<Option<Object>> {
            self.0.get(name)
        }
        fn list(&self, folder: &str) -> io::Result<Vec<String>> {
            self.0.list(folder)
        }
        fn delete(&self, name: &str) -> io::Result<()> {
            self.0.delete(name)
        }
        fn folder(&self) -> io::Result<Option<PathBuf>> {
            self.0.folder()
        }
    }
    let (world, one) = world(8);
    let before = positions(&world);
    wrap_buckets(Some(Arc::new(|bucket| Arc::new(Rotten(bucket)) as Arc<dyn Bucket>)));
    let refused = trim(&one, 2).unwrap_err();
    wrap_buckets(None);
    assert!(refused.to_string().contains("segments/"), "{refused}");
    assert!(refused.to_string().contains("nothing was removed"), "{refused}");
    assert_eq!(positions(&world), before);
    assert!(!world.path("bucket/bases").exists());
    // The text names the remedy.
    assert!(refused.to_string().contains("delete this folder"), "{refused}");
    std::fs::remove_dir_all(world.path("bucket/base-1-1")).unwrap();
    trim(&one, 2).unwrap();
    one.close().unwrap();
    has_rows(&world, "two", 8);
}

#[test]
fn a_damaged_or_missing_base_is_named_and_a_loss_is_not_taken_for_a_trim() {
    let (world, one) = world(8);
    trim(&one, 3).unwrap();
    one.close().unwrap();
    let record = world.path("bucket/bases/0000000000000001");
    let whole = std::fs::read(&record).unwrap();
    let mut changed = whole.clone();
    changed[whole.len() / 2] ^= 1;
    std::fs::write(&record, changed).unwrap();
    let refused = join(&world.url(), world.path("three"), options()).unwrap_err();
    assert!(refused.to_string().contains("bases/0000000000000001"), "{refused}");
    let one = world.open("one");
    let refused = try_put(&one, "x", "1").unwrap_err();
    assert!(refused.to_string().contains("bases/0000000000000001"), "{refused}");
    one.close().unwrap();
    // Without the base, the batches before the first one are lost.
    std::fs::remove_file(&record).unwrap();
    let two = world.open("two");
    let refused = two.sync().unwrap_err();
    assert!(matches!(&refused, StoreError::Corrupt { .. }), "{refused:?}");
    assert!(refused.to_string().contains("log/"), "{refused}");
    two.close().unwrap();
    std::fs::write(&record, &whole).unwrap();
    // A batch after the first one is lost.
    let log = world.log();
    let batch = std::fs::read(&log[1]).unwrap();
    std::fs::remove_file(&log[1]).unwrap();
    let refused = join(&world.url(), world.path("three"), options()).unwrap_err();
    let is_lost = |error: &Error| {
        let Error::Store(error) = error else { return false };
        matches!(error, StoreError::Corrupt { .. } | StoreError::Forked { .. })
    };
    assert!(is_lost(&refused), "{refused}");
    std::fs::write(&log[1], batch).unwrap();
    // So is the first one.
    let batch = std::fs::read(&log[0]).unwrap();
    std::fs::remove_file(&log[0]).unwrap();
    let name = log[0].file_name().unwrap().to_str().unwrap().to_owned();
    let refused = join(&world.url(), world.path("four"), options()).unwrap_err();
    assert!(refused.to_string().contains(&name), "{refused}");
    std::fs::write(&log[0], batch).unwrap();
    has_rows(&world, "two", 8);
}

#[test]
fn members_commit_while_others_trim_at_once() {
    let (world, one) = world(30);
    let two = world.open("two");
    two.sync().unwrap();
    std::thread::scope(|scope| {
        for (db, name) in [(&one, "one"), (&two, "two")] {
            scope.spawn(move || {
                (0..60).for_each(|number| put(db, &format!("{name} {number}"), "1"))
            });
            scope.spawn(move || {
                for _ in 0..3 {
                    let trimmed = trim(db, 20);
                    assert!(trimmed.is_ok(), "{trimmed:?}");
                }
            });
        }
    });
    for db in [&one, &two] {
        db.sync().unwrap();
        for number in 0..60 {
            for name in ["one", "two"] {
                assert_eq!(get(db, &format!("{name} {number}")).as_deref(), Some("1"));
            }
        }
    }
    trim(&one, 20).unwrap();
    let now = positions(&world);
    assert_eq!(now.len(), 20);
    assert!(now.windows(2).all(|pair| pair[1] == pair[0] + 1), "{now:?}");
    one.close().unwrap();
    two.close().unwrap();
    join(&world.url(), world.path("three"), options()).unwrap();
    for name in ["one", "two", "three"] {
        has_rows(&world, name, 30);
    }
}

#[test]
fn a_member_that_is_behind_leaves_with_what_it_has_or_with_everything() {
    let (world, one) = world(8);
    super::members::copy(&world.path("two"), &world.path("offline"));
    trim(&one, 2).unwrap();
    one.close().unwrap();
    leave(world.path("offline"), Leave::AsItIs, options()).unwrap();
    assert_eq!(get(&Db::open(world.path("offline"), options()).unwrap(), "key 7"), None);
    leave(world.path("two"), Leave::CaughtUp, options()).unwrap();
    let two = Db::open(world.path("two"), options()).unwrap();
    assert_eq!(get(&two, "key 7").as_deref(), Some("1"));
    put(&two, "own", "1");
}

#[test]
fn a_member_that_is_open_elsewhere_is_not_restored() {
    let (world, one) = world(8);
    let lock = world.path("two");
    trim(&one, 2).unwrap();
    let held = plimsoll_disk::os::OsDisk::new();
    let held = plimsoll_disk::vfs::Disk::lock(&held, &lock).unwrap();
    let refused = open_member(world.path("two"), options()).unwrap_err();
    assert!(matches!(refused, Error::Store(StoreError::Locked { .. })), "{refused}");
    drop(held);
    has_rows(&world, "two", 8);
}

#[test]
fn a_member_with_another_history_is_not_replaced() {
    let (world, one) = world(3);
    one.close().unwrap();
    // The bucket is set back, and another history begins.
    super::members::copy(&world.path("bucket"), &world.path("backup"));
    let two = world.open("two");
    put(&two, "lost", "1");
    two.close().unwrap();
    std::fs::remove_dir_all(world.path("bucket")).unwrap();
    std::fs::rename(world.path("backup"), world.path("bucket")).unwrap();
    let one = world.open("one");
    put_rows(&one, 3..9);
    trim(&one, 2).unwrap();
    let refused = open_member(world.path("two"), options()).unwrap_err();
    assert!(matches!(refused, Error::Store(StoreError::Forked { .. })), "{refused}");
    let two = Db::open(world.path("two"), options().read_only(true)).unwrap();
    assert_eq!(get(&two, "lost").as_deref(), Some("1"));
    assert!(!world.path("two/base.new").exists());
}

#[test]
fn cursors_and_streams_of_a_restored_member_go_on() {
    let (world, one) = world(3);
    one.log().cursor("reader", plimsoll::Glsn(1)).unwrap();
    put_rows(&one, 3..8);
    trim(&one, 1).unwrap();
    let (first, cursors) = (one.log().bounds().first, one.log().cursors());
    one.close().unwrap();
    let two = world.open("two");
    two.sync().unwrap();
    assert_eq!(two.log().cursors(), cursors);
    assert!(two.log().bounds().first <= first);
}

/// An order over the folder of the cluster, as a member that opens it now.
pub(crate) fn order_of(world: &World) -> BucketOrder {
    let url = world.path("bucket").display().to_string();
    BucketOrder::new(bucket_at(&url, Folders::Existing).unwrap(), &url).unwrap()
}

#[test]
fn positions_before_the_first_are_trimmed_and_the_rest_is_as_before() {
    let (world, one) = world(20);
    let before = order_of(&world);
    let last = before.end().unwrap();
    assert!(before.read(last).unwrap().is_some());
    let first = trim(&one, 5).unwrap().first;
    for hint in ["", "1", "7", "1000", "x"] {
        std::fs::write(world.path("bucket/hint"), hint).unwrap();
        // One that knows the log as it was, and one that knows nothing.
        for order in [&before, &order_of(&world)] {
            for position in 1..first {
                assert_eq!(order.read(position), Err(OrderError::Trimmed { first }), "{position}");
                let refused = order.append(position, b"late");
                assert_eq!(refused, Err(OrderError::Trimmed { first }), "{position}");
            }
            for position in first..=last {
                assert!(order.read(position).unwrap().is_some(), "{position}");
                assert_eq!(order.append(position, b"late"), Ok(Appended::Taken));
            }
            assert_eq!(order.read(last + 1), Ok(None));
            assert_eq!((order.first(), order.end()), (Ok(first), Ok(last)), "hint {hint:?}");
        }
    }
    assert_eq!(positions(&world), (first..=last).collect::<Vec<_>>());
}

/// A member that sleeps between its last look at the log and its append.
#[test]
fn an_append_to_a_name_that_is_free_again_is_void() {
    #[derive(Debug)]
    struct Sleeper {
        bucket: Arc<dyn Bucket>,
        folders: [PathBuf; 2],
    }
    impl Bucket for Sleeper {
        fn put_new(&self, name: &str, bytes: &mut dyn Read) -> io::Result<Put> {
            // Meanwhile the log goes on and is trimmed.
            let [bucket, later] = &self.folders;
            std::fs::remove_dir_all(bucket).unwrap();
            std::fs::rename(later, bucket).unwrap();
            let put = self.bucket.put_new(name, bytes);
            assert!(matches!(put, Ok(Put::New)), "the name is free: {put:?}");
            put
        }
        fn get(&self, name: &str) -> io::Result<Option<Object>> {
            self.bucket.get(name)
        }
        fn list(&self, folder: &str) -> io::Result<Vec<String>> {
            self.bucket.list(folder)
        }
        fn delete(&self, name: &str) -> io::Result<()> {
            self.bucket.delete(name)
        }
        fn folder(&self) -> io::Result<Option<PathBuf>> {
            self.bucket.folder()
        }
    }
    let (world, one) = world(5);
    let last = *positions(&world).last().unwrap();
    let (earlier, bucket) = (world.path("earlier"), world.path("bucket"));
    super::members::copy(&bucket, &earlier);
    put_rows(&one, 5..12);
    let first = trim(&one, 3).unwrap().first;
    one.close().unwrap();
    std::fs::rename(&bucket, world.path("later")).unwrap();
    std::fs::rename(&earlier, &bucket).unwrap();
    let url = bucket.display().to_string();
    let sleeper = Sleeper {
        bucket: bucket_at(&url, Folders::Existing).unwrap(),
        folders: [bucket, world.path("later")],
    };
    let order = BucketOrder::new(Arc::new(sleeper), &url).unwrap();
    assert!(order.read(last).unwrap().is_some());
    let void = order.append(last + 1, b"void").unwrap_err();
    assert!(matches!(&void, OrderError::InDoubt(what) if what.contains("trimmed")), "{void}");
    assert_eq!(positions(&world).first(), Some(&first), "nothing is left of it");
    has_rows(&world, "two", 12);
}
