//! A lock under which nobody starves, and that threads which run still take without putting each other to sleep.
//!
//! A lock that goes to whoever asks when it is free (the standard library's) is fast: a thread goes on while it has a processor. But who sleeps for it
//! has to be woken, finds that it was taken meanwhile, and sleeps again. A lock that is always handed to who has waited longest stands still each time
//! until that thread has got a processor. This one is of the first kind for a while, and then of the second, once: *eventual fairness*, as in WebKit's
//! locks (Pizlo, "Locking in WebKit", 2016), in `parking_lot` and in Go's `sync.Mutex`. Those measure time; here it is counted.
//!
//! Laws:
//! 1. While nobody holds it, who asks first takes it, whether others sleep for it or not.
//! 2. Who has waited longest is woken when it is let go of. Once others have taken it [`FairLock::new`]'s number of times instead, it is handed over: it
//!    stays taken until that thread runs.
//! 3. No wake is lost. Who joins the line counts itself first and then tries to take the lock; who lets go of it does so first and then looks at the count.

use std::collections::VecDeque;
use std::fmt;

use self::sync::{Arc, AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering, Thread, current, park};

/// The primitives: those of `std`, or of a model checker (`RUSTFLAGS="--cfg shuttle" cargo test -p plimsoll-disk --lib --release shuttle`).
mod sync {
    #[cfg(all(test, shuttle))]
    pub(super) use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    #[cfg(all(test, shuttle))]
    pub(super) use shuttle::sync::{Arc, Mutex, MutexGuard};
    #[cfg(all(test, shuttle))]
    pub(super) use shuttle::thread::{Thread, current, park};
    #[cfg(not(all(test, shuttle)))]
    pub(super) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    #[cfg(not(all(test, shuttle)))]
    pub(super) use std::sync::{Arc, Mutex, MutexGuard};
    #[cfg(not(all(test, shuttle)))]
    pub(super) use std::thread::{Thread, current, park};
}

/// Looks at a taken lock before a thread sleeps for it: as many as the standard library's.
const LOOKS: u32 = if cfg!(shuttle) { 0 } else { 100 };

/// The lock. It guards no value, and does not care whether a holder panicked.
pub struct FairLock {
    passed_max: u32,
    is_held: AtomicBool,
    /// The number of those who wait: the length of the line, for who holds no lock on it.
    waiting: AtomicUsize,
    line: Mutex<Line>,
}

#[derive(Default)]
struct Line {
    /// Who has waited longest comes first.
    waiters: VecDeque<Arc<Waiter>>,
    /// How often the lock was let go of, and not handed over, since the first one became the first.
    passed: u32,
}

struct Waiter {
    thread: Thread,
    /// It was woken and has not looked yet: it need not be woken again.
    is_woken: AtomicBool,
    is_holder: AtomicBool,
}

/// The lock is held until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct FairGuard<'a>(&'a FairLock);

impl FairLock {
    /// A lock that is handed to who has waited longest after others have passed him `passed_max` times.
    pub fn new(passed_max: u32) -> Self {
        Self { passed_max, is_held: AtomicBool::new(false), waiting: AtomicUsize::new(0), line: Mutex::default() }
    }

    /// Waits until nobody holds it.
    pub fn lock(&self) -> FairGuard<'_> {
        if let Some(guard) = self.try_lock() {
            return guard;
        }
        for _ in 0..LOOKS {
            std::hint::spin_loop();
            if !self.is_held.load(Ordering::Relaxed)
                && let Some(guard) = self.try_lock()
            {
                return guard;
            }
        }
        self.wait()
    }

    /// Takes it if nobody holds it.
    pub fn try_lock(&self) -> Option<FairGuard<'_>> {
        let taken = self.is_held.compare_exchange(false, true, Ordering::SeqCst, Ordering::Relaxed);
        taken.ok().map(|_| FairGuard(self))
    }

    /// Those who wait for it now.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    #[cold]
    fn wait(&self) -> FairGuard<'_> {
        let (is_woken, is_holder) = (AtomicBool::new(false), AtomicBool::new(false));
        let waiter = Arc::new(Waiter { thread: current(), is_woken, is_holder });
        self.join(&waiter);
        loop {
            if waiter.is_holder.load(Ordering::SeqCst) {
                return FairGuard(self);
            }
            if let Some(guard) = self.try_lock() {
                self.leave(&waiter);
                return guard;
            }
            if !waiter.is_woken.swap(false, Ordering::SeqCst) {
                park();
            }
        }
    }

    fn join(&self, waiter: &Arc<Waiter>) {
        let mut line = self.line();
        line.waiters.push_back(Arc::clone(waiter));
        self.waiting.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes a thread out of the line that got the lock by itself.
    fn leave(&self, waiter: &Arc<Waiter>) {
        let mut line = self.line();
        let place = line.waiters.iter().position(|other| Arc::ptr_eq(other, waiter));
        let place = place.expect("only who holds the lock is taken out, and this thread holds it");
        line.waiters.remove(place);
        if place == 0 {
            line.passed = 0;
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    fn unlock(&self) {
        self.is_held.store(false, Ordering::SeqCst);
        if self.waiting() > 0 {
            self.wake();
        }
    }

    /// Wakes who has waited longest, or hands the lock over.
    #[cold]
    fn wake(&self) {
        let mut line = self.line();
        let Some(first) = line.waiters.front().cloned() else { return };
        if line.passed < self.passed_max {
            line.passed += 1;
            drop(line);
            if !first.is_woken.swap(true, Ordering::SeqCst) {
                first.thread.unpark();
            }
            return;
        }
        // Who has taken it meanwhile hands it over.
        if let Some(guard) = self.try_lock() {
            line.waiters.pop_front();
            line.passed = 0;
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            drop(line);
            std::mem::forget(guard);
            first.is_holder.store(true, Ordering::SeqCst);
            first.thread.unpark();
        }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
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
    fn one_at_a_time_holds_it_and_all_get_it() {
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
    fn a_lock_that_is_held_is_refused_and_one_whose_holder_panicked_is_not() {
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
    fn who_is_passed_too_often_is_handed_the_lock_while_another_takes_it_again_and_again() {
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
            // It sleeps for the lock, or is about to. From here on it is passed at most so often.
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

    /// Three threads take it again and again.
    fn scene() {
        let lock = Arc::new(FairLock::new(PASSED_MAX));
        let (inside, taken) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (lock, inside, taken) = (Arc::clone(&lock), Arc::clone(&inside), Arc::clone(&taken));
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

    /// One waits; another lets go of it and takes it again, and counts.
    fn passing() {
        let lock = Arc::new(FairLock::new(PASSED_MAX));
        let got_it = Arc::new(AtomicBool::new(false));
        let mut held = Some(lock.lock());
        let waiter = thread::spawn({
            let (lock, got_it) = (Arc::clone(&lock), Arc::clone(&got_it));
            move || {
                let _held = lock.lock();
                got_it.store(true, Ordering::SeqCst);
            }
        });
        let mut passed = 0;
        for _ in 0..12 {
            let waits = lock.waiting() == 1;
            drop(held.take());
            held = Some(lock.lock());
            if got_it.load(Ordering::SeqCst) {
                break;
            }
            passed += u32::from(waits);
            assert!(passed <= PASSED_MAX, "passed {passed} times");
        }
        drop(held);
        waiter.join().unwrap();
    }

    #[test]
    fn shuttle_one_at_a_time_holds_it_and_no_wake_is_lost() {
        shuttle::check_random(scene, 20_000);
        shuttle::check_pct(scene, 20_000, 3);
    }

    #[test]
    fn shuttle_nobody_is_passed_too_often() {
        shuttle::check_random(passing, 20_000);
        shuttle::check_pct(passing, 20_000, 3);
    }
}
