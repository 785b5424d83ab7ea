//! A value as it is handed to the user.
//!
//! A value above [`FREE_BYTES`] holds a lease for as long as it lives: what users hold counts against the budget, too.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use plimsoll_memory::budget::{Budget, Kind, Lease, OutOfBudget};

/// Values up to this many bytes are not charged: there are never many of them in one hand.
const FREE_BYTES: usize = 64 << 10;

/// The bytes of a value; dereferences to `[u8]`.
#[derive(Default)]
pub struct Value {
    bytes: Vec<u8>,
    _lease: Option<Lease>,
}

impl Value {
    /// A value of `len` bytes that `fill` then fills in; charged to the budget if it is large.
    pub(crate) fn of_len<E: From<OutOfBudget>>(
        budget: &Budget,
        len: u64,
        fill: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<Self, E> {
        let mut value = Self { bytes: Vec::new(), _lease: charge(budget, len)? };
        value.bytes.reserve_exact(len as usize);
        fill(&mut value.bytes)?;
        Ok(value)
    }

    /// Bytes with what [`charge`] said to their length.
    pub(crate) fn charged(bytes: Vec<u8>, lease: Option<Lease>) -> Self {
        Self { bytes, _lease: lease }
    }

    /// Bytes that `lease` covers.
    pub(crate) fn leased(bytes: Vec<u8>, lease: Lease) -> Self {
        Self { bytes, _lease: Some(lease) }
    }

    /// The bytes, without a copy. They are not charged to the budget any more.
    pub fn into_vec(self) -> Vec<u8> {
        self.bytes
    }
}

/// Whether a value of so many bytes is not charged.
pub(crate) fn is_free(len: u64) -> bool {
    len <= FREE_BYTES as u64
}

/// Room for a value in the hands of a user; `None` if it is small.
pub(crate) fn charge(budget: &Budget, len: u64) -> Result<Option<Lease>, OutOfBudget> {
    if is_free(len) { Ok(None) } else { budget.lease(Kind::Staging, len).map(Some) }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, _lease: None }
    }
}

impl Clone for Value {
    fn clone(&self) -> Self {
        self.bytes.clone().into()
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
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
        self.bytes.cmp(&other.bytes)
    }
}

impl Hash for Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes.hash(state);
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
        self.bytes == other
    }
}

impl PartialEq<&[u8]> for Value {
    fn eq(&self, other: &&[u8]) -> bool {
        self.bytes == *other
    }
}

impl<const N: usize> PartialEq<&[u8; N]> for Value {
    fn eq(&self, other: &&[u8; N]) -> bool {
        self.bytes == *other
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
