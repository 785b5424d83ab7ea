//! Puts what the log holds beyond the index's checkpoint into the index again.

use std::sync::Arc;

use plimsoll_log::entry::EntryView;
use plimsoll_log::glsn::{Glsn, StreamId};
use plimsoll_log::log::Log;
use plimsoll_memory::budget::Budget;

use crate::error::{Error, Result};
use crate::index::Index;
use crate::payload::{Operations, Payload, Writes};
use crate::spill::open_partition;
use crate::version::{MAX_STORED_BYTES, Stored, Version};
use crate::write_path::stored_bytes;

/// Replays everything from behind `from` on; returns the last GLSN. `progress` hears the GLSN of each
/// transaction, and the last.
pub(crate) fn replay(
    log: &Arc<dyn Log>,
    budget: &Budget,
    index: &Index,
    from: Glsn,
    progress: &mut dyn FnMut(Glsn, Glsn),
) -> Result<Glsn> {
    let bounds = log.bounds();
    let last = Glsn(bounds.next.0 - 1);
    if from.next() < bounds.first {
        return Err(Error::corrupt(format!(
            "the index ends at GLSN {from}, but the log begins only at {}: what lies between is lost; restore a backup",
            bounds.first
        )));
    }
    if from >= last {
        return Ok(last.max(from));
    }
    let mut applied = from;
    let mut scan = log.scan(from.next()..last.next(), Some(StreamId::TRANSACTIONS))?;
    while let Some(entry) = scan.next() {
        let entry = entry?;
        apply(log, budget, index, &entry, applied)?;
        applied = entry.meta.glsn;
        progress(applied, last);
    }
    Ok(last)
}

fn apply(log: &Arc<dyn Log>, budget: &Budget, index: &Index, entry: &EntryView<'_>, boundary: Glsn) -> Result<()> {
    let glsn = entry.meta.glsn;
    match Payload::decode(entry.payload)?.writes {
        Writes::Operations(operations) => {
            index.make_room(room_bytes(operations.clone())?, boundary)?;
            insert(index, operations, glsn)
        }
        Writes::Runs(runs) => {
            let mut infos = Vec::with_capacity(runs.len());
            for sides in &runs {
                let partitions = sides.iter().map(|&side| open_partition(log, budget, side, glsn));
                infos.push(partitions.map(|partition| Ok((*partition?.info).clone())).collect::<Result<Vec<_>>>()?);
            }
            index.adopt(infos, glsn)
        }
    }
}

fn room_bytes(mut operations: Operations<'_>) -> Result<usize> {
    let mut bytes = 0;
    while let Some(operation) = operations.next()? {
        bytes += Index::entry_bytes(operation.key.len(), stored_bytes(&operation.stored).min(MAX_STORED_BYTES));
    }
    Ok(bytes)
}

fn insert(index: &Index, mut operations: Operations<'_>, glsn: Glsn) -> Result<()> {
    while let Some(operation) = operations.next()? {
        let stored: Stored<'_> = operation.stored;
        index.insert(&Version { key: operation.key, glsn, stored });
    }
    Ok(())
}
