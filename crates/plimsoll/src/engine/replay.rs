//! Replays the log beyond the index's checkpoint into the index.
//!
//! No read begins before the replay has ended, so versions are deferred: written as they come, and linked in batches in the order of their
//! keys. That is several times cheaper than finding the place of each in a memtable that does not fit into the processor's caches.

use std::iter;
use std::sync::Arc;

use plimsoll_log::entry::EntryView;
use plimsoll_log::glsn::{Glsn, StreamId};
use plimsoll_log::log::Log;
use plimsoll_memory::budget::Budget;
use plimsoll_memory::page::PAGE_BYTES;

use crate::borders::{Border, hit};
use crate::index::Index;
use crate::index::reservation::{Link, Reservation};
use crate::txn::payload::{Operations, Payload, Writes};
use crate::txn::spill::open_table;
use crate::types::error::{Error, Lift, Result};
use crate::types::version::Stored;

/// Memtable room is reserved this many bytes at a time, or this part of a memtable (a divisor) if that is less: a reservation costs as much
/// as a small transaction.
const ROOM_BYTES: usize = 64 << 10;
const ROOM_PART: u64 = 16;

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

/// Replays everything after `from`. `progress` is called with the GLSN of each transaction, and the last GLSN.
pub(crate) fn replay(
    log: &Arc<dyn Log>,
    budget: &Budget,
    index: &Index,
    from: Glsn,
    progress: &mut dyn FnMut(Glsn, Glsn),
) -> Result<Replayed> {
    let bounds = log.bounds();
    let last = Glsn(bounds.next.0 - 1);
    if from.next() < bounds.first {
        return Err(Error::corrupt(format!(
            "the index ends at GLSN {from}, but the log begins only at {}: what lies between is lost; `plimsoll verify` says what helps",
            bounds.first
        )));
    }
    let mut replayed = Replayed { last: last.max(from), transactions: 0, bytes: 0 };
    if from >= last {
        return Ok(replayed);
    }
    let mut replay = Replay { log, budget, index, applied: from, room: None };
    let mut scan = log.scan(from.next()..last.next(), Some(StreamId::TRANSACTIONS)).lift()?;
    while let Some(entry) = scan.next() {
        let entry = entry.lift()?;
        replay.apply(&entry)?;
        replayed.transactions += 1;
        replayed.bytes += entry.payload.len() as u64;
        progress(replay.applied, last);
    }
    index.stop_deferring();
    Ok(replayed)
}

struct Replay<'a> {
    log: &'a Arc<dyn Log>,
    budget: &'a Budget,
    index: &'a Index,
    /// The last GLSN applied to the index.
    applied: Glsn,
    /// Room for the next commits.
    room: Option<Reservation<'a>>,
}

impl<'a> Replay<'a> {
    fn apply(&mut self, entry: &EntryView<'_>) -> Result<()> {
        let glsn = entry.meta.glsn;
        match Payload::decode(entry.payload)?.writes {
            Writes::Operations(operations) => {
                let room_bytes = room_bytes(operations.uncompared())?;
                let room = self.make_room(room_bytes)?;
                room.apply(glsn, entry.payload.len() as u64, Link::Later, in_order(operations, glsn))?;
            }
            Writes::Runs(runs) => {
                let mut infos = Vec::with_capacity(runs.len());
                for blobs in &runs {
                    let tables = blobs.iter().map(|&blob| open_table(self.log, self.budget, blob, glsn));
                    infos.push(tables.map(|table| Ok((*table?.info).clone())).collect::<Result<Vec<_>>>()?);
                }
                // It closes the memtable.
                self.room = None;
                hit(Border::SpilledReplay);
                let pages: u64 = infos.iter().flatten().map(|info| u64::from(info.pages)).sum();
                self.index.pay(pages * PAGE_BYTES as u64);
                self.index.hold_back()?;
                self.index.adopt(infos, glsn)?;
            }
        }
        self.applied = glsn;
        Ok(())
    }

    fn make_room(&mut self, bytes: usize) -> Result<&mut Reservation<'a>> {
        if self.room.as_ref().is_none_or(|room| room.left_bytes() < bytes) {
            self.room = None;
            let part = (self.index.memtable_limit_bytes() / ROOM_PART) as usize;
            let ahead = bytes.max(part.min(ROOM_BYTES));
            self.index.pay(ahead as u64);
            self.index.hold_back()?;
            self.room = Some(match self.index.make_room(ahead, self.applied) {
                Err(Error::OutOfBudget(_)) if ahead > bytes => self.index.make_room(bytes, self.applied)?,
                made => made?,
            });
        }
        Ok(self.room.as_mut().expect("made above"))
    }
}

/// The versions of the commit at `glsn`; an error if their keys are not ascending.
fn in_order<'v>(
    mut operations: Operations<'v>,
    glsn: Glsn,
) -> impl Iterator<Item = Result<(&'v [u8], Stored<'v>)>> + Clone + use<'v> {
    let mut before: Option<&[u8]> = None;
    iter::from_fn(move || operations.next().transpose()).map(move |operation| {
        let operation = operation?;
        if before.is_some_and(|before| before >= operation.key) {
            return Err(Error::corrupt(format!(
                "the transaction at GLSN {glsn} does not name its keys in their order although its checksum is right; see `plimsoll verify`"
            )));
        }
        before = Some(operation.key);
        Ok((operation.key, operation.stored))
    })
}

fn room_bytes(mut operations: Operations<'_>) -> Result<usize> {
    let mut bytes = 0;
    while let Some(operation) = operations.next()? {
        bytes += Index::entry_bytes(operation.key.len(), operation.stored.max_bytes());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use plimsoll_log::draft::{Draft, DraftEntry};

    use super::*;
    use crate::engine::open::open;
    use crate::txn::payload::{encode_delete, encode_head};
    use crate::types::options::Options;

    #[test]
    fn a_transaction_that_names_its_keys_out_of_order_or_twice_is_refused() {
        for keys in [[b"\0\0\0\x01b", b"\0\0\0\x01a"], [b"\0\0\0\x01a", b"\0\0\0\x01a"]] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("store");
            let options = || Options::new().memory_bytes(16 << 20).background(false);
            let store = open(&path, options()).unwrap();
            let mut payload = Vec::new();
            encode_head(b"", 2, &mut payload);
            keys.iter().for_each(|key| encode_delete(*key, &mut payload));
            let parts = [&payload[..]];
            let entries = [DraftEntry { stream: StreamId::TRANSACTIONS, parts: &parts }];
            let ticket =
                store.reader.log.submit(&Draft { entries: &entries, read_at: Glsn::NONE, blobs: &[] }, None).unwrap();
            store.reader.log.wait_durable(ticket.last).unwrap();
            drop(store);
            assert!(matches!(open(&path, options()), Err(Error::Corrupt { .. })));
        }
    }
}
