//! Damage is taken out of a log: what was lost says so wherever it is read, everything else is as it was, and nothing is found any more.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::vfs::Disk;
use plimsoll_log::blob::BlobRef;
use plimsoll_log::error::LogError;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::file_log::repair::mend::{Mended, Wanted, WantedBlob, mend};
use plimsoll_log::format::BLOCK_BYTES;
use plimsoll_log::glsn::{Glsn, StreamId};
use plimsoll_log::log::Log;

use crate::common::{
    DIR, Memory, append, copy_of, names, open, options, payload, read_file, submit_all, submit_with, write_file,
};

const SEALED: &str = "00000000000000000001.seg";

/// Sizes of the entries: many in a block, over two blocks, over many.
const SIZES: [usize; 9] = [300, 5000, 40, 20_000, 40_000, 100, 60_000, 9000, 30_000];

/// A log of three segments, opened and closed now and then, and its entries.
fn closed_log() -> (Arc<dyn Disk>, Vec<Vec<u8>>) {
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
    let memory = Memory::new(16 << 20);
    let mut log = open(&disk, &memory);
    let mut entries = Vec::new();
    for (number, size) in SIZES.iter().cycle().take(36).enumerate() {
        let one = payload(number as u64 + 1, *size);
        append(&log, 0, &one);
        entries.push(one);
        let several: Vec<_> = (0..4).map(|i| payload(1000 * i + number as u64, 30 * i as usize)).collect();
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

fn wanted(blob: BlobRef) -> WantedBlob {
    WantedBlob { id: blob.id, named: Some(blob), pages: 0, wrong: Vec::new() }
}

fn mend_all(disk: &Arc<dyn Disk>, blobs: &[WantedBlob], sound: &dyn Fn(Glsn) -> bool) -> Mended {
    let memory = Memory::new(16 << 20);
    let wanted = Wanted { damaged: &|_| true, sound, blobs, kept: &|_| false, log_id: None, dry_run: true };
    let before = all_files(&**disk);
    let foreseen = mend(&options(disk, &memory), &wanted).unwrap();
    let after = all_files(&**disk);
    assert!(before == after, "a dry run changed something");
    let mended = mend(&options(disk, &memory), &Wanted { dry_run: false, ..wanted }).unwrap();
    assert_eq!((&foreseen.records, &foreseen.pages), (&mended.records, &mended.pages));
    mended
}

fn all_files(disk: &dyn Disk) -> Vec<(String, Vec<u8>)> {
    let names = names(disk, "").into_iter().filter(|name| name != "LOCK");
    names.map(|name| (name.clone(), read_file(disk, &name))).collect()
}

/// Everything is there but what was dropped, and verification finds nothing; which GLSNs were dropped.
#[track_caller]
fn is_whole_but_for(disk: &Arc<dyn Disk>, entries: &[Vec<u8>], mended: &Mended, told: &str) -> Vec<u64> {
    let memory = Memory::new(16 << 20);
    let (log, report) = FileLog::open(options(disk, &memory)).unwrap_or_else(|error| panic!("{told}: {error}"));
    assert_eq!(report.cut, None, "{told}");
    assert_eq!(log.bounds().next.0 as usize, entries.len() + 1, "{told}");
    let is_dropped = |glsn: u64| mended.records.iter().any(|dropped| dropped.glsns.contains(&Glsn(glsn)));
    let mut gone = Vec::new();
    for (glsn, entry) in (1..).zip(entries) {
        match log.read(Glsn(glsn)) {
            Ok(read) => assert!(*read == entry[..] && !is_dropped(glsn), "{told}: GLSN {glsn}"),
            Err(error) => {
                assert!(matches!(error, LogError::Dropped { .. }) && is_dropped(glsn), "{told}: GLSN {glsn}: {error}");
                assert!(matches!(log.read_range(Glsn(glsn), 0, &mut [0]), Err(LogError::Dropped { .. })));
                gone.push(glsn);
            }
        }
        assert!(log.meta(Glsn(glsn)).unwrap().timestamp_micros > 0);
    }
    let mut scan = log.scan(Glsn(1)..log.bounds().next, None).unwrap();
    let mut next = 1;
    while let Some(entry) = scan.next_entry() {
        let entry = entry.unwrap_or_else(|error| panic!("{told}: {error}"));
        let expected: &[u8] = if is_dropped(next) { &[] } else { &entries[next as usize - 1] };
        assert!(entry.meta.glsn.0 == next && entry.payload == expected, "{told}: GLSN {next}");
        assert_eq!(entry.meta.stream == StreamId::DROPPED, is_dropped(next));
        next += 1;
    }
    assert_eq!(next as usize, entries.len() + 1, "{told}");
    let found = log.verify(&|_| true, &[], &mut |_| {}).unwrap();
    assert!(found.iter().all(|finding| finding.harmless), "{told}: {found:?}");
    append(&log, 0, b"and on");
    log.close().unwrap();
    gone
}

fn no(_: Glsn) -> bool {
    false
}

#[test]
fn a_log_with_any_block_lost_is_whole_but_for_the_records_in_it() {
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
                let mended = mend_all(&disk, &[], &no);
                let gone = is_whole_but_for(&disk, &entries, &mended, &told);
                let is_small = kind == "cut" || gone.len() < 120;
                assert!(is_small, "{told}: {} entries are gone", gone.len());
                let kept = names(&*disk, ".seg.cut").iter().map(|name| read_file(&*disk, name)).next();
                assert_eq!(mended.records.is_empty(), kept.is_none(), "{told}");
                assert!(kept.is_none_or(|kept| kept == bytes), "{told}");
            }
        }
    }
}

#[test]
fn a_header_that_is_damaged_costs_nothing_and_a_segment_that_is_gone_its_records() {
    let (original, entries) = closed_log();
    let segments = names(&*original, ".seg");
    for segment in &segments {
        let disk = copy_of(&*original);
        let mut bytes = read_file(&*original, segment);
        bytes[30] ^= 1;
        write_file(&*disk, segment, &bytes);
        let mended = mend_all(&disk, &[], &no);
        assert_eq!(is_whole_but_for(&disk, &entries, &mended, segment), Vec::<u64>::new());
    }
    let first = |name: &str| name[..20].parse::<u64>().unwrap();
    let disk = copy_of(&*original);
    disk.remove(&Path::new(DIR).join(&segments[1])).unwrap();
    let mended = mend_all(&disk, &[], &no);
    let gone = is_whole_but_for(&disk, &entries, &mended, "a segment is gone");
    assert_eq!(gone, Range { start: first(&segments[1]), end: first(&segments[2]) }.collect::<Vec<_>>());
}

#[test]
fn a_sound_record_is_dropped_where_it_is_named() {
    let (original, entries) = closed_log();
    for glsn in [1, 6, 11, 36, 41] {
        let disk = copy_of(&*original);
        let mended = mend_all(&disk, &[], &|first| first == Glsn(glsn));
        assert_eq!(is_whole_but_for(&disk, &entries, &mended, "sound"), [glsn]);
    }
}

#[test]
fn mending_that_is_cut_short_anywhere_is_done_by_the_next() {
    use plimsoll_disk::lying::LyingDisk;
    let (original, entries) = closed_log();
    let mut bytes = read_file(&*original, SEALED);
    bytes[3 * BLOCK_BYTES..4 * BLOCK_BYTES].fill(0);
    for syncs in 0..20 {
        let lying = Arc::new(LyingDisk::new(syncs));
        let disk: Arc<dyn Disk> = Arc::clone(&lying) as _;
        disk.create_dir(Path::new(DIR)).unwrap();
        for name in names(&*original, "").into_iter().filter(|name| name != "LOCK") {
            write_file(&*disk, &name, &read_file(&*original, &name));
        }
        write_file(&*disk, SEALED, &bytes);
        for name in names(&*disk, "") {
            let path = Path::new(DIR).join(name);
            disk.open(&path, plimsoll_disk::vfs::Open::ReadWrite, plimsoll_disk::vfs::Caching::Buffered)
                .unwrap()
                .sync()
                .unwrap();
        }
        disk.sync_dir(Path::new(DIR)).unwrap();
        disk.sync_dir(Path::new("/")).unwrap();
        lying.cut_power_at_sync(lying.sync_count() + syncs + 1);
        let memory = Memory::new(16 << 20);
        let wanted =
            Wanted { damaged: &|_| true, sound: &no, blobs: &[], kept: &|_| false, log_id: None, dry_run: false };
        let is_done = mend(&options(&disk, &memory), &wanted).is_ok();
        lying.cut_power();
        lying.restore_power();
        // Where it was done before the crash there is nothing left to do.
        let again = mend(&options(&disk, &memory), &wanted).unwrap();
        assert!(!is_done || again.records.is_empty(), "sync {syncs}");
        let copy = copy_of(&*disk);
        let mut expected = Mended::default();
        let reference = copy_of(&*original);
        write_file(&*reference, SEALED, &bytes);
        expected.records = mend_all(&reference, &[], &no).records;
        is_whole_but_for(&copy, &entries, &expected, &format!("sync {syncs}"));
        if is_done {
            return;
        }
    }
    panic!("mending makes more syncs than were tried");
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
    assert!(mend_all(&disk, &[], &no).records.iter().all(|dropped| dropped.glsns.is_empty()));
    let log = open(&disk, &memory);
    assert!(log.verify(&|_| true, &[], &mut |_| {}).unwrap().iter().all(|finding| finding.harmless));
    for (glsn, size) in [(1, 16_128), (2, 100), (3, 100), (4, 100)] {
        assert!(*log.read(Glsn(glsn)).unwrap() == payload(glsn, size)[..]);
    }
}

#[test]
fn a_damaged_page_of_a_blob_file_is_dropped_alone() {
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
        let mut bytes = original.clone();
        bytes[page as usize * 16384 + 77] ^= 1;
        write_file(&*disk, &name, &bytes);
        let mended = mend_all(&disk, &[wanted(blob)], &no);
        let lost = if page < blob.pages { vec![(blob.id, page..page + 1)] } else { vec![] };
        assert_eq!(mended.pages, lost);
        let log = open(&disk, &memory);
        let found = log.verify(&|_| true, &[], &mut |_| {}).unwrap();
        assert!(found.iter().all(|finding| finding.harmless), "{found:?}");
        drop(log);
        let mended = read_file(&*disk, &name);
        assert_eq!(mended.len(), original.len());
        let same = (0..=blob.pages as usize).filter(|i| mended[i * 16384..][..16384] == original[i * 16384..][..16384]);
        assert_eq!(same.count(), blob.pages as usize + usize::from(page == blob.pages));
    }
    write_file(&*disk, &name, &original[..3 * 16384]);
    assert_eq!(mend_all(&disk, &[wanted(blob)], &no).pages, [(blob.id, 3..blob.pages)]);
}
