//! The history as a sequence of steps: a commit begins, files change, the commit ends.
//!
//! Invariant: each commit is compared with the last delivered one. If a commit is skipped because a
//! tree is missing, the next commit includes its changes, and the files after each delivered commit
//! are exactly the files of that commit.

use std::collections::VecDeque;

use jiff::Timestamp;

use crate::blobs::{self, Blob, Blobs, Content};
use crate::commit::Commit;
use crate::error::Result;
use crate::import::changes::{self, Change, Changes, Compared, Piece};
use crate::import::commit_stream::{CommitStream, Next};
use crate::import::cut::Cut;
use crate::object_id::ObjectId;
use crate::repository::Repository;

/// Maximum number of ready steps. Only these and the commits read ahead are held in memory.
const READY_MAX: usize = 256;
/// More steps are fetched below this number.
const READY_MIN: usize = 32;

/// A step of the history.
#[derive(Debug)]
pub(crate) enum Step {
    /// A commit begins.
    Begin { id: ObjectId, time: Option<Timestamp>, metadata: Vec<u8> },
    /// A file has a new content. [`Feed::blob`] must be called before the next step.
    Put { id: ObjectId, path: Vec<u8> },
    /// A file was deleted.
    Delete { path: Vec<u8> },
    /// A submodule was added or changed. It has no content in this repository.
    Submodule,
    /// The commit is complete.
    End,
    /// A commit was skipped.
    LeftOut { id: ObjectId, why: String },
}

/// A stream of steps.
#[derive(Debug)]
pub(crate) struct Feed<'r> {
    repository: &'r Repository,
    commits: CommitStream<'r>,
    changes: Changes<'r>,
    blobs: Blobs<'r>,
    /// The last delivered commit.
    base: Option<ObjectId>,
    /// Commits not delivered yet, oldest first.
    ahead: VecDeque<Commit>,
    /// Number of commits in `ahead` whose changes were requested from `changes`.
    asked: usize,
    /// Whether [`Step::Begin`] was delivered for the first commit in `ahead`.
    begun: bool,
    /// Set after a failure: send one request at a time, because a request names the commit before
    /// it, which may fail as well.
    careful: bool,
    ready: VecDeque<Step>,
    ended: bool,
}

impl<'r> Feed<'r> {
    /// Opens the steps from the commit after `after`, or from the first commit, to the tip.
    pub(crate) fn open(repository: &'r Repository, after: Option<ObjectId>) -> Result<Self> {
        Ok(Self {
            repository,
            commits: CommitStream::open(repository, after.as_ref())?,
            changes: Changes::new(repository),
            blobs: Blobs::open(repository)?,
            base: after,
            ahead: VecDeque::new(),
            asked: 0,
            begun: false,
            careful: false,
            ready: VecDeque::new(),
            ended: false,
        })
    }

    /// The start of the history, if earlier commits are missing.
    pub(crate) fn cut(&self) -> Option<Cut> {
        self.commits.cut()
    }

    /// The next step; `None` at the end of the history.
    pub(crate) fn next(&mut self) -> Result<Option<Step>> {
        if self.ready.len() < READY_MIN {
            while !self.ended
                && self.ready.len() < READY_MAX
                && self.blobs.outstanding() < blobs::REQUESTS_MAX
            {
                self.fetch()?;
            }
        }
        Ok(self.ready.pop_front())
    }

    /// Requests the content of the last `Put`.
    pub(crate) fn blob(&mut self) -> Result<Blob> {
        self.blobs.next()
    }

    /// A reader of the content that [`Feed::blob`] found.
    pub(crate) fn content(&mut self) -> Content<'_> {
        self.blobs.content()
    }

    /// Reads one piece of an answer, or detects the end.
    fn fetch(&mut self) -> Result<()> {
        self.ask_ahead()?;
        if self.asked == 0 {
            self.ended = true;
            return Ok(());
        }
        match self.changes.next()? {
            Piece::Start => self.begin(),
            Piece::Change(change) => self.change(change),
            Piece::End if self.begun => self.end(),
            Piece::End => self.leave_out(),
            Piece::Died => self.leave_out(),
        }
        Ok(())
    }

    /// Requests the changes of the next commits.
    fn ask_ahead(&mut self) -> Result<()> {
        if self.changes.worn_out() {
            if self.asked > 0 {
                return Ok(());
            }
            self.changes.restart();
        }
        let limit = if self.careful { 1 } else { changes::REQUESTS_MAX };
        while self.asked < limit && self.read_ahead()? {
            let base = match self.asked {
                0 => self.base,
                asked => Some(self.ahead[asked - 1].id),
            };
            let commit = &self.ahead[self.asked];
            match base {
                Some(base) => self.changes.ask(&base, &commit.id, Compared::Commits)?,
                None => {
                    self.changes.ask(self.repository.empty_tree(), &commit.tree, Compared::Trees)?
                }
            }
            self.asked += 1;
        }
        Ok(())
    }

    /// Whether a commit is left to request; reads one if necessary.
    fn read_ahead(&mut self) -> Result<bool> {
        while self.ahead.len() == self.asked {
            match self.commits.next()? {
                Next::Commit(commit) => self.ahead.push_back(*commit),
                Next::Missing(id) => self
                    .ready
                    .push_back(Step::LeftOut { id, why: "the commit is missing".to_owned() }),
                Next::End => return Ok(false),
            }
        }
        Ok(true)
    }

    fn begin(&mut self) {
        self.begun = true;
        let commit = self.ahead.front_mut().expect("an answer belongs to a commit ahead");
        let metadata = std::mem::take(&mut commit.metadata);
        self.ready.push_back(Step::Begin { id: commit.id, time: commit.time, metadata });
    }

    fn end(&mut self) {
        let commit = self.ahead.pop_front().expect("an answer belongs to a commit ahead");
        self.base = Some(commit.id);
        self.asked -= 1;
        self.begun = false;
        self.careful = false;
        self.ready.push_back(Step::End);
    }

    /// Skips the first commit ahead, which cannot be compared. The later requests named it as their
    /// base, so they are sent again.
    fn leave_out(&mut self) {
        let commit = self.ahead.pop_front().expect("an answer belongs to a commit ahead");
        let words = self.changes.restart();
        let why = if words.is_empty() { "its tree is missing".to_owned() } else { words };
        self.asked = 0;
        self.careful = true;
        self.ready.push_back(Step::LeftOut { id: commit.id, why });
    }

    fn change(&mut self, change: Change) {
        let had_content = change.before.is_some_and(|file| !file.submodule);
        match change.after {
            // Only the mode changed.
            Some(file)
                if had_content
                    && change.before.is_some_and(|before| before.id == file.id)
                    && !file.submodule => {}
            Some(file) if !file.submodule => {
                self.blobs.ask(file.id);
                self.ready.push_back(Step::Put { id: file.id, path: change.path });
            }
            after => {
                if after.is_some() {
                    self.ready.push_back(Step::Submodule);
                }
                if had_content {
                    self.ready.push_back(Step::Delete { path: change.path });
                }
            }
        }
    }
}
