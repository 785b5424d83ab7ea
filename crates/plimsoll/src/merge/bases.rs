//! The bases of a merge: the newest states that both sides contain.
//!
//! A criss-cross merge has several bases. They are merged first, key by key, like the states of two
//! branches: with the newest states that they have in common as their bases.

use std::sync::Arc;

use crate::api::snapshot::Snapshot;
use crate::engine::Engine;
use crate::merge::graph::{Contained, Graph, State};
use crate::types::error::Result;

/// After one merge has opened this many bases of bases, it opens no further ones. A key on which
/// the bases differ then has no base value if it needs further ones.
const STATES_MAX: usize = 64;

/// The bases of a merge, at least one.
pub(crate) struct Bases {
    first: Snapshot,
    /// The other bases. Each comes with the bases for its merge with the bases before it; `None` if
    /// the limit was reached.
    others: Vec<(Snapshot, Option<Bases>)>,
}

/// The number of states that may still be opened, at most [`STATES_MAX`].
pub(crate) struct Limit(usize);

impl Default for Limit {
    fn default() -> Self {
        Self(STATES_MAX)
    }
}

impl Bases {
    /// A single base.
    pub(crate) fn one(state: Snapshot) -> Self {
        Self { first: state, others: Vec::new() }
    }

    /// The only base, if it is a state of main.
    pub(crate) fn only_on_main(&self) -> Option<&Snapshot> {
        Some(&self.first).filter(|state| self.others.is_empty() && state.lens().is_none())
    }

    /// Opens `states`, the newest common states that `graph` found, and their own bases as far as
    /// `limit` allows.
    ///
    /// # Errors
    /// Errors of reads, the budget, or corruption.
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

    /// The bases, without their own bases.
    pub(crate) fn states(&self) -> impl Iterator<Item = &Snapshot> {
        std::iter::once(&self.first).chain(self.others.iter().map(|(state, _)| state))
    }

    pub(crate) fn first(&self) -> &Snapshot {
        &self.first
    }

    /// Merges the results of `read` for each base, for example the value of a key. Two results are
    /// equal if `is_same` returns true. `None` if two bases changed the same thing in different
    /// ways, or if the limit was reached.
    ///
    /// # Errors
    /// Errors of `read` and `is_same`.
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
