//! Clusters of whole stores over a folder.

use std::path::{Path, PathBuf};
use std::time::Duration;

use plimsoll::{Db, Error as StoreError, InvalidInput, Options};
use plimsoll_replica::{Error, Leave, create, join, leave, membership, open, open_member, status};
use tempfile::TempDir;

pub(crate) fn options() -> Options {
    Options::new().memory_bytes(16 << 20).warm(false).order_timeout(Duration::from_millis(300))
}

pub(crate) struct World {
    dir: TempDir,
}

impl World {
    /// A cluster with one member, `one`, which had a row before.
    pub(crate) fn new() -> Self {
        let world = Self { dir: tempfile::tempdir().unwrap() };
        world.store("one", "first");
        create(&world.url(), world.path("one"), options()).unwrap();
        world
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn url(&self) -> String {
        format!("file://{}", self.path("bucket").display())
    }

    /// A store with one row.
    fn store(&self, name: &str, key: &str) {
        let db = Db::open(self.path(name), options()).unwrap();
        put(&db, key, "1");
        db.close().unwrap();
    }

    pub(crate) fn open(&self, name: &str) -> Db {
        open_member(self.path(name), options()).unwrap()
    }

    /// The objects of the log, in order.
    pub(crate) fn log(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(self.path("bucket/log")).unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        files.sort();
        files
    }
}

pub(crate) fn put(db: &Db, key: &str, value: &str) {
    try_put(db, key, value).unwrap();
}

pub(crate) fn try_put(db: &Db, key: &str, value: &str) -> plimsoll::Result<plimsoll::Glsn> {
    db.put(&db.keyspace("default")?, key, value)
}

pub(crate) fn get(db: &Db, key: &str) -> Option<String> {
    let value = db.get(&db.keyspace("default").unwrap(), key).unwrap();
    value.map(|value| String::from_utf8(value.to_vec()).unwrap())
}

pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).unwrap()),
        }
    }
}

#[test]
fn members_have_one_history() {
    let world = World::new();
    let joined = join(&world.url(), world.path("two"), options()).unwrap();
    let (one, two) = (world.open("one"), world.open("two"));
    assert_eq!(get(&two, "first").as_deref(), Some("1"));
    assert_eq!(joined.base.0, 1);
    for number in 0..20 {
        put(if number % 2 == 0 { &one } else { &two }, &format!("key {number}"), "x");
    }
    one.sync().unwrap();
    two.sync().unwrap();
    assert_eq!(one.newest(), two.newest());
    for number in 0..20 {
        let key = format!("key {number}");
        assert_eq!((get(&one, &key), get(&two, &key)), (Some("x".into()), Some("x".into())));
    }
    assert_eq!(one.id(), two.id());
    // Larger than a record.
    let large = vec![7; 3 << 20];
    one.put(&one.keyspace("default").unwrap(), "large", &large).unwrap();
    two.sync().unwrap();
    assert!(two.get(&two.keyspace("default").unwrap(), "large").unwrap().unwrap() == large);
    one.close().unwrap();
    two.close().unwrap();
    // A third member needs more than the base.
    join(&world.url(), world.path("three"), options()).unwrap();
    let three = world.open("three");
    assert_eq!(get(&three, "key 19").as_deref(), Some("x"));
    assert!(three.get(&three.keyspace("default").unwrap(), "large").unwrap().unwrap() == large);
}

#[test]
fn increments_of_several_members_all_count() {
    const EACH: u64 = 40;
    let world = World::new();
    for name in ["two", "three"] {
        join(&world.url(), world.path(name), options()).unwrap();
    }
    let members = ["one", "two", "three"].map(|name| world.open(name));
    std::thread::scope(|scope| {
        for db in &members {
            for _ in 0..2 {
                scope.spawn(move || {
                    let keyspace = db.keyspace("default").unwrap();
                    for _ in 0..EACH {
                        // It ends with a conflict if others are faster many times in a row.
                        let increment = || {
                            db.transact(|tx| {
                                let old = tx.get(&keyspace, "n")?;
                                let old = old.map_or("0".into(), |old| old.to_vec());
                                let next = String::from_utf8(old).unwrap().parse::<u64>().unwrap();
                                tx.put(&keyspace, "n", (next + 1).to_string())
                            })
                        };
                        while let Err(error) = increment() {
                            assert!(matches!(error, StoreError::Conflict { .. }), "{error}");
                        }
                    }
                });
            }
        }
    });
    for db in &members {
        db.sync().unwrap();
        assert_eq!(get(db, "n"), Some((6 * EACH).to_string()));
    }
}

#[test]
fn a_member_opens_only_with_its_cluster() {
    let world = World::new();
    let refused = Db::open(world.path("one"), options()).unwrap_err();
    assert!(
        matches!(refused, StoreError::InvalidInput(InvalidInput::OrderIsMissing { .. })),
        "{refused}"
    );
    // Reads need no cluster.
    let db = Db::open(world.path("one"), options().read_only(true)).unwrap();
    assert_eq!(get(&db, "first").as_deref(), Some("1"));
    let member = membership(world.path("one")).unwrap().unwrap();
    assert_eq!(member.url, world.path("bucket").to_str().unwrap());
    assert_eq!(member.id, status(&world.url(), options()).unwrap().id);
}

#[test]
fn open_joins_a_new_member_and_refuses_other_stores() {
    let world = World::new();
    let db = open(world.path("two"), &world.url(), options()).unwrap();
    assert_eq!(get(&db, "first").as_deref(), Some("1"));
    db.close().unwrap();
    put(&open(world.path("two"), &world.url(), options()).unwrap(), "again", "2");
    world.store("plain", "x");
    let refused = open(world.path("plain"), &world.url(), options()).unwrap_err();
    assert!(matches!(refused, Error::NotAMember { .. }), "{refused}");
    let refused = open_member(world.path("plain"), options()).unwrap_err();
    assert!(matches!(refused, Error::NotAMember { .. }), "{refused}");
    let refused = join(&world.url(), world.path("plain"), options()).unwrap_err();
    assert!(matches!(refused, Error::DestinationExists { .. }), "{refused}");
    Db::open(world.path("plain"), options()).unwrap();
}

#[test]
fn places_with_something_else_are_refused() {
    let world = World::new();
    world.store("other", "x");
    let refused = create(&world.url(), world.path("other"), options()).unwrap_err();
    assert!(matches!(refused, Error::ClusterExists { .. }), "{refused}");
    let refused = create(&world.url(), world.path("one"), options()).unwrap_err();
    assert!(matches!(refused, Error::IsAMember { .. }), "{refused}");
    std::fs::create_dir(world.path("folder")).unwrap();
    std::fs::write(world.path("folder/photo"), b"").unwrap();
    let folder = world.path("folder");
    let refused = create(folder.to_str().unwrap(), world.path("other"), options()).unwrap_err();
    assert!(matches!(&refused, Error::NotEmpty { object, .. } if object == "photo"), "{refused}");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    let inside = world.path("other/bucket");
    let refused = create(inside.to_str().unwrap(), world.path("other"), options()).unwrap_err();
    assert!(refused.to_string().contains("inside the store"), "{refused}");
    let none = world.path("none");
    let refused = join(none.to_str().unwrap(), world.path("new"), options()).unwrap_err();
    assert!(matches!(refused, Error::NotACluster { .. }), "{refused}");
    assert!(!none.exists() && !world.path("new").exists());
    // The store is as it was.
    put(&Db::open(world.path("other"), options()).unwrap(), "y", "1");
    let second = format!("file://{}", world.path("second").display());
    create(&second, world.path("other"), options()).unwrap();
    let refused = open(world.path("one"), &second, options()).unwrap_err();
    assert!(matches!(refused, Error::OtherUrl { .. }), "{refused}");
    let refused = join(&second, world.path("one"), options()).unwrap_err();
    assert!(matches!(refused, Error::IsAMember { .. }), "{refused}");
}

#[test]
fn an_interrupted_creation_or_join_continues() {
    let world = World::new();
    // As if the creation had been interrupted before the store became a member.
    world.store("again", "x");
    let url = world.path("bucket 2").display().to_string();
    let report = create(&url, world.path("again"), options()).unwrap();
    for name in ["CLUSTER", "REPLICA"] {
        std::fs::remove_file(world.path("again").join(name)).unwrap();
    }
    assert_eq!(create(&url, world.path("again"), options()).unwrap().id, report.id);
    put(&world.open("again"), "y", "1");
    // A store that went on without the cluster is not taken back.
    for name in ["CLUSTER", "REPLICA"] {
        std::fs::remove_file(world.path("again").join(name)).unwrap();
    }
    put(&Db::open(world.path("again"), options()).unwrap(), "z", "1");
    let refused = create(&url, world.path("again"), options()).unwrap_err();
    assert!(matches!(refused, Error::ClusterExists { .. }), "{refused}");
    // A creation that was interrupted before the member was opened for the first time.
    std::fs::remove_file(world.path("one/REPLICA")).unwrap();
    let refused = Db::open(world.path("one"), options()).unwrap_err();
    assert!(
        matches!(refused, StoreError::InvalidInput(InvalidInput::OrderIsMissing { .. })),
        "{refused}"
    );
    create(&world.url(), world.path("one"), options()).unwrap();
    // The leftover of a killed join.
    std::fs::create_dir_all(world.path("two.joining-1/log")).unwrap();
    join(&world.url(), world.path("two"), options()).unwrap();
    assert_eq!(get(&world.open("two"), "first").as_deref(), Some("1"));
}

#[test]
fn a_member_that_leaves_is_an_ordinary_store() {
    let world = World::new();
    join(&world.url(), world.path("two"), options()).unwrap();
    put(&world.open("one"), "late", "1");
    let left = leave(world.path("two"), Leave::CaughtUp, options()).unwrap();
    let db = Db::open(world.path("two"), options()).unwrap();
    assert_eq!(get(&db, "late").as_deref(), Some("1"));
    assert_eq!(db.newest(), left.newest);
    put(&db, "own", "1");
    db.close().unwrap();
    let report = plimsoll::verify(world.path("two"), options(), &mut |_| {}).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    assert_eq!(membership(world.path("two")).unwrap(), None);
    let refused = leave(world.path("two"), Leave::CaughtUp, options()).unwrap_err();
    assert!(matches!(refused, Error::NotAMember { .. }), "{refused}");
    // The cluster goes on without it.
    let one = world.open("one");
    assert_eq!(get(&one, "own"), None);
    put(&one, "more", "1");
}

#[test]
fn a_member_leaves_only_when_no_process_has_it_open() {
    let world = World::new();
    let one = world.open("one");
    for how in [Leave::CaughtUp, Leave::AsItIs] {
        let refused = leave(world.path("one"), how, options()).unwrap_err();
        assert!(matches!(refused, Error::Store(StoreError::Locked { .. })), "{refused}");
    }
    put(&one, "x", "1");
    one.close().unwrap();
    put(&world.open("one"), "y", "1");
    // A call that was interrupted between the two files.
    std::fs::remove_file(world.path("one/CLUSTER")).unwrap();
    leave(world.path("one"), Leave::CaughtUp, options()).unwrap();
    put(&Db::open(world.path("one"), options()).unwrap(), "own", "1");
}

#[test]
fn without_the_bucket_a_member_reads_and_leaves() {
    let world = World::new();
    join(&world.url(), world.path("two"), options()).unwrap();
    let one = world.open("one");
    put(&one, "kept", "1");
    std::fs::rename(world.path("bucket"), world.path("lost")).unwrap();
    assert_eq!(get(&one, "kept").as_deref(), Some("1"));
    let refused = try_put(&one, "new", "1").unwrap_err();
    assert!(matches!(&refused, StoreError::Unavailable { .. }), "{refused}");
    assert!(refused.to_string().contains("is mounted"), "{refused}");
    assert!(!world.path("bucket").exists(), "it is not created anew");
    one.close().unwrap();
    let shown = status(world.path("one").to_str().unwrap(), options()).unwrap();
    assert!(matches!(shown.cluster, Err(Error::NotACluster { .. })), "{shown:?}");
    assert!(shown.member.unwrap().newest.0 >= 2);
    let refused = leave(world.path("one"), Leave::CaughtUp, options()).unwrap_err();
    assert!(matches!(refused, Error::NotACluster { .. }), "{refused}");
    leave(world.path("one"), Leave::AsItIs, options()).unwrap();
    // It begins the next cluster, with everything that it had.
    let url = world.path("new bucket").display().to_string();
    create(&url, world.path("one"), options()).unwrap();
    join(&url, world.path("three"), options()).unwrap();
    let three = world.open("three");
    assert_eq!(get(&three, "kept").as_deref(), Some("1"));
    put(&three, "new", "1");
    // A member of the lost cluster does not become one of the new cluster by its URL: it may have
    // another history.
    let refused = join(&url, world.path("two"), options()).unwrap_err();
    assert!(matches!(refused, Error::IsAMember { .. }), "{refused}");
}

#[test]
fn a_bucket_can_be_moved() {
    let world = World::new();
    std::fs::rename(world.path("bucket"), world.path("moved")).unwrap();
    let refused = open_member(world.path("one"), options()).unwrap_err();
    assert!(matches!(refused, Error::NotACluster { .. }), "{refused}");
    let url = format!("file://{}", world.path("moved").display());
    join(&url, world.path("one"), options()).unwrap();
    put(&world.open("one"), "x", "1");
    std::fs::rename(world.path("moved"), world.path("again")).unwrap();
    let url = world.path("again").display().to_string();
    let refused = open(world.path("one"), &url, options()).unwrap_err();
    assert!(matches!(refused, Error::OtherUrl { .. }), "{refused}");
    // As a copy without empty folders leaves it.
    std::fs::remove_dir(world.path("again/tmp")).unwrap();
    join(&url, world.path("one"), options()).unwrap();
    put(&open(world.path("one"), &url, options()).unwrap(), "y", "1");
    assert_eq!(membership(world.path("one")).unwrap().unwrap().url, url);
}

#[test]
fn damaged_files_of_the_cluster_are_named() {
    let world = World::new();
    let path = world.path("bucket/cluster.json");
    let whole = std::fs::read(&path).unwrap();
    let newer = String::from_utf8(whole.clone()).unwrap().replace("\"format\":1", "\"format\":9");
    for (text, part) in [
        (newer.as_bytes(), "run the version that created it on every member"),
        (&whole[..whole.len() / 2], "restore this object from a copy of the bucket"),
        (b"", "cluster.json"),
    ] {
        std::fs::write(&path, text).unwrap();
        let refused = join(&world.url(), world.path("two"), options()).unwrap_err();
        assert!(refused.to_string().contains(part), "{refused}");
        assert!(refused.to_string().contains("cluster.json"), "{refused}");
        assert!(!world.path("two").exists());
    }
    std::fs::write(&path, &whole).unwrap();
    let own = world.path("one/CLUSTER");
    std::fs::write(&own, b"{").unwrap();
    let refused = open_member(world.path("one"), options()).unwrap_err();
    assert!(refused.to_string().contains("CLUSTER"), "{refused}");
    join(&world.url(), world.path("one"), options()).unwrap();
    put(&world.open("one"), "x", "1");
    // An object of the base.
    let runs = std::fs::read_dir(world.path("bucket/base/segments")).unwrap();
    for file in runs.map(|file| file.unwrap().path()) {
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[30] ^= 1;
        std::fs::write(&file, bytes).unwrap();
    }
    let refused = join(&world.url(), world.path("two"), options()).unwrap_err();
    assert!(refused.to_string().contains("segments/"), "{refused}");
    let names = std::fs::read_dir(world.dir.path()).unwrap();
    let left = names
        .filter(|name| name.as_ref().unwrap().file_name().to_str().unwrap().starts_with("two"));
    assert_eq!(left.count(), 0);
}

#[test]
fn a_damaged_log_is_named_and_nothing_of_it_is_applied() {
    for damage in ["cut", "flipped", "removed", "swapped"] {
        let world = World::new();
        join(&world.url(), world.path("two"), options()).unwrap();
        let one = world.open("one");
        (0..6).for_each(|number| put(&one, &format!("key {number}"), "1"));
        one.close().unwrap();
        let log = world.log();
        let at = log.len() - 3;
        let whole = std::fs::read(&log[at]).unwrap();
        match damage {
            "cut" => std::fs::write(&log[at], &whole[..whole.len() - 1]).unwrap(),
            "flipped" => {
                let mut flipped = whole.clone();
                flipped[whole.len() / 2] ^= 4;
                std::fs::write(&log[at], flipped).unwrap();
            }
            "removed" => std::fs::remove_file(&log[at]).unwrap(),
            _ => {
                std::fs::copy(&log[at - 1], &log[at]).unwrap();
            }
        }
        let two = world.open("two");
        let name = log[at].file_name().unwrap().to_str().unwrap().to_owned();
        let refused = two.sync().unwrap_err();
        assert!(refused.to_string().contains(&name), "{damage}: {refused}");
        let refused = try_put(&two, "x", "1").unwrap_err();
        assert!(refused.to_string().contains(&name), "{damage}: {refused}");
        // Up to the damage, it has the log.
        assert_eq!(get(&two, "key 2").as_deref(), Some("1"), "{damage}");
        assert_eq!(get(&two, "key 5"), None, "{damage}");
        two.close().unwrap();
        std::fs::write(&log[at], whole).unwrap();
        let two = world.open("two");
        two.sync().unwrap();
        assert_eq!(get(&two, "key 5").as_deref(), Some("1"));
        put(&two, "x", "1");
    }
}

#[test]
fn a_bucket_that_was_rolled_back_is_refused() {
    let world = World::new();
    copy(&world.path("bucket"), &world.path("backup"));
    let one = world.open("one");
    (0..6).for_each(|number| put(&one, &format!("key {number}"), "1"));
    let before = one.newest();
    std::fs::remove_dir_all(world.path("bucket")).unwrap();
    std::fs::rename(world.path("backup"), world.path("bucket")).unwrap();
    let files = world.log().len();
    let refused = try_put(&one, "x", "1");
    assert!(refused.is_err(), "{refused:?}");
    one.close().unwrap();
    let one = world.open("one");
    assert_eq!(get(&one, "key 5").as_deref(), Some("1"), "reads go on");
    let refused = try_put(&one, "x", "1").unwrap_err();
    assert!(
        matches!(refused, StoreError::Corrupt { .. } | StoreError::Forked { .. }),
        "{refused:?}"
    );
    assert_eq!(one.newest(), before);
    assert_eq!(world.log().len(), files, "nothing was appended");
}

/// The base is an archive: a member may bring it up to date, so that others join faster.
#[test]
fn a_base_that_was_brought_up_to_date_is_joined() {
    let world = World::new();
    let one = world.open("one");
    let rows = one.keyspace("default").unwrap();
    let large = |byte| vec![byte; 700_000];
    for number in 0..20_u8 {
        put(&one, &format!("key {number}"), "1");
    }
    one.put(&rows, "large 1", large(1)).unwrap();
    // The log before the new base is gone.
    one.compact().unwrap();
    one.log().trim(one.newest().next()).unwrap();
    let base = world.path("bucket/base");
    let mut archive = plimsoll_archive::Archive::open(base.to_str().unwrap()).unwrap();
    archive.push(&one).unwrap();
    drop(archive);
    one.put(&rows, "large 2", large(2)).unwrap();
    put(&one, "last", "1");
    let joined = join(&world.url(), world.path("two"), options()).unwrap();
    assert!(joined.base.0 > 20 && joined.newest == one.newest(), "{joined:?}");
    let two = world.open("two");
    put(&two, "own", "1");
    one.sync().unwrap();
    for db in [&one, &two] {
        for key in ["first", "key 0", "key 19", "last", "own"] {
            assert_eq!(get(db, key).as_deref(), Some("1"), "{key}");
        }
        for byte in [1, 2] {
            let value = db.get(&db.keyspace("default").unwrap(), format!("large {byte}")).unwrap();
            assert!(value.unwrap() == large(byte));
        }
    }
    two.close().unwrap();
    let report = plimsoll::verify(world.path("two"), options(), &mut |_| {}).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
}
