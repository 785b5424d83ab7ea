//! Hashes of states: equal states of two stores have equal hashes, whatever their histories.
//!
//! The hash is BLAKE3 over a stream of records, so that memory does not depend on the size of the
//! state. Each record begins with its kind and contains its lengths, so that different states have
//! different streams (all numbers little-endian):
//!
//! ```text
//! bytes    "plimsoll state 1\0"
//! for each keyspace that has a key, ordered by name:
//!   u8 1     u32 length of the name, name
//!   for each key, in order:
//!     u8 2     a value that does not expire
//!     u8 3     a value that expires; u64 when, in microseconds since 1970 UTC
//!     u32 length of the key, key
//!     u64 length of the value, value
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use plimsoll_memory::budget::Kind;

use crate::api::branches::Branch;
use crate::api::db::Db;
use crate::api::snapshot::Snapshot;
use crate::types::cancel::Cancel;
use crate::types::error::{Error, Result};
use crate::types::expiry::Expiry;
use crate::types::keyspaces::Keyspace;

const HEAD: &[u8] = b"plimsoll state 1\0";
const KEYSPACE: u8 = 1;
const LASTING: u8 = 2;
const EXPIRING: u8 = 3;

/// The hash of a state, from [`Snapshot::state_hash`]. It is shown as 64 hexadecimal digits.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # use plimsoll::*;
/// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
/// let hash: StateHash = db.state_hash()?;
/// assert_eq!((hash.to_string().len(), hash.as_bytes().len()), (64, 32));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateHash([u8; 32]);

impl StateHash {
    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for StateHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for StateHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StateHash({self})")
    }
}

impl Snapshot {
    /// A hash of all keys and values of all keyspaces, and when the values expire. Two states, also
    /// of different stores or branches, have the same hash if and only if these are the same: to
    /// find out whether a copy, a restored dump or a merged branch equals its source. Reads every
    /// key and value.
    ///
    /// The history, the settings of keyspaces, and keyspaces without keys do not count. The time at
    /// which a value expires counts, because it determines later states. A value that has expired
    /// by the time of the snapshot does not count, as in its reads: the hash of the newest state
    /// changes when a value expires, and that of a past GLSN judges by the time of its commit.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let notes = db.keyspace("notes")?;
    /// db.put(&notes, "a", "one")?;
    /// let draft = db.create_branch("draft", &db.main())?;
    /// draft.put(&notes, "b", "two")?;
    /// assert_ne!(draft.state_hash()?, db.state_hash()?);
    /// db.merge(&draft).run()?;
    /// assert_eq!(draft.state_hash()?, db.state_hash()?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Snapshot::get`]. Every keyspace must retain the moment.
    pub fn state_hash(&self) -> Result<StateHash> {
        self.hash_unless(&Cancel::default())
    }

    /// As [`Snapshot::state_hash`], but gives up once `flag` is set.
    ///
    /// # Errors
    /// [`Error::Cancelled`]; the errors of [`Snapshot::state_hash`].
    pub fn state_hash_unless(&self, flag: Arc<AtomicBool>) -> Result<StateHash> {
        self.hash_unless(&Cancel::on(flag))
    }

    fn hash_unless(&self, cancel: &Cancel) -> Result<StateHash> {
        let store = self.store();
        store.check_open()?;
        self.read_at()?;
        let names: BTreeSet<_> = store.reader.keyspaces.names().into_values().collect();
        let mut hasher = blake3::Hasher::new();
        hasher.update(HEAD);
        for name in names {
            let Some(keyspace) = self.keyspace(&name)? else { continue };
            let mut state =
                KeyspaceHash { snapshot: self, keyspace, cancel, hasher, has_keys: false };
            state.rows().map_err(|error| error.in_keyspace(&name))?;
            hasher = state.hasher;
        }
        Ok(StateHash(*hasher.finalize().as_bytes()))
    }
}

impl Db {
    /// The hash of main as it is now: see [`Snapshot::state_hash`].
    ///
    /// # Errors
    /// As for [`Snapshot::state_hash`].
    pub fn state_hash(&self) -> Result<StateHash> {
        self.snapshot().state_hash()
    }
}

impl Branch {
    /// The hash of the branch as it is now: see [`Snapshot::state_hash`].
    ///
    /// # Errors
    /// As for [`Snapshot::state_hash`]; [`InvalidInput::NoBranch`](crate::InvalidInput::NoBranch).
    pub fn state_hash(&self) -> Result<StateHash> {
        self.snapshot().state_hash()
    }
}

/// A keyspace that is being hashed.
struct KeyspaceHash<'a> {
    snapshot: &'a Snapshot,
    keyspace: Keyspace,
    cancel: &'a Cancel,
    hasher: blake3::Hasher,
    has_keys: bool,
}

impl KeyspaceHash<'_> {
    /// Adds all keys. A value that memory does not hold is read piece by piece.
    fn rows(&mut self) -> Result<()> {
        let mut from = Bound::Unbounded;
        loop {
            let bounds = |from: &Bound<Vec<u8>>| (from.clone(), Bound::<Vec<u8>>::Unbounded);
            let mut rows = self.snapshot.range(&self.keyspace, bounds(&from))?;
            loop {
                self.cancel.check()?;
                let (key, value, expiry) = match rows.advance_expiring() {
                    Ok(Some(row)) => row,
                    Ok(None) => return Ok(()),
                    Err(Error::OutOfBudget(_)) => break,
                    Err(error) => return Err(error),
                };
                self.begin_row(key, expiry, value.len() as u64);
                self.hasher.update(value);
                from = match from {
                    Bound::Excluded(mut last) => {
                        last.clear();
                        last.extend_from_slice(key);
                        Bound::Excluded(last)
                    }
                    _ => Bound::Excluded(key.to_vec()),
                };
            }
            drop(rows);
            let next = self.snapshot.range(&self.keyspace, bounds(&from))?.keys_only().next();
            let Some((key, _)) = next.transpose()? else { return Ok(()) };
            if let Some(mut value) = self.snapshot.get_reader(&self.keyspace, &key)? {
                self.begin_row(&key, value.expiry(), value.len());
                let mut piece = self.snapshot.store().reader.budget.take(Kind::Staging)?;
                loop {
                    self.cancel.check()?;
                    let bytes = value.read_piece(&mut piece)?;
                    if bytes == 0 {
                        break;
                    }
                    self.hasher.update(&piece[..bytes]);
                }
            }
            from = Bound::Excluded(key);
        }
    }

    /// Adds all of a row but the bytes of its value.
    fn begin_row(&mut self, key: &[u8], expiry: Option<Expiry>, value_bytes: u64) {
        if !std::mem::replace(&mut self.has_keys, true) {
            let name = self.keyspace.name().as_bytes();
            self.hasher.update(&[KEYSPACE]).update(&len_of(name)).update(name);
        }
        match expiry {
            None => _ = self.hasher.update(&[LASTING]),
            Some(expiry) => {
                self.hasher.update(&[EXPIRING]).update(&expiry.micros().to_le_bytes());
            }
        }
        self.hasher.update(&len_of(key)).update(key).update(&value_bytes.to_le_bytes());
    }
}

/// The length of a name or key.
fn len_of(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len()).expect("names and keys are short").to_le_bytes()
}
