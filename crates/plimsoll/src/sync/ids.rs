//! The ids of the store's commits, in an internal keyspace. Before each use, the ids of the commits
//! since the previous use are computed and written.
//!
//! ```text
//! "p"                                    -> u64 the first GLSN that was not processed yet
//! "c" u32 chain, u64 GLSN (big-endian)   -> 32 bytes id, u8 kind;
//!                                           for each parent: u32 chain, u64 GLSN
//! "i" 32 bytes id, u32 chain, u64 GLSN   -> u8 kind
//! "r" 32 bytes id                        -> `Received`, written by the commit itself
//! "s" name of a commit in its source     -> 32 bytes id, written by an import
//! "n" key                                -> a record of an import
//! "u" name                               -> the address of a remote
//! "b" 32 bytes id                        -> a mark of a commit of which a partial clone lacks
//!                                           parents, written by the commit itself: empty for a
//!                                           boundary commit, otherwise "p"
//! "t" u32 chain                          -> 32 bytes id of the last commit that was received
//!                                           there, written by the commit itself
//! "d"                                    -> u64 the depth of a partial clone
//! ```
//!
//! The records "c" and "i" of a commit are written together. Several commits may have the same id,
//! because a branch that is fast-forwarded to another one repeats its commits. In a record "c" of
//! [`Kind::Advance`], the only parent is the commit to which the chain was made equal.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_disk::codec::Reader;
use plimsoll_log::glsn::Glsn;

use crate::api::branches::Branch;
use crate::api::change_feed::Commits;
use crate::api::commit::Commit;
use crate::api::db::Db;
use crate::api::snapshot::Snapshot;
use crate::engine::Engine;
use crate::merge::graph::{Graph, State};
use crate::sync::commit_id::{CommitId, ContentHash};
use crate::sync::contents::{
    HashSink, Node, RECEIVED, Received, damaged, emit, micros_of, node_of,
};
use crate::txn::transaction::Transaction;
use crate::types::branches::MAIN_CHAIN;
use crate::types::error::{Error, Result};
use crate::types::keyspaces::{BOUNDARY, IDS, IDS_POSITION, Keyspace, PLACE};

const COMMIT: u8 = b'c';

/// The key of the depth of a partial clone.
const DEPTH: &[u8] = b"d";

/// The first byte of the keys that name the last commit that a chain received.
const LAST: u8 = b't';

/// The most commits whose ids are written in one transaction.
const BATCH: usize = 2048;

/// If no new ids are found in the log, the position "p" is written only after at least this many
/// entries.
const PASSED: u64 = 65_536;

/// The relation between a commit and its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The commit's changes are those that the id covers.
    Whole = 0,
    /// The commit makes its chain equal to the commit with this id, which is on another chain.
    Advance = 1,
    /// The id is a placeholder for the commits of the chain that the log no longer has.
    Trimmed = 2,
    /// The history of a partial clone begins with the commit: its changes are its whole state.
    Boundary = 3,
    /// As `Whole`, but the store, a partial clone, lacks some of the commit's parents.
    Partial = 4,
}

impl Kind {
    fn of(byte: u8) -> Result<Self> {
        let all = [Self::Whole, Self::Advance, Self::Trimmed, Self::Boundary, Self::Partial];
        all.into_iter().find(|kind| *kind as u8 == byte).ok_or_else(damaged)
    }

    /// Whether the commit has the changes that the id covers.
    pub(super) fn has_changes(self) -> bool {
        matches!(self, Self::Whole | Self::Partial)
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
    /// The state of the chain right after the commit.
    pub(super) fn state(&self) -> State {
        (self.chain, self.glsn)
    }
}

/// The record "c" of a commit.
struct Known {
    id: CommitId,
    kind: Kind,
    parents: Vec<(u32, Glsn)>,
}

impl Known {
    fn encode(&self) -> Vec<u8> {
        let mut record = self.id.as_bytes().to_vec();
        record.push(self.kind as u8);
        for (chain, glsn) in &self.parents {
            record.extend_from_slice(&chain.to_le_bytes());
            record.extend_from_slice(&glsn.0.to_le_bytes());
        }
        record
    }

    fn decode(record: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(record);
        let id = reader.take(32).and_then(|id| id.try_into().ok()).ok_or_else(damaged)?;
        let kind = Kind::of(reader.u8().ok_or_else(damaged)?)?;
        let mut known = Self { id: CommitId::from_bytes(id), kind, parents: Vec::new() };
        while reader.remaining() > 0 {
            let parent = reader.u32().zip(reader.u64()).ok_or_else(damaged)?;
            known.parents.push((parent.0, Glsn(parent.1)));
        }
        Ok(known)
    }
}

/// Commits whose ids were computed, but not written yet.
#[derive(Default)]
struct Batch {
    places: BTreeMap<(u32, Glsn), Known>,
}

/// The ids of a store.
#[derive(Clone)]
pub(super) struct Ids {
    db: Db,
    space: Keyspace,
}

impl Ids {
    /// Opens the ids of a store, and computes the missing ids of the commits that are visible now.
    ///
    /// # Errors
    /// As for [`Ids::catch_up`].
    pub(super) fn open(db: &Db) -> Result<Self> {
        let ids = Self::reading(db);
        ids.catch_up()?;
        Ok(ids)
    }

    /// The ids that were computed already.
    pub(super) fn reading(db: &Db) -> Self {
        Self { db: db.clone(), space: space(&db.store) }
    }

    fn store(&self) -> &Arc<Engine> {
        &self.db.store
    }

    pub(super) fn db(&self) -> &Db {
        &self.db
    }

    pub(super) fn space(&self) -> &Keyspace {
        &self.space
    }

    /// Computes and writes the ids of the commits from the position "p" to the newest visible one,
    /// in transactions of about [`BATCH`] commits.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if the store is read-only and has new commits; [`Error::Dropped`] if the
    /// log has lost one; errors of reads and of commits.
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
            // Hold the log before reading its bounds, so that it is not trimmed in between.
            let _hold = self.db.hold_log(next)?;
            let (mut batch, mut from) = (Batch::default(), next);
            let first = self.store().reader.log.bounds().first;
            if first > next {
                self.skip_trimmed(next, Glsn(first.0 - 1), &mut batch)?;
                from = first;
            }
            let upto = self.read(from, newest, &mut batch)?;
            if batch.places.is_empty() && upto.0 - next.0 < PASSED {
                return Ok(());
            }
            self.store().check_writable()?;
            for ((chain, glsn), known) in &batch.places {
                tx.put(&self.space, commit_key(*chain, *glsn), known.encode())?;
                let kind = [known.kind as u8];
                tx.put(&self.space, place_key(&known.id, *chain, *glsn), kind)?;
            }
            tx.put(&self.space, IDS_POSITION, upto.next().0.to_le_bytes())?;
            match tx.commit() {
                // Another transaction has written ids. Read the position again.
                Err(Error::Conflict { .. }) => {}
                committed => drop::<Glsn>(committed?),
            }
        }
    }

    /// Adds a placeholder at `upto` for each chain that may have commits from `next` to `upto`,
    /// which the log no longer has.
    fn skip_trimmed(&self, next: Glsn, upto: Glsn, batch: &mut Batch) -> Result<()> {
        let store = self.db.id();
        let chains: Vec<(u32, Glsn)> = {
            let known = self.store().reader.snapshots.branches.known();
            let forks = known.forks().filter(|(_, fork)| *fork < upto);
            forks.chain([(MAIN_CHAIN, Glsn::NONE)]).collect()
        };
        let now = Snapshot::newest(self.store());
        let mut graph = Graph::new(self.store(), now.read_at()?.glsn);
        for (chain, fork) in chains {
            let from = fork.max(Glsn(next.0 - 1));
            if graph.may_have_commits(chain, from, upto)? {
                let id = CommitId::of_trimmed(store, chain, upto.0);
                let known = Known { id, kind: Kind::Trimmed, parents: Vec::new() };
                batch.places.insert((chain, upto), known);
            }
        }
        Ok(())
    }

    /// Adds the ids of commits from `from` to `newest` to the batch, until it has [`BATCH`] ids.
    /// Returns the GLSN of the last entry that was processed.
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
            if let Some(known) = self.known(&commit, &node, &snapshot, batch)? {
                batch.places.insert((node.chain, glsn), known);
            }
        }
        let passed = Glsn(commits.position().0.saturating_sub(1));
        Ok(passed.max(Glsn(from.0 - 1)).min(newest))
    }

    /// Computes the record "c" of a commit; `None` if its chain was removed.
    fn known(
        &self,
        commit: &Commit,
        node: &Node,
        snapshot: &Snapshot,
        batch: &Batch,
    ) -> Result<Option<Known>> {
        let Some(mut parents) = self.parents_in(commit, node, snapshot, batch)? else {
            return Ok(None);
        };
        let (id, kind) = match &node.received {
            Some((id, received)) if received.is_advance => {
                parents.drain(..parents.len().saturating_sub(1));
                (*id, Kind::Advance)
            }
            Some((id, received)) if received.is_boundary => {
                parents.clear();
                (*id, Kind::Boundary)
            }
            Some((id, received))
                if parents.len() < received.parents.len() && self.lacks_parents()? =>
            {
                (*id, Kind::Partial)
            }
            Some((id, _)) => (*id, Kind::Whole),
            None => {
                let ids: Vec<CommitId> = parents.iter().map(|place| place.id).collect();
                let mut sink = HashSink { store: self.store(), hash: ContentHash::default() };
                emit(commit, None, &mut sink)?;
                (sink.hash.id(&ids, micros_of(commit, None), commit.metadata()?), Kind::Whole)
            }
        };
        Ok(Some(Known { id, kind, parents: parents.iter().map(Place::state).collect() }))
    }

    /// The ids of the parents of a commit, its first parent first. For a received commit, these are
    /// the parents of the original commit.
    pub(super) fn parents(&self, commit: &Commit, node: &Node) -> Result<Vec<CommitId>> {
        if let Some((_, received)) = &node.received {
            return Ok(received.parents.clone());
        }
        let snapshot = Snapshot::newest(self.store());
        let (_, parents) = self.node(&snapshot, (node.chain, commit.glsn()))?;
        let id = |state| Ok(self.known_at(&snapshot, state)?.id);
        parents.into_iter().map(id).collect()
    }

    /// The ids of the parents of the commit with an id, its first parent first; `None` if the store
    /// does not have the commit.
    pub(super) fn parents_of(&self, id: &CommitId) -> Result<Option<Vec<CommitId>>> {
        let snapshot = Snapshot::newest(self.store());
        if let Some(record) = snapshot.get(&self.space, received_key(id))? {
            return Ok(Some(Received::decode(&record)?.parents));
        }
        let Some(place) = self.places(id)?.into_iter().find(|it| it.kind.has_changes()) else {
            return Ok(None);
        };
        let (_, parents) = self.node(&snapshot, place.state())?;
        let parents = parents.into_iter().map(|state| Ok(self.known_at(&snapshot, state)?.id));
        parents.collect::<Result<_>>().map(Some)
    }

    /// When the original of a commit was made, in microseconds since 1970 UTC; `None` if the store
    /// does not have the commit.
    pub(super) fn micros_of(&self, id: &CommitId) -> Result<Option<u64>> {
        let snapshot = Snapshot::newest(self.store());
        if let Some(record) = snapshot.get(&self.space, received_key(id))? {
            return Ok(Some(Received::decode(&record)?.micros));
        }
        let Some(place) = self.places(id)?.into_iter().find(|it| it.kind.has_changes()) else {
            return Ok(None);
        };
        let commit = self.db.log().commit(place.glsn)?.ok_or_else(damaged)?;
        Ok(Some(micros_of(&commit, None)))
    }

    /// The number of commits that a partial clone gets of a branch that does not descend from its
    /// commits; `None` if the store is not a partial clone.
    pub(super) fn depth(&self) -> Result<Option<u64>> {
        let depth = Snapshot::newest(self.store()).get(&self.space, DEPTH)?;
        depth.map(|depth| Reader::new(&depth).u64().ok_or_else(damaged)).transpose()
    }

    /// Makes the store a partial clone.
    pub(super) fn set_depth(&self, depth: u64) -> Result<()> {
        self.db.transact(|tx| tx.put(&self.space, DEPTH, depth.to_le_bytes()))
    }

    /// Whether the store lacks parents of some of its commits.
    fn lacks_parents(&self) -> Result<bool> {
        Ok(Snapshot::newest(self.store()).prefix(&self.space, [BOUNDARY])?.advance()?.is_some())
    }

    /// Up to `limit` boundary commits of this store that can be read.
    pub(super) fn boundaries(&self, limit: usize) -> Result<Vec<CommitId>> {
        let snapshot = Snapshot::newest(self.store());
        let (mut found, mut walk) = (Vec::new(), snapshot.prefix(&self.space, [BOUNDARY])?);
        while found.len() < limit
            && let Some((key, value)) = walk.advance()?
        {
            let id = CommitId::from_bytes(key[1..].try_into().map_err(|_| damaged())?);
            if value.is_empty() && !self.readable(&id)?.is_empty() {
                found.push(id);
            }
        }
        Ok(found)
    }

    /// The parents of a commit in this store: the previous commit, then the last commit of each
    /// state that it merged. `None` if its chain was removed.
    fn parents_in(
        &self,
        commit: &Commit,
        node: &Node,
        snapshot: &Snapshot,
        batch: &Batch,
    ) -> Result<Option<Vec<Place>>> {
        let mut parents = Vec::new();
        match self.tip_in((node.chain, Glsn(commit.glsn().0 - 1)), snapshot, batch)? {
            Tip::Commit(place) => parents.push(place),
            Tip::Empty => {}
            Tip::Removed => return Ok(None),
        }
        for state in &node.merged {
            // A chain that was removed before ids were computed is omitted.
            if let Tip::Commit(place) = self.tip_in(*state, snapshot, batch)? {
                parents.push(place);
            }
        }
        Ok(Some(parents))
    }

    /// The kind of the commit that ends a state, and its parents. If there is no record of the
    /// commit, the log was trimmed there, and the kind is [`Kind::Trimmed`].
    ///
    /// # Errors
    /// [`damaged`] if the commit's record cannot be decoded; errors of reads.
    pub(super) fn node(&self, snapshot: &Snapshot, state: State) -> Result<(Kind, Vec<State>)> {
        let known = self.known_at(snapshot, state)?;
        Ok((known.kind, known.parents))
    }

    /// The id, the kind and the parents of a commit.
    pub(super) fn node_with_id(
        &self,
        snapshot: &Snapshot,
        state: State,
    ) -> Result<(CommitId, Kind, Vec<State>)> {
        let known = self.known_at(snapshot, state)?;
        Ok((known.id, known.kind, known.parents))
    }

    /// The id, kind and parents of a commit. If there is no record, the log was trimmed there.
    fn known_at(&self, snapshot: &Snapshot, (chain, glsn): State) -> Result<Known> {
        match snapshot.get(&self.space, commit_key(chain, glsn))? {
            Some(record) => Known::decode(&record),
            None => {
                let id = CommitId::of_trimmed(self.db.id(), chain, glsn.0);
                Ok(Known { id, kind: Kind::Trimmed, parents: Vec::new() })
            }
        }
    }

    /// The last commit that a state contains, on its chain or on the ancestors of that; `None` if
    /// there is none, or the chain was removed.
    pub(super) fn tip(&self, state: State) -> Result<Option<Place>> {
        let snapshot = Snapshot::newest(self.store());
        match self.tip_in(state, &snapshot, &Batch::default())? {
            Tip::Commit(place) => Ok(Some(place)),
            Tip::Empty | Tip::Removed => Ok(None),
        }
    }

    /// The last commit that a branch contains; `None` if it contains none.
    pub(super) fn tip_of(&self, branch: &Branch) -> Result<Option<Place>> {
        self.tip((branch.id(), Glsn::MAX))
    }

    fn tip_in(
        &self,
        (mut chain, mut at): State,
        snapshot: &Snapshot,
        batch: &Batch,
    ) -> Result<Tip> {
        loop {
            // The commits of the batch are newer than those whose ids were written.
            let own = (chain, Glsn::NONE)..=(chain, at);
            if let Some(((_, glsn), known)) = batch.places.range(own).next_back() {
                let (id, kind) = (known.id, known.kind);
                return Ok(Tip::Commit(Place { id, chain, glsn: *glsn, kind }));
            }
            let last = self.last(snapshot, chain, at)?;
            if last.is_none_or(|last| last.glsn < at)
                && self.is_trimmed(snapshot, batch, (chain, at))?
            {
                let id = CommitId::of_trimmed(self.db.id(), chain, at.0);
                return Ok(Tip::Commit(Place { id, chain, glsn: at, kind: Kind::Trimmed }));
            }
            if let Some(place) = last {
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

    /// Whether the log was trimmed at a state of a chain before the ids of the chain were computed.
    /// The next record of the chain then stands for unknown commits.
    fn is_trimmed(&self, snapshot: &Snapshot, batch: &Batch, (chain, at): State) -> Result<bool> {
        if at == Glsn::MAX {
            return Ok(false);
        }
        let later = commit_key(chain, at.next())..=commit_key(chain, Glsn::MAX);
        if let Some((_, record)) = snapshot.range(&self.space, later)?.advance()? {
            return Ok(Known::decode(record)?.kind == Kind::Trimmed);
        }
        let next = batch.places.range((chain, at.next())..=(chain, Glsn::MAX)).next();
        Ok(next.is_some_and(|(_, known)| known.kind == Kind::Trimmed))
    }

    /// The last commit of a chain up to a GLSN, without the commits of its ancestors.
    fn last(&self, snapshot: &Snapshot, chain: u32, at: Glsn) -> Result<Option<Place>> {
        let own = commit_key(chain, Glsn::NONE)..=commit_key(chain, at);
        let mut walk = snapshot.range(&self.space, own)?.reverse();
        let Some((key, record)) = walk.advance()? else { return Ok(None) };
        let glsn = key[5..].try_into().map(u64::from_be_bytes).map_err(|_| damaged())?;
        let Known { id, kind, .. } = Known::decode(record)?;
        Ok(Some(Place { id, chain, glsn: Glsn(glsn), kind }))
    }

    /// The last commit of a chain up to a GLSN, without the commits of its ancestors.
    pub(super) fn last_on(&self, chain: u32, at: Glsn) -> Result<Option<Place>> {
        self.last(&Snapshot::newest(self.store()), chain, at)
    }

    /// The commits with an id, ordered by chain and GLSN. Commits on main come first.
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
        Ok(places)
    }

    /// Whether a chain still exists.
    pub(super) fn is_chain(&self, chain: u32) -> bool {
        let known = self.store().reader.snapshots.branches.known();
        chain == MAIN_CHAIN || known.get(chain).is_some()
    }

    /// As [`Ids::places`], without commits on chains that were removed and cannot be read.
    pub(super) fn readable(&self, id: &CommitId) -> Result<Vec<Place>> {
        let mut places = self.places(id)?;
        let known = self.store().reader.snapshots.branches.known();
        places.retain(|it| it.chain == MAIN_CHAIN || known.get(it.chain).is_some());
        Ok(places)
    }
}

/// The last commit of a state.
enum Tip {
    Commit(Place),
    Empty,
    Removed,
}

/// The internal keyspace of the ids.
pub(super) fn space(store: &Engine) -> Keyspace {
    store.reader.keyspaces.handle(IDS, "".into())
}

/// The key under which a chain names the last commit that it received.
pub(super) fn last_key(chain: u32) -> Vec<u8> {
    [&[LAST][..], &chain.to_be_bytes()].concat()
}

/// The key of the mark of a commit of which the store lacks parents.
pub(super) fn boundary_key(id: &CommitId) -> Vec<u8> {
    [&[BOUNDARY][..], id.as_bytes()].concat()
}

fn commit_key(chain: u32, glsn: Glsn) -> Vec<u8> {
    [&[COMMIT][..], &chain.to_be_bytes(), &glsn.0.to_be_bytes()].concat()
}

/// The key of the record that the received commit `id` carries.
pub(super) fn received_key(id: &CommitId) -> Vec<u8> {
    [&[RECEIVED][..], id.as_bytes()].concat()
}

fn place_key(id: &CommitId, chain: u32, glsn: Glsn) -> Vec<u8> {
    [&[PLACE][..], id.as_bytes(), &chain.to_be_bytes(), &glsn.0.to_be_bytes()].concat()
}
