//! Damage of a few bytes of the log loses the data at that place and nothing beside it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll::{Db, Error, Options};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::vfs::{Caching, Disk, Open};

const SECTOR_BYTES: usize = 512;

fn options(disk: &MemDisk) -> Options {
    let clock = Arc::new(ManualClock::new(1_780_000_000_000_000));
    let options =
        Options::new().memory_bytes(16 << 20).segment_bytes(256 << 10).memtable_bytes(64 << 10);
    options.background(false).world(Arc::new(disk.clone()), clock)
}

/// Bytes in which no two places are equal.
fn value(number: u32, bytes: usize) -> Vec<u8> {
    let words = (0..bytes as u32)
        .map(|at| (at + 1).wrapping_mul(number.wrapping_mul(0x9e37_79b9) | 1).to_le_bytes()[3]);
    words.collect()
}

/// Values of this size, each in a separate commit, in several segments.
fn filled(keys: u32, value_bytes: usize) -> MemDisk {
    let disk = MemDisk::new();
    let db = Db::open("/store", options(&disk)).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    for number in 0..keys {
        db.put(&keyspace, number.to_be_bytes(), value(number, value_bytes)).unwrap();
    }
    db.compact().unwrap();
    db.close().unwrap();
    disk
}

/// Returns the keys whose values cannot be read; checks that all others are unchanged.
fn refused(db: &Db, keys: u32, value_bytes: usize) -> Vec<u32> {
    let keyspace = db.keyspace("default").unwrap();
    let is_refused = |number: &u32| match db.get(&keyspace, number.to_be_bytes()) {
        Ok(found) => {
            assert_eq!(found.as_deref(), Some(&value(*number, value_bytes)[..]), "key {number}");
            false
        }
        Err(Error::Corrupt { .. } | Error::Dropped { .. }) => true,
        Err(error) => panic!("key {number}: {error}"),
    };
    (0..keys).filter(is_refused).collect()
}

/// The sealed segments.
fn segments(disk: &MemDisk) -> Vec<PathBuf> {
    let mut names = disk.names(Path::new("/store/log")).unwrap();
    names.retain(|name| name.ends_with(".seg"));
    names.sort();
    names.pop();
    names.iter().map(|name| Path::new("/store/log").join(name)).collect()
}

/// The place of a value: its segment, and the offset of some of its bytes.
fn place_of(disk: &MemDisk, value: &[u8], from: usize) -> Option<(PathBuf, usize)> {
    segments(disk).into_iter().find_map(|path| {
        let file = disk.open(&path, Open::Read, Caching::Buffered).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let at = bytes.windows(64).position(|window| window == &value[from..from + 64])?;
        Some((path, at))
    })
}

fn change(disk: &MemDisk, path: &Path, at: usize, bytes: &[u8]) {
    disk.open(path, Open::ReadWrite, Caching::Buffered)
        .unwrap()
        .write_at(bytes, at as u64)
        .unwrap();
}

#[test]
fn a_damaged_sector_within_a_value_costs_that_value_alone() {
    for (value_bytes, keys) in [(4_000, 200), (1_100, 600)] {
        let disk = filled(keys, value_bytes);
        let mut wanted = BTreeSet::new();
        for number in [3, 40, 41, 90] {
            let (path, at) = place_of(&disk, &value(number, value_bytes), value_bytes / 2).unwrap();
            change(&disk, &path, at, b"damage");
            wanted.insert(number);
        }
        let wanted = Vec::from_iter(wanted);
        let db = Db::open("/store", options(&disk)).unwrap();
        assert_eq!(refused(&db, keys, value_bytes), wanted, "of {value_bytes} bytes");
        assert!(!db.verify(&mut |_| {}).unwrap().problems.is_empty());
        db.close().unwrap();

        let report = Db::recover("/store", "/recovered", options(&disk), &mut |_, _| {}).unwrap();
        assert_eq!(report.value_count, wanted.len() as u64, "of {value_bytes} bytes");
        let db = Db::open("/recovered", options(&disk)).unwrap();
        let gone = db.snapshot().range(&db.keyspace("default").unwrap(), ..).unwrap().count();
        assert_eq!(gone, keys as usize - wanted.len(), "of {value_bytes} bytes");
        assert_eq!(db.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
    }
}

/// A lost write: from a sector boundary on, the file has zeros or bytes from another place.
#[test]
fn a_lost_sector_costs_the_values_that_lie_on_it() {
    const KEYS: u32 = 300;
    const BYTES: usize = 1_500;
    /// Bytes of a record around its value.
    const AROUND: usize = 160;
    let disk = filled(KEYS, BYTES);
    let places: Vec<_> =
        (0..KEYS).map(|number| place_of(&disk, &value(number, BYTES), 0)).collect();
    let path = segments(&disk)[0].clone();
    let sector_at = |at: usize| {
        let mut sector = [0; SECTOR_BYTES];
        disk.open(&path, Open::Read, Caching::Buffered)
            .unwrap()
            .read_exact_at(&mut sector, at as u64)
            .unwrap();
        sector
    };
    for sector in (8..400).step_by(7) {
        let at = sector * SECTOR_BYTES;
        let before = sector_at(at);
        let other =
            if sector % 2 == 0 { sector_at(at + 20 * SECTOR_BYTES) } else { [0; SECTOR_BYTES] };
        change(&disk, &path, at, &other);
        let db = Db::open("/store", options(&disk)).unwrap();
        for number in refused(&db, KEYS, BYTES) {
            let (of, start) = places[number as usize].as_ref().expect("the last segment is sound");
            // A value that spans two blocks contains the header of its second part.
            let on_it = start - AROUND..start + BYTES + AROUND;
            assert!(
                *of == path && on_it.start < at + SECTOR_BYTES && at < on_it.end,
                "sector {sector}, key {number}"
            );
        }
        drop(db);
        change(&disk, &path, at, &before);
    }
}

/// After a cut, records are written over older ones at the same place, so of two sound records it
/// cannot be determined which was written last.
#[test]
fn a_segment_that_was_cut_is_read_strictly() {
    let disk = MemDisk::new();
    for opening in 0..3u32 {
        let db = Db::open("/store", options(&disk)).unwrap();
        let keyspace = db.keyspace("default").unwrap();
        (opening * 40..(opening + 1) * 40).for_each(|number| {
            _ = db.put(&keyspace, number.to_be_bytes(), value(number, 3_000)).unwrap()
        });
        db.compact().unwrap();
        db.close().unwrap();
        if opening == 0 {
            // The beginning of a record that was never finished.
            let path = Path::new("/store/log/00000000000000000001.seg");
            let file = disk.open(path, Open::ReadWrite, Caching::Buffered).unwrap();
            let mut bytes = vec![0; file.len().unwrap() as usize];
            file.read_exact_at(&mut bytes, 0).unwrap();
            let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
            file.write_at(b"torn", end.next_multiple_of(8) as u64).unwrap();
        }
    }
    let (path, at) = place_of(&disk, &value(20, 3_000), 1_000).unwrap();
    change(&disk, &path, at, b"damage");
    let db = Db::open("/store", options(&disk)).unwrap();
    let refused = refused(&db, 120, 3_000);
    assert!(refused.contains(&20) && refused.len() > 1 && refused.len() < 8, "{refused:?}");
}
