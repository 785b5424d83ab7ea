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
//! 4. What a walk holds of the heap is charged: what it keeps (its bounds, its user's key), and apart from that what it drops when it gets
//!    up (a cursor for each run, with two keys). Of the latter all walks together have a [`SEATED_PART`] of the budget; beyond it those get up that
//!    were not stepped since the last time that this happened. A walk that cannot be charged for its cursors gets up at the end of each call.
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

use plimsoll_memory::budget::account::{Account, Charge};
use plimsoll_memory::budget::{Budget, Kind, OutOfBudget, Reclaim};
use plimsoll_memory::pool::Pool;

use crate::index::core::lock;
use crate::index::resting_key::KeyRoom;
use crate::index::view::View;
use crate::types::error::Result;

/// Seated walks together may take one in so many bytes of the budget for their cursors before idle ones have to get up.
const SEATED_PART: u64 = 32;

/// What a walk takes in the list of walks.
const LISTED_BYTES: usize = 64;

/// A walk that can get up and sit down again.
pub(crate) trait Walk: Send {
    /// Drops all that it holds but its place; the view that it sat in, if it sat.
    fn get_up(&mut self) -> Option<Arc<View>>;

    /// Sits down in `view`, behind what it answered last, which `key` belongs to. Nothing happens if it sits.
    fn sit_down(&mut self, view: &Arc<View>, key: &[u8]) -> Result<()>;

    fn is_seated(&self) -> bool;

    /// Heap bytes that getting up gives back.
    fn seated_bytes(&self) -> usize;

    /// Heap bytes that it holds besides.
    fn kept_bytes(&self) -> usize;
}

/// A walk's place, which others can reach.
struct Slot<W>(Mutex<Sitting<W>>);

struct Sitting<W> {
    walk: W,
    /// The number of the last exchange before it sat down.
    sat_at: u64,
    /// It took a step since idle walks were looked through.
    stepped: bool,
    /// For what it drops when it gets up.
    seated: Charge,
}

impl<W: Walk> Sitting<W> {
    fn get_up(&mut self) -> Option<Arc<View>> {
        let view = self.walk.get_up();
        // To charge less is never refused.
        let _ = self.seated.set(0);
        view
    }
}

/// Which idle walks get up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    All,
    /// Those that took no step since the last look.
    Left,
}

/// A slot of any kind of walk.
trait Revocable: Send + Sync {
    /// Makes the walk get up if it is idle; the view that it sat in.
    fn revoke(&self, which: Which) -> Option<Arc<View>>;
}

impl<W: Walk> Revocable for Slot<W> {
    fn revoke(&self, which: Which) -> Option<Arc<View>> {
        match self.0.try_lock() {
            Ok(mut held) => {
                let stepped = std::mem::take(&mut held.stepped);
                if which == Which::Left && stepped { None } else { held.get_up() }
            }
            // A call that panicked left it half way.
            Err(TryLockError::Poisoned(held)) => held.into_inner().get_up(),
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
    budget: Budget,
    key_room: KeyRoom,
    /// For what walks keep.
    kept: Arc<Account>,
    /// For what they drop when they get up.
    seated: Arc<Account>,
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
    pub(crate) fn new(budget: &Budget, pool: &Arc<Pool>) -> Result<Arc<Self>, OutOfBudget> {
        Ok(Arc::new(Self {
            slots: Mutex::default(),
            exchange: AtomicU64::new(0),
            pool: Arc::clone(pool),
            budget: budget.clone(),
            key_room: KeyRoom::new(budget),
            kept: Account::new(budget, Kind::Walks)?,
            seated: Account::new(budget, Kind::Walks)?,
            left: Mutex::default(),
        }))
    }

    /// Where the long keys of walks rest.
    pub(crate) fn key_room(&self) -> &KeyRoom {
        &self.key_room
    }

    /// A charge for what the user of a store holds for long, and cannot be made to give up.
    pub(crate) fn charge(&self) -> Charge {
        self.kept.charge()
    }

    /// A charge for what a walk keeps that has not sat down yet.
    pub(crate) fn charge_for(&self, walk: &impl Walk) -> Result<Charge, OutOfBudget> {
        let mut charge = self.kept.charge();
        charge.set((walk.kept_bytes() + LISTED_BYTES) as u64)?;
        Ok(charge)
    }

    /// A walk sat down that was charged for it: makes others get up if all of them take too much.
    fn limit_seated(&self) {
        if self.seated.charged_bytes() > self.budget.limit_bytes() / SEATED_PART {
            drop(self.revoke_idle(Which::Left));
        }
    }

    /// The sources were exchanged: walks that sit in older ones get up.
    pub(crate) fn exchanged(&self) {
        // SeqCst: before the visit, and seen by whoever ends a call after it.
        self.exchange.fetch_add(1, Ordering::SeqCst);
        let left = std::mem::take(&mut *lock(&self.left));
        drop((self.revoke_idle(Which::All), left));
    }

    /// Makes idle walks get up; the views that they sat in.
    fn revoke_idle(&self, which: Which) -> Vec<Arc<View>> {
        // Not under the list's lock: what a walk lets go of may take a while.
        let slots: Vec<_> = lock(&self.slots).by_number.values().filter_map(Weak::upgrade).collect();
        slots.iter().filter_map(|slot| slot.revoke(which)).collect()
    }
}

impl Reclaim for Seats {
    fn reclaim(&self, chunks: usize) -> usize {
        let mut views = self.revoke_idle(Which::All);
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
    /// For what the walk keeps, and its user with it.
    kept: Charge,
    /// What the walk keeps since its last step.
    walk_bytes: u64,
}

impl<W: Walk + 'static> Seat<W> {
    /// A seat for a walk that has not sat down yet; `kept` covers what it keeps ([`Seats::charge_for`]).
    pub(crate) fn new(seats: &Arc<Seats>, walk: W, kept: Charge) -> Self {
        let walk_bytes = (walk.kept_bytes() + LISTED_BYTES) as u64;
        let sitting = Sitting { walk, sat_at: 0, stepped: false, seated: seats.seated.charge() };
        let slot = Arc::new(Slot(Mutex::new(sitting)));
        let known: Arc<dyn Revocable> = Arc::clone(&slot) as _;
        let mut slots = lock(&seats.slots);
        let number = slots.next;
        slots.next += 1;
        slots.by_number.insert(number, Arc::downgrade(&known));
        drop(slots);
        Self { slot, seats: Arc::clone(seats), number, kept, walk_bytes }
    }

    /// Charges what the walk keeps since its last step, and `bytes` for what its user holds to go on with it. Refused, it can be asked again.
    pub(crate) fn charge_user(&mut self, bytes: usize) -> Result<(), OutOfBudget> {
        let bytes = self.walk_bytes + bytes as u64;
        if bytes == self.kept.bytes() { Ok(()) } else { self.kept.set(bytes) }
    }

    /// Does `step` with the walk, which sits: where it was, or in the sources that `view` names now. `key` is what the last step left there.
    /// What the walk keeps then is charged by [`Seat::charge_user`], which every step is followed by: a step that has gone on cannot be refused.
    pub(crate) fn step<T>(
        &mut self,
        key: &mut Vec<u8>,
        view: impl FnOnce() -> Arc<View>,
        step: impl FnOnce(&mut W, &mut Vec<u8>) -> Result<T>,
    ) -> Result<T> {
        let mut held = self.slot.0.lock().unwrap_or_else(|poisoned| {
            // A call that panicked left the walk half way; its place is whole.
            let mut held = poisoned.into_inner();
            drop(held.get_up());
            held
        });
        let sitting = &mut *held;
        if !sitting.walk.is_seated() {
            // Before the view is taken: an exchange in between is seen below.
            sitting.sat_at = self.seats.exchange.load(Ordering::SeqCst);
            sitting.walk.sit_down(&view(), key)?;
        }
        let sat_at = sitting.sat_at;
        let done = step(&mut sitting.walk, key);
        sitting.stepped = true;
        let (seated, kept) =
            (sitting.walk.seated_bytes() as u64, sitting.walk.kept_bytes() as u64 + LISTED_BYTES as u64);
        let more = seated > sitting.seated.bytes();
        let refused = if seated != sitting.seated.bytes() && sitting.seated.set(seated).is_err() {
            sitting.get_up()
        } else {
            None
        };
        drop(held);
        drop(refused);
        if sat_at != self.seats.exchange.load(Ordering::SeqCst) {
            drop(self.slot.revoke(Which::All));
        }
        if more {
            self.seats.limit_seated();
        }
        self.walk_bytes = kept;
        done
    }
}

impl<W: Walk + 'static> Drop for Seat<W> {
    fn drop(&mut self) {
        // Here, and not by a visit that may be the slot's last holder: see `Seats::left`.
        drop(self.slot.revoke(Which::All));
        lock(&self.seats.slots).by_number.remove(&self.number);
    }
}

impl<W: Walk> fmt::Debug for Seat<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seat({})", self.number)
    }
}
