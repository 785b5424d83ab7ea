//! Healing a cluster whose bucket has lost objects.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use plimsoll::order::{Order, OrderError};
use plimsoll::{Db, Error as StoreError};
use plimsoll_archive::{Bucket, Object, Put};
use plimsoll_replica::testing::wrap_buckets;
use plimsoll_replica::{Error, Heal, HealReport, Problem, heal, join, open_member, status, trim};

use crate::members::{World, copy, get, options, put, try_put};
use crate::trim::{archives, has_rows, order_of, positions, put_rows, with_requests, world};

pub(crate) fn heal_with(world: &World, members: &[&str]) -> Result<HealReport, Error> {
    let paths: Vec<PathBuf> = members.iter().map(|name| world.path(name)).collect();
    heal(&paths, &Heal::default(), options())
}

pub(crate) fn accepting_loss(world: &World, members: &[&str]) -> HealReport {
    let paths: Vec<PathBuf> = members.iter().map(|name| world.path(name)).collect();
    heal(&paths, &Heal { accept_loss: true, url: None }, options()).unwrap()
}

/// A cluster with two closed members that have the same `rows` rows, and a trimmed log if wanted.
pub(crate) fn cluster(rows: u64, is_trimmed: bool) -> World {
    let (world, one) = world(rows);
    if is_trimmed {
        trim(&one, 4).unwrap();
    }
    one.close().unwrap();
    let two = world.open("two");
    two.sync().unwrap();
    two.close().unwrap();
    world
}

/// All members have the rows and go on together, and a new one can join.
pub(crate) fn goes_on(world: &World, rows: u64) {
    let (one, two) = (world.open("one"), world.open("two"));
    put(&one, &format!("key {rows}"), "1");
    two.sync().unwrap();
    put(&two, &format!("key {}", rows + 1), "1");
    one.sync().unwrap();
    assert_eq!(one.newest(), two.newest());
    one.close().unwrap();
    two.close().unwrap();
    join(&world.url(), world.path("new"), options()).unwrap();
    for name in ["one", "two", "new"] {
        has_rows(world, name, rows + 2);
    }
    let after = heal_with(world, &["one", "two", "new"]).unwrap();
    assert_eq!((after.problems, after.base), (Vec::new(), None), "it is whole");
}

/// The contents of a folder.
pub(crate) fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        match entry.path().is_dir() {
            true => all.extend(files(&entry.path())),
            false => all.push((entry.path(), std::fs::read(entry.path()).unwrap())),
        }
    }
    all.sort();
    all
}

fn remove_all(folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        match entry.path().is_dir() {
            true => std::fs::remove_dir_all(entry.path()).unwrap(),
            false => std::fs::remove_file(entry.path()).unwrap(),
        }
    }
}

pub(crate) fn flip(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_whole_bucket_is_not_changed() {
    for is_trimmed in [false, true] {
        let world = cluster(8, is_trimmed);
        let before = files(&world.path("bucket"));
        for members in [&["one"][..], &["two"], &["one", "two"]] {
            let report = heal_with(&world, members).unwrap();
            assert_eq!((report.problems, report.base), (Vec::new(), None));
            assert_eq!(report.removed, 0);
        }
        assert_eq!(files(&world.path("bucket")), before);
        goes_on(&world, 8);
    }
}

/// The damages, each with a part of the text that names it, and whether the log begins anew.
type Damage = (&'static str, fn(&World), &'static str, bool);

const DAMAGES: [Damage; 10] = [
    ("middle", |world| std::fs::remove_file(&world.log()[2]).unwrap(), "it is missing", true),
    ("first", |world| std::fs::remove_file(&world.log()[0]).unwrap(), "it is missing", true),
    (
        "tail",
        |world| world.log()[2..].iter().for_each(|path| std::fs::remove_file(path).unwrap()),
        "was cut or set back",
        true,
    ),
    ("log", |world| std::fs::remove_dir_all(world.path("bucket/log")).unwrap(), "log/", true),
    ("flipped", |world| flip(&world.log()[2]), "its checksum does not match", true),
    ("swapped", |world| drop(std::fs::copy(&world.log()[1], &world.log()[2])), "log/", true),
    (
        "archive",
        |world| {
            let newest = world.path("bucket").join(archives(world).last().unwrap());
            let segments = std::fs::read_dir(newest.join("segments")).unwrap();
            segments.for_each(|file| flip(&file.unwrap().path()));
        },
        "segments/",
        true,
    ),
    (
        "no archive",
        |world| {
            for archive in archives(world) {
                std::fs::remove_dir_all(world.path("bucket").join(archive)).unwrap();
            }
        },
        "manifests",
        true,
    ),
    (
        "no name",
        |world| std::fs::remove_file(world.path("bucket/cluster.json")).unwrap(),
        "cluster.json: it is missing",
        false,
    ),
    ("name", |world| flip(&world.path("bucket/cluster.json")), "cluster.json", false),
];

#[test]
fn members_go_on_after_each_damage() {
    for is_trimmed in [false, true] {
        for (what, damage, text, is_anew) in DAMAGES {
            let world = cluster(8, is_trimmed);
            damage(&world);
            let report = heal_with(&world, &["two", "one"]).unwrap();
            let named = report.problems.iter().any(|problem| problem.to_string().contains(text));
            assert!(named, "{what} {is_trimmed}: {:?}", report.problems);
            assert_eq!(report.base.is_some(), is_anew, "{what} {is_trimmed}: {report:?}");
            if is_anew {
                assert_eq!(positions(&world), [report.first], "{what}");
                assert_eq!(archives(&world).len(), 1, "{what}");
            }
            goes_on(&world, 8);
        }
    }
}

#[test]
fn a_damaged_or_missing_base_is_replaced() {
    for step in 0..3 {
        let (world, one) = world(8);
        trim(&one, 4).unwrap();
        put_rows(&one, 8..12);
        trim(&one, 4).unwrap();
        one.close().unwrap();
        let two = world.open("two");
        two.sync().unwrap();
        two.close().unwrap();
        let record = |number: u64| world.path(&format!("bucket/bases/{number:016x}"));
        match step {
            0 => flip(&record(2)),
            1 => std::fs::remove_file(record(1)).unwrap(),
            _ => remove_all(&world.path("bucket/bases")),
        }
        let report = heal_with(&world, &["one"]).unwrap();
        assert!(report.base.is_some_and(|base| base >= 2), "{step}: {report:?}");
        goes_on(&world, 12);
    }
}

#[test]
fn an_emptied_bucket_is_filled_where_the_caller_says_so() {
    let world = cluster(8, true);
    remove_all(&world.path("bucket"));
    let refused = heal_with(&world, &["one"]).unwrap_err();
    assert!(matches!(refused, Error::EmptyBucket { .. }), "{refused}");
    assert_eq!(files(&world.path("bucket")), []);
    let how = Heal { url: Some(world.url()), accept_loss: false };
    let report = heal(&[world.path("one")], &how, options()).unwrap();
    assert_eq!(report.problems, [Problem::Empty]);
    goes_on(&world, 8);
}

#[test]
fn a_cluster_goes_on_in_another_bucket() {
    let world = cluster(8, false);
    std::fs::rename(world.path("bucket"), world.path("lost")).unwrap();
    let url = world.path("elsewhere").display().to_string();
    let how = Heal { url: Some(url.clone()), accept_loss: false };
    heal(&[world.path("one")], &how, options()).unwrap();
    put(&world.open("one"), "key 8", "1");
    let refused = open_member(world.path("two"), options()).unwrap_err();
    assert!(matches!(refused, Error::NotACluster { .. }), "{refused}");
    join(&url, world.path("two"), options()).unwrap();
    has_rows(&world, "two", 9);
}

#[test]
fn a_bucket_that_was_set_back_goes_on_from_the_member_that_has_the_most() {
    let (world, one) = world(4);
    one.close().unwrap();
    copy(&world.path("bucket"), &world.path("backup"));
    let one = world.open("one");
    put_rows(&one, 4..9);
    one.close().unwrap();
    std::fs::remove_dir_all(world.path("bucket")).unwrap();
    std::fs::rename(world.path("backup"), world.path("bucket")).unwrap();
    // This one is not up to date.
    let report = heal_with(&world, &["two", "one"]).unwrap();
    assert_eq!(report.source, world.path("one"));
    let is_set_back = |problem: &Problem| matches!(problem, Problem::SetBack { .. });
    assert!(report.problems.iter().any(is_set_back), "{:?}", report.problems);
    goes_on(&world, 9);
}

/// A member that has not noticed that the bucket was set back has committed since.
fn forked() -> World {
    let (world, one) = world(4);
    one.close().unwrap();
    copy(&world.path("bucket"), &world.path("backup"));
    let one = world.open("one");
    put_rows(&one, 4..9);
    one.close().unwrap();
    std::fs::remove_dir_all(world.path("bucket")).unwrap();
    std::fs::rename(world.path("backup"), world.path("bucket")).unwrap();
    let two = world.open("two");
    put(&two, "other", "1");
    two.close().unwrap();
    world
}

#[test]
fn of_a_forked_log_nothing_is_given_up_silently() {
    let world = forked();
    let before = files(&world.path("bucket"));
    let refused = heal_with(&world, &["one", "two"]).unwrap_err();
    assert!(matches!(refused, Error::Diverged { .. }), "{refused}");
    let refused = heal_with(&world, &["one"]).unwrap_err();
    assert!(matches!(refused, Error::WouldLose { .. }), "{refused}");
    assert!(refused.to_string().contains("--accept-loss"), "{refused}");
    assert_eq!(files(&world.path("bucket")), before);
    let report = accepting_loss(&world, &["one"]);
    let is_fork = |problem: &Problem| matches!(problem, Problem::Forked { .. });
    assert!(report.problems.iter().any(is_fork), "{:?}", report.problems);
    // The objects of the other history stay.
    assert!(positions(&world).len() > 1 && report.removed == 0);
    put_rows(&world.open("one"), 9..10);
    has_rows(&world, "one", 10);
    // The member with the other history is refused, and keeps its commit.
    let refused = open_member(world.path("two"), options()).unwrap_err();
    assert!(matches!(refused, Error::Store(StoreError::Forked { .. })), "{refused}");
    let two = Db::open(world.path("two"), options().read_only(true)).unwrap();
    assert_eq!(get(&two, "other").as_deref(), Some("1"));
    join(&world.url(), world.path("new"), options()).unwrap();
    has_rows(&world, "new", 10);
}

#[test]
fn a_member_with_more_commits_is_refused_until_the_cluster_is_healed_with_it() {
    let world = cluster(4, false);
    let one = world.open("one");
    put_rows(&one, 4..9);
    one.close().unwrap();
    remove_all(&world.path("bucket/log"));
    // Only the one that is not up to date is at hand.
    let report = heal_with(&world, &["two"]).unwrap();
    put_rows_nowhere(&world);
    let refused = open_member(world.path("one"), options()).unwrap_err();
    let Error::Ahead { newest, healed, position, .. } = &refused else { panic!("{refused}") };
    assert!(*newest > *healed && *healed == report.newest && *position > 0, "{refused}");
    assert!(refused.to_string().contains("cluster heal"), "{refused}");
    let one = Db::open(world.path("one"), options().read_only(true)).unwrap();
    assert_eq!(get(&one, "key 8").as_deref(), Some("1"), "reads go on");
    drop(one);
    let again = heal_with(&world, &["one", "two"]).unwrap();
    assert!(again.base > report.base && again.first > report.first);
    goes_on(&world, 9);
}

/// The healed member opens, and commits nothing.
fn put_rows_nowhere(world: &World) {
    let two = world.open("two");
    two.sync().unwrap();
    two.close().unwrap();
}

#[test]
fn a_member_with_more_commits_stays_out_once_others_have_committed() {
    let world = cluster(4, false);
    put_rows(&world.open("one"), 4..9);
    remove_all(&world.path("bucket/log"));
    heal_with(&world, &["two"]).unwrap();
    put(&world.open("two"), "later", "1");
    let refused = open_member(world.path("one"), options()).unwrap_err();
    assert!(matches!(refused, Error::Ahead { .. }), "{refused}");
    let refused = heal_with(&world, &["one", "two"]).unwrap_err();
    assert!(matches!(refused, Error::Diverged { .. }), "{refused}");
    let refused = heal_with(&world, &["one"]).unwrap_err();
    assert!(matches!(refused, Error::WouldLose { .. }), "{refused}");
}

#[test]
fn what_only_the_bucket_has_is_applied_or_its_loss_is_refused() {
    // The hole is before the member: it applies the rest of the log.
    let world = cluster(4, false);
    copy(&world.path("two"), &world.path("three"));
    put_rows(&world.open("one"), 4..9);
    std::fs::remove_file(&world.log()[1]).unwrap();
    let report = heal_with(&world, &["two"]).unwrap();
    assert_eq!(
        report.newest,
        Db::open(world.path("one"), options().read_only(true)).unwrap().newest()
    );
    goes_on(&world, 9);
    // The hole is behind the member.
    let world = cluster(4, false);
    put_rows(&world.open("one"), 4..9);
    let log = world.log();
    std::fs::remove_file(&log[log.len() - 3]).unwrap();
    let before = files(&world.path("bucket"));
    let refused = heal_with(&world, &["two"]).unwrap_err();
    assert!(matches!(refused, Error::WouldLose { .. }), "{refused}");
    assert_eq!(files(&world.path("bucket")), before);
    heal_with(&world, &["two", "one"]).unwrap();
    goes_on(&world, 9);
}

#[test]
fn a_heal_that_is_killed_at_any_request_loses_nothing_and_is_continued() {
    let (mut killed, mut unfinished) = (0, 0);
    let mut requests = 0;
    loop {
        let world = cluster(6, true);
        std::fs::remove_file(&world.log()[1]).unwrap();
        let left = Arc::new(AtomicU64::new(requests));
        let done = with_requests(&left, || heal_with(&world, &["one"]));
        let is_over = done.is_ok();
        killed += u64::from(!is_over);
        unfinished += u64::from(is_unfinished(&world));
        // Members open, and read everything.
        if requests % 16 == 0 {
            let two = world.open("two");
            assert_eq!(get(&two, "key 5").as_deref(), Some("1"));
            two.close().unwrap();
        }
        let again = heal_with(&world, &["one"]).unwrap();
        assert!(!is_over || again.base.is_none());
        goes_on(&world, 6);
        if is_over {
            break;
        }
        // Each one counts from the fence on.
        requests += if unfinished > 0 { 1 } else { 4 };
    }
    assert!(killed > 10 && unfinished > 0, "{killed} {unfinished}");
}

/// Whether a heal has ended the old line of the log and has not begun a new one. Until it does,
/// writes, joins and trims are refused.
fn is_unfinished(world: &World) -> bool {
    let member = world.path("one");
    let status = status(member.to_str().unwrap(), options()).unwrap();
    let Err(Error::HealUnfinished { .. }) = status.cluster else { return false };
    let refused = join(&world.url(), world.path("none"), options()).unwrap_err();
    assert!(matches!(refused, Error::HealUnfinished { .. }), "{refused}");
    let (one, before) = (world.open("one"), positions(world));
    let refused = try_put(&one, "x", "1").unwrap_err();
    assert!(matches!(refused, StoreError::Behind { .. }), "{refused}");
    let refused = trim(&one, 1).unwrap_err();
    assert!(refused.to_string().contains("begins at position"), "{refused}");
    assert_eq!(positions(world), before);
    true
}

#[test]
fn of_two_heals_at_once_one_counts() {
    for _ in 0..4 {
        let world = cluster(8, false);
        remove_all(&world.path("bucket/log"));
        std::thread::scope(|scope| {
            for name in ["one", "two"] {
                let world = &world;
                scope.spawn(move || {
                    let healed = heal_with(world, &[name]);
                    assert!(healed.is_ok(), "{name}: {healed:?}");
                });
            }
        });
        goes_on(&world, 8);
    }
}

#[test]
fn members_that_are_open_stop_and_go_on_when_they_are_opened_again() {
    let world = cluster(8, false);
    let two = world.open("two");
    put(&two, "key 8", "1");
    std::fs::remove_file(&world.log()[1]).unwrap();
    // Its commit is only in the bucket and here.
    let old = order_of(&world);
    let last = old.end().unwrap();
    let report = heal_with(&world, &["one"]).unwrap();
    assert_eq!(report.newest, two.newest());
    let refused = try_put(&two, "x", "1").unwrap_err();
    assert!(matches!(refused, StoreError::Behind { .. }), "{refused}");
    assert!(matches!(two.sync(), Err(StoreError::Behind { .. })));
    assert_eq!(get(&two, "key 8").as_deref(), Some("1"), "reads go on");
    // Nothing is appended to the old line.
    let is_trimmed = Err(OrderError::Trimmed { first: report.first });
    assert_eq!(old.append(last + 1, b"late"), is_trimmed);
    two.close().unwrap();
    goes_on(&world, 9);
}

/// A folder that was copied while the member was open: it has no number, and its log can be ahead
/// of its place.
#[test]
fn a_copy_of_a_member_is_enough() {
    let world = cluster(4, false);
    let one = world.open("one");
    put_rows(&one, 4..40);
    one.keyspace("default").and_then(|rows| one.put(&rows, "large", vec![7; 600_000])).unwrap();
    // Its log is written.
    one.flush().unwrap();
    copy(&world.path("one"), &world.path("copy"));
    drop(one);
    for name in ["one", "two", "bucket"] {
        std::fs::remove_dir_all(world.path(name)).unwrap();
    }
    std::fs::create_dir(world.path("bucket")).unwrap();
    let how = Heal { url: Some(world.url()), accept_loss: false };
    heal(&[world.path("copy")], &how, options()).unwrap();
    std::fs::rename(world.path("copy"), world.path("one")).unwrap();
    join(&world.url(), world.path("two"), options()).unwrap();
    goes_on(&world, 40);
    let two = world.open("two");
    let large = two.get(&two.keyspace("default").unwrap(), "large").unwrap().unwrap();
    assert!(large == vec![7; 600_000]);
}

#[test]
fn a_newest_batch_that_cannot_be_read_is_not_given_up_silently() {
    let world = cluster(4, false);
    put(&world.open("one"), "key 4", "1");
    flip(world.log().last().unwrap());
    let refused = heal_with(&world, &["two"]).unwrap_err();
    assert!(matches!(refused, Error::WouldLose { .. }), "{refused}");
    heal_with(&world, &["two", "one"]).unwrap();
    goes_on(&world, 5);
}

/// Calls something before it stores the first object of a folder.
struct Before {
    bucket: Arc<dyn Bucket>,
    folder: &'static str,
    is_done: Arc<AtomicBool>,
    call: Arc<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for Before {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.folder)
    }
}

impl Bucket for Before {
    fn put_new(&self, name: &str, bytes: &mut dyn Read) -> io::Result<Put> {
        if name.starts_with(self.folder) && !self.is_done.swap(true, Ordering::SeqCst) {
            (self.call)();
        }
        self.bucket.put_new(name, bytes)
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
    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.bucket.replace(name, bytes)
    }
    fn sync(&self, folder: &str) -> io::Result<()> {
        self.bucket.sync(folder)
    }
    fn folder(&self) -> io::Result<Option<PathBuf>> {
        self.bucket.folder()
    }
}

/// Heals with `one` while `call` runs just before the first object of a folder is stored.
pub(crate) fn heal_beside(
    world: &World,
    folder: &'static str,
    call: impl Fn() + Send + Sync + 'static,
) -> Result<HealReport, Error> {
    let (is_done, call) = (Arc::new(AtomicBool::new(false)), Arc::new(call));
    wrap_buckets(Some(Arc::new(move |bucket| {
        let (is_done, call) = (Arc::clone(&is_done), Arc::clone(&call) as _);
        Arc::new(Before { bucket, folder, is_done, call }) as Arc<dyn Bucket>
    })));
    let healed = heal_with(world, &["one"]);
    wrap_buckets(None);
    healed
}

#[test]
fn commits_of_open_members_during_a_heal_are_kept_or_not_acknowledged() {
    for (folder, is_made) in [("manifests/", true), ("bases/", true), ("log/", false)] {
        let world = cluster(8, false);
        std::fs::remove_file(&world.log()[1]).unwrap();
        let two = Arc::new(world.open("two"));
        let (other, acknowledged) = (Arc::clone(&two), Arc::new(AtomicBool::new(false)));
        let made = Arc::clone(&acknowledged);
        heal_beside(&world, folder, move || {
            made.store(try_put(&other, "key 8", "1").is_ok(), Ordering::SeqCst);
        })
        .unwrap();
        assert_eq!(acknowledged.load(Ordering::SeqCst), is_made, "{folder}");
        Arc::try_unwrap(two).ok().map(Db::close).unwrap().unwrap();
        if !is_made {
            put(&world.open("one"), "key 8", "1");
        }
        goes_on(&world, 9);
    }
}
