//! Updates of one key: each computes the new value from the value that the key has at the update's
//! place in the order of commits.
//!
//! Pure: an update may be computed several times, and only the last result is written.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::types::error::Result;
use crate::types::invalid_input::InvalidInput;
use crate::types::version::check_value_bytes;

/// The result of an addition that does not fit into 64 bits: [`crate::Db::add`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Overflow {
    /// It wraps around: [`i64::wrapping_add`].
    Wrapping,
    /// It stays at [`i64::MIN`] or [`i64::MAX`].
    Saturating,
    /// It is an error, and nothing is written.
    Checked,
}

/// A user's function; `None` is a key without a value.
pub(crate) type Function<'f> = Arc<dyn Fn(Option<&[u8]>) -> Option<Vec<u8>> + Send + Sync + 'f>;

/// A value, or none.
type Content<'v> = Option<Cow<'v, [u8]>>;

/// An update of one key.
#[derive(Clone)]
pub(crate) enum Update<'f> {
    /// Adds to a number; an absent one counts as 0.
    Add(i64, Overflow),
    /// Raises a number that is less than this one to this one, and sets an absent one.
    Max(i64),
    /// Lowers a number that is greater than this one to this one, and sets an absent one.
    Min(i64),
    /// Appends bytes.
    Append(Cow<'f, [u8]>),
    /// Sets a value if there is none.
    SetIfAbsent(Cow<'f, [u8]>),
    /// Replaces the expected value.
    CompareAndSwap {
        /// The expected value; `None` means no value.
        expected: Content<'f>,
        /// The new value; `None` deletes the key.
        new: Content<'f>,
        /// Whether any other value is an error. If not, such a value is left unchanged.
        is_required: bool,
    },
    /// Sets a bit: bit `n` is bit `n % 8`, from the lowest, of byte `n / 8`.
    SetBit(u64),
    /// Clears a bit.
    ClearBit(u64),
    /// Computes the value by a function.
    Function(Function<'f>),
}

impl<'f> Update<'f> {
    /// The value of the key after the update, given its value `old` before it.
    pub(crate) fn apply<'v>(&'v self, key: &[u8], old: Content<'v>) -> Result<Content<'v>> {
        Ok(match self {
            Update::Add(by, overflow) => {
                let value = number(key, old.as_deref())?.unwrap_or(0);
                let sum = match overflow {
                    Overflow::Wrapping => Some(value.wrapping_add(*by)),
                    Overflow::Saturating => Some(value.saturating_add(*by)),
                    Overflow::Checked => value.checked_add(*by),
                };
                let (key, by) = (key.to_vec(), *by);
                encoded(sum.ok_or(InvalidInput::CounterOverflow { key, value, by })?)
            }
            Update::Max(bound) => {
                encoded(number(key, old.as_deref())?.map_or(*bound, |value| value.max(*bound)))
            }
            Update::Min(bound) => {
                encoded(number(key, old.as_deref())?.map_or(*bound, |value| value.min(*bound)))
            }
            Update::Append(more) => match old {
                None => Some(Cow::Borrowed(&more[..])),
                Some(old) => Some(Cow::Owned(appended(&old, more))),
            },
            Update::SetIfAbsent(value) => old.or(Some(Cow::Borrowed(&value[..]))),
            Update::CompareAndSwap { expected, new, is_required } => {
                match (old.as_deref() == expected.as_deref(), is_required) {
                    (true, _) => new.as_deref().map(Cow::Borrowed),
                    (false, false) => old,
                    (false, true) => {
                        return Err(InvalidInput::NotAsExpected { key: key.to_vec() }.into());
                    }
                }
            }
            Update::SetBit(bit) => {
                let mut bytes = old.map_or_else(Vec::new, Cow::into_owned);
                let (byte, mask) = place_of_bit(*bit);
                if bytes.len() <= byte {
                    bytes.resize(byte + 1, 0);
                }
                bytes[byte] |= mask;
                Some(Cow::Owned(bytes))
            }
            Update::ClearBit(bit) => {
                let (byte, mask) = place_of_bit(*bit);
                match old {
                    Some(old) if bit_of(&old, *bit) => {
                        let mut bytes = old.into_owned();
                        bytes[byte] &= !mask;
                        Some(Cow::Owned(bytes))
                    }
                    old => old,
                }
            }
            Update::Function(compute) => compute(old.as_deref()).map(Cow::Owned),
        })
    }

    /// Merges the update `next`, which follows this one, into this one if one update can express
    /// both. Returns whether it did so.
    pub(crate) fn fold(&mut self, next: &Update<'_>) -> bool {
        match (self, next) {
            (Update::Add(by, Overflow::Wrapping), Update::Add(more, Overflow::Wrapping)) => {
                *by = by.wrapping_add(*more);
            }
            (Update::Max(bound), Update::Max(next)) => *bound = (*bound).max(*next),
            (Update::Min(bound), Update::Min(next)) => *bound = (*bound).min(*next),
            (Update::Append(bytes), Update::Append(more)) => bytes.to_mut().extend_from_slice(more),
            _ => return false,
        }
        true
    }

    /// Bytes of its operands.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Update::Append(bytes) | Update::SetIfAbsent(bytes) => bytes.len(),
            Update::CompareAndSwap { expected, new, .. } => {
                [expected, new].into_iter().flatten().map(|value| value.len()).sum()
            }
            _ => size_of::<i64>(),
        }
    }

    /// Upper bound on the length of the new value, given an old value of `old` bytes. It is not a
    /// bound for a function, because the length of its result is known only after the call.
    pub(crate) fn new_bytes(&self, old: u64) -> u64 {
        match self {
            Update::Append(more) => old + more.len() as u64,
            Update::SetBit(bit) => old.max(bit / 8 + 1),
            Update::SetIfAbsent(new) | Update::CompareAndSwap { new: Some(new), .. } => {
                old.max(new.len() as u64)
            }
            _ => old.max(size_of::<i64>() as u64),
        }
    }

    /// Whether the update fails on some values.
    pub(crate) fn may_be_refused(&self) -> bool {
        match self {
            Update::Add(..) | Update::Max(_) | Update::Min(_) => true,
            Update::CompareAndSwap { is_required, .. } => *is_required,
            _ => false,
        }
    }
}

impl fmt::Debug for Update<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Update({} bytes)", self.bytes())
    }
}

/// The number in a value: 8 bytes, little endian.
pub(crate) fn number(key: &[u8], value: Option<&[u8]>) -> Result<Option<i64>> {
    let Some(value) = value else { return Ok(None) };
    match value.try_into() {
        Ok(bytes) => Ok(Some(i64::from_le_bytes(bytes))),
        Err(_) => {
            let bytes = value.len() as u64;
            Err(InvalidInput::NotANumber { key: key.to_vec(), bytes }.into())
        }
    }
}

fn encoded<'v>(number: i64) -> Content<'v> {
    Some(Cow::Owned(number.to_le_bytes().to_vec()))
}

fn appended(old: &[u8], more: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(old.len() + more.len());
    bytes.extend_from_slice(old);
    bytes.extend_from_slice(more);
    bytes
}

/// Whether a bit of a value is set.
pub(crate) fn bit_of(value: &[u8], bit: u64) -> bool {
    let byte = usize::try_from(bit / 8).ok().and_then(|byte| value.get(byte));
    byte.is_some_and(|byte| byte & (1 << (bit % 8)) != 0)
}

/// Rejects a bit beyond the longest value.
pub(crate) fn check_bit(bit: u64) -> Result<()> {
    check_value_bytes(bit / 8 + 1)
}

fn place_of_bit(bit: u64) -> (usize, u8) {
    ((bit / 8) as usize, 1 << (bit % 8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::error::Error;
    use crate::types::version::MAX_VALUE_BYTES;

    fn apply(update: &Update<'_>, old: Option<&[u8]>) -> Result<Option<Vec<u8>>> {
        Ok(update.apply(b"key", old.map(Cow::Borrowed))?.map(Cow::into_owned))
    }

    fn of(number: i64) -> Vec<u8> {
        number.to_le_bytes().to_vec()
    }

    #[test]
    fn numbers_are_added_and_bounded() {
        use Overflow::{Checked, Saturating, Wrapping};
        for (update, old, new) in [
            (Update::Add(2, Checked), None, Some(2)),
            (Update::Add(-2, Checked), Some(1), Some(-1)),
            (Update::Add(1, Checked), Some(i64::MAX), None),
            (Update::Add(1, Wrapping), Some(i64::MAX), Some(i64::MIN)),
            (Update::Add(1, Saturating), Some(i64::MAX), Some(i64::MAX)),
            (Update::Add(-1, Saturating), Some(i64::MIN), Some(i64::MIN)),
            (Update::Max(-3), None, Some(-3)),
            (Update::Max(3), Some(5), Some(5)),
            (Update::Max(7), Some(5), Some(7)),
            (Update::Min(3), None, Some(3)),
            (Update::Min(3), Some(5), Some(3)),
            (Update::Min(7), Some(5), Some(5)),
        ] {
            let found = apply(&update, old.map(of).as_deref());
            assert_eq!(found.ok(), new.map(|new| Some(of(new))), "{old:?}");
        }
        let refused = apply(&Update::Max(1), Some(b"seven b")).unwrap_err();
        assert!(
            matches!(refused, Error::InvalidInput(InvalidInput::NotANumber { bytes: 7, .. })),
            "{refused}"
        );
    }

    #[test]
    fn bits_are_counted_from_the_lowest_of_the_first_byte() {
        assert_eq!(apply(&Update::SetBit(0), None).unwrap().unwrap(), [1]);
        assert_eq!(apply(&Update::SetBit(9), Some(b"a")).unwrap().unwrap(), [b'a', 2]);
        assert_eq!(apply(&Update::ClearBit(9), Some(&[0, 2])).unwrap().unwrap(), [0, 0]);
        assert_eq!(apply(&Update::ClearBit(90), Some(b"a")).unwrap().unwrap(), b"a");
        assert_eq!(apply(&Update::ClearBit(0), None).unwrap(), None);
        assert!(bit_of(&[0, 2], 9) && !bit_of(&[0, 2], 8) && !bit_of(&[0, 2], u64::MAX));
        assert!(check_bit((MAX_VALUE_BYTES << 3) - 1).is_ok());
        assert!(check_bit(MAX_VALUE_BYTES << 3).is_err());
    }

    #[test]
    fn folded_updates_do_what_one_after_the_other_does() {
        let append = |bytes: &'static str| Update::Append(Cow::Borrowed(bytes.as_bytes()));
        for (first, next) in [
            (Update::Add(i64::MAX, Overflow::Wrapping), Update::Add(2, Overflow::Wrapping)),
            (Update::Max(3), Update::Max(-1)),
            (Update::Min(3), Update::Min(-1)),
            (append("ab"), append("c")),
        ] {
            for old in [None, Some(of(1))] {
                let between = apply(&first, old.as_deref()).unwrap();
                let wanted = apply(&next, between.as_deref()).unwrap();
                let mut both = first.clone();
                assert!(both.fold(&next));
                assert_eq!(apply(&both, old.as_deref()).unwrap(), wanted);
            }
        }
        // The first may overflow where the sum does not.
        let mut checked = Update::Add(i64::MAX, Overflow::Checked);
        assert!(!checked.fold(&Update::Add(-1, Overflow::Checked)));
    }
}
