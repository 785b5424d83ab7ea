//! A store of format 2, as its first version wrote it, opens for ever and gives the answers that it
//! gave.
//!
//! `crates/plimsoll/tests/data/format-2/` holds the store and, as text, what is in it. The bytes
//! are never edited. They were made by `cargo test -p plimsoll-sim --test it make_the_fixture --
//! --ignored`.
#![allow(clippy::disallowed_methods, reason = "copies a folder of the repository")]

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll::{Db, Moment, Options};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::vfs::{Caching, Disk, Open};
use plimsoll_sim::content::Content;
use plimsoll_sim::driver::{Care, run};
use plimsoll_sim::flip::RICH;
use plimsoll_sim::model::{Entry, Model, space_name};
use plimsoll_sim::op::Op;
use plimsoll_sim::op::text::parse;
use plimsoll_sim::world::{Setting, World};

/// What was done to the store beside [`RICH`]: a value in a blob file of its own, and a transaction
/// that was spilled into runs.
const MORE: &str = "
begin t0
put t0 s0 =large 300000#26
put t0 s3 =a 1#27
commit t0 0#0
begin t0
put t0 s0 =i 15000#28
put t0 s0 =j 15000#30
put t0 s0 =k 15000#32
commit t0 0#0
";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../plimsoll/tests/data/format-2")
}

#[test]
fn a_store_of_format_2_opens_and_gives_the_answers_that_it_gave() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    copy(&folder().join("store"), &store);
    let clock = Arc::new(ManualClock::new(1_780_000_000_000_000));
    let options = || {
        Options::new()
            .memory_bytes(16 << 20)
            .create(false)
            .world(Arc::new(OsDisk::new()), clock.clone())
    };
    let expected = fs::read_to_string(folder().join("expected.txt")).unwrap();

    let read_only = Db::open(&store, options().read_only(true)).unwrap();
    gives(&read_only, &expected);
    drop(read_only);
    let db = Db::open(&store, options()).unwrap();
    gives(&db, &expected);
    assert_eq!(db.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());

    // It goes on from there, and its past stays what it was.
    let keyspace = db.keyspace("default").unwrap();
    let mut tx = db.begin();
    tx.put(&keyspace, b"a", b"new").unwrap();
    tx.delete(&keyspace, b"c").unwrap();
    tx.commit().unwrap();
    db.compact().unwrap();
    db.close().unwrap();
    let db = Db::open(&store, options()).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    assert_eq!(db.snapshot().get(&keyspace, b"a").unwrap().unwrap(), b"new");
    assert_eq!(db.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
    let past: Vec<&str> = expected.lines().filter(|line| line.contains(" default ")).collect();
    assert!(past.len() > 20);
    gives(&db, &past.join("\n"));
}

/// The store says what each line says.
fn gives(db: &Db, expected: &str) {
    for line in expected.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["newest", glsn] => assert_eq!(db.newest().to_string(), glsn),
            ["at", glsn, space, key, content] => {
                let keyspace = db.keyspace(space).unwrap();
                let snapshot = db.snapshot_at(Moment::Glsn(glsn.parse().unwrap())).unwrap();
                let value = snapshot
                    .get(&keyspace, key.as_bytes())
                    .unwrap_or_else(|error| panic!("{line}: {error}"));
                match content {
                    "-" => assert_eq!(value, None, "{line}"),
                    _ => assert!(
                        content_of(content)
                            .is(&value.unwrap_or_else(|| panic!("{line}: it is gone"))),
                        "{line}"
                    ),
                }
            }
            ["entry", glsn, stream, content] => {
                let entry = db
                    .log()
                    .read(glsn.parse().unwrap())
                    .unwrap_or_else(|error| panic!("{line}: {error}"));
                assert_eq!(entry.stream.to_string(), stream, "{line}");
                assert!(content_of(content).is(entry.payload()), "{line}");
            }
            _ => panic!("{line:?} says nothing"),
        }
    }
}

fn content_of(text: &str) -> Content {
    let (bytes, seed) = text.split_once('#').unwrap();
    Content { bytes: bytes.parse().unwrap(), seed: seed.parse().unwrap() }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to.join(entry.file_name()));
        } else {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

/// Run once for each format, by hand: the bytes that are there already are never made again.
#[test]
#[ignore = "makes a fixture"]
fn make_the_fixture() {
    let ops: Vec<Op> = parse(&format!("{RICH}{MORE}")).unwrap();
    let driver = run(World::new(1, Setting::SMALL), Care::default(), &ops)
        .unwrap_or_else(|failure| panic!("{failure}"));
    let world = driver.world();
    let target = folder().join("store");
    assert!(!target.exists(), "{} is there already", target.display());
    for (path, len) in world.files(&world.store_path()).unwrap() {
        if path.ends_with("LOCK") {
            continue;
        }
        let mut bytes = vec![0; len as usize];
        world
            .disk
            .open(&path, Open::Read, Caching::Buffered)
            .unwrap()
            .read_exact_at(&mut bytes, 0)
            .unwrap();
        let to = target.join(path.strip_prefix(world.store_path()).unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::write(to, bytes).unwrap();
    }
    fs::write(folder().join("expected.txt"), expected(driver.model())).unwrap();
}

fn expected(model: &Model) -> String {
    let newest = model.newest();
    let mut text = format!("newest {newest}\n");
    for (space, _) in model.spaces() {
        for at in model.floor(space)..=newest {
            for key in model.keys(space) {
                let content = model
                    .get(space, &key, at)
                    .map_or_else(|| "-".to_owned(), |content| content.to_string());
                writeln!(
                    text,
                    "at {at} {} {} {content}",
                    space_name(space),
                    String::from_utf8_lossy(&key)
                )
                .unwrap();
            }
        }
    }
    for glsn in model.first()..=newest {
        if let Some(Entry::Payload { stream, content }) =
            model.entry(glsn).map(|placed| &placed.entry)
        {
            writeln!(text, "entry {glsn} {stream} {content}").unwrap();
        }
    }
    text
}
