//! A value as returned to the user.
//!
//! A value above [`FREE_BYTES`] holds a lease for its lifetime, so values held by users count
//! against the budget. Its memory returns to the system when it is dropped, whatever allocator the
//! program uses.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use plimsoll_memory::budget::{Budget, Kind, OutOfBudget};
use plimsoll_memory::buffer::{Buffer, HEAP_BYTES_MAX};

/// Values up to this many bytes are not charged, because users rarely hold many at once.
const FREE_BYTES: usize = HEAP_BYTES_MAX;

/// The bytes of a value; dereferences to `[u8]`.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// let notes = db.keyspace("notes")?;
/// db.put(&notes, "a", "one")?;
/// let value = db.get(&notes, "a")?.expect("it was put");
/// assert_eq!((value.len(), &value[..1]), (3, &b"o"[..]));
/// assert_eq!(String::from_utf8(value.into_vec()).as_deref(), Ok("one"));
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
pub struct Value {
    bytes: Buffer,
}

impl Value {
    /// A value of `len` bytes, filled by `fill`; charged to the budget if it is large.
    pub(crate) fn of_len<E: From<OutOfBudget>>(
        budget: &Budget,
        len: u64,
        fill: impl FnOnce(&mut Buffer) -> Result<(), E>,
    ) -> Result<Self, E> {
        let mut bytes = room_for(budget, len)?;
        fill(&mut bytes)?;
        Ok(Self { bytes })
    }

    /// A value in a buffer from [`room_for`].
    pub(crate) fn new(bytes: Buffer) -> Self {
        Self { bytes }
    }

    /// The bytes as a vector, copied only above 64 KiB. They are no longer charged to the budget.
    pub fn into_vec(self) -> Vec<u8> {
        self.bytes.into_vec()
    }
}

/// Whether a value of this length is not charged.
pub(crate) fn is_free(len: u64) -> bool {
    len <= FREE_BYTES as u64
}

/// A buffer for a value to be returned to the user; charged if it is large.
pub(crate) fn room_for(budget: &Budget, len: u64) -> Result<Buffer, OutOfBudget> {
    if is_free(len) {
        return Ok(Vec::with_capacity(len as usize).into());
    }
    Buffer::with_capacity(budget, Kind::Staging, len as usize)
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes: bytes.into() }
    }
}

impl Clone for Value {
    fn clone(&self) -> Self {
        Self { bytes: self.bytes.clone() }
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.bytes[..] == other.bytes[..]
    }
}

impl Eq for Value {}

impl PartialOrd for Value {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Value {
    fn cmp(&self, other: &Self) -> Ordering {
        self.bytes[..].cmp(&other.bytes[..])
    }
}

impl Hash for Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes[..].hash(state);
    }
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl PartialEq<[u8]> for Value {
    fn eq(&self, other: &[u8]) -> bool {
        self.bytes[..] == *other
    }
}

impl PartialEq<&[u8]> for Value {
    fn eq(&self, other: &&[u8]) -> bool {
        self.bytes[..] == **other
    }
}

impl<const N: usize> PartialEq<[u8; N]> for Value {
    fn eq(&self, other: &[u8; N]) -> bool {
        self.bytes[..] == other[..]
    }
}

impl PartialEq<Vec<u8>> for Value {
    fn eq(&self, other: &Vec<u8>) -> bool {
        self.bytes[..] == other[..]
    }
}

impl<const N: usize> PartialEq<&[u8; N]> for Value {
    fn eq(&self, other: &&[u8; N]) -> bool {
        self.bytes[..] == other[..]
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match std::str::from_utf8(&self.bytes) {
            Ok(text) if text.len() <= 80 => write!(f, "Value({text:?})"),
            _ => write!(f, "Value({} bytes)", self.bytes.len()),
        }
    }
}
