//! The states from which both sides of a merge come.
//!
//! There are several if branches were merged crosswise. They are then merged themselves, key by
//! key, as the states of two branches are: from the states from which they come.

use std::sync::Arc;

use crate::api::snapshot::Snapshot;
use crate::engine::Engine;
use crate::merge::graph::{Contained, Graph, State};
use crate::types::error::Result;

/// The most states that are opened for one merge. Keys that need more count as changed in different
/// ways.
const STATES_MAX: usize = 64;

/// At least one state; several if branches were merged crosswise.
pub(crate) struct Bases {
    first: Snapshot,
    /// The others, each with the states from which it and those before it come; `None`: not known.
    others: Vec<(Snapshot, Option<Bases>)>,
}

/// How many more states may be opened.
pub(crate) struct Limit(usize);

impl Default for Limit {
    fn default() -> Self {
        Self(STATES_MAX)
    }
}

impl Bases {
    pub(crate) fn one(state: Snapshot) -> Self {
        Self { first: state, others: Vec::new() }
    }

    /// Opens `states`, which a graph has found, and those from which they come.
    pub(crate) fn open(
        store: &Arc<Engine>,
        graph: &mut Graph<'_>,
        states: Vec<(State, Contained)>,
        limit: &mut Limit,
    ) -> Result<Self> {
        let mut states = states.into_iter();
        let (first, mut contained) = states.next().expect("all chains come from main");
        let first = open_state(store, graph, first)?;
        let mut others = Vec::with_capacity(states.len());
        for (state, of_state) in states {
            let state = open_state(store, graph, state)?;
            let mut bases = None;
            if limit.0 > 0 {
                let ancestors = graph.newest_common(&contained, &of_state)?;
                limit.0 = limit.0.saturating_sub(ancestors.len());
                bases = Some(Self::open(store, graph, ancestors, limit)?);
            }
            for (chain, at) in of_state {
                let upto = contained.entry(chain).or_default();
                *upto = at.max(*upto);
            }
            others.push((state, bases));
        }
        Ok(Self { first, others })
    }

    pub(crate) fn states(&self) -> impl Iterator<Item = &Snapshot> {
        std::iter::once(&self.first).chain(self.others.iter().map(|(state, _)| state))
    }

    pub(crate) fn first(&self) -> &Snapshot {
        &self.first
    }

    /// What the states have in common, each read by `read`; `None` if they changed it in different
    /// ways.
    pub(crate) fn merged<T>(
        &self,
        read: &impl Fn(&Snapshot) -> Result<T>,
        is_same: &impl Fn(&mut T, &mut T) -> Result<bool>,
    ) -> Result<Option<T>> {
        let mut merged = read(&self.first)?;
        for (state, bases) in &self.others {
            let mut other = read(state)?;
            if is_same(&mut merged, &mut other)? {
                continue;
            }
            let Some(bases) = bases else { return Ok(None) };
            let Some(mut base) = bases.merged(read, is_same)? else { return Ok(None) };
            if is_same(&mut base, &mut merged)? {
                merged = other;
            } else if !is_same(&mut base, &mut other)? {
                return Ok(None);
            }
        }
        Ok(Some(merged))
    }
}

fn open_state(store: &Arc<Engine>, graph: &mut Graph<'_>, (chain, at): State) -> Result<Snapshot> {
    let state = Snapshot::ordered_at(store, store.committer.as_of_past(at)?)?;
    Ok(match graph.lens(chain)? {
        None => state,
        Some(lens) => state.on_branch(&lens),
    })
}
