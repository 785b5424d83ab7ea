//! Ten problems that users of other logs have had, one test each.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::vfs::Disk;
use plimsoll_log::durability::Durability;
use plimsoll_log::error::LogError;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::file_log::options::FileLogOptions;
use plimsoll_log::format::fragment::{FragmentType, seal_fragment};
use plimsoll_log::format::segment_seed;
use plimsoll_log::glsn::{Glsn, StreamId};
use plimsoll_memory::budget::Kind;

use crate::common::{
    DIR, Memory, append, copy_of, mem_disk, names, open, options, payload, read_file, scan_all,
    submit, write_file,
};

const SEGMENT: &str = "00000000000000000001.seg";

#[test]
fn pain_1_a_torn_tail_neither_stops_the_restart_nor_hides_what_is_appended_later() {
    let memory = Memory::new(16 << 20);
    let disk = mem_disk();
    let log = open(&disk, &memory);
    append(&log, 0, b"kept");
    let good = read_file(&*disk, SEGMENT).iter().rposition(|byte| *byte != 0).unwrap();
    append(&log, 0, &payload(1, 5000));
    let mut torn = read_file(&*disk, SEGMENT);
    std::mem::forget(log);
    torn[good + 600..].fill(0);
    torn[good + 2000..good + 2100].fill(7);
    let disk = copy_of(&*disk);
    write_file(&*disk, SEGMENT, &torn);
    let (log, report) = FileLog::open(options(&disk, &memory)).unwrap();
    assert_eq!(report.cut.as_ref().map(|cut| cut.from), Some(Glsn(2)), "{report:?}");
    append(&log, 0, b"appended later");
    drop(log);
    let log = open(&disk, &memory);
    assert_eq!(
        scan_all(&log, 1, 9, None),
        [(1, b"kept".to_vec()), (2, b"appended later".to_vec())]
    );
}

#[test]
fn pain_2_bit_rot_is_not_taken_for_a_torn_tail() {
    let memory = Memory::new(16 << 20);
    let disk = mem_disk();
    let log = open(&disk, &memory);
    (0..50).for_each(|number| assert!(append(&log, 0, &payload(number, 300)) > Glsn::NONE));
    log.close().unwrap();
    drop(log);
    let mut bytes = read_file(&*disk, SEGMENT);
    bytes[9000] ^= 4;
    write_file(&*disk, SEGMENT, &bytes);
    // One flipped bit in the middle: the second half must not be dropped.
    let opened = FileLog::open(options(&disk, &memory));
    assert!(
        matches!(opened, Err(LogError::Corrupt { offset, .. }) if offset <= 9000),
        "{opened:?}"
    );
    assert_eq!(read_file(&*disk, SEGMENT), bytes);
}

#[test]
fn pain_3_an_acknowledged_append_survives_a_power_cut_at_once() {
    for seed in 0..30 {
        let memory = Memory::new(16 << 20);
        let lying = LyingDisk::new(seed);
        let disk: Arc<dyn Disk> = Arc::new(lying.clone());
        let log = open(&disk, &memory);
        let acknowledged = append(&log, 0, b"acknowledged");
        submit(&log, 0, b"only ordered").unwrap();
        assert_eq!(log.bounds().durable, acknowledged);
        lying.cut_power();
        drop(log);
        lying.restore_power();
        let log = open(&disk, &memory);
        assert_eq!(&*log.read(acknowledged).unwrap(), b"acknowledged");
    }
}

#[test]
fn pain_4_a_failed_sync_is_neither_retried_nor_ignored() {
    let memory = Memory::new(16 << 20);
    let lying = LyingDisk::new(4);
    let disk: Arc<dyn Disk> = Arc::new(lying.clone());
    let log = open(&disk, &memory);
    submit(&log, 0, b"x").unwrap();
    lying.fail_next_sync();
    let Err(LogError::Poisoned { cause }) = log.wait_durable(Glsn(1)) else {
        panic!("it was acknowledged")
    };
    assert!(!cause.is_empty());
    let syncs = lying.sync_count();
    for _ in 0..3 {
        assert!(matches!(log.sync(), Err(LogError::Poisoned { .. })));
        assert!(matches!(submit(&log, 0, b"y"), Err(LogError::Poisoned { .. })));
        assert!(matches!(
            log.wait_beyond(Glsn(9), Duration::from_secs(5), &|| false),
            Err(LogError::Poisoned { .. })
        ));
    }
    assert_eq!(lying.sync_count(), syncs, "no second sync of the same bytes");
}

#[test]
fn pain_5_a_restart_reads_the_last_segment_only() {
    let memory = Memory::new(16 << 20);
    let disk = mem_disk();
    let log = open(&disk, &memory);
    for number in 0..600 {
        submit(&log, 0, &payload(number, 5000)).unwrap();
    }
    log.sync().unwrap();
    let last_segment: u64 = names(&*disk, ".seg").pop().unwrap()[..20].parse().unwrap();
    std::mem::forget(log);
    assert!(last_segment > 500);
    let disk = copy_of(&*disk);
    // Blocks of sealed segments are not read: even bad ones neither slow nor stop the start.
    let first = &names(&*disk, ".seg")[0];
    let mut bytes = read_file(&*disk, first);
    bytes[100_000] ^= 1;
    write_file(&*disk, first, &bytes);
    let (log, report) = FileLog::open(options(&disk, &memory)).unwrap();
    assert_eq!(report.replayed, 601 - last_segment);
    assert_eq!(&*log.read(Glsn(600)).unwrap(), &payload(599, 5000));
    assert!(log.scan(Glsn(1)..Glsn(600), None).is_ok());
}

#[test]
fn pain_6_the_tables_of_entries_stay_within_their_part_of_the_budget() {
    let memory = Memory::new(16 << 20);
    let disk = mem_disk();
    let options = FileLogOptions { segment_bytes: 64 << 20, ..options(&disk, &memory) };
    let (log, _) = FileLog::open(options).unwrap();
    let crowd = vec![Vec::new(); 50_000];
    for _ in 0..20 {
        crate::common::submit_all(&log, 5, &crowd).unwrap();
        assert!(memory.budget.usage().of(Kind::LogTable) <= memory.budget.limit_bytes() / 16);
    }
    log.sync().unwrap();
    assert!(names(&*disk, ".seg").len() > 10, "segments are sealed early");
    assert_eq!(log.meta(Glsn(777_777)).unwrap().glsn, Glsn(777_777));
    assert_eq!(scan_all(&log, 499_990, 500_010, Some(5)).len(), 20);
    assert!(memory.budget.usage().of(Kind::LogTable) <= memory.budget.limit_bytes() / 16);
}

#[test]
fn pain_7_trimming_gives_space_back_at_once_and_needs_none() {
    let memory = Memory::new(16 << 20);
    let lying = LyingDisk::new(7);
    let disk: Arc<dyn Disk> = Arc::new(lying.clone());
    let log = open(&disk, &memory);
    (0..200).for_each(|number| assert!(append(&log, 0, &payload(number, 5000)) > Glsn::NONE));
    // A reader is within the trimmed segments; it must not keep their space.
    let mut scan = log.scan(Glsn(1)..Glsn(200), None).unwrap();
    assert!(scan.next_entry().is_some());
    lying.fill_up(Some(0));
    let before: u64 = disk.list(Path::new(DIR)).unwrap().iter().map(|entry| entry.len).sum();
    let first = log.trim(Glsn(200), &|_| false).unwrap();
    let after: u64 = disk.list(Path::new(DIR)).unwrap().iter().map(|entry| entry.len).sum();
    assert!(first > Glsn(100) && after < before / 2, "{before} {after}");
    drop(scan);
    drop(log);
    assert_eq!(open(&disk, &memory).bounds().first, first);
}

#[test]
fn pain_8_a_reader_below_the_trim_point_is_told_where_the_log_begins() {
    let memory = Memory::new(16 << 20);
    let disk = mem_disk();
    let log = open(&disk, &memory);
    (0..200).for_each(|number| assert!(append(&log, 0, &payload(number, 5000)) > Glsn::NONE));
    let first = log.trim(Glsn(150), &|_| false).unwrap();
    let check = |log: &FileLog| {
        let trimmed = |asked| LogError::Trimmed { asked: Glsn(asked), first };
        assert_eq!(log.read(Glsn(3)).unwrap_err(), trimmed(3));
        assert_eq!(log.meta(Glsn(3)).unwrap_err(), trimmed(3));
        assert_eq!(log.scan(Glsn(3)..Glsn(190), None).err(), Some(trimmed(3)));
        assert_eq!(log.scan(Glsn(3)..Glsn(190), Some(StreamId(0))).err(), Some(trimmed(3)));
        assert_eq!(log.read_range(Glsn(3), 0, &mut [0]).unwrap_err(), trimmed(3));
    };
    check(&log);
    drop(log);
    check(&open(&disk, &memory));
}

#[test]
fn pain_9_a_length_that_lies_allocates_nothing() {
    let memory = Memory::new(16 << 20);
    let disk = mem_disk();
    let log = open(&disk, &memory);
    append(&log, 0, b"twelve bytes");
    append(&log, 0, b"behind");
    std::mem::forget(log);
    let bytes = read_file(&*disk, SEGMENT);
    let id = options(&disk, &memory).id.unwrap();
    // The lengths of the payload and of the body, with a matching checksum, as a bug would write
    // them.
    for (at, value) in
        [(128 + 16 + 64 + 4, u32::MAX), (128 + 16 + 16, u32::MAX), (128 + 16 + 56, 65_000)]
    {
        let disk = copy_of(&*disk);
        let mut bad = bytes.clone();
        bad[at..at + 4].copy_from_slice(&value.to_le_bytes());
        seal_fragment(
            &mut bad[128..128 + 112],
            segment_seed(id, Glsn(1)),
            1,
            128,
            FragmentType::Whole,
        );
        write_file(&*disk, SEGMENT, &bad);
        let tight = Memory::new(16 << 20);
        let opened = FileLog::open(options(&disk, &tight));
        assert!(matches!(opened, Err(LogError::Corrupt { glsn: Glsn(1), .. })), "{opened:?}");
        assert!(tight.budget.usage().peak_bytes < 8 << 20);
    }
}

#[test]
fn pain_10_readers_do_not_block_writers_nor_writers_readers() {
    let memory = Memory::new(32 << 20);
    let disk = mem_disk();
    let log = FileLog::open(FileLogOptions {
        durability: Durability::Buffered,
        ..options(&disk, &memory)
    })
    .unwrap()
    .0;
    (0..100).for_each(|number| assert!(append(&log, 0, &payload(number, 4000)) > Glsn::NONE));
    // Scans and entries stay open while the same thread appends, syncs, seals and trims.
    let mut scans: Vec<_> =
        (1..20).map(|from| log.scan(Glsn(from)..Glsn::MAX, None).unwrap()).collect();
    let held: Vec<_> = (1..60).map(|glsn| log.read(Glsn(glsn)).unwrap()).collect();
    for round in 0..100 {
        for scan in &mut scans {
            assert!(scan.next_entry().unwrap().is_ok());
        }
        append(&log, 0, &payload(1000 + round, 4000));
    }
    let first = log.trim(Glsn(150), &|_| false).unwrap();
    assert!(first > Glsn(60));
    for (number, entry) in (0..).zip(&held) {
        assert_eq!(&**entry, &payload(number, 4000)[..], "a held entry does not change");
    }
}
