//! The budget of an open store is raised and lowered. A separate program, because it reads the
//! memory use of its process.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test that reads the kernel's statistics of this process"
)]

use plimsoll::{Db, Durability, Error, MIN_MEMORY_BYTES, Options};

const MIB: u64 = 1 << 20;

/// The anonymous memory and the page tables of this process, according to the kernel.
fn held_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() * 1024
    };
    of("RssAnon:") + of("VmPTE:")
}

fn key(number: u32) -> [u8; 4] {
    number.wrapping_mul(0x9e37_79b1).to_be_bytes()
}

#[test]
fn an_open_store_answers_correctly_while_its_memory_is_raised_and_lowered() {
    const KEYS: u32 = 50_000;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let start = held_bytes();
    let options = Options::new().memory_bytes(16 * MIB).durability(Durability::Buffered);
    let db = Db::open(&path, options).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    for first in (0..KEYS).step_by(1000) {
        let mut tx = db.begin();
        for number in first..first + 1000 {
            tx.put(&keyspace, &key(number), &[number as u8; 900]).unwrap();
        }
        tx.commit().unwrap();
    }
    let read_all = |held_max: u64| {
        let snapshot = db.snapshot();
        for number in 0..KEYS {
            assert_eq!(
                snapshot.get(&keyspace, &key(number)).unwrap().unwrap(),
                &[number as u8; 900][..]
            );
            if number % 5000 == 0 {
                assert!(
                    held_bytes() - start < held_max,
                    "{} bytes after {number}",
                    held_bytes() - start
                );
            }
        }
        db.stats()
    };
    let line = |budget: u64| budget + 8 * MIB;

    let small = read_all(line(16 * MIB));
    assert!(small.evictor.victims > 0, "{small:?}");
    db.set_memory(256 * MIB).unwrap();
    read_all(line(256 * MIB));
    let (full, large) = (held_bytes() - start, db.stats());
    assert!(full > 40 * MIB && large.memory.limit_bytes == 256 * MIB, "{full} {large:?}");
    assert!(large.pool.resident_pages > 2 * small.pool.resident_pages);

    db.set_memory(24 * MIB).unwrap();
    assert!(held_bytes() - start < line(24 * MIB), "{} bytes", held_bytes() - start);
    read_all(line(24 * MIB));

    // The tables for the largest budget alone exceed the smallest budget. On a machine with less
    // than 8 GiB, all of its memory is used.
    if db.set_memory(8192 * MIB).is_err() {
        db.set_memory(2048 * MIB).unwrap();
    }
    let stats = read_all(line(256 * MIB));
    assert!(stats.memory.by_kind[0].1 > 13 * MIB, "tables of gigabytes: {stats:?}");
    db.set_memory(16 * MIB).unwrap();
    assert!(held_bytes() - start < line(16 * MIB), "{} bytes", held_bytes() - start);
    read_all(line(16 * MIB));
    db.set_memory(24 * MIB).unwrap();

    let refused = [db.set_memory(MIN_MEMORY_BYTES - 1), db.set_memory(u64::MAX)];
    assert!(
        refused.iter().all(|error| matches!(error, Err(Error::InvalidInput { .. }))),
        "{refused:?}"
    );
    assert_eq!(db.stats().memory.limit_bytes, 24 * MIB);
    let mut tx = db.begin();
    tx.put(&keyspace, b"after", b"all").unwrap();
    tx.commit().unwrap();
    assert_eq!(db.snapshot().get(&keyspace, b"after").unwrap().unwrap(), b"all");
    db.close().unwrap();
}
