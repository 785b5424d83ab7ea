//! Replays the log beyond the index's checkpoint into the index.
//!
//! No read begins before the replay has ended, so versions are inserted lazily: written in log
//! order, and linked in batches in key order. That is several times cheaper than finding the
//! position of each version in a memtable that does not fit into the processor's caches.

use std::sync::Arc;

use plimsoll_log::file_log::FileLog;
use plimsoll_log::glsn::{Glsn, StreamId};
use plimsoll_memory::budget::Budget;

use crate::index::OpenIndex;
use crate::txn::apply::{Apply, When};
use crate::types::error::{Error, Lift, Result};

/// The result of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replayed {
    /// The last GLSN of the log.
    pub(crate) last: Glsn,
    /// Transactions replayed.
    pub(crate) transactions: u64,
    /// Bytes of their entries.
    pub(crate) bytes: u64,
}

/// Replays everything after `from`.
pub(crate) fn replay(
    log: &Arc<FileLog>,
    budget: &Budget,
    index: &OpenIndex,
    from: Glsn,
) -> Result<Replayed> {
    let bounds = log.bounds();
    // Records that other members have ordered and that are not readable yet are applied later.
    let last = Glsn(bounds.next.0 - 1).min(log.readable());
    if from.next() < bounds.first {
        return Err(Error::damaged(format_args!(
            "the index ends at GLSN {from}, but the log begins only at {}: the commits in between \
             are lost",
            bounds.first
        )));
    }
    let mut replayed = Replayed { last: last.max(from), transactions: 0, bytes: 0 };
    if from >= last {
        return Ok(replayed);
    }
    let mut apply = Apply::new(log, budget, index, When::Opening, from);
    let mut scan = log.scan(from.next()..last.next(), Some(StreamId::TRANSACTIONS)).lift()?;
    while let Some(entry) = scan.next_entry() {
        let entry = entry.lift()?;
        apply.apply(&entry).map_err(|error| error.at_glsn(entry.meta.glsn))?;
        replayed.transactions += 1;
        replayed.bytes += entry.payload.len() as u64;
    }
    index.memtables.stop_deferring();
    Ok(replayed)
}

#[cfg(test)]
mod tests {
    use plimsoll_log::draft::{Draft, DraftEntry};

    use super::*;
    use crate::engine::open::open;
    use crate::txn::payload::{encode_head, encode_operation};
    use crate::types::options::Options;
    use crate::types::version::Stored;

    #[test]
    fn a_transaction_with_unordered_or_duplicate_keys_is_refused() {
        for keys in [[b"\0\0\0\x01b", b"\0\0\0\x01a"], [b"\0\0\0\x01a", b"\0\0\0\x01a"]] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("store");
            let options = || Options::new().memory_bytes(16 << 20).background(false);
            let store = open(&path, options()).unwrap();
            let mut payload = Vec::new();
            encode_head(b"", &[], 2, &mut payload);
            for key in keys {
                encode_operation(key, Stored::Deleted, &mut payload);
            }
            let parts = [&payload[..]];
            let entries = [DraftEntry { stream: StreamId::TRANSACTIONS, parts: &parts }];
            let ticket = store.reader.log.submit(&Draft::of(&entries), None).unwrap();
            store.reader.log.wait_durable(ticket.last).unwrap();
            drop(store);
            assert!(matches!(open(&path, options()), Err(Error::Corrupt { .. })));
        }
    }
}
