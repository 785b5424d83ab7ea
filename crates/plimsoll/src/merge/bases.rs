//! The states from which both sides of a merge come.

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::Lease;

use crate::api::snapshot::Snapshot;
use crate::merge::graph::Contained;
use crate::types::error::Result;
use crate::types::keyspaces::Keyspace;

/// At least one state; several if branches were merged crosswise.
pub(crate) struct Bases {
    /// Each state, and what it contains.
    all: Vec<(Snapshot, Contained)>,
    /// Charges what they contain to the budget.
    _lease: Option<Lease>,
}

impl Bases {
    pub(crate) fn one(state: Snapshot) -> Self {
        Self { all: vec![(state, Contained::new())], _lease: None }
    }

    pub(crate) fn new(all: Vec<(Snapshot, Contained)>, lease: Lease) -> Self {
        Self { all, _lease: Some(lease) }
    }

    pub(crate) fn states(&self) -> impl Iterator<Item = &Snapshot> {
        self.all.iter().map(|(state, _)| state)
    }

    pub(crate) fn first(&self) -> &Snapshot {
        &self.all[0].0
    }

    pub(crate) fn are_several(&self) -> bool {
        self.all.len() > 1
    }

    /// The states whose version of a key no other one has superseded, one for each version.
    pub(crate) fn newest_of(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Vec<&Snapshot>> {
        let origins = self.states().map(|state| state.origin(keyspace, key));
        let origins: Vec<Option<(u32, Glsn)>> = origins.collect::<Result<_>>()?;
        let contains = |place: usize, origin: Option<(u32, Glsn)>| {
            let (_, contained) = &self.all[place];
            origin.is_some_and(|(chain, at)| contained.get(&chain).is_some_and(|upto| *upto >= at))
        };
        let is_superseded = |place: usize| {
            let own = origins[place];
            (0..self.all.len()).any(|other| {
                origins[other] != own && contains(other, own) && !contains(place, origins[other])
            })
        };
        // One version may have expired at one of two moments and not at the other.
        let is_repeated =
            |place: usize| origins[place].is_some() && origins[..place].contains(&origins[place]);
        let newest =
            (0..self.all.len()).filter(|place| !is_superseded(*place) && !is_repeated(*place));
        Ok(newest.map(|place| &self.all[place].0).collect())
    }
}
