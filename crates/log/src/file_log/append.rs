//! Gives each record its GLSNs and lays it into the buffer: the only place where the order is made.
//!
//! Syncing is `syncer`'s work, so a record here is ordered but not yet durable. Laws:
//! 1. Records leave in GLSN order without gaps.
//! 2. All room that a record needs (in the file, in the buffer, for its numbers) is made before anything is laid down: what fails
//!    before leaves no trace, and the log stays usable.
//! 3. The file has bytes for whatever was accepted: they were written with zeros ahead, so a full disk shows here and not at the sync.

pub(crate) mod record_writer;
pub(crate) mod seal;

use std::sync::Arc;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use plimsoll_disk::vfs::File;
use plimsoll_memory::chunk::CHUNK_BYTES;

use crate::draft::{Draft, MAX_BODY_BYTES, MAX_SIDES, Ticket};
use crate::error::LogError;
use crate::file_log::append::record_writer::{Seal, lay_mark, lay_record};
use crate::file_log::append::seal::seal_segment;
use crate::file_log::durability::writer::Writer;
use crate::file_log::open_log::{Core, Writing, lock};
use crate::file_log::segments::entry_offsets::ENTRIES_PER_PAIR;
use crate::file_log::segments::segment::{NotCreated, create_segment, has_no_room, write_zeros};
use crate::file_log::tail::End;
use crate::format::fragment::FRAGMENT_HEADER_BYTES;
use crate::format::layout::place_record;
use crate::format::offset_table::NamedSide;
use crate::format::record::{
    ENTRY_HEADER_BYTES, MARK_BYTES, MAX_ENTRIES, Mark, RECORD_HEADER_BYTES, RecordHeader, SIDE_REF_BYTES, entry_bytes,
};
use crate::format::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::format::{BLOCK_BYTES, segment_seed};
use crate::glsn::Glsn;
use crate::log::Durability;

/// The fewest and the most bytes that are zeroed ahead at a time while commits are small.
pub(crate) const ZERO_STEP_MIN: u64 = 256 << 10;
const ZERO_STEP_MAX: u64 = 4 << 20;

/// Bytes zeroed ahead at a time while a bulk load is running: its own bytes replace them before they reach the disk.
const ZERO_STEP_BULK: u64 = CHUNK_BYTES as u64;
/// From so many bytes a sync it counts as a bulk load.
const BULK_GROUP_BYTES: u64 = 256 << 10;

/// What whoever appends knows of the end of the log.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) file: Arc<dyn File>,
    pub(crate) header: SegmentHeader,
    pub(crate) epoch: u32,
    pub(crate) end: End,
    /// The file's bytes below this were written, at least with zeros.
    pub(crate) zeroed: u64,
    pub(crate) zero_step: u64,
    /// The most entries of a segment.
    pub(crate) entries_max: u32,
    /// Whether the last fragment is a mark.
    pub(crate) marked: bool,
}

/// The most entries of a segment under a budget.
pub(crate) fn entries_max(numbers_bytes: u64) -> u32 {
    let pairs = (numbers_bytes / (2 * CHUNK_BYTES as u64)).clamp(1, 1 << 14) as u32;
    (pairs * ENTRIES_PER_PAIR).max(MAX_ENTRIES as u32)
}

/// The sizes of a draft.
#[derive(Clone, Copy, Debug)]
struct Shape {
    head_bytes: usize,
    body_bytes: usize,
    entries: u32,
}

impl Shape {
    fn of(draft: &Draft<'_>) -> Result<Self, LogError> {
        if draft.entries.is_empty() || draft.entries.len() > MAX_ENTRIES {
            let what = format!("a record has 1 to {MAX_ENTRIES} entries, this one {}", draft.entries.len());
            return Err(LogError::InvalidDraft { what });
        }
        if draft.sides.len() > MAX_SIDES {
            let what = format!("a record has at most {MAX_SIDES} side files, this one {}", draft.sides.len());
            return Err(LogError::InvalidDraft { what });
        }
        let (mut payload, mut body) = (0u64, 0u64);
        for entry in draft.entries {
            let bytes = entry.parts.iter().map(|part| part.len() as u64).sum::<u64>();
            payload += bytes;
            if payload > MAX_BODY_BYTES as u64 {
                return Err(LogError::TooLarge { bytes: payload, limit_bytes: MAX_BODY_BYTES as u64 });
            }
            body += entry_bytes(bytes as usize) as u64;
        }
        let head_bytes = RECORD_HEADER_BYTES + draft.sides.len() * SIDE_REF_BYTES;
        Ok(Self { head_bytes, body_bytes: body as usize, entries: draft.entries.len() as u32 })
    }

    fn record_bytes(&self) -> usize {
        self.head_bytes + self.body_bytes
    }

    /// Where it begins behind `end`, and an offset that it does not reach beyond.
    fn place(&self, end: u32) -> (u64, u64) {
        place_record(end, self.head_bytes + ENTRY_HEADER_BYTES, self.record_bytes())
    }
}

impl Order {
    /// Records end at or below this offset: the last block is left for a mark.
    fn limit(&self) -> u64 {
        u64::from(self.header.segment_bytes) - BLOCK_BYTES as u64
    }

    fn entries(&self) -> u64 {
        self.end.next.0 - self.header.first.0
    }

    fn seal(&self) -> Seal {
        Seal { segment_seed: segment_seed(self.header.log_id, self.header.first), epoch: self.epoch }
    }
}

/// Gives a record its place in the order.
pub(crate) fn submit(core: &Core, draft: &Draft<'_>, expected: Option<Glsn>) -> Result<Ticket, LogError> {
    let shape = Shape::of(draft)?;
    let writing = core.writing()?;
    let mut order = lock(&writing.order);
    core.syncer.check()?;
    let next = order.end.next;
    if let Some(expected) = expected.filter(|expected| *expected != next) {
        return Err(LogError::Conflict { expected, next });
    }
    let (start, bound) = make_room(core, writing, &mut order, &shape, draft.sides.len())?;
    let header = RecordHeader {
        first: next,
        read_at: draft.read_at,
        previous_chain: order.end.chain,
        durable: core.syncer.durable(),
        timestamp_micros: core.options.clock.wall_micros().max(order.end.timestamp + 1),
        side_mark: core.sides.mark(),
        body_bytes: shape.body_bytes as u32,
        count: shape.entries,
        sides: draft.sides.len() as u8,
        dropped: None,
    };
    lay(core, writing, &mut order, start, bound, &header, draft).map_err(|error| core.syncer.poison(&error))?;
    drop(order);
    core.sides.named(draft.sides);
    if core.options.durability == Durability::Buffered {
        core.syncer.tell_followers();
        core.background.unsynced(bound - start);
    }
    Ok(Ticket { first: next, last: header.last(), timestamp_micros: header.timestamp_micros })
}

/// Makes all the room that a record needs; turns to a new segment where this one has none.
fn make_room(
    core: &Core,
    writing: &Writing,
    order: &mut Order,
    shape: &Shape,
    sides: usize,
) -> Result<(u64, u64), LogError> {
    loop {
        let (start, bound) = shape.place(order.end.offset);
        let fits = bound <= order.limit() && order.entries() + u64::from(shape.entries) <= u64::from(order.entries_max);
        if fits {
            match make_room_here(core, writing, order, shape, sides, bound) {
                // A sealed segment needs no numbers in memory.
                Err(LogError::OutOfBudget(_)) if order.entries() > 0 => {}
                made => return made.map(|()| (start, bound)),
            }
        } else if order.entries() == 0 {
            let head = (shape.record_bytes() + 2 * BLOCK_BYTES) as u64;
            let limit_bytes = order.limit().saturating_sub(head - shape.body_bytes as u64);
            return Err(LogError::TooLarge { bytes: shape.body_bytes as u64, limit_bytes });
        }
        turn_to_new_segment(core, writing, order)?;
    }
}

fn make_room_here(
    core: &Core,
    writing: &Writing,
    order: &mut Order,
    shape: &Shape,
    sides: usize,
    bound: u64,
) -> Result<(), LogError> {
    {
        let mut tail = core.tail.write();
        tail.numbers.reserve(shape.entries, &core.options.budget)?;
        tail.sides.reserve(sides)?;
    }
    if bound > order.zeroed {
        zero_ahead(core, writing, order, bound)?;
    }
    Ok(())
}

/// How many bytes to zero ahead at a time.
fn zero_step(writing: &Writing, order: &Order) -> u64 {
    let bulk = writing.group_bytes.load(Ordering::Relaxed) >= BULK_GROUP_BYTES;
    if bulk { ZERO_STEP_BULK } else { order.zero_step }
}

/// Writes zeros up to `bound` and some way beyond, so that the sync of what comes next changes no size.
fn zero_ahead(core: &Core, writing: &Writing, order: &mut Order, bound: u64) -> Result<(), LogError> {
    let step = zero_step(writing, order);
    let least = bound.next_multiple_of(BLOCK_BYTES as u64);
    let wanted = (bound + step).next_multiple_of(ZERO_STEP_BULK).min(u64::from(order.header.segment_bytes)).max(least);
    let result = match write_zeros(&*order.file, order.zeroed, wanted) {
        Ok(()) => Ok(wanted),
        Err(error) if has_no_room(&error) => write_zeros(&*order.file, order.zeroed, least).map(|()| least),
        Err(error) => Err(error),
    };
    match result {
        Ok(zeroed) => {
            order.zeroed = zeroed;
            order.zero_step = (order.zero_step * 2).min(ZERO_STEP_MAX);
            Ok(())
        }
        Err(error) if has_no_room(&error) => Err(error.into()),
        Err(error) => Err(core.syncer.poison(&error.into())),
    }
}

/// Lays a record down for which there is room, and gives it its GLSNs.
fn lay(
    core: &Core,
    writing: &Writing,
    order: &mut Order,
    start: u64,
    bound: u64,
    header: &RecordHeader,
    draft: &Draft<'_>,
) -> Result<(), LogError> {
    let mut tail = core.tail.write();
    let mut writer: Option<MutexGuard<'_, Writer>> = None;
    let needed = tail.buffer.chunks_needed(bound);
    if needed > 0 && !tail.buffer.prepare(needed, &core.options.budget) {
        // The buffer is full: whoever is writing finishes first, then what is full is written here.
        drop(tail);
        let mut held = lock(&writing.writer);
        tail = core.tail.write();
        held.write_full_chunks(&mut tail)?;
        tail.buffer.prepare(needed, &core.options.budget);
        writer = Some(held);
    }
    let laid = lay_record(&mut tail, writer.as_deref_mut(), order.seal(), start, header, draft)?;
    for side in draft.sides {
        tail.sides.push(NamedSide { record_first: header.first, record_count: header.count, side: *side });
    }
    if tail.first_timestamp == 0 {
        tail.first_timestamp = header.timestamp_micros;
    }
    order.end =
        End { offset: laid.end, next: header.last().next(), chain: laid.chain, timestamp: header.timestamp_micros };
    order.marked = false;
    tail.end = order.end;
    // Release: pairs with the Acquire in `Core::next`.
    core.next.store(order.end.next.0, Ordering::Release);
    Ok(())
}

/// Seals the active segment and begins the next one. Fails without a trace if there is no space for it.
pub(crate) fn turn_to_new_segment(core: &Core, writing: &Writing, order: &mut Order) -> Result<(), LogError> {
    let mut writer = lock(&writing.writer);
    // What is in the old segment must be durable before anything in the new one is.
    let written = core.check_locks().and_then(|()| writer.write_out(&core.tail));
    let synced = written.and_then(|end| writer.sync().map(|()| end));
    let end = synced.map_err(|error| core.syncer.poison(&error))?;
    core.syncer.publish(&end);
    seal_segment(core, order, &mut writer)?;
    core.segments.reserve()?;
    let header = SegmentHeader {
        log_id: order.header.log_id,
        epoch: order.epoch,
        first: end.next,
        previous_chain: end.chain,
        timestamp_floor: end.timestamp,
        side_mark: core.sides.mark(),
        segment_bytes: core.options.segment_size(),
        previous_end: end.offset,
    };
    let zeroed = zero_step(writing, order).min(u64::from(header.segment_bytes)).next_multiple_of(BLOCK_BYTES as u64);
    let file =
        create_segment(&*core.options.disk, &core.options.dir, &header, zeroed).map_err(|error| match error {
            NotCreated::Cleanly(error) => error.into(),
            NotCreated::Perhaps(error) => core.syncer.poison(&error.into()),
        })?;
    // Zeros behind the end are of no more use; if they stay, they only take space.
    let _ = order.file.set_len(u64::from(end.offset).next_multiple_of(BLOCK_BYTES as u64));
    begin_segment(core, order, &mut writer, header, file, zeroed);
    Ok(())
}

fn begin_segment(
    core: &Core,
    order: &mut Order,
    writer: &mut Writer,
    header: SegmentHeader,
    file: Arc<dyn File>,
    zeroed: u64,
) {
    let segment = core.segment(header);
    core.segments.push(Arc::clone(&segment));
    let mut tail = core.tail.write();
    tail.segment.seal(&header);
    tail.first = header.first;
    tail.segment = segment;
    tail.first_timestamp = 0;
    tail.numbers.clear();
    tail.sides.clear();
    tail.buffer.restart(0);
    tail.buffer.current_mut()[..SEGMENT_HEADER_BYTES].copy_from_slice(&header.encode());
    tail.end.offset = SEGMENT_HEADER_BYTES as u32;
    order.end = tail.end;
    order.header = header;
    order.file = Arc::clone(&file);
    order.zeroed = zeroed.max(SEGMENT_HEADER_BYTES as u64);
    writer.turn_to(file, SEGMENT_HEADER_BYTES as u64);
}

/// Seals the active segment if it has at least `bytes`. Without room on the disk, or in the budget, it stays as it is.
pub(crate) fn seal_what_is_long(core: &Core, bytes: u64) -> Result<(), LogError> {
    let writing = core.writing()?;
    let mut order = lock(&writing.order);
    core.syncer.check()?;
    if u64::from(order.end.offset) < bytes {
        return Ok(());
    }
    let _ = turn_to_new_segment(core, writing, &mut order);
    core.syncer.check()
}

/// Cuts off the zeros that were written ahead: the next process would read them to know that they are zeros. If they stay, they only cost it time.
pub(crate) fn cut_zeros(core: &Core) {
    let Ok(writing) = core.writing() else { return };
    let mut order = lock(&writing.order);
    let end = u64::from(order.end.offset).next_multiple_of(BLOCK_BYTES as u64);
    if core.syncer.check().is_ok() && end < order.zeroed && order.file.set_len(end).is_ok() {
        order.zeroed = end;
    }
}

/// Syncs everything and notes behind it that it is durable, so that a bad byte in the last record is never taken for a torn tail.
pub(crate) fn write_mark(core: &Core) -> Result<(), LogError> {
    let writing = core.writing()?;
    let mut order = lock(&writing.order);
    core.syncer.check()?;
    let end = core.write_and_sync().map_err(|error| core.syncer.poison(&error))?;
    core.syncer.publish(&end);
    let (start, bound) = place_record(end.offset, 0, MARK_BYTES);
    let beyond = bound > u64::from(order.header.segment_bytes);
    if order.marked || order.end.next == Glsn::FIRST || beyond {
        return Ok(());
    }
    if bound > order.zeroed {
        write_zeros(&*order.file, order.zeroed, bound.next_multiple_of(BLOCK_BYTES as u64))?;
        order.zeroed = bound.next_multiple_of(BLOCK_BYTES as u64);
    }
    let mark = Mark { durable: Glsn(end.next.0 - 1), chain: end.chain, timestamp_micros: end.timestamp };
    {
        let mut tail = core.tail.write();
        let needed = tail.buffer.chunks_needed(bound);
        if !tail.buffer.prepare(needed, &core.options.budget) {
            return Ok(());
        }
        debug_assert!(start + (FRAGMENT_HEADER_BYTES + MARK_BYTES) as u64 <= bound);
        let end = lay_mark(&mut tail, order.seal(), start, &mark.encode())?;
        tail.end.offset = end;
        order.end.offset = end;
        order.marked = true;
    }
    core.write_and_sync().map(|_| ()).map_err(|error| core.syncer.poison(&error))
}
