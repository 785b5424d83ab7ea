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
use crate::read::point::ValueReader;
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

    pub(crate) fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
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
    /// of different stores or branches, have the same hash if and only if these are the same, so
    /// the hash shows whether a copy, a restored dump or a merged branch equals its source. Reads
    /// every key and value.
    ///
    /// The history, the settings of keyspaces, and keyspaces without keys do not count. The time at
    /// which a value expires counts, because it determines later states. A value that has expired
    /// by the time of the snapshot does not count, because reads do not return it either. The hash
    /// of the newest state thus changes when a value expires. A snapshot at a past GLSN has the
    /// time of that commit.
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
        let mut hasher = StateHasher::default();
        each_row(self, cancel, &mut |keyspace, key, expiry, value| match value {
            RowValue::Whole(value) => {
                hasher.begin_row(keyspace.name(), key, expiry, value.len() as u64);
                hasher.value(value);
                Ok(())
            }
            RowValue::Long(value) => {
                hasher.begin_row(keyspace.name(), key, expiry, value.len());
                let mut piece = store.reader.budget.take(Kind::Staging)?;
                loop {
                    cancel.check()?;
                    let bytes = value.read_piece(&mut piece)?;
                    if bytes == 0 {
                        return Ok(());
                    }
                    hasher.value(&piece[..bytes]);
                }
            }
        })?;
        Ok(hasher.finish())
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

/// A value of a state.
pub(crate) enum RowValue<'a> {
    Whole(&'a [u8]),
    /// A value that memory does not hold; it is read piece by piece.
    Long(&'a mut ValueReader),
}

/// Receives the rows of a state.
type Visit<'a> = dyn FnMut(&Keyspace, &[u8], Option<Expiry>, RowValue<'_>) -> Result<()> + 'a;

/// Passes the keyspace, key, expiry and value of each row of a state to `visit`: keyspaces by name,
/// and the keys of each in order.
///
/// # Errors
/// As for [`Snapshot::get`]; those of `visit`.
pub(crate) fn each_row(snapshot: &Snapshot, cancel: &Cancel, visit: &mut Visit<'_>) -> Result<()> {
    let names = snapshot.store().reader.keyspaces.names().into_values();
    for name in names.collect::<BTreeSet<_>>() {
        let Some(keyspace) = snapshot.keyspace(&name)? else { continue };
        let visited = each_row_of(snapshot, &keyspace, cancel, visit);
        visited.map_err(|error| error.in_keyspace(&name))?;
    }
    Ok(())
}

fn each_row_of(
    snapshot: &Snapshot,
    keyspace: &Keyspace,
    cancel: &Cancel,
    visit: &mut Visit<'_>,
) -> Result<()> {
    let mut from = Bound::Unbounded;
    loop {
        let bounds = |from: &Bound<Vec<u8>>| (from.clone(), Bound::<Vec<u8>>::Unbounded);
        let mut rows = snapshot.range(keyspace, bounds(&from))?;
        loop {
            cancel.check()?;
            let (key, value, expiry) = match rows.advance_expiring() {
                Ok(Some(row)) => row,
                Ok(None) => return Ok(()),
                Err(Error::OutOfBudget(_)) => break,
                Err(error) => return Err(error),
            };
            visit(keyspace, key, expiry, RowValue::Whole(value))?;
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
        let next = snapshot.range(keyspace, bounds(&from))?.keys_only().next();
        let Some((key, _)) = next.transpose()? else { return Ok(()) };
        if let Some(mut value) = snapshot.get_reader(keyspace, &key)? {
            let expiry = value.expiry();
            visit(keyspace, &key, expiry, RowValue::Long(&mut value))?;
        }
        from = Bound::Excluded(key);
    }
}

/// Computes the hash of a state from its rows, in the order of [`each_row`].
pub(crate) struct StateHasher {
    hasher: blake3::Hasher,
    /// The keyspace of the last row.
    keyspace: Option<String>,
}

impl Default for StateHasher {
    fn default() -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(HEAD);
        Self { hasher, keyspace: None }
    }
}

impl StateHasher {
    /// Adds a row, except for the bytes of its value.
    pub(crate) fn begin_row(
        &mut self,
        keyspace: &str,
        key: &[u8],
        expiry: Option<Expiry>,
        value_bytes: u64,
    ) {
        if self.keyspace.as_deref() != Some(keyspace) {
            let name = keyspace.as_bytes();
            self.hasher.update(&[KEYSPACE]).update(&len_of(name)).update(name);
            self.keyspace = Some(keyspace.to_owned());
        }
        match expiry {
            None => _ = self.hasher.update(&[LASTING]),
            Some(expiry) => {
                self.hasher.update(&[EXPIRING]).update(&expiry.micros().to_le_bytes());
            }
        }
        self.hasher.update(&len_of(key)).update(key).update(&value_bytes.to_le_bytes());
    }

    /// Adds the next bytes of the value of the last row.
    pub(crate) fn value(&mut self, piece: &[u8]) {
        self.hasher.update(piece);
    }

    pub(crate) fn finish(&self) -> StateHash {
        StateHash(*self.hasher.finalize().as_bytes())
    }
}

/// The length of a name or key.
fn len_of(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len()).expect("names and keys are short").to_le_bytes()
}
