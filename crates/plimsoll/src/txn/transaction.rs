//! Optimistic, serializable transactions.
//!
//! A transaction reads one snapshot plus its own writes, and records its reads. Its commit is
//! refused with [`crate::Error::Conflict`] if data that it read was changed by a commit ordered
//! between the snapshot and this one, durable or not (`txn::commit`). A key that had no value at
//! the snapshot and has none at the commit may count as unchanged even if it had one in between,
//! because its versions may have been dropped.

mod ending;

use std::borrow::Cow;
use std::fmt;
use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::Kind;
use plimsoll_memory::budget::account::Charge;
use plimsoll_memory::buffer::Buffer;
use plimsoll_memory::chunk::CHUNK_BYTES;
use smallvec::SmallVec;

use crate::read::lens::Lens;
use crate::read::open_moments::OpenMoment;
use crate::read::point::ValueReader;
use crate::read::resident::{Resident, resident};
use crate::read::span::Span;
use crate::txn::committer::Committer;
use crate::txn::own_gaps::OwnGaps;
use crate::txn::own_writes::{UpdatedKeys, own_value};
use crate::txn::pending::Pending;
use crate::txn::pops::Pops;
use crate::txn::range::Range;
use crate::txn::read_set::ReadSet;
use crate::txn::read_trait::reads_by_its_own_methods;
use crate::txn::resolution::compute;
use crate::txn::write_set::WriteSet;
use crate::types::as_of::{AsOf, Expiries};
use crate::types::branch_key;
use crate::types::error::{Error, Result};
use crate::types::expiry::Expiry;
use crate::types::index_key::{IndexKey, KeyBuffer, check_key};
use crate::types::key_range::KeyRange;
use crate::types::keyspaces::{Keyspace, is_internal};
use crate::types::update::Update;
use crate::types::value::Value;
use crate::types::version::check_value_bytes;

/// Size of the pieces in which a streamed value is read.
const PIECE_BYTES: usize = CHUNK_BYTES;

/// An open transaction. If it is dropped without a commit, it leaves no trace.
/// [`crate::Db::transact`] repeats a transaction after a conflict.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// let seats = db.keyspace("seats")?;
/// let mut mine = db.begin();
/// if !mine.contains_key(&seats, "12A")? {
///     mine.put(&seats, "12A", "Ada")?;
/// }
/// db.put(&seats, "12A", "Alan")?;
/// assert!(matches!(mine.commit(), Err(Error::Conflict { key, .. }) if key == b"12A"));
/// # Ok(())
/// # }
/// ```
pub struct Transaction {
    pub(crate) committer: Arc<Committer>,
    moment: OpenMoment,
    /// The branch that the transaction reads and writes; `None`: main. On a branch, the read set
    /// and the write set have index keys of the branch's own chain (`types::branch_key`).
    pub(crate) lens: Option<Arc<Lens>>,
    /// Locked, because several threads may read.
    pub(crate) reads: Mutex<ReadSet>,
    pub(crate) writes: WriteSet,
    /// Updates of keys that are not in `writes`.
    pub(crate) pending: Pending,
    /// Locked, because several threads may read.
    gaps: Mutex<OwnGaps>,
    /// Locked before `reads` and `gaps`.
    pub(crate) pops: Mutex<Pops>,
    /// Charged to the budget, because it may be 64 KiB long and many transactions may be open.
    metadata: Buffer,
    /// Keyspaces that were written to, sorted.
    spaces: SmallVec<[u32; 4]>,
    /// The keyspace of the last write, for which `spaces` need not be searched.
    last_space: Option<u32>,
    /// Number of calls of [`Transaction::delete`].
    deletions: u64,
    /// Set when a write failed halfway, so that the write set may be incomplete.
    pub(crate) spoiled: bool,
    /// The expiries that its reads depend on.
    expiries: Expiries,
}

/// Loads the changes that other processes have made to keyspaces, so that a value that is put gets
/// the newest time to live of its keyspace.
///
/// # Errors
/// As for [`Committer::fresh`].
pub(crate) fn refresh_keyspaces(committer: &Committer) -> Result<()> {
    if committer.peers.are_keyspaces_current() { Ok(()) } else { committer.fresh() }
}

impl Transaction {
    pub(crate) fn new(committer: &Arc<Committer>) -> Self {
        Self::at_moment(committer, committer.open_unread())
    }

    /// A transaction that reads all ordered commits, durable or not.
    pub(crate) fn ordered(committer: &Arc<Committer>) -> Self {
        Self::at_moment(committer, committer.open_ordered())
    }

    pub(crate) fn at_moment(committer: &Arc<Committer>, moment: OpenMoment) -> Self {
        let memory_bytes = committer.reader.budget.limit_bytes();
        let options = &committer.options;
        let (limit, body_limit) =
            (options.sizes.write_set_limit_bytes(memory_bytes), options.body_limit_bytes());
        let writes = WriteSet::new(
            &committer.writer_memory,
            (&committer.reader.log, &committer.reader.keyspaces),
            limit,
            options.sizes.table_bytes,
            body_limit,
        );
        Self {
            moment,
            lens: None,
            reads: Mutex::new(ReadSet::new(
                &committer.reader.budget,
                options.sizes.read_set_limit_bytes(memory_bytes),
            )),
            writes,
            pending: Pending::default(),
            gaps: Mutex::new(OwnGaps::new()),
            pops: Mutex::default(),
            metadata: Buffer::default(),
            spaces: SmallVec::new(),
            last_space: None,
            deletions: 0,
            spoiled: false,
            expiries: Expiries::default(),
            committer: Arc::clone(committer),
        }
    }

    /// A transaction on a branch; `is_ordered` as for [`Transaction::ordered`]. If the branch does
    /// not exist any more, its reads and its commit fail.
    pub(crate) fn on_branch(
        committer: &Arc<Committer>,
        lens: &Arc<Lens>,
        is_ordered: bool,
    ) -> Self {
        let moment = if is_ordered { committer.open_ordered() } else { committer.open_newest() };
        committer.check_branch(lens, &moment);
        Self { lens: Some(Arc::clone(lens)), ..Self::at_moment(committer, moment) }
    }

    /// The GLSN of its snapshot.
    pub fn at(&self) -> Glsn {
        self.moment.at()
    }

    /// The moment of the snapshot, made ready for a read.
    pub(crate) fn read_at(&self) -> Result<AsOf<'_>> {
        Ok(self.committer.show(&self.moment)?.noting(&self.expiries))
    }

    /// The place of the committed value of an index key: the index key of the version that the
    /// transaction sees, and the moment.
    pub(crate) fn place<'t>(&'t self, key: &'t [u8]) -> Result<(Cow<'t, [u8]>, AsOf<'t>)> {
        let at = self.read_at()?;
        match &self.lens {
            Some(lens) if branch_key::is_of_branch(key) => {
                lens.resolve(&self.committer.reader, key, at)
            }
            _ => Ok((Cow::Borrowed(key), at)),
        }
    }

    /// The value of a key; `None` if it has none.
    ///
    /// # Errors
    /// The key is too long; a disk error; the budget has no room; corruption. If the commits of
    /// other processes could not be applied at the transaction's first read, each of its reads
    /// fails with [`crate::Error::Behind`].
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.get_by_key(self.key(keyspace, key.as_ref())?.get())
    }

    /// Calls `look` with the value of a key and returns its result; `None` if the key has no value.
    /// A value that the transaction did not write itself is lent from its place in memory, so
    /// `look` should be short.
    ///
    /// # Errors
    /// As for [`Transaction::get`].
    pub fn get_with<T>(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        look: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>> {
        let key = self.key(keyspace, key.as_ref())?;
        match self.own(key.get())? {
            Some(own) => Ok(own.map(|value| look(&value))),
            None => {
                self.note_read(key.get())?;
                let (key, at) = self.place(key.get())?;
                self.committer.reader.get_with(&key, at, look)
            }
        }
    }

    /// Like [`Transaction::get_with`], but answers only from memory: see
    /// [`crate::Db::get_resident`].
    ///
    /// # Errors
    /// As for [`Transaction::get`].
    pub fn get_resident<T>(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        look: impl FnOnce(&[u8]) -> T,
    ) -> Result<Resident<T>> {
        let key = self.key(keyspace, key.as_ref())?;
        if !self.pending.is_empty() && !self.is_shown_in_memory()? {
            return Ok(Resident::NotResident);
        }
        match resident(|| self.own(key.get())) {
            Resident::Value(Some(own)) => Ok(Resident::Value(look(&own))),
            Resident::Value(None) => Ok(Resident::Absent),
            Resident::NotResident => Ok(Resident::NotResident),
            Resident::Absent if !self.is_shown_in_memory()? => Ok(Resident::NotResident),
            // Its updates leave the key without a value.
            Resident::Absent if self.pending.of(key.get()).is_some() => Ok(Resident::Absent),
            Resident::Absent => {
                self.note_read(key.get())?;
                let (key, at) = match &self.lens {
                    None => self.place(key.get())?,
                    Some(_) => match resident(|| self.place(key.get()).map(Some)) {
                        Resident::Value(place) => place,
                        _ => return Ok(Resident::NotResident),
                    },
                };
                self.committer.reader.get_resident(&key, at, look)
            }
        }
    }

    /// Whether its snapshot can be read without applying the commits of others, which may wait for
    /// the disk.
    fn is_shown_in_memory(&self) -> Result<bool> {
        self.committer.reader.check_open()?;
        self.committer.reader.owner.check()?;
        Ok(self.committer.is_shown_in_memory(&self.moment))
    }

    pub(crate) fn key(&self, keyspace: &Keyspace, key: &[u8]) -> Result<KeyBuffer> {
        self.key_in(self.id_of(keyspace)?, key)
    }

    /// The index key of a user's key.
    fn key_in(&self, keyspace: u32, key: &[u8]) -> Result<KeyBuffer> {
        match &self.lens {
            Some(lens) if !is_internal(keyspace) => {
                check_key(key).map(|()| lens.key(keyspace, key))
            }
            _ => KeyBuffer::new(keyspace, key),
        }
    }

    /// The index key of a user's key that is put. The commit checks that its keyspace was not
    /// dropped.
    pub(crate) fn key_to_put(&mut self, keyspace: &Keyspace, key: &[u8]) -> Result<KeyBuffer> {
        let keyspace = self.space_to_put(keyspace)?;
        let key = self.key_in(keyspace, key)?;
        self.check_len(&key)?;
        Ok(key)
    }

    /// Rejects a key that is too long to be written.
    fn check_len(&self, key: &[u8]) -> Result<()> {
        if self.lens.is_some() { branch_key::check_len(key) } else { Ok(()) }
    }

    pub(crate) fn id_of(&self, keyspace: &Keyspace) -> Result<u32> {
        self.committer.reader.keyspaces.id_of(keyspace)
    }

    /// Records that an index key was read.
    pub(crate) fn note_read(&self, key: &[u8]) -> Result<()> {
        if self.lens.is_some() && branch_key::is_too_long(key) {
            // No transaction can write a key of this length.
            return Ok(());
        }
        let add =
            || Ok(self.reads.lock().unwrap_or_else(PoisonError::into_inner).add(key, None)?);
        self.committer.writer_memory.in_transaction(false, add)
    }

    /// The value of an index key.
    pub(crate) fn get_by_key(&self, key: &[u8]) -> Result<Option<Value>> {
        match self.own(key)? {
            Some(own) => Ok(own),
            None => {
                self.note_read(key)?;
                let (key, at) = self.place(key)?;
                self.committer.reader.get(&key, at)
            }
        }
    }

    /// The value that the transaction itself wrote to an index key: `Some(None)` if it deleted the
    /// key. For an update, reads the value that it changes.
    pub(crate) fn own(&self, key: &[u8]) -> Result<Option<Option<Value>>> {
        if self.pending.of(key).is_some() {
            return Ok(Some(self.updated(key)?.map(|(value, _)| value)));
        }
        if self.writes.is_empty() {
            return Ok(None);
        }
        self.writes.find(key, |write| {
            if write.is_deletion() {
                return Ok(None);
            }
            let fill =
                |bytes: &mut Buffer| own_value(&self.committer.reader, &self.writes, write, bytes);
            Value::of_len(&self.committer.reader.budget, write.value_bytes(), fill).map(Some)
        })
    }

    /// The value that the pending updates of an index key compute, and when it expires.
    pub(crate) fn updated(&self, key: &[u8]) -> Result<Option<(Value, Option<Expiry>)>> {
        let reader = &self.committer.reader;
        self.note_read(key)?;
        let (place, at) = self.place(key)?;
        let old = reader.get_expiring(&place, at)?;
        let updates = self.pending.of(key).map_or(&[][..], |updates| updates);
        let new = compute(reader, key, updates, old.as_ref().map(|(old, _)| &**old))?;
        let expiry = match old {
            Some((_, expiry)) => expiry,
            None => reader.expiry_of_put(key)?,
        };
        Ok(new.map(|new| (Value::from(new), expiry)))
    }

    /// A reader of a key's value, for values too large for memory; `None` if the key has none.
    ///
    /// # Errors
    /// As for [`Transaction::get`].
    pub fn get_reader(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
    ) -> Result<Option<ValueReader>> {
        let index_key = self.key(keyspace, key.as_ref())?;
        if let Some(own) = self.own(index_key.get())? {
            return Ok(own.map(|value| ValueReader::of_value(&self.committer.reader, value)));
        }
        self.note_read(index_key.get())?;
        let (key, at) = self.place(index_key.get())?;
        self.committer.value_reader(&key, at)
    }

    /// Whether a key has a value. Does not read the value.
    ///
    /// # Errors
    /// As for [`Transaction::get`].
    pub fn contains_key(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        let key = self.key(keyspace, key.as_ref())?;
        if self.pending.of(key.get()).is_some() {
            return Ok(self.own(key.get())?.flatten().is_some());
        }
        if !self.writes.is_empty()
            && let Some(there) = self.writes.find(key.get(), |write| Ok(!write.is_deletion()))?
        {
            return Ok(there);
        }
        self.note_read(key.get())?;
        let (key, at) = self.place(key.get())?;
        self.committer.reader.contains(&key, at)
    }

    /// Sets the value of a key. The value expires if the keyspace has a time to live
    /// ([`crate::Db::set_ttl`]); otherwise it does not expire, even if the key's previous value
    /// did.
    ///
    /// # Errors
    /// The key or the value is too long: the transaction is unchanged. A disk error, or the budget
    /// has no room: the transaction can then only be aborted. [`crate::Error::Behind`] if another
    /// process has changed a keyspace, and the change could not be applied.
    pub fn put(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        let key = self.key_to_put(keyspace, key.as_ref())?;
        let expiry = self.committer.reader.expiry_of_put(key.get())?;
        self.put_expiring(&key, value.as_ref(), expiry)
    }

    /// Sets the value of an index key in a keyspace of [`Transaction::space_to_put`], and when it
    /// expires.
    pub(crate) fn put_expiring(
        &mut self,
        key: &KeyBuffer,
        value: &[u8],
        expiry: Option<Expiry>,
    ) -> Result<()> {
        check_value_bytes(value.len() as u64)?;
        self.overwrite_pending(key.get())?;
        self.record_pops_before_write(key.get());
        self.own_gaps().put(key.get());
        self.write(|writes| writes.put(key.get(), value, expiry))
    }

    /// Sets the value of a key to the bytes that `value` yields up to its end, without holding them
    /// in memory. Returns its length in bytes.
    ///
    /// # Errors
    /// As for [`Transaction::put`], and errors of `value`. After an error of `value`, or if the
    /// value is too long, the transaction can only be aborted.
    pub fn put_reader(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: &mut dyn Read,
    ) -> Result<u64> {
        let key = self.key_to_put(keyspace, key.as_ref())?;
        let expiry = self.committer.reader.expiry_of_put(key.get())?;
        self.put_pieces(&key, expiry, &mut |piece| fill(value, piece))
    }

    /// As [`Transaction::put_expiring`], with the value from `next`, which fills a piece as far as
    /// the rest of the value reaches. Returns the value's length in bytes.
    pub(crate) fn put_pieces(
        &mut self,
        key: &KeyBuffer,
        expiry: Option<Expiry>,
        next: &mut dyn FnMut(&mut [u8]) -> Result<usize>,
    ) -> Result<u64> {
        self.overwrite_pending(key.get())?;
        self.record_pops_before_write(key.get());
        self.own_gaps().put(key.get());
        let budget = self.committer.reader.budget.clone();
        self.write(|writes| {
            let mut piece = budget.take(Kind::Staging)?;
            let first = next(&mut piece)?;
            if first < PIECE_BYTES {
                writes.put(key.get(), &piece[..first], expiry)?;
                return Ok(first as u64);
            }
            let mut large = writes.begin_large(key.get())?;
            let (mut len, mut got) = (0, first);
            while got > 0 {
                len += got as u64;
                check_value_bytes(len)?;
                writes.continue_large(&mut large, &piece[..got])?;
                got = next(&mut piece)?;
            }
            writes.end_large(key.get(), large, expiry)?;
            Ok(len)
        })
    }

    /// The id of a keyspace that is written to. The commit checks that it was not dropped.
    pub(crate) fn space_to_put(&mut self, keyspace: &Keyspace) -> Result<u32> {
        let id = self.committer.reader.keyspaces.id_to_put(keyspace)?;
        if self.last_space != Some(id) {
            refresh_keyspaces(&self.committer)?;
            self.last_space = Some(id);
            if let Err(at) = self.spaces.binary_search(&id) {
                self.spaces.insert(at, id);
            }
        }
        Ok(id)
    }

    /// Deletes a key. Does nothing if it has no value.
    ///
    /// # Errors
    /// As for [`Transaction::put`].
    pub fn delete(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<()> {
        let key = self.key(keyspace, key.as_ref())?;
        if self.lens.is_some() {
            self.check_len(&key)?;
            return self.write_deletion(&key);
        }
        self.overwrite_pending(key.get())?;
        self.record_pops_before_write(key.get());
        self.write(|writes| writes.delete(key.get()))?;
        self.deletions += 1;
        self.own_gaps().delete(key.get());
        Ok(())
    }

    /// Writes a deletion of an index key: on a branch, an empty value that has always been expired,
    /// because it hides the versions of the branch's ancestors.
    pub(crate) fn write_deletion(&mut self, key: &[u8]) -> Result<()> {
        let is_on_branch = self.lens.is_some();
        self.write(|writes| match is_on_branch {
            false => writes.delete(key),
            true => writes.put(key, &[], Some(Expiry::OF_DELETION)),
        })
    }

    /// Called before the pending updates of an index key are overwritten. Updates that may be
    /// refused are computed first, which reads the key.
    pub(crate) fn overwrite_pending(&mut self, key: &[u8]) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        if self.pending.of(key).is_some_and(|updates| updates.iter().any(Update::may_be_refused)) {
            let computed = self.own(key);
            self.spoil_if_failed(&computed);
            computed?;
        }
        self.pending.take(key);
        Ok(())
    }

    /// Called with the result of a write that computes updates; marks the transaction as spoiled if
    /// it failed.
    pub(crate) fn spoil_if_failed<T>(&mut self, result: &Result<T>) {
        self.spoiled |=
            result.as_ref().is_err_and(|error| !matches!(error, Error::InvalidInput(_)));
    }

    /// An empty charge for memory that a user holds for a long time.
    pub(crate) fn charge(&self) -> Charge {
        self.committer.reader.index.iterators.charge()
    }

    /// The state of the transaction's pops.
    pub(crate) fn pops(&mut self) -> &mut Pops {
        self.pops.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the popped rows to the read set and the gaps, before these are used.
    pub(crate) fn record_pops(&self) {
        let mut pops = self.pops.lock().unwrap_or_else(PoisonError::into_inner);
        pops.record(&self.reads, &self.gaps, &self.committer.reader.index.iterators);
    }

    /// To be called before the transaction writes an index key. If the key is among the popped keys
    /// or the rows read ahead, records the popped keys as read and discards these rows.
    pub(crate) fn record_pops_before_write(&mut self, key: &[u8]) {
        if self.pops().is_disturbed_by(key) {
            self.record_pops();
            self.pops().forget();
        }
    }

    pub(crate) fn own_gaps(&mut self) -> &mut OwnGaps {
        self.gaps.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write<T>(&mut self, write: impl FnOnce(&mut WriteSet) -> Result<T>) -> Result<T> {
        self.committer.check_writable()?;
        let written = write(&mut self.writes);
        self.spoiled |= written.is_err();
        written
    }

    /// For each buffer that it keeps: bytes that are charged, and bytes held. For simulations.
    #[doc(hidden)]
    #[cfg(feature = "testing")]
    pub fn charges(&mut self) -> [(&'static str, u64, u64); 3] {
        let reads = self.reads.get_mut().unwrap_or_else(PoisonError::into_inner).charges();
        let pops = self.pops().charges();
        let updates = self.pending.charges();
        [
            ("read set", reads.0, reads.1),
            ("rows ahead of pops", pops.0, pops.1),
            ("pending updates", updates.0, updates.1),
        ]
    }

    /// Iterates over a range of keys, including own writes.
    ///
    /// # Errors
    /// [`crate::Error::InvalidInput`] if the handle belongs to another store or opening.
    pub fn range(&self, keyspace: &Keyspace, range: impl KeyRange) -> Result<Range<'_>> {
        self.scan(Span::new(self.id_of(keyspace)?, &range))
    }

    /// Iterates over the keys that begin with `prefix`, including own writes.
    ///
    /// # Errors
    /// As for [`Transaction::range`].
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Result<Range<'_>> {
        self.scan(Span::prefix(self.id_of(keyspace)?, prefix.as_ref()))
    }

    pub(crate) fn scan(&self, span: Span) -> Result<Range<'_>> {
        self.record_pops();
        // Makes the moment ready.
        self.read_at()?;
        let updated = self.updated_in(&span)?;
        let (committer, writes) = (&self.committer, &self.writes);
        let when = (&self.moment, &self.expiries);
        let range =
            Range::in_transaction(committer, span.clone(), when, writes, &self.reads, &self.gaps);
        if let Some(lens) = self.lens_of(&span) {
            return Ok(range.on_branch(lens));
        }
        Ok(if updated.is_empty() { range } else { range.with_updated(writes, updated) })
    }

    /// The lens of the branch, if the span (in the form of main's index keys) is read through it.
    /// `None` on main, and for internal keyspaces.
    pub(crate) fn lens_of(&self, span: &Span) -> Option<&Arc<Lens>> {
        let is_seen = || !is_internal(IndexKey::new(&span.first()).keyspace());
        self.lens.as_ref().filter(|_| is_seen())
    }

    /// The keys in a span that the transaction updates, with their values.
    fn updated_in(&self, span: &Span) -> Result<UpdatedKeys> {
        let updated = |key| {
            let updated = self.updated(key)?;
            Ok((key.to_vec(), updated.map(|(value, expiry)| (value.into_vec(), expiry))))
        };
        self.pending.in_span(span).map(updated).collect()
    }
}

reads_by_its_own_methods!(Transaction, '_);

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Transaction(at {})", self.moment.at())
    }
}

/// Reads until `piece` is full or the end is reached.
pub(crate) fn fill(from: &mut dyn Read, piece: &mut [u8]) -> Result<usize> {
    let mut filled = 0;
    while filled < piece.len() {
        match from.read(&mut piece[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(filled)
}
