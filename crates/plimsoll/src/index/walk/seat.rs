//! Suspended walks (iterators): their state between two calls, and how it is revoked.
//!
//! A walk that has begun holds the sources of one moment: memtables, the files of runs, a page of
//! each. Its user may leave it idle for any time, so all of this can be revoked:
//!
//! 1. Between two calls the walk lies in a slot that other threads can reach. Getting up drops
//!    everything but the walk's bounds, its moment and the position after its last answer. The next
//!    call sits down in the current sources.
//! 2. After each exchange of sources (a flush, a step of compaction), all walks in older sources
//!    get up: an idle walk at once, a walk in the middle of a call at the end of it. So no idle
//!    walk holds a memtable that was flushed, or a file that was merged.
//! 3. If the budget finds no room otherwise, all idle walks get up: the pages that they pinned can
//!    be evicted.
//! 4. The heap memory of a walk is charged: separately for the part that it keeps (its bounds, its
//!    user's key) and the part that it drops when it gets up (a cursor for each run, with two
//!    keys). The latter is limited for all walks together to a [`SEATED_PART`] of the budget, and
//!    to [`SEATED_BYTES_MAX`]; beyond it, the walks get up that were not stepped since the limit
//!    was last reached. A walk that cannot be charged for its cursors gets up at the end of each
//!    call.
//!
//! Why no answer changes: the answer for a key is a function of the key's versions up to the walk's
//! moment. While the moment is open (`snapshots`), every later view holds these versions, or the
//! versions that decide between them. A walk moves strictly in one direction and never returns to
//! keys before the last one that it answered (or looked at and skipped). So it may sit down in any
//! later view strictly behind that key, in either direction. If a call failed after a key was
//! looked at and before it was answered, the walk sits down *at* this key.
//!
//! Why no idle walk is missed: the exchange number is raised after the view is exchanged and before
//! the slots are visited. A walk reads the number before it takes the view, and again after it has
//! released its slot's lock at the end of a call. A visit that finds the lock taken happens before
//! that release, so the walk then reads the new number and gets up by itself.
//!
//! Locks: a slot's is held during a call, the list's for a few instructions. A visit only tries a
//! slot's lock: it never waits for a walk.

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

/// Divisor: all seated walks together may take this part of the budget for their cursors before
/// idle ones have to get up.
const SEATED_PART: u64 = 32;

/// And no more than this, however large the budget is. Cursors lie in the process's allocator,
/// between what walks keep. It gives hardly any of that back to the system when they get up, while
/// their charge goes at once: so this much may be held beside the budget.
const SEATED_BYTES_MAX: u64 = 4 << 20;

/// Memory of a walk's entry in the list of walks.
const LISTED_BYTES: usize = 64;

/// A walk that can get up and sit down again.
pub(crate) trait Walk: Send {
    /// Drops all state but its position. Returns the view that it sat in, if any.
    fn get_up(&mut self) -> Option<Arc<View>>;

    /// Sits down in `view`, behind its last answer, to which `key` belongs. Does nothing if it
    /// sits.
    fn sit_down(&mut self, view: &Arc<View>, key: &[u8]) -> Result<()>;

    fn is_seated(&self) -> bool;

    /// Heap bytes that getting up frees.
    fn seated_bytes(&self) -> usize;

    /// Heap bytes that it keeps.
    fn kept_bytes(&self) -> usize;
}

/// A walk's slot, which other threads can reach.
struct Slot<W>(Mutex<Sitting<W>>);

struct Sitting<W> {
    walk: W,
    /// The exchange number before it sat down.
    sat_at: u64,
    /// Whether it took a step since idle walks were last looked through.
    stepped: bool,
    /// The charge for the state that it drops when it gets up.
    seated: Charge,
}

impl<W: Walk> Sitting<W> {
    fn get_up(&mut self) -> Option<Arc<View>> {
        let view = self.walk.get_up();
        // Reducing a charge is never refused.
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
    /// Makes the walk get up if it is idle. Returns the view that it sat in.
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
    origin: Origin,
    slots: Mutex<Slots>,
    /// Number of the last exchange of sources.
    exchange: AtomicU64,
    pool: Arc<Pool>,
    budget: Budget,
    key_room: KeyRoom,
    /// Cursors of visits, which have no seats.
    keep: Keep,
    /// The account for the state that walks keep.
    kept: Arc<Account>,
    /// The account for the state that they drop when they get up.
    seated: Arc<Account>,
    /// Views of walks that got up to free memory. Dropping a view may remove files, which must not
    /// happen under the locks of the thread that asked for memory.
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

    /// The memory for long keys of suspended walks.
    pub(crate) fn key_room(&self) -> &KeyRoom {
        &self.key_room
    }

    /// Cursors for a visit: kept ones, or new ones that nothing is charged for yet.
    pub(crate) fn take_cursors(&self) -> Box<KeptCursors> {
        self.keep.take().unwrap_or_else(|| Box::new(KeptCursors::new(self.kept.charge())))
    }

    /// Keeps the cursors of a visit that has ended.
    pub(crate) fn keep_cursors(&self, cursors: Box<KeptCursors>) {
        self.keep.keep(cursors);
    }

    /// A charge for memory that the store's user holds for long and that cannot be revoked.
    pub(crate) fn charge(&self) -> Charge {
        self.kept.charge()
    }

    /// The initial charge for a walk that has not sat down yet.
    pub(crate) fn charge_for(&self, walk: &impl Walk) -> Result<Charge, OutOfBudget> {
        let mut charge = self.kept.charge();
        charge.set((walk.kept_bytes() + LISTED_BYTES) as u64)?;
        Ok(charge)
    }

    /// Call after a walk sat down and was charged: makes others get up if all of them take too
    /// much.
    fn limit_seated(&self) {
        if self.seated.charged_bytes()
            > (self.budget.limit_bytes() / SEATED_PART).min(SEATED_BYTES_MAX)
        {
            drop(self.revoke_idle(Which::Left));
        }
    }

    /// Number of the last exchange of sources, raised after the view is exchanged.
    pub(crate) fn exchange_number(&self) -> u64 {
        self.exchange.load(Ordering::SeqCst)
    }

    /// Call after the sources were exchanged: walks in older ones get up.
    pub(crate) fn exchanged(&self) {
        // SeqCst: ordered before the visit, and seen by a call that ends after the visit.
        self.exchange.fetch_add(1, Ordering::SeqCst);
        let left = std::mem::take(&mut *lock(&self.left));
        drop((self.revoke_idle(Which::All), left));
    }

    /// Makes idle walks get up. Returns the views that they sat in.
    fn revoke_idle(&self, which: Which) -> Vec<Arc<View>> {
        // Outside the list's lock: releasing a walk's state may take a while.
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
    /// The charge for the walk's kept state and its user's.
    kept: Charge,
    /// Bytes that the walk keeps since its last step.
    walk_bytes: u64,
}

impl<W: Walk + 'static> Seat<W> {
    /// A seat for a walk that has not sat down yet; `kept` covers what it keeps
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

    /// Charges the bytes that the walk keeps since its last step, and `bytes` that its user holds
    /// to continue it. If refused, it can be called again.
    pub(crate) fn charge_user(&mut self, bytes: usize) -> Result<(), OutOfBudget> {
        let bytes = self.walk_bytes + bytes as u64;
        if bytes == self.kept.bytes() { Ok(()) } else { self.kept.set(bytes) }
    }

    /// Bytes that are charged, and bytes that the walk keeps.
    #[cfg(feature = "testing")]
    pub(crate) fn charges(&self) -> (u64, u64) {
        (self.kept.bytes(), self.walk_bytes)
    }

    /// Runs `step` with the walk seated: where it was, or in the current sources that `view`
    /// returns. `key` is the key that the last step left there. Every step is followed by
    /// [`Seat::charge_user`], which charges the memory that the walk then keeps: a step that has
    /// moved on cannot be refused.
    pub(crate) fn step<T>(
        &mut self,
        key: &mut Vec<u8>,
        view: impl FnOnce() -> Arc<View>,
        step: impl FnOnce(&mut W, &mut Vec<u8>) -> Result<T>,
    ) -> Result<T> {
        let mut held = self.slot.0.lock().unwrap_or_else(|poisoned| {
            // A call that panicked left the walk half way; its position is consistent.
            let mut held = poisoned.into_inner();
            drop(held.get_up());
            held
        });
        let sitting = &mut *held;
        if !sitting.walk.is_seated() {
            // Before the view is taken: an exchange in between is detected below.
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
            // What it holds stays for ever: a thread that the child does not have may hold the
            // locks.
            std::mem::forget((Arc::clone(&self.slot), Arc::clone(&self.seats)));
            return;
        }
        // Here, rather than in a visit that may hold the slot's last reference: see `Seats::left`.
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

    /// A walk that takes 8 KiB while it sits. It is born seated, and never sits down again.
    struct Born(bool);

    impl Walk for Born {
        fn get_up(&mut self) -> Option<Arc<View>> {
            self.0 = false;
            None
        }

        fn sit_down(&mut self, _: &Arc<View>, _: &[u8]) -> Result<()> {
            unreachable!("it sits until it gets up for good")
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
    fn seated_walks_hold_no_more_than_the_allocator_may_keep_of_them_under_any_budget() {
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
            // Who was stepped since the last look may stay until the next one.
            assert!((most / 2..=most + (16 << 10)).contains(&highest), "{highest} of {most}");
        }
    }
}
