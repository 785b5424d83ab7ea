//! Iterates over a transaction's own writes in key order, merging memory and spilled runs.
//!
//! Invariant: each key comes once, with its newest write.

use std::sync::Arc;

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::buffer::Buffer;
use plimsoll_memory::sorted::Position;

use crate::compression::unpacker::unpack;
use crate::index::run::cursor::RunCursor;
use crate::index::sources::view::Direction;
use crate::read::reader::Reader;
use crate::txn::write_set::{Write, WriteSet};
use crate::types::error::Result;
use crate::types::expiry::Expiry;
use crate::types::version::Stored;

/// The iterator. It is on a key or after the last one.
pub(crate) struct OwnWrites<'t> {
    set: &'t WriteSet,
    direction: Direction,
    memory: Option<Position>,
    runs: Vec<RunCursor>,
    updated: UpdatedKeys,
    /// Index into `updated`.
    place: Option<usize>,
    standing: Option<Source>,
}

#[derive(Clone, Copy)]
enum Source {
    Memory,
    Run(usize),
    Updated(usize),
}

/// Keys that a transaction updates and has not written otherwise, in key order, with their values.
pub(crate) type UpdatedKeys = Arc<[(Vec<u8>, Option<(Vec<u8>, Option<Expiry>)>)]>;

impl<'t> OwnWrites<'t> {
    /// An iterator that begins at the first key at or after `from` (forward), or at the last key
    /// before it (backward).
    pub(crate) fn new(
        (set, updated): (&'t WriteSet, &UpdatedKeys),
        direction: Direction,
        from: Option<&[u8]>,
    ) -> Result<Self> {
        let (runs, updated) = (set.spilled().cursors(), Arc::clone(updated));
        let (memory, place) = (None, None);
        let mut iter = Self { set, direction, memory, runs, updated, place, standing: None };
        iter.seek(from)?;
        Ok(iter)
    }

    /// Moves to the first key at or after `from` (forward), or to the last key before it
    /// (backward).
    pub(crate) fn seek(&mut self, from: Option<&[u8]>) -> Result<()> {
        let map = self.set.map();
        let memory = match (self.direction, from) {
            (Direction::Forward, None) => map.first(),
            (Direction::Forward, Some(key)) => map.seek(key, u64::MAX),
            (Direction::Backward, None) => map.last(),
            (Direction::Backward, Some(key)) => map.seek_before(key, u64::MAX),
        };
        for run in &mut self.runs {
            match (self.direction, from) {
                (Direction::Forward, None) => run.seek_first()?,
                (Direction::Forward, Some(key)) => run.seek(key, Glsn::MAX)?,
                (Direction::Backward, None) => run.seek_last()?,
                (Direction::Backward, Some(key)) => run.seek_before(key, Glsn::MAX)?,
            }
        }
        self.memory = self.newest_of_key(memory);
        let before =
            from.map(|from| self.updated.partition_point(|(key, _)| key.as_slice() < from));
        self.place = match self.direction {
            Direction::Forward => Some(before.unwrap_or(0)),
            Direction::Backward => before.unwrap_or(self.updated.len()).checked_sub(1),
        };
        self.choose();
        Ok(())
    }

    /// Heap size of the iterator.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.runs.iter().map(RunCursor::heap_bytes).sum()
    }

    /// Unpins the pages of spilled runs until [`OwnWrites::repin`], because the iterator may be
    /// idle for a long time.
    pub(crate) fn leave_pages(&mut self) {
        self.runs.iter_mut().for_each(RunCursor::leave_page);
    }

    /// Pins the pages again.
    pub(crate) fn repin(&mut self) -> Result<()> {
        self.runs.iter_mut().try_for_each(RunCursor::repin)
    }

    /// The current key.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.standing.map(|source| self.current(source).0)
    }

    /// The current write.
    pub(crate) fn write(&self) -> Option<Write<'_>> {
        self.standing.map(|source| self.current(source).1)
    }

    fn current(&self, source: Source) -> (&[u8], Write<'_>) {
        match source {
            Source::Memory => self.set.at(self.memory.expect("the memory source is current")),
            Source::Run(i) => {
                let version = self.runs[i].current().expect("the run is current");
                (version.key, Write::Stored(version.stored))
            }
            Source::Updated(place) => {
                let (key, updated) = &self.updated[place];
                let stored = updated.as_ref().map_or(Stored::Deleted, |(value, expiry)| {
                    Stored::Inline(value).expiring(*expiry)
                });
                (key, Write::Stored(stored))
            }
        }
    }

    /// Moves to the next key.
    pub(crate) fn advance(&mut self) -> Result<()> {
        let Some(key) = self.key().map(<[u8]>::to_vec) else { return Ok(()) };
        if let Some(position) = self.memory
            && self.set.at(position).0 == key
        {
            let next = match self.direction {
                Direction::Forward => self.set.after_key(position),
                Direction::Backward => self.set.map().seek_before(&key, u64::MAX),
            };
            self.memory = self.newest_of_key(next);
        }
        if let Some(place) = self.place
            && self.updated.get(place).is_some_and(|updated| updated.0 == key)
        {
            self.place = match self.direction {
                Direction::Forward => Some(place + 1),
                Direction::Backward => place.checked_sub(1),
            };
        }
        for run in &mut self.runs {
            if run.current().is_some_and(|version| version.key == key) {
                match self.direction {
                    Direction::Forward => run.next()?,
                    Direction::Backward => run.prev()?,
                }
            }
        }
        self.choose();
        Ok(())
    }

    /// The newest write of the key at a position. A backward scan meets a key's oldest write first.
    fn newest_of_key(&self, position: Option<Position>) -> Option<Position> {
        match self.direction {
            Direction::Forward => position,
            Direction::Backward => self.set.map().seek(self.set.at(position?).0, u64::MAX),
        }
    }

    /// Selects the source of the next key in the iterator's direction. If several sources have the
    /// key, the newest source is selected, because it is tried first.
    fn choose(&mut self) {
        let memory = self.memory.map(|_| Source::Memory);
        let runs =
            (0..self.runs.len()).filter(|&i| self.runs[i].current().is_some()).map(Source::Run);
        let updated = self.place.filter(|&place| place < self.updated.len()).map(Source::Updated);
        let mut best: Option<Source> = None;
        for source in memory.into_iter().chain(runs).chain(updated) {
            let better = best.is_none_or(|best| {
                let (key, so_far) = (self.current(source).0, self.current(best).0);
                match self.direction {
                    Direction::Forward => key < so_far,
                    Direction::Backward => key > so_far,
                }
            });
            if better {
                best = Some(source);
            }
        }
        self.standing = best;
    }
}

/// Replaces `into` by a value that the transaction wrote itself.
pub(crate) fn own_value(
    reader: &Reader,
    writes: &WriteSet,
    write: Write<'_>,
    into: &mut Buffer,
) -> Result<()> {
    into.clear();
    into.resize(write.value_bytes() as usize);
    if let Some((stored, packed)) = write.packed() {
        let fetch = &mut |at, bytes: &mut [u8]| match writes.read_back(write, at, bytes)? {
            None => Ok(()),
            Some(stored) => reader.load_stored(Glsn::NONE, stored, at, bytes).map(|_| ()),
        };
        return unpack(&reader.budget, Glsn::NONE, (stored, packed), into, fetch);
    }
    match writes.read_back(write, 0, into)? {
        None => Ok(()),
        Some(stored) => reader.load(Glsn::NONE, stored, into).map(|_| ()),
    }
}
