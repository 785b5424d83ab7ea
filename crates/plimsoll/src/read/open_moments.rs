//! The registry of open snapshots and of tags. Versions that they see are retained.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use plimsoll_disk::fork::Origin;
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Budget, Kind, Lease};

use crate::borders::{Border, hit};
use crate::index::env::moment_set::{MomentSet, PINS_MAX};
use crate::types::as_of::AsOf;
use crate::types::branch_registry::Branches;
use crate::types::error::{Error, Result};
use crate::types::lock::lock;
use crate::types::tags::Tags;
use crate::types::thread_part::{PARTS, part_of_thread};

/// The most bytes that one open snapshot costs.
const SNAPSHOT_BYTES: u64 = 128;

/// Snapshots are charged to the budget in groups of this many: opening one is part of every read.
const CHARGED_TOGETHER: usize = 16;

/// The open moments, in several parts: each thread opens its snapshots in one of them.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    parts: [Arc<Part>; PARTS],
    /// Times of open moments whose entries the log may no longer hold, in microseconds since 1970
    /// UTC. They are few: beyond [`PINS_MAX`] moments, the younger ones pin the log.
    times: Mutex<BTreeMap<Glsn, u64>>,
    /// The tags, whose moments stay readable without being open.
    pub(crate) tags: Tags,
    /// The branches, whose forks stay readable without being open.
    pub(crate) branches: Branches,
}

/// The moments that some of the threads have opened. Each part has its own cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Part {
    open: Mutex<Open>,
    origin: Origin,
}

#[derive(Debug, Default)]
struct Open {
    /// The newest moment that was ever opened in this part, and the number of snapshots open at it.
    /// Usually no other moment is open.
    newest: (Glsn, u64),
    /// The number of snapshots open at each older moment.
    older: BTreeMap<Glsn, u64>,
    /// For each moment, the number of its snapshots that also retain every later moment. `newest`
    /// and `older` count these snapshots as well.
    floors: BTreeMap<Glsn, u64>,
    /// The number of charged snapshots.
    charged: usize,
    /// One lease for every [`CHARGED_TOGETHER`] snapshots. One lease is kept if no snapshot is
    /// open.
    leases: Vec<Lease>,
}

/// Keeps a moment open until it is dropped.
#[derive(Debug)]
pub(crate) struct OpenMoment {
    at: Glsn,
    /// The time by which reads judge whether a value has expired. Final before the first read.
    micros: AtomicU64,
    part: Arc<Part>,
    is_charged: bool,
    /// Whether every later moment is retained as well.
    is_floor: bool,
    /// The error that every read at this moment returns, if there is one.
    unreadable: OnceLock<Box<Error>>,
    /// Whether the commits up to this moment are not applied yet.
    is_unapplied: AtomicBool,
}

impl Snapshots {
    fn part(&self) -> &Arc<Part> {
        &self.parts[part_of_thread()]
    }

    /// Opens the moment that `choose` returns. `choose` is called under a lock that
    /// [`Snapshots::retained`] takes, so that a set computed at the same time contains the moment.
    pub(crate) fn open(
        &self,
        budget: &Budget,
        choose: impl FnOnce() -> AsOf<'static>,
    ) -> Result<OpenMoment> {
        self.open_charged(budget, false, choose)
    }

    /// As [`Snapshots::open`], but also retains every later moment, for a caller that reads these,
    /// too.
    pub(crate) fn open_floor(
        &self,
        budget: &Budget,
        choose: impl FnOnce() -> AsOf<'static>,
    ) -> Result<OpenMoment> {
        self.open_charged(budget, true, choose)
    }

    fn open_charged(
        &self,
        budget: &Budget,
        is_floor: bool,
        choose: impl FnOnce() -> AsOf<'static>,
    ) -> Result<OpenMoment> {
        hit(Border::MomentAsked);
        let part = self.part();
        let mut open = part.lock();
        if open.charged == open.leases.len() * CHARGED_TOGETHER {
            // Charge outside the lock, because the budget may have to free memory.
            drop(open);
            let lease = budget.lease(Kind::Metadata, CHARGED_TOGETHER as u64 * SNAPSHOT_BYTES)?;
            open = part.lock();
            open.leases.push(lease);
        }
        open.charged += 1;
        Ok(part.open_in(open, (true, is_floor), choose))
    }

    /// As [`Snapshots::open`], without a charge: for the few snapshots that the store itself opens.
    pub(crate) fn open_unleased(&self, choose: impl FnOnce() -> AsOf<'static>) -> OpenMoment {
        let part = self.part();
        part.open_in(part.lock(), (false, false), choose)
    }

    /// As [`Snapshots::open_floor`], without a charge.
    pub(crate) fn open_floor_unleased(&self, choose: impl FnOnce() -> AsOf<'static>) -> OpenMoment {
        let part = self.part();
        part.open_in(part.lock(), (false, true), choose)
    }

    /// The oldest open moment, or the result of `newest` if that is older or no moment is open.
    pub(crate) fn oldest(&self, newest: impl FnOnce() -> Glsn) -> Glsn {
        // Lock all parts at once: a moment that is open in one part may be opened in another and
        // then closed in the first.
        let parts = self.parts.each_ref().map(|part| part.lock());
        parts.iter().filter_map(|open| open.oldest()).fold(newest(), Glsn::min)
    }

    /// The moments that the open snapshots need, and every moment from `newest` on, so that later
    /// snapshots are included as well.
    pub(crate) fn retained(&self, newest: impl FnOnce() -> Glsn) -> MomentSet {
        // Lock all parts at once, as above.
        let parts = self.parts.each_ref().map(|part| part.lock());
        let floors = parts.iter().filter_map(|open| open.floors.keys().next().copied());
        let floor = floors.fold(newest(), Glsn::min);
        // Take one more than the maximum; the last becomes the floor.
        let pins = parts.iter().flat_map(|open| open.moments().take(PINS_MAX + 1));
        MomentSet::bounded(floor, pins)
    }

    /// Keeps the times of the open moments below `until`, up to which the log is about to be freed.
    /// `time_of` reads the time of a commit from the log.
    pub(crate) fn keep_times(&self, until: Glsn, time_of: impl Fn(Glsn) -> Option<u64>) {
        let moments = |part: &Arc<Part>| part.lock().moments().collect::<Vec<_>>();
        let open: BTreeSet<Glsn> = self.parts.iter().flat_map(moments).collect();
        let mut times = lock(&self.times);
        // A time that was kept earlier stays as long as its moment is open, because the log may no
        // longer have it.
        times.retain(|at, _| open.contains(at));
        for at in open.into_iter().take_while(|at| *at < until) {
            if let Entry::Vacant(entry) = times.entry(at)
                && let Some(time) = time_of(at)
            {
                entry.insert(time);
            }
        }
    }

    /// The time of a commit; `None` if it was not kept and no tag records it.
    pub(crate) fn kept_time(&self, at: Glsn) -> Option<u64> {
        let kept = lock(&self.times).get(&at).copied();
        kept.or_else(|| self.tags.of(at).filter(|tag| tag.is_exact).map(|tag| tag.micros))
    }

    /// The time by which reads at a commit judge expiries, if it was kept or a tag has it.
    pub(crate) fn expiry_time(&self, at: Glsn) -> Option<u64> {
        self.kept_time(at).or_else(|| self.tags.of(at).map(|tag| tag.micros))
    }

    /// The number of open snapshots.
    pub(crate) fn count(&self) -> u64 {
        self.parts.iter().map(|part| part.lock().count()).sum()
    }
}

impl Part {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().expect("no code under this lock panics")
    }

    fn open_in(
        self: &Arc<Self>,
        mut open: MutexGuard<'_, Open>,
        (is_charged, is_floor): (bool, bool),
        choose: impl FnOnce() -> AsOf<'static>,
    ) -> OpenMoment {
        let as_of = choose();
        let at = as_of.glsn;
        open.add(at);
        if is_floor {
            *open.floors.entry(at).or_default() += 1;
        }
        OpenMoment {
            at,
            micros: AtomicU64::new(as_of.micros()),
            part: Arc::clone(self),
            is_charged,
            is_floor,
            unreadable: OnceLock::new(),
            is_unapplied: AtomicBool::new(false),
        }
    }
}

impl Open {
    fn add(&mut self, at: Glsn) {
        if at > self.newest.0 {
            let (before, count) = std::mem::replace(&mut self.newest, (at, 0));
            if count > 0 {
                self.older.insert(before, count);
            }
        }
        if at == self.newest.0 {
            self.newest.1 += 1
        } else {
            *self.older.entry(at).or_default() += 1
        }
    }

    fn remove(&mut self, at: Glsn) {
        if at == self.newest.0 {
            self.newest.1 -= 1;
        } else {
            remove_one(&mut self.older, at);
        }
    }

    /// The open moments, ascending.
    fn moments(&self) -> impl Iterator<Item = Glsn> {
        let newest = Some(self.newest.0).filter(|_| self.newest.1 > 0);
        self.older.keys().copied().chain(newest)
    }

    fn oldest(&self) -> Option<Glsn> {
        self.moments().next()
    }

    fn count(&self) -> u64 {
        self.newest.1 + self.older.values().sum::<u64>()
    }
}

/// Lowers a count, and removes it if it becomes zero.
fn remove_one(counts: &mut BTreeMap<Glsn, u64>, at: Glsn) {
    if let Some(count) = counts.get_mut(&at) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&at);
        }
    }
}

impl OpenMoment {
    /// A moment that is not opened, for a forked child.
    pub(crate) fn unopened(at: AsOf<'static>) -> Self {
        let part = Arc::new(Part::default());
        part.open_in(part.lock(), (false, false), || at)
    }

    /// The moment.
    pub(crate) fn at(&self) -> Glsn {
        self.at
    }

    /// The moment with its time, or the error if it cannot be read.
    pub(crate) fn readable(&self) -> Result<AsOf<'static>> {
        self.unreadable.get().map_or_else(|| Ok(self.as_of()), |error| Err(Error::clone(error)))
    }

    /// The moment with its time.
    pub(crate) fn as_of(&self) -> AsOf<'static> {
        // Relaxed: final before the first read, which synchronizes on `is_unapplied`.
        AsOf::new(self.at, self.micros.load(Ordering::Relaxed))
    }

    /// Raises the time to that of the moment's commit, when that becomes known.
    pub(crate) fn raise_time(&self, micros: u64) {
        self.micros.fetch_max(micros, Ordering::Relaxed);
    }

    /// Ends the delay of [`OpenMoment::defer_apply`]. If the commits up to this moment could not be
    /// applied, every read at it fails from now on, even if they can be applied later: a read would
    /// then return an older state than existed when the moment was opened.
    pub(crate) fn shows(&self, taken_in: Result<()>) {
        if let Err(error) = taken_in {
            let _ = self.unreadable.set(Box::new(error));
        }
        // Release: a thread that reads this value also finds the error.
        self.is_unapplied.store(false, Ordering::Release);
    }

    /// The commits up to this moment are applied later: [`OpenMoment::shows`] is called before the
    /// first read.
    pub(crate) fn defer_apply(&self) {
        self.is_unapplied.store(true, Ordering::Relaxed);
    }

    /// Whether the commits up to this moment are applied, or every read at it fails.
    pub(crate) fn is_applied(&self) -> bool {
        !self.is_unapplied.load(Ordering::Acquire)
    }
}

impl Drop for OpenMoment {
    fn drop(&mut self) {
        if self.part.origin.is_foreign() {
            // A thread that does not exist in the child may hold the lock.
            return;
        }
        let mut open = self.part.lock();
        open.remove(self.at);
        if self.is_floor {
            remove_one(&mut open.floors, self.at);
        }
        open.charged -= usize::from(self.is_charged);
        // Hysteresis, so that opening and dropping a snapshot at the threshold does not charge each
        // time.
        let spare = open.charged + 2 * CHARGED_TOGETHER <= open.leases.len() * CHARGED_TOGETHER;
        let lease = if spare { open.leases.pop() } else { None };
        drop(open);
        drop(lease);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use plimsoll_memory::budget::Backing;

    use super::*;

    #[test]
    fn open_snapshots_are_charged_and_their_charge_is_released() {
        let budget = Budget::new(1 << 20, Backing::Heap).unwrap();
        let charged = || budget.usage().of(Kind::Metadata);
        let snapshots = Arc::new(Snapshots::default());
        let open = |n: u64| snapshots.open(&budget, || AsOf::unexpiring(Glsn(n))).unwrap();
        let opened: Vec<_> = (0..1000).map(open).collect();
        assert!(charged() >= 1000 * SNAPSHOT_BYTES);
        assert_eq!(snapshots.count(), 1000);
        drop(opened);
        assert!(charged() <= 2 * CHARGED_TOGETHER as u64 * SNAPSHOT_BYTES);
        assert_eq!(snapshots.count(), 0);
        // A full budget rejects a snapshot, and none is open then.
        let rest = budget.lease(Kind::Sort, budget.free_bytes()).unwrap();
        let mut opened = Vec::new();
        while let Ok(moment) = snapshots.open(&budget, || AsOf::unexpiring(Glsn(1))) {
            opened.push(moment);
        }
        assert_eq!(snapshots.count(), opened.len() as u64);
        drop((opened, rest));
        open(2);
    }

    #[test]
    fn snapshots_of_other_threads_count() {
        let snapshots = Snapshots::default();
        let opened: Vec<_> = std::thread::scope(|scope| {
            let open = |n: u64| {
                scope.spawn({
                    let snapshots = &snapshots;
                    move || snapshots.open_unleased(|| AsOf::unexpiring(Glsn(n)))
                })
            };
            let threads: Vec<_> = (5..5 + 2 * PARTS as u64).map(open).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!((snapshots.oldest(|| Glsn(50)), snapshots.count()), (Glsn(5), 2 * PARTS as u64));
        let rest: Vec<_> = opened.into_iter().skip(3).collect();
        assert_eq!(
            (snapshots.oldest(|| Glsn(50)), snapshots.count()),
            (Glsn(8), rest.len() as u64)
        );
        drop(rest);
        assert_eq!((snapshots.oldest(|| Glsn(50)), snapshots.count()), (Glsn(50), 0));
    }

    #[test]
    fn a_moment_passed_between_threads_stays_the_oldest() {
        use std::sync::mpsc::{Receiver, Sender, channel};
        let snapshots = Snapshots::default();
        let over = std::sync::atomic::AtomicBool::new(false);
        let hand_over = |from: Receiver<OpenMoment>, to: Sender<OpenMoment>| {
            for turn in 0..20_000 {
                over.fetch_or(turn == 19_000, Ordering::SeqCst);
                let Ok(theirs) = from.recv() else { break };
                let own = snapshots.open_unleased(|| theirs.as_of());
                drop(theirs);
                if to.send(own).is_err() {
                    break;
                }
            }
        };
        let ((to_one, from_other), (to_other, from_one)) = (channel(), channel());
        let _always = to_one.send(snapshots.open_unleased(|| AsOf::unexpiring(Glsn(5))));
        std::thread::scope(|scope| {
            scope.spawn(|| hand_over(from_other, to_other));
            scope.spawn(|| hand_over(from_one, to_one));
            while !over.load(Ordering::SeqCst) {
                let oldest = snapshots.oldest(|| Glsn(100));
                assert!(oldest == Glsn(5) || over.load(Ordering::SeqCst), "{oldest}");
            }
        });
    }

    #[test]
    fn open_moments_are_retained_singly_except_floors() {
        let budget = Budget::new(1 << 20, Backing::Heap).unwrap();
        let snapshots = Snapshots::default();
        let retained = || {
            let set = snapshots.retained(|| Glsn(50));
            (set.floor.0, set.pins.iter().map(|at| at.0).collect::<Vec<_>>())
        };
        let open = |n| snapshots.open_unleased(|| AsOf::unexpiring(Glsn(n)));
        let _pins = [3, 9, 9, 5, 50, 60].map(open);
        assert_eq!(retained(), (50, vec![3, 5, 9]));
        let floors =
            [9, 7, 7].map(|n| snapshots.open_floor(&budget, || AsOf::unexpiring(Glsn(n))).unwrap());
        assert_eq!(retained(), (7, vec![3, 5]));
        let [at_9, at_7, again] = floors;
        drop(at_7);
        assert_eq!(retained(), (7, vec![3, 5]));
        drop(again);
        assert_eq!(retained(), (9, vec![3, 5]));
        drop(at_9);
        assert_eq!(retained(), (50, vec![3, 5, 9]));
        // If there are more moments than are retained singly, a floor retains the younger ones.
        let many: Vec<_> = (10..10 + PINS_MAX as u64).map(open).collect();
        assert_eq!((retained().0, retained().1.len()), (7 + PINS_MAX as u64, PINS_MAX));
        drop(many);
        assert_eq!(retained(), (50, vec![3, 5, 9]));
    }

    #[test]
    fn the_oldest_open_moment_is_known_until_it_is_dropped() {
        let snapshots = Arc::new(Snapshots::default());
        let old = snapshots.open_unleased(|| AsOf::unexpiring(Glsn(3)));
        let again = snapshots.open_unleased(|| AsOf::unexpiring(Glsn(3)));
        let young = snapshots.open_unleased(|| AsOf::unexpiring(Glsn(9)));
        let between = snapshots.open_unleased(|| AsOf::unexpiring(Glsn(5)));
        drop(between);
        assert_eq!((snapshots.oldest(|| Glsn(20)), snapshots.count()), (Glsn(3), 3));
        drop((old, again));
        assert_eq!(snapshots.oldest(|| Glsn(20)), Glsn(9));
        drop(young);
        assert_eq!(snapshots.oldest(|| Glsn(20)), Glsn(20));
    }
}
