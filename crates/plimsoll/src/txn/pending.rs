//! A transaction's updates that are computed when it is ordered.
//!
//! Invariant: no key has both a pending update and a write in the write set.

use std::collections::BTreeMap;
use std::ops::Bound;

use plimsoll_memory::budget::OutOfBudget;
use plimsoll_memory::budget::account::Charge;

use crate::index::iter::handle::Iterators;
use crate::read::span::Span;
use crate::types::update::Update;

/// Maximum size of pending updates, which bounds the work under the commit lock. Further updates
/// read and write at once, like a get and a put.
pub(crate) const LIMIT_BYTES: usize = 64 << 10;

/// Size of a pending update without its key and operands.
const UPDATE_BYTES: usize = 128;

/// The updates of one key, in order.
pub(crate) type Updates<'f> = Vec<Update<'f>>;

/// Pending updates by index key.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    map: BTreeMap<Vec<u8>, Updates<'static>>,
    bytes: usize,
    charge: Option<Charge>,
}

impl Pending {
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// The updates of a key.
    pub(crate) fn of(&self, key: &[u8]) -> Option<&Updates<'static>> {
        self.map.get(key)
    }

    /// Whether there is room for an update.
    pub(crate) fn has_room(&self, key: &[u8], update: &Update<'_>) -> bool {
        self.bytes + bytes_of(key, update) <= LIMIT_BYTES
    }

    /// Adds an update after the existing ones of the key.
    pub(crate) fn push(
        &mut self,
        iterators: &Iterators,
        key: &[u8],
        update: &Update<'static>,
    ) -> Result<(), OutOfBudget> {
        let bytes = self.bytes + bytes_of(key, update);
        self.charge.get_or_insert_with(|| iterators.charge()).set(bytes as u64)?;
        self.bytes = bytes;
        let updates = self.map.entry(key.to_vec()).or_default();
        if !updates.last_mut().is_some_and(|last| last.fold(update)) {
            updates.push(update.clone());
        } else if !matches!(update, Update::Append(_)) {
            // Many additions to one counter take the room of one.
            self.bytes -= bytes_of(key, update);
        }
        Ok(())
    }

    /// Removes the updates of a key.
    pub(crate) fn take(&mut self, key: &[u8]) -> Option<Updates<'static>> {
        let taken = self.map.remove(key);
        if self.map.is_empty() {
            self.bytes = 0;
        }
        taken
    }

    /// Bytes that are charged, and bytes held. The charge may include updates that are no longer
    /// pending.
    #[cfg(feature = "testing")]
    pub(crate) fn charges(&self) -> (u64, u64) {
        let of_key = |(key, updates): (&Vec<u8>, &Updates<'_>)| {
            let of_update = |update: &Update<'_>| size_of::<Update<'_>>() + update.bytes();
            key.len() + updates.iter().map(of_update).sum::<usize>()
        };
        let held: usize = self.map.iter().map(of_key).sum();
        (self.charge.as_ref().map_or(0, Charge::bytes), held as u64)
    }

    /// The first key.
    pub(crate) fn first(&self) -> Option<&[u8]> {
        self.map.first_key_value().map(|(key, _)| key.as_slice())
    }

    /// The keys with updates in a span, in order.
    pub(crate) fn in_span(&self, span: &Span) -> impl Iterator<Item = &[u8]> {
        let bounds: (Bound<&[u8]>, Bound<&[u8]>) = match span.is_empty() {
            true => (Bound::Unbounded, Bound::Excluded(&[])),
            false => (span.lower(), span.upper()),
        };
        self.map.range::<[u8], _>(bounds).map(|(key, _)| key.as_slice())
    }

    /// All updates, in key order.
    pub(crate) fn into_updates<'f>(self) -> impl Iterator<Item = (Vec<u8>, Updates<'f>)> {
        self.map.into_iter().map(|(key, updates)| (key, updates as Updates<'f>))
    }
}

fn bytes_of(key: &[u8], update: &Update<'_>) -> usize {
    key.len() + update.bytes() + UPDATE_BYTES
}
