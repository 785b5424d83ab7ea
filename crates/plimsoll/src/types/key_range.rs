//! Ranges of keys, in every form that Rust's range syntax allows.
//!
//! Why not `RangeBounds<K>`: `..` does not determine a generic K, so `range(&users, ..)` would not
//! compile. With K = `[u8]`, `range(&users, "a".."m")` would not compile either: `Range<&[u8]>`
//! implements `RangeBounds` only for sized types.

use std::ops::{
    Bound, Range, RangeBounds, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive,
};

/// A range of keys: `..`, any Rust range whose bounds are bytes or text ([`AsRef<[u8]>`](AsRef)),
/// or a pair of [`Bound`]s.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let options = plimsoll::Options::new().memory_bytes(16 << 20);
/// # let db = plimsoll::Db::open(dir.path().join("store"), options)?;
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
    /// The lower bound.
    fn start_key(&self) -> Bound<&[u8]>;

    /// The upper bound.
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

key_ranges!(
    Range<K>,
    RangeFrom<K>,
    RangeInclusive<K>,
    RangeTo<K>,
    RangeToInclusive<K>,
    (Bound<K>, Bound<K>)
);
