//! Branches: lines of history that leave another branch at a moment, the fork.
//!
//! The line of versions of one branch is a chain. Chain 0 is main; the ids of the others rise and
//! are never reused. The chains that descend from one chain that left main are a group, whose id is
//! that of this chain. The versions of all chains but main are in keyspace [`SIDE`], by group.
//!
//! A chain is a key (its id, big-endian) of an internal keyspace, so creating, renaming or deleting
//! a branch is an ordinary commit:
//!
//! ```text
//! u32      parent (little-endian, as all numbers here)
//! u32      group
//! 17 bytes the fork: the record of a moment, as a tag has it
//! bytes    name; empty: the branch was deleted, but branches that descend from it exist
//! ```
//!
//! The empty key holds the counter: u32 the next id, u64 the number of changes. Each change reads
//! and writes it, so that two changes are never based on the same state.
//!
//! Invariant: a fork is released only after the deletion of its chain is durable. After a crash, no
//! chain leaves its parent at a moment whose versions were dropped.
//!
//! [`SIDE`]: crate::types::keyspaces::SIDE

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use plimsoll_disk::codec::Reader;
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Budget, Kind, Lease};

use crate::types::error::{Error, Result};
use crate::types::invalid_input::InvalidInput;
use crate::types::keyspaces::MAX_NAME_BYTES;
use crate::types::tags::{Tagged, is_moment_name};

/// The name of the branch that always exists.
pub(crate) const MAIN: &str = "main";

/// The id of its chain.
pub(crate) const MAIN_CHAIN: u32 = 0;

/// The most chains of a store.
pub(crate) const MAX_CHAINS: usize = 1_000_000;

/// What a chain costs in memory besides its name.
const CHAIN_BYTES: u64 = 256;

/// A branch of a store.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # use plimsoll::*;
/// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
/// db.create_branch("draft", &db.main())?;
/// let branches = db.branches()?;
/// assert_eq!((&*branches[0].name, branches[0].parent.as_deref()), ("draft", Some("main")));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BranchInfo {
    /// Its name.
    pub name: String,
    /// The branch that it left; `None` if that was deleted.
    pub parent: Option<String>,
    /// The moment at which it left its parent: right after the commit with this GLSN.
    pub fork: Glsn,
    /// The time of that commit; `None` for the empty store, or if the log no longer held the commit
    /// when the branch was created.
    pub fork_time: Option<SystemTime>,
}

impl BranchInfo {
    /// Whether a branch can have this name: see [`Db::create_branch`](crate::Db::create_branch).
    pub fn is_name(name: &str) -> bool {
        check_branch_name(name).is_ok()
    }
}

/// The line of versions of a branch that is not main.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    /// `None`: the branch was deleted, but others descend from it.
    pub(crate) name: Option<Arc<str>>,
    pub(crate) parent: u32,
    pub(crate) group: u32,
    pub(crate) fork: Tagged,
}

impl Chain {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut record = Vec::with_capacity(32);
        record.extend_from_slice(&self.parent.to_le_bytes());
        record.extend_from_slice(&self.group.to_le_bytes());
        record.extend_from_slice(&self.fork.encode());
        record.extend_from_slice(self.name.as_deref().unwrap_or_default().as_bytes());
        record
    }

    fn decode(record: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(record);
        let (parent, group) = (reader.u32()?, reader.u32()?);
        let (fork, name) = record[8..].split_at_checked(17)?;
        let name = std::str::from_utf8(name).ok()?;
        let fork = Tagged::decode(fork).ok()?;
        let name = Some(name).filter(|name| !name.is_empty()).map(Arc::from);
        Some(Self { name, parent, group, fork })
    }
}

/// The bytes of a chain's record without its name.
const UNNAMED_BYTES: usize = 25;

/// Whether a record of a chain is that of a branch which was not deleted.
pub(crate) fn is_of_branch(record: &[u8]) -> bool {
    record.len() > UNNAMED_BYTES
}

/// The key of a chain's record.
pub(crate) fn chain_key(id: u32) -> [u8; 4] {
    id.to_be_bytes()
}

/// The key of the counter.
pub(crate) const COUNTER_KEY: &[u8] = b"";

/// The next id, and the number of changes of the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counter {
    pub(crate) next: u32,
    pub(crate) changes: u64,
}

impl Default for Counter {
    fn default() -> Self {
        Self { next: MAIN_CHAIN + 1, changes: 0 }
    }
}

impl Counter {
    pub(crate) fn encode(self) -> [u8; 12] {
        let mut record = [0; 12];
        record[..4].copy_from_slice(&self.next.to_le_bytes());
        record[4..].copy_from_slice(&self.changes.to_le_bytes());
        record
    }

    pub(crate) fn decode(record: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(record);
        match (reader.u32(), reader.u64(), reader.remaining()) {
            (Some(next), Some(changes), 0) => Ok(Self { next, changes }),
            _ => Err(damaged_branch()),
        }
    }
}

/// The error for a record of a branch that cannot be decoded.
pub(crate) fn damaged_branch() -> Error {
    Error::damaged("the record of a branch cannot be decoded")
}

/// The chains that a branch reads, and how far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ancestry {
    /// The branch's own chain.
    pub(crate) chain: u32,
    pub(crate) group: u32,
    /// Its chain and those that it descends from, up to the one that left main; ids descending.
    /// Each with the newest GLSN that the branch sees of it: any for its own.
    pub(crate) chains: Box<[(u32, Glsn)]>,
    /// The newest GLSN that the branch sees of main.
    pub(crate) main: Glsn,
}

/// The registry of chains as of one commit, while it is collected.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    chains: BTreeMap<u32, Chain>,
    counter: Counter,
    lease: Option<Lease>,
}

impl Registry {
    /// Adds a record of the keyspace.
    ///
    /// # Errors
    /// The budget, or a record that cannot be decoded.
    pub(crate) fn add(&mut self, budget: &Budget, key: &[u8], record: &[u8]) -> Result<()> {
        if key == COUNTER_KEY {
            self.counter = Counter::decode(record)?;
            return Ok(());
        }
        let id = key.try_into().map(u32::from_be_bytes).map_err(|_| damaged_branch())?;
        let chain = Chain::decode(record).ok_or_else(damaged_branch)?;
        let lease = self.lease.get_or_insert_with(|| budget.empty_lease(Kind::Metadata));
        lease.grow(bytes_of(chain.name.as_deref()))?;
        self.chains.insert(id, chain);
        Ok(())
    }
}

fn bytes_of(name: Option<&str>) -> u64 {
    CHAIN_BYTES + name.map_or(0, str::len) as u64
}

/// The chains of an open store.
#[derive(Debug, Default)]
pub(crate) struct Branches {
    known: Mutex<Known>,
    /// Held while a branch is created, renamed or deleted.
    changing: Mutex<()>,
}

/// The known chains.
#[derive(Debug, Default)]
pub(crate) struct Known {
    chains: BTreeMap<u32, Chain>,
    by_name: BTreeMap<Arc<str>, u32>,
    /// The number of chains that left each chain.
    children: BTreeMap<u32, u32>,
    /// The number of forks at each moment, of main and of other chains.
    forks: [BTreeMap<Glsn, u32>; 2],
    counter: Counter,
    /// Charges the chains to the budget.
    lease: Option<Lease>,
    /// The last commit that is reflected in them.
    as_of: Glsn,
    /// The same when they were first loaded. Until it is durable, chains of which this process
    /// knows nothing may come back by a crash.
    loaded: Option<Glsn>,
    /// Forks of deleted chains (of main: `true`), each with a commit at or after the deletion. They
    /// are retained until that is durable.
    released: Vec<(Glsn, bool, Glsn)>,
}

/// A change of the registry: the chains that become others, or are removed.
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

    /// The id of the branch with this name.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn find(&self, name: &str) -> Result<u32> {
        let id = self.by_name.get(name).copied();
        id.ok_or_else(|| InvalidInput::NoBranch { name: name.to_owned() }.into())
    }

    /// The chain whose versions a branch with the chain `id` sees at a moment: its own, or one that
    /// it descends from if the moment is not after the fork.
    pub(crate) fn seen_by(&self, mut id: u32, at: Glsn) -> u32 {
        while let Some(chain) = self.chains.get(&id).filter(|chain| at <= chain.fork.at) {
            id = chain.parent;
        }
        id
    }

    /// Whether another chain left this one.
    pub(crate) fn has_children(&self, id: u32) -> bool {
        self.children.contains_key(&id)
    }

    /// Whether `id` has only one child.
    pub(crate) fn has_one_child(&self, id: u32) -> bool {
        self.children.get(&id) == Some(&1)
    }

    /// Which chains the chain `id` reads; `None` if it does not exist, or has no name.
    fn ancestry(&self, id: u32) -> Option<Ancestry> {
        let own = self.chains.get(&id).filter(|chain| chain.name.is_some())?;
        let (mut chains, mut limit) = (vec![(id, Glsn::MAX)], own.fork.at);
        let mut at = own;
        while at.parent != MAIN_CHAIN {
            chains.push((at.parent, limit));
            at = self.chains.get(&at.parent)?;
            limit = limit.min(at.fork.at);
        }
        Some(Ancestry { chain: id, group: own.group, chains: chains.into(), main: limit })
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
        if let Some(before) = before {
            self.unlink(&before);
            let is_fork_kept = chain.as_ref().is_some_and(|chain| {
                chain.fork.at == before.fork.at && chain.parent == before.parent
            });
            if !is_fork_kept {
                self.released.push((before.fork.at, before.parent == MAIN_CHAIN, at));
            }
        }
        if let Some(chain) = chain {
            if let Some(name) = &chain.name {
                self.by_name.insert(Arc::clone(name), id);
            }
            *self.children.entry(chain.parent).or_default() += 1;
            *self.forks_of(chain.parent).entry(chain.fork.at).or_default() += 1;
        }
    }

    /// Removes what is known of a chain besides its record.
    fn unlink(&mut self, chain: &Chain) {
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
        remove_one(&mut self.children, chain.parent);
        remove_one(self.forks_of(chain.parent), chain.fork.at);
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

    /// Sets all chains as of `at`.
    pub(crate) fn learn(&self, all: Registry, at: Glsn) {
        let mut known = self.known();
        known.loaded.get_or_insert(at);
        if at < known.as_of {
            return;
        }
        let gone: Vec<u32> =
            known.chains.keys().filter(|id| !all.chains.contains_key(id)).copied().collect();
        gone.into_iter().for_each(|id| known.set(id, None, at));
        all.chains.into_iter().for_each(|(id, chain)| known.set(id, Some(chain), at));
        (known.counter, known.lease, known.as_of) = (all.counter, all.lease, at);
    }

    /// Leases the memory of a chain that is about to be created.
    ///
    /// # Errors
    /// The budget.
    pub(crate) fn make_room(&self, budget: &Budget, name: &str) -> Result<()> {
        // Outside of the lock, because the budget may have to free memory.
        let lease = self.known().lease.take();
        let mut lease = lease.unwrap_or_else(|| budget.empty_lease(Kind::Metadata));
        let grown = lease.grow(bytes_of(Some(name)));
        // Chains that were learned in between are charged by a lease of their own.
        self.known().lease.get_or_insert(lease);
        Ok(grown?)
    }

    /// Ends the lease of a chain that was not created.
    pub(crate) fn give_room_back(&self, name: &str) {
        if let Some(lease) = &mut self.known().lease {
            lease.shrink(bytes_of(Some(name)));
        }
    }

    /// Notes what a commit of this process has changed.
    pub(crate) fn changed(&self, changes: Changes, counter: Counter, glsn: Glsn) {
        let mut known = self.known();
        // The chains already reflect a later commit.
        if glsn <= known.as_of {
            return;
        }
        changes.into_iter().for_each(|(id, chain)| known.set(id, chain, glsn));
        (known.counter, known.as_of) = (counter, glsn);
    }

    /// The oldest `limit` forks, from main or from other chains, that must stay readable, and those
    /// that are about to be released. `None` if they are not known yet; `durable`: the newest
    /// durable commit.
    pub(crate) fn moments(&self, of_main: bool, durable: Glsn, limit: usize) -> Option<Vec<Glsn>> {
        let mut known = self.known();
        known.loaded.filter(|loaded| *loaded <= durable)?;
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

    /// The name of the branch with this chain; the id if the branch was deleted.
    pub(crate) fn name_of(&self, id: u32) -> Arc<str> {
        let known = self.known();
        let name = known.get(id).and_then(|chain| chain.name.clone());
        name.unwrap_or_else(|| id.to_string().into())
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

/// Rejects names that are no names of branches, and those that a command could read as a moment or
/// a range.
pub(crate) fn check_branch_name(name: &str) -> Result<()> {
    let is_name = !name.is_empty()
        && name.len() <= MAX_NAME_BYTES
        && name.trim() == name
        && !name.starts_with('-')
        && !name.chars().any(|c| c.is_control() || c == ':')
        && !name.contains("..")
        && !name.contains("@{");
    match is_name && !is_moment_name(name) {
        true => Ok(()),
        false => {
            let limit_bytes = MAX_NAME_BYTES as u64;
            Err(InvalidInput::BranchName { name: name.to_owned(), limit_bytes }.into())
        }
    }
}
