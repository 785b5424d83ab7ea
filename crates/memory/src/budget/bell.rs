//! The bell: wakes the evictor when room (free frames or free chunks) runs short.
//!
//! ```text
//! evictor:   arm, check once more, sleep
//! taker:     take (under its lock), see little room, ring if armed
//! ```
//!
//! Invariant: no ring is lost. Room is counted under a lock. The evictor's last check sees every
//! taker that held the lock before it; a taker that takes the lock later sees the bell armed. Only
//! the first taker to ring pays for the wake-up; later takers see the bell disarmed.

use std::fmt;
use std::sync::Arc;

use plimsoll_disk::clock::Clock;

use crate::sync::{AtomicBool, Condvar, Mutex, MutexGuard, Ordering};

/// Why the evictor was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Free frames of the pool fell below their low watermark.
    Frames,
    /// Free chunks of the budget fell below their low watermark.
    Chunks,
    /// A caller found no room, and evicted inline.
    Inline,
    /// Too few free chunks are pre-faulted.
    NeverTaken,
}

pub(crate) struct Bell {
    armed: AtomicBool,
    clock: Arc<dyn Clock>,
    state: Mutex<Calls>,
    rung: Condvar,
}

#[derive(Default)]
struct Calls {
    /// Cause and time of the last call.
    call: Option<(Cause, u64)>,
    closing: bool,
}

impl Bell {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            armed: AtomicBool::new(false),
            clock,
            state: Mutex::new(Calls::default()),
            rung: Condvar::new(),
        }
    }

    /// Wakes the evictor if it sleeps. Call it after releasing the lock under which room was
    /// counted.
    pub(crate) fn ring(&self, cause: Cause) {
        // Relaxed: the lock under which room is counted orders this after `arm`, see above.
        if self.armed.load(Ordering::Relaxed) && self.armed.swap(false, Ordering::Relaxed) {
            self.lock().call = Some((cause, self.clock.monotonic_nanos()));
            self.rung.notify_one();
        }
    }

    /// Whether [`Bell::ring`] would wake the evictor. Call it under the lock under which room is
    /// counted.
    pub(crate) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed)
    }

    /// Arms the bell: from here on, takers that find little room ring.
    pub(crate) fn arm(&self) {
        self.armed.store(true, Ordering::Relaxed);
    }

    /// Disarms the bell while the evictor works.
    pub(crate) fn disarm(&self) {
        self.armed.store(false, Ordering::Relaxed);
        self.lock().call = None;
    }

    /// Sleeps until the bell rings. Returns cause and time, or `None` if it was closed.
    pub(crate) fn wait(&self) -> Option<(Cause, u64)> {
        let mut calls = self.lock();
        loop {
            if calls.closing {
                return None;
            }
            match calls.call.take() {
                Some(call) => return Some(call),
                None => calls = self.rung.wait(calls).expect("no code under this lock panics"),
            }
        }
    }

    /// Ends the present `wait` and all later ones.
    pub(crate) fn close(&self) {
        self.lock().closing = true;
        self.rung.notify_one();
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.lock().closing
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.state.lock().expect("no code under this lock panics")
    }
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bell")
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;
    use plimsoll_disk::clock::ManualClock;

    use super::{Bell, Cause, Mutex};

    fn bell() -> Bell {
        Bell::new(std::sync::Arc::new(ManualClock::new(0)))
    }

    /// Free room under a lock, as the pool and the budget count it, and the bell.
    struct Model {
        free: Mutex<u32>,
        bell: Bell,
    }

    impl Model {
        fn take(&self) {
            let mut free = self.free.lock().unwrap();
            *free -= 1;
            let little = *free < 2;
            drop(free);
            if little {
                self.bell.ring(Cause::Frames);
            }
        }

        /// The evictor's loop until there is enough room. Loom reports a sleep that never ends.
        fn keep_room(&self) {
            loop {
                self.bell.arm();
                if *self.free.lock().unwrap() < 2 {
                    self.bell.disarm();
                    *self.free.lock().unwrap() = 10;
                    return;
                }
                self.bell.wait();
            }
        }
    }

    #[test]
    fn loom_ring_between_check_and_sleep_is_not_lost() {
        loom::model(|| {
            let model = Arc::new(Model { free: Mutex::new(3), bell: bell() });
            let takers = [(); 2].map(|()| {
                let model = Arc::clone(&model);
                thread::spawn(move || model.take())
            });
            model.keep_room();
            takers.into_iter().for_each(|taker| taker.join().unwrap());
        });
    }

    #[test]
    fn loom_close_ends_wait() {
        loom::model(|| {
            let bell = Arc::new(bell());
            let closer = thread::spawn({
                let bell = Arc::clone(&bell);
                move || bell.close()
            });
            bell.arm();
            assert_eq!(bell.wait(), None);
            closer.join().unwrap();
            assert!(bell.is_closing());
        });
    }
}
