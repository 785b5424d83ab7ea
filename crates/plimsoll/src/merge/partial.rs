//! Merges in a partial clone, whose commit graph lacks commits.
//!
//! The marks in keyspace [`IDS`] name the commits of which the store lacks parents. The common
//! ancestors of the merged states are known if each marked commit that a merged state contains is
//! also contained in a base. Any other merge is refused.

use std::sync::Arc;

use plimsoll_log::glsn::Glsn;

use crate::api::snapshot::Snapshot;
use crate::engine::Engine;
use crate::merge::graph::{Contained, State};
use crate::types::error::{Error, Result};
use crate::types::invalid_input::InvalidInput;
use crate::types::keyspaces::{BOUNDARY, IDS, PLACE};

/// Passes each commit of which the store lacks parents to `visit`: its id, whether it is a boundary
/// commit, and its places.
fn each_mark(
    store: &Arc<Engine>,
    mut visit: impl FnMut(&[u8], bool, &[State]) -> Result<()>,
) -> Result<()> {
    let ids = store.reader.keyspaces.handle(IDS, "".into());
    let snapshot = Snapshot::newest(store);
    let mut marks = snapshot.prefix(&ids, [BOUNDARY])?;
    while let Some((key, value)) = marks.advance()? {
        let (id, is_boundary) = (&key[1..], value.is_empty());
        let prefix = [&[PLACE], id].concat();
        let (mut walk, mut places) = (snapshot.prefix(&ids, &prefix)?, Vec::new());
        while let Some((key, _)) = walk.advance()? {
            let place = key[prefix.len()..].split_first_chunk();
            let place = place.and_then(|(chain, glsn)| Some((chain, glsn.try_into().ok()?)));
            let (chain, glsn) = place.ok_or_else(|| Error::damaged("a commit's place"))?;
            places.push((u32::from_be_bytes(*chain), Glsn(u64::from_be_bytes(glsn))));
        }
        visit(id, is_boundary, &places)?;
    }
    Ok(())
}

fn below(id: &[u8]) -> Error {
    let id = id.iter().map(|byte| format!("{byte:02x}")).collect();
    InvalidInput::BelowBoundary { id }.into()
}

/// Fails if one of two states contains a commit of which the store lacks parents, and none of their
/// common ancestors contains it.
///
/// # Errors
/// [`InvalidInput::BelowBoundary`]; errors of reads.
pub(super) fn check_bases(
    store: &Arc<Engine>,
    merged: [&Contained; 2],
    bases: &[(State, Contained)],
) -> Result<()> {
    each_mark(store, |id, _, places| {
        let is_in = |contained: &Contained| {
            let mut places = places.iter();
            places.any(|(chain, at)| contained.get(chain).is_some_and(|upto| at <= upto))
        };
        let is_above =
            merged.iter().any(|side| is_in(side)) && !bases.iter().any(|it| is_in(&it.1));
        match is_above || places.is_empty() {
            true => Err(below(id)),
            false => Ok(()),
        }
    })
}

/// Fails if the commit with a GLSN is a boundary commit, whose own changes the store lacks.
///
/// # Errors
/// [`InvalidInput::BelowBoundary`]; errors of reads.
pub(super) fn check_changes(store: &Arc<Engine>, glsn: Glsn) -> Result<()> {
    each_mark(store, |id, is_boundary, places| {
        let is_it = places.is_empty() || places.iter().any(|(_, at)| *at == glsn);
        match is_boundary && is_it {
            true => Err(below(id)),
            false => Ok(()),
        }
    })
}
