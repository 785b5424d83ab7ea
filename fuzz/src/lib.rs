//! The bodies of fuzz targets that need more than one call.
//!
//! A checksum or a chain hash would keep a fuzzer from reaching the code after it, so they are
//! recomputed here where the input requests it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll::fuzz::reseal::{Placed, continues, reseal};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::vfs::{Caching, Disk, Open};
use plimsoll_log::error::LogError;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::file_log::options::{FileLogOptions, Mode};
use plimsoll_log::format::blob_trailer::BlobTrailer;
use plimsoll_log::format::block::check_block;
use plimsoll_log::format::fragment::{FRAGMENT_HEADER_BYTES, Found, FragmentType, fragment_at};
use plimsoll_log::format::offset_table::{DirectoryItem, NamedBlob, TableHeader};
use plimsoll_log::format::record::{EntryHeader, Mark, RecordHeader, decode_blob};
use plimsoll_log::format::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};
use plimsoll_log::format::{BLOCK_BYTES, genesis_chain, segment_seed};
use plimsoll_log::glsn::{Glsn, StreamId};
use plimsoll_memory::budget::{Backing, Budget};
use plimsoll_memory::pool::Pool;
use plimsoll_sim::driver::{CheckOptions, run};
use plimsoll_sim::op::generate::{Profile, from_bytes};
use plimsoll_sim::op::text::print;
use plimsoll_sim::world::{Setting, World};

const LOG_ID: u128 = 1;
const SEGMENT_BYTES: usize = 64 << 10;
const SEGMENT_NAME: &str = "00000000000000000001.seg";

/// In the byte before a fragment: keep its checksum as it is.
const UNSEALED: u8 = 0x80;
/// In the byte before a fragment: chain its record header to the previous record.
const FOLLOWS: u8 = 0x40;

/// Writes fragments into a segment, opens it as a log, and reads all of it.
///
/// Each fragment is a byte with its type and the flags above, its length in units of eight bytes
/// (two bytes), and its bytes.
pub fn log_record(bytes: &[u8]) {
    decode_raw(bytes);
    let segment = lay(bytes);
    let disk = MemDisk::new();
    let placed = disk
        .create_dir(Path::new("log"))
        .and_then(|()| {
            disk.open(&Path::new("log").join(SEGMENT_NAME), Open::CreateNew, Caching::Buffered)
        })
        .and_then(|file| file.write_at(&segment, 0));
    placed.expect("a disk in memory takes it");
    read_log(disk);
}

/// Runs every decoder on the raw bytes.
fn decode_raw(bytes: &[u8]) {
    let _ = SegmentHeader::decode(bytes);
    let _ = RecordHeader::decode(bytes).map(|header| header.head_bytes());
    let _ = EntryHeader::decode(bytes);
    let _ = Mark::decode(bytes);
    let _ = decode_blob(bytes);
    let _ = BlobTrailer::decode(bytes);
    let _ = DirectoryItem::decode(bytes);
    let _ = NamedBlob::decode(bytes);
    let _ = TableHeader::decode(bytes)
        .map(|table| (table.pages(), table.offset_place(0), table.stream_place(0)));
    let mut block = bytes.to_vec();
    block.resize(BLOCK_BYTES, 0);
    let _ = check_block(&block, 1, 0);
}

fn header() -> SegmentHeader {
    SegmentHeader {
        log_id: LOG_ID,
        epoch: 1,
        first: Glsn(1),
        previous_chain: genesis_chain(LOG_ID),
        timestamp_floor: 0,
        last_blob_id: 0,
        segment_bytes: SEGMENT_BYTES as u32,
        previous_end: 0,
    }
}

/// Builds a segment from the fragments that the bytes describe.
fn lay(mut bytes: &[u8]) -> Vec<u8> {
    let mut segment = vec![0; SEGMENT_BYTES];
    segment[..SEGMENT_HEADER_BYTES].copy_from_slice(&header().encode());
    // The place of each fragment, and its flags.
    let mut placed: Vec<(Placed, u8)> = Vec::new();
    let mut at = SEGMENT_HEADER_BYTES;
    while let [kind, low, high, rest @ ..] = bytes {
        let part = part_of(*kind);
        let wanted = usize::from(u16::from_le_bytes([*low, *high])) * 8;
        let header = part.header_bytes();
        let len = wanted.clamp(8, BLOCK_BYTES - header).min(rest.len() / 8 * 8);
        let end = at + header + len;
        if len == 0 || end.next_multiple_of(BLOCK_BYTES) > SEGMENT_BYTES {
            break;
        }
        if at / BLOCK_BYTES != (end - 1) / BLOCK_BYTES {
            at = at.next_multiple_of(BLOCK_BYTES);
            continue;
        }
        segment[at + header..end].copy_from_slice(&rest[..len]);
        bytes = &rest[len..];
        placed.push(((at, end, part), *kind));
        at = end;
    }
    seal(&mut segment, &placed);
    segment
}

/// Seals each record with the fragments that continue it, and chains it to the previous one if
/// flagged.
fn seal(segment: &mut [u8], placed: &[(Placed, u8)]) {
    let seed = segment_seed(LOG_ID, Glsn(1));
    let (mut next, mut chain) = (1u64, genesis_chain(LOG_ID));
    for record in placed.chunk_by(|_, (next, _)| continues(next.2)) {
        let ((start, end, part), kind) = record[0];
        let begins = matches!(part, FragmentType::Whole | FragmentType::First);
        let follows = kind & FOLLOWS != 0;
        let glsn = start + FRAGMENT_HEADER_BYTES + 24;
        if follows && begins && glsn + 8 <= end {
            segment[glsn..glsn + 8].copy_from_slice(&next.to_le_bytes());
        }
        let header = RecordHeader::decode(&segment[start + FRAGMENT_HEADER_BYTES..end])
            .ok()
            .filter(|_| begins);
        let parts: Vec<Placed> = record.iter().map(|(placed, _)| *placed).collect();
        chain = reseal(segment, &parts, seed, 1, chain, follows);
        next = header.map_or(next, |header| header.last().0.saturating_add(1));
        for ((start, ..), kind) in record {
            segment[*start] ^= u8::from(kind & UNSEALED != 0);
        }
    }
}

fn part_of(kind: u8) -> FragmentType {
    match kind % 8 {
        2 => FragmentType::First,
        3 => FragmentType::Middle,
        4 => FragmentType::Last,
        5 => FragmentType::Mark,
        _ => FragmentType::Whole,
    }
}

/// Opens a log and reads everything in it.
fn read_log(disk: MemDisk) {
    let budget = Budget::new(16 << 20, Backing::Mapped).expect("16 MiB are enough");
    let pool = Pool::new(&budget, 1 << 20).expect("16 MiB are enough");
    let clock = Arc::new(ManualClock::new(1));
    let options = FileLogOptions {
        mode: Mode::Write,
        background: false,
        ..FileLogOptions::new(Arc::new(disk), clock, PathBuf::from("log"), pool, budget)
    };
    let Ok((log, report)) = FileLog::open(options) else { return };
    assert!(report.replayed < SEGMENT_BYTES as u64);
    let last = Glsn(report.replayed + 1);
    let mut count = 0;
    let mut dropped = BTreeSet::new();
    if let Ok(mut scan) = log.scan(Glsn(1)..last, None) {
        while let Some(Ok(entry)) = scan.next_entry() {
            count += 1;
            assert_eq!(entry.meta.glsn, Glsn(count), "GLSNs are dense");
            if entry.meta.stream == StreamId::DROPPED {
                dropped.insert(entry.meta.glsn);
            }
            assert!(entry.payload.len() <= SEGMENT_BYTES);
        }
    }
    for glsn in 1..=report.replayed.min(64) {
        let glsn = Glsn(glsn);
        match log.read(glsn) {
            Ok(entry) => {
                assert!(
                    entry.meta.glsn == glsn && !dropped.contains(&glsn),
                    "scanned as dropped, read: {glsn}"
                )
            }
            Err(LogError::Dropped { glsn: named }) => {
                assert!(named == glsn && dropped.contains(&glsn), "{named}, {glsn}")
            }
            Err(error) => panic!("what recovery has accepted can be read: {error:?}"),
        }
    }
    assert_eq!(count, report.replayed, "what recovery has accepted is scanned");
    let _ = log.verify(&|_| true, &[], &mut |_| {});
    log.close().expect("a disk in memory does not fail");
}

/// The fragments of a real segment, in the input format of [`log_record`].
pub fn fragments_of(segment: &[u8]) -> Vec<u8> {
    let Ok(header) = SegmentHeader::decode(segment) else { return Vec::new() };
    let seed = segment_seed(header.log_id, header.first);
    let mut out = Vec::new();
    for (number, block) in segment.chunks(BLOCK_BYTES).enumerate() {
        let mut at = if number == 0 { SEGMENT_HEADER_BYTES } else { 0 };
        while let Found::Fragment(fragment) =
            fragment_at(block, at, (number * BLOCK_BYTES) as u32, seed)
        {
            out.push(fragment.part as u8 | FOLLOWS);
            out.extend_from_slice(&((fragment.bytes.len() / 8) as u16).to_le_bytes());
            out.extend_from_slice(fragment.bytes);
            at += fragment.whole_bytes();
        }
    }
    out
}

/// Runs the workload that the bytes describe; the first byte selects the disk.
pub fn engine_ops(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    let profile = Profile::ALL[usize::from(*kind) % Profile::ALL.len()];
    let ops = from_bytes(rest, &profile.settings());
    let care = CheckOptions { may_refuse: profile == Profile::Budget, ..CheckOptions::default() };
    if let Err(failure) =
        run(World::new(u64::from(*kind), Setting::of_seed(u64::from(*kind))), care, &ops)
    {
        panic!("{failure}\n{profile:?}, world {kind}:\n{}", print(&ops));
    }
}
