//! Walks over the index: the keys of one moment, and all versions.

use std::ops::Bound;
use std::sync::Arc;

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::pool::Touch;

use crate::error::Result;
use crate::index::merge::{Cursor, Direction, Merge};
use crate::index::source::{Run, Source};
use crate::index::view::{KeyRange, View, beyond, in_front, partitions_in, seek_lower, seek_upper};
use crate::run::cursor::{Feed, RunCursor};
use crate::run::partition::Partition;
use crate::version::{Stored, Version};

/// After so many versions of one key that are not wanted, the walk looks for what comes behind them instead of stepping on.
const STEPS_MAX: u32 = 8;

#[derive(Debug)]
struct Bounds {
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
}

impl Bounds {
    fn new(range: KeyRange<'_>) -> Self {
        Self { lower: range.0.map(<[u8]>::to_vec), upper: range.1.map(<[u8]>::to_vec) }
    }

    fn lower(&self) -> Bound<&[u8]> {
        self.lower.as_ref().map(Vec::as_slice)
    }

    fn upper(&self) -> Bound<&[u8]> {
        self.upper.as_ref().map(Vec::as_slice)
    }
}

/// A walk over keys as of one moment.
#[derive(Debug)]
pub(crate) struct Visible {
    merge: Merge,
    bounds: Bounds,
    at: Glsn,
    direction: Direction,
    state: State,
    /// The key that was answered last.
    key: Vec<u8>,
    /// Walking back, the version passed that may be the answer.
    held: Held,
    _view: Arc<View>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Before,
    Among,
    Behind,
}

/// A copy of a version: a walk back has left it by the time it is known to be the newest.
#[derive(Debug, Default)]
struct Held {
    glsn: Glsn,
    encoded: Vec<u8>,
}

impl Held {
    fn set(&mut self, version: Version<'_>) {
        self.glsn = version.glsn;
        self.encoded.clear();
        version.stored.encode(&mut self.encoded);
    }

    fn stored(&self) -> Stored<'_> {
        Stored::decode(&self.encoded).expect("it was encoded here")
    }
}

impl Visible {
    pub(crate) fn new(view: &Arc<View>, range: KeyRange<'_>, at: Glsn, direction: Direction) -> Self {
        Self {
            merge: Merge::new(visible_cursors(view, range, at), direction),
            bounds: Bounds::new(range),
            at,
            direction,
            state: State::Before,
            key: Vec::new(),
            held: Held::default(),
            _view: Arc::clone(view),
        }
    }

    /// The next key's version, lent until the next call.
    pub(crate) fn next(&mut self) -> Result<Option<Version<'_>>> {
        if self.state == State::Behind {
            return Ok(None);
        }
        let found = match self.direction {
            Direction::Forward => self.find_forward(),
            Direction::Backward => self.find_backward(),
        };
        match found {
            Ok(true) => {}
            end => {
                self.state = State::Behind;
                return end.map(|_| None);
            }
        }
        Ok(match self.direction {
            Direction::Forward => self.merge.top(),
            Direction::Backward => Some(Version { key: &self.key, glsn: self.held.glsn, stored: self.held.stored() }),
        })
    }

    /// Goes to the next key's visible version; false at the end.
    fn find_forward(&mut self) -> Result<bool> {
        if self.state == State::Before {
            self.state = State::Among;
            seek_lower(&mut self.merge, self.bounds.lower())?;
        } else {
            self.pass_key_forward()?;
        }
        loop {
            let Some(version) = self.merge.top() else { return Ok(false) };
            if beyond(version.key, self.bounds.upper()) {
                return Ok(false);
            }
            let (glsn, stored) = (version.glsn, version.stored);
            self.key.clear();
            self.key.extend_from_slice(version.key);
            if glsn > self.at {
                // Either to the key's version that is wanted, or to the next key if there is none.
                self.pass_younger()?;
            } else if stored == Stored::Deleted {
                self.pass_key_forward()?;
            } else {
                return Ok(true);
            }
        }
    }

    /// Passes what is left of the versions of `key`.
    fn pass_key_forward(&mut self) -> Result<()> {
        for _ in 0..STEPS_MAX {
            self.merge.advance()?;
            if self.merge.top_key().is_none_or(|key| key != self.key) {
                return Ok(());
            }
        }
        self.merge.skip_to(&self.key, Glsn::NONE)
    }

    /// Passes the versions of `key` that are too young.
    fn pass_younger(&mut self) -> Result<()> {
        for _ in 0..STEPS_MAX {
            self.merge.advance()?;
            if self.merge.top().is_none_or(|version| version.glsn <= self.at || version.key != self.key) {
                return Ok(());
            }
        }
        self.merge.skip_to(&self.key, self.at)
    }

    /// Goes before the next key back and holds its visible version; false at the end.
    fn find_backward(&mut self) -> Result<bool> {
        if self.state == State::Before {
            self.state = State::Among;
            seek_upper(&mut self.merge, self.bounds.upper())?;
        }
        loop {
            let Some(version) = self.merge.top() else { return Ok(false) };
            if in_front(version.key, self.bounds.lower()) {
                return Ok(false);
            }
            self.key.clear();
            self.key.extend_from_slice(version.key);
            if self.hold_newest()? && self.held.stored() != Stored::Deleted {
                return Ok(true);
            }
        }
    }

    /// Passes all versions of `key`, oldest first, and holds the newest that is not too young; whether there is one.
    fn hold_newest(&mut self) -> Result<bool> {
        let (at, held) = (self.at, &mut self.held);
        let mut any = false;
        for _ in 0..STEPS_MAX {
            let Some(version) = self.merge.top().filter(|version| version.key == self.key) else { return Ok(any) };
            if version.glsn <= at {
                held.set(version);
                any = true;
            }
            self.merge.advance()?;
        }
        self.merge.look_up_and_leave(&self.key, at, |version| {
            held.set(version);
            any = true;
        })?;
        Ok(any)
    }
}

/// Cursors over what may hold a version that is visible at `at`, newer current sources first.
fn visible_cursors(view: &View, range: KeyRange<'_>, at: Glsn) -> Vec<Cursor> {
    let mut history_wanted = at < view.limits.deletions_moved;
    let mut cursors = Vec::new();
    for source in view.sources() {
        let wanted = match source {
            Source::Memtable(table) => !table.is_empty(),
            Source::Run(run) => !partitions_in(run, range).is_empty(),
        };
        history_wanted |= wanted && source.max_glsn() > at;
        if wanted && source.min_glsn() <= at {
            cursors.push(match source {
                Source::Memtable(table) => Cursor::memtable(table),
                Source::Run(run) => run_cursor(Arc::clone(run.partitions())),
            });
        }
    }
    let wanted = |run: &&Arc<Run>| history_wanted && run.min_glsn() <= at && !partitions_in(run, range).is_empty();
    cursors.extend(view.history.iter().filter(wanted).map(|run| run_cursor(Arc::clone(run.partitions()))));
    cursors
}

fn run_cursor(partitions: Arc<[Partition]>) -> Cursor {
    Cursor::Run(Box::new(RunCursor::new(partitions, Feed::Pool(Touch::Point))))
}

/// A walk over all versions.
#[derive(Debug)]
pub(crate) struct Versions {
    merge: Merge,
    bounds: Bounds,
    after: Glsn,
    upto: Glsn,
    state: State,
    /// The version that was lent last.
    key: Vec<u8>,
    glsn: Glsn,
    _view: Arc<View>,
}

impl Versions {
    pub(crate) fn new(view: &Arc<View>, range: KeyRange<'_>, after: Glsn, upto: Glsn) -> Self {
        let sources = view.sources().chain(view.history.iter().map(Source::Run));
        let cursors = sources.filter_map(|source| version_cursor(source, range, after, upto));
        Self {
            merge: Merge::new(cursors.collect(), Direction::Forward),
            bounds: Bounds::new(range),
            after,
            upto,
            state: State::Before,
            key: Vec::new(),
            glsn: Glsn::NONE,
            _view: Arc::clone(view),
        }
    }

    /// The next version, lent until the next call.
    pub(crate) fn next(&mut self) -> Result<Option<Version<'_>>> {
        if self.state == State::Behind {
            return Ok(None);
        }
        match self.find() {
            Ok(true) => Ok(self.merge.top()),
            end => {
                self.state = State::Behind;
                end.map(|_| None)
            }
        }
    }

    fn find(&mut self) -> Result<bool> {
        if self.state == State::Before {
            self.state = State::Among;
            seek_lower(&mut self.merge, self.bounds.lower())?;
        } else {
            self.merge.advance()?;
        }
        let mut passed = 0;
        loop {
            let Some(version) = self.merge.top() else { return Ok(false) };
            if beyond(version.key, self.bounds.upper()) {
                return Ok(false);
            }
            let same_key = version.key == self.key;
            let copy = same_key && version.glsn == self.glsn;
            let (key_is_new, glsn) = (!same_key, version.glsn);
            if key_is_new {
                self.key.clear();
                self.key.extend_from_slice(version.key);
                passed = 0;
            }
            let outside = glsn > self.upto || glsn <= self.after;
            self.glsn = glsn;
            if !outside && !copy {
                return Ok(true);
            }
            passed += 1;
            if passed < STEPS_MAX || copy {
                self.merge.advance()?;
            } else {
                let target = if glsn > self.upto { self.upto } else { Glsn::NONE };
                self.merge.skip_to(&self.key, target)?;
            }
        }
    }
}

/// A cursor over the partitions of a source that may hold versions that are wanted.
fn version_cursor(source: Source<'_>, range: KeyRange<'_>, after: Glsn, upto: Glsn) -> Option<Cursor> {
    if source.min_glsn() > upto || source.max_glsn() <= after {
        return None;
    }
    match source {
        Source::Memtable(table) => Some(Cursor::memtable(table)),
        Source::Run(run) => wanted_partitions(run, range, after, upto).map(run_cursor),
    }
}

/// The run's partitions if most of them may hold versions that are wanted, else only those that may.
fn wanted_partitions(run: &Run, range: KeyRange<'_>, after: Glsn, upto: Glsn) -> Option<Arc<[Partition]>> {
    let wanted = |partition: &&Partition| partition.info.max_glsn > after && partition.info.min_glsn <= upto;
    let inside = partitions_in(run, range);
    let count = inside.iter().filter(wanted).count();
    match count {
        0 => None,
        // A few hundred descriptions are no matter; more are shared with the run instead of copied.
        1..=256 => Some(inside.iter().filter(wanted).cloned().collect()),
        _ => Some(Arc::clone(run.partitions())),
    }
}
