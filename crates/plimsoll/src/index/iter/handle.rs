//! Suspended iterators: their state between two calls, and how it is revoked.
//!
//! An iterator that has begun is *attached*: it holds the memtables, run files and pinned pages of
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
//!    keys). The latter is limited for all iterators together to the part [`ATTACHED_PART`] of the
//!    budget and to [`ATTACHED_BYTES_MAX`]. Beyond the limit, iterators that took no step since the
//!    limit was last reached are revoked. An iterator whose cursors cannot be charged releases them
//!    at the end of each call.
//!
//! Why no answer changes: the answer for a key is a function of the key's versions up to the
//! iterator's snapshot. While the snapshot is open (`snapshots`), every later view has these
//! versions, or those that decide between them. An iterator moves strictly in one direction and
//! never returns to keys before the last one that it returned (or examined and skipped). It may
//! therefore re-seek in any later view strictly after that key, in its direction. If a call failed
//! after a key was examined and before it was returned, the iterator re-seeks *at* this key.
//!
//! Why no idle iterator is missed: the exchange number is raised after the view is exchanged and
//! before the slots are examined. An iterator reads the number before it takes the view, and again
//! after it has released its slot's lock at the end of a call. If a slot's lock is held when the
//! slot is examined, the iterator releases it later, then reads the new number and revokes itself.
//!
//! Locks: a slot's lock is held during a call, the list's for a few instructions. An exchange only
//! tries a slot's lock, so it never waits for an iterator.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError, Weak};

use plimsoll_disk::fork::Origin;
use plimsoll_memory::budget::account::{Account, Charge};
use plimsoll_memory::budget::{Budget, Kind, OutOfBudget, Reclaim};
use plimsoll_memory::pool::Pool;

use crate::index::iter::kept_cursors::{Keep, KeptCursors};
use crate::index::iter::resting_key::KeyRoom;
use crate::index::sources::view::View;
use crate::types::error::Result;
use crate::types::lock::lock;

/// Divisor: the cursors of all attached iterators together may take this part of the budget before
/// idle iterators are revoked.
const ATTACHED_PART: u64 = 32;

/// An absolute limit in addition, because the allocator returns hardly any of the cursors' memory
/// to the system, while their charge is released at once: up to this much may be held beyond the
/// budget.
const ATTACHED_BYTES_MAX: u64 = 4 << 20;

/// Memory of an iterator's entry in the list.
const LISTED_BYTES: usize = 64;

/// An iterator that can release its sources and re-seek.
pub(crate) trait Detachable: Send {
    /// Releases all state except its position. Returns the view that it held, if any.
    fn detach(&mut self) -> Option<Arc<View>>;

    /// Attaches the iterator in `view`, after its last result, to which `key` belongs. Does nothing
    /// if it is attached.
    fn attach(&mut self, view: &Arc<View>, key: &[u8]) -> Result<()>;

    fn is_attached(&self) -> bool;

    /// Heap size of the state that [`Detachable::detach`] releases.
    fn attached_bytes(&self) -> usize;

    /// Heap size of the state that it keeps.
    fn kept_bytes(&self) -> usize;
}

/// An iterator's slot, which other threads can access.
struct Slot<W>(Mutex<SlotState<W>>);

struct SlotState<W> {
    iter: W,
    /// The exchange number before it was attached.
    attached_at: u64,
    /// Whether it took a step since idle iterators were last examined.
    stepped: bool,
    /// The charge for the state that it releases when revoked.
    attached: Charge,
}

impl<W: Detachable> SlotState<W> {
    fn detach(&mut self) -> Option<Arc<View>> {
        let view = self.iter.detach();
        // Reducing a charge never fails.
        let _ = self.attached.set(0);
        view
    }
}

/// The idle iterators that are revoked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Victims {
    All,
    /// Iterators that took no step since the last examination.
    Unused,
}

/// A slot of an iterator of any type.
trait Revocable: Send + Sync {
    /// Revokes the iterator if it is idle. Returns the view that it held.
    fn revoke(&self, which: Victims) -> Option<Arc<View>>;
}

impl<W: Detachable> Revocable for Slot<W> {
    fn revoke(&self, which: Victims) -> Option<Arc<View>> {
        match self.0.try_lock() {
            Ok(mut held) => {
                let stepped = std::mem::take(&mut held.stepped);
                if which == Victims::Unused && stepped { None } else { held.detach() }
            }
            // A call panicked in the middle.
            Err(TryLockError::Poisoned(held)) => held.into_inner().detach(),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// The iterators of an index.
pub(crate) struct Iterators {
    origin: Origin,
    slots: Mutex<Slots>,
    /// The number of the last exchange of the view.
    exchange: AtomicU64,
    pool: Arc<Pool>,
    budget: Budget,
    key_room: KeyRoom,
    /// Cursors for visits (`txn/range/visit.rs`), which are not iterators.
    keep: Keep,
    /// The account of the state that iterators keep.
    kept: Arc<Account>,
    /// The account of the state that they release when revoked.
    attached: Arc<Account>,
    /// Views of iterators that were revoked to free memory. Dropping a view may remove files, which
    /// must not happen under the locks of the thread that needed memory.
    left: Mutex<Vec<Arc<View>>>,
}

#[derive(Default)]
struct Slots {
    next: u64,
    by_number: BTreeMap<u64, Weak<dyn Revocable>>,
}

impl Iterators {
    pub(crate) fn new(budget: &Budget, pool: &Arc<Pool>) -> Result<Arc<Self>, OutOfBudget> {
        Ok(Arc::new(Self {
            origin: Origin::here(),
            slots: Mutex::default(),
            exchange: AtomicU64::new(0),
            pool: Arc::clone(pool),
            budget: budget.clone(),
            key_room: KeyRoom::new(budget),
            keep: Keep::default(),
            kept: Account::new(budget, Kind::Iterators)?,
            attached: Account::new(budget, Kind::Iterators)?,
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

    /// The initial charge for an iterator that is not attached yet.
    pub(crate) fn charge_for(&self, iter: &impl Detachable) -> Result<Charge, OutOfBudget> {
        let mut charge = self.kept.charge();
        charge.set((iter.kept_bytes() + LISTED_BYTES) as u64)?;
        Ok(charge)
    }

    /// Call after an iterator was attached and charged: revokes others if all together exceed the
    /// limit.
    fn revoke_excess(&self) {
        if self.attached.charged_bytes()
            > (self.budget.limit_bytes() / ATTACHED_PART).min(ATTACHED_BYTES_MAX)
        {
            drop(self.revoke_idle(Victims::Unused));
        }
    }

    /// The number of the last exchange of the view, raised after the exchange.
    pub(crate) fn exchange_number(&self) -> u64 {
        self.exchange.load(Ordering::SeqCst)
    }

    /// Call after the view was exchanged: revokes iterators with older views.
    pub(crate) fn exchanged(&self) {
        // SeqCst: ordered before the slots are examined, and seen by a call that ends after it.
        self.exchange.fetch_add(1, Ordering::SeqCst);
        let left = std::mem::take(&mut *lock(&self.left));
        drop((self.revoke_idle(Victims::All), left));
    }

    /// Revokes idle iterators. Returns the views that they held.
    fn revoke_idle(&self, which: Victims) -> Vec<Arc<View>> {
        // Outside the list's lock, because releasing an iterator's state may take a while.
        let slots: Vec<_> =
            lock(&self.slots).by_number.values().filter_map(Weak::upgrade).collect();
        slots.iter().filter_map(|slot| slot.revoke(which)).collect()
    }
}

impl Reclaim for Iterators {
    fn reclaim(&self, chunks: usize) -> usize {
        let mut views = self.revoke_idle(Victims::All);
        if views.is_empty() {
            return 0;
        }
        views.dedup_by(|a, b| Arc::ptr_eq(a, b));
        lock(&self.left).append(&mut views);
        self.pool.reclaim(chunks)
    }
}

impl fmt::Debug for Iterators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Iterators({} iters)", lock(&self.slots).by_number.len())
    }
}

/// The owner's handle of an iterator.
pub(crate) struct IteratorHandle<W: Detachable + 'static> {
    slot: Arc<Slot<W>>,
    iterators: Arc<Iterators>,
    number: u64,
    /// The charge for the state that the iterator and its user keep.
    kept: Charge,
    /// Bytes that the iterator keeps since its last step.
    iter_bytes: u64,
}

impl<W: Detachable + 'static> IteratorHandle<W> {
    /// A handle for an iterator that is not attached yet. `kept` covers the state that it keeps
    /// ([`Iterators::charge_for`]).
    pub(crate) fn new(iterators: &Arc<Iterators>, iter: W, kept: Charge) -> Self {
        let iter_bytes = (iter.kept_bytes() + LISTED_BYTES) as u64;
        let slot_state = SlotState {
            iter,
            attached_at: 0,
            stepped: false,
            attached: iterators.attached.charge(),
        };
        let slot = Arc::new(Slot(Mutex::new(slot_state)));
        let known: Arc<dyn Revocable> = Arc::clone(&slot) as _;
        let mut slots = lock(&iterators.slots);
        let number = slots.next;
        slots.next += 1;
        slots.by_number.insert(number, Arc::downgrade(&known));
        drop(slots);
        Self { slot, iterators: Arc::clone(iterators), number, kept, iter_bytes }
    }

    /// Charges the bytes that the iterator keeps since its last step, and `bytes` that its user
    /// holds to continue it. After a refusal, the call can be repeated.
    pub(crate) fn charge_user(&mut self, bytes: usize) -> Result<(), OutOfBudget> {
        let bytes = self.iter_bytes + bytes as u64;
        if bytes == self.kept.bytes() { Ok(()) } else { self.kept.set(bytes) }
    }

    /// The charged bytes, and the bytes that the iterator keeps.
    #[cfg(feature = "testing")]
    pub(crate) fn charges(&self) -> (u64, u64) {
        (self.kept.bytes(), self.iter_bytes)
    }

    /// Runs `step` with the iterator attached, in its current view or else in the one that `view`
    /// returns. `key` is the key that the last step left there. Each step must be followed by
    /// [`IteratorHandle::charge_user`], which charges the memory that the iterator keeps then; the
    /// step itself cannot be refused once it has moved.
    pub(crate) fn step<T>(
        &mut self,
        key: &mut Vec<u8>,
        view: impl FnOnce() -> Arc<View>,
        step: impl FnOnce(&mut W, &mut Vec<u8>) -> Result<T>,
    ) -> Result<T> {
        let mut held = self.slot.0.lock().unwrap_or_else(|poisoned| {
            // A call panicked in the middle. The iterator's position is consistent.
            let mut held = poisoned.into_inner();
            drop(held.detach());
            held
        });
        let slot_state = &mut *held;
        if !slot_state.iter.is_attached() {
            // Read the number before the view is taken, so that an exchange in between is detected
            // below.
            slot_state.attached_at = self.iterators.exchange_number();
            slot_state.iter.attach(&view(), key)?;
        }
        let attached_at = slot_state.attached_at;
        let done = step(&mut slot_state.iter, key);
        slot_state.stepped = true;
        let (attached, kept) = (
            slot_state.iter.attached_bytes() as u64,
            slot_state.iter.kept_bytes() as u64 + LISTED_BYTES as u64,
        );
        let more = attached > slot_state.attached.bytes();
        let refused = if attached != slot_state.attached.bytes()
            && slot_state.attached.set(attached).is_err()
        {
            slot_state.detach()
        } else {
            None
        };
        drop(held);
        drop(refused);
        if attached_at != self.iterators.exchange_number() {
            drop(self.slot.revoke(Victims::All));
        }
        if more {
            self.iterators.revoke_excess();
        }
        self.iter_bytes = kept;
        done
    }
}

impl<W: Detachable + 'static> Drop for IteratorHandle<W> {
    fn drop(&mut self) {
        if self.iterators.origin.is_foreign() {
            // In a forked child, leak the slot and its state: a thread that the child does not have
            // may hold the locks.
            std::mem::forget((Arc::clone(&self.slot), Arc::clone(&self.iterators)));
            return;
        }
        // Drop the view here rather than in an exchange that may hold the slot's last reference:
        // see `Iterators::left`.
        drop(self.slot.revoke(Victims::All));
        lock(&self.iterators.slots).by_number.remove(&self.number);
    }
}

impl<W: Detachable> fmt::Debug for IteratorHandle<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IteratorHandle({})", self.number)
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_memory::budget::Backing;

    use super::*;

    /// An iterator of 8 KiB that is attached from the start and never attached again.
    struct AttachedOnce(bool);

    impl Detachable for AttachedOnce {
        fn detach(&mut self) -> Option<Arc<View>> {
            self.0 = false;
            None
        }

        fn attach(&mut self, _: &Arc<View>, _: &[u8]) -> Result<()> {
            unreachable!("it is never attached again")
        }

        fn is_attached(&self) -> bool {
            self.0
        }

        fn attached_bytes(&self) -> usize {
            if self.0 { 8 << 10 } else { 0 }
        }

        fn kept_bytes(&self) -> usize {
            100
        }
    }

    #[test]
    fn attached_iterators_stay_below_the_limit_under_any_budget() {
        for (budget_bytes, most) in
            [(16 << 20, (16 << 20) / ATTACHED_PART), (1 << 30, ATTACHED_BYTES_MAX)]
        {
            let budget = Budget::new(budget_bytes, Backing::Mapped).unwrap();
            let iterators = Iterators::new(&budget, &Pool::new(&budget, 1 << 20).unwrap()).unwrap();
            let mut iters = Vec::new();
            let mut highest = 0;
            for _ in 0..2000 {
                let iter = AttachedOnce(true);
                let charge = iterators.charge_for(&iter).unwrap();
                iters.push(IteratorHandle::new(&iterators, iter, charge));
                let step = |_: &mut AttachedOnce, _: &mut Vec<u8>| Ok(());
                iters
                    .last_mut()
                    .unwrap()
                    .step(&mut Vec::new(), || unreachable!("it is attached"), step)
                    .unwrap();
                highest = highest.max(iterators.attached.charged_bytes());
            }
            // Iterators that took a step since the last examination may stay until the next one.
            assert!((most / 2..=most + (16 << 10)).contains(&highest), "{highest} of {most}");
        }
    }
}
