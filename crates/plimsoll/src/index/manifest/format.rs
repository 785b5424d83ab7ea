//! The manifest's encoding; `docs/reference/format.md` describes the bytes.
//!
//! Invariant: no content is used before the whole manifest was checked, and no length in it is
//! trusted beyond the end of the file.

use std::io;
use std::sync::Arc;

use plimsoll_disk::checksum::checksum;
use plimsoll_disk::codec::{Reader, push_bytes, push_varint};
use plimsoll_disk::vfs::File;
use plimsoll_log::blob::BlobId;
use plimsoll_log::glsn::{Glsn, Position};
use smallvec::SmallVec;

use super::blocks::{CUT, Failure, IMPOSSIBLE_RUN, Input, Writer};
use super::{Head, Manifest, RunInfo};
use crate::index::env::moment_set::MomentSet;
use crate::index::manifest::limits::Limits;
use crate::index::ranges::{Fragment, MAX_BOUND_BYTES, RangeSet};
use crate::index::run::packed::Shape;
use crate::index::run::table::{TableId, TableInfo};
use crate::types::expiry::ExpiryRange;
use crate::types::index_key::IndexKey;

const MAGIC: [u8; 8] = *b"PLIMMANI";
const FORMAT: u32 = 1;
/// Long additions are written in pieces of this many bytes.
const PIECE_BYTES: usize = 4096;
pub(super) const HEAD_BYTES: usize = 56;

/// Tags of additions after the runs. Each addition has a length, so that versions that do not know
/// it can skip it.
pub(super) const DELETIONS_DROPPED: u64 = 1;
pub(super) const LOG_BEGINS: u64 = 2;
const RANGES: u64 = 3;
pub(super) const PINNED: u64 = 4;

const HAS_POINTER: u8 = 1;
const HAS_FIXED_GLSN: u8 = 2;
/// Reserved: the table has versions of branches (a leaf then has their ids).
pub(super) const HAS_BRANCHES: u8 = 4;
/// Set if the bytes of values in log entries are counted, which earlier versions did not do.
pub(super) const HAS_LOG_BYTES: u8 = 8;
const HAS_ABSORBED: u8 = 16;
const HAS_EXPIRIES: u8 = 32;
/// Set if the file is packed.
const HAS_PACKED: u8 = 64;

/// Writes a manifest of `runs` (whether each is history, and its tables) into an empty file.
pub(super) fn write<'a, R, P>(file: &dyn File, head: &Head, runs: R) -> io::Result<()>
where
    R: ExactSizeIterator<Item = (bool, P)>,
    P: ExactSizeIterator<Item = &'a TableInfo>,
{
    let mut out = Writer::new(file);
    encode_head(head, &mut out)?;
    out.number(runs.len() as u64)?;
    for (history, tables) in runs {
        out.block.push(u8::from(history));
        out.number(tables.len() as u64)?;
        for info in tables {
            encode_table(info, &mut out.block);
            out.drain()?;
        }
    }
    encode_additions(head, &mut out)?;
    out.finish()
}

fn encode_head(head: &Head, out: &mut Writer<'_>) -> io::Result<()> {
    let block = &mut out.block;
    block.extend_from_slice(&MAGIC);
    block.extend_from_slice(&FORMAT.to_le_bytes());
    // Reserved bytes, compatible features, incompatible features: none yet.
    block.extend_from_slice(&[0; 4 + 8 + 8]);
    block.extend_from_slice(&head.log_id.to_le_bytes());
    let sum = checksum(0, block);
    block.extend_from_slice(&sum.to_le_bytes());
    let limits = &head.limits;
    for number in [
        head.number,
        head.checkpoint.glsn.0,
        head.checkpoint.chain,
        head.durable.glsn.0,
        head.durable.chain,
        head.next_run,
        limits.deletions_moved.0,
        limits.oldest_readable.0,
    ] {
        block.extend_from_slice(&number.to_le_bytes());
    }
    out.number(limits.readable_in.len() as u64)?;
    for (keyspace, readable) in &limits.readable_in {
        out.number(u64::from(*keyspace))?;
        out.number(readable.floor.0)?;
    }
    Ok(())
}

/// Writes the additions, which older versions skip. The dropped deletions are written even if there
/// are none, because a missing addition means that nothing is known about them.
fn encode_additions(head: &Head, out: &mut Writer<'_>) -> io::Result<()> {
    let dropped = &head.limits.deletions_dropped_in;
    let mut body = Vec::with_capacity(dropped.len() * 8);
    for (keyspace, glsn) in dropped {
        push_varint(&mut body, u64::from(*keyspace));
        push_varint(&mut body, glsn.0);
    }
    let pinned = encode_pins(&head.limits);
    let is_there = [head.log_begins.is_some(), !head.ranges.is_empty(), !pinned.is_empty()];
    out.number(1 + is_there.into_iter().map(u64::from).sum::<u64>())?;
    out.number(DELETIONS_DROPPED)?;
    out.number(body.len() as u64)?;
    out.block.extend_from_slice(&body);
    if let Some(begins) = head.log_begins {
        body.clear();
        push_varint(&mut body, begins.0);
        out.number(LOG_BEGINS)?;
        out.number(body.len() as u64)?;
        out.block.extend_from_slice(&body);
    }
    out.drain()?;
    body.clear();
    for range in head.ranges.fragments() {
        push_bytes(&mut body, &range.first);
        push_bytes(&mut body, &range.end);
        push_varint(&mut body, range.glsns.len() as u64);
        range.glsns.iter().for_each(|glsn| push_varint(&mut body, glsn.0));
    }
    for (kind, body) in [(RANGES, body), (PINNED, pinned)] {
        if body.is_empty() {
            continue;
        }
        out.number(kind)?;
        out.number(body.len() as u64)?;
        for part in body.chunks(PIECE_BYTES) {
            out.block.extend_from_slice(part);
            out.drain()?;
        }
    }
    Ok(())
}

/// The single moments below the floors at which keyspaces can be read.
fn encode_pins(limits: &Limits) -> Vec<u8> {
    let mut body = Vec::new();
    for (keyspace, MomentSet { pins, .. }) in &limits.readable_in {
        if pins.is_empty() {
            continue;
        }
        push_varint(&mut body, u64::from(*keyspace));
        push_varint(&mut body, pins.len() as u64);
        let mut before = Glsn::NONE;
        for pinned in pins.iter() {
            push_varint(&mut body, pinned.0 - before.0);
            before = *pinned;
        }
    }
    body
}

fn encode_table(info: &TableInfo, out: &mut Vec<u8>) {
    let (place, id) = match info.id {
        TableId::Run(id) => (0, id),
        TableId::Blob(blob) => (1, blob.0),
    };
    out.push(place);
    let pointer = if info.min_pointer.is_some() { HAS_POINTER } else { 0 };
    let fixed = if info.fixed_glsn.is_some() { HAS_FIXED_GLSN } else { 0 };
    let counted = if info.log_bytes.is_some() { HAS_LOG_BYTES } else { 0 };
    let absorbed = if info.absorbed > Glsn::NONE { HAS_ABSORBED } else { 0 };
    let expiries = if info.expiries.is_some() { HAS_EXPIRIES } else { 0 };
    let packed = if info.packed.is_some() { HAS_PACKED } else { 0 };
    out.push(pointer | fixed | counted | absorbed | expiries | packed);
    for number in [id, u64::from(info.pages), u64::from(info.root), info.versions, info.deletions] {
        push_varint(out, number);
    }
    for key in [&info.first_key, &info.last_key] {
        push_varint(out, key.len() as u64);
        out.extend_from_slice(key);
    }
    push_varint(out, info.min_glsn.0);
    push_varint(out, info.max_glsn.0);
    for glsn in [info.min_pointer, info.fixed_glsn].into_iter().flatten() {
        push_varint(out, glsn.0);
    }
    info.log_bytes.iter().for_each(|bytes| push_varint(out, *bytes));
    if info.absorbed > Glsn::NONE {
        push_varint(out, info.absorbed.0);
    }
    let expiries = info.expiries.iter().flat_map(ExpiryRange::numbers);
    expiries.for_each(|number| push_varint(out, number));
    info.packed.iter().for_each(|pages| push_varint(out, u64::from(*pages)));
    push_varint(out, info.blobs.len() as u64);
    info.blobs.iter().for_each(|blob| push_varint(out, blob.0));
}

/// Reads a file as a manifest.
pub(super) fn read(file: &dyn File) -> Result<Manifest, Failure> {
    let mut input = Input::new(file, HEAD_BYTES)?;
    let log_id = check_head(file)?;
    for _ in 0..HEAD_BYTES {
        input.byte()?;
    }
    match decode(log_id, &mut input) {
        // Reported only if the checksum shows that the bytes are as written.
        Err(Failure::Newer(what)) => input.check_sum().and(Err(Failure::Newer(what))),
        decoded => {
            let manifest = decoded?;
            // The content defines where the file ends. The length of the file is not trusted: if
            // the file was lengthened, the checksum would be computed over all of it.
            input.must_be_at_end()?;
            input.check_sum()?;
            Ok(manifest)
        }
    }
}

/// Checks the head that all formats share. Returns the log's id.
pub(super) fn check_head(file: &dyn File) -> Result<u128, Failure> {
    let mut head = [0; HEAD_BYTES];
    file.read_exact_at(&mut head, 0)?;
    if head[..8] != MAGIC {
        return Err(Failure::Damaged("the file is not a manifest"));
    }
    if head[48..] != checksum(0, &head[..48]).to_le_bytes() {
        return Err(Failure::Damaged("the manifest's head does not match its checksum"));
    }
    let mut reader = Reader::new(&head[8..48]);
    let (format, _, _, incompatible) = (reader.u32(), reader.u32(), reader.u64(), reader.u64());
    if format != Some(FORMAT) {
        return Err(Failure::Newer("the manifest is of a format"));
    }
    if incompatible != Some(0) {
        return Err(Failure::Newer("the manifest needs a feature"));
    }
    reader.u128().ok_or(CUT)
}

impl Input<'_> {
    fn u32(&mut self) -> Result<u32, Failure> {
        u32::try_from(self.varint()?).map_err(|_| IMPOSSIBLE_RUN)
    }

    fn glsn(&mut self) -> Result<Glsn, Failure> {
        self.varint().map(Glsn)
    }

    fn key(&mut self) -> Result<Vec<u8>, Failure> {
        self.bytes(IndexKey::is_valid_len)
    }

    fn bytes(&mut self, is_valid_len: impl Fn(usize) -> bool) -> Result<Vec<u8>, Failure> {
        let len = self.varint()?;
        if !usize::try_from(len).is_ok_and(is_valid_len) {
            return Err(IMPOSSIBLE_RUN);
        }
        let mut key = Vec::with_capacity(len as usize);
        for _ in 0..len {
            key.push(self.byte()?);
        }
        Ok(key)
    }
}

fn decode(log_id: u128, input: &mut Input<'_>) -> Result<Manifest, Failure> {
    let number = input.u64()?;
    let checkpoint = Position { glsn: Glsn(input.u64()?), chain: input.u64()? };
    let durable = Position { glsn: Glsn(input.u64()?), chain: input.u64()? };
    let next_run = input.u64()?;
    let (deletions_moved, oldest_readable) = (Glsn(input.u64()?), Glsn(input.u64()?));
    let mut readable_in = Vec::new();
    for _ in 0..input.varint()? {
        push_in_order(&mut readable_in, (input.u32()?, MomentSet::since(input.glsn()?)))?;
    }
    let mut runs = Vec::new();
    // Each run and each table takes bytes of the file, so its length bounds the lists.
    for _ in 0..input.varint()? {
        runs.push(decode_run(input)?);
    }
    let Additions { dropped, log_begins, ranges, pinned } = decode_additions(input)?;
    let ranges = Arc::new(RangeSet::of(ranges.unwrap_or_default()).ok_or(IMPOSSIBLE_RUN)?);
    let floors = readable_in.iter().map(|(keyspace, readable)| (*keyspace, readable.floor));
    let deletions_dropped_in = dropped.unwrap_or_else(|| floors.collect());
    for (keyspace, pins) in pinned.unwrap_or_default() {
        let at = readable_in.binary_search_by_key(&keyspace, |entry| entry.0);
        readable_in[at.map_err(|_| IMPOSSIBLE_RUN)?].1.pins = pins;
    }
    let limits = Limits { deletions_moved, oldest_readable, readable_in, deletions_dropped_in };
    let head = Head { log_id, number, checkpoint, durable, next_run, limits, log_begins, ranges };
    Ok(Manifest { head, runs })
}

/// The additions after the runs, as far as present.
#[derive(Default)]
struct Additions {
    dropped: Option<Vec<(u32, Glsn)>>,
    log_begins: Option<Glsn>,
    ranges: Option<Vec<Fragment>>,
    pinned: Option<Vec<(u32, Arc<[Glsn]>)>>,
}

/// Reads the additions after the runs; skips unknown ones.
fn decode_additions(input: &mut Input<'_>) -> Result<Additions, Failure> {
    let Additions { mut dropped, mut log_begins, mut ranges, mut pinned } = Additions::default();
    for _ in 0..input.varint()? {
        let (what, len) = (input.varint()?, input.varint()?);
        if what == 0 {
            // No addition has tag 0. Refuse it, so that zeros are not read one by one up to the
            // end.
            return Err(IMPOSSIBLE_RUN);
        }
        let end = input.end_of(len)?;
        if what == DELETIONS_DROPPED && dropped.is_none() {
            let list = dropped.insert(Vec::new());
            while input.place() < end {
                push_in_order(list, (input.u32()?, input.glsn()?))?;
            }
        }
        if what == LOG_BEGINS && log_begins.is_none() {
            log_begins = Some(input.glsn()?);
        }
        if what == RANGES && ranges.is_none() {
            let list = ranges.insert(Vec::new());
            while input.place() < end {
                list.push(decode_range(input, end)?);
            }
        }
        if what == PINNED && pinned.is_none() {
            let list = pinned.insert(Vec::new());
            while input.place() < end {
                push_in_order(list, (input.u32()?, decode_pins(input, end)?))?;
            }
        }
        if input.place() > end {
            return Err(IMPOSSIBLE_RUN);
        }
        while input.place() < end {
            input.byte()?;
        }
    }
    Ok(Additions { dropped, log_begins, ranges, pinned })
}

fn decode_range(input: &mut Input<'_>, end: u64) -> Result<Fragment, Failure> {
    let is_bound = |len: usize| (1..=MAX_BOUND_BYTES).contains(&len);
    let (first, last) = (input.bytes(is_bound)?, input.bytes(is_bound)?);
    let mut glsns = SmallVec::new();
    for _ in 0..input.varint()? {
        if input.place() >= end {
            return Err(IMPOSSIBLE_RUN);
        }
        glsns.push(input.glsn()?);
    }
    Ok(Fragment { first: first.into(), end: last.into(), glsns })
}

/// Reads pins, which ascend: each step after the first pin is at least 1, so that a file of zeros
/// does not fill the memory.
fn decode_pins(input: &mut Input<'_>, end: u64) -> Result<Arc<[Glsn]>, Failure> {
    let (mut pins, mut before) = (Vec::new(), Glsn::NONE);
    for _ in 0..input.varint()? {
        if input.place() >= end {
            return Err(IMPOSSIBLE_RUN);
        }
        let step = input.varint()?;
        let is_sound = step > 0 || pins.is_empty();
        before = Glsn(before.0.checked_add(step).filter(|_| is_sound).ok_or(IMPOSSIBLE_RUN)?);
        pins.push(before);
    }
    Ok(pins.into())
}

/// Appends to a list sorted by keyspace. An item out of order is refused at once, so that zeros
/// cannot fill the memory.
fn push_in_order<T>(list: &mut Vec<(u32, T)>, item: (u32, T)) -> Result<(), Failure> {
    if list.last().is_some_and(|last| last.0 >= item.0) {
        return Err(IMPOSSIBLE_RUN);
    }
    list.push(item);
    Ok(())
}

fn decode_run(input: &mut Input<'_>) -> Result<RunInfo, Failure> {
    let history = match input.byte()? {
        0 => false,
        1 => true,
        _ => return Err(IMPOSSIBLE_RUN),
    };
    let mut tables: Vec<TableInfo> = Vec::new();
    for _ in 0..input.varint()? {
        let info = decode_table(input)?;
        if tables.last().is_some_and(|before| before.last_key >= info.first_key) {
            return Err(IMPOSSIBLE_RUN);
        }
        tables.push(info);
    }
    if tables.is_empty() { Err(IMPOSSIBLE_RUN) } else { Ok(RunInfo { history, tables }) }
}

fn decode_table(input: &mut Input<'_>) -> Result<TableInfo, Failure> {
    let (place, flags) = (input.byte()?, input.byte()?);
    if flags & HAS_BRANCHES > 0 {
        return Err(Failure::Newer("the manifest has versions of branches, a feature"));
    }
    let known =
        HAS_POINTER | HAS_FIXED_GLSN | HAS_LOG_BYTES | HAS_ABSORBED | HAS_EXPIRIES | HAS_PACKED;
    if flags & !known > 0 {
        return Err(Failure::Newer("the manifest has tables with an unknown property, a feature"));
    }
    let id = match (place, input.varint()?) {
        (0, id) => TableId::Run(id),
        (1, id) => TableId::Blob(BlobId(id)),
        _ => return Err(IMPOSSIBLE_RUN),
    };
    let (pages, root) = (input.u32()?, input.u32()?);
    let (versions, deletions) = (input.varint()?, input.varint()?);
    let (first_key, last_key) = (input.key()?, input.key()?);
    let (min_glsn, max_glsn) = (input.glsn()?, input.glsn()?);
    let min_pointer = if flags & HAS_POINTER > 0 { Some(input.glsn()?) } else { None };
    let fixed_glsn = if flags & HAS_FIXED_GLSN > 0 { Some(input.glsn()?) } else { None };
    let log_bytes = if flags & HAS_LOG_BYTES > 0 { Some(input.varint()?) } else { None };
    let absorbed = if flags & HAS_ABSORBED > 0 { input.glsn()? } else { Glsn::NONE };
    let expiries = match flags & HAS_EXPIRIES {
        0 => None,
        _ => {
            let numbers = [input.varint()?, input.varint()?, input.varint()?, input.varint()?];
            Some(ExpiryRange::of_numbers(numbers).ok_or(IMPOSSIBLE_RUN)?)
        }
    };
    let packed = if flags & HAS_PACKED > 0 { Some(input.u32()?) } else { None };
    let mut blobs = Vec::new();
    for _ in 0..input.varint()? {
        let blob = BlobId(input.varint()?);
        // Ids begin at 1, so zeros cannot fill the memory.
        if blob.0 == 0 || blobs.last().is_some_and(|last| *last > blob) {
            return Err(IMPOSSIBLE_RUN);
        }
        blobs.push(blob);
    }
    let sound = root < pages
        && packed.is_none_or(|file_pages| Shape { pages, file_pages }.is_possible())
        && (packed.is_none() || matches!(id, TableId::Run(_)))
        && (1..=u64::MAX).contains(&versions)
        && deletions <= versions
        && expiries.is_none_or(|expiries| expiries.values <= versions - deletions)
        && first_key <= last_key
        && min_glsn <= max_glsn
        && fixed_glsn.is_none_or(|glsn| glsn == min_glsn && glsn == max_glsn);
    if !sound {
        return Err(IMPOSSIBLE_RUN);
    }
    Ok(TableInfo {
        id,
        pages,
        root,
        versions,
        deletions,
        first_key,
        last_key,
        min_glsn,
        max_glsn,
        min_pointer,
        log_bytes,
        expiries,
        blobs,
        fixed_glsn,
        absorbed,
        packed,
    })
}
