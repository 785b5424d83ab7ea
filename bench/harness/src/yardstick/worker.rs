//! A contestant's process: one store, one row, controlled by lines.
//!
//! It opens the store and reports that. `warm MS` and `slice MS` run the row's work for at most
//! that many milliseconds, and are answered by one JSON object each; only a slice counts for the
//! latencies. When its input ends it closes the store and reports. A wrong result is a failure.

use std::io::BufRead as _;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::Args;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::data::{self, fill_value, is_value_of};
use super::row::{Measure, Row};
use super::zipf::Zipf;
use crate::payload;
use crate::peer::{Commits, Peer, PeerKind, Put, Setup};
use crate::sizes::parse_size;
use crate::watch::Counters;

/// Relaxed commits are synced this often.
const SYNC_EVERY: Duration = Duration::from_millis(200);

/// Puts of a large commit.
const LARGE_COMMIT: u64 = 1000;
/// Threads that wait for a durable commit each.
const COMMITTERS: u64 = 8;
/// Rows of a short scan.
const SHORT_SCAN: u64 = 100;
/// Rows of a scan that are timed together.
const WALK_STEP: u64 = 1000;
/// First reads after a cold open.
const COLD_READS: u64 = 10_000;
/// The longest distinguishable operation: a quarter of an hour.
const LONGEST_NANOS: u64 = 1 << 40;

/// A process with almost no work for this long is idle.
const IDLE: Duration = Duration::from_secs(2);
const IDLE_CPU_SECONDS: f64 = 0.05;

#[derive(Args, Debug)]
pub(crate) struct Worker {
    #[arg(long)]
    store: PathBuf,
    #[arg(long, value_parser = parse_size)]
    memory: u64,
    #[arg(long)]
    peer: PeerKind,
    #[arg(long)]
    row: Row,
    /// Rows of the store
    #[arg(long)]
    rows: u64,
    /// Puts of a commit of a bulk load
    #[arg(long)]
    batch: u64,
    /// Threads that read
    #[arg(long)]
    threads: u64,
}

/// The work of a slice.
struct Tally {
    operations: u64,
    seconds: f64,
    /// Whether time was up before the work was done.
    is_cut: bool,
    latencies: Histogram<u64>,
}

impl Worker {
    /// Executes the lines.
    pub(crate) fn run(&self) -> Result<()> {
        let start = Instant::now();
        let bench = Bench::open(self)?;
        let open_seconds = start.elapsed().as_secs_f64();
        println!("{}", json!({ "open_seconds": open_seconds }));
        let mut latencies = histogram();
        for (number, line) in std::io::stdin().lock().lines().enumerate() {
            let line = line?;
            let (what, millis) =
                line.split_once(' ').with_context(|| format!("no order: {line:?}"))?;
            let mut tally = bench.slice(number as u64, Duration::from_millis(millis.parse()?))?;
            if self.row == Row::ColdOpen {
                tally.seconds += open_seconds;
            }
            if what == "slice" {
                latencies.add(&tally.latencies)?;
            }
            println!(
                "{}",
                json!({ "operations": tally.operations, "seconds": tally.seconds, "cut": u8::from(tally.is_cut) })
            );
        }
        let closing = Instant::now();
        if self.row.commits() == Commits::Relaxed && self.row.measure() == Measure::WholeLoads {
            bench.peer.settle()?;
            wait_until_idle()?;
        }
        bench.peer.close()?;
        println!("{}", report(&latencies, closing.elapsed().as_secs_f64()));
        Ok(())
    }
}

/// Waits until this process has been idle for a while, so that no background work is left.
fn wait_until_idle() -> Result<()> {
    let now = || Counters::of(std::process::id());
    let mut before = now()?;
    loop {
        std::thread::sleep(IDLE);
        let after = now()?;
        let is_still =
            after.written_bytes == before.written_bytes && after.read_bytes == before.read_bytes;
        if is_still && after.cpu_seconds - before.cpu_seconds < IDLE_CPU_SECONDS {
            return Ok(());
        }
        before = after;
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NANOS, 3).expect("the bounds are right")
}

fn report(latencies: &Histogram<u64>, close_seconds: f64) -> Value {
    json!({
        "p50_ns": latencies.value_at_quantile(0.5),
        "p99_ns": latencies.value_at_quantile(0.99),
        "p999_ns": latencies.value_at_quantile(0.999),
        "max_ns": latencies.max(),
        "close_seconds": close_seconds,
    })
}

/// An open store and the work on it.
struct Bench {
    peer: Box<dyn Peer>,
    row: Row,
    rows: u64,
    batch: u64,
    threads: u64,
    /// Only if the row needs it, because creating it takes a while.
    zipf: Option<Zipf>,
    walked: Mutex<Walked>,
}

/// The progress of a full scan. A scan that runs out of time continues in the next slice, because
/// restarting would let a slow contestant scan only data in memory.
#[derive(Default)]
struct Walked {
    last: Vec<u8>,
    rows: u64,
}

/// One thread's share of a slice.
struct Thread<'bench> {
    bench: &'bench Bench,
    random: fastrand::Rng,
    value: Vec<u8>,
}

impl Bench {
    fn open(worker: &Worker) -> Result<Self> {
        let Worker { row, rows, batch, threads, .. } = *worker;
        let setup = Setup {
            memory_bytes: worker.memory,
            commits: row.commits(),
            value_bytes: row.value_bytes(),
        };
        let zipf = matches!(row, Row::GetZipf | Row::Mixed).then(|| Zipf::new(rows));
        Ok(Self {
            peer: worker.peer.open(&worker.store, &setup)?,
            row,
            rows,
            batch,
            threads,
            zipf,
            walked: Mutex::default(),
        })
    }

    fn slice(&self, number: u64, time: Duration) -> Result<Tally> {
        let start = Instant::now();
        let until = start + time;
        let mut tally = match self.row {
            Row::LoadSorted | Row::LoadRandom | Row::Pairs | Row::Build | Row::Build16k => {
                self.load(until)?
            }
            Row::ScanFull => self.walk(until)?,
            Row::ColdOpen => self.read_cold()?,
            Row::CommitOne => {
                self.in_threads(COMMITTERS, number, until, |thread| thread.put_one())?
            }
            Row::CommitThousand => self.in_threads(1, number, until, |thread| thread.put_many())?,
            Row::GetUniform => self.in_threads(self.threads, number, until, |thread| {
                let number = thread.any();
                thread.get(number)
            })?,
            Row::GetZipf => self.in_threads(self.threads, number, until, |thread| {
                let number = thread.any_by_zipf();
                thread.get(number)
            })?,
            Row::GetMissing => {
                self.in_threads(self.threads, number, until, |thread| thread.get_missing())?
            }
            Row::ScanShort => {
                self.in_threads(self.threads, number, until, |thread| thread.scan_short())?
            }
            Row::Mixed => self.synced(|| {
                self.in_threads(self.threads, number, until, |thread| {
                    let number = thread.any_by_zipf();
                    thread.get_or_put(number)
                })
            })?,
            Row::Values16k => self.synced(|| {
                self.in_threads(self.threads, number, until, |thread| {
                    let number = thread.any();
                    thread.get_or_put(number)
                })
            })?,
        };
        tally.seconds = start.elapsed().as_secs_f64();
        Ok(tally)
    }

    /// Puts every pair once, in commits of equal size.
    fn load(&self, until: Instant) -> Result<Tally> {
        let mut tally = Tally::new();
        let mut value = vec![0; self.row.value_bytes()];
        let mut first = 0;
        while first < self.rows && !tally.is_cut {
            let numbers = first..self.rows.min(first + self.batch);
            let start = Instant::now();
            self.peer.commit(&mut |transaction| {
                numbers
                    .clone()
                    .try_for_each(|number| self.put_loaded(number, &mut value, transaction))
            })?;
            tally.note(start.elapsed(), numbers.end - numbers.start);
            first = numbers.end;
            tally.is_cut = first < self.rows && Instant::now() >= until;
        }
        Ok(tally)
    }

    fn put_loaded(&self, number: u64, value: &mut [u8], transaction: &mut dyn Put) -> Result<()> {
        if self.row == Row::Pairs {
            return transaction.put(&payload::mix(number).to_be_bytes(), &number.to_le_bytes());
        }
        fill_value(number, 0, value);
        match self.row {
            Row::LoadSorted => transaction.put(&data::key_in_order(number), value),
            _ => transaction.put(&data::key(number), value),
        }
    }

    /// Scans the whole store, checking the number of rows and their order; completes a scan that
    /// ran out of time first.
    fn walk(&self, until: Instant) -> Result<Tally> {
        let mut tally = Tally::new();
        let mut walked = self.walked.lock().expect("nobody panics with it");
        let is_resumed = walked.rows > 0;
        if self.walk_on(&mut walked, until, &mut tally)? && is_resumed {
            self.walk_on(&mut walked, until, &mut tally)?;
        }
        Ok(tally)
    }

    /// One scan, from where it stopped to its end or until time is up; returns whether it reached
    /// the end.
    fn walk_on(&self, walked: &mut Walked, until: Instant, tally: &mut Tally) -> Result<bool> {
        let Walked { last, rows } = walked;
        let mut first = last.clone();
        first.extend((*rows > 0).then_some(0));
        let (mut start, mut step_rows, mut is_ordered, mut is_over) =
            (Instant::now(), 0, true, false);
        self.peer.scan(&first, &mut |key, _| {
            is_ordered &= last.as_slice() < key;
            last.clear();
            last.extend_from_slice(key);
            (step_rows, *rows) = (step_rows + 1, *rows + 1);
            if step_rows == WALK_STEP {
                tally.note(start.elapsed(), step_rows);
                (start, step_rows) = (Instant::now(), 0);
                is_over = start >= until;
            }
            !is_over
        })?;
        tally.operations += step_rows;
        ensure!(is_ordered, "the scan is out of order");
        if is_over && *rows < self.rows {
            return Ok(false);
        }
        ensure!(*rows == self.rows, "{rows} of {} rows", self.rows);
        *walked = Walked::default();
        Ok(true)
    }

    fn read_cold(&self) -> Result<Tally> {
        let mut tally = Tally::new();
        let mut thread = self.thread(payload::mix(u64::from(std::process::id())));
        for _ in 0..COLD_READS {
            let start = Instant::now();
            let number = thread.any();
            tally.operations += thread.get(number)?;
            tally.note(start.elapsed(), 0);
        }
        Ok(tally)
    }

    fn thread(&self, seed: u64) -> Thread<'_> {
        Thread {
            bench: self,
            random: fastrand::Rng::with_seed(seed),
            value: vec![0; self.row.value_bytes()],
        }
    }

    /// Repeats an operation in several threads until time is up. The operation returns how much it
    /// counts for.
    fn in_threads(
        &self,
        threads: u64,
        slice: u64,
        until: Instant,
        operation: impl Fn(&mut Thread<'_>) -> Result<u64> + Sync,
    ) -> Result<Tally> {
        let repeat = |thread: u64| -> Result<Tally> {
            let mut tally = Tally::new();
            let mut thread = self.thread(payload::mix((slice << 8) + thread));
            let mut now = Instant::now();
            while now < until {
                let operations = operation(&mut thread)?;
                let after = Instant::now();
                tally.note(after - now, operations);
                now = after;
            }
            Ok(tally)
        };
        std::thread::scope(|scope| {
            let started: Vec<_> = (0..threads)
                .map(|thread| {
                    let repeat = &repeat;
                    scope.spawn(move || repeat(thread))
                })
                .collect();
            let mut all = Tally::new();
            for thread in started {
                all.add(&thread.join().map_err(|_| anyhow!("a thread panicked"))??)?;
            }
            Ok(all)
        })
    }

    /// Syncs the store periodically while work continues, and once more afterwards.
    fn synced(&self, work: impl FnOnce() -> Result<Tally>) -> Result<Tally> {
        let failed = Mutex::new(None);
        let tally = std::thread::scope(|scope| {
            let (done, is_done) = mpsc::channel::<()>();
            let failed = &failed;
            scope.spawn(move || {
                while is_done.recv_timeout(SYNC_EVERY) == Err(RecvTimeoutError::Timeout) {
                    if let Err(error) = self.peer.sync() {
                        *failed.lock().expect("nobody panics with it") = Some(error);
                        return;
                    }
                }
            });
            let tally = work();
            drop(done);
            tally
        })?;
        match failed.into_inner().expect("nobody panics with it") {
            Some(error) => Err(error),
            None => self.peer.sync().map(|()| tally),
        }
    }
}

impl Thread<'_> {
    fn any(&mut self) -> u64 {
        self.random.u64(0..self.bench.rows)
    }

    /// A number by its rank; ranks are scattered over the numbers.
    fn any_by_zipf(&mut self) -> u64 {
        let zipf = self.bench.zipf.as_ref().expect("made on opening for the rows that need it");
        payload::mix(zipf.rank(self.random.f64()) + 1) % self.bench.rows
    }

    fn get(&mut self, number: u64) -> Result<u64> {
        let (mut is_right, value_bytes) = (false, self.value.len());
        self.bench.peer.get(&data::key(number), &mut |value| {
            is_right = is_value_of(number, value, value_bytes)
        })?;
        ensure!(is_right, "row {number} differs from the value that was put");
        Ok(1)
    }

    fn get_missing(&mut self) -> Result<u64> {
        let number = self.any();
        ensure!(
            !self.bench.peer.get(&data::missing_key(number), &mut |_| {})?,
            "a key exists that was never put"
        );
        Ok(1)
    }

    fn scan_short(&mut self) -> Result<u64> {
        let mut rows = 0;
        let first = data::key(self.any());
        self.bench.peer.scan(&first, &mut |_, _| {
            rows += 1;
            rows < SHORT_SCAN
        })?;
        ensure!(rows > 0, "a scan from an existing key found nothing");
        Ok(1)
    }

    fn put(&mut self, number: u64) -> Result<u64> {
        fill_value(number, self.random.u64(1..), &mut self.value);
        let (key, value) = (data::key(number), &self.value);
        self.bench.peer.commit(&mut |transaction| transaction.put(&key, value))?;
        Ok(1)
    }

    fn put_one(&mut self) -> Result<u64> {
        let number = self.any();
        self.put(number)
    }

    fn put_many(&mut self) -> Result<u64> {
        let Self { bench, random, value } = self;
        bench.peer.commit(&mut |transaction| {
            (0..LARGE_COMMIT).try_for_each(|_| {
                let number = random.u64(0..bench.rows);
                fill_value(number, random.u64(1..), value);
                transaction.put(&data::key(number), value)
            })
        })?;
        Ok(LARGE_COMMIT)
    }

    fn get_or_put(&mut self, number: u64) -> Result<u64> {
        if self.random.bool() { self.get(number) } else { self.put(number) }
    }
}

impl Tally {
    fn new() -> Self {
        Self { operations: 0, seconds: 0.0, is_cut: false, latencies: histogram() }
    }

    fn note(&mut self, time: Duration, operations: u64) {
        self.operations += operations;
        self.latencies.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1));
    }

    fn add(&mut self, other: &Self) -> Result<()> {
        self.operations += other.operations;
        Ok(self.latencies.add(&other.latencies)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(store: PathBuf, row: Row) -> Worker {
        Worker {
            store,
            memory: 16 << 20,
            peer: PeerKind::Plimsoll,
            row,
            rows: 3000,
            batch: 500,
            threads: 2,
        }
    }

    fn slice(folder: &std::path::Path, row: Row, millis: u64) -> Tally {
        let bench = Bench::open(&worker(folder.join(row.value_bytes().to_string()), row)).unwrap();
        let tally = bench.slice(1, Duration::from_millis(millis)).unwrap();
        bench.peer.close().unwrap();
        tally
    }

    #[test]
    fn every_row_works_on_the_store_that_was_built_for_it() {
        let folder = tempfile::tempdir().unwrap();
        for row in [Row::Build, Row::Build16k] {
            let tally = slice(folder.path(), row, 60_000);
            assert!(tally.operations == 3000 && !tally.is_cut);
        }
        let rows = Row::TWELVE.into_iter().filter(|row| row.measure() != Measure::WholeLoads);
        for row in rows {
            // On a busy machine a short time may be over before the threads have started.
            let mut tallies =
                [50, 2000, 60_000].into_iter().map(|millis| slice(folder.path(), row, millis));
            let tally = tallies.find(|tally| tally.operations > 0).unwrap();
            assert!(
                tally.operations > 0 && tally.seconds > 0.0 && !tally.latencies.is_empty(),
                "{row:?}"
            );
        }
    }

    #[test]
    fn a_load_that_runs_out_of_time_is_cut() {
        for row in [Row::LoadSorted, Row::LoadRandom, Row::Pairs] {
            let folder = tempfile::tempdir().unwrap();
            let tally = slice(folder.path(), row, 0);
            assert!(tally.is_cut && tally.operations == 500, "{row:?}");
        }
    }

    #[test]
    fn a_scan_that_runs_out_of_time_continues() {
        let folder = tempfile::tempdir().unwrap();
        slice(folder.path(), Row::Build, 60_000);
        let bench = Bench::open(&worker(folder.path().join("100"), Row::ScanFull)).unwrap();
        let slice = |millis| bench.slice(0, Duration::from_millis(millis)).unwrap().operations;
        assert_eq!([slice(0), slice(0)], [WALK_STEP; 2]);
        assert_eq!([slice(60_000), slice(60_000)], [WALK_STEP + 3000, 3000]);
    }

    #[test]
    fn a_store_with_missing_rows_fails() {
        for row in [Row::GetUniform, Row::ScanFull, Row::ScanShort, Row::ColdOpen] {
            let folder = tempfile::tempdir().unwrap();
            let bench = Bench::open(&worker(folder.path().join("store"), row)).unwrap();
            assert!(bench.slice(0, Duration::from_millis(50)).is_err(), "{row:?}");
        }
    }
}
