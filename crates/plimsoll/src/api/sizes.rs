//! The current size of a keyspace.
//!
//! Keys are scanned and counted, up to a limit. Beyond the limit their number is estimated without
//! a scan (see [`estimate`]).

use plimsoll_log::glsn::Glsn;
use std::sync::Arc;

use crate::api::snapshot::Snapshot;
use crate::engine::Engine;
use crate::index::iter::estimate;
use crate::index::sources::view::Direction;
use crate::read::span::Span;
use crate::types::error::Result;
use crate::types::key_range::KeyRange;
use crate::types::keyspaces::Keyspace;

/// Current size of a keyspace.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// # let notes = db.keyspace("notes")?;
/// db.put(&notes, "a", "one")?;
/// let size = db.keyspace_size(&notes, 1000)?;
/// assert_eq!((size.keys, size.bytes, size.exact), (1, 4, true));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyspaceSize {
    /// Keys that currently have a value.
    pub keys: u64,
    /// Bytes of these keys and their values.
    pub bytes: u64,
    /// As `bytes`, but with values as stored: less if they are compressed.
    pub stored_bytes: u64,
    /// True if keys and bytes were counted, false if they are estimates.
    pub exact: bool,
    /// The oldest moment at which the keyspace can be read.
    pub oldest: Glsn,
}

/// Counts up to `keys_max` keys of a keyspace, and estimates the rest.
pub(crate) fn size(
    store: &Arc<Engine>,
    keyspace: &Keyspace,
    keys_max: u64,
) -> Result<KeyspaceSize> {
    let id = store.reader.keyspaces.id_of(keyspace)?;
    let snapshot = Snapshot::newest(store);
    let oldest = store.reader.oldest_readable(id);
    let at = snapshot.read_at()?;
    store.reader.read(|view| {
        let span = Span::new(id, &(..));
        let mut iter = view.visible(span.lower(), span.upper(), at, Direction::Forward)?;
        let (mut keys, mut key, mut bytes, mut stored_bytes) = (0, Vec::new(), 0, 0);
        while keys < keys_max {
            let Some(version) = iter.next(&mut key)? else {
                return Ok(KeyspaceSize { keys, bytes, stored_bytes, exact: true, oldest });
            };
            keys += 1;
            let key_bytes = version.user_key().len() as u64;
            bytes += key_bytes + version.stored.value_bytes();
            stored_bytes += key_bytes + version.stored.stored_bytes();
        }
        if iter.next(&mut key)?.is_none() {
            return Ok(KeyspaceSize { keys, bytes, stored_bytes, exact: true, oldest });
        }
        let estimated = estimate::keys_in(view, (span.lower(), span.upper()))?.max(keys + 1);
        let scale = if keys == 0 { 0.0 } else { estimated as f64 / keys as f64 };
        Ok(KeyspaceSize {
            keys: estimated,
            bytes: (bytes as f64 * scale) as u64,
            stored_bytes: (stored_bytes as f64 * scale) as u64,
            exact: false,
            oldest,
        })
    })
}

/// The approximate current number of keys in a range.
pub(crate) fn approximate_len(
    store: &Arc<Engine>,
    keyspace: &Keyspace,
    range: &impl KeyRange,
) -> Result<u64> {
    let span = Span::new(store.reader.keyspaces.id_of(keyspace)?, range);
    if span.is_empty() {
        return Ok(0);
    }
    store.newest()?;
    store.reader.read(|view| estimate::keys_in(view, (span.lower(), span.upper())))
}
