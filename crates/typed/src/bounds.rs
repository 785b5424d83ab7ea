//! Ranges of typed keys.
//!
//! Not [`RangeBounds`], because `..` would not determine the type of its bounds (see
//! `plimsoll::KeyRange`).

use std::ops::{
    Bound, Range, RangeBounds, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive,
};

use crate::key::{AsKey, encoded};

/// A range of keys of type `K`: `..`, any Rust range with bounds that are an [`AsKey<K>`](AsKey),
/// or a pair of [`Bound`]s.
///
/// ```
/// # use plimsoll::{Db, Options};
/// # use plimsoll_typed::TypedKeyspace;
/// # fn main() -> plimsoll_typed::Result<()> {
/// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
/// let degrees: TypedKeyspace<i32, String> = TypedKeyspace::open(&db, "degrees")?;
/// db.transact(|tx| {
///     degrees.put(tx, -40, &"the same in Fahrenheit".into())?;
///     degrees.put(tx, 0, &"ice melts".into())?;
///     degrees.put(tx, 100, &"water boils".into())
/// })?;
/// let now = db.snapshot();
/// assert_eq!(degrees.range(&now, -273..0)?.count(), 1);
/// assert_eq!(degrees.range(&now, ..=0)?.count(), 2);
/// assert_eq!(degrees.range(&now, ..)?.count(), 3);
/// # Ok(())
/// # }
/// ```
pub trait KeyBounds<K> {
    /// The encoded bounds.
    fn encode_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>);
}

fn encode<K, Q: AsKey<K>>(range: &impl RangeBounds<Q>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    (range.start_bound().map(encoded::<K>), range.end_bound().map(encoded::<K>))
}

impl<K, R: KeyBounds<K> + ?Sized> KeyBounds<K> for &R {
    fn encode_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        (**self).encode_bounds()
    }
}

impl<K> KeyBounds<K> for RangeFull {
    fn encode_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        (Bound::Unbounded, Bound::Unbounded)
    }
}

impl<K, Q: AsKey<K>> KeyBounds<K> for Range<Q> {
    fn encode_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        encode::<K, Q>(self)
    }
}

impl<K, Q: AsKey<K>> KeyBounds<K> for RangeFrom<Q> {
    fn encode_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        encode::<K, Q>(self)
    }
}

impl<K, Q: AsKey<K>> KeyBounds<K> for RangeInclusive<Q> {
    fn encode_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        encode::<K, Q>(self)
    }
}

impl<K, Q: AsKey<K>> KeyBounds<K> for RangeTo<Q> {
    fn encode_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        encode::<K, Q>(self)
    }
}

impl<K, Q: AsKey<K>> KeyBounds<K> for RangeToInclusive<Q> {
    fn encode_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        encode::<K, Q>(self)
    }
}

impl<K, Q: AsKey<K>> KeyBounds<K> for (Bound<Q>, Bound<Q>) {
    fn encode_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        encode::<K, Q>(self)
    }
}
