//! Gives each record its GLSNs and writes it into the buffer: the only place that assigns the
//! order.
//!
//! Syncing is the job of `durability`: a record here is ordered but not yet durable. Invariants:
//! 1. Records are written in GLSN order without gaps.
//! 2. All room that a record needs (in the file, in the buffer, for its entry offsets) is reserved
//!    before any of it is written. If a reservation fails, nothing was changed and the log stays
//!    usable.
//! 3. The file has space for every accepted record: zeros are written or space is allocated ahead,
//!    so that a full disk is detected here and not at the sync.

mod record_writer;
mod shared_segment;

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use plimsoll_disk::vfs::File;
use plimsoll_memory::chunk::CHUNK_BYTES;

use crate::draft::{CommitTimes, Draft, MAX_BLOBS, MAX_BODY_BYTES, Ticket};
use crate::durability::Durability;
use crate::error::LogError;
use crate::file_log::append::record_writer::{FragmentSeal, write_mark_fragment, write_record};
use crate::file_log::durability::writer::SegmentWriter;
use crate::file_log::files::zeros::{has_no_room, write_zeros};
use crate::file_log::open_log::OpenLog;
use crate::file_log::segments::create::begin_segment;
use crate::file_log::segments::entry_offsets::EntryOffsets;
use crate::file_log::segments::list::Sealing;
use crate::file_log::segments::offset_table::OffsetTable;
use crate::file_log::tail::order::{End, Order};
use crate::file_log::tail::segment_source::new_segment;
use crate::format::fragment::FRAGMENT_HEADER_BYTES;
use crate::format::layout::place_record;
use crate::format::offset_table::{NamedBlob, TableHeader};
use crate::format::record::{
    BLOB_REF_BYTES, ENTRY_HEADER_BYTES, MARK_BYTES, MAX_ENTRIES, Mark, RECORD_HEADER_BYTES,
    RecordHeader, entry_bytes,
};
use crate::format::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::format::{BLOCK_BYTES, segment_seed};
use crate::glsn::Glsn;

/// The most bytes that are zeroed ahead at a time while commits are small.
const ZERO_STEP_MAX: u64 = 1 << 20;
/// The most bytes that are allocated ahead at a time. If a segment ends early, sealing it frees the
/// unused part.
const ALLOCATE_STEP_MAX: u64 = 8 << 20;

/// Bytes zeroed ahead at a time while records or groups are large, so that the records replace the
/// zeros before these reach the disk. Zeros further ahead would be written to the disk by the next
/// sync, and overwritten by a later one.
const ZERO_STEP_BULK: u64 = BLOCK_BYTES as u64;
/// Records, and groups that are synced together, are large from this size on.
const BULK_GROUP_BYTES: u64 = 256 << 10;

/// The maximum by which the log's time may be ahead of the clock, in microseconds: one day. Beyond
/// that, nothing is appended.
///
/// A record's timestamp is greater than that of the record before it, so that a time can be mapped
/// to a GLSN. After one record under a clock that was ahead, the timestamps of later records would
/// hardly advance until the clock reaches that time, so their versions would not age, and no time
/// in between could be looked up. So the lead is bounded. A day is more than a wrong time zone or a
/// wrong hardware clock usually causes; within it, timestamps advance by one microsecond per
/// record.
///
/// Beyond the bound the log cannot know which clock is wrong, the earlier one or the present one.
/// If it trusted the present clock while that is behind (1970, before the network sets it), all
/// older records would appear decades old once the clock is set, and a retention by age would drop
/// them. So the operator has to decide: set the clock, or restart the log's time
/// ([`restart_time`]).
pub(crate) const LEAD_MAX_MICROS: u64 = 24 * 60 * 60 * 1_000_000;

/// A divisor: a segment is sealed in the background only if its entry offsets take at most this
/// part of the budget, because until it is sealed they are in memory together with those of the
/// next segment.
const BEHIND_PART: u64 = 64;

/// The sizes of a draft.
#[derive(Clone, Copy, Debug)]
struct DraftSizes {
    head_bytes: usize,
    body_bytes: usize,
    entries: u32,
}

impl DraftSizes {
    fn of(draft: &Draft<'_>) -> Result<Self, LogError> {
        if draft.entries.is_empty() || draft.entries.len() > MAX_ENTRIES {
            let what = format!(
                "a record has 1 to {MAX_ENTRIES} entries, this one {}",
                draft.entries.len()
            );
            return Err(LogError::InvalidDraft { what });
        }
        if draft.blobs.len() > MAX_BLOBS {
            let what = format!(
                "a record has at most {MAX_BLOBS} blob files, this one {}",
                draft.blobs.len()
            );
            return Err(LogError::InvalidDraft { what });
        }
        let (mut payload, mut body) = (0u64, 0u64);
        for entry in draft.entries {
            let bytes = entry.parts.iter().map(|part| part.len() as u64).sum::<u64>();
            payload += bytes;
            if payload > MAX_BODY_BYTES as u64 {
                return Err(LogError::TooLarge {
                    bytes: payload,
                    limit_bytes: MAX_BODY_BYTES as u64,
                });
            }
            body += entry_bytes(bytes as usize) as u64;
        }
        let head_bytes = RECORD_HEADER_BYTES + draft.blobs.len() * BLOB_REF_BYTES;
        Ok(Self { head_bytes, body_bytes: body as usize, entries: draft.entries.len() as u32 })
    }

    fn record_bytes(&self) -> usize {
        self.head_bytes + self.body_bytes
    }

    /// The record's start, if the segment's bytes end at `end`, and an upper bound of its end.
    fn place(&self, end: u32) -> (u64, u64) {
        place_record(end, self.head_bytes + ENTRY_HEADER_BYTES, self.record_bytes())
    }
}

fn seal_of(order: &Order) -> FragmentSeal {
    FragmentSeal {
        segment_seed: segment_seed(order.header.log_id, order.header.first),
        epoch: order.epoch,
    }
}

/// Assigns a record its place in the order, in a log that this process has alone.
pub(crate) fn submit(
    log: &OpenLog,
    draft: &Draft<'_>,
    expected: Option<Glsn>,
) -> Result<Ticket, LogError> {
    submit_in_order(log, &mut *log.tail.order()?, draft, expected)
}

/// Assigns a record its place in the order, for a caller that has the right to append.
pub(crate) fn submit_in_order(
    log: &OpenLog,
    order: &mut Order,
    draft: &Draft<'_>,
    expected: Option<Glsn>,
) -> Result<Ticket, LogError> {
    let placed = place(log, order, draft, expected)?;
    publish(log, order)?;
    if log.env.options.durability == Durability::Buffered {
        log.durability.group.notify_followers();
        log.durability.appended(placed.bytes);
    }
    Ok(placed.ticket)
}

/// A record that has its place in the order.
pub(crate) struct Placed {
    pub(crate) ticket: Ticket,
    /// An upper bound of its bytes in the segment.
    bytes: u64,
}

/// Assigns a record its place in the order without publishing it to the other members. The caller
/// calls [`publish`] after one or more records.
pub(crate) fn place(
    log: &OpenLog,
    order: &mut Order,
    draft: &Draft<'_>,
    expected: Option<Glsn>,
) -> Result<Placed, LogError> {
    check_next(order, expected)?;
    let timestamp_micros = time_after(log, order.end.timestamp, draft.times)?;
    place_at(log, order, draft, timestamp_micros)
}

/// Appends a record that was ordered elsewhere: `first` is the GLSN of its first entry, and the
/// record has this time.
pub(crate) fn submit_ordered(
    log: &OpenLog,
    draft: &Draft<'_>,
    first: Glsn,
    timestamp_micros: u64,
) -> Result<Ticket, LogError> {
    let order = &mut *log.tail.order()?;
    check_next(order, Some(first))?;
    if timestamp_micros <= order.end.timestamp {
        let what = format!(
            "the record at GLSN {first} is not younger than the one before it ({timestamp_micros} \
             and {} microseconds)",
            order.end.timestamp
        );
        return Err(LogError::InvalidDraft { what });
    }
    let placed = place_at(log, order, draft, timestamp_micros)?;
    if log.env.options.durability == Durability::Buffered {
        log.durability.group.notify_followers();
        log.durability.appended(placed.bytes);
    }
    Ok(placed.ticket)
}

/// Fails if no log accepts the record because of its sizes.
pub(crate) fn check_draft(draft: &Draft<'_>) -> Result<(), LogError> {
    DraftSizes::of(draft).map(drop)
}

fn check_next(order: &Order, expected: Option<Glsn>) -> Result<(), LogError> {
    let next = order.end.next;
    match expected.filter(|expected| *expected != next) {
        Some(expected) => Err(LogError::Conflict { expected, next }),
        None => Ok(()),
    }
}

/// The time of a record that is committed now: that of the clock, but later than the record before
/// it, whose time is `last_micros`.
fn time_after(log: &OpenLog, last_micros: u64, times: CommitTimes) -> Result<u64, LogError> {
    let now = log.env.options.clock.wall_micros();
    let ahead_micros = last_micros.saturating_sub(now);
    // Acquire: pairs with the store in `FileLog::allow_time_lead`.
    if ahead_micros > LEAD_MAX_MICROS && !log.env.is_restarting_time.load(Ordering::Acquire) {
        return Err(LogError::ClockBehind { ahead_micros });
    }
    let timestamp_micros = now.max(last_micros + 1);
    times.check(timestamp_micros)?;
    Ok(timestamp_micros)
}

/// As [`place`], with a time that was chosen for the record.
fn place_at(
    log: &OpenLog,
    order: &mut Order,
    draft: &Draft<'_>,
    timestamp_micros: u64,
) -> Result<Placed, LogError> {
    let sizes = DraftSizes::of(draft)?;
    log.durability.group.check()?;
    let next = order.end.next;
    let (start, bound) = reserve_room(log, order, &sizes, draft.blobs.len())?;
    let header = RecordHeader {
        first: next,
        read_at: draft.read_at,
        previous_chain: order.end.chain,
        durable: log.durability.group.durable(),
        timestamp_micros,
        last_blob_id: log.blobs.registry.last_id(),
        body_bytes: sizes.body_bytes as u32,
        count: sizes.entries,
        blobs: draft.blobs.len() as u8,
        dropped: None,
    };
    let written = write(log, order, start, bound, &header, draft);
    written.map_err(|error| log.durability.group.poison(&error))?;
    log.blobs.registry.named(draft.blobs);
    let ticket =
        Ticket { first: next, last: header.last(), timestamp_micros: header.timestamp_micros };
    Ok(Placed { ticket, bytes: bound - start })
}

/// Publishes the placed records to the other members, once their bytes are in the file.
pub(crate) fn publish(log: &OpenLog, order: &Order) -> Result<(), LogError> {
    let Some(members) = log.env.members() else { return Ok(()) };
    let written = log
        .durability
        .writer_and_ready()
        .and_then(|(mut writer, ready)| writer.write_out(&log.tail, ready));
    // If the words are lost, the published record would be invisible to every other process.
    written
        .and_then(|_| members.table.check_words())
        .map_err(|error| log.durability.group.poison(&error))?;
    members.marks.set_end(&order.published_end());
    Ok(())
}

/// As [`publish`], if there is something to publish.
fn publish_placed(log: &OpenLog, order: &Order) -> Result<(), LogError> {
    match log.env.members() {
        Some(members) if members.marks.next() != order.end.next => publish(log, order),
        _ => Ok(()),
    }
}

/// The time at which a segment is sealed, once another one follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seal {
    /// In the background, or at the latest when the segment after it ends.
    Behind,
    /// Immediately, because the memory of its entry offsets is needed.
    Now,
}

/// Reserves all room that a record needs; starts a new segment if the active one has none.
fn reserve_room(
    log: &OpenLog,
    order: &mut Order,
    sizes: &DraftSizes,
    blobs: usize,
) -> Result<(u64, u64), LogError> {
    loop {
        let mut seal = Seal::Behind;
        let (start, bound) = sizes.place(order.end.offset);
        let fits = bound <= order.limit()
            && order.entries() + u64::from(sizes.entries) <= u64::from(order.entries_max);
        let ends_early = log.env.ends_segment(order.end.offset) && order.entries() > 0;
        if fits && !ends_early {
            match reserve_room_here(log, order, sizes, blobs, bound) {
                // A sealed segment needs no entry offsets in memory.
                Err(LogError::OutOfBudget(_)) if order.entries() > 0 => seal = Seal::Now,
                made => return made.map(|()| (start, bound)),
            }
        } else if order.entries() == 0 {
            let head = (sizes.record_bytes() + 2 * BLOCK_BYTES) as u64;
            let limit_bytes = order.limit().saturating_sub(head - sizes.body_bytes as u64);
            return Err(LogError::TooLarge { bytes: sizes.body_bytes as u64, limit_bytes });
        }
        // Publish the placed records first, because the next segment begins after the end that all
        // members know.
        publish_placed(log, order)?;
        let rolled = roll_to_new_segment(log, order, seal, order.end.timestamp);
        if rolled.is_err() && fits && ends_early && log.durability.group.check().is_ok() {
            // If there is no room for a next segment, the active one stays, because it need not
            // end.
            return reserve_room_here(log, order, sizes, blobs, bound).map(|()| (start, bound));
        }
        rolled?;
    }
}

fn reserve_room_here(
    log: &OpenLog,
    order: &mut Order,
    sizes: &DraftSizes,
    blobs: usize,
    bound: u64,
) -> Result<(), LogError> {
    {
        let mut tail = log.tail.write();
        tail.entry_offsets.reserve(sizes.entries, &log.env.options.budget)?;
        tail.blobs.reserve(blobs)?;
    }
    if bound > order.zeroed {
        order.read_extent()?;
    }
    if bound > order.zeroed {
        make_file_longer(log, order, bound)?;
    }
    Ok(())
}

/// The number of bytes to zero ahead at a time, for a record of `record_bytes`.
fn zero_step(log: &OpenLog, order: &Order, record_bytes: u64) -> u64 {
    // The group size is an average; a log that was just opened has none yet.
    let is_bulk = record_bytes.max(log.durability.group_bytes()) >= BULK_GROUP_BYTES;
    if is_bulk { ZERO_STEP_BULK } else { order.zero_step.min(ZERO_STEP_MAX) }
}

/// Extends the file to `bound` and some bytes more, so that the next syncs need not change its
/// size.
fn make_file_longer(log: &OpenLog, order: &mut Order, bound: u64) -> Result<(), LogError> {
    let least = bound.next_multiple_of(BLOCK_BYTES as u64);
    let up_to = |step: u64| {
        let wanted = (bound + step).next_multiple_of(step.min(CHUNK_BYTES as u64));
        wanted.min(u64::from(order.header.segment_bytes)).max(least)
    };
    if log.env.allocates_room() {
        let step = order.zero_step;
        // If allocating fails, zeros are written instead, and their error states why there is no
        // room.
        if let Some(room) = [up_to(step), least]
            .into_iter()
            .find(|to| order.file.allocate(order.zeroed, *to).is_ok())
        {
            order.zeroed = room;
            order.zero_step = (step * 2).min(ALLOCATE_STEP_MAX);
            return Ok(());
        }
    }
    let wanted = up_to(zero_step(log, order, bound - u64::from(order.end.offset)));
    let result = match write_zeros(&*order.file, order.zeroed, wanted) {
        Ok(()) => Ok(wanted),
        Err(error) if has_no_room(&error) => {
            write_zeros(&*order.file, order.zeroed, least).map(|()| least)
        }
        Err(error) => Err(error),
    };
    match result {
        Ok(zeroed) => {
            order.zeroed = zeroed;
            order.zero_step = (order.zero_step * 2).min(ZERO_STEP_MAX);
            Ok(())
        }
        Err(error) if has_no_room(&error) => Err(error.into()),
        Err(error) => Err(log.durability.group.poison(&error.into())),
    }
}

/// Writes a record, for which room is reserved, into the buffer, and assigns its GLSNs.
fn write(
    log: &OpenLog,
    order: &mut Order,
    start: u64,
    bound: u64,
    header: &RecordHeader,
    draft: &Draft<'_>,
) -> Result<(), LogError> {
    let mut tail = log.tail.write();
    let mut writer: Option<MutexGuard<'_, SegmentWriter>> = None;
    let blocks = bound / BLOCK_BYTES as u64 - u64::from(order.end.offset) / BLOCK_BYTES as u64;
    if blocks > 0 && tail.buffer.is_half_full() {
        // The syncing thread does not keep up, so write here. Write little at a time; otherwise one
        // record in a thousand waits until the whole buffer is written.
        drop(tail);
        log.durability.write_oldest(blocks * BLOCK_BYTES as u64)?;
        tail = log.tail.write();
    }
    let needed = tail.buffer.chunks_needed(bound);
    if needed > 0 && !tail.buffer.prepare(needed, &log.env.options.budget) {
        // The buffer is full, so wait for the writer and then write here. The tail is not locked
        // meanwhile, so that readers continue.
        drop(tail);
        // This also makes durable the blob files that this record names.
        let (mut held, ready) = log.durability.writer_and_ready()?;
        held.write_out(&log.tail, ready)?;
        tail = log.tail.write();
        tail.buffer.prepare(needed, &log.env.options.budget);
        writer = Some(held);
    }
    let written =
        write_record(&mut tail, writer.as_deref_mut(), seal_of(order), start, header, draft)?;
    for blob in draft.blobs {
        tail.blobs.push(NamedBlob {
            record_first: header.first,
            record_count: header.count,
            blob: *blob,
        });
    }
    if tail.first_timestamp == 0 {
        tail.first_timestamp = header.timestamp_micros;
    }
    order.end = End {
        offset: written.end,
        next: header.last().next(),
        chain: written.chain,
        timestamp: header.timestamp_micros,
    };
    order.marked = false;
    tail.end = order.end;
    log.tail.set_end(&order.end);
    Ok(())
}

/// Starts the next segment; the active one is sealed according to `seal`. Nothing is synced: the
/// next sync makes the old segment durable, then the new one, and then renames the new one to its
/// final name. If the disk has no room, this fails and changes nothing. The next record's timestamp
/// will be greater than `timestamp_floor`.
fn roll_to_new_segment(
    log: &OpenLog,
    order: &mut Order,
    seal: Seal,
    timestamp_floor: u64,
) -> Result<(), LogError> {
    let is_unnamed = log.durability.writer()?.unnamed.is_some();
    if is_unnamed {
        log.durability.sync_to_end()?;
    }
    let ready = log.durability.ready().map_err(|error| log.durability.group.poison(&error))?;
    let mut writer = log.durability.writer()?;
    // Check before any file is changed.
    log.durability.check_own()?;
    // Only one segment at a time waits to be sealed. The one that waits now has had the time of a
    // whole segment.
    if log.segments.is_sealing() {
        log.segments.seal(&mut writer.staging);
    }
    log.segments.reserve()?;
    let end = order.end;
    let header = SegmentHeader {
        log_id: order.header.log_id,
        epoch: order.epoch,
        first: end.next,
        previous_chain: end.chain,
        timestamp_floor,
        last_blob_id: log.blobs.registry.last_id(),
        segment_bytes: log.env.options.segment_size(),
        previous_end: end.offset,
    };
    let mut entry_offsets = EntryOffsets::default();
    let has_room = entry_offsets.reserve(1, &log.env.options.budget).is_ok();
    let step = if log.env.allocates_room() { BLOCK_BYTES as u64 } else { zero_step(log, order, 0) };
    let zeroed = step.min(u64::from(header.segment_bytes)).next_multiple_of(BLOCK_BYTES as u64);
    if let Some(members) = log.env.members() {
        drop(writer);
        return shared_segment::begin(log, members, order, header, zeroed, entry_offsets);
    }
    let file = begin_segment(&*log.env.options.disk, &log.env.options.dir, &header, zeroed)?;
    writer.write_out(&log.tail, ready).map_err(|error| log.durability.group.poison(&error))?;
    let held_bytes = log.tail.read().entry_offsets.held_bytes();
    switch_to(log, order, &mut writer, NewSegment { header, file, zeroed, entry_offsets });
    if seal == Seal::Now
        || !has_room
        || held_bytes > log.env.options.budget.limit_bytes() / BEHIND_PART
    {
        seal_now(log, &mut writer);
    }
    Ok(())
}

/// A segment that is about to become the active one.
pub(crate) struct NewSegment {
    pub(crate) header: SegmentHeader,
    pub(crate) file: Arc<dyn File>,
    /// Bytes below this exist in its file, at least as zeros.
    pub(crate) zeroed: u64,
    /// Room for its first entries.
    pub(crate) entry_offsets: EntryOffsets,
}

/// Seals the segment that was active, and keeps the memory that the first entries of the next one
/// need.
fn seal_now(log: &OpenLog, writer: &mut SegmentWriter) {
    let sealed = log.segments.seal(&mut writer.staging).and_then(Arc::into_inner);
    if let Some(OffsetTable::Memory { mut entry_offsets, .. }) = sealed {
        entry_offsets.clear();
        let mut tail = log.tail.write();
        if tail.entry_offsets.held_bytes() == 0 {
            tail.entry_offsets = entry_offsets;
        }
    }
}

/// Makes a new segment the active one; the previous one is queued to be sealed.
pub(crate) fn switch_to(
    log: &OpenLog,
    order: &mut Order,
    writer: &mut SegmentWriter,
    new: NewSegment,
) {
    let NewSegment { header, file, zeroed, entry_offsets } = new;
    log.env.files.lend_unnamed(header.first, Arc::clone(&file));
    let segment = new_segment(header, &log.env, Arc::downgrade(&log.tail));
    log.segments.push(Arc::clone(&segment));
    let mut tail = log.tail.write();
    tail.segment.seal(&header);
    let entry_offsets = std::mem::replace(&mut tail.entry_offsets, entry_offsets);
    let blobs = tail.blobs.take();
    // Queue the old segment before the tail switches, so that each entry is always found in the
    // queue or in the tail.
    log.segments.seal_later(Sealing {
        segment: Arc::clone(&tail.segment),
        header: TableHeader {
            log_id: order.header.log_id,
            first: order.header.first,
            count: entry_offsets.len(),
            chain: order.end.chain,
            first_timestamp: tail.first_timestamp,
            last_timestamp: order.end.timestamp,
            end: order.end.offset,
            streams: 0,
            blobs: 0,
        },
        table: Arc::new(OffsetTable::Memory { entry_offsets, blobs }),
        file: Arc::clone(&order.file),
    });
    tail.first = header.first;
    tail.segment = segment;
    tail.first_timestamp = 0;
    tail.buffer.restart(0);
    tail.buffer.current_mut()[..SEGMENT_HEADER_BYTES].copy_from_slice(&header.encode());
    tail.end.offset = SEGMENT_HEADER_BYTES as u32;
    // The floor differs from the last record's timestamp if the log's time is restarted.
    tail.end.timestamp = header.timestamp_floor;
    log.tail.set_end(&tail.end);
    order.end = tail.end;
    order.header = header;
    order.file = Arc::clone(&file);
    order.zeroed = zeroed.max(SEGMENT_HEADER_BYTES as u64);
    order.may_be_zeroed_further = false;
    writer.turn_to(file, header.first, SEGMENT_HEADER_BYTES as u64);
}

/// Ends the active segment if it has an entry and at least `bytes` bytes; returns whether it did.
/// If the disk or the budget has no room, the segment stays active.
pub(crate) fn end_segment_from(
    log: &OpenLog,
    order: &mut Order,
    bytes: u64,
) -> Result<bool, LogError> {
    log.durability.group.check()?;
    if u64::from(order.end.offset) < bytes || order.entries() == 0 {
        return Ok(false);
    }
    Ok(roll_to_new_segment(log, order, Seal::Behind, order.end.timestamp).is_ok())
}

/// Restarts the log's time at the clock if it is ahead of the clock: begins a segment whose
/// timestamps follow the clock again. All earlier records count as older than the beginning of that
/// segment.
pub(crate) fn restart_time(log: &OpenLog, order: &mut Order) -> Result<(), LogError> {
    log.durability.group.check()?;
    let now = log.env.options.clock.wall_micros();
    if order.end.timestamp <= now {
        return Ok(());
    }
    if order.entries() == 0 {
        return Err(LogError::InvalidDraft {
            what: "the active segment has no entry, so no segment can follow it; try again"
                .to_owned(),
        });
    }
    roll_to_new_segment(log, order, Seal::Behind, now.saturating_sub(1))
}

/// Seals the segment that waits for it, if there is one.
pub(crate) fn seal(log: &OpenLog) -> Result<(), LogError> {
    if log.segments.is_sealing() {
        log.segments.seal(&mut log.durability.writer()?.staging);
    }
    Ok(())
}

/// Truncates the zeros or the space that was reserved ahead, which the next process would have to
/// read. If this fails, it only costs time.
pub(crate) fn cut_zeros(log: &OpenLog) {
    let Ok(mut order) = log.tail.order() else { return };
    let end = u64::from(order.end.offset).next_multiple_of(BLOCK_BYTES as u64);
    // Use the file's length, not `zeroed`, because other processes write zeros too, and a full disk
    // may have allocated only a part of the requested space.
    let is_longer = || order.file.len().is_ok_and(|len| len > end);
    if log.durability.group.check().is_ok() && is_longer() && order.file.set_len(end).is_ok() {
        order.zeroed = end;
    }
}

/// Syncs everything and writes a mark that records it, so that a bad byte in the last record is
/// never treated as a torn tail.
pub(crate) fn write_mark(log: &OpenLog) -> Result<(), LogError> {
    let mut order = log.tail.order()?;
    order.read_extent()?;
    let end = log.durability.sync_to_end()?;
    let (start, bound) = place_record(end.offset, 0, MARK_BYTES);
    let beyond = bound > u64::from(order.header.segment_bytes);
    if order.marked || order.end.next == Glsn::FIRST || beyond {
        return Ok(());
    }
    if bound > order.zeroed {
        write_zeros(&*order.file, order.zeroed, bound.next_multiple_of(BLOCK_BYTES as u64))?;
        order.zeroed = bound.next_multiple_of(BLOCK_BYTES as u64);
    }
    let mark =
        Mark { durable: Glsn(end.next.0 - 1), chain: end.chain, timestamp_micros: end.timestamp };
    {
        let mut tail = log.tail.write();
        let needed = tail.buffer.chunks_needed(bound);
        if !tail.buffer.prepare(needed, &log.env.options.budget) {
            return Ok(());
        }
        debug_assert!(start + (FRAGMENT_HEADER_BYTES + MARK_BYTES) as u64 <= bound);
        let end = write_mark_fragment(&mut tail, seal_of(&order), start, &mark.encode())?;
        tail.end.offset = end;
        order.end.offset = end;
        order.marked = true;
    }
    let synced = match log.env.members() {
        // The published durable end must not pass the last record, so the mark is written and
        // synced without publishing a durable end.
        Some(_) => write_out(log).and_then(|()| Ok(order.file.sync()?)),
        None => log.durability.write_and_sync().map(drop),
    };
    synced.map_err(|error| log.durability.group.poison(&error))
}

/// Writes what is in the buffer to the file.
fn write_out(log: &OpenLog) -> Result<(), LogError> {
    log.durability.check_locks()?;
    let (mut writer, ready) = log.durability.writer_and_ready()?;
    writer.write_out(&log.tail, ready).map(drop)
}
