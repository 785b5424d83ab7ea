//! Plimsoll: an embedded, versioned, transactional key-value store. The log is the truth; everything else is a cache of it, and all
//! caches together stay under one line.

mod error;
mod index;
mod run;
mod version;

pub use error::{Error, Result};
pub use version::{INLINE_BYTES, MAX_KEY_BYTES, MAX_VALUE_BYTES};
