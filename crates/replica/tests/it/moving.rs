//! Moving a cluster to another bucket while its members commit.

use std::fmt;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll::{Db, Error as StoreError};
use plimsoll_archive::{Bucket, Object, Put};
use plimsoll_replica::testing::wrap_buckets;
use plimsoll_replica::{
    Error, Heal, create, heal, join, membership, move_cluster, open, open_member, status, trim,
};

use crate::members::{World, get, options, put, try_put};
use crate::trim::{has_rows, put_rows, with_requests, world};

fn url(world: &World, name: &str) -> String {
    format!("file://{}", world.path(name).display())
}

/// The folder of the bucket that a member names.
fn bucket_of(world: &World, name: &str) -> PathBuf {
    PathBuf::from(membership(world.path(name)).unwrap().unwrap().url)
}

#[test]
fn members_commit_while_their_cluster_is_moved() {
    let (world, one) = world(20);
    let two = world.open("two");
    let ends = AtomicBool::new(false);
    let made = std::thread::scope(|scope| {
        let writers: Vec<_> = [("one", &one), ("two", &two)]
            .into_iter()
            .map(|(name, db)| {
                let ends = &ends;
                scope.spawn(move || {
                    let mut made = 0;
                    while !ends.load(Ordering::Relaxed) {
                        put(db, &format!("{name} {made}"), "1");
                        if made % 20 == 0 {
                            let space = db.keyspace("default").unwrap();
                            db.put(&space, format!("{name} large {made}"), vec![7; 600_000])
                                .unwrap();
                        }
                        made += 1;
                    }
                    (name, made)
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(100));
        let report = move_cluster(&one, &url(&world, "new")).unwrap();
        assert!(report.bytes_verified > 0 && report.last > 20, "{report:?}");
        std::thread::sleep(Duration::from_millis(100));
        ends.store(true, Ordering::Relaxed);
        let made = writers.into_iter().map(|it| it.join().unwrap()).collect::<Vec<_>>();
        let status = status(&world.url(), options()).unwrap();
        assert_eq!(PathBuf::from(status.moved_to.unwrap()), world.path("new"));
        assert!(status.cluster.unwrap().last > report.last, "they went on there");
        made
    });
    for db in [&one, &two] {
        db.sync().unwrap();
        for (name, made) in &made {
            for number in 0..*made {
                let key = format!("{name} {number}");
                assert_eq!(get(db, &key).as_deref(), Some("1"), "{key}");
            }
        }
    }
    one.close().unwrap();
    two.close().unwrap();
    for name in ["one", "two"] {
        assert_eq!(bucket_of(&world, name), world.path("new"));
    }
    // Who knows only the old bucket joins in the new one.
    join(&world.url(), world.path("three"), options()).unwrap();
    assert_eq!(bucket_of(&world, "three"), world.path("new"));
    std::fs::remove_dir_all(world.path("bucket")).unwrap();
    for name in ["one", "two", "three"] {
        has_rows(&world, name, 20);
    }
    let db = world.open("three");
    for (name, made) in made {
        let key = format!("{name} large {}", (made - 1) / 20 * 20);
        let value = db.get(&db.keyspace("default").unwrap(), key).unwrap().unwrap();
        assert_eq!(value.len(), 600_000);
    }
}

#[test]
fn a_move_that_is_killed_at_any_request_loses_nothing_and_is_finished() {
    let (mut killed, mut finished_by_others) = (0, 0);
    for requests in (0..).step_by(5) {
        let (world, one) = world(8);
        trim(&one, 6).unwrap();
        put_rows(&one, 8..12);
        let two = world.open("two");
        let left = Arc::new(AtomicU64::new(requests));
        let done = with_requests(&left, || move_cluster(&one, &url(&world, "new")));
        left.store(u64::MAX, Ordering::Relaxed);
        // Whatever was done, another member commits.
        put_rows(&two, 12..13);
        finished_by_others +=
            u64::from(done.is_err() && bucket_of(&world, "two") != world.path("bucket"));
        let is_over = done.is_ok();
        killed += u64::from(!is_over);
        let there = bucket_of(&world, "two") == world.path("new");
        match move_cluster(&one, &url(&world, "new")) {
            Ok(_) => assert!(!is_over && !there, "{requests}"),
            // It is there already.
            Err(Error::ClusterExists { .. }) => assert!(is_over || there, "{requests}"),
            Err(error) => panic!("{requests}: {error}"),
        }
        put_rows(&one, 13..14);
        one.close().unwrap();
        put_rows(&two, 14..15);
        two.close().unwrap();
        assert!(!world.path("new/move.json").exists(), "{requests}");
        std::fs::remove_dir_all(world.path("bucket")).unwrap();
        has_rows(&world, "one", 15);
        if requests % 25 == 0 || is_over {
            has_rows(&world, "two", 15);
            join(&url(&world, "new"), world.path("three"), options()).unwrap();
            has_rows(&world, "three", 15);
        }
        if is_over {
            break;
        }
    }
    assert!(killed > 20 && finished_by_others > 2, "{killed} {finished_by_others}");
}

type Hook = Box<dyn FnOnce() + Send>;

/// A bucket that calls `hook` once, before or after an object is stored whose name begins with
/// `prefix`.
struct Hooked {
    bucket: Arc<dyn Bucket>,
    prefix: &'static str,
    is_before: bool,
    hook: Arc<Mutex<Option<Hook>>>,
}

impl fmt::Debug for Hooked {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bucket.fmt(out)
    }
}

impl Bucket for Hooked {
    fn put_new(&self, name: &str, bytes: &mut dyn Read) -> io::Result<Put> {
        let mut hook =
            name.starts_with(self.prefix).then(|| self.hook.lock().unwrap().take()).flatten();
        if let Some(hook) = hook.take_if(|_| self.is_before) {
            hook();
        }
        let put = self.bucket.put_new(name, bytes)?;
        if let Some(hook) = hook {
            hook();
        }
        Ok(put)
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

    fn exists(&self, name: &str) -> io::Result<bool> {
        self.bucket.exists(name)
    }

    fn sync(&self, folder: &str) -> io::Result<()> {
        self.bucket.sync(folder)
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.bucket.replace(name, bytes)
    }

    fn folder(&self) -> io::Result<Option<PathBuf>> {
        self.bucket.folder()
    }
}

/// Moves the cluster at the moment when `two` has stored, or is about to store, an object while it
/// runs `commit`.
fn moved_during(
    prefix: &'static str,
    is_before: bool,
    commit: impl FnOnce(&Db),
) -> (World, Db, Db) {
    let (world, one) = world(8);
    let hook = Arc::new(Mutex::new(None));
    let (wrapped, hook_of_bucket) = (Arc::new(AtomicBool::new(true)), Arc::clone(&hook));
    let only_old = Arc::clone(&wrapped);
    wrap_buckets(Some(Arc::new(move |bucket| match only_old.load(Ordering::Relaxed) {
        true => {
            let hook = Arc::clone(&hook_of_bucket);
            Arc::new(Hooked { bucket, prefix, is_before, hook }) as Arc<dyn Bucket>
        }
        false => bucket,
    })));
    let two = world.open("two");
    wrapped.store(false, Ordering::Relaxed);
    wrap_buckets(None);
    let (mover, new) = (one.clone(), url(&world, "new"));
    *hook.lock().unwrap() = Some(Box::new(move || {
        move_cluster(&mover, &new).unwrap();
    }) as Hook);
    commit(&two);
    assert!(hook.lock().unwrap().is_none(), "it was moved meanwhile");
    assert_eq!(bucket_of(&world, "two"), world.path("new"));
    (world, one, two)
}

#[test]
fn a_commit_whose_blob_is_in_the_old_bucket_brings_it_along() {
    let (world, one, two) = moved_during("blob/", false, |two| {
        two.put(&two.keyspace("default").unwrap(), "large", vec![7; 600_000]).unwrap();
    });
    one.close().unwrap();
    two.close().unwrap();
    std::fs::remove_dir_all(world.path("bucket")).unwrap();
    join(&url(&world, "new"), world.path("three"), options()).unwrap();
    let three = world.open("three");
    let value = three.get(&three.keyspace("default").unwrap(), "large").unwrap().unwrap();
    assert_eq!(value.len(), 600_000);
}

#[test]
fn a_commit_during_a_move_is_made_exactly_once() {
    for is_before in [true, false] {
        let (world, one, two) = moved_during("log/", is_before, |two| {
            two.add(&two.keyspace("default").unwrap(), "count", 1, plimsoll::Overflow::Checked)
                .unwrap();
        });
        let count = |db: &Db| {
            db.sync().unwrap();
            let value = db.get(&db.keyspace("default").unwrap(), "count").unwrap().unwrap();
            i64::from_le_bytes(value[..].try_into().unwrap())
        };
        assert_eq!((count(&one), count(&two)), (1, 1), "before: {is_before}");
        put(&one, "more", "1");
        assert_eq!((count(&one), count(&two)), (1, 1), "before: {is_before}");
        one.close().unwrap();
        two.close().unwrap();
        std::fs::remove_dir_all(world.path("bucket")).unwrap();
        join(&url(&world, "new"), world.path("three"), options()).unwrap();
        assert_eq!(count(&world.open("three")), 1, "before: {is_before}");
    }
}

#[test]
fn batches_that_a_trim_removes_during_a_move_are_not_needed() {
    let (world, one) = world(8);
    let two = world.open("two");
    let hook = Arc::new(Mutex::new(None));
    let hook_of_bucket = Arc::clone(&hook);
    wrap_buckets(Some(Arc::new(move |bucket| {
        let hook = Arc::clone(&hook_of_bucket);
        Arc::new(Hooked { bucket, prefix: "bases/", is_before: false, hook }) as Arc<dyn Bucket>
    })));
    let trimmer = two.clone();
    // The base in the new bucket is stored, and the batches after it are not copied yet.
    *hook.lock().unwrap() = Some(Box::new(move || {
        put_rows(&trimmer, 8..90);
        assert!(trim(&trimmer, 1).unwrap().removed > 80);
    }) as Hook);
    let report = move_cluster(&one, &url(&world, "new"));
    wrap_buckets(None);
    assert!(report.unwrap().last > 90);
    assert!(hook.lock().unwrap().is_none());
    put_rows(&two, 90..91);
    one.close().unwrap();
    two.close().unwrap();
    std::fs::remove_dir_all(world.path("bucket")).unwrap();
    join(&url(&world, "new"), world.path("three"), options()).unwrap();
    for name in ["one", "two", "three"] {
        has_rows(&world, name, 91);
    }
}

#[test]
fn a_closed_member_follows_several_moves() {
    let (world, one) = world(8);
    for name in ["b", "c", "d"] {
        move_cluster(&one, &url(&world, name)).unwrap();
        put(&one, name, "1");
        trim(&one, 1).unwrap();
    }
    one.close().unwrap();
    // It names the first bucket, and its batches are gone.
    let behind = status(world.path("two").to_str().unwrap(), options()).unwrap();
    assert_eq!(PathBuf::from(behind.url), world.path("bucket"));
    assert_eq!(PathBuf::from(behind.moved_to.unwrap()), world.path("d"));
    let two = open(world.path("two"), &world.url(), options()).unwrap();
    for name in ["b", "c", "d"] {
        assert_eq!(get(&two, name).as_deref(), Some("1"));
    }
    put(&two, "two", "1");
    two.close().unwrap();
    assert_eq!(bucket_of(&world, "two"), world.path("d"));
    for name in ["bucket", "b", "d"] {
        open(world.path("one"), &url(&world, name), options()).unwrap().close().unwrap();
    }
    // A copy of the bucket is no move.
    super::members::copy(&world.path("d"), &world.path("copy"));
    let refused = open(world.path("one"), &url(&world, "copy"), options()).unwrap_err();
    assert!(matches!(refused, Error::OtherUrl { .. }), "{refused}");
    has_rows(&world, "one", 8);
    has_rows(&world, "two", 8);
}

#[test]
fn a_member_that_cannot_reach_the_new_bucket_reads_and_waits() {
    let (world, one) = world(8);
    let hasty = || options().order_timeout(Duration::from_millis(50));
    let left = Arc::new(AtomicU64::new(u64::MAX));
    let two = with_requests(&left, || open_member(world.path("two"), hasty()).unwrap());
    two.sync().unwrap();
    // It cannot follow before the new bucket is gone.
    left.store(0, Ordering::Relaxed);
    move_cluster(&one, &url(&world, "new")).unwrap();
    put(&one, "x", "1");
    one.close().unwrap();
    std::fs::rename(world.path("new"), world.path("not mounted")).unwrap();
    left.store(u64::MAX, Ordering::Relaxed);
    let refused = try_put(&two, "y", "1").unwrap_err();
    assert!(matches!(refused, StoreError::Unavailable { .. }), "{refused}");
    let new = world.path("new").display().to_string();
    assert!(refused.to_string().contains(&new), "{refused}");
    assert_eq!(get(&two, "key 1").as_deref(), Some("1"));
    two.close().unwrap();
    let two = open_member(world.path("two"), hasty()).unwrap();
    let refused = try_put(&two, "y", "1").unwrap_err();
    assert!(matches!(refused, StoreError::Unavailable { .. }), "{refused}");
    assert!(!world.path("new").exists());
    std::fs::rename(world.path("not mounted"), world.path("new")).unwrap();
    put(&two, "y", "1");
    two.sync().unwrap();
    assert_eq!(get(&two, "x").as_deref(), Some("1"));
}

#[test]
fn a_move_to_a_place_in_use_is_refused_and_changes_nothing() {
    let (world, one) = world(8);
    let other = World::new();
    let refused = move_cluster(&one, &other.url()).unwrap_err();
    assert!(matches!(refused, Error::ClusterExists { .. }), "{refused}");
    let refused = move_cluster(&one, &world.url()).unwrap_err();
    assert!(matches!(refused, Error::ClusterExists { .. }), "{refused}");
    std::fs::create_dir(world.path("used")).unwrap();
    std::fs::write(world.path("used/file"), b"x").unwrap();
    let refused = move_cluster(&one, &url(&world, "used")).unwrap_err();
    assert!(matches!(refused, Error::NotEmpty { .. }), "{refused}");
    // A bucket that is reserved for a move.
    for requests in (30..).step_by(5) {
        let left = Arc::new(AtomicU64::new(requests));
        with_requests(&left, || move_cluster(&one, &url(&world, "new"))).unwrap_err();
        left.store(u64::MAX, Ordering::Relaxed);
        if world.path("new/move.json").exists() {
            break;
        }
    }
    let refused = join(&url(&world, "new"), world.path("three"), options()).unwrap_err();
    assert!(matches!(refused, Error::MoveUnfinished { .. }), "{refused}");
    let store = world.path("store");
    Db::open(&store, options()).unwrap().close().unwrap();
    let refused = create(&url(&world, "new"), &store, options()).unwrap_err();
    assert!(matches!(refused, Error::NotEmpty { .. }), "{refused}");
    let stranger = other.open("one");
    let refused = move_cluster(&stranger, &url(&world, "new")).unwrap_err();
    assert!(matches!(refused, Error::NotEmpty { .. }), "{refused}");
    let db = Db::open(&store, options()).unwrap();
    let refused = move_cluster(&db, &url(&world, "new")).unwrap_err();
    assert!(matches!(refused, Error::NotAMember { .. }), "{refused}");
    put_rows(&one, 8..9);
    assert_eq!(bucket_of(&world, "one"), world.path("bucket"));
    // It may go to another place instead.
    move_cluster(&one, &url(&world, "elsewhere")).unwrap();
    put_rows(&one, 9..10);
    one.close().unwrap();
    has_rows(&world, "one", 10);
    has_rows(&world, "two", 10);
}

#[test]
fn a_bucket_that_a_cluster_has_left_is_not_healed() {
    let (world, one) = world(8);
    move_cluster(&one, &url(&world, "new")).unwrap();
    put_rows(&one, 8..9);
    one.close().unwrap();
    let refused = heal(&[world.path("two")], &Heal::default(), options()).unwrap_err();
    assert!(matches!(refused, Error::Moved { .. }), "{refused}");
    has_rows(&world, "two", 9);
    // The new one is.
    std::fs::remove_dir_all(world.path("new/log")).unwrap();
    let members = [world.path("one"), world.path("two")];
    assert!(heal(&members, &Heal::default(), options()).unwrap().base.is_some());
    let one = world.open("one");
    put_rows(&one, 9..10);
    // A line that a heal began is moved, too, and a member of the line before follows.
    move_cluster(&one, &url(&world, "newer")).unwrap();
    put_rows(&one, 10..11);
    one.close().unwrap();
    has_rows(&world, "one", 11);
    has_rows(&world, "two", 11);
}
