//! A FIFO queue of threads that wait for memory, each for a bounded time.
//!
//! Laws:
//! 1. Only the first in the queue retries. A thread that arrives while others wait queues behind them, even if memory
//!    has just come free.
//! 2. No thread waits longer than the queue's patience, apart from its own attempts.
//! 3. If nothing was given back since a thread waited in vain, the next is refused at once: it would wait in vain, too.
//!
//! Memory that the page pool and the object cache give back does not count: an attempt asks them itself.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use plimsoll_disk::clock::{Clock, SystemClock};

use super::Budget;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// The first in the queue retries after this time at the latest: memory may become available without being given back
/// (a page is released).
const STEP: Duration = Duration::from_millis(5);

/// Where a thread that arrives while others wait enters the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// It may try before them, because it probably needs no more memory.
    Ahead,
    /// Behind them.
    Behind,
}

/// The queue.
pub struct WaitQueue {
    budget: Budget,
    patience: Duration,
    clock: SystemClock,
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<u64>,
    next: u64,
    /// The count of returned chunks when a thread last waited in vain.
    in_vain: Option<u64>,
}

impl WaitQueue {
    /// A queue for memory of `budget`; a thread waits in it for up to `patience`.
    pub fn new(budget: &Budget, patience: Duration) -> Self {
        Self {
            budget: budget.clone(),
            patience,
            clock: SystemClock::new(),
            state: Mutex::new(State::default()),
            moved: Condvar::new(),
        }
    }

    /// Makes an attempt. If it is refused for lack of memory, calls `relieve` once, and retries whenever memory was
    /// given back, until it succeeds, fails otherwise, or the patience is over.
    ///
    /// # Errors
    /// The error of the last attempt.
    pub fn attempt<T, E>(
        &self,
        order: Order,
        is_refusal: impl Fn(&E) -> bool,
        relieve: impl FnOnce(),
        mut attempt: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        if self.patience.is_zero() {
            return attempt();
        }
        if order == Order::Ahead || self.lock().waiting.is_empty() {
            match attempt() {
                Err(error) if is_refusal(&error) => {}
                done => return done,
            }
        }
        let start = self.clock.monotonic_nanos();
        let place = self.stand();
        let mut relieve = Some(relieve);
        self.budget.note_wait();
        loop {
            let is_over = self.clock.monotonic_nanos() - start >= self.patience.as_nanos() as u64;
            if !is_over && !self.is_first(&place) {
                continue;
            }
            let given = self.budget.given();
            if let Some(relieve) = relieve.take() {
                relieve();
            }
            match attempt() {
                Err(error) if is_refusal(&error) => {
                    let mut state = self.lock();
                    if is_over {
                        state.in_vain = Some(given);
                    }
                    if is_over || state.in_vain == Some(given) {
                        return Err(error);
                    }
                }
                done => return done,
            }
            self.budget.wait_given(given, STEP);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code under this lock panics")
    }

    /// Joins the end of the queue.
    fn stand(&self) -> Standing<'_> {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.waiting.push_back(number);
        Standing { queue: self, number }
    }

    /// Whether a thread is the first; if not, after waiting for a step.
    fn is_first(&self, place: &Standing<'_>) -> bool {
        let state = self.lock();
        let is_first = state.waiting.front() == Some(&place.number);
        if !is_first {
            drop(self.moved.wait_timeout(state, STEP));
        }
        is_first
    }
}

impl fmt::Debug for WaitQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WaitQueue({} wait)", self.lock().waiting.len())
    }
}

/// A place in the queue; left on drop.
struct Standing<'a> {
    queue: &'a WaitQueue,
    number: u64,
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.waiting.retain(|number| *number != self.number);
        drop(state);
        self.queue.moved.notify_all();
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::budget::chunk::{CHUNK_BYTES, Chunk};
    use crate::budget::{Backing, Kind, OutOfBudget};

    const LONG: Duration = Duration::from_secs(600);

    fn full(chunks: u64) -> (Budget, Vec<Chunk>) {
        let budget = Budget::new(chunks * CHUNK_BYTES as u64, Backing::Heap).unwrap();
        let held = (0..chunks).map(|_| budget.take(Kind::Memtable).unwrap()).collect();
        (budget, held)
    }

    fn take(queue: &WaitQueue, budget: &Budget) -> Result<Chunk, OutOfBudget> {
        queue.attempt(Order::Behind, |_| true, || {}, || budget.take(Kind::WriteSet))
    }

    /// Waits until this many threads are in the queue.
    fn await_waiting(queue: &WaitQueue, count: usize) {
        while queue.lock().waiting.len() < count {
            std::thread::yield_now();
        }
    }

    #[test]
    fn those_who_wait_are_served_in_the_order_in_which_they_came() {
        let (budget, mut held) = full(4);
        let queue = WaitQueue::new(&budget, LONG);
        let served = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for number in 0..4 {
                let (queue, budget, served) = (&queue, &budget, &served);
                scope.spawn(move || {
                    let chunk = take(queue, budget).unwrap();
                    served.lock().unwrap().push(number);
                    // Kept until all are served.
                    while served.lock().unwrap().len() < 4 {
                        std::thread::yield_now();
                    }
                    drop(chunk);
                });
                await_waiting(queue, number + 1);
            }
            for left in (0..4).rev() {
                drop(held.pop());
                await_served(&served, 4 - left);
            }
        });
        assert_eq!(*served.lock().unwrap(), [0, 1, 2, 3]);
        assert!(budget.pressure().waits >= 4);
        assert_eq!(budget.free_bytes(), budget.limit_bytes());
    }

    fn await_served(served: &Mutex<Vec<usize>>, count: usize) {
        while served.lock().unwrap().len() < count {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_wait_is_bounded_and_where_nothing_came_back_the_next_is_refused_at_once() {
        let (budget, held) = full(1);
        let queue = WaitQueue::new(&budget, Duration::from_millis(20));
        take(&queue, &budget).unwrap_err();
        // With more patience than a test has.
        let state = Mutex::new(std::mem::take(&mut *queue.lock()));
        let queue = WaitQueue { patience: LONG, state, ..queue };
        take(&queue, &budget).unwrap_err();
        let before = queue.lock().in_vain;
        assert!(before.is_some());
        drop(held);
        take(&queue, &budget).unwrap();
    }

    #[test]
    fn what_relieves_is_asked_for_once_and_before_any_wait() {
        let (budget, held) = full(1);
        let queue = WaitQueue::new(&budget, LONG);
        let mut held = Some(held);
        let asked = AtomicBool::new(false);
        let relieve = || {
            assert!(!asked.swap(true, Ordering::Relaxed));
            drop(held.take());
        };
        queue.attempt(Order::Behind, |_: &OutOfBudget| true, relieve, || budget.take(Kind::WriteSet)).unwrap();
        assert!(asked.load(Ordering::Relaxed));
    }
}
