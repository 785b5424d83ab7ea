//! Appended entries are read: one by one, in parts, and by scans, before and after they are
//! durable, across blocks and segments.

use std::path::Path;

use plimsoll_disk::random::Random;
use plimsoll_disk::vfs::{Caching, Open};
use plimsoll_log::draft::{CommitTimes, Draft};
use plimsoll_log::durability::Durability;
use plimsoll_log::error::LogError;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::format::BLOCK_BYTES;
use plimsoll_log::glsn::{Glsn, StreamId};
use plimsoll_memory::budget::Kind;
use plimsoll_memory::page::{PAGE_BYTES, PAGE_PAYLOAD_BYTES};
use plimsoll_memory::pool::LoadError;

use crate::common::{
    DIR, Memory, append, mem_disk, open, options, payload, read_file, scan_all, submit, submit_all,
};

#[test]
fn an_entry_is_read_as_it_was_appended_before_and_after_it_is_durable() {
    let memory = Memory::new(16 << 20);
    let log = open(&mem_disk(), &memory);
    let ticket = submit(&log, 3, b"hello").unwrap();
    assert_eq!((ticket.first, ticket.last), (Glsn(1), Glsn(1)));
    assert_eq!(log.readable(), Glsn::NONE);
    assert_eq!(&*log.read(Glsn(1)).unwrap(), b"hello");
    log.wait_durable(Glsn(1)).unwrap();
    let entry = log.read(Glsn(1)).unwrap();
    assert_eq!(&*entry, b"hello");
    assert_eq!(
        (entry.meta.stream, entry.meta.glsn, entry.meta.record_count),
        (StreamId(3), Glsn(1), 1)
    );
    assert_eq!(entry.meta.timestamp_micros, ticket.timestamp_micros);
    assert_eq!(log.meta(Glsn(1)).unwrap(), entry.meta);
    assert_eq!(log.bounds().durable, Glsn(1));
}

/// Records of all sizes: empty, small, across blocks, across chunks, many entries.
fn fill(log: &FileLog, random: &mut Random, records: u64) -> Vec<(u32, Vec<u8>)> {
    let mut entries = Vec::new();
    for _ in 0..records {
        let stream = random.below(4) as u32;
        let count = if random.chance(0.2) { 1 + random.below(20) } else { 1 };
        let payloads: Vec<Vec<u8>> = (0..count)
            .map(|_| {
                let len = match random.below(20) {
                    0 => 0,
                    1 => random.below(90_000) as usize / count as usize,
                    2..5 => random.below(9000) as usize,
                    _ => random.below(300) as usize,
                };
                payload(random.next_u64(), len)
            })
            .collect();
        submit_all(log, stream, &payloads).unwrap();
        entries.extend(payloads.into_iter().map(|payload| (stream, payload)));
        if random.chance(0.1) {
            log.wait_durable(Glsn(entries.len() as u64)).unwrap();
        }
    }
    entries
}

fn check_all(log: &FileLog, entries: &[(u32, Vec<u8>)]) {
    for (at, (stream, expected)) in entries.iter().enumerate() {
        let entry = log.read(Glsn(at as u64 + 1)).unwrap();
        assert_eq!(&&*entry, expected, "entry {}", at + 1);
        assert_eq!(entry.meta.stream, StreamId(*stream));
        assert_eq!(entry.meta.glsn.0, at as u64 + 1);
    }
    let all = scan_all(log, 1, u64::MAX, None);
    assert_eq!(all.len(), entries.len());
    assert!(all.iter().zip(entries).all(|((_, got), (_, expected))| got == expected));
    for stream in 0..5 {
        let got = scan_all(log, 1, u64::MAX, Some(stream));
        let expected: Vec<(u64, Vec<u8>)> = (1..)
            .zip(entries)
            .filter(|(_, (of, _))| *of == stream)
            .map(|(glsn, (_, payload))| (glsn, payload.clone()))
            .collect();
        assert_eq!(got, expected, "stream {stream}");
    }
}

#[test]
fn records_of_all_sizes_come_back_across_blocks_and_segments_and_after_a_reopening() {
    for seed in 0..6 {
        let mut random = Random::new(seed);
        let disk = mem_disk();
        let memory = Memory::new(16 << 20);
        let log = open(&disk, &memory);
        let entries = fill(&log, &mut random, 400);
        log.sync().unwrap();
        check_all(&log, &entries);
        memory.pool.clear();
        check_all(&log, &entries);
        drop(log);
        let (log, report) = FileLog::open(options(&disk, &memory)).unwrap();
        assert_eq!(report.cut, None);
        assert_eq!(report.warnings, Vec::<String>::new());
        check_all(&log, &entries);
    }
}

#[test]
fn everything_fits_into_a_small_budget_of_which_nothing_is_free() {
    let disk = mem_disk();
    let memory = Memory::new(16 << 20);
    let log = open(&disk, &memory);
    let others: Vec<_> =
        std::iter::from_fn(|| memory.budget.take(plimsoll_memory::budget::Kind::Sort).ok())
            .collect();
    let mut entries = Vec::new();
    for number in 0..40u64 {
        let bytes = payload(number, 1 + (number as usize * 4711) % 150_000);
        submit(&log, 0, &bytes).unwrap();
        entries.push((0, bytes));
    }
    log.sync().unwrap();
    drop(others);
    check_all(&log, &entries);
}

#[test]
fn a_part_of_an_entry_is_read_without_the_rest() {
    let memory = Memory::new(16 << 20);
    let log = open(&mem_disk(), &memory);
    let bytes = payload(1, 100_000);
    append(&log, 0, b"before");
    append(&log, 0, &bytes);
    append(&log, 0, b"behind");
    for (offset, len) in [(0, 10), (16_000, 1000), (99_990, 10), (0, 100_000), (50_000, 0)] {
        let mut into = vec![0; len];
        log.read_range(Glsn(2), offset as u64, &mut into).unwrap();
        assert_eq!(into, bytes[offset..offset + len]);
    }
    assert!(matches!(log.read_range(Glsn(2), 99_991, &mut [0; 10]), Err(LogError::Corrupt { .. })));
}

#[test]
fn a_part_that_is_read_loads_only_its_blocks() {
    let memory = Memory::new(16 << 20);
    let mut options = options(&mem_disk(), &memory);
    options.segment_bytes = 1 << 22;
    let (log, _) = FileLog::open(options).unwrap();
    append(&log, 0, &payload(1, 1_000_000));
    append(&log, 0, b"behind");
    memory.pool.clear();
    let before = memory.pool.stats().loads;
    log.read_range(Glsn(1), 500_000, &mut [0; 100]).unwrap();
    assert!(memory.pool.stats().loads - before <= 3, "{:?}", memory.pool.stats());
}

#[test]
fn reading_a_missing_entry_reports_where_the_log_begins_and_ends() {
    let memory = Memory::new(16 << 20);
    let log = open(&mem_disk(), &memory);
    assert_eq!(log.read(Glsn(1)).unwrap_err(), LogError::NotYet { asked: Glsn(1), next: Glsn(1) });
    append(&log, 0, b"one");
    assert_eq!(
        log.read(Glsn(0)).unwrap_err(),
        LogError::Trimmed { asked: Glsn(0), first: Glsn(1) }
    );
    assert_eq!(log.read(Glsn(2)).unwrap_err(), LogError::NotYet { asked: Glsn(2), next: Glsn(2) });
    assert_eq!(log.wait_durable(Glsn(2)), Err(LogError::NotYet { asked: Glsn(2), next: Glsn(2) }));
    assert_eq!(scan_all(&log, 2, 100, None), []);
}

#[test]
fn an_expected_glsn_that_is_taken_is_a_conflict() {
    let memory = Memory::new(16 << 20);
    let log = open(&mem_disk(), &memory);
    append(&log, 0, b"one");
    let entries = [plimsoll_log::draft::DraftEntry { stream: StreamId(0), parts: &[b"x"] }];
    let draft = Draft::of(&entries);
    let conflict = LogError::Conflict { expected: Glsn(1), next: Glsn(2) };
    assert_eq!(log.submit(&draft, Some(Glsn(1))).unwrap_err(), conflict);
    assert_eq!(log.submit(&draft, Some(Glsn(2))).unwrap().first, Glsn(2));
}

#[test]
fn a_draft_whose_time_is_over_or_not_there_yet_is_refused_and_leaves_no_trace() {
    let memory = Memory::new(16 << 20);
    let log = open(&mem_disk(), &memory);
    let first = submit(&log, 0, b"one").unwrap().timestamp_micros;
    // The clock stands still, so the next record is a microsecond later.
    let next = log.now_micros();
    assert_eq!((next, log.last_micros()), (first + 1, first));
    let entries = [plimsoll_log::draft::DraftEntry { stream: StreamId(0), parts: &[b"x"] }];
    let submit = |from_micros, before_micros| {
        let times = CommitTimes { from_micros, before_micros };
        log.submit(&Draft { times, ..Draft::of(&entries) }, None)
    };
    let late = LogError::Late { micros: next };
    assert_eq!(submit(0, next).unwrap_err(), late);
    assert_eq!(submit(next + 1, u64::MAX).unwrap_err(), late);
    assert_eq!((log.last_micros(), log.bounds().next), (first, Glsn(2)));
    let ticket = submit(next, next + 1).unwrap();
    assert_eq!((ticket.first, ticket.timestamp_micros), (Glsn(2), next));
    assert_eq!(log.time_or_later(Glsn(1)).unwrap(), first);
}

#[test]
fn a_draft_that_breaks_a_rule_is_refused_and_leaves_no_trace() {
    let memory = Memory::new(16 << 20);
    let log = open(&mem_disk(), &memory);
    let large = vec![0; (1 << 20) + 1];
    assert!(matches!(
        submit(&log, 0, &large),
        Err(LogError::TooLarge { bytes: 1_048_577, limit_bytes: 1_048_576 })
    ));
    // Segments of 256 KiB hold less.
    assert!(matches!(submit(&log, 0, &large[1..]), Err(LogError::TooLarge { .. })));
    assert!(matches!(submit_all(&log, 0, &[]), Err(LogError::InvalidDraft { .. })));
    let crowd = vec![Vec::new(); 65_537];
    assert!(matches!(submit_all(&log, 0, &crowd), Err(LogError::InvalidDraft { .. })));
    assert_eq!(append(&log, 0, b"one"), Glsn(1));
}

#[test]
fn the_largest_record_fits_into_a_usual_segment_under_the_smallest_budget() {
    let disk = mem_disk();
    let memory = Memory::new(16 << 20);
    let mut options = options(&disk, &memory);
    options.segment_bytes = 64 << 20;
    let (log, _) = FileLog::open(options.clone()).unwrap();
    let bytes = payload(1, 1 << 20);
    append(&log, 0, b"small");
    append(&log, 0, &bytes);
    let crowd = vec![payload(2, 16); 65_536];
    submit_all(&log, 1, &crowd).unwrap();
    append(&log, 0, &bytes);
    assert_eq!(&*log.read(Glsn(2)).unwrap(), &bytes);
    assert_eq!(&*log.read(Glsn(65_539)).unwrap(), &bytes);
    drop(log);
    let (log, _) = FileLog::open(options).unwrap();
    assert_eq!(scan_all(&log, 3, 65_539, Some(1)).len(), 65_536);
    assert_eq!(&*log.read(Glsn(65_539)).unwrap(), &bytes);
}

#[test]
fn timestamps_rise_strictly_even_if_the_clock_stands_still() {
    let memory = Memory::new(16 << 20);
    let log = open(&mem_disk(), &memory);
    let times: Vec<u64> =
        (0..50).map(|_| submit(&log, 0, b"x").unwrap().timestamp_micros).collect();
    assert!(times.windows(2).all(|pair| pair[0] < pair[1]));
    log.sync().unwrap();
    for (at, time) in times.iter().enumerate() {
        assert_eq!(log.glsn_at(*time).unwrap(), Glsn(at as u64 + 1));
    }
    assert_eq!(log.glsn_at(times[0] - 1).unwrap(), Glsn::NONE);
    assert_eq!(log.glsn_at(u64::MAX).unwrap(), Glsn(50));
}

#[test]
fn a_moment_is_found_across_segments() {
    let memory = Memory::new(16 << 20);
    let log = open(&mem_disk(), &memory);
    let times: Vec<u64> =
        (0..300).map(|n| submit(&log, 0, &payload(n, 5000)).unwrap().timestamp_micros).collect();
    log.sync().unwrap();
    for at in (0..300).step_by(7) {
        assert_eq!(log.glsn_at(times[at]).unwrap(), Glsn(at as u64 + 1));
    }
}

#[test]
fn in_buffered_mode_submitted_entries_are_readable_at_once() {
    let memory = Memory::new(16 << 20);
    let mut options = options(&mem_disk(), &memory);
    options.durability = Durability::Buffered;
    let (log, _) = FileLog::open(options).unwrap();
    submit(&log, 0, b"one").unwrap();
    assert_eq!((log.readable(), log.bounds().durable), (Glsn(1), Glsn::NONE));
    assert_eq!(scan_all(&log, 1, 9, None).len(), 1);
    log.wait_durable(Glsn(1)).unwrap();
    assert_eq!(log.bounds().durable, Glsn(1));
}

#[test]
fn the_thread_of_buffered_mode_syncs_by_itself() {
    let memory = Memory::new(16 << 20);
    let mut options = options(&mem_disk(), &memory);
    options.durability = Durability::Buffered;
    options.background = true;
    let (log, _) = FileLog::open(options).unwrap();
    submit(&log, 0, b"one").unwrap();
    let start = std::sync::Mutex::new(());
    let never = std::sync::Condvar::new();
    for _ in 0..3000 {
        if log.bounds().durable == Glsn(1) {
            return;
        }
        let guard = start.lock().unwrap();
        drop(never.wait_timeout(guard, std::time::Duration::from_millis(20)).unwrap());
    }
    panic!("nothing was synced");
}

#[test]
fn the_chain_names_every_record_and_survives_a_reopening() {
    let disk = mem_disk();
    let memory = Memory::new(16 << 20);
    let log = open(&disk, &memory);
    let empty = log.position();
    assert_eq!(log.chain_at(Glsn::NONE).unwrap(), Some(empty.chain));
    let mut chains = vec![empty];
    for number in 0..120 {
        let ticket = submit_all(&log, 0, &[payload(number, 3000), payload(number, 3000)]).unwrap();
        log.wait_durable(ticket.last).unwrap();
        chains.push(log.position());
    }
    let check = |log: &FileLog| {
        for position in &chains {
            assert_eq!(log.chain_at(position.glsn).unwrap(), Some(position.chain), "{position:?}");
            if position.glsn > Glsn::NONE {
                assert_eq!(log.chain_at(Glsn(position.glsn.0 - 1)).unwrap(), None);
            }
        }
        assert_eq!(log.chain_at(Glsn(1000)).unwrap(), None);
    };
    check(&log);
    drop(log);
    let mut options = options(&disk, &memory);
    options.known = chains.last().copied();
    let (log, _) = FileLog::open(options).unwrap();
    check(&log);
}

#[test]
fn pages_of_a_blob_file_that_are_read_together_are_checked_one_by_one() {
    let disk = mem_disk();
    let memory = Memory::new(16 << 20);
    let log = open(&disk, &memory);
    let mut writer = log.create_blob().unwrap();
    writer.write(&payload(1, 7 * PAGE_PAYLOAD_BYTES)).unwrap();
    let blob = writer.finish().unwrap();
    let pages = log.open_blob(blob.id).unwrap().file.source().clone();
    let name = blob.id.file_name();
    let original = read_file(&*disk, &name);
    let mut read = memory.budget.take(Kind::Sort).unwrap();
    assert_eq!(read.len(), 4 * PAGE_BYTES);
    let mut load = |first: u32| pages.load_run(first, &mut read).map(|()| read.to_vec());
    for first in 0..=3 {
        assert_eq!(
            load(first).unwrap(),
            &original[first as usize * PAGE_BYTES..][..4 * PAGE_BYTES]
        );
    }
    let told = |loaded: Result<Vec<u8>, LoadError>| match loaded {
        Err(LoadError::Corrupt { message }) => message,
        other => format!("{:?}", other.map(|_| "loaded")),
    };
    let expect = |told: String, what: &str| assert!(told.contains(what), "{told}, and not {what}");
    expect(told(load(4)), "page 7: the blob file ends before it");
    let file = disk.open(&Path::new(DIR).join(&name), Open::ReadWrite, Caching::Buffered).unwrap();
    let at = 4 * PAGE_BYTES + 200;
    file.write_at(&[!original[at]], at as u64).unwrap();
    expect(told(load(0)), "loaded");
    expect(told(load(1)), "page 4: ");
    file.write_at(&original[at..=at], at as u64).unwrap();
    file.set_len(5 * PAGE_BYTES as u64 + 100).unwrap();
    expect(told(load(1)), "loaded");
    expect(told(load(2)), "page 5: ");
    expect(told(load(3)), "page 5: ");
}

#[test]
fn closing_releases_all_memory() {
    let disk = mem_disk();
    let memory = Memory::new(16 << 20);
    let used = |memory: &Memory| {
        memory
            .budget
            .usage()
            .by_kind
            .iter()
            .filter(|(kind, _)| *kind != plimsoll_memory::budget::Kind::Pages)
            .map(|(_, n)| n)
            .sum::<u64>()
    };
    let before = used(&memory);
    let log = open(&disk, &memory);
    for number in 0..200 {
        submit(&log, 0, &payload(number, 4000)).unwrap();
    }
    log.sync().unwrap();
    drop(scan_all(&log, 1, 200, Some(0)));
    log.close().unwrap();
    drop(log);
    assert_eq!(used(&memory), before);
}

#[test]
fn zeros_are_written_far_ahead_of_small_records_only() {
    let zeros_behind = |record_bytes: usize| {
        let (memory, disk) = (Memory::new(16 << 20), mem_disk());
        let mut options = options(&disk, &memory);
        options.segment_bytes = 16 << 20;
        let log = FileLog::open(options).unwrap().0;
        for number in 0..4 {
            append(&log, 0, &payload(number, record_bytes));
        }
        read_file(&*disk, "00000000000000000001.seg").len() - 4 * record_bytes
    };
    assert!(zeros_behind(400 << 10) < 200 << 10, "also in a log that was just opened");
    assert!(zeros_behind(100 << 10) > 200 << 10);
}

#[test]
fn buffered_appends_write_a_block_at_a_time_when_half_of_the_buffer_is_full() {
    let (memory, disk) = (Memory::new(16 << 20), mem_disk());
    let mut options = options(&disk, &memory);
    (options.durability, options.segment_bytes) = (Durability::Buffered, 8 << 20);
    let log = FileLog::open(options).unwrap().0;
    let path = Path::new(DIR).join("00000000000000000001.seg");
    let file = disk.open(&path, Open::Read, Caching::Buffered).unwrap();
    let is_written = |block: u64| {
        let mut head = [0; 8];
        file.read_at(&mut head, block * BLOCK_BYTES as u64).is_ok() && head != [0; 8]
    };
    let (mut written, mut appended) = (1, 0);
    while appended < 3 << 20 {
        submit(&log, 0, &payload(appended, 1000)).unwrap();
        appended += 1000;
        let before = written;
        written += (written..).take_while(|block| is_written(*block)).count() as u64;
        assert!(written - before <= 1, "{} blocks at once", written - before);
    }
    let behind = appended - written * BLOCK_BYTES as u64;
    assert!(behind < 640 << 10, "{behind} bytes are not written");
}
