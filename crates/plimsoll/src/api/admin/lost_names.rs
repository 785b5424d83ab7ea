//! Keyspaces whose records were on a damaged page: the index has their keys, and nothing names them.
//!
//! A salvage gives each of them a new name, `recovered-ID`, and the retention `Forever`, by an ordinary commit: then its keys can be read.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use plimsoll_log::glsn::{Glsn, StreamId};
use plimsoll_memory::budget::Budget;

use crate::api::admin::diagnose::{Part, Scene};
use crate::engine::Engine;
use crate::engine::keyspace_commits::{FIRST_ID, note_streams, system};
use crate::index::run::survey::survey;
use crate::index::view::Direction;
use crate::txn::transaction::Transaction;
use crate::types::error::{Error, Lift, Result};
use crate::types::keyspaces::{Record, keyspace_of};
use crate::types::retention::Retention;

/// The name that a keyspace gets in place of one that is lost.
fn new_name(id: u32) -> String {
    format!("recovered-{id}")
}

/// What is lost with the record of a keyspace, as a sentence.
pub(crate) fn loss(id: u32) -> String {
    format!("the name and the retention of keyspace number {id}, whose keys get the name {:?}", new_name(id))
}

/// The ids of the users' keyspaces that have versions in tables, deletions included.
pub(crate) fn ids_in(parts: &[Part], budget: &Budget) -> Result<BTreeSet<u32>> {
    let mut ids = BTreeSet::new();
    for part in parts {
        let (first, last) = (keyspace_of(&part.info.first_key), keyspace_of(&part.info.last_key));
        ids.extend([first, last]);
        if first != last {
            survey(part.source.as_deref(), &part.info, budget, &mut |version| {
                ids.insert(keyspace_of(version.key));
                Ok(())
            })?;
        }
    }
    ids.retain(|id| *id >= FIRST_ID);
    Ok(ids)
}

/// Gives new names to the keyspaces of a store that is not open which no record in `parts` names; returns their ids.
pub(crate) fn name_in(scene: &mut Scene<'_>, parts: &[Part]) -> Result<BTreeSet<u32>> {
    let mut ids = ids_in(parts, scene.budget)?;
    ids.retain(|id| !scene.names.contains_key(id));
    scene.names.extend(ids.iter().map(|id| (*id, new_name(*id))));
    Ok(ids)
}

/// The ids of keyspaces that have keys in the index at `at`, or had them before, and no record.
pub(crate) fn unnamed(store: &Engine, at: Glsn) -> Result<BTreeSet<u32>> {
    let view = store.reader.index.view();
    let tables = view.all_runs().flat_map(|run| run.tables().iter());
    let parts: Vec<Part> = tables.map(|table| Part::of(table, 0, Vec::new())).collect();
    let mut ids = ids_in(&parts, &store.reader.budget)?;
    // Those of which only memtables have keys.
    let mut next = Some(FIRST_ID);
    while let Some(from) = next {
        let from = from.to_be_bytes();
        let mut key = Vec::new();
        let walk = view.visible(Bound::Included(&from), Bound::Unbounded, at, Direction::Forward);
        let found = walk.and_then(|mut walk| Ok(walk.next(&mut key)?.map(|version| keyspace_of(version.key))));
        let id = match found {
            Ok(Some(id)) => id,
            // Another process has dropped the moment that this one reads.
            Ok(None) | Err(Error::Trimmed { .. }) => break,
            Err(error) => return Err(error),
        };
        ids.insert(id);
        next = id.checked_add(1);
    }
    drop(view);
    // A record is older than the keys of its keyspace.
    for record in store.reader.keyspaces.records() {
        ids.remove(&record.id);
    }
    Ok(ids)
}

/// New names for keyspaces.
pub(crate) fn new_names(store: &Engine, ids: BTreeSet<u32>) -> BTreeMap<u32, String> {
    let name = |id: u32| {
        let mut name = new_name(id);
        while store.reader.keyspaces.find(&name).is_some() {
            name.push_str("-again");
        }
        (id, name)
    };
    ids.into_iter().map(name).collect()
}

/// Writes records for the keyspaces that have none, also for those of `lost` that have no keys left; returns their new names.
pub(crate) fn write_records(store: &Arc<Engine>, lost: &BTreeSet<u32>) -> Result<Vec<String>> {
    let mut ids = unnamed(store, store.visible())?;
    ids.extend(lost.iter().filter(|id| store.reader.keyspaces.record(**id).is_none()));
    let names = new_names(store, ids);
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let mut tx = Transaction::new(&store.committer);
    for (id, name) in &names {
        tx.put(&system(store), name.as_bytes(), &Record::new(*id, Retention::Forever).encode())?;
    }
    tx.set_metadata(format!("{{\"salvage_named\":{{\"keyspaces\":{}}}}}", names.len()).as_bytes())?;
    tx.commit()?;
    for (id, name) in &names {
        store.reader.keyspaces.learn(name, Record::new(*id, Retention::Forever));
    }
    Ok(names.into_values().collect())
}

/// Records again that the log carries streams of the user, where that record may be lost: such a log is never trimmed automatically.
pub(crate) fn record_streams(store: &Arc<Engine>) -> Result<()> {
    let bounds = store.reader.log.bounds();
    let mut scan = store.reader.log.scan(bounds.first..bounds.next, None).lift()?;
    while let Some(entry) = scan.next() {
        let stream = entry.lift()?.meta.stream;
        if stream != StreamId::TRANSACTIONS && stream != StreamId::DROPPED {
            drop(scan);
            return note_streams(store);
        }
    }
    Ok(())
}
