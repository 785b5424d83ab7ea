//! A lock without starvation that a running thread can acquire ahead of a sleeping one.
//!
//! The standard library's lock goes to the first thread that asks while it is free. That is fast,
//! because a thread continues while it has a processor. But a sleeping thread must be woken, may
//! find the lock taken again, and sleeps again. A lock that is always handed to the longest waiter
//! idles each time until that thread is scheduled. This lock lets running threads take it first for
//! a while, and then hands it to the longest waiter once: *eventual fairness*, as in WebKit's locks
//! (Pizlo, "Locking in WebKit", 2016), in `parking_lot` and in Go's `sync.Mutex`. Those measure
//! time; this one counts releases.
//!
//! Invariants:
//! 1. A free lock goes to the first thread that asks, even if others sleep for it.
//! 2. Each release wakes the longest waiter. After `passed_max` releases the lock is handed to it:
//!    the lock stays taken until that thread runs.
//! 3. No wake-up is lost. A waiter joins the queue and then tries to take the lock; a holder
//!    releases the lock and then checks for waiters. A waiter that gives up passes on a wake-up
//!    that it received.

use std::collections::VecDeque;
use std::fmt;
use std::sync::PoisonError;
use std::time::Duration;

use self::sync::{Arc, AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering};

/// The primitives: those of `std`, or of a model checker (`RUSTFLAGS="--cfg shuttle" cargo test -p
/// plimsoll-disk --lib --release shuttle`).
mod sync {
    #[cfg(all(test, shuttle))]
    pub(super) use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    #[cfg(all(test, shuttle))]
    pub(super) use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard};
    #[cfg(not(all(test, shuttle)))]
    pub(super) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    #[cfg(not(all(test, shuttle)))]
    pub(super) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
}

/// Number of spins on a taken lock before sleeping; the same as in the standard library.
const SPINS: u32 = if cfg!(shuttle) { 0 } else { 100 };

/// The lock. It guards no value, and is not poisoned by a panic.
pub struct FairLock {
    passed_max: u32,
    is_held: AtomicBool,
    /// The length of the queue, readable without the queue's lock.
    waiting: AtomicUsize,
    line: Mutex<Line>,
}

#[derive(Default)]
struct Line {
    /// The longest waiter is first.
    waiters: VecDeque<Arc<Waiter>>,
    /// Releases since the first waiter became first.
    passed: u32,
}

/// A thread that sleeps for the lock. It does not use `thread::park`, because the program may use
/// `park` too, and a wake-up for the program would be lost here.
#[derive(Default)]
struct Waiter {
    wake: Mutex<Wake>,
    changed: Condvar,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Wake {
    #[default]
    None,
    /// The lock was released.
    Released,
    /// The lock is handed to this waiter.
    Handed,
    /// The waiter has given up, and receives no more messages.
    Gone,
}

impl Waiter {
    /// Sends a message; returns false if the waiter receives no more messages.
    fn notify(&self, wake: Wake) -> bool {
        let mut last = lock(&self.wake);
        if *last == Wake::Gone {
            return false;
        }
        // If two threads notify, the one that sends `Released` may come last; it must not replace
        // `Handed`.
        let is_first = *last == Wake::None;
        *last = wake.max(*last);
        drop(last);
        if is_first {
            self.changed.notify_one();
        }
        true
    }

    /// Sleeps until a message arrives, and takes it.
    fn sleep(&self) -> Wake {
        let mut wake = lock(&self.wake);
        while *wake == Wake::None {
            wake = self.changed.wait(wake).unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::take(&mut wake)
    }

    /// Like [`Waiter::sleep`], but returns [`Wake::None`] after about `timeout`.
    fn sleep_for(&self, timeout: Duration) -> Wake {
        let wake = lock(&self.wake);
        let slept = self.changed.wait_timeout_while(wake, timeout, |wake| *wake == Wake::None);
        std::mem::take(&mut slept.unwrap_or_else(PoisonError::into_inner).0)
    }
}

/// The lock is held until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct FairGuard<'a>(&'a FairLock);

impl FairLock {
    /// A lock that is handed to the longest waiter after `passed_max` releases.
    pub fn new(passed_max: u32) -> Self {
        Self {
            passed_max,
            is_held: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            line: Mutex::default(),
        }
    }

    /// Waits for the lock.
    pub fn lock(&self) -> FairGuard<'_> {
        self.spin().unwrap_or_else(|| self.wait())
    }

    /// Waits for at most `timeout`; `None` if the lock stays taken. A wait that finds the lock
    /// released and taken again starts over, so it may last longer.
    pub fn lock_within(&self, timeout: Duration) -> Option<FairGuard<'_>> {
        self.spin().or_else(|| self.wait_within(timeout))
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<FairGuard<'_>> {
        // SeqCst also on failure: if a waiter sees the lock taken, it has joined the queue before
        // the holder checks the queue.
        let taken = self.is_held.compare_exchange(false, true, Ordering::SeqCst, Ordering::SeqCst);
        taken.ok().map(|_| FairGuard(self))
    }

    /// The number of current waiters.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Takes the lock if it is free, spinning briefly.
    fn spin(&self) -> Option<FairGuard<'_>> {
        self.try_lock().or_else(|| {
            (0..SPINS).find_map(|_| {
                std::hint::spin_loop();
                if self.is_held.load(Ordering::Relaxed) { None } else { self.try_lock() }
            })
        })
    }

    #[cold]
    fn wait_within(&self, timeout: Duration) -> Option<FairGuard<'_>> {
        let waiter = Arc::new(Waiter::default());
        self.join(&waiter);
        loop {
            if let Some(guard) = self.try_lock() {
                self.leave(&waiter);
                return Some(guard);
            }
            match waiter.sleep_for(timeout) {
                Wake::Handed => return Some(FairGuard(self)),
                Wake::Released => {}
                Wake::None | Wake::Gone => return self.give_up(&waiter),
            }
        }
    }

    #[cold]
    fn wait(&self) -> FairGuard<'_> {
        let waiter = Arc::new(Waiter::default());
        self.join(&waiter);
        loop {
            if let Some(guard) = self.try_lock() {
                self.leave(&waiter);
                return guard;
            }
            if waiter.sleep() == Wake::Handed {
                return FairGuard(self);
            }
        }
    }

    fn join(&self, waiter: &Arc<Waiter>) {
        let mut line = lock(&self.line);
        line.waiters.push_back(Arc::clone(waiter));
        // SeqCst: ordered before this thread tries to take the lock; see `unlock`.
        self.waiting.fetch_add(1, Ordering::SeqCst);
    }

    /// Removes from the queue a thread that took the lock itself.
    fn leave(&self, waiter: &Arc<Waiter>) {
        let is_out = self.take_out(waiter);
        debug_assert!(is_out, "while this thread holds the lock, it is handed to no other");
    }

    /// Removes from the queue a thread that stops waiting. If the lock was handed to it meanwhile,
    /// returns the lock.
    fn give_up(&self, waiter: &Arc<Waiter>) -> Option<FairGuard<'_>> {
        if !self.take_out(waiter) {
            // The lock was handed to this waiter, and the message is on its way.
            while waiter.sleep() != Wake::Handed {}
            return Some(FairGuard(self));
        }
        if std::mem::replace(&mut *lock(&waiter.wake), Wake::Gone) == Wake::Released {
            self.notify_first();
        }
        None
    }

    /// Removes a thread from the queue; false if it is not queued, because the lock was handed to
    /// it.
    fn take_out(&self, waiter: &Arc<Waiter>) -> bool {
        let mut line = lock(&self.line);
        let Some(place) = line.waiters.iter().position(|other| Arc::ptr_eq(other, waiter)) else {
            return false;
        };
        line.waiters.remove(place);
        if place == 0 {
            line.passed = 0;
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        true
    }

    /// Wakes the longest waiter, if any, after the lock was released.
    fn notify_first(&self) {
        loop {
            let first = lock(&self.line).waiters.front().cloned();
            // If the waiter has given up, it has already left the queue; try the next one.
            if first.is_none_or(|first| first.notify(Wake::Released)) {
                return;
            }
        }
    }

    fn unlock(&self) {
        if self.waiting() > 0 {
            return self.unlock_beside_waiters();
        }
        // SeqCst: ordered before the check for waiters. One of the two sees the other; see `join`.
        self.is_held.store(false, Ordering::SeqCst);
        if self.waiting() > 0 {
            self.notify_first();
        }
    }

    /// Hands the lock to the longest waiter, or releases the lock and wakes that waiter. A waiter
    /// may give up meanwhile.
    #[cold]
    fn unlock_beside_waiters(&self) {
        let mut line = lock(&self.line);
        if line.passed >= self.passed_max
            && let Some(first) = line.waiters.pop_front()
        {
            line.passed = 0;
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            drop(line);
            first.notify(Wake::Handed);
            return;
        }
        let first = line.waiters.front().cloned();
        line.passed += u32::from(first.is_some());
        drop(line);
        self.is_held.store(false, Ordering::SeqCst);
        let is_notified = first.is_some_and(|first| first.notify(Wake::Released));
        if !is_notified && self.waiting() > 0 {
            self.notify_first();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for FairGuard<'_> {
    fn drop(&mut self) {
        self.0.unlock();
    }
}

impl fmt::Debug for FairLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FairLock({} wait)", self.waiting.load(Ordering::Relaxed))
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::thread;

    use super::*;

    /// Not atomic as a whole: a load and a store.
    fn count(counter: &AtomicU64) {
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    #[test]
    fn lock_is_exclusive_and_all_threads_get_it() {
        for passed_max in [0, 1, 3, u32::MAX] {
            let (lock, counter) = (FairLock::new(passed_max), AtomicU64::new(0));
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for _ in 0..500 {
                            let _held = lock.lock();
                            count(&counter);
                        }
                    });
                }
            });
            assert_eq!(counter.into_inner(), 2000);
            assert_eq!(lock.waiting(), 0);
            assert!(lock.try_lock().is_some());
        }
    }

    #[test]
    fn try_lock_fails_while_held_but_not_after_a_panic() {
        let lock = FairLock::new(8);
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(held);
        let panicked = thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let _held = lock.lock();
                panic!("on purpose");
            });
            holder.join().is_err()
        });
        assert!(panicked);
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn giving_up_leaves_the_lock_to_other_waiters() {
        let (lock, counter) = (FairLock::new(1), AtomicU64::new(0));
        assert!(lock.lock_within(Duration::ZERO).is_some());
        let held = lock.lock();
        assert!(lock.lock_within(Duration::ZERO).is_none());
        assert!(lock.lock_within(Duration::from_millis(2)).is_none());
        assert_eq!(lock.waiting(), 0);
        thread::scope(|scope| {
            for number in 0..6 {
                let (lock, counter) = (&lock, &counter);
                scope.spawn(move || {
                    for _ in 0..300 {
                        let _held = match number % 2 {
                            0 => lock.lock(),
                            _ => loop {
                                if let Some(held) = lock.lock_within(Duration::from_micros(number))
                                {
                                    break held;
                                }
                            },
                        };
                        count(counter);
                    }
                });
            }
            drop(held);
        });
        assert_eq!((counter.into_inner(), lock.waiting()), (1800, 0));
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn waiting_keeps_the_programs_unpark() {
        let lock = FairLock::new(0);
        let held = lock.lock();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let _held = lock.lock();
                // Returns at once, because the thread was unparked while it waited for the lock.
                thread::park();
            });
            while lock.waiting() == 0 {
                thread::yield_now();
            }
            waiter.thread().unpark();
            for _ in 0..100 {
                thread::yield_now();
            }
            drop(held);
        });
    }

    #[test]
    fn starving_waiter_is_handed_the_lock() {
        const PASSED_MAX: u32 = 5;
        let lock = FairLock::new(PASSED_MAX);
        let got_it = AtomicBool::new(false);
        thread::scope(|scope| {
            let mut held = Some(lock.lock());
            scope.spawn(|| {
                let _held = lock.lock();
                got_it.store(true, Ordering::SeqCst);
            });
            while lock.waiting() == 0 {
                thread::yield_now();
            }
            // The other thread sleeps for the lock, or is about to.
            for passed in 0.. {
                drop(held.take());
                held = Some(lock.lock());
                if got_it.load(Ordering::SeqCst) {
                    break;
                }
                assert!(passed <= PASSED_MAX, "passed {passed} times");
            }
        });
    }
}

#[cfg(all(test, shuttle))]
mod shuttle_tests {
    use shuttle::sync::atomic::AtomicU32;
    use shuttle::thread;

    use super::*;

    const PASSED_MAX: u32 = 2;

    /// Three threads repeatedly take the lock.
    fn scene() {
        let lock = Arc::new(FairLock::new(PASSED_MAX));
        let (inside, taken) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (lock, inside, taken) =
                    (Arc::clone(&lock), Arc::clone(&inside), Arc::clone(&taken));
                thread::spawn(move || {
                    for _ in 0..4 {
                        let _held = lock.lock();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold it");
                        thread::yield_now();
                        taken.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(taken.load(Ordering::SeqCst), 12);
        assert_eq!(lock.waiting(), 0);
        assert!(lock.try_lock().is_some());
    }

    /// Like `lock_within`, but without a timeout in the model.
    fn wait_a_moment(lock: &FairLock) -> Option<FairGuard<'_>> {
        let waiter = Arc::new(Waiter::default());
        lock.join(&waiter);
        if let Some(guard) = lock.try_lock() {
            lock.leave(&waiter);
            return Some(guard);
        }
        thread::yield_now();
        lock.give_up(&waiter)
    }

    /// Two threads wait for the lock, and two give up at once if it is taken.
    fn giving_up() {
        let lock = Arc::new(FairLock::new(1));
        let inside = Arc::new(AtomicU32::new(0));
        let threads: Vec<_> = (0..4)
            .map(|number| {
                let (lock, inside) = (Arc::clone(&lock), Arc::clone(&inside));
                thread::spawn(move || {
                    for _ in 0..3 {
                        let held =
                            if number < 2 { Some(lock.lock()) } else { wait_a_moment(&lock) };
                        if held.is_some() {
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold it");
                            thread::yield_now();
                            inside.fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(lock.waiting(), 0);
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn shuttle_giving_up_loses_no_wake() {
        shuttle::check_random(giving_up, 20_000);
        shuttle::check_pct(giving_up, 20_000, 3);
    }

    /// `WAITERS` threads wait; another thread repeatedly releases and retakes the lock, and counts
    /// how often before each waiter gets it.
    fn passing<const WAITERS: u32>() {
        let lock = Arc::new(FairLock::new(PASSED_MAX));
        let got_it = Arc::new(AtomicU32::new(0));
        let mut held = Some(lock.lock());
        let waiters: Vec<_> = (0..WAITERS)
            .map(|_| {
                let (lock, got_it) = (Arc::clone(&lock), Arc::clone(&got_it));
                thread::spawn(move || {
                    let _held = lock.lock();
                    got_it.fetch_add(1, Ordering::SeqCst);
                })
            })
            .collect();
        let (mut passed, mut served) = (0, 0);
        for _ in 0..16 {
            let all_wait = lock.waiting() as u32 == WAITERS - served;
            drop(held.take());
            held = Some(lock.lock());
            let now = got_it.load(Ordering::SeqCst);
            if now > served {
                (passed, served) = (0, now);
            } else {
                passed += u32::from(all_wait);
                assert!(passed <= PASSED_MAX, "passed {passed} times");
            }
            if served == WAITERS {
                break;
            }
        }
        drop(held);
        for waiter in waiters {
            waiter.join().unwrap();
        }
    }

    #[test]
    fn shuttle_lock_is_exclusive_and_loses_no_wake() {
        shuttle::check_random(scene, 20_000);
        shuttle::check_pct(scene, 20_000, 3);
    }

    #[test]
    fn shuttle_no_waiter_is_passed_too_often() {
        shuttle::check_random(passing::<1>, 10_000);
        shuttle::check_random(passing::<3>, 10_000);
        shuttle::check_pct(passing::<3>, 10_000, 3);
    }
}
