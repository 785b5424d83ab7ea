//! Shared files that are removed, replaced or overwritten while processes use them: each process
//! gets an error, no commit is lost, and no read is stale.
#![allow(clippy::disallowed_methods, reason = "tests change the files behind the store's back")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use plimsoll::{Db, Durability, Error};

use crate::members::{default, number, open, options, verify};

/// Members check the names of files at most once in ten milliseconds.
const CHECKED: Duration = Duration::from_millis(30);

/// A folder, the store in it, and the value that was acknowledged last.
struct Store {
    _dir: tempfile::TempDir,
    path: PathBuf,
    acknowledged: u64,
}

impl Store {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        Self { _dir: dir, path, acknowledged: 0 }
    }

    fn put(&mut self, db: &Db) -> Result<(), Error> {
        let next = self.acknowledged + 1;
        db.put(&default(db), "key", next.to_le_bytes())?;
        self.acknowledged = next;
        Ok(())
    }

    /// Checks that a read returns the newest value or an error.
    fn check_read(&self, db: &Db, what: &str) {
        match db.get(&default(db), "key") {
            Ok(value) => {
                let value =
                    value.map_or(0, |value| u64::from_le_bytes(value[..].try_into().unwrap()));
                assert!(
                    value >= self.acknowledged,
                    "{what}: read {value}, acknowledged is {}",
                    self.acknowledged
                );
            }
            Err(error) => assert!(!matches!(error, Error::Corrupt { .. }), "{what}: {error}"),
        }
    }

    /// After all processes have ended, checks that the store opens and has the acknowledged value.
    fn check_reopened(&self, what: &str) {
        for _ in 0..2 {
            let db = open(&self.path);
            assert!(number(&db, &default(&db), "key") >= self.acknowledged, "{what}");
            db.put(&default(&db), "other", b"x").unwrap();
        }
        verify(&self.path);
    }
}

fn refused(what: &str, done: Result<(), Error>) -> String {
    match done {
        Err(
            error @ (Error::Poisoned { .. }
            | Error::Format { .. }
            | Error::Io { .. }
            | Error::Locked { .. }),
        ) => error.to_string(),
        other => panic!("{what}: {other:?}"),
    }
}

fn remove(path: &Path) {
    if !path.is_dir() {
        return fs::remove_file(path).unwrap();
    }
    // A living process may create a file in the directory while it is emptied.
    while let Err(error) = fs::remove_dir_all(path) {
        assert_eq!(error.kind(), std::io::ErrorKind::DirectoryNotEmpty, "{error}");
    }
}

fn replace_by_copy(path: &Path) {
    let (moved, is_dir) = (path.with_extension("moved"), path.is_dir());
    fs::rename(path, &moved).unwrap();
    if !is_dir {
        fs::copy(&moved, path).unwrap();
        return;
    }
    fs::create_dir(path).unwrap();
    for entry in fs::read_dir(&moved).unwrap() {
        fs::copy(entry.as_ref().unwrap().path(), path.join(entry.unwrap().file_name())).unwrap();
    }
}

/// All files that two members share.
const FILES: [&str; 10] = [
    "members/join",
    "members/turn",
    "members/sync",
    "members/posting",
    "members/00",
    "members/01",
    "members/keeper-00",
    "members",
    "SHARED",
    "LOCK",
];

#[test]
fn a_shared_file_that_was_removed_or_replaced_is_an_error_in_every_process() {
    for damage in [remove, replace_by_copy] {
        for file in FILES {
            for joins_first in [false, true] {
                let mut store = Store::new();
                let (one, two) = (open(&store.path), open(&store.path));
                store.put(&one).unwrap();
                store.put(&two).unwrap();
                damage(&store.path.join(file));
                std::thread::sleep(CHECKED);
                let third = if joins_first { Some(Db::open(&store.path, options())) } else { None };
                if file != "LOCK"
                    && let Some(third) = &third
                {
                    assert!(third.is_err(), "{file}: a third process joined");
                }
                // Only the member that owns a slot detects that its slot's file was lost.
                let found = [store.put(&one), store.put(&two)]
                    .map(|put| put.err().map(|error| error.to_string()));
                let error = found.into_iter().flatten().next().expect("one of them finds it");
                refused(file, store.put(&one));
                assert!(
                    error.contains("removed")
                        || error.contains("exchanged")
                        || error.contains("replaced"),
                    "{file}: {error}"
                );
                refused(file, store.put(&two));
                if let Some(Ok(third)) = &third {
                    // It has joined with another `LOCK`; everything else is unchanged.
                    store.put(third).unwrap();
                    store.check_read(third, file);
                }
                store.check_read(&one, file);
                store.check_read(&two, file);
                drop((one, two, third));
                store.check_reopened(file);
            }
        }
    }
}

#[test]
fn a_log_whose_newest_segment_is_never_there_is_to_be_opened_again() {
    let mut store = Store::new();
    let one = Db::open(&store.path, options().segment_bytes(64 << 10)).unwrap();
    for _ in 0..40 {
        one.put(&default(&one), "large", vec![1; 5_000]).unwrap();
        store.put(&one).unwrap();
    }
    let log = fs::read_dir(store.path.join("log")).unwrap().map(|entry| entry.unwrap().path());
    let mut segments: Vec<_> =
        log.filter(|path| path.extension().is_some_and(|kind| kind == "seg")).collect();
    segments.sort();
    assert!(segments.len() > 1);
    // As it looks to a process that always comes too late.
    let (newest, hidden) = (segments.last().unwrap(), store.path.join("hidden"));
    fs::rename(newest, &hidden).unwrap();
    let refused = Db::open(&store.path, options()).unwrap_err();
    assert!(matches!(refused, Error::Behind { .. }), "{refused}");
    fs::rename(&hidden, newest).unwrap();
    let two = Db::open(&store.path, options()).unwrap();
    store.put(&two).unwrap();
    drop((one, two));
    store.check_reopened("segment");
}

/// A name, and the damage that is done to a file.
type Damage = (&'static str, fn(&Path));

/// The ways in which the bytes of `SHARED` are damaged.
const OVERWRITES: [Damage; 4] = [
    ("cut", |path| File::options().write(true).open(path).unwrap().set_len(0).unwrap()),
    ("truncated to a page", |path| {
        File::options().write(true).open(path).unwrap().set_len(4096).unwrap()
    }),
    ("zeros", |path| {
        use std::os::unix::fs::FileExt as _;
        let bytes = fs::metadata(path).unwrap().len() as usize;
        File::options().write(true).open(path).unwrap().write_all_at(&vec![0; bytes], 0).unwrap();
    }),
    ("truncated and extended", |path| {
        let file = File::options().write(true).open(path).unwrap();
        let bytes = file.metadata().unwrap().len();
        file.set_len(0).unwrap();
        file.set_len(bytes).unwrap();
    }),
];

#[test]
fn shared_words_that_were_overwritten_are_an_error_in_every_process() {
    for (what, overwrite) in OVERWRITES {
        for durability in [Durability::Sync, Durability::Buffered] {
            let mut store = Store::new();
            let join = || Db::open(&store.path, options().durability(durability)).unwrap();
            let (one, two, idle) = (join(), join(), join());
            let reader = Db::open(&store.path, options().read_only(true)).unwrap();
            store.put(&one).unwrap();
            store.check_read(&idle, what);
            let check_reader = |store: &Store| {
                if durability == Durability::Sync {
                    store.check_read(&reader, what);
                }
            };
            check_reader(&store);
            // Only one of them has applied it.
            store.put(&two).unwrap();
            overwrite(&store.path.join("SHARED"));
            std::thread::sleep(CHECKED);
            check_reader(&store);
            for db in [&idle, &one, &two] {
                store.check_read(db, what);
            }
            assert!(Db::open(&store.path, options()).is_err(), "{what}: another process joined");
            for db in [&one, &two, &idle] {
                let error = refused(what, store.put(db));
                assert!(
                    error.contains("SHARED: the file was") || error.contains("was removed or"),
                    "{what}: {error}"
                );
                store.check_read(db, what);
            }
            check_reader(&store);
            drop((one, two, idle, reader));
            store.check_reopened(what);
        }
    }
}

#[test]
fn reads_of_overwritten_words_fail_even_without_further_commits() {
    for (what, overwrite) in
        OVERWRITES.into_iter().filter(|(what, _)| *what != "truncated to a page")
    {
        let mut store = Store::new();
        let (one, two) = (open(&store.path), open(&store.path));
        let reader = Db::open(&store.path, options().read_only(true)).unwrap();
        store.put(&one).unwrap();
        overwrite(&store.path.join("SHARED"));
        for db in [&one, &two, &reader] {
            let read = db.get(&default(db), "key");
            assert!(matches!(read, Err(Error::Behind { .. })), "{what}: {read:?}");
        }
    }
}

#[test]
fn a_reader_whose_shared_words_were_replaced_does_not_read_old_values() {
    let mut store = Store::new();
    let one = open(&store.path);
    let reader = Db::open(&store.path, options().read_only(true)).unwrap();
    store.put(&one).unwrap();
    store.check_read(&reader, "before");
    remove(&store.path.join("SHARED"));
    let _ = one.close();
    let next = open(&store.path);
    store.put(&next).unwrap();
    store.check_read(&reader, "after");
    assert!(reader.get(&default(&reader), "key").is_err());
}

#[test]
fn a_store_whose_processes_were_killed_opens_without_its_shared_files() {
    for (what, damage) in [
        (
            "removed",
            (|path: &Path| ["members", "SHARED"].iter().for_each(|name| remove(&path.join(name))))
                as fn(&Path),
        ),
        ("without locks", |path| remove(&path.join("members"))),
        ("without words", |path| remove(&path.join("SHARED"))),
        ("copied", |path| {
            ["members", "SHARED"].iter().for_each(|name| replace_by_copy(&path.join(name)))
        }),
        ("cut", |path| {
            File::options().write(true).open(path.join("SHARED")).unwrap().set_len(0).unwrap()
        }),
    ] {
        for read_only in [false, true] {
            let mut store = Store::new();
            {
                let (one, two) = (open(&store.path), open(&store.path));
                store.put(&one).unwrap();
                store.put(&two).unwrap();
                // The files as killed processes leave them.
                copy_all(&store.path, &store.path.with_file_name("killed"));
            }
            store.path.set_file_name("killed");
            damage(&store.path);
            if read_only {
                let reader = Db::open(&store.path, options().read_only(true)).unwrap();
                store.check_read(&reader, what);
            }
            store.check_reopened(what);
        }
    }
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (path, to) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        if path.is_dir() { copy_all(&path, &to) } else { assert!(fs::copy(&path, &to).is_ok()) }
    }
}

#[test]
fn a_store_is_closed_at_once_after_its_shared_words_were_truncated() {
    let mut store = Store::new();
    let one = open(&store.path);
    store.put(&one).unwrap();
    // Wait until its threads sleep.
    std::thread::sleep(Duration::from_millis(700));
    OVERWRITES[0].1(&store.path.join("SHARED"));
    let begun = std::time::Instant::now();
    let _ = one.close();
    // A thread that is not woken sleeps for ten minutes.
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    store.check_reopened("closed");
}
