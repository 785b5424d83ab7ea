//! Passes on the commits that another store lacks, parents first.

use std::collections::BTreeMap;

use plimsoll_log::glsn::Glsn;

use crate::api::commits::Commits;
use crate::api::db::Db;
use crate::api::snapshot::Snapshot;
use crate::merge::graph::{Contained, Graph, State};
use crate::sync::commit_id::CommitId;
use crate::sync::contents::{Sink, emit, micros_of, node_of};
use crate::sync::ids::{Ids, Kind};
use crate::types::branches::MAIN_CHAIN;
use crate::types::cancel::Cancel;
use crate::types::error::{Error, Result};
use crate::types::invalid_input::InvalidInput;

/// What is known of a commit before its changes.
pub(super) struct Head<'a> {
    pub(super) id: CommitId,
    pub(super) parents: &'a [CommitId],
    /// Its time where it was made, in microseconds since 1970 UTC.
    pub(super) micros: u64,
    pub(super) metadata: &'a [u8],
    /// Whether it is on the branch that is passed on itself, not only merged into it.
    pub(super) is_on_line: bool,
}

/// Takes commits, parents first.
pub(super) trait CommitSink {
    /// Takes a commit. If its changes are wanted, they come from `changes`.
    fn commit(
        &mut self,
        head: &Head<'_>,
        changes: &mut dyn FnMut(&mut dyn Sink) -> Result<()>,
    ) -> Result<()>;
}

/// Commits to pass on: of each chain, those after the first GLSN and up to the second.
pub(super) struct Missing {
    ranges: BTreeMap<u32, (Glsn, Glsn)>,
    /// The chains of the branch that is passed on, and up to where it contains them.
    line: Vec<(u32, Glsn)>,
}

/// The commits that `wanted` contains and none of `there` does.
pub(super) fn missing(
    db: &Db,
    wanted: State,
    line: Vec<(u32, Glsn)>,
    there: &[State],
) -> Result<Missing> {
    // Open while the graph is read.
    let now = Snapshot::newest(&db.store);
    let mut graph = Graph::new(&db.store, now.read_at()?.glsn);
    let mut newest = Contained::new();
    for (chain, at) in there {
        let upto = newest.entry(*chain).or_default();
        *upto = (*upto).max(*at);
    }
    let mut known = Contained::new();
    for state in newest {
        for (chain, at) in graph.contained(state)? {
            let upto = known.entry(chain).or_default();
            *upto = (*upto).max(at);
        }
    }
    let mut ranges = BTreeMap::new();
    for (chain, upto) in graph.contained(wanted)? {
        let fork = match chain {
            MAIN_CHAIN => Glsn::NONE,
            chain => graph.fork_of(chain)?,
        };
        let from = known.get(&chain).copied().unwrap_or_default().max(fork);
        if from < upto {
            ranges.insert(chain, (from, upto));
        }
    }
    Ok(Missing { ranges, line })
}

impl Missing {
    /// Passes the commits on.
    ///
    /// # Errors
    /// [`InvalidInput::HistoryTrimmed`] if the log no longer has one of them; errors of reads and
    /// of the sink.
    pub(super) fn send(
        &self,
        db: &Db,
        ids: &Ids,
        cancel: &Cancel,
        sink: &mut dyn CommitSink,
    ) -> Result<()> {
        let Some(from) = self.ranges.values().map(|(from, _)| *from).min() else { return Ok(()) };
        let upto = self.ranges.values().map(|(_, upto)| *upto).max().unwrap_or_default();
        let _hold = db.hold_log(from.next())?;
        let first = db.store.reader.log.bounds().first;
        let trimmed = Glsn(first.0.saturating_sub(1));
        for (chain, (from, upto)) in &self.ranges {
            let last = ids.last_on(*chain, trimmed.min(*upto))?;
            if last.is_some_and(|last| last.glsn > *from) {
                return Err(InvalidInput::HistoryTrimmed { upto: trimmed }.into());
            }
        }
        let mut commits = Commits::new(&db.store, from.next().max(first), None)?;
        while let Some(commit) = commits.next().transpose()? {
            cancel.check()?;
            if commit.glsn() > upto {
                break;
            }
            let Some(node) = node_of(&commit)? else { continue };
            let is_in =
                |(from, upto): &(Glsn, Glsn)| commit.glsn() > *from && commit.glsn() <= *upto;
            if !self.ranges.get(&node.chain).is_some_and(is_in) {
                continue;
            }
            let Some(place) = ids.tip((node.chain, commit.glsn()))? else { continue };
            if place.glsn != commit.glsn() || place.kind != Kind::Whole {
                continue;
            }
            let parents = ids.parents(&commit, &node)?.ok_or_else(removed)?;
            let received = node.received.as_ref().map(|(_, received)| received);
            let is_on_line = self
                .line
                .iter()
                .any(|(chain, limit)| *chain == node.chain && commit.glsn() <= *limit);
            let head = Head {
                id: place.id,
                parents: &parents,
                micros: micros_of(&commit, received),
                metadata: commit.metadata()?,
                is_on_line,
            };
            sink.commit(&head, &mut |sink| emit(&commit, received, sink))?;
        }
        Ok(())
    }
}

fn removed() -> Error {
    Error::damaged("a chain that a branch contains was removed while its commits were read")
}
