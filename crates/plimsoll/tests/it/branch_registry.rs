//! The registry of branches: they are created, renamed and deleted, and their forks stay readable.

use std::path::Path;
use std::sync::Arc;

use plimsoll::{
    Branch, Db, DumpOptions, Durability, Error, InvalidInput, Keyspace, Moment, Options, Retention,
};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::mem::MemDisk;

struct World {
    disk: MemDisk,
    clock: Arc<ManualClock>,
    db: Db,
    keys: Keyspace,
}

fn options(disk: &MemDisk, clock: &Arc<ManualClock>) -> Options {
    let options = Options::new().memory_bytes(16 << 20).segment_bytes(1 << 20);
    let options = options.retention(Retention::Latest).background(false).warm(false);
    options.world(Arc::new(disk.clone()), clock.clone())
}

fn open(disk: MemDisk, clock: Arc<ManualClock>) -> World {
    let db = Db::open("/store", options(&disk, &clock)).unwrap();
    let keys = db.keyspace("keys").unwrap();
    World { disk, clock, db, keys }
}

fn world() -> World {
    open(MemDisk::new(), Arc::new(ManualClock::new(1_780_000_000_000_000)))
}

impl World {
    fn reopen(self) -> Self {
        self.db.close().unwrap();
        open(self.disk, self.clock)
    }
}

fn create(db: &Db, name: &str, parent: &str) -> Branch {
    db.create_branch(name, &db.branch(parent).unwrap()).unwrap()
}

/// Name and parent of each branch.
fn list(db: &Db) -> Vec<String> {
    let branches = db.branches().unwrap().into_iter();
    branches.map(|it| format!("{}<{}", it.name, it.parent.unwrap_or_default())).collect()
}

fn invalid<T: std::fmt::Debug>(result: plimsoll::Result<T>) -> InvalidInput {
    match result {
        Err(Error::InvalidInput(what)) => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn branches_are_listed_with_their_parents_until_they_are_deleted() {
    let mut world = world();
    let at = world.db.put(&world.keys, "a", "one").unwrap();
    create(&world.db, "b", "main");
    create(&world.db, "c", "b");
    create(&world.db, "d", "c");
    assert_eq!(world.db.branches().unwrap()[0].fork, at);
    for _ in 0..2 {
        assert_eq!(list(&world.db), ["b<main", "c<b", "d<c"]);
        world = world.reopen();
    }
    world.db.rename_branch("c", "a").unwrap();
    assert_eq!(list(&world.db), ["a<b", "b<main", "d<a"]);
    world.db.delete_branch("a").unwrap();
    world.db.delete_branch("b").unwrap();
    assert_eq!(list(&world.db), ["d<"]);
    // The names are free again.
    create(&world.db, "a", "main");
    let world = world.reopen();
    assert_eq!(list(&world.db), ["a<main", "d<"]);
    world.db.delete_branch("d").unwrap();
    world.db.delete_branch("a").unwrap();
    let world = world.reopen();
    assert_eq!(list(&world.db), Vec::<String>::new());
}

#[test]
fn what_cannot_be_done_with_a_branch_is_refused() {
    let world = world();
    let db = &world.db;
    let old = db.put(&world.keys, "a", "one").unwrap();
    create(db, "b", "main");
    let newest = db.newest();
    for name in ["", "7", "now", "2026-01-31", "a:b", " a", "a\0", "-a", "a..b", "a@{1}"] {
        let refused = invalid(db.create_branch(name, &db.main()));
        assert_eq!(refused, InvalidInput::BranchName { name: name.into(), limit_bytes: 255 });
    }
    let exists = InvalidInput::BranchExists { name: "b".into() };
    assert_eq!(invalid(db.create_branch("b", &db.main())), exists);
    assert_eq!(invalid(db.rename_branch("b", "b")), exists);
    let none = InvalidInput::NoBranch { name: "c".into() };
    assert_eq!(invalid(db.branch("c")), none);
    assert_eq!(invalid(db.delete_branch("c")), none);
    assert_eq!(invalid(db.rename_branch("c", "d")), none);
    assert_eq!(invalid(db.create_branch("main", &db.main())), InvalidInput::MainBranch);
    assert_eq!(invalid(db.delete_branch("main")), InvalidInput::MainBranch);
    assert_eq!(invalid(db.rename_branch("main", "c")), InvalidInput::MainBranch);
    assert_eq!(invalid(db.rename_branch("b", "main")), InvalidInput::MainBranch);
    let future = db.create_branch_at("c", &db.main(), Moment::Glsn(newest.next()));
    assert!(matches!(future, Err(Error::Future { .. })), "{future:?}");
    assert_eq!(db.newest(), newest, "nothing was written");
    let branch = db.branch("b").unwrap();
    create(db, "kept", "b");
    db.delete_branch("b").unwrap();
    // A branch kept for its children is no parent any more.
    assert_eq!(invalid(db.create_branch("c", &branch)), InvalidInput::BranchDeleted);
    db.delete_branch("kept").unwrap();
    for value in 0..9_u8 {
        db.put(&world.keys, "a", [value]).unwrap();
    }
    db.compact().unwrap();
    drop(branch);
    db.compact().unwrap();
    let trimmed = db.create_branch_at("c", &db.main(), Moment::Glsn(old));
    assert!(matches!(trimmed, Err(Error::Trimmed { .. })), "{trimmed:?}");
    assert!(db.log().commit(newest).unwrap().unwrap().changes_branch().unwrap());
    db.clone().close().unwrap();
    assert!(matches!(world.db.branches(), Err(Error::Closed)));
    let read_only = Db::open("/store", options(&world.disk, &world.clock).read_only(true)).unwrap();
    let refused = read_only.create_branch("c", &read_only.main());
    assert!(matches!(refused, Err(Error::ReadOnly)), "{refused:?}");
}

#[test]
fn a_fork_stays_readable_until_its_branch_is_deleted() {
    let world = world();
    let at = world.db.put(&world.keys, "a", "one").unwrap();
    create(&world.db, "b", "main");
    for value in 0..20_u8 {
        world.db.put(&world.keys, "a", [value; 100]).unwrap();
    }
    world.db.compact().unwrap();
    world.db.log().trim(world.db.newest().next()).unwrap();
    let mut world = world.reopen();
    for _ in 0..2 {
        let then = world.db.snapshot_at(Moment::Glsn(at)).unwrap();
        assert_eq!(then.get(&world.keys, "a").unwrap().unwrap(), b"one");
        drop(then);
        world.db.compact().unwrap();
        world = world.reopen();
    }
    world.db.delete_branch("b").unwrap();
    world.db.put(&world.keys, "a", "new").unwrap();
    world.db.compact().unwrap();
    let versions = world.db.history(&world.keys, "a").unwrap().count();
    assert_eq!(versions, 1);
}

#[test]
fn branches_are_in_dumps_with_history_backups_and_recovered_stores() {
    let world = world();
    world.db.put(&world.keys, "a", "one").unwrap();
    create(&world.db, "b", "main");
    create(&world.db, "gone", "b");
    world.db.delete_branch("gone").unwrap();
    let on_disk = |path: &str| options(&world.disk, &world.clock).create(!path.is_empty());
    let mut dump = Vec::new();
    world.db.dump(DumpOptions::new().history(true), &mut dump).unwrap();
    Db::restore("/restored", on_disk("/restored"), &mut &dump[..]).unwrap();
    world.db.backup("/backup").unwrap();
    world.db.close().unwrap();
    Db::recover("/store", "/recovered", on_disk("/recovered"), &mut |_, _| {}).unwrap();
    for path in ["/restored", "/backup", "/recovered"] {
        let db = Db::open(path, on_disk("")).unwrap();
        assert_eq!(list(&db), ["b<main"], "{path}");
        create(&db, "c", "b");
        assert_eq!(list(&db), ["b<main", "c<b"], "{path}");
        db.close().unwrap();
    }
}

fn join(path: &Path) -> Db {
    let options = Options::new().memory_bytes(16 << 20).retention(Retention::Latest);
    Db::open(path, options.background(false).durability(Durability::Buffered).shared(true)).unwrap()
}

#[test]
fn all_processes_know_the_branches_and_the_keeper_retains_their_forks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (keeper, other) = (join(&path), join(&path));
    let keys = keeper.keyspace("keys").unwrap();
    let theirs = other.keyspace("keys").unwrap();
    for round in 0..3_u8 {
        let at = other.put(&theirs, "a", [round]).unwrap();
        // The keeper does not read before it merges.
        create(&other, &format!("b{round}"), "main");
        other.put(&theirs, "a", "over").unwrap();
        keeper.compact().unwrap();
        let then = keeper.snapshot_at(Moment::Glsn(at)).unwrap();
        assert_eq!(then.get(&keys, "a").unwrap().unwrap(), [round]);
        assert_eq!(list(&keeper).len(), usize::from(round) + 1);
    }
    keeper.delete_branch("b0").unwrap();
    assert_eq!(list(&other), ["b1<main", "b2<main"]);
    create(&other, "c", "b1");
    create(&keeper, "d", "c");
    let exists = InvalidInput::BranchExists { name: "c".into() };
    assert_eq!(invalid(keeper.create_branch("c", &keeper.main())), exists);
    assert_eq!(invalid(other.create_branch("c", &other.main())), exists);
    assert_eq!(list(&other), list(&keeper));
    drop((keeper, other));
    assert_eq!(list(&join(&path)), ["b1<main", "b2<main", "c<b1", "d<c"]);
}

#[test]
fn names_of_branches_are_charged_as_long_as_they_are_held() {
    let world = world();
    let db = &world.db;
    let charged = || {
        let by_kind = db.stats().memory.by_kind;
        by_kind.iter().find(|(kind, _)| *kind == "metadata").unwrap().1
    };
    let long = |number: u32| format!("b{number:0>254}");
    (0..100).for_each(|number| drop(create(db, &long(number), "main")));
    db.flush().unwrap();
    let before = charged();
    for (first, second) in [(long(1000), "b".to_owned()), ("b".to_owned(), long(1000))] {
        for _ in 0..200 {
            create(db, &first, "main");
            db.rename_branch(&first, &second).unwrap();
            // Its parent is deleted first, and has no name then.
            create(db, "child", &second);
            db.delete_branch(&second).unwrap();
            db.delete_branch("child").unwrap();
        }
        db.flush().unwrap();
        let now = charged();
        assert!(now.abs_diff(before) < 16 << 10, "{before} bytes, then {now}");
    }
    // The bytes of a change that fails are released, too.
    for _ in 0..200 {
        invalid(db.rename_branch(&long(1), &long(2)));
    }
    assert!(charged().abs_diff(before) < 16 << 10);
}
