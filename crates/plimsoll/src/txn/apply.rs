//! Applies commits of the log to the index: those replayed when the store is opened, and those
//! ordered by other members.

use std::iter;
use std::sync::Arc;

use plimsoll_log::blob::BlobId;
use plimsoll_log::entry::EntryView;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::Budget;
use plimsoll_memory::page::PAGE_BYTES;
use plimsoll_memory::sorted::SortedMap;

use crate::borders::{Border, hit};
use crate::index::OpenIndex;
use crate::index::memtables::reservation::{Link, Reservation};
use crate::txn::payload::{Operations, Payload, Writes};
use crate::txn::spill::open_table;
use crate::types::error::{Error, Result};
use crate::types::index_key::IndexKey;
use crate::types::keyspaces::{BRANCHES, CURSORS, SYSTEM, TAGS, TIME_MARK};
use crate::types::version::Stored;

/// During an open, memtable room is reserved in steps of this many bytes, because a reservation
/// costs as much as a small transaction.
const ROOM_BYTES: usize = 64 << 10;

/// Divisor: such a step is at most this part of a memtable.
const ROOM_PART: u64 = 16;

/// The circumstances in which commits are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// During an open, before any read.
    Opening,
    /// During operation, as other members order them.
    Live,
    /// During operation, under the turn: without waiting for a flush.
    InTurn,
}

/// Applies commits of the log to the index.
pub(crate) struct Apply<'a> {
    log: &'a Arc<FileLog>,
    budget: &'a Budget,
    index: &'a OpenIndex,
    when: When,
    /// The last GLSN applied to the index.
    applied: Glsn,
    /// Room for further commits.
    room: Option<Reservation<'a>>,
    touched: Touched,
    lacks_room: bool,
}

/// The store's own records that the applied commits have changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Touched {
    /// Records of keyspaces.
    pub(crate) keyspaces: bool,
    /// Positions of cursors.
    pub(crate) cursors: bool,
    /// Tags.
    pub(crate) tags: bool,
    /// Branches.
    pub(crate) branches: bool,
    /// The time of the log is restarted.
    pub(crate) restarts_time: bool,
}

impl Touched {
    pub(crate) const ALL: Self =
        Self { keyspaces: true, cursors: true, tags: true, branches: true, restarts_time: false };

    /// The records in the keyspaces for which `has` is true.
    fn of(has: impl Fn(u32) -> bool) -> Self {
        Self {
            keyspaces: has(SYSTEM),
            cursors: has(CURSORS),
            tags: has(TAGS),
            branches: has(BRANCHES),
            restarts_time: false,
        }
    }

    /// Adds the records of `other`.
    pub(crate) fn add(&mut self, other: Self) {
        self.keyspaces |= other.keyspaces;
        self.cursors |= other.cursors;
        self.tags |= other.tags;
        self.branches |= other.branches;
        self.restarts_time |= other.restarts_time;
    }
}

impl<'a> Apply<'a> {
    /// Continues after `applied`, up to which everything is in the index.
    pub(crate) fn new(
        log: &'a Arc<FileLog>,
        budget: &'a Budget,
        index: &'a OpenIndex,
        when: When,
        applied: Glsn,
    ) -> Self {
        Self {
            log,
            budget,
            index,
            when,
            applied,
            room: None,
            touched: Touched::default(),
            lacks_room: false,
        }
    }

    /// The last GLSN applied to the index.
    pub(crate) fn applied(&self) -> Glsn {
        self.applied
    }

    /// Whether a commit could not be applied because a memtable has to be flushed first.
    pub(crate) fn lacks_room(&self) -> bool {
        self.lacks_room
    }

    /// The store's own records that the applied commits have changed.
    pub(crate) fn touched(&self) -> Touched {
        self.touched
    }

    /// Makes applied commits visible to lookups. Called before the sequencer records them as
    /// applied.
    pub(crate) fn settle(&self) {
        self.index.memtables.settle();
    }

    /// Applies a commit as a whole or not at all. Lookups find it after [`Apply::settle`].
    pub(crate) fn apply(&mut self, entry: &EntryView<'_>) -> Result<()> {
        let glsn = entry.meta.glsn;
        let Payload { ranges, writes, .. } = Payload::decode(entry.payload)?;
        if !ranges.is_empty() {
            let _room = self.index.runs.reserve_for_ranges(ranges.iter().copied())?;
            self.index.runs.delete_ranges(glsn, ranges.iter().copied());
        }
        match writes {
            Writes::Operations(operations) => {
                let (room_bytes, touches) = survey(operations.uncompared())?;
                let room = self.reserve(room_bytes)?;
                room.apply(
                    glsn,
                    entry.payload.len() as u64,
                    Link::Later,
                    in_order(operations, glsn),
                )?;
                if self.when != When::Opening {
                    // Release the room, because the next reservation may be made by a commit of
                    // this process.
                    self.room = None;
                }
                self.touched.add(touches);
            }
            Writes::Runs(runs) => {
                let open = |blobs: &Vec<BlobId>| {
                    blobs
                        .iter()
                        .map(|&blob| open_table(self.log, self.budget, blob, glsn))
                        .collect::<Result<Vec<_>>>()
                };
                let runs = runs.iter().map(open).collect::<Result<Vec<_>>>()?;
                let infos = || runs.iter().flatten().map(|table| &*table.info);
                let has = |keyspace: u32| {
                    let of = |key| IndexKey::new(key).keyspace();
                    infos()
                        .any(|info| (of(&info.first_key)..=of(&info.last_key)).contains(&keyspace))
                };
                let touches = Touched::of(has);
                // Adopting runs closes the memtable.
                self.room = None;
                hit(Border::SpilledReplay);
                self.index.memtables.reserve_for_runs(infos())?;
                if self.when == When::Opening {
                    let pages: u64 = infos().map(|info| u64::from(info.pages)).sum();
                    self.index.throttle.delay(pages * PAGE_BYTES as u64);
                    self.index.throttle.wait_for_merges()?;
                }
                self.index.memtables.adopt(runs, glsn);
                self.touched.add(touches);
            }
        }
        self.applied = glsn;
        Ok(())
    }

    fn reserve(&mut self, bytes: usize) -> Result<&mut Reservation<'a>> {
        if self.room.as_ref().is_none_or(|room| room.left_bytes() < bytes) {
            self.room = None;
            match self.when {
                When::Opening => {}
                When::Live => {
                    return Ok(self
                        .room
                        .insert(self.index.memtables.reserve(bytes, self.applied)?));
                }
                When::InTurn => {
                    let room = self.index.memtables.try_reserve(bytes, self.applied);
                    self.lacks_room = room.is_none();
                    // This error is not reported: the caller releases the turn, and then applies
                    // everything.
                    return Ok(self.room.insert(room.ok_or(Error::Stalled { pid: None })?));
                }
            }
            let part = (self.index.memtables.limit_bytes() / ROOM_PART) as usize;
            let ahead = bytes.max(part.min(ROOM_BYTES));
            self.index.throttle.delay(ahead as u64);
            self.index.throttle.wait_for_merges()?;
            self.room = Some(match self.index.memtables.reserve(ahead, self.applied) {
                Err(Error::OutOfBudget(_)) if ahead > bytes => {
                    self.index.memtables.reserve(bytes, self.applied)?
                }
                made => made?,
            });
        }
        Ok(self.room.as_mut().expect("made above"))
    }
}

/// The versions of the commit at `glsn`; an error unless their keys ascend.
fn in_order<'v>(
    mut operations: Operations<'v>,
    glsn: Glsn,
) -> impl Iterator<Item = Result<(&'v [u8], Stored<'v>)>> + Clone + use<'v> {
    let mut before: Option<&[u8]> = None;
    iter::from_fn(move || operations.next().transpose()).map(move |operation| {
        let operation = operation?;
        if before.is_some_and(|before| before >= operation.key) {
            return Err(Error::damaged(format_args!(
                "the keys of the transaction at GLSN {glsn} are out of order although its checksum \
                 is valid"
            )));
        }
        before = Some(operation.key);
        Ok((operation.key, operation.stored))
    })
}

/// The room that operations need, and which of the store's own records they change.
fn survey(mut operations: Operations<'_>) -> Result<(usize, Touched)> {
    let (mut bytes, mut touches) = (0, Touched::default());
    while let Some(operation) = operations.next()? {
        bytes += SortedMap::entry_bytes(operation.key.len(), operation.stored.max_bytes());
        let key = IndexKey::new(operation.key);
        touches.add(Touched::of(|keyspace| key.is_in(keyspace)));
        touches.restarts_time |= key.is_in(SYSTEM) && key.user_key() == TIME_MARK.as_bytes();
    }
    Ok((bytes, touches))
}
