//! Where walks sit between two calls, and how they are made to get up.
//!
//! A walk that has begun holds the sources of one moment: memtables, the files of runs, a page of each. Its user may leave it alone for
//! as long as they like, so all of this is held on revocable terms only:
//!
//! 1. Between two calls the walk lies in a slot that others can reach. Getting up drops everything but the walk's bounds, its moment and
//!    the place behind what it answered last. The next call sits down in the sources as they are then.
//! 2. Each exchange of sources (a flush, a step of compaction) makes all walks get up that sit in older ones: an idle one at once, one
//!    that is in the middle of a call at the end of it. So no idle walk holds a memtable that was flushed, or a file that was merged.
//! 3. Where the budget finds no room otherwise, all idle walks get up: the pages that they held can be evicted.
//!
//! Why no answer changes: what a walk answers for a key is a function of the key's versions up to its moment. While the moment is open
//! (`snapshots`), every later view holds these versions, or what decides between them. A walk goes strictly one way, and everything on
//! this side of the last key that it answered (or looked at and passed) is done with. So it may sit down in any later view strictly
//! behind that key, whichever way it goes. If a call failed while a key was looked at and not answered, it sits down *at* this key.
//!
//! Why no idle walk is forgotten: the number of the last exchange is raised after the view was exchanged and before the slots are
//! visited. A walk reads the number before it takes the view, and again after it has let go of its slot's lock at the end of a call. A
//! visit that finds the lock taken comes before the walk lets go of it, so the walk then reads the new number and gets up by itself.
//!
//! Locks: a slot's is held during a call, the list's for a few instructions. A visit only tries a slot's lock: it never waits for a walk.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError, Weak};

use plimsoll_memory::budget::Reclaim;
use plimsoll_memory::pool::Pool;

use crate::error::Result;
use crate::index::core::lock;
use crate::index::view::View;

/// A walk that can get up and sit down again.
pub(crate) trait Walk: Send {
    /// Drops all that it holds but its place; the view that it sat in, if it sat.
    fn get_up(&mut self) -> Option<Arc<View>>;

    /// Sits down in `view`, behind what it answered last. Nothing happens if it sits.
    fn sit_down(&mut self, view: &Arc<View>) -> Result<()>;

    fn is_seated(&self) -> bool;
}

/// A walk, and the number of the last exchange before it sat down.
struct Slot<W>(Mutex<(W, u64)>);

/// A slot of any kind of walk.
trait Revocable: Send + Sync {
    /// Makes the walk get up if it is idle; the view that it sat in.
    fn revoke(&self) -> Option<Arc<View>>;
}

impl<W: Walk> Revocable for Slot<W> {
    fn revoke(&self) -> Option<Arc<View>> {
        match self.0.try_lock() {
            Ok(mut held) => held.0.get_up(),
            // A call that panicked left it half way.
            Err(TryLockError::Poisoned(held)) => held.into_inner().0.get_up(),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// The walks of an index.
pub(crate) struct Seats {
    slots: Mutex<Slots>,
    /// Number of the last exchange of sources.
    exchange: AtomicU64,
    pool: Arc<Pool>,
    /// Views of walks that got up for the budget's sake: their files may be removed with them, which is not done under the locks of those who
    /// want memory.
    left: Mutex<Vec<Arc<View>>>,
}

#[derive(Default)]
struct Slots {
    next: u64,
    by_number: BTreeMap<u64, Weak<dyn Revocable>>,
}

impl Seats {
    pub(crate) fn new(pool: &Arc<Pool>) -> Arc<Self> {
        Arc::new(Self {
            slots: Mutex::default(),
            exchange: AtomicU64::new(0),
            pool: Arc::clone(pool),
            left: Mutex::default(),
        })
    }

    /// The sources were exchanged: walks that sit in older ones get up.
    pub(crate) fn exchanged(&self) {
        // SeqCst: before the visit, and seen by whoever ends a call after it.
        self.exchange.fetch_add(1, Ordering::SeqCst);
        let left = std::mem::take(&mut *lock(&self.left));
        drop((self.revoke_idle(), left));
    }

    /// Makes every idle walk get up; the views that they sat in.
    fn revoke_idle(&self) -> Vec<Arc<View>> {
        // Not under the list's lock: what a walk lets go of may take a while.
        let slots: Vec<_> = lock(&self.slots).by_number.values().filter_map(Weak::upgrade).collect();
        slots.iter().filter_map(|slot| slot.revoke()).collect()
    }
}

impl Reclaim for Seats {
    fn reclaim(&self, chunks: usize) -> usize {
        let mut views = self.revoke_idle();
        if views.is_empty() {
            return 0;
        }
        views.dedup_by(|a, b| Arc::ptr_eq(a, b));
        lock(&self.left).append(&mut views);
        self.pool.reclaim(chunks)
    }
}

impl fmt::Debug for Seats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seats({} walks)", lock(&self.slots).by_number.len())
    }
}

/// A walk's seat, held by who walks.
pub(crate) struct Seat<W: Walk + 'static> {
    slot: Arc<Slot<W>>,
    seats: Arc<Seats>,
    number: u64,
}

impl<W: Walk + 'static> Seat<W> {
    /// A seat for a walk that has not sat down yet.
    pub(crate) fn new(seats: &Arc<Seats>, walk: W) -> Self {
        let slot = Arc::new(Slot(Mutex::new((walk, 0))));
        let known: Arc<dyn Revocable> = Arc::clone(&slot) as _;
        let mut slots = lock(&seats.slots);
        let number = slots.next;
        slots.next += 1;
        slots.by_number.insert(number, Arc::downgrade(&known));
        drop(slots);
        Self { slot, seats: Arc::clone(seats), number }
    }

    /// Does `step` with the walk, which sits: where it was, or in the sources that `view` names now.
    pub(crate) fn step<T>(
        &self,
        view: impl FnOnce() -> Arc<View>,
        step: impl FnOnce(&mut W) -> Result<T>,
    ) -> Result<T> {
        let mut held = self.slot.0.lock().unwrap_or_else(|poisoned| {
            // A call that panicked left the walk half way; its place is whole.
            let mut held = poisoned.into_inner();
            drop(held.0.get_up());
            held
        });
        let (walk, sat_at) = &mut *held;
        if !walk.is_seated() {
            // Before the view is taken: an exchange in between is seen below.
            *sat_at = self.seats.exchange.load(Ordering::SeqCst);
            walk.sit_down(&view())?;
        }
        let sat_at = *sat_at;
        let done = step(walk);
        drop(held);
        if sat_at != self.seats.exchange.load(Ordering::SeqCst) {
            drop(self.slot.revoke());
        }
        done
    }
}

impl<W: Walk + 'static> Drop for Seat<W> {
    fn drop(&mut self) {
        // Here, and not by a visit that may be the slot's last holder: see `Seats::left`.
        drop(self.slot.revoke());
        lock(&self.seats.slots).by_number.remove(&self.number);
    }
}

impl<W: Walk> fmt::Debug for Seat<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seat({})", self.number)
    }
}
