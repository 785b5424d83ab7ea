//! Ranges of keys, in every form that Rust can write.
//!
//! Why not `RangeBounds<K>`: nothing in `..` says what K is, and a `Range<&[u8]>` is no `RangeBounds<[u8]>`, which is made for sized types. So `range(&users, ..)`
//! would not compile with the one, and `range(&users, "a".."m")` not with the other.

use std::ops::{Bound, Range, RangeBounds, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// A range of keys: `..`, or any range of Rust whose ends are bytes or text ([`AsRef<[u8]>`](AsRef)), or a pair of [`Bound`]s.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let db = plimsoll::Db::open(dir.path().join("store"), plimsoll::Options::new().memory_bytes(16 << 20))?;
/// let fruits = db.keyspace("fruits")?;
/// for fruit in ["apple", "cherry", "melon"] {
///     db.put(&fruits, fruit, "1")?;
/// }
/// let now = db.snapshot();
/// assert_eq!(now.range(&fruits, "a".."m")?.count(), 2);
/// assert_eq!(now.range(&fruits, b"cherry".to_vec()..)?.count(), 2);
/// assert_eq!(now.range(&fruits, ..="apple")?.count(), 1);
/// assert_eq!(now.range(&fruits, ..)?.count(), 3);
/// # Ok(())
/// # }
/// ```
pub trait KeyRange {
    /// Where it begins.
    fn start_key(&self) -> Bound<&[u8]>;

    /// Where it ends.
    fn end_key(&self) -> Bound<&[u8]>;
}

impl<R: KeyRange + ?Sized> KeyRange for &R {
    fn start_key(&self) -> Bound<&[u8]> {
        (**self).start_key()
    }

    fn end_key(&self) -> Bound<&[u8]> {
        (**self).end_key()
    }
}

impl KeyRange for RangeFull {
    fn start_key(&self) -> Bound<&[u8]> {
        Bound::Unbounded
    }

    fn end_key(&self) -> Bound<&[u8]> {
        Bound::Unbounded
    }
}

macro_rules! key_ranges {
    ($($range:ty),*) => {$(
        impl<K: AsRef<[u8]>> KeyRange for $range {
            fn start_key(&self) -> Bound<&[u8]> {
                RangeBounds::<K>::start_bound(self).map(K::as_ref)
            }

            fn end_key(&self) -> Bound<&[u8]> {
                RangeBounds::<K>::end_bound(self).map(K::as_ref)
            }
        }
    )*};
}

key_ranges!(Range<K>, RangeFrom<K>, RangeInclusive<K>, RangeTo<K>, RangeToInclusive<K>, (Bound<K>, Bound<K>));
