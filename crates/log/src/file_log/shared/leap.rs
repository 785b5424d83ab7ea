//! Goes on behind a part of the log that is gone: for a process for which nothing is kept, and that
//! has not taken in what was trimmed meanwhile.
//!
//! Law: what is left out was taken into the index, up to the checkpoint of the manifest that the
//! caller has read. The log is never trimmed beyond that.

use crate::error::LogError;
use crate::file_log::files::names::FileName;
use crate::file_log::open_log::OpenLog;
use crate::file_log::segments::header_file::{open_header, read_header};
use crate::file_log::shared::catch_up::follow;
use crate::file_log::tail::order::{End, Order};
use crate::glsn::Glsn;

/// Makes the oldest segment that is there the one that is read from. Everything up to `known` need
/// not be read. Returns the first GLSN that is.
pub(crate) fn leap(log: &OpenLog, order: &mut Order, known: Glsn) -> Result<Glsn, LogError> {
    let (options, before) = (&log.env.options, order.header.first);
    let names = options.disk.names(&options.dir)?;
    let segments = names.iter().filter_map(|name| match FileName::parse(name) {
        Some(FileName::Segment(first)) if first > before => Some(first),
        _ => None,
    });
    let first = segments.min().unwrap_or(Glsn::MAX);
    if first > known.next() {
        // It was trimmed once more, and there is a newer manifest.
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
        log.segments.seal_no_more(before);
        log.tail.set_next(order.end.next);
        log.segments.notice_trim();
    }
    Ok(order.end.next)
}
