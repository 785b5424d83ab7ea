//! Opening a sound log: who may open it, what it costs, and what happens to the active segment.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::vfs::Disk;
use plimsoll_log::error::LogError;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::file_log::options::{FileLogOptions, Mode};
use plimsoll_log::glsn::Glsn;

use crate::common::{
    Memory, append, copy_of, mem_disk, names, open, options, payload, scan_all, submit_all,
    write_file,
};

#[test]
fn a_folder_without_a_log_is_reported() {
    let memory = Memory::new(16 << 20);
    let disk = mem_disk();
    for mode in [Mode::Write, Mode::ReadOnly] {
        let opened = FileLog::open(FileLogOptions { mode, ..options(&disk, &memory) });
        assert!(matches!(opened, Err(LogError::Format { message }) if message.contains("no log")));
    }
    write_file(&*disk, "", b"a file where the folder should be");
    let opened = FileLog::open(options(&disk, &memory));
    assert!(matches!(opened, Err(LogError::Format { message }) if message.contains("is a file")));
}

#[test]
fn a_log_is_open_for_writing_once_and_for_reading_besides() {
    let memory = Memory::new(16 << 20);
    let disk = mem_disk();
    let log = open(&disk, &memory);
    append(&log, 0, b"one");
    assert!(matches!(
        FileLog::open(options(&disk, &memory)),
        Err(LogError::Locked { pid: Some(_), .. })
    ));
    let (reader, _) =
        FileLog::open(FileLogOptions { mode: Mode::ReadOnly, ..options(&disk, &memory) }).unwrap();
    append(&log, 0, b"two");
    assert_eq!(scan_all(&reader, 1, 9, None), [(1, b"one".to_vec())]);
    drop(log);
    open(&disk, &memory);
}

#[test]
fn a_reader_beside_a_busy_writer_always_opens_on_a_prefix() {
    let memory = Memory::new(32 << 20);
    let disk = mem_disk();
    let log = open(&disk, &memory);
    let payloads: Vec<Vec<u8>> = (0..1500).map(|number| payload(number, 900)).collect();
    append(&log, 0, &payloads[0]);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for payload in &payloads[1..] {
                append(&log, 0, payload);
            }
        });
        let mut last = 0;
        while !writer.is_finished() {
            let reader = FileLogOptions { mode: Mode::ReadOnly, ..options(&disk, &memory) };
            let (reader, _) = FileLog::open(reader).unwrap();
            let found = scan_all(&reader, 1, u64::MAX, None);
            assert!(found.iter().zip(&payloads).all(|((_, got), expected)| got == expected));
            assert!(found.len() >= last);
            last = found.len();
        }
    });
}

#[test]
fn a_segment_with_too_many_entries_to_hold_is_sealed_at_open() {
    let memory = Memory::new(32 << 20);
    let disk = mem_disk();
    let mut generous = FileLogOptions {
        segment_bytes: 16 << 20,
        entry_offsets_bytes: Some(4 << 20),
        ..options(&disk, &memory)
    };
    let log = FileLog::open(generous.clone()).unwrap().0;
    let crowd = vec![b"tiny".to_vec(); 60_000];
    for _ in 0..3 {
        submit_all(&log, 2, &crowd).unwrap();
    }
    append(&log, 1, b"last");
    // As after a kill, because closing would seal the segment.
    let disk = copy_of(&*disk);
    assert_eq!(names(&*disk, ".seg").len(), 1);
    generous.disk = Arc::clone(&disk);
    generous.entry_offsets_bytes = Some(1 << 16);
    let (log, report) = FileLog::open(generous).unwrap();
    assert_eq!((names(&*disk, ".seg").len(), report.replayed), (2, 180_001));
    assert_eq!(&*log.read(Glsn(180_001)).unwrap(), b"last");
    assert_eq!(scan_all(&log, 1, u64::MAX, Some(1)), [(180_001, b"last".to_vec())]);
    assert_eq!(append(&log, 0, b"on"), Glsn(180_002));
}

#[test]
fn an_empty_active_segment_grows_to_the_size_of_the_current_options() {
    let memory = Memory::new(16 << 20);
    for appended_before in [0, 3] {
        let disk = mem_disk();
        let log = open(&disk, &memory);
        for number in 0..appended_before {
            append(&log, 0, &payload(number, 100));
        }
        log.close().unwrap();
        drop(log);
        let large = payload(99, 600_000);
        let larger = || FileLogOptions { segment_bytes: 1 << 20, ..options(&disk, &memory) };
        let (log, report) = FileLog::open(larger()).unwrap();
        assert_eq!(report.cut, None);
        let glsn = append(&log, 0, &large);
        log.close().unwrap();
        drop(log);
        let (log, _) = FileLog::open(larger()).unwrap();
        let found = scan_all(&log, 1, u64::MAX, None);
        assert_eq!((found.len() as u64, &found.last().unwrap().1), (glsn.0, &large));
        assert!(log.verify(&|_| false, &[], &mut |_| {}).unwrap().is_empty());
    }
}

/// The number of reads and syncs that opening a log takes.
fn cost_of_opening(disk: &LyingDisk, memory: &Memory) -> u64 {
    let before = disk.injected().slow_calls;
    disk.slow_down(Some((Arc::new(ManualClock::new(0)), Duration::from_nanos(1))));
    let (log, report) = FileLog::open(long_segments(disk, memory)).unwrap();
    disk.slow_down(None);
    assert_eq!((log.bounds().next, report.cut), (Glsn(101), None));
    disk.injected().slow_calls - before
}

fn long_segments(disk: &LyingDisk, memory: &Memory) -> FileLogOptions {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    FileLogOptions { segment_bytes: 16 << 20, ..options(&disk, memory) }
}

#[test]
fn bytes_known_to_be_synced_are_not_written_again_after_a_kill() {
    let (memory, disk) = (Memory::new(16 << 20), LyingDisk::new(1));
    let (log, _) = FileLog::open(long_segments(&disk, &memory)).unwrap();
    (0..100).for_each(|number| _ = append(&log, 0, &payload(number, 20_000)));
    let killed = disk.snapshot();
    drop(log);
    let (after_a_kill, after_a_close) =
        (cost_of_opening(&killed, &memory), cost_of_opening(&disk, &memory));
    assert!(
        after_a_kill <= after_a_close + 6,
        "2 MB: {after_a_kill}, and {after_a_close} after a close"
    );
    // Bytes that no later record reports as synced are written again.
    killed.cut_power();
    killed.restore_power();
    assert_eq!(
        &*FileLog::open(long_segments(&killed, &memory)).unwrap().0.read(Glsn(100)).unwrap(),
        payload(99, 20_000)
    );
}

#[test]
fn a_long_segment_is_sealed_by_a_close_and_a_short_one_stays_active() {
    let (memory, disk) = (Memory::new(16 << 20), LyingDisk::new(1));
    let mut replayed = Vec::new();
    for first in [0, 100, 300] {
        let (log, report) = FileLog::open(long_segments(&disk, &memory)).unwrap();
        replayed.push(report.replayed);
        let all = scan_all(&log, 1, u64::MAX, None);
        assert_eq!(all.len() as u64, first);
        let until = if first == 0 { 100 } else { 300 };
        (first..until).for_each(|number| _ = append(&log, 0, &payload(number, 20_000)));
        log.close().unwrap();
    }
    assert_eq!(replayed, [0, 100, 0], "2 MB are read again, 6 MB are not");
    let (log, _) = FileLog::open(long_segments(&disk, &memory)).unwrap();
    let all = scan_all(&log, 1, u64::MAX, None);
    assert!(
        all.iter().zip(0..).all(|((_, got), number)| *got == payload(number, 20_000))
            && all.len() == 300
    );
    append(&log, 0, b"goes on");
}

#[test]
fn the_next_opening_does_not_reuse_the_id_of_a_discarded_blob_file() {
    let memory = Memory::new(16 << 20);
    let disk = mem_disk();
    let clock = Arc::new(ManualClock::new(1_000_000));
    let ids: Vec<_> = (0..3)
        .map(|_| {
            clock.advance(Duration::from_millis(1));
            let with = FileLogOptions { clock: Arc::clone(&clock) as _, ..options(&disk, &memory) };
            let log = FileLog::open(with).unwrap().0;
            let mut blob = log.create_blob().unwrap();
            blob.write(b"bytes").unwrap();
            let blob = blob.finish().unwrap();
            log.discard_blob(blob.id).unwrap();
            log.close().unwrap();
            blob.id
        })
        .collect();
    assert!(ids[0] != ids[1] && ids[0] != ids[2] && ids[1] != ids[2], "{ids:?}");
}
