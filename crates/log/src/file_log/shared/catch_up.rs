//! Loads the records that other members have ordered: reads them from the files, checks them, and
//! adds them to this process's tail.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_disk::vfs::{Caching, File, Open};
use plimsoll_memory::budget::{Budget, Kind};
use plimsoll_memory::chunk::CHUNK_BYTES;

use crate::blob::BlobRef;
use crate::error::LogError;
use crate::file_log::append::{NewSegment, switch_to};
use crate::file_log::files::names::FileName;
use crate::file_log::files::rewrite::read_zero_padded;
use crate::file_log::open_log::OpenLog;
use crate::file_log::segments::entry_offsets::EntryOffsets;
use crate::file_log::segments::header_file::{open_header, read_header};
use crate::file_log::segments::walk::{Outcome, Start, Visitor, walk_on};
use crate::file_log::tail::TailState;
use crate::file_log::tail::order::{End, Order};
use crate::format::BLOCK_BYTES;
use crate::format::layout::block_of;
use crate::format::offset_table::NamedBlob;
use crate::format::record::RecordHeader;
use crate::format::segment_header::SegmentHeader;
use crate::glsn::{Glsn, StreamId};
use crate::members::{Members, words};

/// Bytes that are loaded at a time: more than the largest record.
const STEP_BYTES: u64 = 4 << 20;

/// Loads everything up to the published end; in a read-only process, everything that is durable.
pub(crate) fn catch_up(
    log: &OpenLog,
    members: &Members,
    order: &mut Order,
) -> Result<(), LogError> {
    if !members.table.is_reader() {
        let end = members.marks.end();
        members.table.check_words()?;
        return catch_up_to(log, members, order, end);
    }
    if members.following.newest()? < order.end.next {
        return Ok(());
    }
    let durable = words::End::of_durable(&members.marks.durable());
    let end = words::End { timestamp: order.end.timestamp, epoch: order.epoch, ..durable };
    catch_up_to(log, members, order, end).map_err(|error| {
        log.segments.notice_trim();
        let (asked, first) = (order.end.next, log.segments.first());
        if first > asked { LogError::Trimmed { asked, first } } else { error }
    })
}

/// Waits until an entry after `glsn` is readable, whichever process ordered it.
pub(crate) fn wait_for_members(
    log: &OpenLog,
    members: &Members,
    glsn: Glsn,
    timeout: Duration,
    is_ended: &dyn Fn() -> bool,
) -> Result<(), LogError> {
    let is_there = || {
        members.following.newest().map_or(true, |newest| newest > glsn)
            || members.health.is_poisoned()
            || is_ended()
    };
    let clock = &log.env.options.clock;
    let begun = clock.monotonic_nanos();
    while !is_there() {
        let waited = Duration::from_nanos(clock.monotonic_nanos().saturating_sub(begun));
        let Some(left) = timeout.checked_sub(waited).filter(|left| !left.is_zero()) else {
            break;
        };
        members.syncs.wait_for_durable(left, &is_there);
    }
    catch_up(log, members, &mut *log.tail.order()?)
}

fn catch_up_to(
    log: &OpenLog,
    members: &Members,
    order: &mut Order,
    end: words::End,
) -> Result<(), LogError> {
    while order.header.first < end.segment {
        let next = header_after(log, order.header.first)?;
        load_active_segment(log, order, next.previous_end)?;
        if order.end.next != next.first || order.end.chain != next.previous_chain {
            return Err(diverged(
                order,
                "the segment's end does not match the beginning of the next one, which another \
                 process began",
            ));
        }
        follow(log, order, next)?;
    }
    if order.header.first == end.segment && order.end.offset < end.offset {
        load_active_segment(log, order, end.offset)?;
    }
    let here = (order.header.first, order.end.next, order.end.chain);
    if here != (end.segment, end.next, end.chain) {
        return Err(diverged(
            order,
            "the records that another process has ordered do not match the end that it published",
        ));
    }
    order.epoch = end.epoch;
    note_durable(log, members, order);
    if members.marks.log_first() > log.segments.first() {
        log.segments.notice_trim();
    }
    Ok(())
}

/// Marks as durable, in this process, the loaded records that other members have synced.
pub(crate) fn note_durable(log: &OpenLog, members: &Members, order: &Order) {
    let durable = members.marks.durable();
    let end = if durable.next <= order.end.next {
        End { next: durable.next, chain: durable.chain, ..order.end }
    } else {
        order.end
    };
    if end.next > Glsn::FIRST && end.next > log.durability.group.durable().next() {
        log.durability.group.publish(&end);
    }
}

/// The header of the segment after the one that begins with `first`.
fn header_after(log: &OpenLog, first: Glsn) -> Result<SegmentHeader, LogError> {
    let options = &log.env.options;
    let names = options.disk.names(&options.dir)?;
    let segments = names.iter().filter_map(|name| match FileName::parse(name) {
        Some(FileName::Segment(other)) if other > first => Some(other),
        _ => None,
    });
    let next = segments.min().ok_or_else(|| LogError::Corrupt {
        glsn: first,
        file: FileName::Segment(first).name(),
        offset: 0,
        what: "another process began the next segment, but its file is missing".to_owned(),
    })?;
    read_header(&*open_header(options, next)?, next)
}

fn diverged(order: &Order, what: &str) -> LogError {
    LogError::Corrupt {
        glsn: order.end.next,
        file: FileName::Segment(order.header.first).name(),
        offset: u64::from(order.end.offset),
        what: what.to_owned(),
    }
}

/// Loads the active segment up to the offset `until`.
fn load_active_segment(log: &OpenLog, order: &mut Order, until: u32) -> Result<(), LogError> {
    let budget = &log.env.options.budget;
    let mut staging = budget.take(Kind::Staging)?;
    while order.end.offset < until {
        let limit = u64::from(until).min(u64::from(order.end.offset) + STEP_BYTES);
        let mut writer = log.durability.writer()?;
        let mut tail = log.tail.write();
        let before = (tail.entry_offsets.len(), tail.blobs.list().len());
        let mut taking = Taking { tail: &mut tail, budget, complete: before };
        let start = Start {
            offset: order.end.offset,
            next: order.end.next,
            chain: order.end.chain,
            timestamp: order.end.timestamp,
            epoch: order.epoch,
        };
        let walked = walk_on(&*order.file, &order.header, start, limit, &mut staging, &mut taking);
        taking.abandon();
        let taken = walked.and_then(|outcome| {
            if outcome.end <= order.end.offset {
                let what = outcome
                    .problem
                    .map_or("the segment's records end before the published end", |problem| {
                        problem.what
                    });
                return Err(diverged(order, what));
            }
            let from = block_of(u64::from(order.end.offset)) * BLOCK_BYTES as u64;
            let read = if limit - from <= staging.len() as u64 {
                Some((from, &staging[..]))
            } else {
                None
            };
            fill(&mut tail, &*order.file, read, order.end.offset, outcome.end)?;
            Ok(outcome)
        });
        let outcome = match taken {
            Ok(outcome) => outcome,
            Err(error) => {
                // The next catch-up loads the same records again, so none of them may stay here.
                tail.entry_offsets.truncate(before.0);
                tail.blobs.truncate(before.1);
                return Err(error);
            }
        };
        advance(order, &mut tail, &outcome);
        writer.written = u64::from(outcome.end);
        log.tail.set_end(&order.end);
    }
    Ok(())
}

/// Copies the bytes between two offsets into the tail's buffer: from `read`, if that holds all of
/// them, otherwise from the file. Bytes that do not fit into the buffer are left out, because the
/// file has them.
fn fill(
    tail: &mut TailState,
    file: &dyn File,
    read: Option<(u64, &[u8])>,
    from: u32,
    to: u32,
) -> Result<(), LogError> {
    let chunk = CHUNK_BYTES as u64;
    let to = u64::from(to);
    if to >= tail.buffer.current_start() + chunk {
        tail.buffer.restart(to);
    }
    // The start may be the one that an earlier catch-up left when it failed after restarting the
    // buffer.
    let start = tail.buffer.current_start();
    let from = u64::from(from).max(start);
    let (at, end) = ((from - start) as usize, (to - start) as usize);
    if let Some((begin, bytes)) = read {
        let bytes = &bytes[(from - begin) as usize..(to - begin) as usize];
        tail.buffer.current_mut()[at..end].copy_from_slice(bytes);
        return Ok(());
    }
    Ok(read_zero_padded(file, &mut tail.buffer.current_mut()[at..end], from)?)
}

fn advance(order: &mut Order, tail: &mut TailState, outcome: &Outcome) {
    order.end = End {
        offset: outcome.end,
        next: outcome.next,
        chain: outcome.chain,
        timestamp: outcome.last_timestamp,
    };
    order.epoch = outcome.epoch;
    order.marked = outcome.marked;
    // Another process may have written zeros further ahead.
    order.zeroed = order.zeroed.max(u64::from(outcome.end));
    order.may_be_zeroed_further = true;
    if tail.first_timestamp == 0 {
        tail.first_timestamp = outcome.first_timestamp;
    }
    tail.end = order.end;
}

/// Makes the segment with this header, which another member began, the active one.
pub(super) fn follow(
    log: &OpenLog,
    order: &mut Order,
    header: SegmentHeader,
) -> Result<(), LogError> {
    let options = &log.env.options;
    let path = FileName::Segment(header.first).path(&options.dir);
    let open = if log.env.is_read_only() { Open::Read } else { Open::ReadWrite };
    let file: Arc<dyn File> = options.disk.open(&path, open, Caching::Buffered)?;
    let zeroed = file.len()?.min(u64::from(header.segment_bytes));
    let mut writer = log.durability.writer()?;
    if log.segments.is_sealing() {
        log.segments.seal(&mut writer.staging);
    }
    log.segments.reserve()?;
    let mut entry_offsets = EntryOffsets::default();
    entry_offsets.reserve(1, &options.budget)?;
    order.epoch = header.epoch;
    switch_to(log, order, &mut writer, NewSegment { header, file, zeroed, entry_offsets });
    writer.is_named();
    log.env.files.named(header.first);
    Ok(())
}

/// Adds the entries and blob files of complete records to the tail.
struct Taking<'a> {
    tail: &'a mut TailState,
    budget: &'a Budget,
    /// The numbers of entries and of blob files of complete records.
    complete: (u32, usize),
}

impl Visitor for Taking<'_> {
    fn entry(&mut self, offset: u32, stream: StreamId) -> Result<(), LogError> {
        self.tail.entry_offsets.reserve(1, self.budget)?;
        self.tail.entry_offsets.push(offset, stream);
        Ok(())
    }

    fn record(&mut self, header: &RecordHeader, blobs: &[BlobRef]) -> Result<(), LogError> {
        self.tail.blobs.reserve(blobs.len())?;
        for blob in blobs {
            self.tail.blobs.push(NamedBlob {
                record_first: header.first,
                record_count: header.count,
                blob: *blob,
            });
        }
        self.complete = (self.tail.entry_offsets.len(), self.tail.blobs.list().len());
        Ok(())
    }

    fn abandon(&mut self) {
        self.tail.entry_offsets.truncate(self.complete.0);
        self.tail.blobs.truncate(self.complete.1);
    }
}
