//! The chain hash depends on a log's contents, not on their layout: equal appends give equal
//! chains.

use std::sync::Arc;

use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::vfs::Disk;
use plimsoll_log::draft::{Draft, DraftEntry};
use plimsoll_log::file_log::FileLog;
use plimsoll_log::file_log::options::FileLogOptions;
use plimsoll_log::glsn::{Glsn, StreamId};

use crate::common::{Memory, options, payload};

/// One way to lay out the records that every log of the test appends.
#[derive(Clone, Copy, Debug, Default)]
struct Layout {
    segment_bytes: u32,
    /// Reopened before each n-th record, after a close, which writes a mark, or after a kill, which
    /// does not.
    reopened_each: u64,
    killed: bool,
    /// The active segment is sealed before each n-th record.
    sealed_each: u64,
    /// Synced after each n-th record, which changes what is known to be durable.
    synced_each: u64,
    /// Without blob files. Their ids are part of the contents: each opening assigns its own ids,
    /// and a copy keeps those of the original.
    no_blobs: bool,
}

const RECORDS: u64 = 120;

/// The bytes of the entries of record `number`: some records are small, some fill blocks, some have
/// many entries.
fn sizes(number: u64) -> Vec<usize> {
    match number % 7 {
        0 => vec![16_000],
        1 => vec![0, 3, 8],
        2 => vec![5000, 40_000, 1],
        3 => (0..400).map(|entry| entry % 90).collect(),
        4 => vec![4000],
        _ => vec![(number % 50) as usize],
    }
}

fn append(log: &FileLog, number: u64, with_blobs: bool) {
    let mut blobs = Vec::new();
    if with_blobs && number.is_multiple_of(20) {
        let mut blob = log.create_blob().unwrap();
        blob.write(&payload(number, 20_000)).unwrap();
        blobs.push(blob.finish().unwrap());
    }
    let payloads: Vec<_> = sizes(number).iter().map(|len| payload(number, *len)).collect();
    let parts: Vec<[&[u8]; 1]> = payloads.iter().map(|payload| [&payload[..]]).collect();
    let entries: Vec<_> =
        (0..).zip(&parts).map(|(n, parts)| DraftEntry { stream: StreamId(n % 3), parts }).collect();
    let draft = Draft { read_at: Glsn(number / 2), blobs: &blobs, ..Draft::of(&entries) };
    log.submit(&draft, None).unwrap();
}

/// The chain hash after each record, and before the first one that remains after a trim.
fn chains(layout: Layout) -> Vec<(u64, u64)> {
    let memory = Memory::new(64 << 20);
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
    let with = || FileLogOptions { segment_bytes: layout.segment_bytes, ..options(&disk, &memory) };
    let each = |n: u64, number: u64| n > 0 && number > 0 && number.is_multiple_of(n);
    let mut log = FileLog::open(with()).unwrap().0;
    for number in 0..RECORDS {
        if each(layout.reopened_each, number) {
            log.sync().unwrap();
            if layout.killed {
                drop(log)
            } else {
                log.close().unwrap()
            }
            log = FileLog::open(with()).unwrap().0;
        }
        if each(layout.sealed_each, number) {
            log.seal_from(1).unwrap();
        }
        append(&log, number, !layout.no_blobs);
        if each(layout.synced_each, number) {
            log.sync().unwrap();
        }
    }
    log.sync().unwrap();
    log.trim(Glsn(3000), &|_| true).unwrap();
    drop(log);
    let log = FileLog::open(with()).unwrap().0;
    let findings = log.verify(&|_| true, &[], &mut |_| {}).unwrap();
    assert!(findings.iter().all(|finding| finding.harmless), "{findings:?}");
    let (first, last) = (log.bounds().first.0, log.position().glsn.0);
    let chains = (first.saturating_sub(1)..=last)
        .filter_map(|glsn| Some((glsn, log.chain_at(Glsn(glsn)).unwrap()?)));
    chains.collect()
}

#[test]
fn logs_with_equal_contents_have_equal_chains_in_any_layout() {
    let plain = Layout { segment_bytes: 64 << 20, ..Layout::default() };
    let without_blobs = Layout { no_blobs: true, ..plain };
    let expected = [false, true].map(|no_blobs| chains(Layout { no_blobs, ..plain }));
    assert!(expected.iter().all(|chains| chains.len() > RECORDS as usize / 2 && chains[0].0 == 0));
    let layouts = [
        Layout { segment_bytes: 1 << 18, ..Layout::default() },
        Layout { segment_bytes: 1 << 20, synced_each: 3, ..Layout::default() },
        Layout { reopened_each: 5, ..without_blobs },
        Layout { reopened_each: 9, killed: true, synced_each: 2, ..without_blobs },
        Layout { sealed_each: 11, ..plain },
        Layout { segment_bytes: 1 << 19, reopened_each: 4, sealed_each: 7, ..without_blobs },
    ];
    for layout in layouts {
        let found = chains(layout);
        assert!(found.len() > 20, "{layout:?}");
        let expected = &expected[usize::from(layout.no_blobs)];
        let behind = expected.len() - found.len();
        assert_eq!(found, expected[behind..], "{layout:?}");
    }
}

#[test]
fn another_payload_order_or_snapshot_gives_another_chain() {
    let chain = |payloads: &[&[u8]], stream: u32, read_at: u64| {
        let memory = Memory::new(16 << 20);
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
        let log = crate::common::open(&disk, &memory);
        for payload in payloads {
            let entries = [DraftEntry { stream: StreamId(stream), parts: &[payload] }];
            log.submit(&Draft { read_at: Glsn(read_at), ..Draft::of(&entries) }, None).unwrap();
        }
        log.sync().unwrap();
        log.position().chain
    };
    let expected = chain(&[b"one", b"two"], 1, 0);
    assert_eq!(chain(&[b"one", b"two"], 1, 0), expected);
    let large = vec![7; 20_000];
    let others = [
        chain(&[b"two", b"one"], 1, 0),
        chain(&[b"one", b"twp"], 1, 0),
        chain(&[b"one", b"two\0"], 1, 0),
        chain(&[b"one", b"two"], 2, 0),
        chain(&[b"one", b"two"], 1, 1),
        chain(&[b"one", &large], 1, 0),
    ];
    assert!(others.iter().all(|other| *other != expected));
}
