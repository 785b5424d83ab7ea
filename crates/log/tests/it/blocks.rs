//! Whole blocks that are stale or empty: each has a matching checksum, and none is served.

use std::sync::Arc;

use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::vfs::Disk;
use plimsoll_log::error::LogError;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::format::BLOCK_BYTES;
use plimsoll_log::glsn::Glsn;

use crate::common::{
    Memory, append, copy_of, names, open, options, payload, read_file, submit, write_file,
};

const SEALED: &str = "00000000000000000001.seg";

/// Sizes of the entries: several in a block, over two blocks, over many.
const SIZES: [usize; 8] = [300, 5000, 20_000, 40_000, 100, 60_000, 9000, 30_000];

/// A log of two segments, closed; and the first one's bytes when half of it was written.
fn closed_log(memory: &Memory) -> (Arc<dyn Disk>, Vec<u8>) {
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
    let log = open(&disk, memory);
    let mut before = Vec::new();
    for (number, size) in SIZES.iter().cycle().take(20).enumerate() {
        append(&log, 0, &payload(number as u64 + 1, *size));
        if number == 5 {
            before = read_file(&*disk, SEALED);
        }
    }
    log.close().unwrap();
    drop(log);
    assert!(names(&*disk, ".seg").len() > 1, "the first segment is sealed");
    (disk, before)
}

fn size_of(glsn: u64) -> usize {
    SIZES[(glsn as usize - 1) % SIZES.len()]
}

#[test]
fn the_time_of_an_entry_in_a_damaged_block_is_that_of_a_later_one() {
    let memory = Memory::new(16 << 20);
    let (disk, _) = closed_log(&memory);
    let (log, _) = FileLog::open(options(&disk, &memory)).unwrap();
    let times: Vec<u64> =
        (1..log.bounds().next.0).map(|glsn| log.time_or_later(Glsn(glsn)).unwrap()).collect();
    log.close().unwrap();
    drop(log);
    let whole = read_file(&*disk, SEALED);
    let mut later = 0;
    for block in 1..blocks(&whole) {
        let copy = copy_of(&*disk);
        let mut bytes = whole.clone();
        bytes[block * BLOCK_BYTES..][..BLOCK_BYTES].fill(7);
        write_file(&*copy, SEALED, &bytes);
        let Ok((log, _)) = FileLog::open(options(&copy, &memory)) else { continue };
        for (glsn, time) in (1..).map(Glsn).zip(&times) {
            let told = log.time_or_later(glsn).unwrap();
            assert!(times.contains(&told) && told >= *time, "block {block}: {glsn}");
            if told > *time {
                later += 1;
                assert!(matches!(log.read(glsn), Err(LogError::Corrupt { .. })), "{glsn}");
            }
        }
    }
    assert!(later > 0);
}

/// Reads the log in every way, and checks that each read returns the bytes that were written or a
/// corruption error; returns the number of errors.
fn reads_nothing_else(disk: &Arc<dyn Disk>, told: &str) -> usize {
    let memory = Memory::new(16 << 20);
    let log = match FileLog::open(options(disk, &memory)) {
        Ok((log, report)) => {
            assert_eq!(report.cut, None, "{told}");
            log
        }
        Err(error) => {
            assert!(matches!(error, LogError::Corrupt { .. }), "{told}: {error}");
            return 1;
        }
    };
    let bounds = log.bounds();
    let mut refused = 0;
    let mut refuse = |error: LogError| {
        assert!(matches!(error, LogError::Corrupt { .. }), "{told}: {error}");
        refused += 1;
    };
    for glsn in 1..bounds.next.0 {
        let expected = payload(glsn, size_of(glsn));
        match log.read(Glsn(glsn)) {
            Ok(entry) => assert!(*entry == expected[..], "{told}: GLSN {glsn}"),
            Err(error) => refuse(error),
        }
        for from in (0..expected.len()).step_by(7000) {
            let mut part = vec![0; (expected.len() - from).min(9000)];
            match log.read_range(Glsn(glsn), from as u64, &mut part) {
                Ok(_) => assert!(
                    part == expected[from..from + part.len()],
                    "{told}: GLSN {glsn} from {from}"
                ),
                Err(error) => refuse(error),
            }
        }
    }
    let mut scan = log.scan(Glsn(1)..bounds.next, None).unwrap();
    while let Some(entry) = scan.next_entry() {
        match entry {
            Ok(entry) => {
                let glsn = entry.meta.glsn.0;
                assert!(
                    entry.payload == payload(glsn, size_of(glsn)),
                    "{told}: GLSN {glsn} by a scan"
                );
            }
            Err(error) => refuse(error),
        }
    }
    drop(scan);
    drop(log);
    refused
}

/// Damages the sealed segment and reads everything.
fn damaged(disk: &dyn Disk, told: &str, damage: impl FnOnce(&mut Vec<u8>)) {
    let copy = copy_of(disk);
    let mut bytes = read_file(&*copy, SEALED);
    let sound = bytes.clone();
    damage(&mut bytes);
    if bytes == sound {
        return;
    }
    write_file(&*copy, SEALED, &bytes);
    assert!(reads_nothing_else(&copy, told) > 0, "{told}: no error was returned");
}

fn blocks(bytes: &[u8]) -> usize {
    bytes.len() / BLOCK_BYTES
}

#[test]
fn a_block_of_zeros_below_the_end_is_not_served() {
    let memory = Memory::new(16 << 20);
    let (disk, _) = closed_log(&memory);
    assert_eq!(reads_nothing_else(&copy_of(&*disk), "sound"), 0);
    for block in 0..blocks(&read_file(&*disk, SEALED)) {
        for count in [1, 3] {
            damaged(&*disk, &format!("{count} blocks of zeros from {block} on"), |bytes| {
                let end = ((block + count) * BLOCK_BYTES).min(bytes.len());
                bytes[block * BLOCK_BYTES..end].fill(0);
            });
        }
    }
}

#[test]
fn a_segment_that_was_cut_at_a_block_is_not_served_beyond() {
    let memory = Memory::new(16 << 20);
    let (disk, _) = closed_log(&memory);
    for block in 0..blocks(&read_file(&*disk, SEALED)) {
        damaged(&*disk, &format!("cut at block {block}"), |bytes| {
            bytes.truncate(block * BLOCK_BYTES)
        });
    }
}

#[test]
fn blocks_of_another_place_another_segment_or_another_time_are_not_served() {
    let memory = Memory::new(16 << 20);
    let (disk, before) = closed_log(&memory);
    let other = read_file(&*disk, &names(&*disk, ".seg")[1]);
    let here = read_file(&*disk, SEALED);
    for block in 0..blocks(&here) {
        let range = block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES;
        for (told, source, from) in [
            ("the segment behind", &other, block % blocks(&other)),
            ("another place", &here, (block + 1) % blocks(&here)),
            ("an earlier time", &before, block),
        ] {
            let bytes = &source[from * BLOCK_BYTES..][..BLOCK_BYTES];
            damaged(&*disk, &format!("block {block} of {told}"), |all| {
                all[range.clone()].copy_from_slice(bytes)
            });
        }
    }
}

/// A tail is cut, and other records get the same GLSNs at the same places: blocks of the cut tail
/// have the earlier epoch.
#[test]
fn blocks_of_a_tail_that_was_cut_are_not_served() {
    let memory = Memory::new(16 << 20);
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
    let log = open(&disk, &memory);
    append(&log, 0, &payload(1, SIZES[0]));
    let first = read_file(&*disk, SEALED).iter().rposition(|byte| *byte != 0).unwrap() + 1;
    submit(&log, 0, &payload(99, SIZES[1])).unwrap();
    append(&log, 0, &payload(98, SIZES[2]));
    let stale = read_file(&*disk, SEALED);
    std::mem::forget(log);
    // A part of the second record did not reach the disk.
    let disk = copy_of(&*disk);
    let mut torn = stale.clone();
    torn[first + 200..first + 700].fill(0);
    torn[BLOCK_BYTES..].fill(0);
    write_file(&*disk, SEALED, &torn);
    let (log, report) = FileLog::open(options(&disk, &memory)).unwrap();
    assert_eq!(report.cut.unwrap().from, Glsn(2));
    for glsn in 2..=20 {
        append(&log, 0, &payload(glsn, size_of(glsn)));
    }
    log.close().unwrap();
    drop(log);
    for block in 1..blocks(&stale).min(3) {
        damaged(&*disk, &format!("block {block} of the tail that was cut"), |all| {
            let range = block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES;
            all[range.clone()].copy_from_slice(&stale[range]);
        });
    }
}

#[test]
fn bytes_beyond_the_length_of_a_segment_are_not_read() {
    let memory = Memory::new(16 << 20);
    let (disk, _) = closed_log(&memory);
    for name in names(&*disk, ".seg") {
        let copy = copy_of(&*disk);
        let path = std::path::Path::new(crate::common::DIR).join(&name);
        let file = copy
            .open(&path, plimsoll_disk::vfs::Open::ReadWrite, plimsoll_disk::vfs::Caching::Buffered)
            .unwrap();
        // Noise at the place where a search for the end would continue.
        file.write_at(&[9; 100], (1 << 18) + 5000).unwrap();
        assert_eq!(reads_nothing_else(&copy, &name), 0);
    }
}

/// A log in which entry 6, which spans several blocks, was written, cut, and written again at the
/// same place with different bytes.
#[test]
fn a_block_of_a_cut_record_is_not_served_as_part_of_its_replacement() {
    const REPLACED: u64 = 6;
    let memory = Memory::new(16 << 20);
    let base: Arc<dyn Disk> = Arc::new(MemDisk::new());
    let log = open(&base, &memory);
    for glsn in 1..REPLACED {
        append(&log, 0, &payload(glsn, size_of(glsn)));
    }
    log.close().unwrap();
    drop(log);
    let gone_on = |first_payload: u64| {
        let disk = copy_of(&*base);
        let log = open(&disk, &memory);
        append(&log, 0, &payload(first_payload, size_of(REPLACED)));
        for glsn in REPLACED + 1..=20 {
            append(&log, 0, &payload(glsn, size_of(glsn)));
        }
        log.close().unwrap();
        disk
    };
    let (cut, kept) = (gone_on(1000), gone_on(REPLACED));
    let (stale, here) = (read_file(&*cut, SEALED), read_file(&*kept, SEALED));
    let mut refused = 0;
    for block in 1..blocks(&here) {
        let range = block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES;
        let copy = copy_of(&*kept);
        let mut bytes = here.clone();
        bytes[range.clone()].copy_from_slice(&stale[range]);
        write_file(&*copy, SEALED, &bytes);
        let log = match FileLog::open(options(&copy, &memory)) {
            Ok((log, _)) => log,
            Err(error) => panic!("block {block}: {error}"),
        };
        match log.read(Glsn(REPLACED)) {
            Ok(entry) => {
                assert!(*entry == payload(REPLACED, size_of(REPLACED))[..], "block {block}")
            }
            Err(error) => {
                assert!(matches!(error, LogError::Corrupt { .. }), "block {block}: {error}");
                refused += 1;
            }
        }
    }
    // Blocks in its middle hold only its own bytes.
    assert!(refused >= 2, "{refused}");
}
