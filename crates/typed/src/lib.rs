//! Typed keyspaces for [Plimsoll](plimsoll): a type of keys, whose encodings sort as the keys do,
//! and a type of values, which [serde] encodes.
//!
//! A [`TypedKeyspace<K, V>`] is a [`plimsoll::Keyspace`] whose keys are all a `K` and whose values
//! are all a `V`. It adds no state, no metadata and no locks: each call encodes its arguments,
//! calls the store and decodes the answer. Reads take anything that implements [`plimsoll::Read`],
//! so the same code reads a transaction and a snapshot.
//!
//! ```
//! use plimsoll::{Db, Options};
//! use plimsoll_typed::TypedKeyspace;
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Debug, PartialEq, Serialize, Deserialize)]
//! struct Order {
//!     item: String,
//!     pieces: u32,
//! }
//!
//! # fn main() -> plimsoll_typed::Result<()> {
//! let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
//! // The key is a customer and the number of an order.
//! let orders: TypedKeyspace<(String, u64), Order> = TypedKeyspace::open(&db, "orders")?;
//!
//! db.transact(|tx| {
//!     orders.put(tx, ("ada", 1), &Order { item: "tea".into(), pieces: 2 })?;
//!     orders.put(tx, ("ada", 2), &Order { item: "milk".into(), pieces: 1 })?;
//!     orders.put(tx, ("alan", 1), &Order { item: "apples".into(), pieces: 6 })
//! })?;
//!
//! let now = db.snapshot();
//! assert_eq!(orders.get(&now, ("ada", 2))?.map(|order| order.item).as_deref(), Some("milk"));
//!
//! // All orders of one customer, the newest first.
//! for row in orders.prefix(&now, ("ada",))?.reverse() {
//!     let ((customer, number), order) = row?;
//!     println!("{customer} {number}: {} x {}", order.pieces, order.item);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Keys
//!
//! The store compares keys as bytes. A [`Key`] has an encoding that compares like the key itself,
//! so a range of keys is a range of the store:
//!
//! | type | encoding | order |
//! |---|---|---|
//! | `u8` … `u128` | big-endian | by value |
//! | `i8` … `i128` | big-endian, sign bit flipped | by value |
//! | `f32`, `f64` | big-endian, sign bit flipped; all bits if negative | [`f64::total_cmp`] |
//! | `bool`, `char` | one byte; four bytes, big-endian | as in Rust |
//! | `String`, `Vec<u8>` | their bytes | by bytes |
//! | … within a tuple or `Option` | `00` becomes `00 FF`; then `00 01` | by bytes |
//! | `[u8; N]` | its bytes | by bytes |
//! | `Option<K>` | `00`, or `01` and the key | `None` first |
//! | tuples of up to 8 keys | one key after the other | by the first difference |
//!
//! A text or byte string that is the whole key is stored as it is, so that other programs and the
//! command `plimsoll` use the same keys. Within a tuple it is escaped as in [FoundationDB's tuple
//! layer][fdb]. There, the byte after the terminator `00` is a type code, which is never `FF`. Here
//! it may be any byte, because parts have no type code; so the terminator is `00 01`.
//!
//! `usize` and `isize` are not keys, because their size depends on the machine. A key has at most
//! [`plimsoll::MAX_KEY_BYTES`] bytes when encoded. Implement [`AsKey`] and [`Key`] for your own
//! types.
//!
//! [fdb]: https://github.com/apple/foundationdb/blob/main/design/tuple.md
//!
//! # Values, and changes of their type
//!
//! Values are [MessagePack](https://msgpack.org), by the crate `rmp-serde`, and structs are maps
//! from field names to fields. postcard and bincode make smaller values, but neither stores names
//! or types: a new field makes every older value unreadable (and bincode is no longer maintained).
//! MessagePack has a published specification and libraries for most languages. If the names take
//! too much space, compress the keyspace ([`plimsoll::Db::set_compression`]) or shorten them by
//! `#[serde(rename = "…")]`.
//!
//! These changes keep stored values readable:
//!
//! - **Add a field** that is an `Option` or has `#[serde(default)]`: older values have its default.
//! - **Remove a field** of a type without `#[serde(deny_unknown_fields)]`: it is ignored in older
//!   values.
//! - **Rename a field or variant** with `#[serde(alias = "old name")]`. The order of the fields
//!   does not matter.
//! - **Widen an integer**, for example from `u32` to `u64`.
//! - **Add a variant to an enum.** Programs without that variant cannot read it.
//!
//! For any other change, write the values to another keyspace, or read them by an untagged enum of
//! the old and the new type. [`plimsoll::Snapshot`]s of earlier moments return values as they were
//! written then.
//!
//! Limits: `Some(None)` and `Some(())` read as `None`. A `Vec<u8>` takes up to two bytes for each
//! of its bytes, unless the field uses the crate `serde_bytes`. Maps and lists, and enums that
//! contain something, are nested at most 128 deep; a deeper value is an error when it is written.
//!
//! # Errors
//!
//! [`Error`] is either an error of the store, or it names the keyspace and the key or value that
//! cannot be decoded. It converts from and to [`plimsoll::Error`], so `?` works with both in
//! [`plimsoll::Db::transact`].
//!
//! # Everything else
//!
//! This crate does not repeat the whole store. Pass [`TypedKeyspace::keyspace`] to any call of
//! [`plimsoll`], with the bytes of [`TypedKeyspace::encode_key`] and
//! [`TypedKeyspace::encode_value`]; [`TypedKeyspace::decode_key`] and
//! [`TypedKeyspace::decode_value`] decode what it returns, [`TypedKeyspace::rows`] its iterators:
//!
//! ```
//! # use plimsoll::{Db, Options};
//! # use plimsoll_typed::TypedKeyspace;
//! # fn main() -> plimsoll_typed::Result<()> {
//! # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
//! let prices: TypedKeyspace<String, u32> = TypedKeyspace::open(&db, "prices")?;
//! db.transact(|tx| prices.put(tx, "tea", &250))?;
//! db.transact(|tx| prices.put(tx, "tea", &300))?;
//!
//! let mut past = Vec::new();
//! let key = prices.encode_key("tea");
//! for version in db.history(prices.keyspace(), &key)? {
//!     if let Some(bytes) = version?.value()? {
//!         past.push(prices.decode_value(&key, &bytes)?);
//!     }
//! }
//! assert_eq!(past, [300, 250]);
//! # Ok(())
//! # }
//! ```

mod bounds;
mod error;
mod key;
mod keyspace;
mod prefix;
mod rows;
mod value;

pub use bounds::KeyBounds;
pub use error::{Error, Result};
pub use key::{AsKey, Key, KeyError};
pub use keyspace::TypedKeyspace;
pub use prefix::PrefixOf;
pub use rows::Rows;

/// The examples of the documents, which `cargo test` runs.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../docs/how-to/use-typed-keyspaces.md")]
    struct UseTypedKeyspaces;
}
