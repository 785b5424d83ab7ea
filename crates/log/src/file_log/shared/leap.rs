//! Resumes after a trimmed part of the log, for a process for which the log is not retained and
//! that had not loaded the trimmed records.
//!
//! Invariant: the skipped records are in the index, up to the checkpoint of the manifest that the
//! caller has read. The log is never trimmed beyond that.

use crate::error::LogError;
use crate::file_log::files::names::FileName;
use crate::file_log::open_log::OpenLog;
use crate::file_log::segments::header_file::{open_header, read_header};
use crate::file_log::shared::catch_up::follow;
use crate::file_log::tail::order::{End, Order};
use crate::glsn::Glsn;

/// Continues reading at the oldest existing segment. Entries up to `known` need not be read.
/// Returns the first GLSN to read.
pub(crate) fn leap(log: &OpenLog, order: &mut Order, known: Glsn) -> Result<Glsn, LogError> {
    let (options, before) = (&log.env.options, order.header.first);
    let names = options.disk.names(&options.dir)?;
    let segments = names.iter().filter_map(|name| match FileName::parse(name) {
        Some(FileName::Segment(first)) if first > before => Some(first),
        _ => None,
    });
    let first = segments.min().unwrap_or(Glsn::MAX);
    if first > known.next() {
        // The log was trimmed again, so there is a newer manifest.
        return Err(LogError::Trimmed { asked: known.next(), first });
    }
    let header = read_header(&*open_header(options, first)?, first)?;
    if first > order.end.next {
        let mut tail = log.tail.write();
        let (next, chain, timestamp) = (first, header.previous_chain, header.timestamp_floor);
        tail.end = End { next, chain, timestamp, ..tail.end };
        order.end = tail.end;
        drop(tail);
        follow(log, order, header)?;
        log.segments.cancel_sealing(before);
        log.tail.set_end(&order.end);
        log.segments.notice_trim();
    }
    Ok(order.end.next)
}
