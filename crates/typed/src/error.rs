//! Errors: those of the store, and bytes that are not of the keyspace's types.

use std::io;

use crate::key::KeyError;

/// Why a call failed.
///
/// ```
/// # use plimsoll::{Db, Options};
/// # use plimsoll_typed::{Error, TypedKeyspace};
/// # fn main() -> plimsoll_typed::Result<()> {
/// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
/// let ages: TypedKeyspace<String, u32> = TypedKeyspace::open(&db, "ages")?;
/// db.put(ages.keyspace(), "ada", "no MessagePack")?;
/// match ages.get(&db.snapshot(), "ada") {
///     Err(Error::Value { keyspace, key, .. }) => {
///         assert_eq!((keyspace.as_str(), key.as_slice()), ("ages", &b"ada"[..]));
///     }
///     other => panic!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the store.
    #[error(transparent)]
    Store(#[from] plimsoll::Error),
    /// A stored key is not of the keyspace's key type: open it with the type that wrote the key.
    #[error(
        "keyspace {keyspace:?}: the key \"{}\" is not of the key type: {source}; open the keyspace \
         with the type that wrote the key",
        bytes.escape_ascii()
    )]
    Key {
        /// The keyspace.
        keyspace: String,
        /// The key as it is stored.
        bytes: Vec<u8>,
        /// Why it cannot be decoded.
        source: KeyError,
    },
    /// A stored value cannot be decoded as the keyspace's value type. Open the keyspace with the
    /// type that wrote the value, or change the type only in ways that
    /// [keep values readable](crate#values-and-changes-of-their-type).
    #[error(
        "keyspace {keyspace:?}: the value of the key \"{}\" is not of the value type: {message}; \
         open the keyspace with the type that wrote the value, or give new fields a default",
        key.escape_ascii()
    )]
    Value {
        /// The keyspace.
        keyspace: String,
        /// The key as it is stored.
        key: Vec<u8>,
        /// Why the value cannot be decoded.
        message: String,
    },
    /// A value cannot be encoded; nothing was written.
    #[error("keyspace {keyspace:?}: a value cannot be encoded: {message}; nothing was written")]
    Encode {
        /// The keyspace.
        keyspace: String,
        /// The error of the value's `Serialize`.
        message: String,
    },
}

/// Result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// For functions that return [`plimsoll::Result`]. A key or value of another type becomes
/// [`plimsoll::Error::Io`] of kind [`InvalidData`](io::ErrorKind::InvalidData).
impl From<Error> for plimsoll::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Store(error) => error,
            other => io::Error::new(io::ErrorKind::InvalidData, other).into(),
        }
    }
}
