//! A few threads that share the background jobs of a store. A job works in steps, as a [`Worker`]
//! does. A thread takes a high-priority step before a low-priority one, except that a low-priority
//! job goes first after [`PASSED_OVER_MAX`] steps of others.
//!
//! Invariants:
//! 1. A job takes one step at a time. No ring of its bell is lost: a ring during a step causes
//!    another step.
//! 2. Steps of low-priority jobs never occupy all threads, unless there is only one. A
//!    high-priority job that finds all threads occupied waits for the end of one step.
//! 3. [`Job::stop`] returns when the running step of the job has ended and the job's closure was
//!    dropped, unless a step of the job calls it. No step of it begins afterwards.
//! 4. A step that panics ends its job, not the thread. The alarm of the job is called.
//! 5. While steps are due later, one thread sleeps until the first of them is due; the other
//!    threads sleep until they are woken.
//!
//! [`Worker`]: crate::worker::Worker

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;

use crate::clock::{Clock, SystemClock};
use crate::mutex::lock;
use crate::thread::spawn;
use crate::worker::{Bell, Next, SLEEP_MAX, Woken};

/// The urgency of a job's steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobPriority {
    /// Other threads wait for its steps.
    High,
    /// No thread waits for it.
    Low,
}

/// While no low-priority step runs, a low-priority job goes first after this many steps of others.
/// Without this, high-priority jobs that always have work would starve it.
const PASSED_OVER_MAX: u64 = 4;

/// The job whose step a thread runs, for tests.
#[cfg(any(test, feature = "testing"))]
pub mod running {
    use std::cell::Cell;

    use super::{Next, Woken};

    thread_local! {
        static JOB: Cell<Option<&'static str>> = const { Cell::new(None) };
    }

    /// The name of the job whose step the calling thread runs.
    pub fn job() -> Option<&'static str> {
        JOB.get()
    }

    pub(super) fn named(
        name: &'static str,
        mut step: impl FnMut(Woken) -> Next + Send + 'static,
    ) -> impl FnMut(Woken) -> Next + Send + 'static {
        move |woken| {
            JOB.set(Some(name));
            let next = step(woken);
            JOB.set(None);
            next
        }
    }
}

type Step = Box<dyn FnMut(Woken) -> Next + Send>;

/// A step, and the function to call if it panics.
struct Work {
    step: Step,
    alarm: Box<dyn Fn() + Send>,
}

/// A job in the list.
struct Entry {
    id: u64,
    priority: JobPriority,
    bell: Arc<Bell>,
    /// `None` while a thread runs a step.
    work: Option<Work>,
    runner: Option<ThreadId>,
    /// Rings of the bell before the last step.
    seen: Option<u64>,
    /// The request of the last step; `None` before the first one.
    next: Option<Next>,
    /// The time at which the next step is due, if the last one set a limit, by the pool's clock.
    due: Option<u64>,
    /// The number of steps of all jobs before the last step of this one. Of jobs with the same
    /// priority, the one that has waited longest goes first.
    turn: u64,
}

impl Entry {
    /// Why a step is due, if it is.
    fn woken(&self, now: u64) -> Option<Woken> {
        self.work.as_ref()?;
        let rings = self.bell.rings()?;
        match self.next {
            None => Some(Woken::Rung),
            _ if self.seen != Some(rings) => Some(Woken::Rung),
            Some(Next::Again) => Some(Woken::Again),
            _ => self.due.filter(|due| *due <= now).map(|_| Woken::TimedOut),
        }
    }

    fn must_end(&self) -> bool {
        self.work.is_some() && self.bell.rings().is_none()
    }
}

#[derive(Default)]
struct State {
    jobs: Vec<Entry>,
    last_id: u64,
    steps: u64,
    threads: usize,
    /// Threads that run a step of a low-priority job.
    low_running: usize,
    /// The time at which the thread that sleeps with a timeout wakes up; `None` if no thread does.
    watched_until: Option<u64>,
    is_closing: bool,
}

/// The state that the threads share.
struct Shared {
    state: Mutex<State>,
    /// There may be a step to take.
    changed: Condvar,
    /// A step has ended.
    stepped: Condvar,
    threads_max: usize,
    clock: SystemClock,
}

/// The pool of threads. They end when the pool is dropped.
pub struct JobPool {
    shared: Arc<Shared>,
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl JobPool {
    /// A pool of at most this many threads, which start with the jobs.
    pub fn new(threads_max: usize) -> Arc<Self> {
        let shared = Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            stepped: Condvar::new(),
            threads_max: threads_max.max(1),
            clock: SystemClock::new(),
        };
        Arc::new(Self { shared: Arc::new(shared), handles: Mutex::default() })
    }

    /// Starts a job that takes a `step` now, and again whenever the last step or `bell` requests
    /// one. `alarm` is called if a step panics.
    ///
    /// # Errors
    ///
    /// The system cannot create a thread.
    pub fn start(
        self: &Arc<Self>,
        name: &'static str,
        priority: JobPriority,
        bell: &Arc<Bell>,
        alarm: impl Fn() + Send + 'static,
        step: impl FnMut(Woken) -> Next + Send + 'static,
    ) -> io::Result<Job> {
        #[cfg(any(test, feature = "testing"))]
        let step = running::named(name, step);
        self.add_thread()?;
        let shared = Arc::downgrade(&self.shared);
        bell.set_callback(move || {
            if let Some(shared) = shared.upgrade() {
                shared.notify();
            }
        });
        let mut state = self.shared.state();
        state.last_id += 1;
        let id = state.last_id;
        state.jobs.push(Entry {
            id,
            priority,
            bell: Arc::clone(bell),
            work: Some(Work { step: Box::new(step), alarm: Box::new(alarm) }),
            runner: None,
            seen: None,
            next: None,
            due: None,
            turn: 0,
        });
        drop(state);
        self.shared.changed.notify_one();
        Ok(Job {
            job_pool: Arc::clone(self),
            id,
            name,
            bell: Arc::clone(bell),
            is_stopped: AtomicBool::new(false),
        })
    }

    /// Ends the threads and waits for them. No job takes a step afterwards.
    pub fn end(&self) {
        self.shared.state().is_closing = true;
        self.shared.changed.notify_all();
        let handles = std::mem::take(&mut *lock(&self.handles));
        for handle in handles {
            // A step may be the caller.
            if handle.thread().id() != std::thread::current().id() {
                let _ = handle.join();
            }
        }
    }

    /// Starts one more thread, if there may be more.
    fn add_thread(&self) -> io::Result<()> {
        let mut handles = lock(&self.handles);
        let mut state = self.shared.state();
        if state.threads == self.shared.threads_max || state.threads > state.jobs.len() {
            return Ok(());
        }
        state.threads += 1;
        drop(state);
        let shared = Arc::clone(&self.shared);
        match spawn("plimsoll-work", move || shared.work()) {
            Ok(handle) => {
                handles.push(handle);
                Ok(())
            }
            Err(error) => {
                self.shared.state().threads -= 1;
                Err(error)
            }
        }
    }
}

impl Drop for JobPool {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    /// Wakes a thread after a bell was rung.
    fn notify(&self) {
        // Lock and unlock, so that a thread that found no ring is asleep and receives the
        // notification.
        drop(self.state());
        self.changed.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No step runs under this lock.
        lock(&self.state)
    }

    /// The body of a thread.
    fn work(&self) {
        let mut state = self.state();
        while !state.is_closing {
            let now = self.clock.monotonic_nanos();
            if let Some((at, woken)) = self.choose(&state, now) {
                state = self.run(state, at, woken);
                continue;
            }
            state = self.sleep(state, now);
        }
        drop(state);
        #[cfg(any(test, feature = "testing"))]
        crate::worker::sleeps::end();
    }

    /// Whether a step of a job leaves a thread to high-priority jobs.
    fn may_run(&self, state: &State, entry: &Entry) -> bool {
        entry.priority == JobPriority::High || state.low_running + 1 < self.threads_max.max(2)
    }

    /// The next step that is due.
    fn choose(&self, state: &State, now: u64) -> Option<(usize, Woken)> {
        let due = |entry: &Entry| {
            if entry.must_end() { Some(Woken::Rung) } else { entry.woken(now) }
        };
        let order = |entry: &Entry| {
            let is_passed_over =
                state.low_running == 0 && state.steps - entry.turn >= PASSED_OVER_MAX;
            let class = match entry.priority {
                JobPriority::Low if is_passed_over => 0,
                JobPriority::High => 1,
                JobPriority::Low => 2,
            };
            (class, entry.turn)
        };
        let (at, _, woken) = (state.jobs.iter().enumerate())
            .filter(|(_, entry)| self.may_run(state, entry) || entry.must_end())
            .filter_map(|(at, entry)| Some((at, order(entry), due(entry)?)))
            .min_by_key(|(_, order, _)| *order)?;
        Some((at, woken))
    }

    /// Takes a step of a job.
    fn run<'s>(
        &'s self,
        mut state: MutexGuard<'s, State>,
        at: usize,
        woken: Woken,
    ) -> MutexGuard<'s, State> {
        state.steps += 1;
        let steps = state.steps;
        let entry = &mut state.jobs[at];
        let (id, is_low) = (entry.id, entry.priority == JobPriority::Low);
        let mut work = entry.work.take().expect("chosen: no thread runs it");
        (entry.turn, entry.runner) = (steps, Some(std::thread::current().id()));
        let Some(rings) = entry.bell.rings() else { return self.remove(state, id, work) };
        entry.seen = Some(rings);
        state.low_running += usize::from(is_low);
        let (watched_until, now) = (state.watched_until, self.clock.monotonic_nanos());
        let needs_thread = |entry: &Entry| {
            entry.work.is_some()
                && (entry.woken(now).is_some()
                    || entry.due.is_some_and(|due| is_before(due, watched_until)))
        };
        let needs_another = state.jobs.iter().any(needs_thread);
        drop(state);
        if needs_another {
            // The other thread takes the next step, or sleeps until one is due.
            self.changed.notify_one();
        }
        let next = catch_unwind(AssertUnwindSafe(|| (work.step)(woken)));
        let next = next.unwrap_or_else(|_| {
            let _ = catch_unwind(AssertUnwindSafe(|| (work.alarm)()));
            Next::End
        });
        let mut state = self.state();
        state.low_running -= usize::from(is_low);
        let entry = state.jobs.iter_mut().find(|entry| entry.id == id);
        // A step may have stopped its own job.
        let Some(entry) = entry.filter(|_| next != Next::End) else {
            return self.remove(state, id, work);
        };
        entry.runner = None;
        entry.next = Some(next);
        entry.due = match next {
            Next::Within(time) => {
                Some(self.clock.monotonic_nanos() + time.min(SLEEP_MAX).as_nanos() as u64)
            }
            Next::Again | Next::Rung | Next::End => None,
        };
        entry.work = Some(work);
        self.stepped.notify_all();
        if is_low {
            // A low-priority job may have waited for this thread.
            self.changed.notify_one();
        }
        state
    }

    /// Drops the closures of a job, then the job, so that they own nothing once [`Job::stop`] finds
    /// no job.
    fn remove<'s>(
        &'s self,
        state: MutexGuard<'s, State>,
        id: u64,
        work: Work,
    ) -> MutexGuard<'s, State> {
        drop(state);
        // Dropped without the lock, because they may own anything, even jobs of this pool.
        drop(work);
        let mut state = self.state();
        state.jobs.retain(|entry| entry.id != id);
        self.stepped.notify_all();
        self.changed.notify_one();
        state
    }

    /// Sleeps until there may be a step: one thread until the first job is due, the others until
    /// they are woken.
    fn sleep<'s>(&'s self, mut state: MutexGuard<'s, State>, now: u64) -> MutexGuard<'s, State> {
        let may_run = |entry: &&Entry| entry.work.is_some() && self.may_run(&state, entry);
        let idle = state.jobs.iter().filter(may_run);
        let first = idle.filter_map(|entry| entry.due).min();
        let first = first.filter(|due| is_before(*due, state.watched_until));
        let time = first.map_or(SLEEP_MAX, |due| Duration::from_nanos(due.saturating_sub(now)));
        #[cfg(any(test, feature = "testing"))]
        crate::worker::sleeps::note(time);
        let Some(due) = first else {
            return self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        state.watched_until = Some(due);
        let waited = self.changed.wait_timeout(state, time);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.watched_until == Some(due) {
            state.watched_until = None;
        }
        state
    }
}

/// Whether `due` is before the thread that sleeps with a timeout wakes up.
fn is_before(due: u64, watched_until: Option<u64>) -> bool {
    watched_until.is_none_or(|until| due < until)
}

/// A job; stopped on drop.
pub struct Job {
    job_pool: Arc<JobPool>,
    id: u64,
    name: &'static str,
    bell: Arc<Bell>,
    is_stopped: AtomicBool,
}

impl Job {
    /// Ends the job and waits for its running step, unless that step is the caller. Returns whether
    /// this is the first call.
    pub fn stop(&self) -> bool {
        self.bell.stop();
        let is_first = !self.is_stopped.swap(true, Ordering::AcqRel);
        let shared = &self.job_pool.shared;
        let mut state = shared.state();
        let here = std::thread::current().id();
        loop {
            let Some(at) = state.jobs.iter().position(|entry| entry.id == self.id) else {
                return is_first;
            };
            let entry = &state.jobs[at];
            if entry.work.is_some() || entry.runner == Some(here) {
                // A step that is running finds at its end that its job has ended.
                let ended = state.jobs.swap_remove(at);
                drop(state);
                drop(ended);
                return is_first;
            }
            state = shared.stepped.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Job({})", self.name)
    }
}

impl fmt::Debug for JobPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobPool(of {})", self.shared.threads_max)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// A job whose steps report their name, and wait until they are told how to continue.
    fn held(
        job_pool: &Arc<JobPool>,
        name: &'static str,
        priority: JobPriority,
        begun: &Sender<&'static str>,
    ) -> (Job, Arc<Bell>, Sender<Next>) {
        let (bell, begun, (resume_tx, told)) =
            (Arc::new(Bell::default()), begun.clone(), channel());
        let step = move |_| {
            assert_eq!(running::job(), Some(name));
            begun.send(name).unwrap();
            told.recv_timeout(LONG).unwrap()
        };
        (job_pool.start(name, priority, &bell, || {}, step).unwrap(), bell, resume_tx)
    }

    fn all(begun: &Receiver<&'static str>, steps: usize) -> Vec<&'static str> {
        let mut all: Vec<_> = (0..steps).map(|_| begun.recv_timeout(LONG).unwrap()).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn low_priority_jobs_leave_a_thread_to_high_priority_ones() {
        let (job_pool, (told, begun)) = (JobPool::new(2), channel());
        let (one, _, end_one) = held(&job_pool, "one", JobPriority::Low, &told);
        assert_eq!(all(&begun, 1), ["one"]);
        let (two, _, end_two) = held(&job_pool, "two", JobPriority::Low, &told);
        let (prompt, bell, end_prompt) = held(&job_pool, "prompt", JobPriority::High, &told);
        assert_eq!(all(&begun, 1), ["prompt"]);
        end_prompt.send(Next::Rung).unwrap();
        bell.ring();
        assert_eq!(all(&begun, 1), ["prompt"], "\"two\" waits");
        end_one.send(Next::Rung).unwrap();
        assert_eq!(all(&begun, 1), ["two"]);
        end_two.send(Next::End).unwrap();
        end_prompt.send(Next::End).unwrap();
        assert!(one.stop() && !one.stop() && two.stop() && prompt.stop());
    }

    #[test]
    fn a_low_priority_job_gets_steps_while_high_priority_ones_are_always_due() {
        let (job_pool, (told, begun)) = (JobPool::new(2), channel());
        let jobs =
            [("one", JobPriority::High), ("two", JobPriority::High), ("other", JobPriority::Low)]
                .map(|(name, priority)| held(&job_pool, name, priority, &told));
        let mut others = 0;
        for _ in 0..60 {
            let name = begun.recv_timeout(LONG).unwrap();
            let at = jobs.iter().position(|(job, _, _)| job.name == name).unwrap();
            jobs[at].2.send(Next::Again).unwrap();
            others += usize::from(name == "other");
        }
        assert!((8..=30).contains(&others), "{others} of 60 steps");
        jobs.iter().for_each(|(_, bell, _)| bell.stop());
        jobs.iter().for_each(|(_, _, resume_tx)| {
            let _ = resume_tx.send(Next::End);
        });
    }

    #[test]
    fn one_thread_runs_all_jobs_in_turn() {
        let (job_pool, (told, begun)) = (JobPool::new(1), channel());
        let jobs: Vec<_> =
            ["a", "b", "c"].map(|name| held(&job_pool, name, JobPriority::Low, &told)).into();
        for _ in 0..2 {
            let mut names = Vec::new();
            for _ in 0..3 {
                let name = begun.recv_timeout(LONG).unwrap();
                let at = jobs.iter().position(|(job, _, _)| job.name == name).unwrap();
                jobs[at].2.send(Next::Again).unwrap();
                names.push(name);
            }
            names.sort_unstable();
            assert_eq!(names, ["a", "b", "c"], "each has waited longest once");
        }
        begun.recv_timeout(LONG).unwrap();
        jobs.iter().for_each(|(_, bell, _)| bell.stop());
        jobs.iter().for_each(|(_, _, resume_tx)| {
            let _ = resume_tx.send(Next::End);
        });
    }

    #[test]
    fn a_ring_during_a_step_and_a_timeout_lead_to_further_steps() {
        let (job_pool, bell, (told, woken)) =
            (JobPool::new(2), Arc::new(Bell::default()), channel());
        let (rung, resume_tx) = channel();
        let mut steps = 0;
        let step = move |reason| {
            told.send(reason).unwrap();
            steps += 1;
            match steps {
                1 => {
                    let () = resume_tx.recv_timeout(LONG).unwrap();
                    Next::Rung
                }
                2 => Next::Within(Duration::from_millis(1)),
                3 => Next::Again,
                _ => Next::Rung,
            }
        };
        let _job = job_pool.start("job", JobPriority::High, &bell, || {}, step).unwrap();
        assert_eq!(woken.recv_timeout(LONG), Ok(Woken::Rung));
        bell.ring();
        rung.send(()).unwrap();
        for reason in [Woken::Rung, Woken::TimedOut, Woken::Again] {
            assert_eq!(woken.recv_timeout(LONG), Ok(reason));
        }
        bell.ring();
        assert_eq!(woken.recv_timeout(LONG), Ok(Woken::Rung));
    }

    #[test]
    fn a_step_that_is_due_before_the_one_that_a_thread_sleeps_for_is_taken_in_time() {
        let (job_pool, bells) = (JobPool::new(2), [(); 2].map(|()| Arc::new(Bell::default())));
        let (told, woken) = channel();
        let rests = |_| Next::Within(LONG);
        let _late = job_pool.start("late", JobPriority::Low, &bells[0], || {}, rests).unwrap();
        let step = move |reason| {
            told.send(reason).unwrap();
            if reason == Woken::Rung { Next::Within(Duration::from_millis(1)) } else { Next::Rung }
        };
        let _soon = job_pool.start("soon", JobPriority::High, &bells[1], || {}, step).unwrap();
        for _ in 0..50 {
            assert_eq!(woken.recv_timeout(LONG / 2), Ok(Woken::Rung));
            assert_eq!(woken.recv_timeout(LONG / 2), Ok(Woken::TimedOut));
            std::thread::yield_now();
            bells[1].ring();
        }
    }

    #[test]
    fn a_panic_ends_the_job_and_calls_its_alarm() {
        let (job_pool, (told, alarm)) = (JobPool::new(1), channel());
        let bell = Arc::new(Bell::default());
        let job = job_pool.start(
            "job",
            JobPriority::High,
            &bell,
            move || told.send(()).unwrap(),
            |_| panic!("on purpose"),
        );
        assert_eq!(alarm.recv_timeout(LONG), Ok(()));
        assert!(job.unwrap().stop());
        let (told, begun) = channel();
        let (_job, _, resume_tx) = held(&job_pool, "next", JobPriority::High, &told);
        assert_eq!(all(&begun, 1), ["next"], "the thread goes on");
        resume_tx.send(Next::Rung).unwrap();
    }

    /// Takes the pool's lock when it is dropped, and reports that it was.
    struct Owned(Arc<JobPool>, Arc<Bell>, Sender<()>);

    impl Drop for Owned {
        fn drop(&mut self) {
            self.1.ring();
            drop(self.0.shared.state());
            let _ = self.2.send(());
        }
    }

    #[test]
    fn a_job_has_dropped_what_its_closure_owns_when_it_is_stopped() {
        for seed in 0..30 {
            let (job_pool, bell) = (JobPool::new(2), Arc::new(Bell::default()));
            let (told, dropped) = channel();
            let owned = Owned(Arc::clone(&job_pool), Arc::clone(&bell), told);
            let step = move |_| {
                let _ = &owned;
                Next::Again
            };
            let job = job_pool.start("job", JobPriority::High, &bell, || {}, step).unwrap();
            (0..seed).for_each(|_| std::thread::yield_now());
            // A thread may find this before the job is stopped.
            bell.stop();
            (0..seed % 7).for_each(|_| std::thread::yield_now());
            job.stop();
            assert_eq!(dropped.try_recv(), Ok(()), "seed {seed}");
        }
    }

    #[test]
    fn a_step_that_stops_its_own_job_drops_its_closure_without_the_lock() {
        let (job_pool, bell) = (JobPool::new(1), Arc::new(Bell::default()));
        let (give, given) = channel::<Job>();
        let (told, dropped) = channel();
        let owned = Owned(Arc::clone(&job_pool), Arc::clone(&bell), told);
        let step = move |_| {
            let _ = &owned;
            given.recv_timeout(LONG).unwrap().stop();
            Next::Again
        };
        give.send(job_pool.start("job", JobPriority::High, &bell, || {}, step).unwrap()).unwrap();
        assert_eq!(dropped.recv_timeout(LONG), Ok(()));
    }

    #[test]
    fn a_step_may_stop_its_own_job() {
        let (job_pool, bell) = (JobPool::new(1), Arc::new(Bell::default()));
        let (give, given) = channel::<Job>();
        let (told, stopped) = channel();
        let step = move |_| {
            let job = given.recv_timeout(LONG).unwrap();
            told.send(job.stop()).unwrap();
            Next::Again
        };
        give.send(job_pool.start("job", JobPriority::High, &bell, || {}, step).unwrap()).unwrap();
        assert_eq!(stopped.recv_timeout(LONG), Ok(true));
        drop(job_pool);
    }
}
