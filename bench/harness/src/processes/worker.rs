//! A process of the fleet: has the store open, and runs [`Task`]s, one per line.
//!
//! It prints `ready` once the store is open, and answers each task with one line. At the end of its
//! input it closes the store and exits.

use std::io::{BufRead as _, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::Args;
use rustix::time::{ClockId, clock_gettime};

use super::store::{Opening, Store};
use super::task::{Answer, Task};
use crate::payload;
use crate::peer::PeerKind;
use crate::sizes::parse_size;

/// Printed once the store is open.
pub(crate) const READY: &str = "ready";

/// Rows of a commit of a load.
const BATCH: u64 = 1000;

/// Bytes of the values of rows.
pub(crate) const VALUE_BYTES: u64 = 200;

/// The key that [`Task::Tick`] writes.
const TICK: &[u8] = b"tick";

/// Turns of [`Task::Begin`]; the answer has the time of each.
const BEGIN_TURNS: u64 = 20;

/// How long a process waits for an item that does not arrive.
const TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Args, Debug)]
pub(crate) struct ProcessesWorker {
    #[arg(long)]
    store: PathBuf,
    #[arg(long)]
    peer: PeerKind,
    #[arg(long)]
    alone: bool,
    #[arg(long)]
    relaxed: bool,
    #[arg(long)]
    small: bool,
    /// Of all processes together
    #[arg(long, value_parser = parse_size)]
    memory: u64,
    #[arg(long)]
    processes: u64,
    /// Rows of the store
    #[arg(long)]
    rows: u64,
    /// Of the random choices
    #[arg(long)]
    seed: u64,
}

impl ProcessesWorker {
    /// Works until its input ends.
    pub(crate) fn run(self) -> Result<()> {
        let opening = Opening {
            peer: self.peer,
            is_alone: self.alone,
            memory_total: self.memory,
            processes: self.processes,
            is_relaxed: self.relaxed,
            is_small: self.small,
        };
        let store = Store::open(&self.store, &opening)?;
        let mut worker = Worker { store, rows: self.rows, seed: self.seed };
        say(READY)?;
        for line in std::io::stdin().lock().lines() {
            let answer = worker.work(line?.parse()?)?;
            say(&answer.line())?;
        }
        worker.store.close()
    }
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// The machine's monotonic clock, which is the same in all processes.
pub(crate) fn now_nanos() -> u64 {
    nanos_of(ClockId::Monotonic)
}

fn nanos_of(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The key of a row.
fn key(number: u64) -> [u8; 8] {
    payload::mix(number).to_be_bytes()
}

/// The key of a counter.
pub(crate) fn counter(number: u64) -> String {
    format!("counter/{number:03}")
}

/// Runs tasks on an open store.
pub(crate) struct Worker {
    pub(crate) store: Store,
    pub(crate) rows: u64,
    pub(crate) seed: u64,
}

impl Worker {
    /// Runs a task.
    pub(crate) fn work(&mut self, task: Task) -> Result<Answer> {
        match task {
            Task::Load { from, rows, millis } => {
                self.load(from, rows, Duration::from_millis(millis))
            }
            Task::Commit { threads, millis, rate, value_bytes, start_nanos } => {
                self.side_by_side(threads, start_nanos, |random, answer| {
                    let mut value = vec![0; value_bytes as usize];
                    repeat(Duration::from_millis(millis), rate, answer, |answer| {
                        let number = random.u64(0..self.rows);
                        payload::fill(random.u64(..), &mut value);
                        answer.retries += self.store.put(&key(number), &value)?;
                        Ok(())
                    })
                })
            }
            Task::Count { counters, millis, start_nanos } => {
                self.side_by_side(1, start_nanos, |random, answer| {
                    repeat(Duration::from_millis(millis), 0, answer, |answer| {
                        answer.retries +=
                            self.store.count(counter(random.u64(0..counters)).as_bytes())?;
                        Ok(())
                    })
                })
            }
            Task::Get { threads, millis, start_nanos } => {
                self.side_by_side(threads, start_nanos, |random, answer| {
                    repeat(Duration::from_millis(millis), 0, answer, |_| {
                        self.get(random.u64(0..self.rows))
                    })
                })
            }
            Task::Scan { millis, start_nanos } => {
                self.scan(Duration::from_millis(millis), start_nanos)
            }
            Task::Begin { count } => self.begin(count),
            Task::First { count, rows } => self.first(count, rows),
            Task::Tick { count, rate, start_nanos } => self.tick(count, rate, start_nanos),
            Task::Look { until } => self.look(until),
            Task::Follow { count } => self.follow(count),
            Task::Hold => self.store.hold().map(|()| Answer::default()),
            Task::Settle => self.store.peer().settle().map(|()| Answer::default()),
        }
    }

    /// Runs it in several threads from a common start time.
    fn side_by_side(
        &self,
        threads: u64,
        start_nanos: u64,
        work: impl Fn(&mut fastrand::Rng, &mut Answer) -> Result<()> + Sync,
    ) -> Result<Answer> {
        wait_until(start_nanos);
        let (start, cpu) = (Instant::now(), nanos_of(ClockId::ProcessCPUTime));
        let answers: Vec<Result<Answer>> = std::thread::scope(|scope| {
            let run = |thread: u64| {
                let work = &work;
                let seed = payload::mix(self.seed * 1000 + thread + start_nanos);
                scope.spawn(move || {
                    let mut answer = Answer::default();
                    work(&mut fastrand::Rng::with_seed(seed), &mut answer).map(|()| answer)
                })
            };
            let running: Vec<_> = (0..threads).map(run).collect();
            running
                .into_iter()
                .map(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
                .collect()
        });
        let mut all = Answer { time: start.elapsed(), ..Answer::default() };
        all.cpu = Duration::from_nanos(nanos_of(ClockId::ProcessCPUTime) - cpu);
        for answer in answers {
            let answer = answer?;
            all.count += answer.count;
            all.retries += answer.retries;
            all.latency.add(&answer.latency)?;
        }
        Ok(all)
    }

    fn load(&self, from: u64, rows: u64, most: Duration) -> Result<Answer> {
        let (start, cpu) = (Instant::now(), nanos_of(ClockId::ProcessCPUTime));
        let mut value = [0; VALUE_BYTES as usize];
        let mut next = from;
        while next < from + rows && start.elapsed() < most {
            let end = (next + BATCH).min(from + rows);
            self.store.peer().commit(&mut |transaction| {
                (next..end).try_for_each(|number| {
                    payload::fill(number, &mut value);
                    transaction.put(&key(number), &value)
                })
            })?;
            next = end;
        }
        let cpu = Duration::from_nanos(nanos_of(ClockId::ProcessCPUTime) - cpu);
        Ok(Answer { count: next - from, time: start.elapsed(), cpu, ..Answer::default() })
    }

    fn get(&self, number: u64) -> Result<()> {
        let mut bytes = 0;
        let is_there = self.store.peer().get(&key(number), &mut |value| bytes = value.len())?;
        ensure!(is_there && bytes > 0, "row {number} is gone");
        Ok(())
    }

    fn scan(&self, most: Duration, start_nanos: u64) -> Result<Answer> {
        self.side_by_side(1, start_nanos, |_, answer| {
            let start = Instant::now();
            while start.elapsed() < most {
                let mut rows = 0;
                self.store.peer().scan(&[], &mut |_, _| {
                    rows += 1;
                    rows % BATCH != 0 || start.elapsed() < most
                })?;
                answer.count += rows;
            }
            Ok(())
        })
    }

    fn begin(&self, count: u64) -> Result<Answer> {
        let each = (count / BEGIN_TURNS).max(1);
        let turn = || {
            let start = Instant::now();
            (0..each).try_for_each(|_| self.store.begin())?;
            Ok(start.elapsed().as_nanos() as u64 * 1000 / each)
        };
        let picos = (0..BEGIN_TURNS).map(|_| turn()).collect::<Result<_>>()?;
        Ok(Answer { count: each * BEGIN_TURNS, numbers: picos, ..Answer::default() })
    }

    /// Reports how many gets read from the device.
    fn first(&self, count: u64, rows: u64) -> Result<Answer> {
        let mut random = fastrand::Rng::with_seed(self.seed);
        let (mut answer, mut misses) = (Answer { count, ..Answer::default() }, 0);
        let start = Instant::now();
        for _ in 0..count {
            let (before, begun) = (bytes_read()?, Instant::now());
            self.get(random.u64(0..rows))?;
            answer.latency.record(begun.elapsed().as_nanos() as u64)?;
            misses += u64::from(bytes_read()? > before);
        }
        answer.time = start.elapsed();
        answer.numbers = vec![misses];
        Ok(answer)
    }

    /// Reports when each commit returned.
    fn tick(&self, count: u64, rate: u64, start_nanos: u64) -> Result<Answer> {
        wait_until(start_nanos);
        let mut answer = Answer::default();
        let start = Instant::now();
        let before = self.store.number(TICK)?;
        for number in 1..=count {
            wait_for_turn(start, number - 1, rate);
            self.store.put(TICK, &(before + number).to_le_bytes())?;
            answer.numbers.push(now_nanos());
        }
        Ok(Answer { count, time: start.elapsed(), ..answer })
    }

    /// Reports, for each number seen: the number, when the last read that did not show it began,
    /// and when the read that showed it had ended.
    fn look(&self, until: u64) -> Result<Answer> {
        let mut answer = Answer::default();
        let start = Instant::now();
        let first = self.store.number(TICK)?;
        let (mut last, mut began_before) = (first, now_nanos());
        while last < first + until {
            ensure!(
                start.elapsed() < TIMEOUT,
                "commit {} was not seen within {} s",
                last + 1,
                TIMEOUT.as_secs()
            );
            let began = now_nanos();
            let seen = self.store.number(TICK)?;
            if seen > last {
                answer.numbers.extend([seen - first, began_before, now_nanos()]);
                last = seen;
            }
            began_before = began;
            answer.count += 1;
        }
        Ok(Answer { time: start.elapsed(), ..answer })
    }

    /// Reports when each commit arrived.
    fn follow(&self, count: u64) -> Result<Answer> {
        let mut numbers = Vec::new();
        let cpu = std::cell::Cell::new(0);
        self.store.follow(
            count,
            &mut || cpu.set(nanos_of(ClockId::ProcessCPUTime)),
            &mut || numbers.push(now_nanos()),
        )?;
        let cpu = Duration::from_nanos(nanos_of(ClockId::ProcessCPUTime) - cpu.get());
        Ok(Answer { count, numbers, cpu, ..Answer::default() })
    }
}

/// Repeats an operation, at a rate or at full speed.
fn repeat(
    most: Duration,
    rate: u64,
    answer: &mut Answer,
    mut work: impl FnMut(&mut Answer) -> Result<()>,
) -> Result<()> {
    let start = Instant::now();
    loop {
        wait_for_turn(start, answer.count, rate);
        let begun = Instant::now();
        if begun - start >= most {
            return Ok(());
        }
        work(answer)?;
        answer.latency.record(begun.elapsed().as_nanos() as u64)?;
        answer.count += 1;
    }
}

/// Sleeps until the operation with this number is due.
fn wait_for_turn(start: Instant, number: u64, rate: u64) {
    if let Some(nanos) = (number * 1_000_000_000).checked_div(rate) {
        let due = start + Duration::from_nanos(nanos);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

fn wait_until(nanos: u64) {
    std::thread::sleep(Duration::from_nanos(nanos.saturating_sub(now_nanos())));
}

/// Bytes that this thread has read from the device.
fn bytes_read() -> Result<u64> {
    let io = std::fs::read_to_string("/proc/thread-self/io")
        .context("cannot read the thread's I/O counters")?;
    let bytes = io.lines().find_map(|line| line.strip_prefix("read_bytes: ")?.parse().ok());
    bytes.context("the system does not count what a thread reads")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers() -> Vec<PeerKind> {
        let all = [PeerKind::Plimsoll, PeerKind::Lmdb, PeerKind::Redb, PeerKind::Sqlite];
        all.into_iter().filter(|peer| peer.is_built()).collect()
    }

    fn worker(folder: &std::path::Path, peer: PeerKind, is_alone: bool) -> Worker {
        let opening = Opening {
            peer,
            is_alone,
            memory_total: 64 << 20,
            processes: 2,
            is_relaxed: false,
            is_small: false,
        };
        Worker { store: Store::open(&folder.join("store"), &opening).unwrap(), rows: 2000, seed: 1 }
    }

    #[test]
    fn every_task_is_done_and_counted() {
        for (peer, is_alone) in peers().into_iter().flat_map(|peer| [(peer, false), (peer, true)]) {
            let folder = tempfile::tempdir().unwrap();
            let mut worker = worker(folder.path(), peer, is_alone);
            let load = worker.work(Task::Load { from: 0, rows: 2000, millis: 60_000 }).unwrap();
            assert_eq!(load.count, 2000);
            let tasks = [
                Task::Commit { threads: 2, millis: 30, rate: 0, value_bytes: 100, start_nanos: 0 },
                Task::Get { threads: 2, millis: 30, start_nanos: 0 },
                Task::Scan { millis: 30, start_nanos: 0 },
                Task::First { count: 10, rows: 100 },
                Task::Tick { count: 3, rate: 1000, start_nanos: 0 },
            ];
            for task in tasks {
                let answer = worker.work(task).unwrap();
                assert!(answer.count > 0 && answer.time > Duration::ZERO, "{peer:?} {task}");
            }
            assert_eq!(worker.store.number(TICK).unwrap(), 3);
            worker.work(Task::Settle).unwrap();
            worker.store.close().unwrap();
        }
    }

    #[test]
    fn counters_add_up() {
        let folder = tempfile::tempdir().unwrap();
        let mut worker = worker(folder.path(), PeerKind::Plimsoll, false);
        let answer = worker.work(Task::Count { counters: 3, millis: 50, start_nanos: 0 }).unwrap();
        let sum: u64 =
            (0..3).map(|number| worker.store.number(counter(number).as_bytes()).unwrap()).sum();
        assert_eq!(sum, answer.count);
        worker.work(Task::Hold).unwrap();
        assert_eq!(worker.work(Task::Begin { count: 100 }).unwrap().numbers.len(), 20);
        worker.store.close().unwrap();
    }

    #[test]
    fn a_paced_worker_keeps_its_rate() {
        let mut answer = Answer::default();
        repeat(Duration::from_millis(200), 100, &mut answer, |_| Ok(())).unwrap();
        assert!((1..=20).contains(&answer.count), "{}", answer.count);
    }
}
