//! The commit graph: which states a state of a branch contains, and the common ancestors of two.
//!
//! A chain is a line of commits, so a state contains the commits of each chain up to one GLSN. A
//! chain contains its parent up to the fork, and each chain that was merged into it up to the
//! merged state. So only forks and merges are read, not commits.

use std::collections::{BTreeMap, btree_map};
use std::iter;
use std::ops::Bound;
use std::sync::Arc;

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Kind, Lease};

use crate::api::written::Changes;
use crate::engine::Engine;
use crate::index::sources::view::{Direction, View};
use crate::read::lens::Lens;
use crate::read::span::Span;
use crate::types::as_of::AsOf;
use crate::types::branch_key;
use crate::types::branches::{
    Ancestry, Chain, MAIN_CHAIN, chain_key, damaged_branch, decode_merge_key, merge_prefix,
};
use crate::types::error::{Error, Result};
use crate::types::index_key::{KeptKey, KeyBuffer};
use crate::types::keyspaces::BRANCHES;
use crate::types::version::Stored;

/// The bytes that one chain takes while the graph is read.
const CHAIN_BYTES: u64 = 512;

/// A state of a chain: its id, and the GLSN up to which it is read.
pub(crate) type State = (u32, Glsn);

/// For each chain, the GLSN up to which a state contains it.
pub(crate) type Contained = BTreeMap<u32, Glsn>;

/// The forks and merges as of one moment.
pub(crate) struct Graph<'a> {
    store: &'a Engine,
    view: Arc<View>,
    at: Glsn,
    chains: BTreeMap<u32, Chain>,
    lease: Lease,
}

impl<'a> Graph<'a> {
    /// The graph as of a moment that the caller keeps open.
    pub(crate) fn new(store: &'a Engine, at: Glsn) -> Self {
        let lease = store.reader.budget.empty_lease(Kind::Staging);
        let view = store.reader.index.sources.view();
        Self { store, view, at, chains: BTreeMap::new(), lease }
    }

    /// The newest states that both sets of commits contain, each with the commits that it contains.
    /// There are several if branches were merged crosswise. One of them may be contained in another
    /// if a chain between the two is no longer retained.
    ///
    /// # Errors
    /// Disk errors, the budget, or corruption.
    pub(crate) fn newest_common(
        &mut self,
        ours: &Contained,
        theirs: &Contained,
    ) -> Result<Vec<(State, Contained)>> {
        let mut common = Vec::new();
        for (chain, at) in ours {
            let Some(other) = theirs.get(chain) else { continue };
            let at = *at.min(other);
            // Up to its fork, a chain has the states of its parent.
            let fork = match *chain {
                MAIN_CHAIN => None,
                id => self.chain(id)?.map(|chain| chain.fork.at),
            };
            if fork.is_none_or(|fork| at > fork) {
                common.push((*chain, at));
            }
        }
        // Visit the newest first, because a state contains only older ones.
        common.sort_unstable_by_key(|(_, at)| std::cmp::Reverse(*at));
        let (mut newest, mut covered) = (Vec::new(), Contained::new());
        for (chain, at) in common {
            if covered.get(&chain).is_some_and(|upto| *upto >= at) {
                continue;
            }
            let contained = self.contained((chain, at))?;
            for (chain, at) in &contained {
                let upto = covered.entry(*chain).or_default();
                *upto = (*at).max(*upto);
            }
            newest.push(((chain, at), contained));
        }
        let mut place = 0;
        while place < newest.len() {
            let mut others = newest.iter().enumerate().filter(|(other, _)| *other != place);
            let is_within = others.try_fold(false, |is_within, (_, (_, other))| {
                Ok::<_, Error>(is_within || self.is_within(&newest[place], other)?)
            })?;
            match is_within {
                true => drop(newest.remove(place)),
                false => place += 1,
            }
        }
        Ok(newest)
    }

    /// Whether another state contains every commit that a state contains.
    fn is_within(&mut self, state: &(State, Contained), other: &Contained) -> Result<bool> {
        // Check the state's own chain first, because it usually decides.
        let (own, contained) = state;
        let contained = contained.iter().map(|(chain, at)| (*chain, *at));
        for (chain, at) in iter::once(*own).chain(contained) {
            let from = match (other.get(&chain), chain) {
                (Some(upto), _) => *upto,
                (None, MAIN_CHAIN) => Glsn::NONE,
                (None, id) => self.chain(id)?.ok_or_else(damaged_branch)?.fork.at,
            };
            if from < at && self.has_commits(chain, from, at)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a chain may have written keys after `from` and up to `upto`. A merge commit that
    /// wrote no key does not count, because it only adds commits of other chains.
    fn has_commits(&mut self, id: u32, from: Glsn, upto: Glsn) -> Result<bool> {
        self.has_commits_between(id, (from, upto), [upto; 2])
    }

    /// As [`Graph::has_commits`]; `true` also if the first moment is no longer retained, because
    /// deletions since then may be gone.
    pub(crate) fn may_have_commits(&mut self, id: u32, from: Glsn, upto: Glsn) -> Result<bool> {
        self.has_commits_between(id, (from, upto), [from, upto])
    }

    fn has_commits_between(
        &mut self,
        id: u32,
        (from, upto): (Glsn, Glsn),
        readable: [Glsn; 2],
    ) -> Result<bool> {
        let spans = match id {
            MAIN_CHAIN => {
                let keyspaces = self.store.reader.keyspaces.all().into_iter();
                keyspaces.map(|(_, record)| Span::of_keyspace(record.id)).collect()
            }
            id => {
                let group = self.chain(id)?.ok_or_else(damaged_branch)?.group;
                let begin = Bound::Included(branch_key::group_begin(group));
                vec![Span::between(begin, branch_key::group_end(group))]
            }
        };
        for span in spans {
            // The newest version of each key is enough.
            let changes = Changes::new(self.store, span, (from, upto), readable);
            let changes = changes.map(|changes| match id {
                MAIN_CHAIN => changes,
                id => changes.of_chains(vec![(id, (from, upto))]),
            });
            let found = changes.and_then(|mut changes| changes.advance(self.store));
            match found {
                // Unknown: the first moment is no longer retained.
                Err(Error::Trimmed { .. }) => return Ok(true),
                Err(error) => return Err(error),
                Ok(true) => return Ok(true),
                Ok(false) => {}
            }
        }
        Ok(false)
    }

    /// The commits that a state contains.
    pub(crate) fn contained(&mut self, state: State) -> Result<Contained> {
        let (mut contained, mut open) = (Contained::new(), vec![state]);
        while let Some((chain, at)) = open.pop() {
            match contained.entry(chain) {
                btree_map::Entry::Occupied(upto) if *upto.get() >= at => continue,
                btree_map::Entry::Occupied(mut upto) => _ = upto.insert(at),
                btree_map::Entry::Vacant(entry) => {
                    self.lease.grow(CHAIN_BYTES)?;
                    entry.insert(at);
                }
            }
            if chain != MAIN_CHAIN {
                let chain = self.chain(chain)?.ok_or_else(damaged_branch)?;
                open.push((chain.parent, chain.fork.at.min(at)));
            }
            self.merged_into(chain, at, &mut open)?;
        }
        Ok(contained)
    }

    /// A chain; `None` if it was removed because no other chain needs it.
    fn chain(&mut self, id: u32) -> Result<Option<&Chain>> {
        match self.chains.entry(id) {
            btree_map::Entry::Occupied(entry) => Ok(Some(entry.into_mut())),
            btree_map::Entry::Vacant(entry) => {
                let key = KeyBuffer::new(BRANCHES, &chain_key(id))?;
                let Some(hit) = self.view.get(&key, self.at)? else { return Ok(None) };
                match hit.stored() {
                    Stored::Deleted => Ok(None),
                    Stored::Inline(record) => {
                        let chain = Chain::decode(record).ok_or_else(damaged_branch)?;
                        Ok(Some(entry.insert(chain)))
                    }
                    _ => Err(damaged_branch()),
                }
            }
        }
    }

    /// Adds the states that were merged into a chain by commits up to `upto`; for each chain,
    /// the newest.
    fn merged_into(&mut self, into: u32, upto: Glsn, states: &mut Vec<State>) -> Result<()> {
        let key = |bytes: &[u8]| KeptKey::new(BRANCHES, bytes);
        // This does not overflow, because the greatest id is never used.
        let end = key(&chain_key(into + 1))?;
        let mut from = Bound::Excluded(key(&chain_key(into))?);
        loop {
            let lower = from.as_ref().map(|key| &key[..]);
            let upper = Bound::Excluded(&end[..]);
            let at = AsOf::unexpiring(self.at);
            let mut walk = self.view.visible(lower, upper, at, Direction::Forward)?;
            let mut last = Vec::new();
            let found = loop {
                let Some(version) = walk.next(&mut last)? else { return Ok(()) };
                let merge = decode_merge_key(version.user_key()).ok_or_else(damaged_branch)?;
                if version.glsn <= upto {
                    break merge;
                }
            };
            let (_, chain, merged) = found;
            if chain == MAIN_CHAIN || self.chain(chain)?.is_some() {
                states.push((chain, merged));
            }
            // The older merges of the same chain are contained in this one, so go on with the next
            // chain.
            from = Bound::Included(key(&merge_prefix(into, chain + 1))?);
        }
    }

    /// A chain, to read it; `None`: main.
    pub(crate) fn lens(&mut self, id: u32) -> Result<Option<Arc<Lens>>> {
        if id == MAIN_CHAIN {
            return Ok(None);
        }
        let mut next = id;
        while next != MAIN_CHAIN {
            next = self.chain(next)?.ok_or_else(damaged_branch)?.parent;
        }
        let ancestry = Ancestry::new(id, |id| self.chains.get(&id)).ok_or_else(damaged_branch)?;
        let name = self.chains.get(&id).and_then(|chain| chain.name.clone()).unwrap_or_default();
        Ok(Some(Arc::new(Lens::open(&self.store.reader, &name, ancestry)?)))
    }
}
