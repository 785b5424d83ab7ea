//! The chains (lines of versions of branches, see `branches`) that an open store knows, and the
//! merges among them: which moments must stay readable for them, and which chains are removed with
//! a branch.
//!
//! Invariant: a fork, or the moment of a merge, is released only after the deletion of its record
//! is durable. After a crash, no chain leaves its parent at a moment whose versions were dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Budget, Kind, Lease};

use crate::types::branches::{
    Ancestry, BranchInfo, COUNTER_KEY, Chain, Counter, MAIN, MAIN_CHAIN, damaged_branch,
    decode_merge_key,
};
use crate::types::error::Result;
use crate::types::invalid_input::InvalidInput;
use crate::types::tags::Tags;

/// Bytes of memory for a chain, without its name.
const CHAIN_BYTES: u64 = 256;

/// Bytes of memory for a merge.
const MERGE_BYTES: u64 = 128;

/// A merge of one chain into another one: the commit that made it, and the GLSN up to which the
/// other chain was merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Merged {
    by: Glsn,
    at: Glsn,
}

/// The registry of chains as of one commit, while it is collected.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    chains: BTreeMap<u32, Chain>,
    merged: BTreeMap<(u32, u32), Vec<Merged>>,
    counter: Counter,
    lease: Option<Lease>,
}

impl Registry {
    /// Adds a record of the keyspace of chains (`BRANCHES`), which the commit `by` wrote.
    ///
    /// # Errors
    /// The budget, or a record that cannot be decoded.
    pub(crate) fn add(
        &mut self,
        budget: &Budget,
        key: &[u8],
        record: &[u8],
        by: Glsn,
    ) -> Result<()> {
        if key == COUNTER_KEY {
            self.counter = Counter::decode(record)?;
            return Ok(());
        }
        let lease = self.lease.get_or_insert_with(|| budget.empty_lease(Kind::Metadata));
        if let Some((into, from, at)) = decode_merge_key(key) {
            lease.grow(MERGE_BYTES)?;
            self.counter.next = self.counter.next.max(into.max(from).saturating_add(1));
            self.merged.entry((into, from)).or_default().push(Merged { by, at });
            return Ok(());
        }
        let id = key.try_into().map(u32::from_be_bytes).map_err(|_| damaged_branch())?;
        let chain = Chain::decode(record).ok_or_else(damaged_branch)?;
        lease.grow(bytes_of(chain.name.as_deref()))?;
        self.counter.next = self.counter.next.max(id.saturating_add(1));
        self.chains.insert(id, chain);
        Ok(())
    }
}

fn bytes_of(name: Option<&str>) -> u64 {
    CHAIN_BYTES + name_bytes(name)
}

fn name_bytes(name: Option<&str>) -> u64 {
    name.map_or(0, str::len) as u64
}

/// The chains of an open store.
#[derive(Debug, Default)]
pub(crate) struct Branches {
    known: Mutex<Known>,
    /// Held while a branch is created, renamed or deleted.
    changing: Mutex<()>,
    /// Held while the lease grows.
    growing: Mutex<()>,
}

/// The known chains.
#[derive(Debug, Default)]
pub(crate) struct Known {
    chains: BTreeMap<u32, Chain>,
    by_name: BTreeMap<Arc<str>, u32>,
    /// The chains of each group (group, chain).
    groups: BTreeSet<(u32, u32)>,
    /// The chains that left each chain (chain, child).
    children: BTreeSet<(u32, u32)>,
    /// For each chain that was merged into another one (into, from): the merges whose states may
    /// be needed as the base of a later merge, oldest first.
    merged: BTreeMap<(u32, u32), Vec<Merged>>,
    /// The pairs of `merged` with more than one merge.
    merged_again: BTreeSet<(u32, u32)>,
    /// The pairs of `merged`, reversed (from, into).
    merged_into: BTreeSet<(u32, u32)>,
    /// The number of forks and merges that refer to a chain at a moment.
    references: BTreeMap<(u32, Glsn), u32>,
    /// The number of forks and merges at each moment, of main and of other chains.
    forks: [BTreeMap<Glsn, u32>; 2],
    counter: Counter,
    /// Charges the chains to the budget.
    lease: Option<Lease>,
    /// The last commit that is reflected in the chains.
    as_of: Glsn,
    /// The value of `as_of` when the chains were first loaded. Until that commit is durable, a
    /// crash may bring back chains of which this process knows nothing.
    first_loaded: Option<Glsn>,
    /// The value of `as_of` when the chains were last loaded.
    last_loaded: Glsn,
    /// Forks of deleted chains, and moments of merges that later merges have replaced: the moment,
    /// whether it is of main, and a commit at or after the change. A moment is retained until that
    /// commit is durable.
    released: Vec<(Glsn, bool, Glsn)>,
}

/// The chains and versions that the deletion of a branch removes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Removal {
    /// Chains that are no longer needed.
    pub(crate) removed: BTreeSet<u32>,
    /// Groups whose versions are no longer needed.
    pub(crate) dead_groups: BTreeSet<u32>,
}

/// A change of the registry: the new states of chains; `None`: the chain is removed.
pub(crate) type Changes = Vec<(u32, Option<Chain>)>;

impl Known {
    pub(crate) fn counter(&self) -> Counter {
        self.counter
    }

    pub(crate) fn len(&self) -> usize {
        self.chains.len()
    }

    pub(crate) fn get(&self, id: u32) -> Option<&Chain> {
        self.chains.get(&id)
    }

    /// All chains but main, and the GLSN at which each left its parent.
    pub(crate) fn forks(&self) -> impl Iterator<Item = (u32, Glsn)> {
        self.chains.iter().map(|(id, chain)| (*id, chain.fork.at))
    }

    /// The id of the branch with this name.
    ///
    /// # Errors
    /// [`InvalidInput::NoBranch`].
    pub(crate) fn find(&self, name: &str) -> Result<u32> {
        let id = self.by_name.get(name).copied();
        id.ok_or_else(|| InvalidInput::NoBranch { name: name.to_owned() }.into())
    }

    /// Whether a branch has a name that begins with `prefix`.
    pub(crate) fn has_prefix(&self, prefix: &str) -> bool {
        let first =
            self.by_name.range::<str, _>((Bound::Included(prefix), Bound::Unbounded)).next();
        first.is_some_and(|(name, _)| name.starts_with(prefix))
    }

    /// The chain whose versions a branch with the chain `id` sees at a moment: its own, or one that
    /// it descends from if the moment is not after the fork.
    pub(crate) fn seen_by(&self, mut id: u32, at: Glsn) -> u32 {
        while let Some(chain) = self.chains.get(&id).filter(|chain| at <= chain.fork.at) {
            id = chain.parent;
        }
        id
    }

    /// The chains and versions to remove if the branch with the chain `id` is deleted.
    ///
    /// A deleted branch's chain is kept while other chains descend from it, or contain commits only
    /// through it. Its versions are needed, as the base of a merge, only if at least two other
    /// chains left it or merged it.
    ///
    /// If `keeps_merged`, everything merged into a kept chain is needed, because a store that
    /// exchanges commits with others sends everything that its branches contain.
    pub(crate) fn without(&self, id: u32, keeps_merged: bool) -> Removal {
        let (mut removed, mut open) = (BTreeSet::new(), vec![id]);
        let mut groups = BTreeSet::new();
        while let Some(next) = open.pop() {
            let Some(chain) = self.chains.get(&next) else { continue };
            groups.insert(chain.group);
            let is_alive = chain.name.is_some() && next != id;
            let is_superfluous = || match keeps_merged {
                true => self.users_of(next, &removed).next().is_none(),
                false => self.is_redundant(next, chain, &removed),
            };
            if is_alive || removed.contains(&next) || !is_superfluous() {
                continue;
            }
            removed.insert(next);
            open.push(chain.parent);
            open.extend(self.merged.range((next, 0)..=(next, u32::MAX)).map(|(pair, _)| pair.1));
        }
        let chains_of = |group: u32| self.groups.range((group, 0)..=(group, u32::MAX));
        groups.retain(|group| {
            let mut needed = BTreeSet::new();
            // Children have greater ids.
            for (_, chain) in chains_of(*group).rev().filter(|it| !removed.contains(&it.1)) {
                let is_alive = *chain != id && self.get(*chain).is_some_and(|it| it.name.is_some());
                let has_needed_child = || self.children_of(*chain).any(|it| needed.contains(&it));
                let fewest_users = if keeps_merged { 0 } else { 1 };
                if is_alive
                    || has_needed_child()
                    || self.users_of(*chain, &removed).nth(fewest_users).is_some()
                {
                    needed.insert(*chain);
                }
            }
            needed.is_empty()
        });
        Removal { removed, dead_groups: groups }
    }

    /// Whether a chain can be removed without changing what others contain. This is so if no chain
    /// uses it. It is also so if it was merged into its parent, no other chain uses it, and nothing
    /// but the parent was merged into it.
    fn is_redundant(&self, id: u32, chain: &Chain, removed: &BTreeSet<u32>) -> bool {
        let mut users = self.users_of(id, removed);
        let mut contained = self.merged.range((id, 0)..=(id, u32::MAX));
        match (users.next(), users.next()) {
            (None, _) => true,
            (Some((user, false)), None) => {
                user == chain.parent && contained.all(|(pair, _)| pair.1 == user)
            }
            _ => false,
        }
    }

    /// The chains that left the chain `id` (`true`) and those into which it was merged (`false`),
    /// except those in `removed`.
    fn users_of<'k>(
        &'k self,
        id: u32,
        removed: &'k BTreeSet<u32>,
    ) -> impl Iterator<Item = (u32, bool)> + 'k {
        let children = self.children_of(id).map(|child| (child, true));
        let merged = self.merged_into.range((id, 0)..=(id, u32::MAX)).map(|pair| (pair.1, false));
        // A branch that was reset to one of its own earlier commits records a merge with itself.
        children.chain(merged).filter(move |(user, _)| *user != id && !removed.contains(user))
    }

    fn children_of(&self, id: u32) -> impl Iterator<Item = u32> {
        self.children.range((id, 0)..=(id, u32::MAX)).map(|pair| pair.1)
    }

    /// The chains that the chain `id` reads; `None` if it does not exist, or has no name.
    fn ancestry(&self, id: u32) -> Option<Ancestry> {
        self.chains.get(&id)?.name.as_ref()?;
        Ancestry::new(id, |id| self.chains.get(&id))
    }

    /// The merges of the chain `id` with others, in both directions: the chain that was merged
    /// into, and the chain that was merged.
    pub(crate) fn merges_with(&self, id: u32) -> Vec<(u32, u32)> {
        let own = self.merged.range((id, 0)..=(id, u32::MAX)).map(|(pair, _)| *pair);
        let others = self.merged_into.range((id, 0)..=(id, u32::MAX)).map(|pair| (pair.1, pair.0));
        own.chain(others).collect()
    }

    /// Whether a commit after `at` has merged another chain into the chain `id`.
    pub(crate) fn has_merge_after(&self, id: u32, at: Glsn) -> bool {
        let mut merged = self.merged.range((id, 0)..=(id, u32::MAX));
        merged.any(|(_, merges)| merges.iter().any(|merge| merge.by > at))
    }

    /// Adds a merge.
    fn add_merge(&mut self, pair: (u32, u32), merge: Merged) {
        self.merged_into.insert((pair.1, pair.0));
        let merges = self.merged.entry(pair).or_default();
        if let Err(place) = merges.binary_search(&merge) {
            merges.insert(place, merge);
            if merges.len() > 1 {
                self.merged_again.insert(pair);
            }
            self.refer(pair.1, merge.at);
        }
    }

    /// Replaces all merges up to the commit `at`. Younger ones that this process has made stay.
    fn replace_merges(&mut self, all: BTreeMap<(u32, u32), Vec<Merged>>, at: Glsn) {
        self.merged_into.clear();
        self.merged_again.clear();
        for (pair, before) in std::mem::take(&mut self.merged) {
            let exists = |id| id == MAIN_CHAIN || self.chains.contains_key(&id);
            let stays = exists(pair.0) && exists(pair.1);
            for merge in before {
                match stays && merge.by > at {
                    true => {
                        self.merged_into.insert((pair.1, pair.0));
                        let merges = self.merged.entry(pair).or_default();
                        merges.push(merge);
                        if merges.len() > 1 {
                            self.merged_again.insert(pair);
                        }
                    }
                    false => self.unrefer(pair.1, merge.at, at),
                }
            }
        }
        for (pair, merges) in all {
            merges.into_iter().for_each(|merge| self.add_merge(pair, merge));
        }
    }

    /// Removes the merges of one chain into another one, as of the commit `at`.
    fn remove_merges(&mut self, pair: (u32, u32), at: Glsn) {
        self.merged_into.remove(&(pair.1, pair.0));
        self.merged_again.remove(&pair);
        for merge in self.merged.remove(&pair).unwrap_or_default() {
            self.unrefer(pair.1, merge.at, at);
            self.shrink(MERGE_BYTES);
        }
    }

    fn shrink(&mut self, bytes: u64) {
        if let Some(lease) = &mut self.lease {
            lease.shrink(bytes);
        }
    }

    /// Removes the merges that no branch needs any more, as of the commit `at`: each merge that a
    /// later one of the same two chains follows, unless a fork, a merge or a tag refers to a state
    /// between the two merges.
    fn forget_merges(&mut self, at: Glsn, (tagged, tags_as_of): &(BTreeSet<Glsn>, Glsn)) {
        // After a crash, a tag whose deletion was not durable exists again.
        let at = at.max(*tags_as_of);
        loop {
            let mut forgotten = Vec::new();
            self.merged_again.retain(|pair| {
                let Some(merges) = self.merged.get_mut(pair) else { return false };
                let mut place = 0;
                while let [merge, next, ..] = merges[place..] {
                    let between = (pair.0, merge.by)..(pair.0, next.by);
                    let is_seen = self.references.range(between).next().is_some()
                        || tagged.range(merge.by..next.by).next().is_some();
                    match is_seen {
                        true => place += 1,
                        false => {
                            let by = next.by.max(at);
                            forgotten.push((pair.1, merges.remove(place).at, by));
                        }
                    }
                }
                merges.len() > 1
            });
            if forgotten.is_empty() {
                return;
            }
            self.shrink(forgotten.len() as u64 * MERGE_BYTES);
            for (from, merged, by) in forgotten {
                self.unrefer(from, merged, by);
            }
        }
    }

    /// Notes that a fork or a merge refers to a chain at a moment.
    fn refer(&mut self, chain: u32, moment: Glsn) {
        *self.references.entry((chain, moment)).or_default() += 1;
        *self.forks_of(chain).entry(moment).or_default() += 1;
    }

    /// Notes that a fork or a merge no longer refers to a chain at a moment, since the commit `at`.
    fn unrefer(&mut self, chain: u32, moment: Glsn, at: Glsn) {
        remove_one(&mut self.references, (chain, moment));
        remove_one(self.forks_of(chain), moment);
        self.released.push((moment, chain == MAIN_CHAIN, at));
    }

    /// Puts or removes a chain, as of the commit `at`.
    fn set(&mut self, id: u32, chain: Option<Chain>, at: Glsn) {
        let before = match chain.clone() {
            Some(chain) => self.chains.insert(id, chain),
            None => self.chains.remove(&id),
        };
        if before == chain {
            return;
        }
        if let Some(chain) = &chain {
            self.groups.insert((chain.group, id));
            self.children.insert((chain.parent, id));
            self.refer(chain.parent, chain.fork.at);
        }
        if let Some(before) = before {
            if chain.as_ref().is_none_or(|chain| chain.parent != before.parent) {
                self.children.remove(&(before.parent, id));
            }
            self.unlink(&before, at);
            match &chain {
                None => {
                    self.groups.remove(&(before.group, id));
                    self.shrink(bytes_of(before.name.as_deref()));
                }
                // A new name was leased before ([`Branches::reserve_name`]).
                Some(chain) if chain.name != before.name => {
                    self.shrink(name_bytes(before.name.as_deref()));
                }
                Some(_) => {}
            }
        }
        if let Some(name) = chain.and_then(|chain| chain.name) {
            self.by_name.insert(name, id);
        }
    }

    /// Removes the name of a former record of a chain, and its reference to its parent.
    fn unlink(&mut self, chain: &Chain, at: Glsn) {
        if let Some(name) = &chain.name {
            // Another chain may have taken the name in the same change.
            let holder = self.by_name.get(name);
            let is_taken = holder
                .and_then(|id| self.chains.get(id))
                .is_some_and(|holder| holder.name.as_ref() == Some(name));
            if !is_taken {
                self.by_name.remove(name);
            }
        }
        self.unrefer(chain.parent, chain.fork.at, at);
    }

    fn forks_of(&mut self, parent: u32) -> &mut BTreeMap<Glsn, u32> {
        &mut self.forks[usize::from(parent != MAIN_CHAIN)]
    }

    fn info(&self, chain: &Chain) -> Option<BranchInfo> {
        let parent = match chain.parent {
            MAIN_CHAIN => Some(MAIN.to_owned()),
            id => self.get(id).and_then(|parent| Some(parent.name.as_ref()?.to_string())),
        };
        let fork = chain.fork.info("");
        Some(BranchInfo {
            name: chain.name.as_ref()?.to_string(),
            parent,
            fork: fork.glsn,
            fork_time: fork.time,
        })
    }
}

fn remove_one<K: Ord>(counts: &mut BTreeMap<K, u32>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

impl Branches {
    pub(crate) fn known(&self) -> MutexGuard<'_, Known> {
        // No code under this lock panics with the chains half changed.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks changes of the registry in this process.
    pub(crate) fn lock_changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether changes of the registry are locked.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn is_changing(&self) -> bool {
        self.changing.try_lock().is_err()
    }

    /// Sets all chains as of `at`. `tags` must be known as of `at` or later.
    pub(crate) fn load(&self, all: Registry, at: Glsn, tags: &Tags) {
        let tagged = tags.named_moments();
        let mut known = self.known();
        known.first_loaded.get_or_insert(at);
        if at < known.as_of {
            // The chains are known as of a later commit, but not the merges of other processes.
            for (pair, merges) in all.merged {
                let exists = |id| id == MAIN_CHAIN || known.chains.contains_key(&id);
                if exists(pair.0) && exists(pair.1) {
                    merges.into_iter().for_each(|merge| known.add_merge(pair, merge));
                }
            }
            let as_of = known.as_of;
            known.forget_merges(as_of, &tagged);
            return;
        }
        let gone: Vec<u32> =
            known.chains.keys().filter(|id| !all.chains.contains_key(id)).copied().collect();
        gone.into_iter().for_each(|id| known.set(id, None, at));
        all.chains.into_iter().for_each(|(id, chain)| known.set(id, Some(chain), at));
        known.replace_merges(all.merged, at);
        known.last_loaded = at;
        (known.counter, known.lease, known.as_of) = (all.counter, all.lease, at);
        known.forget_merges(at, &tagged);
    }

    /// Leases the memory of a chain that is about to be created.
    ///
    /// # Errors
    /// The budget.
    pub(crate) fn reserve(&self, budget: &Budget, name: &str) -> Result<()> {
        // Grow the lease outside of the lock, because the budget may have to free memory.
        self.grow(budget, bytes_of(Some(name)))
    }

    fn grow(&self, budget: &Budget, bytes: u64) -> Result<()> {
        let _growing = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let lease = self.known().lease.take();
            let mut lease = lease.unwrap_or_else(|| budget.empty_lease(Kind::Metadata));
            let grown = lease.grow(bytes);
            let mut known = self.known();
            if known.lease.is_none() {
                known.lease = Some(lease);
                return Ok(grown?);
            }
            // All chains were loaded in between, and are charged by another lease.
        }
    }

    /// Leases the memory of a merge.
    ///
    /// # Errors
    /// The budget.
    pub(crate) fn reserve_for_merge(&self, budget: &Budget) -> Result<()> {
        self.grow(budget, MERGE_BYTES)
    }

    /// Notes that the commit `glsn` of this process has merged the chain `from` into the chain
    /// `into`, up to `upto`.
    pub(crate) fn merged(&self, (into, from): (u32, u32), upto: Glsn, glsn: Glsn, tags: &Tags) {
        let tagged = tags.named_moments();
        let mut known = self.known();
        let exists = |id| id == MAIN_CHAIN || known.chains.contains_key(&id);
        if glsn > known.last_loaded && exists(into) && exists(from) {
            known.add_merge((into, from), Merged { by: glsn, at: upto });
            known.forget_merges(glsn, &tagged);
        }
    }

    /// Leases the memory of the name that a chain is about to get. That of its former name is
    /// released when the change is recorded.
    ///
    /// # Errors
    /// The budget.
    pub(crate) fn reserve_name(&self, budget: &Budget, name: &str) -> Result<()> {
        self.grow(budget, name_bytes(Some(name)))
    }

    /// Ends the lease of a name that no chain got.
    pub(crate) fn release_name(&self, name: &str) {
        self.known().shrink(name_bytes(Some(name)));
    }

    /// Ends the lease of a chain that was not created.
    pub(crate) fn release_reserved(&self, name: &str) {
        self.known().shrink(bytes_of(Some(name)));
    }

    /// Ends the lease of a merge that was not committed.
    pub(crate) fn give_room_of_merge_back(&self) {
        self.known().shrink(MERGE_BYTES);
    }

    /// Records the changes of a commit of this process. A chain that is removed is removed with its
    /// merges.
    pub(crate) fn changed(&self, changes: Changes, counter: Counter, glsn: Glsn, tags: &Tags) {
        let tagged = tags.named_moments();
        let mut known = self.known();
        // The chains already reflect a later commit.
        if glsn <= known.as_of {
            return;
        }
        for (id, chain) in changes {
            if chain.is_none() {
                let merges = known.merges_with(id);
                merges.into_iter().for_each(|pair| known.remove_merges(pair, glsn));
            }
            known.set(id, chain, glsn);
        }
        (known.counter, known.as_of) = (counter, glsn);
        known.forget_merges(glsn, &tagged);
    }

    /// Notes that tags were created or deleted.
    pub(crate) fn tags_changed(&self, tags: &Tags) {
        let tagged = tags.named_moments();
        self.known().forget_merges(Glsn::NONE, &tagged);
    }

    /// The oldest `limit` moments of forks and merges, of main (`of_main`) or of the other chains,
    /// that must stay readable, and those whose release is not durable yet. `None` if they are
    /// still unknown; `durable`: the newest durable commit.
    pub(crate) fn moments(&self, of_main: bool, durable: Glsn, limit: usize) -> Option<Vec<Glsn>> {
        let mut known = self.known();
        known.first_loaded.filter(|at| *at <= durable)?;
        known.released.retain(|(.., by)| *by > durable);
        let released = known.released.iter().filter(|fork| fork.1 == of_main).map(|fork| fork.0);
        let forks = known.forks[usize::from(!of_main)].keys().copied();
        Some(forks.take(limit).chain(released).collect())
    }

    /// The chain of a branch, and which chains it reads.
    ///
    /// # Errors
    /// There is no such branch.
    pub(crate) fn find(&self, name: &str) -> Result<Ancestry> {
        let known = self.known();
        let id = known.find(name)?;
        known.ancestry(id).ok_or_else(damaged_branch)
    }

    /// The chains that the branch with this chain reads; `None` if it was deleted.
    pub(crate) fn ancestry(&self, id: u32) -> Option<Ancestry> {
        self.known().ancestry(id)
    }

    /// The name of the branch with this chain; the id if the branch was deleted.
    pub(crate) fn name_of(&self, id: u32) -> Arc<str> {
        let known = self.known();
        let name = known.get(id).and_then(|chain| chain.name.clone());
        name.unwrap_or_else(|| id.to_string().into())
    }

    /// The name of the branch with this chain; `None` if it was deleted.
    pub(crate) fn present_name(&self, id: u32) -> Option<String> {
        if id == MAIN_CHAIN {
            return Some(MAIN.to_owned());
        }
        let known = self.known();
        Some(known.get(id)?.name.as_ref()?.to_string())
    }

    /// Describes the branch with this chain; `None` if it was deleted.
    pub(crate) fn info(&self, id: u32) -> Option<BranchInfo> {
        let known = self.known();
        known.info(known.get(id)?)
    }

    /// All branches but main, by name.
    pub(crate) fn all(&self) -> Vec<BranchInfo> {
        let known = self.known();
        known.by_name.values().filter_map(|id| known.info(known.get(*id)?)).collect()
    }
}
