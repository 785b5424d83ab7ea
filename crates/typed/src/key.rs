//! Keys whose encodings compare like the keys themselves.
//!
//! Laws of every implementation here, which tuples and ranges rely on:
//! 1. Encodings compare as bytes like the keys.
//! 2. No encoding of a part is the beginning of another one of the same type.
//! 3. Decoding accepts only what encoding returns; other bytes are an error.

mod numbers;
mod strings;
mod tuples;

/// A type of keys. See the [crate's documentation](crate#keys) for the types that implement it.
///
/// To implement it for a key type of your own, call the implementations of existing types.
/// [`AsKey`] encodes, `Key` decodes:
///
/// ```
/// use plimsoll_typed::{AsKey, Key, KeyError};
///
/// #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
/// struct Day {
///     year: i16,
///     month: u8,
///     day: u8,
/// }
///
/// impl AsKey<Day> for Day {
///     fn encode_part(&self, out: &mut Vec<u8>) {
///         (self.year, self.month, self.day).encode_part(out);
///     }
/// }
///
/// impl Key for Day {
///     fn decode_part(from: &mut &[u8]) -> Result<Self, KeyError> {
///         let (year, month, day) = Key::decode_part(from)?;
///         Ok(Self { year, month, day })
///     }
/// }
/// # use plimsoll::{Db, Options};
/// # use plimsoll_typed::TypedKeyspace;
/// # fn main() -> plimsoll_typed::Result<()> {
/// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
///
/// let rain: TypedKeyspace<(String, Day), f32> = TypedKeyspace::open(&db, "rain")?;
/// let day = Day { year: 2026, month: 11, day: 28 };
/// db.transact(|tx| rain.put(tx, ("Delft", day), &4.5))?;
/// assert_eq!(rain.first(&db.snapshot())?, Some((("Delft".to_owned(), day), 4.5)));
/// # Ok(())
/// # }
/// ```
pub trait Key: AsKey<Self> + Sized {
    /// Decodes a part that [`AsKey::encode_part`] encoded, and moves `from` past it.
    ///
    /// # Errors
    /// `from` does not begin with an encoded key of this type.
    fn decode_part(from: &mut &[u8]) -> Result<Self, KeyError>;

    /// Decodes a key that [`AsKey::encode`] encoded.
    ///
    /// # Errors
    /// `bytes` is not an encoded key of this type.
    fn decode(bytes: &[u8]) -> Result<Self, KeyError> {
        let mut rest = bytes;
        let key = Self::decode_part(&mut rest)?;
        match rest.len() {
            0 => Ok(key),
            bytes => Err(KeyError::Trailing { bytes }),
        }
    }
}

/// A type whose values are encoded like keys of type `K`: `K` itself, a reference to it, or a
/// borrowed form. A `&str` is an `AsKey<String>`, and a `(&str, u64)` is an `AsKey<(String, u64)>`,
/// so a lookup allocates no `String`.
pub trait AsKey<K> {
    /// Appends the encoding of the key as a part of a larger key.
    fn encode_part(&self, out: &mut Vec<u8>);

    /// Appends the encoding of the key as a whole key. It differs from that of a part only for
    /// strings, which then need no terminator.
    fn encode(&self, out: &mut Vec<u8>) {
        self.encode_part(out);
    }
}

impl<K, Q: AsKey<K> + ?Sized> AsKey<K> for &Q {
    fn encode_part(&self, out: &mut Vec<u8>) {
        (**self).encode_part(out);
    }

    fn encode(&self, out: &mut Vec<u8>) {
        (**self).encode(out);
    }
}

/// Why bytes are not an encoded key of the requested type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The bytes end within the key.
    #[error("it ends too early")]
    Truncated,
    /// Bytes follow the key.
    #[error("{bytes} bytes follow its end")]
    Trailing {
        /// Their number.
        bytes: usize,
    },
    /// The bytes cannot be the encoding of a key of this type.
    #[error("{what}")]
    Invalid {
        /// The part of the key, and why it is invalid.
        what: &'static str,
    },
}

/// The encoding of a whole key.
pub(crate) fn encoded<K>(key: &(impl AsKey<K> + ?Sized)) -> Vec<u8> {
    let mut out = Vec::with_capacity(32);
    key.encode(&mut out);
    out
}

/// Takes the next `N` bytes.
fn take<const N: usize>(from: &mut &[u8]) -> Result<[u8; N], KeyError> {
    let (taken, rest) = from.split_first_chunk().ok_or(KeyError::Truncated)?;
    *from = rest;
    Ok(*taken)
}

impl<K, Q: AsKey<K>> AsKey<Option<K>> for Option<Q> {
    fn encode_part(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.is_some()));
        if let Some(key) = self {
            key.encode_part(out);
        }
    }
}

impl<K: Key> Key for Option<K> {
    fn decode_part(from: &mut &[u8]) -> Result<Self, KeyError> {
        match take(from)? {
            [0] => Ok(None),
            [1] => K::decode_part(from).map(Some),
            _ => Err(KeyError::Invalid { what: "an option begins with 00 or 01" }),
        }
    }
}
