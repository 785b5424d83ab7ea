//! Resolves the updates of a commit: reads the old values, and computes the new ones.
//!
//! 1. [`Resolution::resolve`] reads the bases at the newest visible GLSN, without the commit lock,
//!    because this may read files.
//! 2. [`Resolution::settle`] checks under the commit lock whether a younger version of a key
//!    exists, like the validation of reads, and computes an update again if its base has changed.
//!    The younger version is in a memtable, unless it was flushed in the meantime.
//!
//! An update is therefore computed at its position in the order, and the record only has puts and
//! deletions: no other part of the store knows updates.
//!
//! Whether a base has expired is decided by the time of the moment at which it is read. If a base
//! expires before the commit's own time, the commit is refused with [`Error::Conflict`]
//! (`Commit::append`); repeated, it no longer finds that base.
//!
//! Only small values are computed under the lock. Larger ones, and those of a large transaction,
//! are written to the write set before the lock is taken. If their base changes, the commit is
//! refused with [`Error::Conflict`] and must be repeated.

use std::any::Any;
use std::borrow::Cow;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::account::Charge;

use crate::borders::{Border, hit};
use crate::read::open_moments::OpenMoment;
use crate::read::point::find;
use crate::read::reader::Reader;
use crate::txn::pending::Updates;
use crate::txn::write_set::WriteSet;
use crate::types::as_of::{AsOf, Expiries};
use crate::types::branch_key;
use crate::types::error::{Error, Result};
use crate::types::expiry::Expiry;
use crate::types::index_key::IndexKey;
use crate::types::invalid_input::InvalidInput;
use crate::types::update::Update;
use crate::types::value::Value;
use crate::types::version::check_value_bytes;

/// Maximum size of a value that is computed under the commit lock.
const SMALL_BYTES: u64 = 64 << 10;

/// Maximum size of all values that one commit computes under the commit lock. Also the maximum size
/// of its other writes, because these are encoded again under the lock.
const RECORD_BYTES: u64 = 256 << 10;

/// Divisor: values computed under the commit lock take at most this part of a record's body.
const BODY_PART: u64 = 16;

/// Size of an operation in a record without its key and value.
const OPERATION_BYTES: u64 = 48;

/// The resolved updates of one commit, in key order.
#[derive(Default)]
pub(crate) struct Resolution<'f> {
    /// Kept open until the commit is ordered, so that no version read here is dropped.
    moment: Option<OpenMoment>,
    keys: Vec<Resolved<'f>>,
    /// Upper bound of the values' bytes in the record; 0 if the values are in the write set.
    record_bytes_max: u64,
    /// Whether values have changed since the record was encoded.
    is_stale: bool,
    /// The panic of a user's function.
    panic: Option<Box<dyn Any + Send>>,
}

/// The outcome of the updates of one key.
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
    /// The GLSN at which the base was read.
    base: Glsn,
    /// The base value.
    old: Option<Value>,
    new: Option<Vec<u8>>,
    /// The expiry of the new value: that of the base value, or that of a put if there is no base
    /// value.
    expiry: Option<Expiry>,
    /// Why the new value cannot be computed from this base.
    refusal: Option<Error>,
    /// The charge for a large new value.
    charge: Option<Charge>,
}

/// A new value that goes into the record.
#[derive(Clone, Copy)]
pub(crate) struct InRecord<'a> {
    /// Its number, for [`Resolution::value`].
    pub(crate) number: usize,
    /// Its index key.
    pub(crate) key: &'a [u8],
    /// The value; `None`: the key is deleted.
    pub(crate) value: Option<&'a [u8]>,
    /// The expiry of the value, if it has one.
    pub(crate) expiry: Option<Expiry>,
}

impl<'f> Resolution<'f> {
    /// Updates by index key, in order. `open` opens the newest snapshot if there are any.
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

    /// Reads the bases and computes the new values. May be repeated after an error.
    pub(crate) fn resolve(&mut self, reader: &Reader, expiries: &Expiries) -> Result<()> {
        let Some(base) = self.moment.as_ref().map(OpenMoment::as_of) else { return Ok(()) };
        for number in 0..self.keys.len() {
            self.resolve_key(reader, number, base.noting(expiries))?;
        }
        Ok(())
    }

    /// Reads the value of a key as of `base`, and computes the new one.
    fn resolve_key(&mut self, reader: &Reader, number: usize, base: AsOf<'_>) -> Result<()> {
        let resolved = &mut self.keys[number];
        // Release the old values first, because they hold memory.
        (resolved.old, resolved.new) = (None, None);
        let old = reader.get_expiring(&resolved.key, base)?;
        (resolved.old, resolved.expiry) = old.map_or((None, None), |(old, at)| (Some(old), at));
        match catch_unwind(AssertUnwindSafe(|| resolved.compute(reader))) {
            Ok(Ok(())) => {
                // Set the base last: after an error, the next attempt has to compute the value.
                resolved.base = base.glsn;
                Ok(())
            }
            Ok(failed) => failed,
            Err(panic) => {
                self.panic = Some(panic);
                // This error is not reported, because the panic is resumed once no lock is held.
                Err(Error::Cancelled)
            }
        }
    }

    /// Resumes the panic of a user's function. Must be called without any lock.
    pub(crate) fn resume_panic(&mut self) {
        if let Some(panic) = self.panic.take() {
            resume_unwind(panic);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The updated index keys, in order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.keys.iter().map(|resolved| &resolved.key[..])
    }

    /// The outcome of each key.
    pub(crate) fn into_updated(self) -> Vec<Updated> {
        let updated = |Resolved { old, new, .. }| Updated { old, new };
        self.keys.into_iter().map(updated).collect()
    }

    /// Decides whether the new values go into the record as computed, or into the write set now.
    /// Returns the number of bytes to reserve in the record.
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
                Some(value) => writes.put(&resolved.key, value, resolved.expiry)?,
                None => writes.delete(&resolved.key)?,
            }
        }
        Ok(metadata_bytes)
    }

    /// Under the commit lock: computes an update again if its base has changed. `applied` is the
    /// last commit ordered before this one. Returns whether the record has to be encoded again.
    ///
    /// # Errors
    /// An update is refused for the newest value; [`Error::Conflict`] if values in the write set
    /// are outdated.
    pub(crate) fn settle(
        &mut self,
        reader: &Reader,
        applied: Glsn,
        expiries: &Expiries,
    ) -> Result<bool> {
        if self.keys.is_empty() {
            return Ok(false);
        }
        let changed = reader.read(|view| {
            let changed = |resolved: &Resolved<'_>| view.changed(&resolved.key, resolved.base);
            self.keys.iter().map(changed).collect::<Result<Vec<_>>>()
        })?;
        for (number, by) in changed.into_iter().enumerate() {
            let Some(by) = by else { continue };
            let at = AsOf::new(applied, reader.log.now_micros()).noting(expiries);
            self.settle_key(reader, number, at, by)?;
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
        applied: AsOf<'_>,
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

    /// Records that the record was encoded with the current values.
    pub(crate) fn encoded(&mut self) {
        self.is_stale = false;
    }

    /// An upper bound of the operations' bytes in the record.
    pub(crate) fn operation_bytes(&self) -> u64 {
        let bytes = |resolved: &Resolved<'_>| {
            let value = resolved.new.as_ref().map_or(0, Vec::len) as u64;
            resolved.key.len() as u64 + value + OPERATION_BYTES
        };
        self.keys.iter().map(bytes).sum()
    }

    /// The new values that go into the record, in key order.
    pub(crate) fn in_record(&self) -> impl Iterator<Item = InRecord<'_>> {
        let keys = if self.record_bytes_max > 0 { &self.keys[..] } else { &[] };
        let numbered = keys.iter().enumerate().filter(|(_, resolved)| resolved.has_changed());
        numbered.map(|(number, resolved)| InRecord {
            number,
            key: &resolved.key,
            value: resolved.new.as_deref(),
            expiry: resolved.expiry,
        })
    }

    /// The value with this number.
    pub(crate) fn value(&self, number: usize) -> &[u8] {
        self.keys[number].new.as_deref().unwrap_or_default()
    }
}

impl<'f> Resolved<'f> {
    fn new(key: Vec<u8>, updates: Updates<'f>) -> Self {
        let base = Glsn::NONE;
        Self { key, updates, base, old: None, new: None, expiry: None, refusal: None, charge: None }
    }

    fn compute(&mut self, reader: &Reader) -> Result<()> {
        (self.new, self.refusal) = (None, None);
        let bytes = self.new_bytes(self.old_bytes());
        if bytes > SMALL_BYTES {
            let charge = self.charge.get_or_insert_with(|| reader.index.iterators.charge());
            charge.set(bytes)?;
        }
        if self.old.is_none() {
            self.expiry = reader.expiry_of_put(&self.key)?;
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

    /// An upper bound of the value that is computed from one of `old` bytes.
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
    /// The reader of the store for which this thread is running a user's function.
    static COMPUTES_FOR: Cell<*const Reader> = const { Cell::new(ptr::null()) };
}

/// Refuses a call of the store by a function that computes an update, because it may run under the
/// commit lock.
pub(crate) fn check_computes_nothing(reader: &Reader) -> Result<()> {
    if ptr::eq(COMPUTES_FOR.get(), reader) {
        return Err(InvalidInput::UpdateUsesStore.into());
    }
    Ok(())
}

/// Applies updates to the value of an index key, in order.
pub(crate) fn compute(
    reader: &Reader,
    key: &[u8],
    updates: &[Update<'_>],
    old: Option<&[u8]>,
) -> Result<Option<Vec<u8>>> {
    let _computes = Computes(COMPUTES_FOR.replace(reader));
    let key = &*branch_key::user_key(key);
    let mut value = old.map(Cow::Borrowed);
    for update in updates {
        let bytes = value.as_ref().map_or(0, |value| value.len() as u64);
        check_value_bytes(update.new_bytes(bytes))?;
        value = update.apply(key, value)?;
    }
    check_value_bytes(value.as_ref().map_or(0, |value| value.len() as u64))?;
    Ok(value.map(Cow::into_owned))
}

/// Restores the previous value of [`COMPUTES_FOR`].
struct Computes(*const Reader);

impl Drop for Computes {
    fn drop(&mut self) {
        COMPUTES_FOR.set(self.0);
    }
}
