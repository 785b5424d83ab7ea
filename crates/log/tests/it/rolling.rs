//! A new segment begins without a sync; the next sync gives it its name.

use std::path::Path;
use std::sync::Arc;

use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::vfs::{Caching, Disk, Open};
use plimsoll_log::durability::Durability;
use plimsoll_log::error::LogError;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::file_log::options::FileLogOptions;
use plimsoll_log::glsn::{Glsn, StreamId};

use crate::common::{DIR, Memory, append, options, payload, scan_all, submit};

fn open(disk: &LyingDisk, memory: &Memory) -> FileLog {
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    FileLog::open(FileLogOptions { durability: Durability::Buffered, ..options(&shared, memory) })
        .unwrap()
        .0
}

fn names(disk: &LyingDisk, end: &str) -> Vec<String> {
    let names = disk.list(Path::new(DIR)).unwrap().into_iter().map(|entry| entry.name);
    names.filter(|name| name.ends_with(end)).collect()
}

/// Submits records of 5,000 bytes until a segment has begun that has no name yet; returns how many
/// there are.
fn fill(disk: &LyingDisk, log: &FileLog, from: u64) -> u64 {
    let mut number = from;
    while names(disk, ".seg.tmp").is_empty() {
        submit(log, 0, &payload(number, 5000)).unwrap();
        number += 1;
    }
    number
}

#[test]
fn a_new_segment_begins_without_a_sync_and_gets_its_name_with_the_next() {
    let (memory, disk) = (Memory::new(16 << 20), LyingDisk::new(3));
    let log = open(&disk, &memory);
    let before = disk.sync_count();
    let mut count = fill(&disk, &log, 0);
    assert_eq!(disk.sync_count(), before, "nothing was synced");
    assert_eq!(names(&disk, ".seg").len(), 1);
    // All of the new segment can be read, even the part that is no longer in the buffer.
    for _ in 0..30 {
        submit(&log, 0, &payload(count, 5000)).unwrap();
        count += 1;
    }
    memory.pool.clear();
    let found = scan_all(&log, 1, u64::MAX, None);
    assert!(
        found
            .iter()
            .map(|(_, bytes)| bytes.clone())
            .eq((0..count).map(|number| payload(number, 5000)))
    );
    log.sync().unwrap();
    assert_eq!((names(&disk, ".seg").len(), names(&disk, ".seg.tmp").len()), (2, 0));
    memory.pool.clear();
    assert_eq!(scan_all(&log, 1, u64::MAX, None).len() as u64, count);
    disk.cut_power();
    drop(log);
    disk.restore_power();
    let log = open(&disk, &memory);
    assert_eq!(log.bounds().next, Glsn(count + 1));
}

#[test]
fn a_segment_without_a_name_is_lost_in_a_crash_and_its_entries_were_not_durable() {
    let (memory, disk) = (Memory::new(16 << 20), LyingDisk::new(4));
    let log = open(&disk, &memory);
    append(&log, 0, b"durable");
    let count = fill(&disk, &log, 1);
    assert_eq!(log.bounds().durable, Glsn(1));
    disk.cut_power();
    drop(log);
    disk.restore_power();
    let log = open(&disk, &memory);
    let next = log.bounds().next;
    assert!((Glsn(2)..Glsn(count + 1)).contains(&next), "{next}");
    assert_eq!(names(&disk, ".seg.tmp"), [""; 0]);
    assert_eq!(&*log.read(Glsn(1)).unwrap(), b"durable");
}

#[test]
fn a_segment_is_trimmed_once_the_next_has_its_name() {
    let (memory, disk) = (Memory::new(16 << 20), LyingDisk::new(5));
    let log = open(&disk, &memory);
    let mut number = 0;
    // All entries of the first segment are durable; the next one has no name.
    while names(&disk, ".seg.tmp").is_empty() {
        log.sync().unwrap();
        submit(&log, 0, &payload(number, 5000)).unwrap();
        number += 1;
    }
    let first = log.trim(Glsn(number), &|_| false).unwrap();
    assert!(first > Glsn(1));
    assert!(!names(&disk, ".seg").is_empty(), "a crash leaves a log");
    disk.cut_power();
    drop(log);
    disk.restore_power();
    assert_eq!(open(&disk, &memory).bounds().first, first);
}

#[test]
fn a_time_maps_to_a_readable_entry_although_the_previous_segment_is_not_durable() {
    let (memory, disk) = (Memory::new(16 << 20), LyingDisk::new(6));
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let log = FileLog::open(options(&shared, &memory)).unwrap().0;
    append(&log, 0, &payload(0, 5000));
    fill(&disk, &log, 1);
    assert_eq!(log.bounds().durable, Glsn(1));
    assert_eq!(log.glsn_at(u64::MAX).unwrap(), Glsn(1));
}

#[test]
fn nothing_is_sealed_in_a_folder_whose_lock_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let memory = Memory::new(16 << 20);
    let shared: Arc<dyn Disk> = Arc::new(OsDisk::new());
    let dir = folder.path().join("log");
    let durability = Durability::Buffered;
    let log =
        FileLog::open(FileLogOptions { dir: dir.clone(), durability, ..options(&shared, &memory) })
            .unwrap()
            .0;
    let any = |end: &str| shared.names(&dir).unwrap().iter().any(|name| name.ends_with(end));
    while !any(".seg.tmp") {
        submit(&log, 0, &payload(1, 5000)).unwrap();
    }
    shared.remove(&dir.join("LOCK")).unwrap();
    shared.open(&dir.join("LOCK"), Open::CreateNew, Caching::Buffered).unwrap();
    assert!(!log.seal_behind() && !any(".idx"));
    assert!(matches!(log.sync(), Err(LogError::Poisoned { .. })));
}

#[test]
fn a_scan_of_a_stream_continues_while_its_segment_is_sealed() {
    for (stream, read_before) in [(0, 40), (2, 0), (2, 33), (3, 70)] {
        let (memory, disk) = (Memory::new(16 << 20), LyingDisk::new(6));
        let log = open(&disk, &memory);
        let mut streams = Vec::new();
        while names(&disk, ".seg.tmp").is_empty() {
            let number = streams.len();
            streams.push([2, 0, 3, 2, 1][number % 5]);
            submit(&log, streams[number], &payload(number as u64, 1000)).unwrap();
        }
        let mut scan = log.scan(Glsn::FIRST..Glsn::MAX, Some(StreamId(stream))).unwrap();
        let mut read = Vec::new();
        while let Some(entry) = scan.next_entry() {
            read.push(entry.unwrap().meta.glsn);
            if read.len() == read_before + 1 {
                assert!(log.seal_behind());
            }
        }
        let of_stream =
            streams.iter().zip(1..).filter(|(of, _)| **of == stream).map(|(_, glsn)| Glsn(glsn));
        assert_eq!(read, of_stream.collect::<Vec<_>>());
    }
}

#[test]
fn a_segment_is_sealed_behind_the_appends() {
    let (memory, disk) = (Memory::new(16 << 20), LyingDisk::new(6));
    let log = open(&disk, &memory);
    let count = fill(&disk, &log, 0);
    assert_eq!(names(&disk, ".idx"), [""; 0]);
    // Its entries are found by the table in memory, and then by the file.
    assert_eq!(&*log.read(Glsn(7)).unwrap(), &payload(6, 5000));
    assert!(log.seal_behind() && !log.seal_behind());
    assert_eq!(names(&disk, ".idx").len(), 1);
    assert_eq!(&*log.read(Glsn(7)).unwrap(), &payload(6, 5000));
    // Without a sealer thread, it is sealed before the next segment is due.
    for number in count..count + 200 {
        append(&log, 0, &payload(number, 5000));
    }
    let segments = names(&disk, ".seg").len();
    assert!(segments > 3 && names(&disk, ".idx").len() + 2 >= segments);
    log.close().unwrap();
    assert_eq!(names(&disk, ".idx").len() + 1, names(&disk, ".seg").len());
}
