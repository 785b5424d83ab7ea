//! Assembles an open log from the results of recovery.

use std::sync::{Arc, Weak};

use plimsoll_disk::random::first_id_after;
use plimsoll_disk::vfs::{DirLock, File};
use plimsoll_memory::budget::{Budget, Kind};
use plimsoll_memory::chunk::CHUNK_BYTES;

use crate::blob::BlobId;
use crate::error::LogError;
use crate::file_log::append::LEAD_MAX_MICROS;
use crate::file_log::blobs::blob_files::Blobs;
use crate::file_log::durability::DurabilityState;
use crate::file_log::durability::writer::SegmentWriter;
use crate::file_log::env::Env;
use crate::file_log::files::names::FileName;
use crate::file_log::files::rewrite::read_zero_padded;
use crate::file_log::open_log::OpenLog;
use crate::file_log::open_report::OpenReport;
use crate::file_log::options::{FileLogOptions, Mode};
use crate::file_log::recovery::active::{Active, follow_with_new_segment, most_entries};
use crate::file_log::recovery::find::LogFiles;
use crate::file_log::segments::list::Segments;
use crate::file_log::tail::buffer::TailBuffer;
use crate::file_log::tail::order::{End, Order, ZERO_STEP_MIN};
use crate::file_log::tail::segment_source::new_segment;
use crate::file_log::tail::{Tail, TailState};
use crate::format::block::check_block;
use crate::format::layout::block_of;
use crate::format::segment_header::SegmentHeader;
use crate::format::{BLOCK_BYTES, segment_seed};

/// Gap in the ids of blob files after an opening. Ids have 48 bits, and an opening uses half of
/// this gap on average, so they last for 2^29 openings.
const BLOB_GAP_BITS: u32 = 20;

const HOUR_MICROS: u64 = 60 * 60 * 1_000_000;

/// Assembles the open log.
pub(crate) fn assemble(
    options: FileLogOptions,
    mut found: LogFiles,
    mut active: Active,
    lock: Option<Box<dyn DirLock>>,
    report: &mut OpenReport,
) -> Result<OpenLog, LogError> {
    let timestamp = active.outcome.last_timestamp;
    warn_of_the_future(&options, timestamp, report);
    let mut last_blob_id = found.last_blob_id.max(active.outcome.last_blob_id);
    let is_writable = options.mode != Mode::ReadOnly;
    if is_writable && !report.created {
        let first = first_id_after(last_blob_id, options.clock.wall_micros(), BLOB_GAP_BITS);
        last_blob_id = first.saturating_sub(1).min(BlobId::LAST.0);
    }
    if active.too_many {
        active = follow_with_new_segment(&options, &mut found, active, timestamp, last_blob_id)?;
    }
    let end = End {
        offset: active.outcome.end,
        next: active.outcome.next,
        chain: active.outcome.chain,
        timestamp,
    };
    let buffer = fill_buffer(&options.budget, &*active.file, &active.header, end)?;
    // A read-only log that follows other processes applies their appends as they do.
    let (order, writer) = match is_writable || options.shared.is_some() {
        true => Some(order_and_writer(&options, &mut active, end)?).unzip(),
        false => (None, None),
    };
    let env = Arc::new(Env::new(options, active.header.log_id));
    let tail = Arc::new_cyclic(|tail: &Weak<Tail>| {
        let state = TailState {
            first: active.header.first,
            segment: new_segment(active.header, &env, tail.clone()),
            first_timestamp: active.outcome.first_timestamp,
            entry_offsets: active.entry_offsets,
            blobs: active.blobs,
            buffer,
            end,
        };
        Tail::new(state, order)
    });
    let mut list = Vec::with_capacity(found.headers.len());
    for pair in found.headers.windows(2) {
        let segment = new_segment(pair[0], &env, Arc::downgrade(&tail));
        segment.seal(&pair[1]);
        list.push(segment);
    }
    list.push(Arc::clone(&tail.read().segment));
    let segments = Arc::new(Segments::new(list, &env)?);
    let durability = Arc::new(DurabilityState::new(&env, &tail, writer, lock));
    let blobs = Arc::new(Blobs::new(&env, &segments, &durability, last_blob_id)?);
    Ok(OpenLog { env, segments, tail, durability, blobs })
}

/// The state of appending and of writing.
fn order_and_writer(
    options: &FileLogOptions,
    active: &mut Active,
    end: End,
) -> Result<(Order, SegmentWriter), LogError> {
    active.entry_offsets.reserve(1, &options.budget)?;
    let order = Order {
        file: Arc::clone(&active.file),
        header: active.header,
        epoch: active.epoch,
        end,
        zeroed: active
            .file
            .len()?
            .min(u64::from(active.header.segment_bytes))
            .max(u64::from(end.offset)),
        may_be_zeroed_further: options.shared.is_some(),
        zero_step: ZERO_STEP_MIN,
        entries_max: most_entries(options),
        marked: active.outcome.marked,
    };
    // If several processes share the log, the first sync rewrites the last block.
    let is_again = active.left_as_found && options.shared.is_none();
    let writer = SegmentWriter {
        file: Arc::clone(&active.file),
        written: u64::from(end.offset),
        again_from: is_again
            .then_some(u64::from(end.offset) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64),
        unsynced: 0,
        behind: None,
        unnamed: None,
        staging: options.budget.take(Kind::LogBuffer)?,
        group_bytes: Arc::default(),
    };
    Ok((order, writer))
}

/// Warns of a timestamp that is so far ahead of the clock that appends are refused.
fn warn_of_the_future(options: &FileLogOptions, last: u64, report: &mut OpenReport) {
    let now = options.clock.wall_micros();
    if last <= now.saturating_add(LEAD_MAX_MICROS) {
        return;
    }
    let hours = (last - now) / HOUR_MICROS;
    report.warnings.push(format!(
        "the last commit's time is {hours} hours ({} µs) ahead of this machine's clock, so commits \
         are refused; set the clock if it is wrong, or, if it is right, restart the log's time \
         (`plimsoll restart-time`)",
        last - now
    ));
}

/// The buffer with the bytes of the last chunk up to `end`. The walk has checked them, but this
/// copy is kept, so check it again.
fn fill_buffer(
    budget: &Budget,
    file: &dyn File,
    header: &SegmentHeader,
    end: End,
) -> Result<TailBuffer, LogError> {
    let mut buffer = TailBuffer::new(budget)?;
    buffer.restart(u64::from(end.offset));
    let start = buffer.base();
    let filled = (u64::from(end.offset) - start) as usize;
    let bytes = buffer.current_mut();
    read_zero_padded(file, &mut bytes[..filled], start)?;
    let seed = segment_seed(header.log_id, header.first);
    for (number, block) in (block_of(start) as u32..)
        .zip(bytes[..filled.next_multiple_of(BLOCK_BYTES)].chunks(BLOCK_BYTES))
    {
        check_block(block, number, seed).map_err(|bad| LogError::Corrupt {
            glsn: end.next,
            file: FileName::Segment(header.first).name(),
            offset: u64::from(number) * BLOCK_BYTES as u64 + bad.at as u64,
            what: format!(
                "{}, although it was intact a moment ago: the disk or the memory is failing",
                bad.what
            ),
        })?;
    }
    Ok(buffer)
}

const _: () = assert!(CHUNK_BYTES.is_multiple_of(BLOCK_BYTES));
