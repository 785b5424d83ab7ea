//! A FIFO queue of threads that wait for memory while other holders are returning some.
//!
//! Invariants:
//! 1. Only the first in the queue retries; a thread whose wait is over makes one last attempt. A
//!    thread that arrives while others wait queues behind them, even if memory has just come free.
//!    With [`Order::First`], it makes one attempt before it queues.
//! 2. A thread gives up after [`WaitLimits::idle`] without progress: no memory was returned, no
//!    waiter was served, and no operation that frees memory is in progress. Even with progress, it
//!    gives up after [`WaitLimits::longest`], plus the time of its last attempt.
//! 3. If no memory was returned since a wait timed out, and no operation that frees memory is in
//!    progress, the next request is refused at once, because it would time out too.
//!
//! Memory that the page pool and the object cache return does not count, because each attempt asks
//! them itself.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use plimsoll_disk::clock::{Clock, SystemClock};

use super::Budget;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// The first in the queue retries after this time at the latest, because memory may become
/// available without being returned (a page is released).
const STEP: Duration = Duration::from_millis(5);

/// The order of a thread that arrives while others wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The thread makes one attempt before it queues behind the waiters, because it probably needs
    /// no more memory.
    First,
    /// The thread queues behind the waiters at once.
    Last,
}

/// The limits of a thread's wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitLimits {
    /// The limit without progress. Zero disables waiting.
    pub idle: Duration,
    /// The limit even with progress.
    pub longest: Duration,
}

/// Frees memory for waiting threads.
pub trait Relief {
    /// Requests that memory be freed; returns whether that was possible. Called until it succeeds.
    fn ask(&self) -> bool;

    /// Whether an operation that frees memory is in progress.
    fn is_under_way(&self) -> bool;
}

/// The queue.
pub struct WaitQueue {
    budget: Budget,
    limits: WaitLimits,
    clock: SystemClock,
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<u64>,
    next: u64,
    /// Number of waiters served.
    served: u64,
    /// The count of returned chunks when a wait last timed out.
    in_vain: Option<u64>,
}

impl WaitQueue {
    /// A queue for memory of `budget`.
    pub fn new(budget: &Budget, limits: WaitLimits) -> Self {
        Self {
            budget: budget.clone(),
            limits,
            clock: SystemClock::new(),
            state: Mutex::new(State::default()),
            moved: Condvar::new(),
        }
    }

    /// Calls `attempt`. If it is refused for lack of memory, asks for `relief` and retries whenever
    /// memory was returned, until it succeeds, fails for another reason, or the limit is reached.
    ///
    /// # Errors
    /// The error of the last attempt.
    pub fn attempt<T, E>(
        &self,
        order: Order,
        is_refusal: impl Fn(&E) -> bool,
        relief: &dyn Relief,
        mut attempt: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        if self.limits.idle.is_zero() {
            return attempt();
        }
        if order == Order::First || self.lock().waiting.is_empty() {
            match attempt() {
                Err(error) if is_refusal(&error) => {}
                done => return done,
            }
        }
        let place = self.enqueue();
        let mut waited = Waited::begin(self.clock.monotonic_nanos(), self.moves());
        let mut is_asked = false;
        self.budget.note_wait();
        loop {
            let is_under_way = relief.is_under_way();
            let is_over = waited.is_over(
                self.clock.monotonic_nanos(),
                self.moves(),
                is_under_way,
                self.limits,
            );
            if !is_over && !self.is_first(&place) {
                continue;
            }
            let given = self.budget.releases();
            is_asked = is_asked || relief.ask();
            match attempt() {
                Err(error) if is_refusal(&error) => {
                    let mut state = self.lock();
                    if is_over {
                        state.in_vain = Some(given);
                    }
                    let is_in_vain =
                        is_asked && state.in_vain == Some(given) && !relief.is_under_way();
                    if is_over || is_in_vain {
                        return Err(error);
                    }
                }
                done => {
                    self.lock().served += u64::from(done.is_ok());
                    return done;
                }
            }
            self.budget.wait_for_release(given, STEP);
        }
    }

    /// Changes whenever memory was returned, or a thread was served.
    fn moves(&self) -> (u64, u64) {
        let served = self.lock().served;
        (self.budget.releases(), served)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code under this lock panics")
    }

    /// Joins the end of the queue.
    fn enqueue(&self) -> QueueEntry<'_> {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.waiting.push_back(number);
        QueueEntry { queue: self, number }
    }

    /// Returns whether a thread is the first in the queue. If it is not, waits for a step before it
    /// returns.
    fn is_first(&self, place: &QueueEntry<'_>) -> bool {
        let state = self.lock();
        let is_first = state.waiting.front() == Some(&place.number);
        if !is_first {
            drop(self.moved.wait_timeout(state, STEP));
        }
        is_first
    }
}

/// The time that a thread has waited.
struct Waited {
    begun: u64,
    /// Time of the last progress seen, and the counters at that time.
    moved: u64,
    moves: (u64, u64),
}

impl Waited {
    fn begin(now: u64, moves: (u64, u64)) -> Self {
        Self { begun: now, moved: now, moves }
    }

    fn is_over(
        &mut self,
        now: u64,
        moves: (u64, u64),
        is_under_way: bool,
        limits: WaitLimits,
    ) -> bool {
        if is_under_way || moves != self.moves {
            (self.moved, self.moves) = (now, moves);
        }
        let is_past =
            |since: u64, limit: Duration| u128::from(now.saturating_sub(since)) >= limit.as_nanos();
        is_past(self.moved, limits.idle) || is_past(self.begun, limits.longest)
    }
}

impl fmt::Debug for WaitQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WaitQueue({} wait)", self.lock().waiting.len())
    }
}

/// A place in the queue; left on drop.
struct QueueEntry<'a> {
    queue: &'a WaitQueue,
    number: u64,
}

impl Drop for QueueEntry<'_> {
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
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use super::*;
    use crate::budget::chunk::{CHUNK_BYTES, Chunk};
    use crate::budget::{Backing, Kind, OutOfBudget};

    const LONG: WaitLimits =
        WaitLimits { idle: Duration::from_secs(600), longest: Duration::from_secs(600) };

    fn short(idle_millis: u64) -> WaitLimits {
        WaitLimits { idle: Duration::from_millis(idle_millis), ..LONG }
    }

    /// Relief that frees nothing, and may report an operation in progress.
    #[derive(Default)]
    struct Nothing {
        is_under_way: AtomicBool,
    }

    impl Relief for Nothing {
        fn ask(&self) -> bool {
            true
        }

        fn is_under_way(&self) -> bool {
            self.is_under_way.load(Ordering::Relaxed)
        }
    }

    fn full(chunks: u64) -> (Budget, Vec<Chunk>) {
        let budget = Budget::new(chunks * CHUNK_BYTES as u64, Backing::Heap).unwrap();
        let held = (0..chunks).map(|_| budget.take(Kind::Memtable).unwrap()).collect();
        (budget, held)
    }

    fn take(queue: &WaitQueue, budget: &Budget) -> Result<Chunk, OutOfBudget> {
        queue.attempt(Order::Last, |_| true, &Nothing::default(), || budget.take(Kind::WriteSet))
    }

    /// Waits until this many threads are in the queue.
    fn await_waiting(queue: &WaitQueue, count: usize) {
        while queue.lock().waiting.len() < count {
            std::thread::yield_now();
        }
    }

    #[test]
    fn waiters_are_served_in_fifo_order() {
        let (budget, mut held) = full(4);
        let queue = WaitQueue::new(&budget, LONG);
        let served = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for number in 0..4 {
                let (queue, budget, served) = (&queue, &budget, &served);
                scope.spawn(move || {
                    let chunk = take(queue, budget).unwrap();
                    served.lock().unwrap().push(number);
                    // Hold the chunk until all are served.
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
    fn timed_out_wait_refuses_the_next_at_once() {
        let (budget, held) = full(1);
        let queue = WaitQueue::new(&budget, short(20));
        take(&queue, &budget).unwrap_err();
        // A queue that would wait longer than the test runs.
        let state = Mutex::new(std::mem::take(&mut *queue.lock()));
        let queue = WaitQueue { limits: LONG, state, ..queue };
        take(&queue, &budget).unwrap_err();
        let before = queue.lock().in_vain;
        assert!(before.is_some());
        drop(held);
        take(&queue, &budget).unwrap();
    }

    /// Relief that succeeds at the third request.
    struct AtThird {
        asked: AtomicU64,
        held: Mutex<Vec<Chunk>>,
    }

    impl Relief for AtThird {
        fn ask(&self) -> bool {
            let is_possible = self.asked.fetch_add(1, Ordering::Relaxed) == 2;
            if is_possible {
                self.held.lock().unwrap().clear();
            }
            is_possible
        }

        fn is_under_way(&self) -> bool {
            false
        }
    }

    #[test]
    fn relief_is_requested_until_it_succeeds() {
        let (budget, held) = full(1);
        let queue = WaitQueue::new(&budget, LONG);
        let relief = AtThird { asked: AtomicU64::new(0), held: Mutex::new(held) };
        let mut attempts = 0;
        let attempt = || {
            attempts += 1;
            if attempts < 6 { Err(budget.take(Kind::WriteSet).err()) } else { Ok(()) }
        };
        queue.attempt(Order::Last, |_| true, &relief, attempt).unwrap();
        assert_eq!(relief.asked.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn wait_continues_while_memory_is_being_freed() {
        let (budget, held) = full(1);
        let queue = WaitQueue::new(&budget, short(20));
        let relief = Nothing { is_under_way: AtomicBool::new(true) };
        std::thread::scope(|scope| {
            let take = || {
                queue.attempt(
                    Order::Last,
                    |_: &OutOfBudget| true,
                    &relief,
                    || budget.take(Kind::WriteSet),
                )
            };
            let waiting = scope.spawn(move || take().map(drop));
            await_waiting(&queue, 1);
            // Sleep longer than a wait without progress lasts.
            SystemClock::new().sleep(Duration::from_millis(100));
            assert!(!waiting.is_finished());
            drop(held);
            waiting.join().unwrap().unwrap();
        });
    }

    #[test]
    fn wait_ends_when_idle_or_after_the_maximum() {
        let limits =
            WaitLimits { idle: Duration::from_nanos(10), longest: Duration::from_nanos(100) };
        let mut waited = Waited::begin(1000, (0, 0));
        let mut is_over =
            |now, moves, is_under_way| waited.is_over(now, moves, is_under_way, limits);
        assert!(!is_over(1009, (0, 0), false));
        assert!(!is_over(1015, (1, 0), false), "memory was given back");
        assert!(!is_over(1024, (1, 0), false));
        assert!(!is_over(1030, (1, 1), false), "another waiter was served");
        assert!(!is_over(1050, (1, 1), true), "an operation is in progress");
        assert!(!is_over(1059, (1, 1), false));
        assert!(is_over(1060, (1, 1), false), "no progress");
        assert!(is_over(1100, (2, 2), true), "the maximum is reached");
    }

    #[test]
    fn wait_ends_although_memory_keeps_coming_back() {
        let (budget, held) = full(1);
        let limits =
            WaitLimits { idle: Duration::from_secs(600), longest: Duration::from_millis(50) };
        let queue = WaitQueue::new(&budget, limits);
        let relief = Nothing { is_under_way: AtomicBool::new(true) };
        queue
            .attempt(Order::Last, |_: &OutOfBudget| true, &relief, || budget.take(Kind::WriteSet))
            .unwrap_err();
        drop(held);
    }
}
