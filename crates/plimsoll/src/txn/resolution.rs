//! Resolves the updates of a commit: reads the values that they update, and computes the new ones.
//!
//! 1. [`Resolution::resolve`] reads the bases at the newest visible moment, without the commit
//!    lock: this may read files.
//! 2. [`Resolution::settle`] checks under the commit lock whether a younger version of a key
//!    exists, as the validation of reads does, and computes those again whose base has changed. The
//!    younger version is in a memtable, unless it was flushed meanwhile.
//!
//! So an update is computed at its place in the order, and the record carries plain puts and
//! deletions: no other part of the store knows updates.
//!
//! Values are computed under the lock only if they are small. Larger ones, and those of a large
//! transaction, are written to the write set before; if their base changes, the commit is refused
//! with [`Error::Conflict`] and run again.

use std::any::Any;
use std::borrow::Cow;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::account::Charge;

use crate::borders::{Border, hit};
use crate::read::moments::OpenMoment;
use crate::read::point::find;
use crate::read::reader::Reader;
use crate::txn::pending::Updates;
use crate::txn::write_set::WriteSet;
use crate::types::error::{Error, Result};
use crate::types::index_key::IndexKey;
use crate::types::invalid_input::InvalidInput;
use crate::types::value::Value;
use crate::types::version::check_value_bytes;

/// The most bytes of a value that is computed under the commit lock.
const SMALL_BYTES: u64 = 64 << 10;

/// The most bytes of such values in a commit, and of its other writes, which are encoded again
/// under the lock.
const RECORD_BYTES: u64 = 256 << 10;

/// The part of a record's body (a divisor) for such values.
const BODY_PART: u64 = 16;

/// What an operation takes in a record besides its key and its value.
const OPERATION_BYTES: u64 = 32;

/// The resolved updates of one commit, in key order.
#[derive(Default)]
pub(crate) struct Resolution<'f> {
    /// Kept open until the commit is ordered, so that no version is dropped that was read here.
    moment: Option<OpenMoment>,
    keys: Vec<Resolved<'f>>,
    /// The most bytes in the record; 0 if the values are in the write set.
    record_bytes_max: u64,
    /// Whether the values have changed since the record was encoded.
    is_stale: bool,
    /// What a user's function panicked with.
    panic: Option<Box<dyn Any + Send>>,
}

/// The outcome of the updates of a key.
pub(crate) struct Updated {
    /// The value before the updates.
    pub(crate) old: Option<Value>,
    /// The value after them.
    pub(crate) new: Option<Vec<u8>>,
}

/// The updates of one key.
struct Resolved<'f> {
    key: Vec<u8>,
    updates: Updates<'f>,
    /// The moment of the base.
    base: Glsn,
    /// The base.
    old: Option<Value>,
    new: Option<Vec<u8>>,
    /// Why it cannot be computed from this base.
    refusal: Option<Error>,
    /// For a large new value.
    charge: Option<Charge>,
}

/// A new value in the record.
#[derive(Clone, Copy)]
pub(crate) struct InRecord<'a> {
    /// Its number, for [`Resolution::value`].
    pub(crate) number: usize,
    /// Its index key.
    pub(crate) key: &'a [u8],
    /// The value; `None`: the key is deleted.
    pub(crate) value: Option<&'a [u8]>,
}

impl<'f> Resolution<'f> {
    /// Of updates by index key, in order. `open` opens the newest moment, if there are any.
    pub(crate) fn new(
        updates: impl Iterator<Item = (Vec<u8>, Updates<'f>)>,
        open: impl FnOnce() -> OpenMoment,
    ) -> Result<Self> {
        let keys: Vec<_> = updates.map(|(key, updates)| Resolved::new(key, updates)).collect();
        if keys.is_empty() {
            return Ok(Self::default());
        }
        let moment = open();
        moment.readable()?;
        Ok(Self { moment: Some(moment), keys, ..Self::default() })
    }

    /// Reads the bases and computes the new values. May be called again after an error.
    pub(crate) fn resolve(&mut self, reader: &Reader) -> Result<()> {
        let Some(base) = self.moment.as_ref().map(OpenMoment::at) else { return Ok(()) };
        for number in 0..self.keys.len() {
            self.resolve_key(reader, number, base)?;
        }
        Ok(())
    }

    /// Reads the value of a key as of `base`, and computes the new one.
    fn resolve_key(&mut self, reader: &Reader, number: usize, base: Glsn) -> Result<()> {
        let resolved = &mut self.keys[number];
        // Released first: the values hold memory.
        (resolved.old, resolved.new) = (None, None);
        resolved.old = reader.get(&resolved.key, base)?;
        match catch_unwind(AssertUnwindSafe(|| resolved.compute(reader))) {
            Ok(Ok(())) => {
                // Last: after an error, the next attempt has to compute the value.
                resolved.base = base;
                Ok(())
            }
            Ok(failed) => failed,
            Err(panic) => {
                self.panic = Some(panic);
                // Nobody sees it: the panic goes on once no lock is held.
                Err(Error::Cancelled)
            }
        }
    }

    /// Continues the panic of a user's function. Called without any lock.
    pub(crate) fn resume_panic(&mut self) {
        if let Some(panic) = self.panic.take() {
            resume_unwind(panic);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The outcome for each key.
    pub(crate) fn into_updated(self) -> Vec<Updated> {
        let updated = |Resolved { old, new, .. }| Updated { old, new };
        self.keys.into_iter().map(updated).collect()
    }

    /// Chooses whether the new values go into the record as they are computed, or into the write
    /// set now. Returns the bytes to reserve in the record.
    pub(crate) fn place(&mut self, writes: &mut WriteSet, metadata_bytes: usize) -> Result<usize> {
        if self.keys.is_empty() {
            return Ok(metadata_bytes);
        }
        let record_bytes_max = RECORD_BYTES.min(writes.body_limit_bytes() / BODY_PART);
        let reserve_bytes = metadata_bytes + record_bytes_max as usize;
        let is_small = self.keys.iter().all(Resolved::is_small)
            && self.operation_bytes() <= record_bytes_max
            && writes.fits_into_record(reserve_bytes, RECORD_BYTES);
        if is_small {
            self.record_bytes_max = record_bytes_max;
            return Ok(reserve_bytes);
        }
        for resolved in self.keys.iter().filter(|resolved| resolved.has_changed()) {
            match &resolved.new {
                Some(value) => writes.put(&resolved.key, value)?,
                None => writes.delete(&resolved.key)?,
            }
        }
        Ok(metadata_bytes)
    }

    /// Under the commit lock: computes those again whose base has changed since. `applied` is the
    /// last commit that was ordered before. Returns whether the record has to be encoded again.
    ///
    /// # Errors
    /// An update is refused for the newest value; [`Error::Conflict`] if values that were written
    /// before are out of date.
    pub(crate) fn settle(&mut self, reader: &Reader, applied: Glsn) -> Result<bool> {
        if self.keys.is_empty() {
            return Ok(false);
        }
        let changed = reader.read(|view| {
            let changed = |resolved: &Resolved<'_>| view.changed(&resolved.key, resolved.base);
            self.keys.iter().map(changed).collect::<Result<Vec<_>>>()
        })?;
        for (number, by) in changed.into_iter().enumerate() {
            let Some(by) = by else { continue };
            self.settle_key(reader, number, applied, by)?;
        }
        if self.record_bytes_max > 0 && self.operation_bytes() > self.record_bytes_max {
            let (resolved, by) = (&self.keys[0], applied);
            return Err(resolved.conflict(by));
        }
        match self.keys.iter().find_map(|resolved| resolved.refusal.clone()) {
            Some(refusal) => Err(refusal),
            None => Ok(self.is_stale),
        }
    }

    fn settle_key(
        &mut self,
        reader: &Reader,
        number: usize,
        applied: Glsn,
        by: Glsn,
    ) -> Result<()> {
        let resolved = &mut self.keys[number];
        if self.record_bytes_max == 0 {
            return Err(resolved.conflict(by));
        }
        hit(Border::UpdateRebased);
        let bytes = reader.read(|view| {
            let found = find(view, &resolved.key, applied)?;
            Ok(found.map_or(0, |version| version.stored().value_bytes()))
        })?;
        if resolved.new_bytes(bytes) > SMALL_BYTES {
            return Err(resolved.conflict(by));
        }
        self.is_stale = true;
        self.resolve_key(reader, number, applied)?;
        let resolved = &self.keys[number];
        if resolved.is_small() { Ok(()) } else { Err(resolved.conflict(by)) }
    }

    /// The record is encoded with the values as they are.
    pub(crate) fn encoded(&mut self) {
        self.is_stale = false;
    }

    /// Upper bound on the bytes of the operations in the record.
    pub(crate) fn operation_bytes(&self) -> u64 {
        let bytes = |resolved: &Resolved<'_>| {
            let value = resolved.new.as_ref().map_or(0, Vec::len) as u64;
            resolved.key.len() as u64 + value + OPERATION_BYTES
        };
        self.keys.iter().map(bytes).sum()
    }

    /// The new values in the record, in key order.
    pub(crate) fn in_record(&self) -> impl Iterator<Item = InRecord<'_>> {
        let keys = if self.record_bytes_max > 0 { &self.keys[..] } else { &[] };
        let numbered = keys.iter().enumerate().filter(|(_, resolved)| resolved.has_changed());
        numbered.map(|(number, resolved)| InRecord {
            number,
            key: &resolved.key,
            value: resolved.new.as_deref(),
        })
    }

    /// The value with a number.
    pub(crate) fn value(&self, number: usize) -> &[u8] {
        self.keys[number].new.as_deref().unwrap_or_default()
    }
}

impl<'f> Resolved<'f> {
    fn new(key: Vec<u8>, updates: Updates<'f>) -> Self {
        Self { key, updates, base: Glsn::NONE, old: None, new: None, refusal: None, charge: None }
    }

    fn compute(&mut self, reader: &Reader) -> Result<()> {
        (self.new, self.refusal) = (None, None);
        let bytes = self.new_bytes(self.old_bytes());
        if bytes > SMALL_BYTES {
            let charge = self.charge.get_or_insert_with(|| reader.index.seats.charge());
            charge.set(bytes)?;
        }
        match compute(reader, &self.key, &self.updates, self.old.as_deref()) {
            Ok(new) => self.new = new,
            Err(error @ Error::InvalidInput(_)) => self.refusal = Some(error),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn old_bytes(&self) -> u64 {
        self.old.as_ref().map_or(0, |value| value.len() as u64)
    }

    /// Upper bound on the bytes of the values that are computed from one of `old` bytes.
    fn new_bytes(&self, old: u64) -> u64 {
        self.updates.iter().fold(old, |bytes, update| update.new_bytes(bytes))
    }

    fn is_small(&self) -> bool {
        let new = self.new.as_ref().map_or(0, |value| value.len() as u64);
        new.max(self.new_bytes(self.old_bytes())) <= SMALL_BYTES
    }

    fn has_changed(&self) -> bool {
        self.refusal.is_none() && self.old.as_deref() != self.new.as_deref()
    }

    fn conflict(&self, by: Glsn) -> Error {
        let key = IndexKey::new(&self.key).user_key().to_vec();
        Error::Conflict { key, at: self.base.min(by), by }
    }
}

thread_local! {
    /// The reader of the store for which this thread runs a user's function.
    static COMPUTES_FOR: Cell<*const Reader> = const { Cell::new(ptr::null()) };
}

/// Rejects a call of the store by a function that computes an update: it may run under the commit
/// lock.
pub(crate) fn check_computes_nothing(reader: &Reader) -> Result<()> {
    if ptr::eq(COMPUTES_FOR.get(), reader) {
        return Err(InvalidInput::UpdateUsesStore.into());
    }
    Ok(())
}

/// Applies updates to the value of an index key, one after the other.
pub(crate) fn compute(
    reader: &Reader,
    key: &[u8],
    updates: &Updates<'_>,
    old: Option<&[u8]>,
) -> Result<Option<Vec<u8>>> {
    let _computes = Computes(COMPUTES_FOR.replace(reader));
    let key = IndexKey::new(key).user_key();
    let mut value = old.map(Cow::Borrowed);
    for update in updates {
        let bytes = value.as_ref().map_or(0, |value| value.len() as u64);
        check_value_bytes(update.new_bytes(bytes))?;
        value = update.apply(key, value)?;
    }
    check_value_bytes(value.as_ref().map_or(0, |value| value.len() as u64))?;
    Ok(value.map(Cow::into_owned))
}

/// Restores what was there before.
struct Computes(*const Reader);

impl Drop for Computes {
    fn drop(&mut self) {
        COMPUTES_FOR.set(self.0);
    }
}
