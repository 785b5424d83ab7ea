//! Suspended iterators: their state between two calls, and how it is revoked.
//!
//! An iterator that has begun is *seated*: it holds the memtables, run files and pinned pages of
//! one view. Its user may leave it idle for any time, so all of this can be revoked:
//!
//! 1. Between two calls the iterator is in a slot that other threads can access. When it is
//!    revoked, it releases everything except its bounds, its snapshot and the position after its
//!    last result. The next call re-seeks in the current view.
//! 2. After each exchange of the view (a flush, a step of compaction), all iterators with older
//!    views are revoked: idle ones immediately, others at the end of the current call. So no idle
//!    iterator holds a flushed memtable or a merged file.
//! 3. If the budget finds no memory otherwise, all idle iterators are revoked, so that the pages
//!    they pinned can be evicted.
//! 4. The heap memory of an iterator is charged, separately for the part that it keeps (its bounds,
//!    its user's key) and the part that it releases when revoked (a cursor for each run, with two
//!    keys). The latter is limited for all iterators together to a [`SEATED_PART`] of the budget
//!    and to [`SEATED_BYTES_MAX`]. Beyond the limit, iterators that took no step since the limit
//!    was last reached are revoked. An iterator whose cursors cannot be charged releases them at
//!    the end of each call.
//!
//! Why no answer changes: the answer for a key is a function of the key's versions up to the
//! iterator's snapshot. While the snapshot is open (`snapshots`), every later view has these
//! versions, or those that decide between them. An iterator moves strictly in one direction and
//! never returns to keys before the last one that it returned (or examined and skipped). It may
//! therefore re-seek in any later view strictly after that key, in its direction. If a call failed
//! after a key was examined and before it was returned, the iterator re-seeks *at* this key.
//!
//! Why no idle iterator is missed: the exchange number is raised after the view is exchanged and
//! before the slots are visited. An iterator reads the number before it takes the view, and again
//! after it has released its slot's lock at the end of a call. A visit that finds the lock taken
//! happens before that release, so the iterator then reads the new number and revokes itself.
//!
//! Locks: a slot's lock is held during a call, the list's for a few instructions. A visit only
//! tries a slot's lock, so it never waits for an iterator.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError, Weak};

use plimsoll_disk::fork::Origin;
use plimsoll_memory::budget::account::{Account, Charge};
use plimsoll_memory::budget::{Budget, Kind, OutOfBudget, Reclaim};
use plimsoll_memory::pool::Pool;

use crate::index::sources::view::View;
use crate::index::walk::kept_cursors::{Keep, KeptCursors};
use crate::index::walk::resting_key::KeyRoom;
use crate::types::error::Result;
use crate::types::lock::lock;

/// Divisor: the cursors of all seated iterators together may take this part of the budget before
/// idle iterators are revoked.
const SEATED_PART: u64 = 32;

/// An absolute limit in addition, because the allocator returns hardly any of the cursors' memory
/// to the system, while their charge is released at once: up to this much may be held beyond the
/// budget.
const SEATED_BYTES_MAX: u64 = 4 << 20;

/// Memory of an iterator's entry in the list.
const LISTED_BYTES: usize = 64;

/// An iterator that can release its sources and re-seek.
pub(crate) trait Walk: Send {
    /// Releases all state except its position. Returns the view that it held, if any.
    fn get_up(&mut self) -> Option<Arc<View>>;

    /// Seats the iterator in `view`, after its last result, to which `key` belongs. Does nothing if
    /// it is seated.
    fn sit_down(&mut self, view: &Arc<View>, key: &[u8]) -> Result<()>;

    fn is_seated(&self) -> bool;

    /// Heap size of the state that [`Walk::get_up`] releases.
    fn seated_bytes(&self) -> usize;

    /// Heap size of the state that it keeps.
    fn kept_bytes(&self) -> usize;
}

/// An iterator's slot, which other threads can access.
struct Slot<W>(Mutex<Sitting<W>>);

struct Sitting<W> {
    walk: W,
    /// The exchange number before it was seated.
    sat_at: u64,
    /// Whether it took a step since idle iterators were last examined.
    stepped: bool,
    /// The charge for the state that it releases when revoked.
    seated: Charge,
}

impl<W: Walk> Sitting<W> {
    fn get_up(&mut self) -> Option<Arc<View>> {
        let view = self.walk.get_up();
        // Reducing a charge never fails.
        let _ = self.seated.set(0);
        view
    }
}

/// The idle iterators that are revoked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    All,
    /// Iterators that took no step since the last examination.
    Left,
}

/// A slot of an iterator of any type.
trait Revocable: Send + Sync {
    /// Revokes the iterator if it is idle. Returns the view that it held.
    fn revoke(&self, which: Which) -> Option<Arc<View>>;
}

impl<W: Walk> Revocable for Slot<W> {
    fn revoke(&self, which: Which) -> Option<Arc<View>> {
        match self.0.try_lock() {
            Ok(mut held) => {
                let stepped = std::mem::take(&mut held.stepped);
                if which == Which::Left && stepped { None } else { held.get_up() }
            }
            // A call panicked in the middle.
            Err(TryLockError::Poisoned(held)) => held.into_inner().get_up(),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// The iterators of an index.
pub(crate) struct Seats {
    origin: Origin,
    slots: Mutex<Slots>,
    /// The number of the last exchange of the view.
    exchange: AtomicU64,
    pool: Arc<Pool>,
    budget: Budget,
    key_room: KeyRoom,
    /// Cursors for visits, which have no seats.
    keep: Keep,
    /// The account of the state that iterators keep.
    kept: Arc<Account>,
    /// The account of the state that they release when revoked.
    seated: Arc<Account>,
    /// Views of iterators that were revoked to free memory. Dropping a view may remove files, which
    /// must not happen under the locks of the thread that needed memory.
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
            origin: Origin::here(),
            slots: Mutex::default(),
            exchange: AtomicU64::new(0),
            pool: Arc::clone(pool),
            budget: budget.clone(),
            key_room: KeyRoom::new(budget),
            keep: Keep::default(),
            kept: Account::new(budget, Kind::Walks)?,
            seated: Account::new(budget, Kind::Walks)?,
            left: Mutex::default(),
        }))
    }

    /// The memory for long keys of suspended iterators.
    pub(crate) fn key_room(&self) -> &KeyRoom {
        &self.key_room
    }

    /// Cursors for a visit: kept ones, or new ones without a charge.
    pub(crate) fn take_cursors(&self) -> Box<KeptCursors> {
        self.keep.take().unwrap_or_else(|| Box::new(KeptCursors::new(self.kept.charge())))
    }

    /// Keeps the cursors of a finished visit.
    pub(crate) fn keep_cursors(&self, cursors: Box<KeptCursors>) {
        self.keep.keep(cursors);
    }

    /// A charge for memory that the store's user holds for a long time and that cannot be revoked.
    pub(crate) fn charge(&self) -> Charge {
        self.kept.charge()
    }

    /// The initial charge for an iterator that is not seated yet.
    pub(crate) fn charge_for(&self, walk: &impl Walk) -> Result<Charge, OutOfBudget> {
        let mut charge = self.kept.charge();
        charge.set((walk.kept_bytes() + LISTED_BYTES) as u64)?;
        Ok(charge)
    }

    /// Call after an iterator was seated and charged: revokes others if all together exceed the
    /// limit.
    fn limit_seated(&self) {
        if self.seated.charged_bytes()
            > (self.budget.limit_bytes() / SEATED_PART).min(SEATED_BYTES_MAX)
        {
            drop(self.revoke_idle(Which::Left));
        }
    }

    /// The number of the last exchange of the view, raised after the exchange.
    pub(crate) fn exchange_number(&self) -> u64 {
        self.exchange.load(Ordering::SeqCst)
    }

    /// Call after the view was exchanged: revokes iterators with older views.
    pub(crate) fn exchanged(&self) {
        // SeqCst: ordered before the visit, and seen by a call that ends after it.
        self.exchange.fetch_add(1, Ordering::SeqCst);
        let left = std::mem::take(&mut *lock(&self.left));
        drop((self.revoke_idle(Which::All), left));
    }

    /// Revokes idle iterators. Returns the views that they held.
    fn revoke_idle(&self, which: Which) -> Vec<Arc<View>> {
        // Outside the list's lock, because releasing an iterator's state may take a while.
        let slots: Vec<_> =
            lock(&self.slots).by_number.values().filter_map(Weak::upgrade).collect();
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

/// The owner's handle of a walk.
pub(crate) struct Seat<W: Walk + 'static> {
    slot: Arc<Slot<W>>,
    seats: Arc<Seats>,
    number: u64,
    /// The charge for the state that the iterator and its user keep.
    kept: Charge,
    /// Bytes that the iterator keeps since its last step.
    walk_bytes: u64,
}

impl<W: Walk + 'static> Seat<W> {
    /// A seat for an iterator that is not seated yet. `kept` covers the state that it keeps
    /// ([`Seats::charge_for`]).
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

    /// Charges the bytes that the iterator keeps since its last step, and `bytes` that its user
    /// holds to continue it. After a refusal, the call can be repeated.
    pub(crate) fn charge_user(&mut self, bytes: usize) -> Result<(), OutOfBudget> {
        let bytes = self.walk_bytes + bytes as u64;
        if bytes == self.kept.bytes() { Ok(()) } else { self.kept.set(bytes) }
    }

    /// The charged bytes, and the bytes that the iterator keeps.
    #[cfg(feature = "testing")]
    pub(crate) fn charges(&self) -> (u64, u64) {
        (self.kept.bytes(), self.walk_bytes)
    }

    /// Runs `step` with the iterator seated, in its current view or else in the one that `view`
    /// returns. `key` is the key that the last step left there. Each step must be followed by
    /// [`Seat::charge_user`], which charges the memory that the iterator keeps then; the step
    /// itself cannot be refused once it has moved.
    pub(crate) fn step<T>(
        &mut self,
        key: &mut Vec<u8>,
        view: impl FnOnce() -> Arc<View>,
        step: impl FnOnce(&mut W, &mut Vec<u8>) -> Result<T>,
    ) -> Result<T> {
        let mut held = self.slot.0.lock().unwrap_or_else(|poisoned| {
            // A call panicked in the middle. The iterator's position is consistent.
            let mut held = poisoned.into_inner();
            drop(held.get_up());
            held
        });
        let sitting = &mut *held;
        if !sitting.walk.is_seated() {
            // Before the view is taken, so that an exchange in between is detected below.
            sitting.sat_at = self.seats.exchange_number();
            sitting.walk.sit_down(&view(), key)?;
        }
        let sat_at = sitting.sat_at;
        let done = step(&mut sitting.walk, key);
        sitting.stepped = true;
        let (seated, kept) = (
            sitting.walk.seated_bytes() as u64,
            sitting.walk.kept_bytes() as u64 + LISTED_BYTES as u64,
        );
        let more = seated > sitting.seated.bytes();
        let refused = if seated != sitting.seated.bytes() && sitting.seated.set(seated).is_err() {
            sitting.get_up()
        } else {
            None
        };
        drop(held);
        drop(refused);
        if sat_at != self.seats.exchange_number() {
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
        if self.seats.origin.is_foreign() {
            // In a forked child, leak the slot and its state: a thread that the child does not have
            // may hold the locks.
            std::mem::forget((Arc::clone(&self.slot), Arc::clone(&self.seats)));
            return;
        }
        // Drop the view here rather than in a visit that may hold the slot's last reference: see
        // `Seats::left`.
        drop(self.slot.revoke(Which::All));
        lock(&self.seats.slots).by_number.remove(&self.number);
    }
}

impl<W: Walk> fmt::Debug for Seat<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seat({})", self.number)
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_memory::budget::Backing;

    use super::*;

    /// An iterator of 8 KiB that is seated from the start and never seated again.
    struct Born(bool);

    impl Walk for Born {
        fn get_up(&mut self) -> Option<Arc<View>> {
            self.0 = false;
            None
        }

        fn sit_down(&mut self, _: &Arc<View>, _: &[u8]) -> Result<()> {
            unreachable!("it is never seated again")
        }

        fn is_seated(&self) -> bool {
            self.0
        }

        fn seated_bytes(&self) -> usize {
            if self.0 { 8 << 10 } else { 0 }
        }

        fn kept_bytes(&self) -> usize {
            100
        }
    }

    #[test]
    fn seated_iterators_stay_below_the_limit_under_any_budget() {
        for (budget_bytes, most) in
            [(16 << 20, (16 << 20) / SEATED_PART), (1 << 30, SEATED_BYTES_MAX)]
        {
            let budget = Budget::new(budget_bytes, Backing::Mapped).unwrap();
            let seats = Seats::new(&budget, &Pool::new(&budget, 1 << 20).unwrap()).unwrap();
            let mut walks = Vec::new();
            let mut highest = 0;
            for _ in 0..2000 {
                let walk = Born(true);
                let charge = seats.charge_for(&walk).unwrap();
                walks.push(Seat::new(&seats, walk, charge));
                let step = |_: &mut Born, _: &mut Vec<u8>| Ok(());
                walks
                    .last_mut()
                    .unwrap()
                    .step(&mut Vec::new(), || unreachable!("it sits"), step)
                    .unwrap();
                highest = highest.max(seats.seated.charged_bytes());
            }
            // Iterators that took a step since the last examination may stay until the next one.
            assert!((most / 2..=most + (16 << 10)).contains(&highest), "{highest} of {most}");
        }
    }
}
