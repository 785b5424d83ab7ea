//! Scans the entries of a log in memory.

use std::ops::Range;
use std::sync::Arc;

use crate::entry::EntryView;
use crate::error::LogError;
use crate::glsn::{Glsn, StreamId};
use crate::log::Scan;
use crate::mem_log::Inner;

/// A scan over entries.
pub(crate) struct MemScan<'a> {
    log: &'a Inner,
    next: Glsn,
    end: Glsn,
    stream: Option<StreamId>,
    /// Bytes of the scan's current record.
    bytes: Arc<[u8]>,
    over: bool,
}

impl<'a> MemScan<'a> {
    pub(crate) fn new(log: &'a Inner, range: Range<Glsn>, stream: Option<StreamId>) -> Self {
        Self { log, next: range.start, end: range.end, stream, bytes: Arc::new([]), over: false }
    }
}

impl Scan for MemScan<'_> {
    fn next(&mut self) -> Option<Result<EntryView<'_>, LogError>> {
        let state = self.log.state();
        let last = self.log.readable(&state).min(Glsn(self.end.0.saturating_sub(1)));
        if self.over || self.next > last {
            return None;
        }
        let first = state.records.first();
        if self.next < first {
            self.over = true;
            return Some(Err(LogError::Trimmed { asked: self.next, first }));
        }
        let Some((record, index)) = state.records.find_from(self.next, last, self.stream) else {
            self.next = last.next();
            return None;
        };
        let meta = record.meta(index);
        self.next = meta.glsn.next();
        match record.checked_payload(index) {
            Ok(payload) => {
                self.bytes = Arc::clone(&record.bytes);
                Some(Ok(EntryView { meta, payload: &self.bytes[payload] }))
            }
            Err(error) => {
                self.over = true;
                Some(Err(error))
            }
        }
    }
}
