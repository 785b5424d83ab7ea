//! Drops the objects that no retained moment needs.
//!
//! The newest base that is old enough becomes the beginning of the archive: the next manifest names
//! nothing before it. Objects that only earlier manifests name are deleted when those manifests are
//! removed.

use std::collections::BTreeMap;

use crate::bucket::Call;
use crate::catalog::Catalog;
use crate::error::Result;
use crate::manifest::{self, Base, BaseFile, Entry};
use crate::object::ObjectRef;
use crate::push::State;

/// The newest base from which every moment since a time can be restored. `None` if there is none,
/// or if the archive has nothing before it.
fn new_beginning(catalog: &Catalog, since_micros: u64) -> Option<&Base> {
    let base = catalog.bases.iter().rev().find(|base| base.micros <= since_micros)?;
    let is_first = catalog.bases.first().is_some_and(|first| first.glsn == base.glsn);
    let begins = catalog.segments.keys().next().is_some_and(|first| *first >= base.log_first);
    (!is_first || !begins).then_some(base)
}

/// Drops the objects that only moments more than `keep_micros` before the newest commit need.
pub(crate) fn prune(to: &Call<'_>, state: &mut State, keep_micros: u64) -> Result<()> {
    let since_micros = state.catalog.end().micros.saturating_sub(keep_micros);
    let Some(base) = new_beginning(&state.catalog, since_micros) else { return Ok(()) };
    let (glsn, log_first) = (base.glsn, base.log_first);
    let catalog = Catalog::of(state.catalog.entries().filter(|entry| match entry {
        Entry::Piece(piece) => piece.segment >= log_first,
        Entry::Blob(blob) => blob.segment >= log_first,
        Entry::Base(base) => base.glsn >= glsn,
    }));
    // If a list is damaged, drop nothing; `verify` reports the damage.
    let Some(needed) = objects(to, &catalog)? else { return Ok(()) };
    let Some(mut dropped) = objects(to, &state.catalog)? else { return Ok(()) };
    let mut manifest = state.begin_manifest(to)?;
    dropped.retain(|name, _| !needed.contains_key(name));
    manifest.drop_objects(dropped.into_values());
    manifest.rewrite_lists(to.bucket, catalog.entries())?;
    state.end_manifest(to, manifest)?;
    state.catalog = catalog;
    Ok(())
}

/// All objects of a catalog by name; `None` if the list of a base cannot be read.
fn objects(to: &Call<'_>, catalog: &Catalog) -> Result<Option<BTreeMap<String, ObjectRef>>> {
    let mut objects: BTreeMap<_, _> = by_name(catalog.objects().cloned()).collect();
    for base in &catalog.bases {
        match manifest::read_json::<Vec<BaseFile>>(to.bucket, &base.list)? {
            Ok(files) => objects.extend(by_name(files.into_iter().map(|file| file.object))),
            Err(_) => return Ok(None),
        }
    }
    Ok(Some(objects))
}

fn by_name(objects: impl Iterator<Item = ObjectRef>) -> impl Iterator<Item = (String, ObjectRef)> {
    objects.map(|object| (object.name.clone(), object))
}
