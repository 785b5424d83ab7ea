//! Blocks of the log that turn to zeros, and values that differ from the written ones: no read
//! returns them, and no backup copies them.

use std::path::Path;
use std::sync::Arc;

use plimsoll::{Db, Error, Glsn, Options};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::vfs::{Caching, Disk, Open};
use plimsoll_log::blob::BlobRef;
use plimsoll_log::format::blob_trailer::{BlobTrailer, extend_blob_hash};
use plimsoll_log::format::fragment::{FragmentHeader, FragmentType, seal_fragment};
use plimsoll_log::format::segment_header::SegmentHeader;
use plimsoll_log::format::{BLOCK_BYTES, blob_seed, segment_seed};
use plimsoll_memory::page::{PAGE_BYTES, page_kind, page_payload, seal_page};

const SEGMENT: &str = "/store/log/00000000000000000001.seg";

fn options(disk: &MemDisk) -> Options {
    let clock = Arc::new(ManualClock::new(1_780_000_000_000_000));
    let options =
        Options::new().memory_bytes(16 << 20).segment_bytes(256 << 10).memtable_bytes(64 << 10);
    options.background(false).world(Arc::new(disk.clone()), clock)
}

fn value(number: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + usize::from(number)) as u8 | 1).collect()
}

/// Six values of 60 KB and one of 2 KB; the first segment, which is sealed, holds four of them.
fn filled() -> MemDisk {
    let disk = MemDisk::new();
    let db = Db::open("/store", options(&disk)).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    for number in 0..7 {
        let mut tx = db.begin();
        tx.put(&keyspace, &[number], &value(number, if number == 0 { 2000 } else { 60_000 }))
            .unwrap();
        tx.commit().unwrap();
    }
    db.compact().unwrap();
    db.close().unwrap();
    disk
}

fn change(disk: &MemDisk, at: usize, bytes: &[u8]) {
    disk.open(Path::new(SEGMENT), Open::ReadWrite, Caching::Buffered)
        .unwrap()
        .write_at(bytes, at as u64)
        .unwrap();
}

fn is_corrupt<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Corrupt { .. }))
}

#[test]
fn a_block_of_zeros_in_a_value_is_detected_by_every_read() {
    for block in 1..12 {
        let disk = filled();
        change(&disk, block * BLOCK_BYTES, &[0; BLOCK_BYTES]);
        let db = Db::open("/store", options(&disk)).unwrap();
        let keyspace = db.keyspace("default").unwrap();
        let snapshot = db.snapshot();
        let mut refused = 0;
        for number in 0..7 {
            match snapshot.get(&keyspace, &[number]) {
                Ok(found) => {
                    assert_eq!(
                        found.unwrap(),
                        value(number, if number == 0 { 2000 } else { 60_000 })[..],
                        "{block}"
                    );
                }
                Err(error) => refused += usize::from(matches!(error, Error::Corrupt { .. })),
            }
        }
        assert!((1..=2).contains(&refused), "{refused} values lie in block {block}");
        assert!(snapshot.range(&keyspace, ..).unwrap().any(is_corrupt));
        let mut scan = db.log().scan(.., None).unwrap();
        let mut seen = Vec::new();
        while let Some(entry) = scan.next() {
            seen.push(entry.is_ok());
        }
        assert!(seen.contains(&false));
        drop(scan);
        assert!(!db.verify(&mut |_| {}).unwrap().problems.is_empty());
        assert!(is_corrupt(db.backup_copy("/copy")));
        // Trimming would move the current values out of the first segment.
        assert!(is_corrupt(db.log().trim(db.newest() + 1)));
        drop(snapshot);
        drop(db);
        let dest = format!("/recovered-{block}");
        let report = Db::recover("/store", &dest, options(&disk), &mut |_, _| {}).unwrap();
        assert!(!report.is_whole(), "{report:?}");
        assert!(
            Db::open(&dest, options(&disk))
                .unwrap()
                .verify(&mut |_| {})
                .unwrap()
                .problems
                .is_empty()
        );
    }
}

/// The fragment is sealed again after the change, so that the block's checksum matches: only the
/// checksum of the whole value, and the chain hash, show the change.
#[test]
fn verify_compares_each_value_with_the_checksum_that_it_was_written_with() {
    let disk = filled();
    let db = Db::open("/store", options(&disk)).unwrap();
    // The values of the first segment are moved into a blob file that no record names.
    assert!(db.log().trim(Glsn(5)).unwrap() > 1);
    assert_eq!(db.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
    db.close().unwrap();
    let log = Path::new("/store/log");
    let name = disk.names(log).unwrap().into_iter().find(|name| name.ends_with(".blob")).unwrap();
    let file = disk.open(&log.join(&name), Open::ReadWrite, Caching::Buffered).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let (mut pages, mut hash) = (bytes.chunks_mut(PAGE_BYTES).collect::<Vec<_>>(), 0);
    let trailer = pages.pop().unwrap();
    let said = BlobTrailer::decode(page_payload(trailer)).unwrap();
    let seed = blob_seed(said.log_id, said.blob.id.0);
    for (number, page) in pages.iter_mut().enumerate() {
        let payload = page_payload(page).len();
        page[5000] ^= u8::from(number == 2);
        seal_page(page, seed, number as u32, page_kind(page), payload);
        hash = extend_blob_hash(hash, page);
    }
    let payload = BlobTrailer { blob: BlobRef { hash, ..said.blob }, ..said }.encode();
    trailer[16..16 + payload.len()].copy_from_slice(&payload);
    seal_page(trailer, seed, said.blob.pages, page_kind(trailer), payload.len());
    file.write_at(&bytes, 0).unwrap();
    let db = Db::open("/store", options(&disk)).unwrap();
    let report = db.verify(&mut |_| {}).unwrap();
    let [damage] = &report.damage[..] else { panic!("{:?}", report.problems) };
    assert!(damage.file.ends_with(&name) && damage.what.contains("computed"), "{damage}");
    let [key] = &damage.keys[..] else { panic!("{damage}") };
    assert_eq!((&key.keyspace[..], damage.glsns.clone()), ("default", Some(key.glsn..=key.glsn)));
    let keyspace = db.keyspace("default").unwrap();
    assert!(is_corrupt(db.snapshot().get(&keyspace, &key.key)));
}

#[test]
fn a_wrong_value_in_a_valid_block_is_not_served() {
    let disk = filled();
    let file = disk.open(Path::new(SEGMENT), Open::ReadWrite, Caching::Buffered).unwrap();
    let mut block = vec![0; BLOCK_BYTES];
    file.read_exact_at(&mut block, 0).unwrap();
    let header = SegmentHeader::decode(&block).unwrap();
    file.read_exact_at(&mut block, BLOCK_BYTES as u64).unwrap();
    let fragment = FragmentHeader::decode(&block).unwrap();
    assert_eq!(fragment.part, FragmentType::Middle);
    block[5000] ^= 1;
    let seed = segment_seed(header.log_id, header.first);
    seal_fragment(
        &mut block[..fragment.bytes],
        seed,
        fragment.epoch,
        BLOCK_BYTES as u32,
        fragment.part,
    );
    file.write_at(&block, BLOCK_BYTES as u64).unwrap();

    let db = Db::open("/store", options(&disk)).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    let snapshot = db.snapshot();
    assert!(is_corrupt(snapshot.get(&keyspace, &[1])));
    let mut reader = snapshot.get_reader(&keyspace, &[1]).unwrap().unwrap();
    assert!(std::io::Read::read_to_end(&mut reader, &mut Vec::new()).is_err());
    drop((reader, snapshot));
    let report = db.verify(&mut |_| {}).unwrap();
    assert!(
        report.problems.iter().any(|problem| problem.contains("chain hash")),
        "{:?}",
        report.problems
    );
    assert!(is_corrupt(db.log().trim(db.newest() + 1)));
    assert!(
        disk.entry(Path::new(SEGMENT)).unwrap().is_some(),
        "a value that cannot be moved is not trimmed"
    );
    drop(db);
    let report = Db::recover("/store", "/recovered", options(&disk), &mut |_, _| {}).unwrap();
    assert!(!report.is_whole(), "{report:?}");
    assert!(
        Db::open("/recovered", options(&disk))
            .unwrap()
            .verify(&mut |_| {})
            .unwrap()
            .problems
            .is_empty()
    );
}
