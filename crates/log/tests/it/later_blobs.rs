//! Blob files of buffered commits are synced after the commit, and before any byte of its record is
//! written.

use std::path::Path;
use std::sync::Arc;

use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::vfs::Disk;
use plimsoll_log::blob::BlobRef;
use plimsoll_log::durability::Durability;
use plimsoll_log::error::LogError;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::file_log::options::FileLogOptions;
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::Kind;
use plimsoll_memory::chunk::CHUNK_BYTES;
use plimsoll_memory::pool::Touch;

use crate::common::{DIR, Memory, names, options, payload, submit, submit_with};

fn open(disk: &LyingDisk, memory: &Memory) -> FileLog {
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let options = FileLogOptions { durability: Durability::Buffered, ..options(&shared, memory) };
    FileLog::open(FileLogOptions { segment_bytes: 8 << 20, ..options }).unwrap().0
}

/// A finished blob file that only a record will name.
fn blob_of(log: &FileLog, number: u64, bytes: usize) -> BlobRef {
    let mut writer = log.create_blob_for_record().unwrap();
    writer.write(&payload(number, bytes)).unwrap();
    writer.finish().unwrap()
}

/// Reads every page of every blob file that a record names; returns how many files there are.
fn read_all_named(log: &FileLog) -> usize {
    let mut named = Vec::new();
    log.for_each_named_blob(&mut |id| named.push(id)).unwrap();
    for id in &named {
        let blob = log.open_blob(*id).unwrap();
        for page in 0..blob.pages {
            blob.file.get(page, Touch::Scan).unwrap();
        }
    }
    named.len()
}

#[test]
fn a_buffered_commit_does_not_wait_for_the_sync_of_its_blob_file() {
    let (memory, disk) = (Memory::new(16 << 20), LyingDisk::new(1));
    let log = open(&disk, &memory);
    let before = disk.sync_count();
    let blob = blob_of(&log, 1, 600_000);
    submit_with(&log, 0, b"names it", &[blob]).unwrap();
    assert_eq!(disk.sync_count(), before);
    assert_eq!(read_all_named(&log), 1);
    log.sync().unwrap();
    disk.cut_power();
    drop(log);
    disk.restore_power();
    memory.pool.clear();
    assert_eq!(read_all_named(&open(&disk, &memory)), 1);
}

#[test]
fn a_blob_file_that_not_only_records_may_name_is_durable_once_finished() {
    let (memory, disk) = (Memory::new(16 << 20), LyingDisk::new(2));
    let log = open(&disk, &memory);
    let mut writer = log.create_blob().unwrap();
    writer.write(&payload(1, 600_000)).unwrap();
    let blob = writer.finish().unwrap();
    disk.cut_power();
    drop(log);
    disk.restore_power();
    memory.pool.clear();
    assert_eq!(open(&disk, &memory).open_blob(blob.id).unwrap().pages, blob.pages);
}

#[test]
fn records_that_survive_a_crash_name_existing_blob_files() {
    let mut kept = 0;
    for seed in 0..40 {
        let (memory, disk) = (Memory::new(16 << 20), LyingDisk::new(seed));
        let log = open(&disk, &memory);
        for number in 0..3 {
            let blob = blob_of(&log, number, 300_000);
            submit_with(&log, 0, b"names it", &[blob]).unwrap();
            // The buffer is full before all of this is in it, so the record that names the blob
            // file is written to the page cache, where it may survive a crash.
            for _ in 0..4 {
                submit(&log, 0, &payload(number, 300_000)).unwrap();
            }
        }
        disk.cut_power();
        drop(log);
        disk.restore_power();
        memory.pool.clear();
        kept += read_all_named(&open(&disk, &memory));
    }
    assert!(kept > 0, "some crash keeps a record that names a blob file");
}

#[test]
fn a_record_that_is_longer_than_the_buffer_is_written_after_its_own_blob_file() {
    let mut kept = 0;
    for seed in 0..40 {
        let (memory, disk) = (Memory::new(16 << 20), LyingDisk::new(seed));
        let log = open(&disk, &memory);
        // Reserves room for names.
        submit_with(&log, 0, b"names it", &[blob_of(&log, 1, 1000)]).unwrap();
        log.sync().unwrap();
        let blob = blob_of(&log, seed, 300_000);
        // From now on the buffer has four chunks.
        let others: Vec<_> = std::iter::from_fn(|| memory.budget.take(Kind::Sort).ok()).collect();
        submit_with(&log, 0, &payload(seed, 900_000), &[blob]).unwrap();
        submit(&log, 0, &payload(seed, 900_000)).unwrap();
        drop(others);
        disk.cut_power();
        drop(log);
        disk.restore_power();
        memory.pool.clear();
        kept += read_all_named(&open(&disk, &memory)) - 1;
    }
    assert!(kept > 0, "some crash keeps the record");
}

#[test]
fn a_segment_ends_after_the_blob_files_that_it_names_are_durable() {
    for seed in 0..20 {
        let (memory, disk) = (Memory::new(16 << 20), LyingDisk::new(seed));
        let log = open(&disk, &memory);
        let blob = blob_of(&log, seed, 300_000);
        submit_with(&log, 0, b"names it", &[blob]).unwrap();
        let before = disk.sync_count();
        let last = submit(&log, 0, b"the last one").unwrap().last;
        log.seal_from(0).unwrap();
        assert!(disk.sync_count() > before);
        assert!(log.bounds().durable >= last);
        disk.cut_power();
        drop(log);
        disk.restore_power();
        memory.pool.clear();
        assert_eq!(read_all_named(&open(&disk, &memory)), 1, "seed {seed}");
    }
}

#[test]
fn after_a_failed_sync_of_a_blob_file_no_record_that_names_it_is_written() {
    let (memory, disk) = (Memory::new(16 << 20), LyingDisk::new(5));
    let log = open(&disk, &memory);
    submit(&log, 0, b"before").unwrap();
    log.sync().unwrap();
    let blob = blob_of(&log, 1, 300_000);
    submit_with(&log, 0, b"names it", &[blob]).unwrap();
    disk.fail_next_sync();
    assert!(log.sync().is_err());
    let refused = submit(&log, 0, b"after");
    assert!(matches!(refused, Err(LogError::Poisoned { .. })), "{refused:?}");
    assert!(log.close().is_err());
    drop(log);
    // As if only the process had ended: everything that it wrote is present.
    disk.restart_process();
    memory.pool.clear();
    let log = open(&disk, &memory);
    assert_eq!(log.bounds().next, Glsn(2));
}

#[test]
fn unsynced_bytes_and_files_are_bounded() {
    // With a budget of 16 MiB, at most 4 MiB are unsynced.
    for (bytes, most) in [(700_000, 7), (10_000, 66)] {
        let (memory, disk) = (Memory::new(16 << 20), LyingDisk::new(6));
        let log = open(&disk, &memory);
        let before = disk.sync_count();
        let count = (0..).find(|number| {
            blob_of(&log, *number, bytes);
            disk.sync_count() > before
        });
        assert!(count.is_some_and(|count| (most / 2..most).contains(&count)), "{bytes}: {count:?}");
    }
    // The unsynced bytes of one file are bounded, too.
    let (memory, disk) = (Memory::new(256 << 20), LyingDisk::new(7));
    let log = open(&disk, &memory);
    let before = disk.sync_count();
    let mut writer = log.create_blob_for_record().unwrap();
    writer.write(&payload(1, 7 << 20)).unwrap();
    assert_eq!(disk.sync_count(), before);
    writer.write(&payload(1, 3 << 20)).unwrap();
    assert!(disk.sync_count() > before);
    let (blob, before) = (writer.finish().unwrap(), disk.sync_count());
    submit_with(&log, 0, b"names it", &[blob]).unwrap();
    log.sync().unwrap();
    assert_eq!(disk.sync_count() - before, 1, "the segment alone");
}

#[test]
fn a_blob_file_of_an_aborted_commit_is_removed_and_never_synced() {
    let (memory, disk) = (Memory::new(16 << 20), LyingDisk::new(8));
    let log = open(&disk, &memory);
    let blob = blob_of(&log, 1, 300_000);
    let mut unfinished = log.create_blob_for_record().unwrap();
    unfinished.write(&payload(2, 300_000)).unwrap();
    drop(unfinished);
    log.discard_blob(blob.id).unwrap();
    submit(&log, 0, b"another").unwrap();
    let before = disk.sync_count();
    log.sync().unwrap();
    assert_eq!(disk.sync_count() - before, 1, "the segment alone");
    assert!(names(&disk, ".blob").is_empty(), "{:?}", disk.list(Path::new(DIR)));
}

#[test]
fn a_half_full_buffer_is_written_little_by_little_unless_a_blob_file_is_not_synced() {
    let most_chunks = |names_a_blob: bool| {
        let (memory, disk) = (Memory::new(16 << 20), LyingDisk::new(1));
        let log = open(&disk, &memory);
        if names_a_blob {
            let blob = blob_of(&log, 1, 600_000);
            submit_with(&log, 0, b"names it", &[blob]).unwrap();
        }
        let held = (0..3000).map(|number| {
            submit(&log, 0, &payload(number, 1000)).unwrap();
            memory.budget.usage().of(Kind::LogBuffer) / CHUNK_BYTES as u64
        });
        held.max().unwrap()
    };
    assert!(most_chunks(false) <= 12);
    assert!(most_chunks(true) >= 16);
}
