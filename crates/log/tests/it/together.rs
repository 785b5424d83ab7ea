//! Concurrent writers, scanners, followers and a trimmer on one log.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::vfs::{Caching, Disk};
use plimsoll_log::durability::Durability;
use plimsoll_log::error::LogError;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::file_log::options::FileLogOptions;
use plimsoll_log::glsn::{Glsn, StreamId};

use crate::common::{Memory, append, names, open, options, payload, submit, submit_all};

/// A payload that contains its stream and its number within the stream.
fn numbered(stream: u32, number: u64, len: usize) -> Vec<u8> {
    let mut bytes = payload(number ^ u64::from(stream) << 40, len.max(16));
    bytes[..4].copy_from_slice(&stream.to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn number_of(payload: &[u8]) -> (u32, u64) {
    (
        u32::from_le_bytes(payload[..4].try_into().unwrap()),
        u64::from_le_bytes(payload[8..16].try_into().unwrap()),
    )
}

const WRITERS: u32 = 4;
const EACH: u64 = 400;

/// Follows one stream, or all, to the end, and checks that nothing is missing, doubled or out of
/// order.
fn follow(log: &FileLog, stream: Option<u32>, writing: &AtomicBool) {
    let mut next = Glsn::FIRST;
    let mut counts = vec![None; WRITERS as usize];
    let mut overtaken = false;
    loop {
        let over = !writing.load(Ordering::SeqCst);
        match log.scan(next..Glsn::MAX, stream.map(StreamId)) {
            Ok(mut scan) => {
                while let Some(entry) = scan.next_entry() {
                    let entry = match entry {
                        Ok(entry) => entry,
                        Err(LogError::Trimmed { first, .. }) => {
                            next = first;
                            counts.fill(None);
                            overtaken = true;
                            break;
                        }
                        Err(error) => panic!("{error}"),
                    };
                    assert!(entry.meta.glsn >= next);
                    next = entry.meta.glsn.next();
                    let (of, number) = number_of(entry.payload);
                    assert_eq!(entry.payload, numbered(of, number, entry.payload.len()));
                    assert_eq!(StreamId(of), entry.meta.stream);
                    let last = &mut counts[of as usize];
                    assert!(
                        last.is_none_or(|last| last + 1 == number),
                        "stream {of}: {last:?} then {number}"
                    );
                    *last = Some(number);
                }
            }
            Err(LogError::Trimmed { first, .. }) => {
                next = first;
                counts.fill(None);
                overtaken = true;
                continue;
            }
            Err(error) => panic!("{error}"),
        }
        if over {
            break;
        }
        log.wait_beyond(Glsn(next.0 - 1), Duration::from_millis(50), &|| false).unwrap();
    }
    let wanted: Vec<u32> = stream.map_or((0..WRITERS).collect(), |stream| vec![stream]);
    for of in wanted {
        let last = counts[of as usize];
        // The whole stream of a writer that finished early may be trimmed before a slow follower
        // reads it.
        assert!(
            last == Some(EACH - 1) || (overtaken && last.is_none()),
            "the last of stream {of}: {last:?}"
        );
    }
}

fn all_at_once(log: &FileLog, trims: bool) {
    let writing = AtomicBool::new(true);
    let acknowledged = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|stream| {
                let acknowledged = &acknowledged;
                scope.spawn(move || {
                    for number in 0..EACH {
                        let len = if number % 50 == 7 {
                            20_000
                        } else {
                            200 + (number as usize * 31) % 900
                        };
                        let ticket = submit(log, stream, &numbered(stream, number, len)).unwrap();
                        if number % 3 == 0 {
                            log.wait_durable(ticket.last).unwrap();
                            assert!(log.bounds().durable >= ticket.last);
                            acknowledged.fetch_max(ticket.last.0, Ordering::SeqCst);
                        }
                    }
                    log.sync().unwrap();
                })
            })
            .collect();
        scope.spawn(|| follow(log, None, &writing));
        scope.spawn(|| follow(log, Some(2), &writing));
        scope.spawn(|| {
            let mut random = plimsoll_disk::random::Random::new(5);
            while writing.load(Ordering::SeqCst) {
                let bounds = log.bounds();
                if bounds.durable >= bounds.first {
                    let glsn =
                        Glsn(bounds.first.0 + random.below(bounds.durable.0 - bounds.first.0 + 1));
                    match log.read(glsn) {
                        Ok(entry) => {
                            let (of, number) = number_of(&entry);
                            assert_eq!(&*entry, numbered(of, number, entry.len()));
                        }
                        Err(LogError::Trimmed { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        });
        if trims {
            scope.spawn(|| {
                while writing.load(Ordering::SeqCst) {
                    // The end that the followers need stays.
                    log.trim(Glsn(log.bounds().durable.0 / 2), &|_| false).unwrap();
                    log.wait_beyond(log.readable(), Duration::from_millis(5), &|| false).unwrap();
                }
            });
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        writing.store(false, Ordering::SeqCst);
    });
    assert_eq!(log.bounds().next, Glsn(u64::from(WRITERS) * EACH + 1));
    assert!(log.bounds().durable.0 >= acknowledged.load(Ordering::SeqCst));
}

#[test]
fn writers_followers_and_readers_agree_in_memory() {
    let memory = Memory::new(16 << 20);
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
    all_at_once(&open(&disk, &memory), false);
}

#[test]
fn writers_followers_readers_and_a_trimmer_agree_in_memory() {
    for durability in [Durability::Sync, Durability::Buffered] {
        let memory = Memory::new(16 << 20);
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
        let options = FileLogOptions { durability, background: true, ..options(&disk, &memory) };
        let (log, _) = FileLog::open(options).unwrap();
        all_at_once(&log, true);
        let first = log.trim(log.bounds().durable, &|_| false).unwrap();
        assert!(first > Glsn(1000) && names(&*disk, ".seg").len() <= 2, "{first}");
    }
}

#[test]
fn writers_followers_readers_and_a_trimmer_agree_on_real_files() {
    let folder = tempfile::tempdir().unwrap();
    let memory = Memory::new(16 << 20);
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new());
    let options = FileLogOptions { dir: folder.path().join("log"), ..options(&disk, &memory) };
    let (log, _) = FileLog::open(options.clone()).unwrap();
    all_at_once(&log, true);
    let position = log.position();
    drop(log);
    let (log, report) = FileLog::open(FileLogOptions { known: Some(position), ..options }).unwrap();
    assert_eq!(report.cut, None);
    assert_eq!(log.verify(&|_| false, &[], &mut |_| {}).unwrap(), []);
}

#[test]
fn one_sync_serves_all_who_wait() {
    let memory = Memory::new(16 << 20);
    let lying = plimsoll_disk::lying::LyingDisk::new(1);
    let disk: Arc<dyn Disk> = Arc::new(lying.clone());
    let log = open(&disk, &memory);
    for _ in 0..50 {
        submit(&log, 0, b"x").unwrap();
    }
    let before = lying.sync_count();
    log.wait_durable(Glsn(50)).unwrap();
    (1..=50).for_each(|glsn| log.wait_durable(Glsn(glsn)).unwrap());
    assert_eq!(lying.sync_count() - before, 1);
}

#[test]
fn a_scan_of_a_sparse_stream_does_not_read_blocks_of_other_streams() {
    let memory = Memory::new(64 << 20);
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
    let options = FileLogOptions { segment_bytes: 2 << 20, ..options(&disk, &memory) };
    let (log, _) = FileLog::open(options).unwrap();
    for number in 0..3000u64 {
        submit(&log, u32::from(number % 500 == 250), &payload(number, 3000)).unwrap();
    }
    log.sync().unwrap();
    let segments = names(&*disk, ".seg").len() as u64;
    assert!(segments >= 4);
    memory.pool.clear();
    let before = memory.pool.stats().loads;
    assert_eq!(crate::common::scan_all(&log, 1, u64::MAX, Some(1)).len(), 6);
    let loads = memory.pool.stats().loads - before;
    // A block for each entry, and some table pages for each segment. All blocks together would be
    // more than 600.
    assert!(loads <= 6 + segments * 4, "{loads} pages were read");
}

#[test]
fn blocks_are_read_ahead_of_a_direct_scan_that_reads_all_of_them() {
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
    for caching in [Caching::Direct, Caching::Buffered] {
        let memory = Memory::new(64 << 20);
        let options = FileLogOptions { segment_bytes: 2 << 20, caching, ..options(&disk, &memory) };
        let (log, _) = FileLog::open(options).unwrap();
        let there = log.bounds().next.0;
        for number in there..6000 {
            submit(&log, 0, &payload(number, 600)).unwrap();
        }
        log.sync().unwrap();
        for (first, last, stream, most) in
            [(1, 5999, None, u64::MAX), (2000, 2001, None, 0), (1, 5999, Some(0), 0)]
        {
            memory.pool.clear();
            let before = memory.pool.stats();
            let seen = crate::common::scan_all(&log, first, last + 1, stream);
            assert!(
                seen.into_iter().eq((first..=last).map(|number| (number, payload(number, 600))))
            );
            let after = memory.pool.stats();
            let (loads, ahead) = (after.loads - before.loads, after.read_ahead - before.read_ahead);
            let most = if caching == Caching::Direct { most } else { 0 };
            assert!(ahead <= most, "{first} to {last}: {ahead} of {loads} pages were read ahead");
            assert!(
                most == 0 || ahead > loads / 2,
                "{first} to {last}: {ahead} of {loads} pages were read ahead"
            );
        }
    }
}

#[test]
fn a_follower_of_the_tail_never_touches_the_disk() {
    let memory = Memory::new(16 << 20);
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
    let options = FileLogOptions { segment_bytes: 4 << 20, ..options(&disk, &memory) };
    let (log, _) = FileLog::open(options).unwrap();
    append(&log, 0, b"first");
    let mut scan = log.scan(Glsn(1)..Glsn::MAX, None).unwrap();
    let before = memory.pool.stats().loads;
    for number in 0..500 {
        append(&log, 0, &payload(number, 2000));
        assert!(scan.next_entry().unwrap().is_ok());
    }
    assert_eq!(memory.pool.stats().loads - before, 0);
}

#[test]
fn a_large_record_and_small_ones_from_many_threads_stay_whole() {
    let memory = Memory::new(16 << 20);
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
    let options = FileLogOptions { segment_bytes: 8 << 20, ..options(&disk, &memory) };
    let (log, _) = FileLog::open(options).unwrap();
    std::thread::scope(|scope| {
        for stream in 0..4u32 {
            let log = &log;
            scope.spawn(move || {
                for number in 0..12 {
                    let len = if stream == 0 { 900_000 } else { 700 };
                    let payloads = vec![
                        numbered(stream, number * 2, len / 2),
                        numbered(stream, number * 2 + 1, len / 2),
                    ];
                    let ticket = submit_all(log, stream, &payloads).unwrap();
                    assert_eq!(ticket.last.0, ticket.first.0 + 1);
                    log.wait_durable(ticket.last).unwrap();
                }
            });
        }
    });
    for stream in 0..4 {
        let found = crate::common::scan_all(&log, 1, u64::MAX, Some(stream));
        let numbers: Vec<u64> = found.iter().map(|(_, payload)| number_of(payload).1).collect();
        assert_eq!(numbers, (0..24).collect::<Vec<_>>());
    }
}
