//! The successive keyspaces of one name.
//!
//! A keyspace that is dropped keeps its id; a keyspace that is created under the name later gets a
//! higher one. The keyspaces of a name do not overlap in time, because each was created after the
//! one before it was dropped. So a moment belongs to the first of them that was dropped after it. A
//! moment between a drop and the next creation belongs to the next keyspace, which has no keys yet.
//!
//! Creation times are not used, because a recovery may have rewritten the record of a keyspace
//! after its keys.

use plimsoll_log::glsn::Glsn;

use crate::engine::Engine;
use crate::read::point::find;
use crate::types::as_of::AsOf;
use crate::types::error::Result;
use crate::types::index_key::KeyBuffer;
use crate::types::keyspaces::{Keyspace, SYSTEM, dropped_key};

/// The ids of the keyspaces that have or had the name of this one, oldest first; its own id is
/// among them. The caller has applied the commits of other processes.
pub(crate) fn ids(store: &Engine, keyspace: &Keyspace) -> Result<Vec<u32>> {
    let own = store.reader.keyspaces.id_of(keyspace)?;
    let mut ids = store.reader.keyspaces.ids_of(keyspace.name());
    if let Err(place) = ids.binary_search(&own) {
        ids.insert(place, own);
    }
    Ok(ids)
}

/// The position in `ids` of the keyspace that a moment belongs to; `None` if all were dropped by
/// then.
pub(crate) fn position_at(
    store: &Engine,
    name: &str,
    ids: &[u32],
    at: Glsn,
) -> Result<Option<usize>> {
    let (mut low, mut high) = (0, ids.len());
    while low < high {
        let middle = low + (high - low) / 2;
        match dropped_at(store, ids[middle], name)? {
            Some(dropped) if dropped <= at => low = middle + 1,
            _ => high = middle,
        }
    }
    Ok(Some(low).filter(|low| *low < ids.len()))
}

/// The commit that dropped a keyspace; `None` if it exists.
pub(crate) fn dropped_at(store: &Engine, id: u32, name: &str) -> Result<Option<Glsn>> {
    let key = KeyBuffer::new(SYSTEM, &dropped_key(id, name))?;
    let newest = store.committer.sequencer.visible();
    store
        .reader
        .read(|view| Ok(find(view, key.get(), AsOf::unexpiring(newest))?.map(|hit| hit.glsn())))
}
