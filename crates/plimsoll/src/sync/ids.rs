//! The ids of the store's commits, in a keyspace of its own. It is brought up to date before it is
//! used, by reading the commits since the last time.
//!
//! ```text
//! "p"                                    -> u64 the first GLSN whose entry was not looked at yet
//! "c" u32 chain, u64 GLSN (big-endian)   -> 32 bytes id, u8 kind
//! "i" 32 bytes id, u32 chain, u64 GLSN   -> u8 kind
//! "r" 32 bytes id                        -> `Received`, written by the commit itself
//! ```
//!
//! The keys of the second and third kind are written together. A store may have a commit several
//! times, because a branch that catches up with another one repeats its commits.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_disk::codec::Reader;
use plimsoll_log::glsn::Glsn;

use crate::api::commit::Commit;
use crate::api::commits::Commits;
use crate::api::db::Db;
use crate::api::snapshot::Snapshot;
use crate::engine::Engine;
use crate::sync::commit_id::{CommitId, ContentHash};
use crate::sync::contents::{HashSink, Node, damaged, emit, micros_of, node_of};
use crate::txn::transaction::Transaction;
use crate::types::branches::MAIN_CHAIN;
use crate::types::error::{Error, Result};
use crate::types::keyspaces::{IDS, IDS_POSITION, Keyspace};

const COMMIT: u8 = b'c';
const PLACE: u8 = b'i';

/// The most commits whose ids are written in one transaction.
const BATCH: usize = 2048;

/// From this number of entries on, it is recorded that they have no commits.
const PASSED: u64 = 65_536;

/// What a commit is to its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It has the changes of the commit.
    Whole = 0,
    /// It makes the chain equal to the commit, which another chain has.
    Advance = 1,
    /// It stands for those that the log no longer has.
    Trimmed = 2,
}

impl Kind {
    fn of(byte: u8) -> Result<Self> {
        let all = [Self::Whole, Self::Advance, Self::Trimmed];
        all.into_iter().find(|kind| *kind as u8 == byte).ok_or_else(damaged)
    }
}

/// A commit on a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) id: CommitId,
    pub(super) chain: u32,
    pub(super) glsn: Glsn,
    pub(super) kind: Kind,
}

impl Place {
    /// The state of its chain right after it.
    pub(super) fn state(&self) -> (u32, Glsn) {
        (self.chain, self.glsn)
    }
}

/// The commits whose ids are known, but not written yet.
#[derive(Default)]
struct Batch {
    places: BTreeMap<(u32, Glsn), (CommitId, Kind)>,
}

/// The ids of a store.
pub(super) struct Ids {
    db: Db,
    space: Keyspace,
}

impl Ids {
    /// The ids of all commits that are visible now.
    ///
    /// # Errors
    /// The store is read-only and has new commits; [`Error::Dropped`] if the log has lost one;
    /// errors of reads and of commits.
    pub(super) fn open(db: &Db) -> Result<Self> {
        let ids = Self { db: db.clone(), space: space(&db.store) };
        ids.catch_up()?;
        Ok(ids)
    }

    fn store(&self) -> &Arc<Engine> {
        &self.db.store
    }

    pub(super) fn space(&self) -> &Keyspace {
        &self.space
    }

    /// Adds the commits up to the newest one.
    pub(super) fn catch_up(&self) -> Result<()> {
        self.store().check_open()?;
        let newest = self.store().newest()?;
        loop {
            let mut tx = Transaction::new(&self.store().committer);
            let next = match tx.get(&self.space, IDS_POSITION)? {
                None => Glsn::NONE.next(),
                Some(next) => Glsn(Reader::new(&next).u64().ok_or_else(damaged)?),
            };
            if next > newest {
                return Ok(());
            }
            // Before the bounds are read.
            let _hold = self.db.hold_log(next)?;
            let (mut batch, mut from) = (Batch::default(), next);
            let first = self.store().reader.log.bounds().first;
            if first > next {
                self.pass_trimmed(Glsn(first.0 - 1), &mut batch);
                from = first;
            }
            let upto = self.read(from, newest, &mut batch)?;
            if batch.places.is_empty() && upto.0 - next.0 < PASSED {
                return Ok(());
            }
            self.store().check_writable()?;
            for ((chain, glsn), (id, kind)) in &batch.places {
                let mut record = id.as_bytes().to_vec();
                record.push(*kind as u8);
                tx.put(&self.space, commit_key(*chain, *glsn), &record)?;
                tx.put(&self.space, place_key(id, *chain, *glsn), [*kind as u8])?;
            }
            tx.put(&self.space, IDS_POSITION, upto.next().0.to_le_bytes())?;
            match tx.commit() {
                // Another one has added them.
                Err(Error::Conflict { .. }) => {}
                committed => drop::<Glsn>(committed?),
            }
        }
    }

    /// Notes for each chain that the commits up to `upto` are not known.
    fn pass_trimmed(&self, upto: Glsn, batch: &mut Batch) {
        let store = self.db.id();
        let known = self.store().reader.snapshots.branches.known();
        let chains = known.forks().filter(|(_, fork)| *fork < upto).map(|(chain, _)| chain);
        for chain in chains.chain([MAIN_CHAIN]) {
            let id = CommitId::of_trimmed(store, chain, upto.0);
            batch.places.insert((chain, upto), (id, Kind::Trimmed));
        }
    }

    /// Finds the ids of commits from `from` on; returns the last entry that was looked at.
    fn read(&self, from: Glsn, newest: Glsn, batch: &mut Batch) -> Result<Glsn> {
        let mut commits = Commits::new(self.store(), from, None)?;
        let snapshot = Snapshot::newest(self.store());
        while batch.places.len() < BATCH {
            let Some(commit) = commits.next().transpose()? else { break };
            let glsn = commit.glsn();
            if glsn > newest {
                break;
            }
            let Some(node) = node_of(&commit)? else { continue };
            if let Some((id, kind)) = self.id_of(&commit, &node, &snapshot, batch)? {
                batch.places.insert((node.chain, glsn), (id, kind));
            }
        }
        let passed = Glsn(commits.position().0.saturating_sub(1));
        Ok(passed.max(Glsn(from.0 - 1)).min(newest))
    }

    /// The id of a commit; `None` if its chain was removed.
    fn id_of(
        &self,
        commit: &Commit,
        node: &Node,
        snapshot: &Snapshot,
        batch: &Batch,
    ) -> Result<Option<(CommitId, Kind)>> {
        if let Some((id, received)) = &node.received {
            let kind = if received.is_advance { Kind::Advance } else { Kind::Whole };
            return Ok(Some((*id, kind)));
        }
        let Some(parents) = self.parents_in(commit, node, snapshot, batch)? else {
            return Ok(None);
        };
        let mut sink = HashSink { store: self.store(), hash: ContentHash::default() };
        emit(commit, None, &mut sink)?;
        let id = sink.hash.id(&parents, micros_of(commit, None), commit.metadata()?);
        Ok(Some((id, Kind::Whole)))
    }

    /// The parents of a commit; `None` if a chain was removed.
    pub(super) fn parents(&self, commit: &Commit, node: &Node) -> Result<Option<Vec<CommitId>>> {
        match &node.received {
            Some((_, received)) => Ok(Some(received.parents.clone())),
            None => {
                let snapshot = Snapshot::newest(self.store());
                self.parents_in(commit, node, &snapshot, &Batch::default())
            }
        }
    }

    fn parents_in(
        &self,
        commit: &Commit,
        node: &Node,
        snapshot: &Snapshot,
        batch: &Batch,
    ) -> Result<Option<Vec<CommitId>>> {
        let mut parents = Vec::new();
        match self.tip_in((node.chain, Glsn(commit.glsn().0 - 1)), snapshot, batch)? {
            Tip::Commit(place) => parents.push(place.id),
            Tip::Empty => {}
            Tip::Removed => return Ok(None),
        }
        for state in &node.merged {
            // One that was removed before ids were asked for is as if it had never been.
            if let Tip::Commit(place) = self.tip_in(*state, snapshot, batch)? {
                parents.push(place.id);
            }
        }
        Ok(Some(parents))
    }

    /// The last commit that a state of a chain contains; `None` if it is empty, or its chain was
    /// removed.
    pub(super) fn tip(&self, state: (u32, Glsn)) -> Result<Option<Place>> {
        let snapshot = Snapshot::newest(self.store());
        match self.tip_in(state, &snapshot, &Batch::default())? {
            Tip::Commit(place) => Ok(Some(place)),
            Tip::Empty | Tip::Removed => Ok(None),
        }
    }

    fn tip_in(
        &self,
        (mut chain, mut at): (u32, Glsn),
        snapshot: &Snapshot,
        batch: &Batch,
    ) -> Result<Tip> {
        loop {
            // Those of the batch are newer than those that were written.
            let own = (chain, Glsn::NONE)..=(chain, at);
            if let Some(((_, glsn), (id, kind))) = batch.places.range(own).next_back() {
                return Ok(Tip::Commit(Place { id: *id, chain, glsn: *glsn, kind: *kind }));
            }
            if let Some(place) = self.last(snapshot, chain, at)? {
                return Ok(Tip::Commit(place));
            }
            if chain == MAIN_CHAIN {
                return Ok(Tip::Empty);
            }
            let known = self.store().reader.snapshots.branches.known();
            let Some(of) = known.get(chain) else { return Ok(Tip::Removed) };
            (chain, at) = (of.parent, at.min(of.fork.at));
        }
    }

    /// The last commit on a chain itself up to a GLSN.
    fn last(&self, snapshot: &Snapshot, chain: u32, at: Glsn) -> Result<Option<Place>> {
        let own = commit_key(chain, Glsn::NONE)..=commit_key(chain, at);
        let mut walk = snapshot.range(&self.space, own)?.reverse();
        let Some((key, record)) = walk.advance()? else { return Ok(None) };
        let glsn = key[5..].try_into().map(u64::from_be_bytes).map_err(|_| damaged())?;
        let (id, kind) = record.split_first_chunk().ok_or_else(damaged)?;
        let kind = Kind::of(*kind.first().ok_or_else(damaged)?)?;
        Ok(Some(Place { id: CommitId::from_bytes(*id), chain, glsn: Glsn(glsn), kind }))
    }

    /// The last commit on a chain itself, not those of its parents, up to a GLSN.
    pub(super) fn last_on(&self, chain: u32, at: Glsn) -> Result<Option<Place>> {
        self.last(&Snapshot::newest(self.store()), chain, at)
    }

    /// Where the store has a commit: on main first, and only on chains that were not removed.
    pub(super) fn places(&self, id: &CommitId) -> Result<Vec<Place>> {
        let snapshot = Snapshot::newest(self.store());
        let prefix = [&[PLACE][..], id.as_bytes()].concat();
        let mut walk = snapshot.prefix(&self.space, &prefix)?;
        let mut places = Vec::new();
        while let Some((key, kind)) = walk.advance()? {
            let (chain, glsn) = key[prefix.len()..].split_first_chunk().ok_or_else(damaged)?;
            let chain = u32::from_be_bytes(*chain);
            let glsn = Glsn(glsn.try_into().map(u64::from_be_bytes).map_err(|_| damaged())?);
            let kind = Kind::of(*kind.first().ok_or_else(damaged)?)?;
            places.push(Place { id: *id, chain, glsn, kind });
        }
        let known = self.store().reader.snapshots.branches.known();
        places.retain(|it| it.chain == MAIN_CHAIN || known.get(it.chain).is_some());
        Ok(places)
    }
}

/// What a state of a chain ends with.
enum Tip {
    Commit(Place),
    Empty,
    Removed,
}

/// The keyspace of the ids.
pub(super) fn space(store: &Engine) -> Keyspace {
    store.reader.keyspaces.handle(IDS, "".into())
}

fn commit_key(chain: u32, glsn: Glsn) -> Vec<u8> {
    [&[COMMIT][..], &chain.to_be_bytes(), &glsn.0.to_be_bytes()].concat()
}

fn place_key(id: &CommitId, chain: u32, glsn: Glsn) -> Vec<u8> {
    [&[PLACE][..], id.as_bytes(), &chain.to_be_bytes(), &glsn.0.to_be_bytes()].concat()
}
