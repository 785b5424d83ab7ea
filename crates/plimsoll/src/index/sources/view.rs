//! A consistent view of all sources, and point reads in it as of a GLSN.
//!
//! To find the version of a key as of `at`, the current sources are searched from the newest to the
//! oldest until one has a version that is not younger than `at`. By invariant 2 of the index, it is
//! the newest such version in the current sources. A history run can have a younger one only if
//! that was superseded by a version younger than `at` (in a newer source, or in a merge's output),
//! or if it is a deletion that was moved. History is therefore searched only if a version younger
//! than `at` was seen, or if nothing was found and `at` is below the youngest moved deletion.
//!
//! Several versions with the same key and GLSN come from a transaction that was spilled more than
//! once; the newest source takes precedence. Such runs are merged with each other before any other
//! merge (`policy`), so history has no copies of a version.

use std::ops::Bound;
use std::sync::Arc;

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::Budget;
use plimsoll_memory::pool::Touch;

use crate::borders::{Border, hit};
use crate::index::gaps::Gaps;
use crate::index::manifest::limits::Limits;
use crate::index::ranges::RangeSet;
use crate::index::run::cursor::{Feed, RunCursor};
use crate::index::run::table::{Table, TableInfo};
pub(crate) use crate::index::sources::merge::Direction;
use crate::index::sources::merge::{Cursor, Merge};
use crate::index::sources::source::{Memtable, Place, Run, Source, lookup_in_run};
use crate::rowcache::RowHandle;
use crate::types::branch_key;
use crate::types::branches::MAIN_CHAIN;
use crate::types::error::{Error, Result};
use crate::types::index_key::{IndexKey, KeptKey};
use crate::types::version::Stored;

/// A range of index keys.
pub(crate) type KeyRange<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// An owned range of index keys.
pub(crate) type OwnRange = (Bound<KeptKey>, Bound<KeptKey>);

/// A source that waits to be flushed.
#[derive(Clone, Debug)]
pub(crate) struct Closed {
    pub(crate) content: Content,
    /// The last GLSN applied when it was closed.
    pub(crate) boundary: Glsn,
}

/// The content of a closed source.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// A memtable that will be written as a run.
    Memtable(Arc<Memtable>),
    /// Runs of a large transaction, newest first. They only need to be named in the manifest.
    Adopted(Vec<Arc<Run>>),
}

/// A consistent set of sources: memtables, adopted runs, current runs, history runs. Their files
/// are not removed while the view exists.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) active: Arc<Memtable>,
    /// Newest first.
    pub(crate) closed: Vec<Closed>,
    /// Newest first.
    pub(crate) runs: Vec<Arc<Run>>,
    /// The newest commit in `runs`.
    pub(crate) newest_in_runs: Glsn,
    /// The number of this set of runs. It changes whenever younger versions enter the runs.
    pub(crate) set: u64,
    /// The row cache for values of these runs.
    pub(crate) rows: RowHandle,
    /// Maximum number of `runs` that may hold one key (the read amplification).
    pub(crate) depth: usize,
    /// The most recently made first.
    pub(crate) history: Vec<Arc<Run>>,
    pub(crate) limits: Arc<Limits>,
    /// Range deletions that some source has not absorbed.
    pub(crate) ranges: Arc<RangeSet>,
    /// Known gaps of deleted keys, shared by all views.
    pub(crate) gaps: Arc<Gaps>,
}

/// A version that was found. It pins the memory that holds it.
#[derive(Debug)]
pub(crate) struct Hit {
    place: Place,
    newest_in_runs: bool,
    missed: bool,
}

impl Hit {
    /// The commit that wrote it.
    pub(crate) fn glsn(&self) -> Glsn {
        self.place.glsn()
    }

    /// Its stored form.
    pub(crate) fn stored(&self) -> Stored<'_> {
        self.place.stored()
    }

    /// Whether the version is in a run. If so, it stays the answer for the snapshot, whatever is
    /// committed later.
    pub(crate) fn is_in_a_run(&self) -> bool {
        matches!(self.place, Place::Page(_))
    }

    /// Whether it is in a run and known to be the newest version of its key in all runs of the
    /// view.
    pub(crate) fn is_newest_in_runs(&self) -> bool {
        self.newest_in_runs
    }

    /// Whether the lookup needed a page that was not in memory.
    pub(crate) fn is_miss(&self) -> bool {
        self.missed
    }
}

/// The result of searching the sources above the runs.
#[derive(Debug, Default)]
pub(crate) struct Above {
    younger: bool,
    missed: bool,
    found: Option<Place>,
    /// The newest range deletion over the key, if that was asked for.
    deleted_at: Option<Glsn>,
}

impl Above {
    /// Whether the version must be looked up in the runs.
    pub(crate) fn leaves_it_to_the_runs(&self) -> bool {
        self.found.is_none()
    }

    /// The newest range deletion over the key as of `at`, in the view that was searched;
    /// [`Glsn::NONE`] if there is none.
    #[inline]
    pub(crate) fn deleted_at(&mut self, view: &View, key: &[u8], at: Glsn) -> Glsn {
        if view.ranges.newest() == Glsn::NONE {
            return Glsn::NONE;
        }
        self.find_deletion(view, key, at)
    }

    #[cold]
    #[inline(never)]
    fn find_deletion(&mut self, view: &View, key: &[u8], at: Glsn) -> Glsn {
        *self.deleted_at.get_or_insert_with(|| view.ranges.newest_over(key, at))
    }
}

impl View {
    /// Whether cached rows of the past may answer for `at`, because the runs have younger commits.
    pub(crate) fn is_past(&self, at: Glsn) -> bool {
        at < self.newest_in_runs
    }

    /// The same view without memtables and other unflushed sources.
    pub(crate) fn without_memtables(&self, budget: &Budget) -> Self {
        Self { active: Arc::new(Memtable::new(budget)), closed: Vec::new(), ..self.clone() }
    }

    /// Sources of current versions, newest first.
    pub(crate) fn sources(&self) -> impl Iterator<Item = Source<'_>> {
        self.above().chain(self.runs.iter().map(Source::Run))
    }

    /// The sources that the manifest does not name yet, newest first.
    fn above(&self) -> impl Iterator<Item = Source<'_>> {
        let active = std::iter::once(Source::Memtable(&self.active));
        let closed = self.closed.iter().flat_map(|closed| {
            let (memtable, runs) = match &closed.content {
                Content::Memtable(memtable) => (Some(Source::Memtable(memtable)), &[][..]),
                Content::Adopted(runs) => (None, &runs[..]),
            };
            memtable.into_iter().chain(runs.iter().map(Source::Run))
        });
        active.chain(closed)
    }

    /// A copy without memtables, for callers that keep files for a long time.
    pub(crate) fn of_files(&self, budget: &Budget) -> View {
        let is_on_disk = |closed: &&Closed| matches!(closed.content, Content::Adopted(_));
        View {
            active: Arc::new(Memtable::new(budget)),
            closed: self.closed.iter().filter(is_on_disk).cloned().collect(),
            ..self.clone()
        }
    }

    /// All runs: adopted, current and history runs.
    pub(crate) fn all_runs(&self) -> impl Iterator<Item = &Arc<Run>> {
        let adopted = self.closed.iter().flat_map(|closed| match &closed.content {
            Content::Memtable(_) => &[][..],
            Content::Adopted(runs) => &runs[..],
        });
        adopted.chain(&self.runs).chain(&self.history)
    }

    /// All memtables.
    pub(crate) fn memtables(&self) -> impl Iterator<Item = &Arc<Memtable>> {
        let closed = self.closed.iter().filter_map(|closed| match &closed.content {
            Content::Memtable(memtable) => Some(memtable),
            Content::Adopted(_) => None,
        });
        std::iter::once(&self.active).chain(closed)
    }

    /// The metadata of all tables.
    pub(crate) fn infos(&self) -> impl Iterator<Item = &TableInfo> {
        self.all_runs().flat_map(|run| run.infos())
    }

    /// The oldest commit that needs the log, because the manifest names no run with it yet.
    pub(crate) fn oldest_unflushed(&self) -> Option<Glsn> {
        let closed = self.closed.iter().map(|closed| match &closed.content {
            Content::Memtable(memtable) => memtable.min_glsn(),
            // Until the manifest names the runs, only the transaction's record in the log names
            // their files.
            Content::Adopted(_) => closed.boundary,
        });
        closed.chain([self.active.min_glsn()]).filter(|oldest| *oldest > Glsn::NONE).min()
    }

    /// The oldest log entry that a value in a run points to.
    pub(crate) fn min_pointer(&self) -> Option<Glsn> {
        self.all_runs().filter_map(|run| run.min_pointer()).min()
    }

    /// Bytes of the values in log entries that runs point to, including those that a merge will
    /// drop; `None` if a table does not record them.
    pub(crate) fn log_bytes(&self) -> Option<u64> {
        let mut counts =
            self.infos().filter(|info| info.min_pointer.is_some()).map(|info| info.log_bytes);
        counts.try_fold(0u64, |sum, bytes| Some(sum.saturating_add(bytes?)))
    }

    /// Refuses a GLSN whose versions may have been dropped, so that no wrong answer is given.
    pub(crate) fn check_readable(&self, key: &[u8], at: Glsn) -> Result<()> {
        let keyspace = IndexKey::new(key).keyspace();
        if self.limits.is_readable(keyspace, at) {
            return Ok(());
        }
        Err(Error::trimmed(at, self.oldest_readable_in(keyspace)))
    }

    /// The newest version of `key` that is not younger than `at`, including deletions; `None` also
    /// if a range deletion hides it.
    ///
    /// # Errors
    /// `Trimmed` if `at` is below the oldest readable GLSN of the key's keyspace.
    pub(crate) fn get(self: &Arc<Self>, key: &[u8], at: Glsn) -> Result<Option<Hit>> {
        let above = self.get_above(key, at)?;
        self.get_beneath(above, key, at)
    }

    /// Whether any chain of a branch may have a version of the key with this stem as of `at` (see
    /// `branch_key`). Costs a probe of a filter for each run, however many chains there are.
    ///
    /// # Errors
    /// As for [`View::get`].
    pub(crate) fn may_have_stem(&self, stem: &[u8], at: Glsn) -> Result<bool> {
        self.check_readable(stem, at)?;
        if self.memtables().any(|memtable| memtable.has_prefix(stem)) {
            return Ok(true);
        }
        let last = branch_key::key_of(stem, MAIN_CHAIN);
        let range = (Bound::Included(stem), Bound::Included(last.get()));
        for table in self.all_runs().flat_map(|run| tables_in(run, range)) {
            if table.may_have_stem(stem, last.get(), Touch::Point)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The first half of [`View::get`]: searches the sources above the runs.
    ///
    /// # Errors
    /// As for [`View::get`].
    pub(crate) fn get_above(self: &Arc<Self>, key: &[u8], at: Glsn) -> Result<Above> {
        self.check_readable(key, at)?;
        let mut above = Above::default();
        for source in self.above() {
            let answer = source.lookup(key, at)?;
            above.younger |= answer.younger;
            above.missed |= answer.missed;
            above.found = answer.found;
            if above.found.is_some() {
                break;
            }
        }
        Ok(above)
    }

    /// The second half of [`View::get`]: searches the runs, and history if necessary.
    pub(crate) fn get_beneath(
        self: &Arc<Self>,
        mut above: Above,
        key: &[u8],
        at: Glsn,
    ) -> Result<Option<Hit>> {
        let found = self.version_beneath(&mut above, key, at)?;
        let mut is_deleted =
            |glsn: Glsn| self.ranges.newest() > glsn && above.deleted_at(self, key, at) > glsn;
        Ok(found.filter(|hit| !is_deleted(hit.glsn())))
    }

    /// As [`View::get_beneath`], also if a range deletion hides the version.
    fn version_beneath(
        self: &Arc<Self>,
        above: &mut Above,
        key: &[u8],
        at: Glsn,
    ) -> Result<Option<Hit>> {
        let (mut younger, mut missed) = (above.younger, above.missed);
        let mut found = above.found.take();
        let mut younger_in_runs = false;
        let mut in_runs = false;
        if found.is_none() {
            for run in &self.runs {
                let answer = lookup_in_run(run, key, at, Touch::Point)?;
                younger_in_runs |= answer.younger;
                missed |= answer.missed;
                found = answer.found;
                if found.is_some() {
                    in_runs = true;
                    break;
                }
            }
            younger |= younger_in_runs;
        }
        if younger || (found.is_none() && at < self.limits.deletions_moved) {
            let in_current = found.as_ref().map(Place::glsn);
            found = self.get_in_history(key, at, found, &mut missed)?;
            in_runs &= in_current == found.as_ref().map(Place::glsn);
        }
        let newest_in_runs = in_runs && !younger_in_runs;
        Ok(found.map(|place| Hit { place, newest_in_runs, missed }))
    }

    /// The commit that wrote or deleted `key` last as of `at`. If several range deletions delete
    /// one version, the oldest counts; compaction keeps that one with the version. `None` if there
    /// is no version, or compaction has dropped it.
    ///
    /// # Errors
    /// As for [`View::get`].
    pub(crate) fn written_by(self: &Arc<Self>, key: &[u8], at: Glsn) -> Result<Option<Glsn>> {
        let mut above = self.get_above(key, at)?;
        let place = match self.version_beneath(&mut above, key, at)? {
            Some(hit) => Some(hit.place),
            // The deletion of the key may be in history runs, with the version that it hides.
            None => self.get_in_history(key, at, None, &mut false)?,
        };
        Ok(place.map(|place| {
            let deletion = match place.stored() {
                Stored::Deleted => None,
                _ => self.ranges.deletion_of(key, place.glsn(), Glsn::MAX),
            };
            deletion.filter(|deletion| *deletion <= at).unwrap_or(place.glsn())
        }))
    }

    /// The younger of `found` and the version of `key` in history as of `at`. Sets `missed` if some
    /// page was not in memory.
    fn get_in_history(
        &self,
        key: &[u8],
        at: Glsn,
        mut found: Option<Place>,
        missed: &mut bool,
    ) -> Result<Option<Place>> {
        for run in self.history.iter().filter(|run| run.min_glsn() <= at) {
            let best = found.as_ref().map_or(Glsn::NONE, Place::glsn);
            if run.max_glsn() <= best {
                continue;
            }
            let Some(table) = run.table_of(key).filter(|table| table.info.min_glsn <= at) else {
                continue;
            };
            let (answer, missed_page) = table.find_as_of(key, at, Touch::Point)?;
            *missed |= missed_page;
            if let Some(version) = answer
                && version.glsn > best
            {
                found = Some(Place::Page(version));
            }
        }
        Ok(found)
    }

    /// Returns whether the current runs have any version of `key`, and the newest one that is not
    /// younger than `at`. Memtables are left out, because their versions may not be durable.
    pub(crate) fn in_runs(&self, key: &[u8], at: Glsn) -> Result<(bool, Option<Glsn>)> {
        let mut any = false;
        for run in &self.runs {
            let Some(table) = run.table_of(key) else { continue };
            let lookup = table.lookup(key, at, Touch::Scan)?;
            any |= lookup.newest.is_some();
            if let Some(found) = lookup.found {
                return Ok((true, Some(found.glsn)));
            }
        }
        Ok((any, None))
    }

    /// The newest version of `key` in current and history runs that is not younger than `at`.
    pub(crate) fn newest_until(&self, key: &[u8], at: Glsn) -> Result<Option<Glsn>> {
        let (_, in_runs) = self.in_runs(key, at)?;
        Ok(in_runs.max(self.newest_in_history(key, at)?))
    }

    /// Whether history runs have a version of `key` that is not younger than `at`.
    pub(crate) fn in_history(&self, key: &[u8], at: Glsn) -> Result<bool> {
        for table in self.history.iter().filter_map(|run| run.table_of(key)) {
            if table.find_as_of(key, at, Touch::Scan)?.0.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The newest version of `key` in history runs that is not younger than `at`.
    pub(crate) fn newest_in_history(&self, key: &[u8], at: Glsn) -> Result<Option<Glsn>> {
        let mut newest = None;
        for table in self.history.iter().filter_map(|run| run.table_of(key)) {
            let (found, _) = table.find_as_of(key, at, Touch::Scan)?;
            newest = newest.max(found.map(|found| found.glsn));
        }
        Ok(newest)
    }

    /// The youngest version of `key` that is younger than `after`.
    ///
    /// A deletion that compaction dropped is not found. Nevertheless, no change of data that an
    /// open transaction has read is missed. The transaction's snapshot is a retained moment, and
    /// compaction keeps a deletion that hides a version which a retained moment sees. So if the
    /// deletion was dropped, the key had no value in the snapshot, and has none now.
    pub(crate) fn changed(&self, key: &[u8], after: Glsn) -> Result<Option<Glsn>> {
        if self.ranges.newest() > after {
            let deleted_at = self.ranges.newest_over(key, Glsn::MAX);
            if deleted_at > after {
                return Ok(Some(deleted_at));
            }
        }
        for source in self.sources().filter(|source| source.max_glsn() > after) {
            if let Some(newest) = source.newest(key)? {
                return Ok(Some(newest).filter(|&newest| newest > after));
            }
        }
        let mut newest = None;
        if after < self.limits.deletions_moved {
            for run in self.history.iter().filter(|run| run.max_glsn() > after) {
                newest = newest.max(Source::Run(run).newest(key)?.filter(|&glsn| glsn > after));
            }
            if newest.is_some() {
                hit(Border::MovedDeletionConflict);
            }
        }
        Ok(newest)
    }

    /// A version younger than `after` in a range of keys, if there is one: its key and GLSN.
    /// Searches only sources with such versions.
    pub(crate) fn changed_in(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        after: Glsn,
    ) -> Result<Option<(Vec<u8>, Glsn)>> {
        self.changed_where(lower, upper, after, |_| true)
    }

    /// As [`View::changed_in`], but only for keys for which `is_wanted` returns true.
    pub(crate) fn changed_where(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        after: Glsn,
        is_wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<Option<(Vec<u8>, Glsn)>> {
        let range = (lower, upper);
        if self.ranges.newest() > after {
            let deleted = self.ranges.within(range).find(|deleted| deleted.glsns[0] > after);
            if let Some(deleted) = deleted {
                let key = match lower {
                    Bound::Included(key) | Bound::Excluded(key) => key.max(&deleted.first),
                    Bound::Unbounded => &deleted.first,
                };
                return Ok(Some((key.to_vec(), deleted.glsns[0])));
            }
        }
        // Ask the gaps first, because a search of the memtables visits every key of the range.
        if self.memtables().any(|memtable| memtable.max_glsn() > after)
            && self.gaps.is_unwritten(range, after)
        {
            return Ok(None);
        }
        for source in self.sources().filter(|source| source.max_glsn() > after) {
            let changed = match source {
                Source::Memtable(memtable) => {
                    first_change(vec![Cursor::memtable(memtable)], range, after, &is_wanted)?
                }
                Source::Run(run) => change_in_run(run, range, after, &is_wanted)?,
            };
            if changed.is_some() {
                return Ok(changed);
            }
        }
        if after < self.limits.deletions_moved {
            for run in self.history.iter().filter(|run| run.max_glsn() > after) {
                let changed = change_in_run(run, range, after, &is_wanted)?;
                if changed.is_some() {
                    hit(Border::MovedDeletionConflict);
                    return Ok(changed);
                }
            }
        }
        Ok(None)
    }

    /// Whether a memtable other than `taken`, which a run is replacing, may hold a version that a
    /// deletion at `glsn` hides.
    pub(crate) fn has_unflushed_before(&self, glsn: Glsn, taken: Option<&Closed>) -> bool {
        let is_taken = |memtable: &Arc<Memtable>| {
            matches!(taken, Some(Closed { content: Content::Memtable(taken), .. })
                if Arc::ptr_eq(taken, memtable))
        };
        self.memtables().any(|memtable| memtable.min_glsn() < glsn && !is_taken(memtable))
    }

    /// Whether a keyspace can be read at some moment from `glsn` on and before `superseded_by`.
    pub(crate) fn is_seen(&self, keyspace: u32, glsn: Glsn, superseded_by: Glsn) -> bool {
        self.limits.is_seen(keyspace, glsn, superseded_by)
    }

    /// The oldest GLSN from which a keyspace can be read at every moment.
    pub(crate) fn oldest_readable_in(&self, keyspace: u32) -> Glsn {
        self.limits.oldest_readable_in(keyspace)
    }

    /// The youngest dropped deletion of a keyspace. Younger deletions may still exist.
    pub(crate) fn deletions_dropped_in(&self, keyspace: u32) -> Glsn {
        self.limits.deletions_dropped_in(keyspace)
    }
}

/// The newest commit in these runs.
pub(crate) fn newest_in(runs: &[Arc<Run>]) -> Glsn {
    runs.iter().map(|run| run.max_glsn()).max().unwrap_or(Glsn::NONE)
}

/// Maximum number of runs that may hold one key, given the first and the last key of each.
pub(crate) fn depth<'r>(spans: impl Iterator<Item = (&'r [u8], &'r [u8])>) -> usize {
    let (mut firsts, mut lasts): (Vec<_>, Vec<_>) = spans.unzip();
    firsts.sort_unstable();
    lasts.sort_unstable();
    // The number is greatest at the start of a run, where it is overlapped by all runs that began
    // before it and have not ended.
    let under =
        |(before, first): (usize, &&[u8])| before + 1 - lasts.partition_point(|last| last < first);
    firsts.iter().enumerate().map(under).max().unwrap_or(0)
}

fn change_in_run(
    run: &Run,
    range: KeyRange<'_>,
    after: Glsn,
    is_wanted: &impl Fn(&[u8]) -> bool,
) -> Result<Option<(Vec<u8>, Glsn)>> {
    for table in run.tables().iter().filter(|p| p.info.max_glsn > after && touches(p, range)) {
        let cursor = RunCursor::new(Arc::from([table.clone()]), Feed::Pool(Touch::Point));
        let changed = first_change(vec![Cursor::Run(Box::new(cursor))], range, after, is_wanted)?;
        if changed.is_some() {
            return Ok(changed);
        }
    }
    Ok(None)
}

/// The first version in a range that is younger than `after`, of a key that is wanted.
fn first_change(
    cursors: Vec<Cursor>,
    range: KeyRange<'_>,
    after: Glsn,
    is_wanted: &impl Fn(&[u8]) -> bool,
) -> Result<Option<(Vec<u8>, Glsn)>> {
    let mut merge = Merge::new(cursors, Direction::Forward);
    seek_lower(&mut merge, range.0)?;
    while let Some(version) = merge.top().filter(|version| !beyond(version.key, range.1)) {
        if version.glsn > after && is_wanted(version.key) {
            return Ok(Some((version.key.to_vec(), version.glsn)));
        }
        merge.advance()?;
    }
    Ok(None)
}

/// Moves to the start of a forward scan from `lower`.
pub(crate) fn seek_lower(merge: &mut Merge, lower: Bound<&[u8]>) -> Result<()> {
    match lower {
        Bound::Included(key) => merge.seek(key, Glsn::MAX),
        // No version has GLSN 0, so this is after all versions of the key.
        Bound::Excluded(key) => merge.seek(key, Glsn::NONE),
        Bound::Unbounded => merge.seek_end(),
    }
}

/// Moves to the start of a backward scan from `upper`.
pub(crate) fn seek_upper(merge: &mut Merge, upper: Bound<&[u8]>) -> Result<()> {
    match upper {
        Bound::Included(key) => merge.seek_before(key, Glsn::NONE),
        Bound::Excluded(key) => merge.seek_before(key, Glsn::MAX),
        Bound::Unbounded => merge.seek_end(),
    }
}

/// Whether a key is after the range.
#[inline]
pub(crate) fn beyond(key: &[u8], upper: Bound<&[u8]>) -> bool {
    // Most ranges end with their keyspace, which the first bytes show.
    if let Bound::Included(bound) | Bound::Excluded(bound) = upper
        && let Some((keyspace, _)) = IndexKey::new(key).split()
        && keyspace < IndexKey::new(bound).keyspace()
    {
        return false;
    }
    match upper {
        Bound::Included(bound) => key > bound,
        Bound::Excluded(bound) => key >= bound,
        Bound::Unbounded => false,
    }
}

/// Whether a key is before the range.
pub(crate) fn in_front(key: &[u8], lower: Bound<&[u8]>) -> bool {
    match lower {
        Bound::Included(bound) => key < bound,
        Bound::Excluded(bound) => key <= bound,
        Bound::Unbounded => false,
    }
}

/// Whether a table may hold keys of a range.
pub(crate) fn touches(table: &Table, range: KeyRange<'_>) -> bool {
    !in_front(&table.info.last_key, range.0) && !beyond(&table.info.first_key, range.1)
}

/// The tables of a run that may hold keys of a range.
pub(crate) fn tables_in<'r>(run: &'r Run, range: KeyRange<'_>) -> &'r [Table] {
    let all = run.tables();
    let start = all.partition_point(|table| in_front(&table.info.last_key, range.0));
    let end = all.partition_point(|table| !beyond(&table.info.first_key, range.1));
    all.get(start..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_after_a_range_in_byte_order() {
        let keys: [&[u8]; 9] =
            [b"", b"a", b"aaa", b"aaaa", b"aaaaa", b"aaab", b"aaaba", b"b", b"baaa"];
        for key in keys {
            for bound in keys {
                assert_eq!(beyond(key, Bound::Included(bound)), key > bound);
                assert_eq!(beyond(key, Bound::Excluded(bound)), key >= bound);
            }
            assert!(!beyond(key, Bound::Unbounded));
        }
    }

    #[test]
    fn depth_counts_overlapping_runs_only() {
        let of = |spans: &[(&'static str, &'static str)]| {
            depth(spans.iter().map(|(first, last)| (first.as_bytes(), last.as_bytes())))
        };
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&[("a", "b"), ("c", "d"), ("e", "e")]), 1);
        assert_eq!(of(&[("c", "d"), ("a", "c"), ("d", "f")]), 2, "the ends are inclusive");
        assert_eq!(of(&[("a", "z"), ("b", "c"), ("d", "e"), ("f", "g")]), 2);
        assert_eq!(of(&[("a", "z"), ("a", "z"), ("a", "a")]), 3);
        assert_eq!(of(&[("a", "m"), ("b", "f"), ("c", "d"), ("e", "z"), ("n", "o")]), 3);
    }
}
