//! An iterator over the keys of one snapshot.

use std::ops::Bound;
use std::sync::{Arc, Weak};

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::OutOfBudget;

use crate::borders::{Border, hit};
use crate::index::gaps::list::successor;
use crate::index::gaps::{PUBLISH_EACH, PUBLISH_FROM};
use crate::index::iter::attached::{ATTACHED, Attached, STEPS_MAX, merge_of};
use crate::index::iter::bounds::{Bounds, Place, rest_of};
use crate::index::iter::handle::Detachable;
use crate::index::iter::kept_cursors::KeptCursors;
use crate::index::iter::passed::Passed;
use crate::index::sources::merge::{Cursor, Direction, Merge};
use crate::index::sources::source::{Run, Source};
use crate::index::sources::view::{
    KeyRange, OwnRange, View, beyond, in_front, seek_lower, seek_upper, tables_in,
};
use crate::types::as_of::AsOf;
use crate::types::error::Result;
use crate::types::version::{Stored, Version};

/// An iterator over keys as of one snapshot. The caller keeps the key that was last returned or
/// examined, and passes it to each step.
#[derive(Debug)]
pub(crate) struct Visible {
    attached: Option<Attached>,
    /// The cursors that it is attached with, and keeps when it is revoked.
    kept: Option<Box<KeptCursors>>,
    bounds: Bounds,
    at: Glsn,
    /// The time by which it judges whether a value has expired.
    micros: u64,
    /// Whether it has passed a value that had expired.
    has_passed_expired: bool,
    direction: Direction,
    place: Place,
    /// For a backward scan: the passed version that may be the result.
    held: Held,
    passed: Passed,
}

/// A copy of a version. A backward scan has left a version by the time it is known to be the
/// newest.
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
        Stored::decode(&self.encoded).expect("`set` encoded it")
    }
}

impl Detachable for Visible {
    fn detach(&mut self) -> Option<Arc<View>> {
        let Attached { merge, view, .. } = self.attached.take()?;
        if let Some(kept) = &mut self.kept {
            kept.put_back(merge);
        }
        Some(view)
    }

    fn attach(&mut self, view: &Arc<View>, key: &[u8]) -> Result<()> {
        if self.attached.is_none() {
            if let Bound::Included(key) | Bound::Excluded(key) = self.bounds.lower() {
                view.check_readable(key, self.at)?;
            }
            if matches!(self.place, Place::At | Place::Past) {
                hit(Border::IteratorReattached);
            }
            let mut merge = self.kept.as_mut().map_or_else(Merge::default, |kept| kept.lend());
            merge.begin(self.direction);
            add_visible(
                &mut merge,
                view,
                rest_of(&self.bounds, self.place, self.direction, key),
                self.at,
            );
            self.attached = Some(Attached::new(view, merge));
            hit(Border::IteratorAttached);
        }
        Ok(())
    }

    fn is_attached(&self) -> bool {
        self.attached.is_some()
    }

    fn attached_bytes(&self) -> usize {
        self.attached.as_ref().map_or(0, Attached::heap_bytes)
    }

    fn kept_bytes(&self) -> usize {
        let kept = self.kept.as_ref().map_or(0, |kept| kept.heap_bytes());
        size_of::<Self>()
            + self.bounds.heap_bytes()
            + self.held.encoded.capacity()
            + self.passed.edge.capacity()
            + kept
    }
}

impl Visible {
    /// An iterator that is not attached yet.
    pub(crate) fn new(range: OwnRange, at: AsOf<'_>, direction: Direction) -> Self {
        let (held, passed) = (Held::default(), Passed::default());
        Self {
            attached: None,
            kept: None,
            bounds: Bounds::new(range),
            at: at.glsn,
            micros: at.micros(),
            has_passed_expired: false,
            direction,
            place: Place::Before,
            held,
            passed,
        }
    }

    /// Whether it has passed a value that had expired.
    pub(crate) fn has_passed_expired(&self) -> bool {
        self.has_passed_expired
    }

    /// Its range. The bound at which it began is exact only until its first step.
    pub(crate) fn range(&self) -> OwnRange {
        self.bounds.copy()
    }

    /// The same iterator with cursors that it keeps when revoked, until [`Visible::take_kept`].
    pub(crate) fn with(self, kept: Box<KeptCursors>) -> Self {
        Self { kept: Some(kept), ..self }
    }

    /// Raises the charge of the cursors that it keeps to `bytes`.
    ///
    /// # Errors
    /// [`OutOfBudget`]; the charge is unchanged.
    pub(crate) fn cover(&mut self, bytes: usize) -> Result<(), OutOfBudget> {
        self.kept.as_mut().map_or(Ok(()), |kept| kept.cover(bytes))
    }

    /// Releases the sources and returns the kept cursors.
    pub(crate) fn take_kept(&mut self) -> Option<Box<KeptCursors>> {
        drop(self.detach());
        self.kept.take()
    }

    /// The view that it is attached in.
    pub(crate) fn view(&self) -> Weak<View> {
        self.attached.as_ref().map_or_else(Weak::new, |attached| Arc::downgrade(&attached.view))
    }

    /// The next key's version, borrowed until the next call. `key` receives the key and must hold
    /// the key that the last call left there. The iterator must be attached.
    pub(crate) fn next<'a>(&'a mut self, key: &'a mut Vec<u8>) -> Result<Option<Version<'a>>> {
        Ok(if self.step(key)? { self.current(key) } else { None })
    }

    /// Moves to the next key like [`Visible::next`]; false at the end. [`Visible::inline_value`]
    /// and [`Visible::current`] return its value.
    pub(crate) fn step(&mut self, key: &mut Vec<u8>) -> Result<bool> {
        if self.place == Place::Done {
            return Ok(false);
        }
        self.passed.clear();
        let found = match self.direction {
            Direction::Forward => self.find_forward(key),
            Direction::Backward => self.find_backward(key),
        };
        if let Ok(any) = found
            && self.passed.dead >= PUBLISH_FROM
        {
            self.publish_gap(any.then_some(key));
        }
        match found {
            Ok(true) => {
                self.place = Place::Past;
                self.bounds.pass(self.direction);
            }
            Ok(false) => self.place = Place::Done,
            Err(_) => {
                if let Some(attached) = &mut self.attached {
                    attached.is_placed = false;
                }
            }
        }
        found
    }

    /// The value of the key that [`Visible::step`] moved to if it is inline. Cheaper than the
    /// version.
    #[inline]
    pub(crate) fn inline_value(&self) -> Option<&[u8]> {
        match self.direction {
            Direction::Forward => self.attached.as_ref()?.merge.top_inline_value(),
            Direction::Backward => self.held.stored().inline_value(),
        }
    }

    /// The version of the key that [`Visible::step`] moved to.
    pub(crate) fn current<'a>(&'a self, key: &'a [u8]) -> Option<Version<'a>> {
        match self.direction {
            Direction::Forward => self.attached.as_ref()?.merge.top(),
            Direction::Backward => {
                Some(Version { key, glsn: self.held.glsn, stored: self.held.stored() })
            }
        }
    }

    /// Continues at `to` (forward) or directly before it (backward). The caller knows that no key
    /// in between is wanted. `key` receives `to`.
    pub(crate) fn skip(&mut self, key: &mut Vec<u8>, to: &[u8]) {
        if self.place == Place::Done {
            return;
        }
        key.clear();
        key.extend_from_slice(to);
        self.place = match self.direction {
            Direction::Forward => Place::At,
            Direction::Backward => Place::Past,
        };
        self.bounds.pass(self.direction);
        if let Some(attached) = &mut self.attached {
            attached.is_placed = false;
        }
    }

    /// Publishes the interval that was passed before `key` was found; `None`: up to the end of the
    /// range.
    fn publish_gap(&self, key: Option<&Vec<u8>>) {
        let gaps = &self.attached.as_ref().expect(ATTACHED).view.gaps;
        let (at, Passed { dead, edge, .. }) = (self.at, &self.passed);
        let dead = dead % PUBLISH_EACH;
        match (self.direction, key) {
            (Direction::Forward, Some(key)) => gaps.publish(edge, key, at, dead),
            (Direction::Backward, Some(key)) => gaps.publish(&successor(key), edge, at, dead),
            (Direction::Forward, None) => match self.bounds.upper() {
                Bound::Excluded(end) => gaps.publish(edge, end, at, dead),
                Bound::Included(last) => gaps.publish(edge, &successor(last), at, dead),
                Bound::Unbounded => {}
            },
            (Direction::Backward, None) => match self.bounds.lower() {
                Bound::Included(first) => gaps.publish(first, edge, at, dead),
                Bound::Excluded(before) => gaps.publish(&successor(before), edge, at, dead),
                Bound::Unbounded => {}
            },
        }
    }

    /// Moves the merge to where the iterator continues. Returns whether it was there already.
    fn was_placed(&mut self, key: &[u8]) -> Result<bool> {
        if self.attached.as_ref().expect(ATTACHED).is_placed {
            return Ok(true);
        }
        let attached = self.attached.as_mut().expect(ATTACHED);
        let range = rest_of(&self.bounds, self.place, self.direction, key);
        match self.direction {
            Direction::Forward => seek_lower(&mut attached.merge, range.0)?,
            Direction::Backward => seek_upper(&mut attached.merge, range.1)?,
        }
        attached.is_placed = true;
        Ok(false)
    }

    /// Moves to the next key's visible version; false at the end.
    fn find_forward(&mut self, key: &mut Vec<u8>) -> Result<bool> {
        if self.was_placed(key)? {
            self.skip_key_forward(key)?;
        }
        loop {
            let Some(version) = merge_of(&mut self.attached).top_head() else { return Ok(false) };
            if beyond(version.key, self.bounds.upper()) {
                return Ok(false);
            }
            let (glsn, is_deleted) = (version.glsn, version.is_deleted);
            let has_expired = version.expiry.is_some_and(|expiry| expiry.has_passed(self.micros));
            key.clear();
            key.extend_from_slice(version.key);
            self.place = Place::At;
            if glsn > self.at {
                // Moves to the wanted version of the key, or to the next key if there is none.
                self.skip_younger(key)?;
            } else {
                let attached = self.attached.as_mut().expect(ATTACHED);
                let is_in_range = glsn < attached.deleted_at(key, self.at);
                if !is_deleted && !is_in_range {
                    if !has_expired {
                        return Ok(true);
                    }
                    // A read of the same commit that began earlier may see the value, so the gap
                    // ends here.
                    self.passed.clear();
                    self.has_passed_expired = true;
                    self.skip_key_forward(key)?;
                    continue;
                }
                let asks = is_in_range && attached.enters_range();
                let gaps = &attached.view.gaps;
                let skip = self.passed.step_over(key, gaps, self.direction, self.at, asks);
                if let Some(to) = skip {
                    attached.merge.skip_to(&to, Glsn::MAX)?;
                    continue;
                }
                if is_in_range {
                    attached.skip_range(Direction::Forward)?;
                    if attached.merge.top_key() != Some(key) {
                        continue;
                    }
                }
                self.skip_key_forward(key)?;
            }
        }
    }

    /// Skips the remaining versions of `key`.
    fn skip_key_forward(&mut self, key: &[u8]) -> Result<()> {
        let merge = merge_of(&mut self.attached);
        for _ in 0..STEPS_MAX {
            if merge.skip_version(key)? {
                return Ok(());
            }
        }
        merge.skip_to(key, Glsn::NONE)
    }

    /// Skips the versions of `key` that are too young.
    fn skip_younger(&mut self, key: &[u8]) -> Result<()> {
        let merge = merge_of(&mut self.attached);
        for _ in 0..STEPS_MAX {
            merge.advance()?;
            if merge.top_head().is_none_or(|version| version.glsn <= self.at || version.key != key)
            {
                return Ok(());
            }
        }
        merge.skip_to(key, self.at)
    }

    /// Moves before the next key in a backward scan and holds its visible version; false at the
    /// end.
    fn find_backward(&mut self, key: &mut Vec<u8>) -> Result<bool> {
        self.was_placed(key)?;
        loop {
            let Some(version) = merge_of(&mut self.attached).top() else { return Ok(false) };
            if in_front(version.key, self.bounds.lower()) {
                return Ok(false);
            }
            key.clear();
            key.extend_from_slice(version.key);
            self.place = Place::At;
            if !self.hold_newest(key)? {
                continue;
            }
            let attached = self.attached.as_mut().expect(ATTACHED);
            let is_in_range = self.held.glsn < attached.deleted_at(key, self.at);
            if !is_in_range && self.held.stored() != Stored::Deleted {
                if self.held.stored().is_live(self.micros) {
                    return Ok(true);
                }
                // A read of the same commit that began earlier may see the value, so the gap ends
                // here.
                self.passed.clear();
                self.has_passed_expired = true;
                continue;
            }
            let asks = is_in_range && attached.enters_range();
            let gaps = &attached.view.gaps;
            let skip = self.passed.step_over(key, gaps, self.direction, self.at, asks);
            if let Some(to) = skip {
                attached.merge.seek_before(&to, Glsn::MAX)?;
            } else if is_in_range {
                attached.skip_range(Direction::Backward)?;
            }
        }
    }

    /// Skips all versions of `key`, oldest first, and holds the newest that is not too young.
    /// Returns whether there is one.
    fn hold_newest(&mut self, key: &[u8]) -> Result<bool> {
        let (at, held, merge) = (self.at, &mut self.held, merge_of(&mut self.attached));
        let mut any = false;
        for _ in 0..STEPS_MAX {
            let Some(version) = merge.top().filter(|version| version.key == key) else {
                return Ok(any);
            };
            if version.glsn <= at {
                held.set(version);
                any = true;
            }
            merge.advance()?;
        }
        merge.look_up_and_leave(key, at, |version| {
            held.set(version);
            any = true;
        })?;
        Ok(any)
    }
}

/// Adds cursors for the sources that may have a version visible at `at`, newer current sources
/// first.
fn add_visible(merge: &mut Merge, view: &View, range: KeyRange<'_>, at: Glsn) {
    let mut history_wanted = at < view.limits.deletions_moved;
    for source in view.sources() {
        let wanted = match source {
            Source::Memtable(memtable) => !memtable.is_empty(),
            Source::Run(run) => !tables_in(run, range).is_empty(),
        };
        history_wanted |= wanted && source.max_glsn() > at;
        if wanted && source.min_glsn() <= at {
            match source {
                Source::Memtable(memtable) => {
                    merge.add(Cursor::memtable(memtable), source.max_glsn())
                }
                Source::Run(run) => merge.add_run(run.tables(), source.max_glsn()),
            }
        }
    }
    let wanted = |run: &&Arc<Run>| {
        history_wanted && run.min_glsn() <= at && !tables_in(run, range).is_empty()
    };
    view.history.iter().filter(wanted).for_each(|run| merge.add_run(run.tables(), run.max_glsn()));
}
