//! Immutable sorted files of versions.
//!
//! A *run* is a sorted sequence of versions (by index key, then newest first), cut into *tables* of
//! at most [`crate::types::sizes::Sizes::table_bytes`]: static B+trees written once,
//! sequentially. A table is a file in the index's folder, whose pages may be stored compressed
//! ([`packed`]), or a blob file of the log: a transaction that was too large for memory is adopted
//! without a rewrite.

pub(crate) mod builder;
mod bytes;
pub(crate) mod check;
pub(crate) mod cursor;
pub(crate) mod ends;
mod fences;
pub(crate) mod file;
mod filter;
pub(crate) mod guide;
pub(crate) mod inner;
pub(crate) mod leaf;
pub(crate) mod packed;
pub(crate) mod plain;
pub(crate) mod survey;
pub(crate) mod table;
#[cfg(test)]
mod tests;
pub(crate) mod warmth;
