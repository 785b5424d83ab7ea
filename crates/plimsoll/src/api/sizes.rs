//! The current size of a keyspace.
//!
//! Keys are walked and counted, up to a limit. Beyond it the number of keys is estimated from the runs' metadata, without reading them: an
//! overwritten key may be counted once for each run that holds it, and a file of at most 64 MiB shared with neighboring keyspaces is
//! counted whole.

use plimsoll_log::glsn::Glsn;
use std::sync::Arc;

use crate::api::snapshot::Snapshot;
use crate::engine::Engine;
use crate::index::view::{Direction, View};
use crate::read::span::Span;
use crate::types::error::Result;
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
    /// True if both were counted, false if they are estimates.
    pub exact: bool,
    /// The oldest moment at which the keyspace can be read.
    pub oldest: Glsn,
}

/// Counts up to `keys_max` keys of a keyspace, and estimates the rest.
pub(crate) fn size(store: &Arc<Engine>, keyspace: &Keyspace, keys_max: u64) -> Result<KeyspaceSize> {
    let id = store.reader.keyspaces.id_of(keyspace)?;
    let snapshot = Snapshot::newest(store);
    let oldest = store.reader.oldest_readable(id);
    store.reader.read(|view| {
        let span = Span::new(id, &(..))?;
        let mut walk = view.visible(span.lower(), span.upper(), snapshot.at(), Direction::Forward)?;
        let (mut keys, mut bytes, mut key) = (0, 0, Vec::new());
        while keys < keys_max {
            let Some(version) = walk.next(&mut key)? else {
                return Ok(KeyspaceSize { keys, bytes, exact: true, oldest });
            };
            keys += 1;
            bytes += version.key.len() as u64 - 4 + version.stored.value_bytes();
        }
        if walk.next(&mut key)?.is_none() {
            return Ok(KeyspaceSize { keys, bytes, exact: true, oldest });
        }
        let estimated = versions(view, id).max(keys + 1);
        let each = if keys == 0 { 0.0 } else { bytes as f64 / keys as f64 };
        Ok(KeyspaceSize { keys: estimated, bytes: (estimated as f64 * each) as u64, exact: false, oldest })
    })
}

/// Number of versions, deletions excluded, in the files of current runs that overlap a keyspace.
fn versions(view: &View, id: u32) -> u64 {
    let space = |key: &[u8]| key.first_chunk().map_or(0, |space| u32::from_be_bytes(*space));
    let infos = view.runs.iter().flat_map(|run| run.infos());
    let holds = |first: &[u8], last: &[u8]| (space(first)..=space(last)).contains(&id);
    let values = infos.filter(|info| holds(&info.first_key, &info.last_key));
    values.map(|info| info.versions.saturating_sub(info.deletions)).sum()
}
