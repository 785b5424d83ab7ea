//! A damaged fragment loses its own entries only: its neighbours in the same block are read as they
//! were written, one by one, by scans, and after the damage was dropped.

use std::collections::BTreeSet;
use std::sync::Arc;

use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::vfs::Disk;
use plimsoll_log::error::LogError;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::file_log::repair::verify::{Finding, VerifyScope, verify};
use plimsoll_log::glsn::{Glsn, Position};

use crate::common::{
    Memory, append, copy_of, no, open, options, payload, read_file, recover, submit, write_file,
};

const SEALED: &str = "00000000000000000001.seg";

/// Bytes of a fragment's header and of the headers between it and the payload of a record of one
/// entry.
const BEFORE_PAYLOAD: usize = 16 + 64 + 16;

/// A log of sealed segments with `count` entries of `size` bytes, each a record of its own.
fn closed_log(count: u64, size: usize) -> Arc<dyn Disk> {
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
    let log = open(&disk, &Memory::new(16 << 20));
    for glsn in 1..=count {
        append(&log, 0, &payload(glsn, size));
    }
    log.close().unwrap();
    disk
}

/// The offset of an entry's payload in the first segment.
fn place_of(bytes: &[u8], glsn: u64, size: usize) -> usize {
    let front = &payload(glsn, size)[..32];
    bytes.windows(front.len()).position(|window| window == front).unwrap()
}

fn is_sound(log: &FileLog, glsn: u64, size: usize) -> bool {
    let expected = payload(glsn, size);
    let mut part = vec![0; size - 9];
    let (whole, in_part) = (log.read(Glsn(glsn)), log.read_range(Glsn(glsn), 5, &mut part));
    match &whole {
        Ok(entry) => assert!(**entry == expected[..], "GLSN {glsn}"),
        Err(error) => assert!(matches!(error, LogError::Corrupt { .. }), "GLSN {glsn}: {error}"),
    }
    assert!(in_part.is_err() || part == expected[5..size - 4], "a part of GLSN {glsn}");
    assert_eq!(whole.is_ok(), in_part.is_ok(), "GLSN {glsn}: {in_part:?}");
    whole.is_ok()
}

/// The entries that are missing in a scan which restarts after each entry that it cannot read.
fn left_out_of_a_scan(log: &FileLog, count: u64, size: usize) -> BTreeSet<u64> {
    let (mut next, mut left_out) = (1, BTreeSet::new());
    while next <= count {
        let mut scan = log.scan(Glsn(next)..Glsn(count + 1), None).unwrap();
        while let Some(Ok(entry)) = scan.next_entry() {
            assert_eq!(entry.meta.glsn, Glsn(next));
            assert!(entry.payload == payload(next, size), "GLSN {next} by a scan");
            next += 1;
        }
        if next <= count {
            left_out.insert(next);
            next += 1;
        }
    }
    left_out
}

/// Damages the first segment, then checks that only the entries in `lost` cannot be read, that
/// `verify` reports them, and that only they are dropped.
#[track_caller]
fn costs_only(lost: &[u64], count: u64, size: usize, damage: impl FnOnce(&mut Vec<u8>)) {
    let lost: BTreeSet<u64> = lost.iter().copied().collect();
    let disk = copy_of(&*closed_log(count, size));
    let mut bytes = read_file(&*disk, SEALED);
    damage(&mut bytes);
    write_file(&*disk, SEALED, &bytes);
    let memory = Memory::new(16 << 20);
    let log = open(&disk, &memory);
    // Twice, because a later reader must not rely on what the first one cached.
    for _ in 0..2 {
        let refused: BTreeSet<u64> =
            (1..=count).filter(|glsn| !is_sound(&log, *glsn, size)).collect();
        assert_eq!(refused, lost, "one by one");
        assert_eq!(left_out_of_a_scan(&log, count, size), lost, "by scans");
    }
    let found = log.verify(&|_| true, &[], &mut |_| {}).unwrap();
    let named = found.iter().filter(|finding| !finding.harmless);
    let named: BTreeSet<u64> = named
        .flat_map(|finding| finding.glsn.unwrap().0..=finding.last.or(finding.glsn).unwrap().0)
        .collect();
    assert_eq!(named, lost, "{found:?}");
    log.close().unwrap();
    drop(log);

    let (_, disk) = recover(&disk, Position::default(), &[], &no);
    let log = open(&disk, &memory);
    for glsn in 1..=count {
        match log.read(Glsn(glsn)) {
            Ok(entry) => {
                assert!(*entry == payload(glsn, size)[..] && !lost.contains(&glsn), "GLSN {glsn}")
            }
            Err(error) => assert!(
                matches!(error, LogError::Dropped { .. }) && lost.contains(&glsn),
                "{glsn}: {error}"
            ),
        }
    }
    let found = log.verify(&|_| true, &[], &mut |_| {}).unwrap();
    assert!(found.iter().all(|finding| finding.harmless), "{found:?}");
}

#[test]
fn a_damaged_sector_costs_only_the_value_that_it_lies_in() {
    // Some values lie within one block, others continue in the next one.
    for glsn in 9..17 {
        costs_only(&[glsn], 100, 4096, |bytes| {
            let sector = (place_of(bytes, glsn, 4096) + 1024).next_multiple_of(512);
            bytes[sector..sector + 512].fill(0xa5);
        });
    }
}

#[test]
fn a_damaged_length_hides_no_fragment_behind_it() {
    for length in [[0, 0], [0xff, 0xff], [0x08, 0], [0xf0, 0x0f]] {
        for glsn in [9, 10, 11] {
            costs_only(&[glsn], 100, 4096, |bytes| {
                let fragment = place_of(bytes, glsn, 4096) - BEFORE_PAYLOAD;
                bytes[fragment + 12..fragment + 14].copy_from_slice(&length);
            });
        }
    }
    costs_only(&[10], 100, 4096, |bytes| {
        let fragment = place_of(bytes, 10, 4096) - BEFORE_PAYLOAD;
        bytes[fragment..fragment + 16].fill(0);
    });
}

/// Verifies the files of a log that is not open, of which everything up to `durable` was durable.
fn verify_with(disk: &Arc<dyn Disk>, durable: u64) -> Vec<Finding> {
    let memory = Memory::new(16 << 20);
    let options = options(disk, &memory);
    let scope = VerifyScope {
        disk: &**disk,
        dir: &options.dir,
        budget: &options.budget,
        durable: Some(Glsn(durable)),
        unfinished: &|_| false,
        kept: &|_| false,
        needed: &[],
    };
    verify(&scope, &mut |_| {}).unwrap()
}

/// The system writes unsynced bytes in any order, so a hole after the last durable record is a torn
/// tail, even if records follow it.
#[test]
fn a_hole_after_the_durable_end_is_no_damage_and_the_next_opening_cuts_it() {
    let (disk, memory): (Arc<dyn Disk>, _) = (Arc::new(MemDisk::new()), Memory::new(16 << 20));
    let log = open(&disk, &memory);
    for glsn in 1..=5 {
        append(&log, 0, &payload(glsn, 300));
    }
    let tickets: Vec<_> =
        (6..=8).map(|glsn| submit(&log, 0, &payload(glsn, 300)).unwrap()).collect();
    log.wait_durable(tickets[2].last).unwrap();
    // The log is not closed, so no mark says that the last three records are durable.
    let killed = copy_of(&*disk);
    let mut bytes = read_file(&*killed, SEALED);
    let from = place_of(&bytes, 6, 300) - BEFORE_PAYLOAD;
    let hole = from..place_of(&bytes, 7, 300) - BEFORE_PAYLOAD;
    bytes[hole].fill(0);
    write_file(&*killed, SEALED, &bytes);
    let found = verify_with(&killed, 5);
    assert!(
        found.iter().any(|finding| finding.what.contains("the next opening for writing cuts it")),
        "{found:?}"
    );
    assert!(found.iter().all(|finding| finding.harmless), "{found:?}");
    let damage = verify_with(&killed, 6)
        .into_iter()
        .find(|finding| !finding.harmless)
        .expect("GLSN 6 was durable");
    assert_eq!((damage.glsn, damage.last), (Some(Glsn(6)), Some(Glsn(6))));
    let log = open(&killed, &memory);
    assert_eq!(log.bounds().next, Glsn(6), "only a suffix is cut");
}

/// A part of a segment that is read later may report entries as durable that were missing in the
/// part read before.
#[test]
fn commits_during_a_verification_are_no_damage() {
    let (disk, memory): (Arc<dyn Disk>, _) = (Arc::new(MemDisk::new()), Memory::new(16 << 20));
    let log = open(&disk, &memory);
    let mut appended = 0;
    let mut commit = |bytes| {
        appended += 1;
        log.wait_durable(submit(&log, 0, &payload(appended, bytes)).unwrap().last).unwrap();
        appended
    };
    // Longer than the zeroed part of a new segment, so that more is zeroed now.
    commit(90_000);
    let found = log.verify(&|_| true, &[], &mut |so_far| {
        // The second 64 KiB have been read, with zeros after the first entry; the following ones
        // are still to be read.
        while so_far.done_bytes > 64 << 10 && commit(4096) < 30 {}
    });
    let found = found.unwrap();
    assert!(found.iter().all(|finding| finding.harmless), "{found:?}");
    // Real zeros there are damage.
    let copy = copy_of(&*disk);
    let mut bytes = read_file(&*copy, SEALED);
    let (from, to) =
        (place_of(&bytes, 2, 4096) - BEFORE_PAYLOAD, place_of(&bytes, 20, 4096) - BEFORE_PAYLOAD);
    bytes[from..to].fill(0);
    write_file(&*copy, SEALED, &bytes);
    let found = verify_with(&copy, 1);
    let damage = found
        .iter()
        .find(|finding| !finding.harmless)
        .expect("later records say that they were durable");
    assert_eq!((damage.glsn, damage.last), (Some(Glsn(2)), Some(Glsn(19))));
}

#[test]
fn small_commits_in_the_block_of_a_damaged_one_are_read() {
    costs_only(&[100], 1000, 300, |bytes| {
        let at = place_of(bytes, 100, 300);
        bytes[at + 7] ^= 1;
    });
    costs_only(&[100, 120], 1000, 300, |bytes| {
        let (a, b) = (place_of(bytes, 100, 300), place_of(bytes, 120, 300));
        bytes[a - BEFORE_PAYLOAD..a].fill(0);
        bytes[b + 9] ^= 1;
    });
}
