//! A store that takes part in a transfer ([`Peer`]): it is open in this process (`local`), or at
//! the other end of a connection (`wire`).

use crate::api::db::Db;
use crate::sync::commit_id::CommitId;
use crate::sync::send::CommitSink;
use crate::types::error::Result;
use crate::types::keyspaces::KeyspaceInfo;

/// The most commits that a store offers as a common past. Commits beyond these are transferred even
/// if the other store has them.
pub(super) const HAVES_MAX: usize = 16_384;

/// Commits of a store, in lines: each commit of a line is an ancestor of those before it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Haves {
    /// The commits; of each, whether it begins a line.
    pub(super) commits: Vec<(CommitId, bool)>,
}

impl Haves {
    /// Adds a line, as far as there is room.
    pub(super) fn push_line(&mut self, line: impl IntoIterator<Item = CommitId>) {
        for (number, id) in line.into_iter().enumerate() {
            if self.is_full() {
                break;
            }
            self.commits.push((id, number == 0));
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.commits.len() >= HAVES_MAX
    }
}

/// The most commits of a first-parent line that are searched for one that the other store has.
pub(super) const LINE_MAX: usize = 1 << 16;

/// The greatest depth of a partial clone.
pub(super) const DEPTH_MAX: u64 = u32::MAX as u64;

/// The newest commits of a first-parent line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// Newest first.
    pub(super) ids: Vec<CommitId>,
    /// The kind of the last one.
    pub(super) end: LineEnd,
}

/// The last commit of a [`Line`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineEnd {
    /// The commit has no parents.
    Root = 0,
    /// A partial clone can begin with the commit.
    Boundary = 1,
    /// The other store has the commit.
    Known = 2,
}

impl Line {
    pub(super) fn of(ids: impl Iterator<Item = CommitId>, end: LineEnd) -> Self {
        Self { ids: ids.collect(), end }
    }
}

/// A commit that a store is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    /// A branch that contains it.
    pub(super) branch: &'a str,
    pub(super) id: CommitId,
}

/// The change of a branch that a transfer makes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Move<'a> {
    /// The name of the branch.
    pub(super) name: &'a str,
    /// The branch's last commit before the transfer; `None`: the branch is empty or does not exist.
    pub(super) before: Option<CommitId>,
    /// The branch's last commit after the transfer.
    pub(super) last: CommitId,
    /// Whether `last` must contain `before`.
    pub(super) is_forward: bool,
    /// The boundary commit that is accepted as the first one.
    pub(super) boundary: Option<CommitId>,
}

/// Sends commits to a sink; from [`Peer::send`] of another store.
pub(super) type Feed<'a> = dyn FnMut(&mut dyn CommitSink) -> Result<()> + 'a;

/// A store that takes part in a transfer.
pub(super) trait Peer {
    /// The names of the branches that were not fetched from other stores, main excepted.
    fn branches(&mut self) -> Result<Vec<String>>;

    /// The settings of the keyspaces.
    fn keyspaces(&mut self) -> Result<Vec<KeyspaceInfo>>;

    /// The last commit of a branch; `None` if it is empty.
    ///
    /// # Errors
    /// [`NoBranch`](crate::InvalidInput::NoBranch); errors of reads.
    fn tip(&mut self, branch: &str) -> Result<Option<CommitId>>;

    /// Commits of the store, for a transfer to a branch. Those of this branch come first.
    fn haves(&mut self, branch: &str) -> Result<Haves>;

    /// Whether the store has a commit.
    ///
    /// # Errors
    /// Errors of reads.
    fn has(&mut self, id: &CommitId) -> Result<bool>;

    /// Sends a commit and its ancestors to `sink`, parents first. Of each line of `haves`, omits
    /// the first commit that this store has, and the ancestors of that commit.
    ///
    /// # Errors
    /// [`BranchMoved`](crate::InvalidInput::BranchMoved) if the branch does not contain the commit;
    /// [`BelowBoundary`](crate::InvalidInput::BelowBoundary), with the newest commit of which this
    /// store lacks a parent; [`HistoryTrimmed`](crate::InvalidInput::HistoryTrimmed); errors of
    /// reads and of the sink.
    fn send(&mut self, wanted: Wanted<'_>, haves: &Haves, sink: &mut dyn CommitSink) -> Result<()>;

    /// The newest commits of the first-parent line of a commit, for a partial clone. The line ends
    /// at the first commit in `haves`. If none is in `haves`, it has at most `depth` commits, and
    /// ends with one whose state is retained.
    ///
    /// # Errors
    /// As for [`Peer::send`]; [`StateNotRetained`](crate::InvalidInput::StateNotRetained) if no
    /// state is retained.
    fn line(&mut self, wanted: Wanted<'_>, depth: u64, haves: &Haves) -> Result<Line>;

    /// Sends the commits of a first-parent line after the commit `base`, and also `base` as a
    /// boundary commit if the flag is set; the whole line if `base` is `None`.
    ///
    /// # Errors
    /// As for [`Peer::line`]; [`Trimmed`](crate::Error::Trimmed) if the state of `base` is not
    /// retained any more.
    fn send_line(
        &mut self,
        wanted: Wanted<'_>,
        base: (Option<CommitId>, bool),
        sink: &mut dyn CommitSink,
    ) -> Result<()>;

    /// Receives the commits that `feed` sends, and moves the branch. Returns the number of commits
    /// that the store did not have.
    ///
    /// # Errors
    /// [`BranchMoved`](crate::InvalidInput::BranchMoved) if the branch does not end with
    /// `change.before`; [`NotFastForward`](crate::InvalidInput::NotFastForward) if
    /// `change.is_forward` does not hold; errors of commits and of `feed`.
    fn receive(&mut self, change: Move<'_>, feed: &mut Feed<'_>) -> Result<u64>;

    /// Deletes the temporary branches that an interrupted transfer to `branch`, which ends with
    /// `tip`, may have left after it had moved the branch.
    ///
    /// # Errors
    /// Errors of reads and of commits.
    fn delete_leftovers(&mut self, branch: &str, tip: CommitId) -> Result<()>;

    /// Charges the memory of [`Peer::send`] to the budget of `db`, which receives the commits.
    fn charge_to(&mut self, _db: &Db) {}

    /// Ends the use of the store.
    ///
    /// # Errors
    /// Those of [`Db::close`](crate::Db::close), if the transfer opened the store.
    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
