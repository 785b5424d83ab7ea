//! A damaged log is copied to another folder: reads of lost entries return an error, all other
//! entries are unchanged, verification finds nothing in the copy, and the source is unchanged.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::vfs::Disk;
use plimsoll_log::blob::BlobRef;
use plimsoll_log::error::LogError;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::file_log::repair::recover::DamagedBlob;
use plimsoll_log::file_log::repair::survey::{LostRecords, Scope, Survey, survey};
use plimsoll_log::format::BLOCK_BYTES;
use plimsoll_log::glsn::{Glsn, Position, StreamId};

use crate::common::{
    DIR, Memory, append, copy_of, names, no, open, options, payload, read_file, recover,
    submit_all, submit_with, write_file,
};

const SEALED: &str = "00000000000000000001.seg";

/// Sizes of the entries: several in one block, over two blocks, over many blocks.
const SIZES: [usize; 9] = [300, 5000, 40, 20_000, 40_000, 100, 60_000, 9000, 30_000];

/// A log of three segments, closed and reopened several times, and its entries.
fn closed_log() -> (Arc<dyn Disk>, Vec<Vec<u8>>) {
    closed_log_of(36)
}

fn closed_log_of(rounds: usize) -> (Arc<dyn Disk>, Vec<Vec<u8>>) {
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
    let memory = Memory::new(16 << 20);
    let mut log = open(&disk, &memory);
    let mut entries = Vec::new();
    for (number, size) in SIZES.iter().cycle().take(rounds).enumerate() {
        let one = payload(number as u64 + 1, *size);
        append(&log, 0, &one);
        entries.push(one);
        let several: Vec<_> =
            (0..4).map(|i| payload(1000 * i + number as u64, 30 * i as usize)).collect();
        let ticket = submit_all(&log, 3, &several).unwrap();
        log.wait_durable(ticket.last).unwrap();
        entries.extend(several);
        if number % 7 == 6 {
            log.close().unwrap();
            drop(log);
            log = open(&disk, &memory);
        }
    }
    log.close().unwrap();
    drop(log);
    assert!(names(&*disk, ".seg").len() > 2, "{:?}", names(&*disk, ".seg"));
    (disk, entries)
}

fn damaged(blob: BlobRef) -> DamagedBlob {
    DamagedBlob { id: blob.id, named: Some(blob), pages: 0, wrong: Vec::new() }
}

fn recover_all(disk: &Arc<dyn Disk>) -> (Survey, Arc<dyn Disk>) {
    recover(disk, Position::default(), &[], &no)
}

/// Checks that all entries except the lost ones are present and that verification finds nothing;
/// returns the lost GLSNs.
#[track_caller]
fn is_whole_but_for(
    disk: &Arc<dyn Disk>,
    entries: &[Vec<u8>],
    lost: &[LostRecords],
    told: &str,
) -> Vec<u64> {
    let memory = Memory::new(16 << 20);
    let (log, report) =
        FileLog::open(options(disk, &memory)).unwrap_or_else(|error| panic!("{told}: {error}"));
    assert_eq!(report.cut, None, "{told}");
    assert_eq!(log.bounds().next.0 as usize, entries.len() + 1, "{told}");
    let is_lost = |glsn: u64| lost.iter().any(|lost| lost.glsns.contains(&Glsn(glsn)));
    let mut gone = Vec::new();
    for (glsn, entry) in (1..).zip(entries) {
        match log.read(Glsn(glsn)) {
            Ok(read) => assert!(*read == entry[..] && !is_lost(glsn), "{told}: GLSN {glsn}"),
            Err(error) => {
                assert!(
                    matches!(error, LogError::Dropped { .. }) && is_lost(glsn),
                    "{told}: GLSN {glsn}: {error}"
                );
                assert!(matches!(
                    log.read_range(Glsn(glsn), 0, &mut [0]),
                    Err(LogError::Dropped { .. })
                ));
                gone.push(glsn);
            }
        }
        assert!(log.meta(Glsn(glsn)).unwrap().timestamp_micros > 0);
    }
    let mut scan = log.scan(Glsn(1)..log.bounds().next, None).unwrap();
    let mut next = 1;
    while let Some(entry) = scan.next_entry() {
        let entry = entry.unwrap_or_else(|error| panic!("{told}: {error}"));
        let expected: &[u8] = if is_lost(next) { &[] } else { &entries[next as usize - 1] };
        assert!(entry.meta.glsn.0 == next && entry.payload == expected, "{told}: GLSN {next}");
        assert_eq!(entry.meta.stream == StreamId::DROPPED, is_lost(next));
        next += 1;
    }
    assert_eq!(next as usize, entries.len() + 1, "{told}");
    let found = log.verify(&|_| true, &[], &mut |_| {}).unwrap();
    assert!(found.iter().all(|finding| finding.harmless), "{told}: {found:?}");
    append(&log, 0, b"and on");
    log.close().unwrap();
    gone
}

#[test]
fn a_log_with_any_block_lost_keeps_all_records_outside_it() {
    let (original, entries) = closed_log();
    for segment in names(&*original, ".seg").into_iter().take(2) {
        let bytes = read_file(&*original, &segment);
        for block in 0..bytes.len() / BLOCK_BYTES {
            for kind in ["zeros", "a byte", "cut"] {
                let (disk, mut bytes) = (copy_of(&*original), bytes.clone());
                let range = block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES;
                match kind {
                    "zeros" => bytes[range].fill(0),
                    "a byte" => bytes[range.start + 5000] ^= 0x40,
                    _ => bytes.truncate(range.start),
                }
                write_file(&*disk, &segment, &bytes);
                let told = format!("{segment}, block {block}, {kind}");
                let (surveyed, copy) = recover_all(&disk);
                let gone = is_whole_but_for(&copy, &entries, &surveyed.lost, &told);
                let is_small = kind == "cut" || gone.len() < 120;
                assert!(is_small, "{told}: {} entries are gone", gone.len());
            }
        }
    }
}

#[test]
fn a_damaged_header_loses_nothing_and_a_missing_segment_its_records() {
    let (original, entries) = closed_log();
    let segments = names(&*original, ".seg");
    for segment in &segments {
        let disk = copy_of(&*original);
        let mut bytes = read_file(&*original, segment);
        bytes[30] ^= 1;
        write_file(&*disk, segment, &bytes);
        let (surveyed, copy) = recover_all(&disk);
        assert_eq!(is_whole_but_for(&copy, &entries, &surveyed.lost, segment), Vec::<u64>::new());
    }
    let first = |name: &str| name[..20].parse::<u64>().unwrap();
    for tables_too in [false, true] {
        let disk = copy_of(&*original);
        disk.remove(&Path::new(DIR).join(&segments[1])).unwrap();
        if tables_too {
            disk.remove(&Path::new(DIR).join(segments[1].replace(".seg", ".idx"))).unwrap();
        }
        let (surveyed, copy) = recover_all(&disk);
        let gone = is_whole_but_for(&copy, &entries, &surveyed.lost, "a segment is gone");
        assert_eq!(
            gone,
            Range { start: first(&segments[1]), end: first(&segments[2]) }.collect::<Vec<_>>()
        );
    }
}

#[test]
fn missing_segments_and_the_damaged_header_after_them_lose_only_their_records() {
    let (original, entries) = closed_log_of(72);
    let segments = names(&*original, ".seg");
    let first = |name: &str| name[..20].parse::<u64>().unwrap();
    assert!(segments.len() > 3, "{segments:?}");
    for header_too in [false, true] {
        let disk = copy_of(&*original);
        for name in &segments[1..3] {
            disk.remove(&Path::new(DIR).join(name)).unwrap();
        }
        if header_too {
            let mut bytes = read_file(&*disk, &segments[3]);
            bytes[30] ^= 1;
            write_file(&*disk, &segments[3], &bytes);
        }
        let (surveyed, copy) = recover_all(&disk);
        let gone = is_whole_but_for(&copy, &entries, &surveyed.lost, "segments are gone");
        assert_eq!(gone, (first(&segments[1])..first(&segments[3])).collect::<Vec<_>>());
    }
}

#[test]
fn the_end_of_the_log_that_was_durable_becomes_lost_records() {
    let (original, entries) = closed_log();
    let segments = names(&*original, ".seg");
    let known = Position { glsn: Glsn(entries.len() as u64), chain: 77 };
    for kept in 1..segments.len() {
        for is_torn in [false, true] {
            let disk = copy_of(&*original);
            for name in &segments[kept..] {
                disk.remove(&Path::new(DIR).join(name)).unwrap();
            }
            if is_torn {
                let mut bytes = read_file(&*disk, &segments[kept - 1]);
                bytes.truncate(5 * BLOCK_BYTES + 700);
                write_file(&*disk, &segments[kept - 1], &bytes);
            }
            let told = format!("{kept} segments, torn: {is_torn}");
            let (surveyed, copy) = recover(&disk, known, &[], &no);
            let gone = is_whole_but_for(&copy, &entries, &surveyed.lost, &told);
            assert!(
                gone.last() == Some(&known.glsn.0) && surveyed.end() == known,
                "{told}: {gone:?}"
            );
        }
    }
    // Without any segment, the log begins after the last known position.
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
    disk.create_dir(Path::new(DIR)).unwrap();
    let (surveyed, copy) = recover(&disk, known, &[], &no);
    assert_eq!((surveyed.start(), surveyed.records), (known, 0));
    let log = open(&copy, &Memory::new(16 << 20));
    assert_eq!(append(&log, 0, b"and on"), known.glsn.next());
}

#[test]
fn a_million_lost_entries_keep_their_glsns() {
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
    let memory = Memory::new(16 << 20);
    let log = open(&disk, &memory);
    append(&log, 0, b"one");
    log.close().unwrap();
    drop(log);
    let known = Position { glsn: Glsn(1_000_001), chain: 3 };
    let (_, copy) = recover(&disk, known, &[], &no);
    let memory = Memory::new(32 << 20);
    let log = open(&copy, &memory);
    assert_eq!(&*log.read(Glsn(1)).unwrap(), b"one");
    for glsn in [2, 3000, 1_000_001] {
        assert!(matches!(log.read(Glsn(glsn)), Err(LogError::Dropped { .. })), "{glsn}");
    }
    assert_eq!(append(&log, 0, b"and on"), known.glsn.next());
}

/// Such a gap would be replaced by more segments than memory and disk have room for.
#[test]
fn a_gap_wider_than_any_loss_is_refused() {
    let (disk, entries) = closed_log();
    let memory = Memory::new(16 << 20);
    let options = options(&disk, &memory);
    let known = Position { glsn: Glsn(1 << 60), chain: 3 };
    let scope =
        Scope { options: &options, log_id: None, known, begins: None, unusable: &no, asked: &[] };
    let error = survey(&scope).unwrap_err();
    let first_missing = Glsn(entries.len() as u64 + 1);
    assert!(
        matches!(&error, LogError::Corrupt { glsn, .. } if *glsn == first_missing)
            && error.to_string().contains("in a copy of the store, move"),
        "{error}"
    );
}

#[test]
fn a_tail_that_was_never_durable_is_cut_as_by_an_opening() {
    let (disk, memory): (Arc<dyn Disk>, _) = (Arc::new(MemDisk::new()), Memory::new(16 << 20));
    let log = open(&disk, &memory);
    for number in 1..=3 {
        append(&log, 0, &payload(number, 3000));
    }
    // Written in one sync, so that none of them reports another as durable.
    for number in 4..=9 {
        submit_with(&log, 0, &payload(number, 3000), &[]).unwrap();
    }
    log.wait_durable(Glsn(9)).unwrap();
    let killed = copy_of(&*disk);
    let mut bytes = read_file(&*killed, SEALED);
    let bad = bytes.windows(100).position(|bytes| bytes == &payload(6, 3000)[..100]).unwrap();
    bytes[bad] ^= 1;
    write_file(&*killed, SEALED, &bytes);
    let opened = copy_of(&*killed);
    let next = open(&opened, &memory).bounds().next;
    let (surveyed, copy) = recover_all(&killed);
    assert!(surveyed.lost.is_empty(), "{:?}", surveyed.lost);
    assert_eq!((open(&copy, &memory).bounds().next, next), (Glsn(6), Glsn(6)));
}

#[test]
fn a_segment_of_another_log_is_left_out_and_one_of_a_newer_format_is_refused() {
    let (original, entries) = closed_log();
    let disk = copy_of(&*original);
    let last = names(&*disk, ".seg").pop().unwrap();
    let mut bytes = read_file(&*disk, &last);
    let change = |bytes: &mut Vec<u8>, at: usize| {
        bytes[at] ^= 99;
        let sum = plimsoll_disk::checksum::checksum(0x5345_474d_454e_5431, &bytes[..120]);
        bytes[120..128].copy_from_slice(&sum.to_le_bytes());
        write_file(&*disk, &last, bytes);
    };
    change(&mut bytes, 24);
    let known = Position { glsn: Glsn(entries.len() as u64), chain: 1 };
    let (surveyed, copy) = recover(&disk, known, &[], &no);
    assert_eq!(surveyed.foreign, std::slice::from_ref(&last));
    is_whole_but_for(&copy, &entries, &surveyed.lost, "a segment is of another log");
    change(&mut bytes, 8);
    let memory = Memory::new(16 << 20);
    let options = options(&disk, &memory);
    let scope =
        Scope { options: &options, log_id: None, known, begins: None, unusable: &no, asked: &[] };
    let error = survey(&scope).unwrap_err();
    assert!(matches!(&error, LogError::Format { message } if message.contains("newer")), "{error}");
}

#[test]
fn a_sound_record_that_cannot_be_used_is_lost() {
    let (original, entries) = closed_log();
    for glsn in [1, 6, 11, 36, 41] {
        let disk = copy_of(&*original);
        let (surveyed, copy) =
            recover(&disk, Position::default(), &[], &|first| first == Glsn(glsn));
        assert_eq!(is_whole_but_for(&copy, &entries, &surveyed.lost, "sound"), [glsn]);
    }
}

#[test]
fn a_damaged_mark_at_the_front_of_a_block_is_replaced() {
    let (disk, memory): (Arc<dyn Disk>, _) = (Arc::new(MemDisk::new()), Memory::new(16 << 20));
    let log = open(&disk, &memory);
    // 32 bytes are left in its block: too few for a mark.
    append(&log, 0, &payload(1, 16_128));
    log.close().unwrap();
    drop(log);
    let log = open(&disk, &memory);
    for glsn in 2..=4 {
        append(&log, 0, &payload(glsn, 100));
    }
    log.close().unwrap();
    drop(log);
    let mut bytes = read_file(&*disk, SEALED);
    assert_ne!(bytes[BLOCK_BYTES..BLOCK_BYTES + 40], [0; 40]);
    bytes[BLOCK_BYTES + 20] ^= 1;
    write_file(&*disk, SEALED, &bytes);
    let (surveyed, copy) = recover_all(&disk);
    assert!(!surveyed.lost.is_empty() && surveyed.lost.iter().all(|lost| lost.glsns.is_empty()));
    let log = open(&copy, &memory);
    assert!(
        log.verify(&|_| true, &[], &mut |_| {}).unwrap().iter().all(|finding| finding.harmless)
    );
    for (glsn, size) in [(1, 16_128), (2, 100), (3, 100), (4, 100)] {
        assert!(*log.read(Glsn(glsn)).unwrap() == payload(glsn, size)[..]);
    }
}

#[test]
fn a_damaged_page_of_a_blob_file_is_lost_alone() {
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
    let memory = Memory::new(16 << 20);
    let log = open(&disk, &memory);
    let mut writer = log.create_blob().unwrap();
    writer.write(&payload(1, 100_000)).unwrap();
    let blob = writer.finish().unwrap();
    let ticket = submit_with(&log, 0, b"names it", &[blob]).unwrap();
    log.wait_durable(ticket.last).unwrap();
    log.close().unwrap();
    drop(log);
    let name = blob.id.file_name();
    let original = read_file(&*disk, &name);
    for page in 0..=blob.pages {
        let disk = copy_of(&*disk);
        let mut bytes = original.clone();
        bytes[page as usize * 16384 + 77] ^= 1;
        write_file(&*disk, &name, &bytes);
        let (_, copy) = recover(&disk, Position::default(), &[damaged(blob)], &no);
        let log = open(&copy, &memory);
        let found = log.verify(&|_| true, &[], &mut |_| {}).unwrap();
        assert!(found.iter().all(|finding| finding.harmless), "{found:?}");
        drop(log);
        let copied = read_file(&*copy, &name);
        assert_eq!(copied.len(), original.len());
        let same = (0..=blob.pages as usize)
            .filter(|i| copied[i * 16384..][..16384] == original[i * 16384..][..16384]);
        assert_eq!(same.count(), blob.pages as usize + usize::from(page == blob.pages));
    }
    write_file(&*disk, &name, &original[..3 * 16384]);
    let (_, copy) = recover(&disk, Position::default(), &[damaged(blob)], &no);
    let copied = read_file(&*copy, &name);
    assert!(copied.len() == original.len() && copied[..3 * 16384] == original[..3 * 16384]);
}
