//! Keyspaces whose records were on a damaged page: the index has their keys, but no record names
//! them.
//!
//! A recovery writes a new record for each of them, by an ordinary commit, so that its keys can be
//! read. The keyspace gets the name in an older record, if there is one and no other keyspace has
//! that name, otherwise `recovered-ID`; its retention is `Forever`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use plimsoll_log::glsn::{Glsn, StreamId};
use plimsoll_memory::budget::Budget;

use crate::api::admin::diagnose::{Part, Scene, is_damage};
use crate::engine::Engine;
use crate::engine::keyspace_commits::{note_streams, system};
use crate::index::run::survey::survey;
use crate::index::sources::view::Direction;
use crate::txn::transaction::Transaction;
use crate::types::as_of::AsOf;
use crate::types::compression::Compression;
use crate::types::error::{Error, Lift, Result};
use crate::types::index_key::{IndexKey, Prefix};
use crate::types::keyspaces::{FIRST_ID, Record, SYSTEM, check_name, dropped_name};
use crate::types::retention::Retention;
use crate::types::version::Stored;

/// A name for a keyspace that has lost its record; `known` is the name in an older record. Called
/// for younger keyspaces first, because an older one with the same name was dropped.
fn name_for(id: u32, known: Option<&String>, is_taken: &dyn Fn(&str) -> bool) -> String {
    if let Some(known) = known.filter(|known| check_name(known).is_ok() && !is_taken(known)) {
        return known.clone();
    }
    let mut name = format!("recovered-{id}");
    while is_taken(&name) {
        name.push_str("-again");
    }
    name
}

/// The ids of the users' keyspaces that have versions in tables up to `at`, deletions included.
fn ids_in(parts: &[Part], at: Glsn, budget: &Budget) -> Result<BTreeSet<u32>> {
    let mut ids = BTreeSet::new();
    for part in parts {
        let of = |key| IndexKey::new(key).keyspace();
        let (first, last) = (of(&part.info.first_key), of(&part.info.last_key));
        let is_newer = part.info.max_glsn > at;
        if !is_newer {
            ids.extend([first, last]);
        }
        if first != last || is_newer {
            survey(part.source.as_deref(), &part.info, budget, &mut |version| {
                if version.glsn <= at {
                    ids.insert(version.keyspace());
                }
                Ok(())
            })?;
        }
    }
    ids.retain(|id| *id >= FIRST_ID);
    Ok(ids)
}

/// Gives names to the keyspaces of a closed store that have no record in `parts`, its tables;
/// returns their ids.
pub(crate) fn name_in(scene: &mut Scene<'_>, parts: &[Part]) -> Result<BTreeSet<u32>> {
    // The newest version of each record. A record that exists only in a history run was replaced.
    let mut records: BTreeMap<Vec<u8>, (Glsn, Option<u32>)> = BTreeMap::new();
    for part in parts
        .iter()
        .filter(|part| !part.history)
        .filter(|part| IndexKey::new(&part.info.first_key).keyspace() == SYSTEM)
    {
        survey(part.source.as_deref(), &part.info, scene.budget, &mut |version| {
            let is_newest = |newest: &(Glsn, _)| newest.0 < version.glsn;
            if version.keyspace() == SYSTEM && records.get(version.user_key()).is_none_or(is_newest)
            {
                let record = match version.stored {
                    Stored::Inline(record) => Record::decode(record).ok(),
                    _ => None,
                };
                records.insert(
                    version.user_key().to_vec(),
                    (version.glsn, record.map(|record| record.id)),
                );
            }
            Ok(())
        })?;
    }
    let recorded: BTreeSet<u32> = records.values().filter_map(|(_, id)| *id).collect();
    let live = records.iter().filter(|(key, (_, id))| id.is_some() && dropped_name(key).is_none());
    let mut taken: BTreeSet<String> =
        live.map(|(key, _)| String::from_utf8_lossy(key).into_owned()).collect();
    let mut ids = ids_in(parts, Glsn::MAX, scene.budget)?;
    ids.retain(|id| !recorded.contains(id));
    for id in ids.iter().rev() {
        let name = name_for(*id, scene.names.get(id), &|name| taken.contains(name));
        taken.insert(name.clone());
        scene.names.insert(*id, name);
    }
    Ok(ids)
}

/// The ids of keyspaces that have or had keys in the index at `at`, and have no record. The records
/// known to the store are as new as `at` or newer.
pub(crate) fn unnamed(store: &Engine, at: Glsn) -> Result<BTreeSet<u32>> {
    let view = store.reader.index.sources.view();
    let tables = view.all_runs().flat_map(|run| run.tables().iter());
    let parts: Vec<Part> = tables.map(|table| Part::of(table, 0, Vec::new())).collect();
    // Runs may hold newer commits of another process, whose records are unknown here.
    let mut ids = ids_in(&parts, at, &store.reader.budget)?;
    // Keyspaces whose keys exist only in memtables.
    let mut next = Some(FIRST_ID);
    while let Some(from) = next {
        let from = Prefix::of(from);
        let mut key = Vec::new();
        let walk = view.visible(
            Bound::Included(from.as_bytes()),
            Bound::Unbounded,
            AsOf::unexpiring(at),
            Direction::Forward,
        );
        let found =
            walk.and_then(|mut walk| Ok(walk.next(&mut key)?.map(|version| version.keyspace())));
        let id = match found {
            Ok(Some(id)) => id,
            // Another process has dropped versions that this moment needs.
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

/// Names for keyspaces; `known` are the names in older records.
pub(crate) fn new_names(
    store: &Engine,
    ids: BTreeSet<u32>,
    known: &BTreeMap<u32, String>,
) -> BTreeMap<u32, String> {
    let mut names: BTreeMap<u32, String> = BTreeMap::new();
    for id in ids.into_iter().rev() {
        let is_taken = |name: &str| {
            store.reader.keyspaces.find(name).is_some() || names.values().any(|other| other == name)
        };
        let name = name_for(id, known.get(&id), &is_taken);
        names.insert(id, name);
    }
    names
}

/// The keyspaces that have no record, including those of `lost` that have no keys left, with names
/// for them.
pub(crate) fn without_record(
    store: &Engine,
    lost: &BTreeSet<u32>,
    known: &BTreeMap<u32, String>,
) -> Result<BTreeMap<u32, String>> {
    let mut ids = unnamed(store, store.visible())?;
    ids.extend(lost.iter().filter(|id| store.reader.keyspaces.record(**id).is_none()));
    Ok(new_names(store, ids, known))
}

/// Writes records for keyspaces that have none.
pub(crate) fn write_records(store: &Arc<Engine>, names: &BTreeMap<u32, String>) -> Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let mut tx = Transaction::new(&store.committer);
    for (id, name) in names {
        let record = Record::new(*id, Retention::Forever, Compression::None);
        tx.put(&system(store), name.as_bytes(), &record.encode())?;
    }
    tx.set_metadata(format!("{{\"recover_named\":{{\"keyspaces\":{}}}}}", names.len()).as_bytes())?;
    tx.commit()?;
    for (id, name) in names {
        let record = Record::new(*id, Retention::Forever, Compression::None);
        store.reader.keyspaces.load(name, record);
    }
    Ok(())
}

/// Restores, if it is lost, the record that the log has streams of the user, because a log with
/// such streams is never trimmed automatically.
pub(crate) fn record_streams(store: &Arc<Engine>) -> Result<()> {
    let _no_trim = store.space.trim_lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !store.catalog.records.streams_known.load(Ordering::Acquire) && has_streams(store)? {
        note_streams(store)?;
    }
    Ok(())
}

/// Whether the log has entries of the user's own streams. Damaged entries are skipped in steps that
/// double, because there may be very many.
pub(crate) fn has_streams(store: &Engine) -> Result<bool> {
    let bounds = store.reader.log.bounds();
    let (mut from, mut step) = (bounds.first, 1);
    while from < bounds.next {
        let mut scan = store.reader.log.scan(from..bounds.next, None).lift()?;
        loop {
            match scan.next_entry().map(Lift::lift) {
                None => return Ok(false),
                Some(Ok(entry))
                    if ![StreamId::TRANSACTIONS, StreamId::DROPPED]
                        .contains(&entry.meta.stream) =>
                {
                    return Ok(true);
                }
                Some(Ok(entry)) => (from, step) = (entry.meta.glsn.next(), 1),
                Some(Err(error)) if is_damage(&error) => break,
                Some(Err(error)) => return Err(error),
            }
        }
        (from, step) = (Glsn(from.0.saturating_add(step)), step * 2);
    }
    Ok(false)
}

#[cfg(test)]
mod tests;
