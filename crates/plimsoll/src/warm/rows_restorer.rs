//! Restores the rows of an image, in rounds, most accessed first, until there is no room left
//! without eviction.
//!
//! An image may consist of several generations, if a process ended before it had written all of its
//! own. The newest is read first; rows that it contains are not restored from an older one.

use std::sync::atomic::Ordering;

use plimsoll_log::glsn::{Glsn, Position};
use plimsoll_memory::budget::{Kind as Memory, Lease};
use plimsoll_memory::cache::Stopped;
use plimsoll_memory::page::PAGE_BYTES;
use smallvec::SmallVec;

use crate::borders::{Border, hit};
use crate::index::sources::view::View;
use crate::rowcache::warm::{ROWS_AT_ONCE, Row};
use crate::warm::image::{self, Name, OpenFile, Past, RowsName, SEGMENT_BYTES_MAX};
use crate::warm::restorer::Step;
use crate::warm::rows::{Note, Round, read_at};
use crate::warm::segment::{Header, Kind, Rejection, open};
use crate::warm::validation::{is_all_older, is_current};
use crate::warm::{Context, Counts};

/// The most segments that a step reads.
const SEGMENTS_AT_ONCE: usize = 16;

/// The progress of the restore.
#[derive(Debug)]
pub(super) struct RowsRestorer {
    /// The existing files; `None` before the first step.
    files: Option<Vec<Part>>,
    _lease: Option<Lease>,
    /// The index of the current file in the list.
    at: usize,
    /// The current round.
    round: Round,
    /// The current file, if it is open.
    open: Option<Fetched>,
    /// The next file, which the system is prefetching, and its index in the list.
    next: Option<(usize, Fetched)>,
    /// Whether the last file that was begun has rows of this round.
    is_in_round: bool,
    /// Bytes that were prefetched, or read without prefetching, since the last step.
    unpaid: u64,
    /// The position that was last compared with the log.
    past: Option<(Position, Past)>,
    /// The offset at which to continue in the next segment, if its body has this checksum.
    rest: Option<(u64, usize)>,
    /// Bytes of all files, until the size of a row is known.
    all_bytes: Option<u64>,
    /// Expected rows and their mean size, until the cache's index is large enough for them.
    unannounced: Option<(u64, u64)>,
}

/// An open file of the image.
#[derive(Debug)]
struct Fetched {
    open: OpenFile,
    /// The bytes from its beginning that were prefetched.
    bytes: u64,
}

/// A file of the image.
#[derive(Clone, Copy, Debug)]
struct Part {
    name: RowsName,
    /// The next segment to read.
    place: u32,
}

/// The result for a segment.
enum Taken {
    All,
    /// There is no room left.
    NoRoom,
    /// It belongs to a later round.
    Later,
    /// Only partly restored: younger versions are entering the runs at this time, or the step has
    /// read enough.
    Partly,
}

/// Consecutive rows of a segment that are current.
struct Group<'a> {
    rows: SmallVec<[Row<'a>; ROWS_AT_ONCE]>,
    /// Rows that were left out because younger versions may exist.
    stale: u64,
    end: Option<End>,
}

/// Why a group ends.
enum End {
    /// The body has ended.
    Body,
    /// The step has read enough.
    Loads,
}

impl<'a> Group<'a> {
    /// Reads the group at a place in the body of a segment for the position `since`; returns it
    /// with the place after it. `loads` counts the pages that were not in memory.
    fn read(
        context: &Context,
        view: &View,
        (body, mut at): (&'a [u8], usize),
        since: Glsn,
        loads: &mut u64,
    ) -> Result<(Self, usize), Rejection> {
        let mut group = Self { rows: SmallVec::new(), stale: 0, end: None };
        let is_all_older = is_all_older(view, since);
        while group.rows.len() < ROWS_AT_ONCE {
            let Some((row, next)) = read_at(body, at) else {
                group.end = Some(End::Body);
                break;
            };
            if row.glsn > since {
                return Err(Rejection::Damaged {
                    what: "it holds a row that is younger than its own position",
                });
            }
            if *loads >= context.loads_at_once {
                group.end = Some(End::Loads);
                break;
            }
            match is_all_older || is_current(view, row.key, row.glsn, since, loads) {
                true => group.rows.push(row),
                false => {
                    hit(Border::RowRefused);
                    group.stale += 1;
                }
            }
            at = next;
        }
        Ok((group, at))
    }
}

impl RowsRestorer {
    pub(super) fn new() -> Self {
        Self {
            files: None,
            _lease: None,
            at: 0,
            round: Round::Often,
            open: None,
            next: None,
            is_in_round: true,
            unpaid: 0,
            past: None,
            rest: None,
            all_bytes: None,
            unannounced: None,
        }
    }

    /// Reads some segments and restores their rows.
    pub(super) fn step(&mut self, context: &Context, counts: &Counts) -> Result<Step, Rejection> {
        let mut step = Step::default();
        if self.files.is_none() && !self.find_files(context)? {
            return Ok(Step::end(false));
        }
        let Some(mut bytes) = context.budget.try_take(Memory::Staging) else {
            return Ok(Step::end(false));
        };
        for _ in 0..SEGMENTS_AT_ONCE {
            if self.announce(context) {
                break;
            }
            let next = self.next_segment(context, &mut bytes)?;
            step.bytes += std::mem::take(&mut self.unpaid);
            let Some((name, place, len)) = next else {
                step.ended = Some(true);
                break;
            };
            let number = name.segment_number(place);
            let (header, body, sum) = open(&bytes[..len], Kind::Rows, number)?;
            let mut loads = 0;
            let taken = self.restore_rows_of(context, counts, &header, (body, sum), &mut loads)?;
            step.bytes += loads * PAGE_BYTES as u64;
            match taken {
                Taken::All => {
                    self.is_in_round = true;
                    counts.row_bytes_read.fetch_add(len as u64, Ordering::Relaxed);
                }
                Taken::Later => {
                    self.is_in_round = place > 0;
                    self.next_file();
                }
                Taken::Partly => break,
                Taken::NoRoom => {
                    step.ended = Some(false);
                    break;
                }
            }
        }
        Ok(step)
    }

    /// Lists the files; false if there is no memory for the list.
    fn find_files(&mut self, context: &Context) -> Result<bool, Rejection> {
        let found = image::list_rows(&*context.disk, &context.dir).map_err(image::unread)?;
        let Ok(lease) =
            context.budget.lease(Memory::Metadata, (found.len() * size_of::<Part>()) as u64)
        else {
            return Ok(false);
        };
        self.all_bytes = Some(found.iter().map(|(_, len)| *len).sum());
        self.files = Some(found.into_iter().map(|(name, _)| Part { name, place: 0 }).collect());
        self._lease = Some(lease);
        Ok(true)
    }

    /// Reads the next segment; returns its file, its place and its length, or `None` after the
    /// last.
    fn next_segment(
        &mut self,
        context: &Context,
        bytes: &mut [u8],
    ) -> Result<Option<(RowsName, u32, usize)>, Rejection> {
        loop {
            let files = self.files.as_mut().expect("they were listed before");
            let Some(part) = files.get_mut(self.at) else {
                match self.round.next().filter(|_| !files.is_empty()) {
                    None => return Ok(None),
                    Some(round) => (self.round, self.at) = (round, 0),
                }
                continue;
            };
            if self.open.is_none() {
                let name = part.name;
                self.open = match self.next.take().filter(|(at, _)| *at == self.at) {
                    Some((_, file)) => Some(file),
                    None => self.fetch(context, name)?,
                };
                match self.open.is_some() {
                    true => self.fetch_next(context),
                    // A missing file is not damage.
                    false => self.next_file(),
                }
                continue;
            }
            let begin = u64::from(part.place) * SEGMENT_BYTES_MAX as u64;
            // An empty file is damage.
            let rest = self.open.as_ref().and_then(|Fetched { open, bytes }| {
                Some((&open.file, open.len.checked_sub(begin)?, *bytes))
            });
            let Some((file, len, fetched)) = rest.filter(|(_, len, _)| *len > 0 || part.place == 0)
            else {
                self.next_file();
                continue;
            };
            let len =
                usize::try_from(len).map_or(SEGMENT_BYTES_MAX, |len| len.min(SEGMENT_BYTES_MAX));
            file.read_exact_at(&mut bytes[..len], begin).map_err(image::unread)?;
            if begin + len as u64 > fetched {
                self.unpaid += len as u64;
            }
            let place = part.place;
            part.place += 1;
            return Ok(Some((part.name, place, len)));
        }
    }

    /// Opens a file, and starts prefetching, without waiting, the part of it that this round will
    /// read, estimated from the previous file.
    fn fetch(&mut self, context: &Context, name: RowsName) -> Result<Option<Fetched>, Rejection> {
        let Some(open) = image::open_to_read(&*context.disk, &context.dir, Name::Rows(name))?
        else {
            return Ok(None);
        };
        let bytes =
            if self.is_in_round { open.len } else { open.len.min(SEGMENT_BYTES_MAX as u64) };
        open.file.will_read(0, bytes);
        self.unpaid += bytes;
        Ok(Some(Fetched { open, bytes }))
    }

    /// Starts prefetching the file after the current one. An error is reported when that file is
    /// read.
    fn fetch_next(&mut self, context: &Context) {
        let files = self.files.as_ref().expect("they were listed before");
        if let Some(&Part { name, .. }) = files.get(self.at + 1) {
            self.next = self.fetch(context, name).ok().flatten().map(|file| (self.at + 1, file));
        }
    }

    /// Enlarges the cache's index for the expected rows, a few pages at a time; returns whether
    /// more remains to do.
    fn announce(&mut self, context: &Context) -> bool {
        let Some((rows, mean_bytes)) = self.unannounced else { return false };
        let view = context.index.sources.view();
        let has_more = context.row_cache.expect_rows(&view.rows, rows, mean_bytes);
        self.unannounced = self.unannounced.filter(|_| has_more);
        has_more
    }

    fn next_file(&mut self) {
        self.open = None;
        self.at += 1;
    }

    /// Restores the rows of a segment, given its body with the checksum. `loads` starts at 0 and
    /// counts pages that were not in memory.
    fn restore_rows_of(
        &mut self,
        context: &Context,
        counts: &Counts,
        header: &Header,
        (body, sum): (&[u8], u64),
        loads: &mut u64,
    ) -> Result<Taken, Rejection> {
        let note = Note::of(header);
        if note.round > self.round {
            self.back();
            return Ok(Taken::Later);
        }
        if self.past_of(context, header)? == Past::Trimmed {
            // The log is trimmed there, so the segment cannot be compared with its history.
            counts.stale.fetch_add(header.entries, Ordering::Relaxed);
            return Ok(Taken::All);
        }
        context.row_cache.expect_share(u64::from(note.share));
        if let Some(all) = self.all_bytes.take() {
            // Assume that all segments are like this one.
            let mean_bytes = body.len() as u64 / header.entries.max(1);
            self.unannounced = Some((all / mean_bytes.max(1), mean_bytes));
        }
        let view = context.index.sources.view();
        let is_all_older = is_all_older(&view, header.position.glsn);
        let mut at = self.rest.take().filter(|(of, _)| *of == sum).map_or(0, |(_, at)| at);
        loop {
            let (group, next) =
                Group::read(context, &view, (body, at), header.position.glsn, loads)?;
            hit(Border::RowsRead);
            if !group.rows.is_empty() {
                let brought =
                    context.row_cache.restore_entries((view.set, &view.rows), &group.rows);
                counts.rows.fetch_add(brought.entered, Ordering::Relaxed);
                if !is_all_older && brought.entered > 0 {
                    hit(Border::RowValidated);
                }
                match brought.stopped {
                    None => {}
                    Some(Stopped::NoRoom) => return Ok(Taken::NoRoom),
                    Some(Stopped::NotCurrent) => {
                        hit(Border::RestoreStopped);
                        return Ok(self.partly(sum, at));
                    }
                }
            }
            counts.stale.fetch_add(group.stale, Ordering::Relaxed);
            at = next;
            match group.end {
                None => {}
                Some(End::Body) => return Ok(Taken::All),
                Some(End::Loads) => return Ok(self.partly(sum, at)),
            }
        }
    }

    /// Marks the current segment to be read again, continuing at `at`.
    fn partly(&mut self, sum: u64, at: usize) -> Taken {
        self.rest = Some((sum, at));
        self.back();
        Taken::Partly
    }

    /// Marks the current segment to be read again.
    fn back(&mut self) {
        self.files.as_mut().expect("they were listed before")[self.at].place -= 1;
    }

    fn past_of(&mut self, context: &Context, header: &Header) -> Result<Past, Rejection> {
        match self.past {
            Some((position, past))
                if position == header.position && header.log_id == context.log.id() =>
            {
                Ok(past)
            }
            _ => {
                let past = image::check_past(header, &context.log)?;
                self.past = Some((header.position, past));
                Ok(past)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use plimsoll_disk::lying::LyingDisk;

    use super::*;
    use crate::api::snapshot::Snapshot;
    use crate::engine::Engine;
    use crate::txn::transaction::Transaction;
    use crate::warm::test_store::{default, open};

    const KEYS: u32 = 24_000;

    /// A run of every second key.
    fn put(store: &Arc<Engine>, first: u32) {
        for number in (first..KEYS).step_by(2000) {
            let mut tx = Transaction::new(&store.committer);
            for number in (number..KEYS.min(number + 2000)).step_by(2) {
                tx.put(&default(store), &number.to_be_bytes(), &[first as u8; 300]).unwrap();
            }
            tx.commit().unwrap();
        }
        store.flush().unwrap();
    }

    #[test]
    fn reads_for_validation_are_bounded_in_each_step_and_counted() {
        let disk = LyingDisk::new(1);
        let store = open(&disk);
        put(&store, 0);
        let hot = || (0..KEYS).step_by(100);
        for number in hot() {
            store.maintenance.pool.clear();
            assert!(
                Snapshot::newest(&store)
                    .get(&default(&store), &number.to_be_bytes())
                    .unwrap()
                    .is_some()
            );
        }
        store.maintenance.warm.as_ref().unwrap().close();
        // Younger versions of other keys over the same range, so that each filter is checked.
        put(&store, 1);
        let store = open(&disk.snapshot());
        let core = &store.maintenance.warm.as_ref().unwrap().core;
        let (mut restorer, mut steps) = (RowsRestorer::new(), 0);
        loop {
            let before = store.maintenance.pool.loads();
            let step = restorer.step(&core.context, &core.counts).unwrap();
            let loads = store.maintenance.pool.loads() - before;
            assert!(
                loads <= core.context.loads_at_once + 2 && step.bytes >= loads * PAGE_BYTES as u64,
                "{loads}: {step:?}"
            );
            steps += u32::from(loads > 0);
            if step.ended.is_some() {
                assert_eq!(step.ended, Some(true));
                break;
            }
        }
        let stats = store.maintenance.warm.as_ref().unwrap().stats();
        assert_eq!(
            stats.rows_restored + stats.rows_stale,
            240,
            "each row is counted once: {stats:?}"
        );
        assert!(stats.rows_restored > 220 && steps >= 2, "{steps}: {stats:?}");
    }
}
