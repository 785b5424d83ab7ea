//! Updates of single keys: the model computes them from the newest values when they are committed,
//! and from the transaction's snapshot when it reads them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;

use plimsoll::{Error, InvalidInput, Overflow};

use crate::content::Content;
use crate::driver::step::said;
use crate::driver::{Driver, OpenTx};
use crate::failure::{Failure, Outcome, ensure};
use crate::judge::show;
use crate::model::{Model, Writes};
use crate::op::{Change, Key, Span};

/// The updates of an open transaction that are computed at its commit, in order.
pub(super) type Updates = BTreeMap<(u8, Key), Vec<Pending>>;

/// An update.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    change: Change,
    /// Whether it fails on a value that is not a number.
    is_strict: bool,
    /// Whether the transaction may have computed it immediately rather than at its commit.
    may_be_computed: bool,
}

/// An update above this size may be computed immediately, so that the key counts as read.
const LARGE_BYTES: u32 = 8 << 10;

/// An update above this size is computed immediately.
const LARGEST_PENDING_BYTES: u32 = 64 << 10;

/// A transaction with more updates may compute further ones immediately.
const MANY: usize = 5;

impl Driver {
    pub(super) fn update(
        &mut self,
        tx: u8,
        space: u8,
        key: &Key,
        change: Change,
    ) -> Outcome<String> {
        let Some(keyspace) = self.keyspace(space)? else { return said("failed") };
        let Slot::Occupied(mut open) = self.txs.entry(tx) else { return said("no transaction") };
        let open = open.get_mut();
        let place = (space, key.clone());
        let own = open.writes.get(&place).copied();
        let now = own.unwrap_or_else(|| self.model.get(space, key, open.handle.at().0));
        let new = change.apply(now);
        let handle = &mut open.handle;
        let updated = match change {
            // The value is not a number, which `add` would reject, so use a function.
            Change::Add(by) if !is_number(now) => handle.update(&keyspace, key, move |old| {
                let old = old.and_then(|old| old.try_into().ok()).map_or(0, i64::from_le_bytes);
                Some((old + i64::from(by)).to_le_bytes().to_vec())
            }),
            Change::Add(by) => handle.add(&keyspace, key, by.into(), Overflow::Checked),
            Change::IfAbsent(value) => handle.set_if_absent(&keyspace, key, value.make()),
        };
        if updated.is_ok() {
            let is_pending = open.updates.contains_key(&place);
            if (own.is_none() || is_pending) && change.bytes() > LARGEST_PENDING_BYTES {
                // The value includes all earlier updates of the key. If it stays the same, it is
                // not written.
                open.updates.remove(&place);
                open.reads.key(space, key);
                if new == self.model.get(space, key, open.handle.at().0) {
                    open.writes.remove(&place);
                    return self.written(tx, &format!("update {} by {change}", show(key)), updated);
                }
            } else if own.is_none() || is_pending {
                let may_be_computed = open.updates.len() >= MANY || change.bytes() > LARGE_BYTES;
                if may_be_computed {
                    open.reads.perhaps_key(space, key);
                }
                let is_strict = matches!(change, Change::Add(_)) && is_number(now);
                let updates = open.updates.entry(place.clone()).or_default();
                updates.push(Pending { change, is_strict, may_be_computed });
            }
            // An update does not delete. If there is no value after it, there was none before it.
            if new.is_some() {
                open.writes.insert(place, new);
            }
        }
        self.written(tx, &format!("update {} by {change}", show(key)), updated)
    }

    /// Whether a commit was refused because an update met a value that is not a number.
    pub(super) fn is_refused_update(
        &self,
        updates: &Updates,
        committed: &plimsoll::Result<plimsoll::Glsn>,
    ) -> Outcome<bool> {
        let refusal = refusal(&self.model, updates);
        match (committed, refusal) {
            (Err(Error::InvalidInput(InvalidInput::NotANumber { key, .. })), _) => {
                ensure(updates.keys().any(|(_, updated)| updated == key), || {
                    format!("{} was refused as not a number, but was not updated", show(key))
                })?;
                Ok(true)
            }
            (Ok(_), Some(key)) if !self.in_doubt => Err(Failure::new(format!(
                "committed although the value of {} is not a number",
                show(&key)
            ))),
            _ => Ok(false),
        }
    }

    /// Whether all of them may have been computed before the commit.
    pub(super) fn may_be_computed(&self, updates: &Updates) -> bool {
        updates.values().flatten().all(|pending| pending.may_be_computed)
    }

    /// Replaces the values of updated keys by those that the commit writes.
    pub(super) fn resolve(&self, updates: &Updates, writes: &mut Writes) {
        for ((space, key), changes) in updates {
            let old = self.model.get(*space, key, self.model.newest());
            let new = changes.iter().fold(old, |value, pending| pending.change.apply(value));
            let place = (*space, key.clone());
            match new == old {
                true => drop(writes.remove(&place)),
                false => drop(writes.insert(place, new)),
            }
        }
    }
}

impl OpenTx {
    /// Records the updated keys of a span as read.
    pub(super) fn reads_updates(&mut self, space: u8, span: &Span) {
        for (of, key) in self.updates.keys() {
            if *of == space && span.contains(key) {
                self.reads.key(space, key);
            }
        }
    }

    /// Whether a get of a key records it as read.
    pub(super) fn notes_read(&self, space: u8, key: &Key) -> bool {
        let place = (space, key.clone());
        !self.writes.contains_key(&place) || self.updates.contains_key(&place)
    }

    /// Computes all updates, and records their keys as read.
    pub(super) fn compute_updates(&mut self) {
        for ((space, key), _) in std::mem::take(&mut self.updates) {
            self.reads.key(space, &key);
        }
    }

    /// Handles the overwriting of a key. Updates of it that may fail are computed first, so the key
    /// is recorded as read.
    pub(super) fn overwrites(&mut self, space: u8, key: &Key) {
        let Some(changes) = self.updates.remove(&(space, key.clone())) else { return };
        if changes.iter().any(|pending| pending.is_strict) {
            self.reads.key(space, key);
        }
    }
}

fn refusal(model: &Model, updates: &Updates) -> Option<Key> {
    let is_refused = |(space, key): &(u8, Key), changes: &[Pending]| {
        let mut value = model.get(*space, key, model.newest());
        changes.iter().any(|pending| {
            let is_refused = pending.is_strict && !is_number(value);
            value = pending.change.apply(value);
            is_refused
        })
    };
    updates
        .iter()
        .find(|(place, changes)| is_refused(place, changes))
        .map(|((_, key), _)| key.clone())
}

fn is_number(value: Option<Content>) -> bool {
    value.is_none_or(|content| content.bytes == 8)
}
