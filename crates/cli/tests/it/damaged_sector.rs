//! A damaged sector of the log costs only the value that contains it. The neighbouring values stay
//! readable and are in the recovered store.

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll::{Db, Error, Options};

use crate::run::{Folder, run};

const KEYS: u64 = 300;
const DAMAGED: u64 = 77;

fn options() -> Options {
    Options::new().memory_bytes(32 << 20).segment_bytes(256 << 10)
}

fn key(number: u64) -> String {
    format!("key-{number:03}")
}

/// 4 KiB of letters and digits without a pattern.
fn value(number: u64) -> Vec<u8> {
    let mut state = number + 1;
    let mut letter = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        b"0123456789abcdefghijklmnopqrstuvwxyz"[(state >> 33) as usize % 36]
    };
    (0..4096).map(|_| letter()).collect()
}

fn segments(store: &Path) -> Vec<PathBuf> {
    let names = fs::read_dir(store.join("log")).unwrap().map(|entry| entry.unwrap().path());
    names.filter(|path| path.extension().is_some_and(|it| it == "seg")).collect()
}

/// Overwrites a sector inside a value.
fn damage_sector(store: &Path) {
    let front = &value(DAMAGED)[..32];
    for path in segments(store) {
        let mut bytes = fs::read(&path).unwrap();
        if let Some(at) = bytes.windows(32).position(|window| window == front) {
            let sector = (at + 1024).next_multiple_of(512);
            bytes[sector..sector + 512].fill(0xa5);
            return fs::write(&path, bytes).unwrap();
        }
    }
    panic!("the value is not in the log");
}

/// Reads every key; `refuses` must accept the error of the damaged one.
fn reads_all_others(path: &str, refuses: impl Fn(plimsoll::Result<Option<Vec<u8>>>) -> bool) {
    let db = Db::open(path, options()).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    for number in 0..KEYS {
        let found = db
            .get(&keyspace, key(number).as_bytes())
            .map(|found| found.map(|value| value.to_vec()));
        if number == DAMAGED {
            assert!(refuses(found));
        } else {
            assert!(found.unwrap() == Some(value(number)), "{}", key(number));
        }
    }
    db.close().unwrap();
}

#[test]
fn damaged_sector_costs_one_key() {
    let folder = Folder::new();
    let store = folder.at("store");
    let db = Db::open(&store, options()).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    for number in 0..KEYS {
        let mut tx = db.begin();
        tx.put(&keyspace, key(number).as_bytes(), &value(number)).unwrap();
        tx.commit().unwrap();
    }
    db.flush().unwrap();
    db.close().unwrap();
    damage_sector(Path::new(&store));

    reads_all_others(&store, |found| matches!(found, Err(Error::Corrupt { .. })));
    let scanned = run(&["scan", &store, "--skip-damaged"]);
    assert_eq!(
        (scanned.code, scanned.text().lines().count() as u64),
        (4, KEYS - 1),
        "{}",
        scanned.err
    );
    let listed = run(&["log", &store, "--skip-damaged"]);
    assert_eq!(
        listed.err.lines().filter(|line| line.contains("left out")).count(),
        1,
        "{}",
        listed.err
    );
    let report = run(&["verify", &store, "--json"]).json();
    let damage = report["damage"].as_array().unwrap();
    assert_eq!(damage.len(), 1, "{report}");
    let keys = damage[0]["keys"].as_array().unwrap();
    assert!(
        keys.len() == 1 && keys[0]["key"] == key(DAMAGED) && keys[0]["keyspace"] == "default",
        "{report}"
    );

    let dest = folder.at("recovered");
    let ran = run(&["recover", &store, &dest]).fails(1, &[]);
    assert!(ran.text().contains(&key(DAMAGED)), "{}", ran.text());
    assert_eq!(run(&["verify", &dest]).code, 0);
    reads_all_others(&dest, |found| !matches!(found, Ok(Some(_))));
}
