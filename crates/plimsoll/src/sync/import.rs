//! Imports a history: commits with given parents, times and contents.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::api::db::Db;
use crate::api::snapshot::Snapshot;
use crate::sync::commit_id::CommitId;
use crate::sync::contents::{Bytes, Sink, damaged};
use crate::sync::ids::{Ids, space};
use crate::sync::receive::{Draft, Receiver};
use crate::sync::replace::replace;
use crate::txn::payload::MAX_METADATA_BYTES;
use crate::txn::transaction::fill;
use crate::types::branches::check_users_name;
use crate::types::error::{Error, Result};
use crate::types::index_key::KeyBuffer;
use crate::types::invalid_input::InvalidInput;
use crate::types::keyspaces::Keyspace;
use crate::types::times::to_micros;
use crate::types::value::Value;

/// The first byte of the stored key of an import's record; the caller's key follows.
const RECORD: u8 = b'n';

/// The first byte of the stored key under which the id of an imported commit is found; the commit's
/// name in the source follows.
const SOURCE: u8 = b's';

/// Maximum number of commits in [`HistoryImport::recent`].
const MAX_RECENT: usize = 256;

/// Maximum length in bytes of the name of a commit in its source, and of the key of an import's
/// record.
pub const MAX_SOURCE_BYTES: usize = 1024;

/// An import of a history whose commits have given parents, times and contents, for example the
/// history of another version-control system. From [`Db::import_history`].
///
/// The parents of a commit must be imported before it. The ids of the commits depend only on the
/// imported data. Importing the same history again therefore gives the same ids and writes nothing
/// twice.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # use plimsoll::*;
/// # use std::time::{Duration, UNIX_EPOCH};
/// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
/// let notes = db.keyspace("notes")?;
/// let day = |number: u64| UNIX_EPOCH + Duration::from_secs(86_400 * number);
/// let mut import: HistoryImport = db.import_history("main")?;
///
/// let mut commit: ImportCommit = import.begin(&[], day(1), true)?;
/// commit.put(&notes, "a", "one")?;
/// let first = commit.commit()?;
///
/// let mut commit = import.begin(&[first], day(2), false)?;
/// commit.put(&notes, "b", "side")?;
/// let side = commit.commit()?;
///
/// let mut commit = import.begin(&[first, side], day(3), true)?;
/// commit.put(&notes, "b", "side")?;
/// let merge = commit.commit()?;
///
/// import.set_branch("side", &side)?;
/// import.finish(&merge)?;
/// assert_eq!(db.main().tip()?, Some(merge));
/// assert_eq!(db.commit_parents(&merge)?, [first, side]);
/// # Ok(())
/// # }
/// ```
pub struct HistoryImport {
    receiver: Receiver,
    /// The ids of the latest commits, by their names in the source. Reads do not find these commits
    /// yet.
    recent: HashMap<Vec<u8>, CommitId>,
}

/// A commit of a [`HistoryImport`] that is being prepared; [`ImportCommit::commit`] commits it. Its
/// changes are relative to its first parent. In each keyspace, keys must be passed in ascending
/// order.
pub struct ImportCommit<'i> {
    import: &'i mut HistoryImport,
    /// `None` once it is committed.
    draft: Option<Draft>,
    parents: Vec<CommitId>,
    micros: u64,
    metadata: Vec<u8>,
    source: Option<Vec<u8>>,
    /// The last key of each keyspace.
    last_keys: HashMap<Arc<str>, Vec<u8>>,
}

impl Db {
    /// Begins an import of a history into `branch`, which is created if it does not exist. If
    /// another commit changes this branch during the import, the import fails.
    ///
    /// The import creates temporary branches, whose names begin with `incoming/`, and deletes them
    /// in [`HistoryImport::finish`]. Until then, versions that are superseded are retained.
    ///
    /// # Errors
    /// [`InvalidInput::BranchName`]; the errors of [`Db::commit_id`].
    pub fn import_history(&self, branch: &str) -> Result<HistoryImport> {
        let ids = Ids::open(self)?;
        let receiver = Receiver::of_any(&ids, branch, false)?;
        Ok(HistoryImport { receiver, recent: HashMap::new() })
    }

    /// The ids of the parents of a commit, its first parent first.
    ///
    /// # Errors
    /// [`InvalidInput::NoCommit`] if the store does not have the commit; the errors of
    /// [`Db::find_commit`].
    pub fn commit_parents(&self, id: &CommitId) -> Result<Vec<CommitId>> {
        let ids = Ids::open(self)?;
        ids.parents_of(id)?.ok_or_else(|| InvalidInput::NoCommit { id: id.to_string() }.into())
    }

    /// The time of a commit, to the microsecond. A received or imported commit has the time of the
    /// original one, which [`Commit::time`](crate::Commit::time) does not return.
    ///
    /// # Errors
    /// As for [`Db::commit_parents`]; [`Error::Trimmed`] if the log no longer has the commit.
    pub fn commit_time(&self, id: &CommitId) -> Result<SystemTime> {
        let ids = Ids::open(self)?;
        let micros = ids.micros_of(id)?;
        let micros = micros.ok_or_else(|| InvalidInput::NoCommit { id: id.to_string() })?;
        Ok(SystemTime::UNIX_EPOCH + Duration::from_micros(micros))
    }

    /// The id of the commit that was imported under a name, by [`ImportCommit::set_source`]; `None`
    /// if there is none.
    ///
    /// # Errors
    /// Errors of reads.
    pub fn find_imported(&self, source: &[u8]) -> Result<Option<CommitId>> {
        let key = [&[SOURCE], source].concat();
        let id = Snapshot::newest(&self.store).get(&space(&self.store), key)?;
        let id = id.map(|id| id.as_ref().try_into().map_err(|_| damaged())).transpose()?;
        Ok(id.map(CommitId::from_bytes))
    }

    /// The value of a record that was stored by [`ImportCommit::put_record`] or
    /// [`Db::put_import_record`]; `None` if there is none. Records belong to this store. They are
    /// on no branch, and are not exchanged with other stores.
    ///
    /// # Errors
    /// Errors of reads.
    pub fn import_record(&self, key: &[u8]) -> Result<Option<Value>> {
        Snapshot::newest(&self.store).get(&space(&self.store), [&[RECORD], key].concat())
    }

    /// The keys and values of the records of imports whose keys begin with `prefix`, in order.
    ///
    /// # Errors
    /// Errors of reads.
    pub fn import_records(&self, prefix: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut records = Vec::new();
        let snapshot = Snapshot::newest(&self.store);
        for row in snapshot.prefix(&space(&self.store), [&[RECORD], prefix].concat())? {
            let (key, value) = row?;
            records.push((key[1..].to_vec(), value.to_vec()));
        }
        Ok(records)
    }

    /// Stores a record of an import, or deletes it (`None`). This makes no commit on any branch.
    ///
    /// # Errors
    /// [`InvalidInput::KeyTooLong`]; errors of a commit.
    pub fn put_import_record(&self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        check_source(key)?;
        let (space, key) = (space(&self.store), [&[RECORD], key].concat());
        self.transact(|tx| match value {
            Some(value) => tx.put(&space, &key, value),
            None => tx.delete(&space, &key),
        })
    }
}

impl HistoryImport {
    /// Begins a commit with the time and the parents of the original one. `is_on_branch` is whether
    /// the commit is the last one of the imported branch, or on its first-parent line. If not, the
    /// commit is stored on a temporary branch.
    ///
    /// # Errors
    /// [`InvalidInput::NoCommit`] if the store does not have a parent;
    /// [`InvalidInput::StateNotRetained`] if a parent's state is no longer retained;
    /// [`InvalidInput::BranchMoved`] if another commit changed a branch; errors of commits.
    pub fn begin(
        &mut self,
        parents: &[CommitId],
        time: SystemTime,
        is_on_branch: bool,
    ) -> Result<ImportCommit<'_>> {
        for parent in parents {
            if self.receiver.place(parent)?.is_none() {
                return Err(InvalidInput::NoCommit { id: parent.to_string() }.into());
            }
        }
        let micros = to_micros(time);
        let draft = self.receiver.begin_commit(parents, micros, is_on_branch)?;
        Ok(ImportCommit {
            import: self,
            draft: Some(draft),
            parents: parents.to_vec(),
            micros,
            metadata: Vec::new(),
            source: None,
            last_keys: HashMap::new(),
        })
    }

    /// As [`Db::find_imported`], but also finds commits of this import that are not visible yet.
    /// Does not find commits that were deleted with their branches. They cannot be parents, and can
    /// be imported again.
    ///
    /// # Errors
    /// Errors of reads.
    pub fn find(&self, source: &[u8]) -> Result<Option<CommitId>> {
        if let Some(id) = self.recent.get(source) {
            return Ok(Some(*id));
        }
        match self.receiver.db.find_imported(source)? {
            Some(id) if self.has(&id)? => Ok(Some(id)),
            _ => Ok(None),
        }
    }

    /// Whether a commit of the store can be a parent of an imported one.
    ///
    /// # Errors
    /// Errors of reads.
    pub fn has(&self, id: &CommitId) -> Result<bool> {
        Ok(self.receiver.place(id)?.is_some())
    }

    /// Makes a branch other than the imported one end with an imported commit. Creates the branch
    /// if it does not exist. Otherwise replaces it with a new branch of the same name, and handles
    /// of the old one become invalid.
    ///
    /// # Errors
    /// [`InvalidInput::NotFastForward`] if the branch has commits that `tip` does not contain;
    /// [`InvalidInput::BranchMoved`] if another commit changed it during the call;
    /// [`InvalidInput::BranchExists`] if it was created during the call;
    /// [`InvalidInput::NoCommit`]; [`InvalidInput::StateNotRetained`]; errors of commits. After an
    /// error, the old branch is unchanged.
    pub fn set_branch(&mut self, name: &str, tip: &CommitId) -> Result<()> {
        check_users_name(name)?;
        let receiver = &mut self.receiver;
        receiver.settle()?;
        if receiver.place(tip)?.is_none() {
            return Err(InvalidInput::NoCommit { id: tip.to_string() }.into());
        }
        let old = match receiver.db.branch(name) {
            Ok(branch) => {
                let at = receiver.db.store.newest()?;
                receiver.ids.catch_up()?;
                let own = receiver.ids.tip((branch.id(), at))?.map(|place| place.id);
                if own == Some(*tip) {
                    return Ok(());
                }
                if let Some(own) = own
                    && !receiver.descends(tip, &own)?
                {
                    return Err(InvalidInput::NotFastForward { branch: name.to_owned() }.into());
                }
                Some((branch, at))
            }
            Err(Error::InvalidInput(InvalidInput::NoBranch { .. })) => None,
            Err(error) => return Err(error),
        };
        let made = receiver.branch_after(tip)?;
        match old {
            Some((old, at)) => replace(&receiver.db, made.name(), &old, at),
            None => receiver.db.rename_branch(made.name(), name),
        }
    }

    /// Makes the imported branch end with the commit `tip`. Deletes the temporary branches, with
    /// the commits that no other branch contains. Returns the number of imported commits.
    ///
    /// # Errors
    /// [`InvalidInput::NotFastForward`] if the branch has commits that `tip` does not contain;
    /// [`InvalidInput::BranchMoved`] if another commit changed the branch during the import;
    /// [`InvalidInput::NoCommit`]; errors of commits.
    pub fn finish(mut self, tip: &CommitId) -> Result<u64> {
        let receiver = &mut self.receiver;
        receiver.settle()?;
        if receiver.place(tip)?.is_none() {
            return Err(InvalidInput::NoCommit { id: tip.to_string() }.into());
        }
        if let Some(own) = receiver.target_tip()
            && !receiver.descends(tip, &own)?
        {
            return Err(InvalidInput::NotFastForward { branch: receiver.name.clone() }.into());
        }
        self.receiver.finish(tip)
    }

    /// The number of commits imported so far, without those that the store already had.
    pub fn commits(&self) -> u64 {
        self.receiver.received
    }
}

impl ImportCommit<'_> {
    /// Applies a change of a key to the transaction and to the hash.
    ///
    /// # Errors
    /// [`InvalidInput::ImportOrder`]; the errors of `change`. After an error of `change`, the
    /// commit fails.
    fn change(
        &mut self,
        keyspace: &Keyspace,
        key: &[u8],
        change: impl FnOnce(&mut dyn Sink) -> Result<()>,
    ) -> Result<()> {
        let name = keyspace.name();
        match self.last_keys.get_mut(name) {
            Some(last) => {
                if key.cmp(last) != Ordering::Greater {
                    return Err(InvalidInput::ImportOrder { keyspace: name.to_owned() }.into());
                }
                last.clear();
                last.extend_from_slice(key);
            }
            None => drop(self.last_keys.insert(name.into(), key.to_vec())),
        }
        let sink = &mut self.draft.as_mut().expect("it is not committed").sink;
        let changed = change(sink);
        // After an error, the hash may include a change that the transaction lacks.
        sink.tx.spoiled |= changed.is_err();
        changed
    }

    /// Sets the value of a key. The value does not expire, even if the keyspace has a time to live.
    ///
    /// # Errors
    /// [`InvalidInput::ImportOrder`] if `key` is not greater than the previous key of the
    /// keyspace; the errors of [`Transaction::put`](crate::Transaction::put).
    pub fn put(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        let (name, key) = (keyspace.name(), key.as_ref());
        let value = Bytes::Whole(value.as_ref());
        self.change(keyspace, key, |sink| sink.put(name, key, None, value))
    }

    /// As [`ImportCommit::put`], with a value of `len` bytes from a reader.
    ///
    /// # Errors
    /// As for [`ImportCommit::put`]; [`InvalidInput::ValueLength`] if the reader yields more or
    /// fewer bytes than `len`; errors of the reader.
    pub fn put_reader(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        len: u64,
        value: &mut dyn Read,
    ) -> Result<()> {
        let (name, key) = (keyspace.name(), key.as_ref());
        self.change(keyspace, key, |sink| {
            let mut found = 0;
            let mut next = |piece: &mut [u8]| {
                let bytes = fill(value, piece)?;
                found += bytes as u64;
                Ok(bytes)
            };
            sink.put(name, key, None, Bytes::Pieces(len, &mut next))?;
            match found == len {
                true => Ok(()),
                false => {
                    Err(InvalidInput::ValueLength { bytes: found, expected_bytes: len }.into())
                }
            }
        })
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// [`InvalidInput::ImportOrder`]; the errors of
    /// [`Transaction::delete`](crate::Transaction::delete).
    pub fn delete(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<()> {
        let (name, key) = (keyspace.name(), key.as_ref());
        self.change(keyspace, key, |sink| sink.delete(name, key))
    }

    /// Sets the metadata of the commit.
    ///
    /// # Errors
    /// [`InvalidInput::MetadataTooLong`].
    pub fn set_metadata(&mut self, metadata: &[u8]) -> Result<()> {
        if metadata.len() > MAX_METADATA_BYTES {
            let (bytes, limit_bytes) = (metadata.len() as u64, MAX_METADATA_BYTES as u64);
            return Err(InvalidInput::MetadataTooLong { bytes, limit_bytes }.into());
        }
        self.metadata = metadata.to_vec();
        Ok(())
    }

    /// Stores the name of the commit in its source, for [`Db::find_imported`]. The name is not part
    /// of the commit's id.
    ///
    /// # Errors
    /// [`InvalidInput::KeyTooLong`] above [`MAX_SOURCE_BYTES`].
    pub fn set_source(&mut self, source: &[u8]) -> Result<()> {
        check_source(source)?;
        self.source = Some([&[SOURCE], source].concat());
        Ok(())
    }

    /// Stores a record with the commit, for [`Db::import_record`]. The record is not part of the
    /// commit's id.
    ///
    /// # Errors
    /// [`InvalidInput::KeyTooLong`] above [`MAX_SOURCE_BYTES`]; errors of writes.
    pub fn put_record(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        check_source(key)?;
        self.write(&[&[RECORD], key].concat(), value)
    }

    /// Writes a record that belongs to the store, not to a branch.
    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let space = self.import.receiver.ids.space();
        let tx = &mut self.draft.as_mut().expect("it is not committed").sink.tx;
        tx.space_to_put(space)?;
        let key = KeyBuffer::new(tx.id_of(space)?, key)?;
        tx.put_expiring(&key, value, None)
    }

    /// Commits. Returns the id of the commit, which is visible and durable after
    /// [`HistoryImport::finish`]. If the store already has a commit with this id, stores only its
    /// name in the source.
    ///
    /// # Errors
    /// [`InvalidInput::TransactionFailed`] if a change failed; the import can then continue with
    /// another commit. [`InvalidInput::BranchMoved`] if another commit changed the branch; errors
    /// of commits. After these, begin a new import.
    pub fn commit(mut self) -> Result<CommitId> {
        let draft = self.draft.as_mut().expect("it is not committed");
        if draft.sink.tx.spoiled {
            return Err(InvalidInput::TransactionFailed.into());
        }
        let id = draft.sink.hash.id(&self.parents, self.micros, &self.metadata);
        let source = self.source.take();
        if self.import.receiver.place(&id)?.is_some() {
            if let Some(source) = source
                && self.import.find(&source[1..])? != Some(id)
            {
                let (db, ids) = (&self.import.receiver.db, &self.import.receiver.ids);
                db.transact(|tx| tx.put(ids.space(), &source, id.as_bytes()))?;
            }
            return Ok(id);
        }
        if let Some(source) = &source {
            self.write(source, id.as_bytes())?;
        }
        let draft = self.draft.take().expect("it is not committed");
        self.import.receiver.end_commit(draft, id, &self.metadata)?;
        if let Some(mut source) = source {
            source.remove(0);
            self.import.recent.insert(source, id);
        }
        if self.import.recent.len() >= MAX_RECENT {
            self.import.receiver.settle()?;
            self.import.recent.clear();
        }
        Ok(id)
    }
}

impl Drop for ImportCommit<'_> {
    fn drop(&mut self) {
        if let Some(draft) = self.draft.take() {
            self.import.receiver.abandon(draft);
        }
    }
}

fn check_source(key: &[u8]) -> Result<()> {
    if key.len() > MAX_SOURCE_BYTES {
        let (bytes, limit_bytes) = (key.len() as u64, MAX_SOURCE_BYTES as u64);
        return Err(InvalidInput::KeyTooLong { bytes, limit_bytes }.into());
    }
    Ok(())
}
