//! One replay in a separate process: commits of the generator on a store, with each operation timed
//! and its result checked.
//!
//! A commit is one transaction: it reads through the transaction, so it sees its own writes and
//! conflicts if another writer has changed data that it read. Prints one JSON object. A wrong
//! result is a failure.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use hdrhistogram::Histogram;
use plimsoll::{Db, Durability, Keyspace, Options, Retention, Transaction};
use serde_json::{Map, Value, json};

use super::generator::{Commit, Generator, Operation};
use super::mix::Kind;
use super::model::{Model, Place};
use crate::cpu_time;
use crate::sizes::parse_size;
use crate::watch::Counters;

/// Everything that is timed: the operations, and the begin and end of a commit.
pub(super) const TIMED: [&str; 7] =
    ["checkout", "add", "remove", "find", "mem", "mem_tree", "commit"];
const CHECKOUT: usize = 0;
const COMMIT: usize = 6;

/// The longest distinguishable operation: a quarter of an hour.
const LONGEST_NANOS: u64 = 1 << 40;

/// Puts of a transaction while the population is loaded.
const LOAD_PUTS: usize = 10_000;
/// Memory for that.
const LOAD_BYTES: u64 = 512 << 20;

/// Leaves that are checked again after the store was reopened.
const LOOKS: usize = 10_000;

#[derive(Args, Debug)]
pub(crate) struct TezosReplay {
    #[arg(long)]
    store: PathBuf,
    #[arg(long, value_parser = parse_size)]
    memory: u64,
    #[arg(long)]
    entries: u64,
    #[arg(long)]
    commits: u64,
    #[arg(long)]
    seed: u64,
    /// Commits return before they are synced
    #[arg(long)]
    relaxed: bool,
}

/// Creates a store with the state before the first commit.
pub(super) fn populate(store: &Path, entries: u64, seed: u64, retention: Retention) -> Result<()> {
    let db =
        Db::open(store, Options::new().memory_bytes(LOAD_BYTES).durability(Durability::Buffered))?;
    let context = db.create_keyspace("context", retention)?;
    let (mut path, mut value) = (String::new(), Vec::new());
    let mut transaction = db.begin();
    for (number, leaf) in Model::new(entries, seed).population().enumerate() {
        path.clear();
        value.clear();
        leaf.write_path(&mut path);
        leaf.write_value(0, &mut value);
        transaction.put(&context, path.as_bytes(), &value)?;
        if (number + 1).is_multiple_of(LOAD_PUTS) {
            std::mem::replace(&mut transaction, db.begin()).commit()?;
        }
    }
    transaction.commit()?;
    db.compact()?;
    Ok(db.close()?)
}

impl TezosReplay {
    /// Replays and prints the measurements.
    pub(crate) fn run(&self) -> Result<()> {
        let mut report = Map::new();
        let mut note =
            |metric: &str, value: f64| _ = report.insert(metric.to_owned(), json!(value));
        let mut generator = Generator::new(self.entries, self.seed);
        let start = Instant::now();
        let (db, context) = self.open()?;
        note("open_seconds", start.elapsed().as_secs_f64());
        let replay = Replay::run(&db, &context, &mut generator, self.commits)?;
        replay.note(&mut note);
        let stats = db.stats();
        note("pages_loaded", stats.pool.loads as f64);
        note("row_hits", stats.row_cache.hits as f64);
        let start = Instant::now();
        db.close()?;
        note("close_seconds", start.elapsed().as_secs_f64());
        let (db, context) = self.open()?;
        look_again(&db, &context, &generator)?;
        db.close()?;
        println!("{}", Value::Object(report));
        Ok(())
    }

    fn open(&self) -> Result<(Db, Keyspace)> {
        let durability = if self.relaxed { Durability::Buffered } else { Durability::Sync };
        let db =
            Db::open(&self.store, Options::new().memory_bytes(self.memory).durability(durability))?;
        let context = db.keyspace("context")?;
        Ok((db, context))
    }
}

/// The measurements of a replay.
struct Replay {
    commits: u64,
    wall: Duration,
    /// The part of it spent making the commits.
    making_wall: Duration,
    making_cpu_nanos: u64,
    used: Counters,
    /// The longest commit, counted from its first operation.
    longest: Duration,
    times: [Histogram<u64>; TIMED.len()],
}

impl Replay {
    fn run(db: &Db, context: &Keyspace, generator: &mut Generator, commits: u64) -> Result<Self> {
        let before = Counters::of(std::process::id())?;
        let mut replay = Self {
            commits,
            wall: Duration::ZERO,
            making_wall: Duration::ZERO,
            making_cpu_nanos: 0,
            used: before,
            longest: Duration::ZERO,
            times: std::array::from_fn(|_| histogram()),
        };
        let begin = Instant::now();
        let mut commit = Commit::default();
        for number in 0..commits {
            let (start, cpu) = (Instant::now(), cpu_time::thread_nanos());
            generator.make(&mut commit);
            replay.making_wall += start.elapsed();
            replay.making_cpu_nanos += cpu_time::thread_nanos() - cpu;
            replay
                .commit(db, context, &commit)
                .map_err(|error| error.context(format!("commit {number}")))?;
        }
        replay.wall = begin.elapsed();
        replay.used = Counters::of(std::process::id())?.since(&before);
        Ok(replay)
    }

    fn commit(&mut self, db: &Db, context: &Keyspace, commit: &Commit) -> Result<()> {
        let start = Instant::now();
        let mut last = start;
        let mut time = |what: usize| {
            let now = Instant::now();
            self.times[what].saturating_record((now - last).as_nanos() as u64);
            last = now;
        };
        let mut transaction = db.begin();
        time(CHECKOUT);
        for operation in &commit.operations {
            apply(&mut transaction, context, commit, operation)?;
            time(1 + operation.kind as usize);
        }
        transaction.commit()?;
        time(COMMIT);
        self.longest = self.longest.max(start.elapsed());
        Ok(())
    }

    /// Names everything that was measured. Making the commits is not the store's time, nor its
    /// processor's.
    fn note(&self, note: &mut impl FnMut(&str, f64)) {
        let operations: u64 = self.times.iter().map(Histogram::len).sum();
        let wall = (self.wall - self.making_wall).as_secs_f64();
        let cpu = self.used.cpu_seconds - self.making_cpu_nanos as f64 / 1e9;
        let adds = self.times[1 + Kind::Add as usize].len();
        let metrics = [
            ("commits", self.commits as f64),
            ("operations", operations as f64),
            ("cpu_seconds", cpu),
            ("wall_seconds", wall),
            ("making_seconds", self.making_wall.as_secs_f64()),
            ("operations_per_cpu_second", operations as f64 / cpu),
            ("operations_per_second", operations as f64 / wall),
            ("adds_per_cpu_second", adds as f64 / cpu),
            ("adds_per_second", adds as f64 / wall),
            ("commits_per_second", self.commits as f64 / wall),
            ("longest_commit_seconds", self.times[COMMIT].max() as f64 / 1e9),
            ("longest_transaction_seconds", self.longest.as_secs_f64()),
            ("mean_cpu_percent", 100.0 * cpu / wall),
            ("read_calls", self.used.read_calls as f64),
            ("written_calls", self.used.written_calls as f64),
            ("read_bytes", self.used.read_bytes as f64),
            ("written_bytes", self.used.written_bytes as f64),
        ];
        metrics.into_iter().for_each(|(metric, value)| note(metric, value));
        for (name, times) in TIMED.iter().zip(&self.times) {
            let numbers = [
                ("count", times.len() as f64),
                ("min_ns", if times.is_empty() { 0.0 } else { times.min() as f64 }),
                ("avg_ns", times.mean()),
                ("p99_ns", times.value_at_quantile(0.99) as f64),
                ("max_ns", times.max() as f64),
            ];
            numbers
                .into_iter()
                .for_each(|(metric, value)| note(&format!("{name}_{metric}"), value));
        }
    }
}

/// Two digits; all histograms together take 200 KB.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NANOS, 2).expect("the bounds are right")
}

/// Runs one operation, and checks its result.
fn apply(
    transaction: &mut Transaction,
    context: &Keyspace,
    commit: &Commit,
    operation: &Operation,
) -> Result<()> {
    let (key, there) = (commit.key(operation), operation.there);
    let is_right = match operation.kind {
        Kind::Add => {
            transaction.put(context, key, commit.value(operation))?;
            true
        }
        Kind::Remove => {
            transaction.delete(context, key)?;
            true
        }
        Kind::Find => {
            transaction.get(context, key)?.as_deref() == there.then(|| commit.value(operation))
        }
        Kind::Mem => transaction.contains_key(context, key)? == there,
        Kind::MemTree => {
            transaction.prefix(context, key)?.keys_only().advance()?.is_some() == there
        }
    };
    if !is_right {
        let (kind, key, there) = (
            operation.kind.name(),
            String::from_utf8_lossy(key),
            if there { "is" } else { "is not" },
        );
        bail!("wrong answer to {kind} {key}, which {there} present");
    }
    Ok(())
}

/// Checks leaves of all kinds again.
fn look_again(db: &Db, context: &Keyspace, generator: &Generator) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(2);
    let model = generator.model();
    let mut looks = Commit::default();
    let somewhere = (0..LOOKS).map(|_| {
        if random.bool() { model.somewhere(&mut random) } else { model.nowhere(&mut random) }
    });
    let places: Vec<Place> = somewhere.chain(generator.recent().iter().copied()).collect();
    places.into_iter().for_each(|place| looks.find(model, place));
    let mut transaction = db.begin();
    looks.operations.iter().try_for_each(|look| apply(&mut transaction, context, &looks, look))
}

#[cfg(test)]
mod tests {
    use super::super::mix::KINDS;
    use super::*;

    const ENTRIES: u64 = 1000;

    fn opened(folder: &Path, seed: u64) -> (Db, Keyspace) {
        populate(folder, ENTRIES, seed, Retention::Forever).unwrap();
        let db = Db::open(folder, Options::new().memory_bytes(32 << 20)).unwrap();
        let context = db.keyspace("context").unwrap();
        (db, context)
    }

    #[test]
    fn a_replay_counts_every_operation_and_survives_reopening() {
        let folder = tempfile::tempdir().unwrap();
        let (db, context) = opened(folder.path(), 1);
        let mut generator = Generator::new(ENTRIES, 1);
        let replay = Replay::run(&db, &context, &mut generator, 30).unwrap();
        db.close().unwrap();
        let mut numbers = std::collections::HashMap::new();
        replay.note(&mut |metric, value| _ = numbers.insert(metric.to_owned(), value));
        assert_eq!((numbers["checkout_count"], numbers["commit_count"]), (30.0, 30.0));
        let all: f64 = KINDS.iter().map(|kind| numbers[&format!("{}_count", kind.name())]).sum();
        assert_eq!(all + 60.0, numbers["operations"]);
        assert!(
            numbers["commit_max_ns"] > 1000.0
                && numbers["longest_transaction_seconds"] >= numbers["longest_commit_seconds"]
        );
        assert!(
            numbers["find_max_ns"] >= numbers["find_p99_ns"]
                && numbers["find_min_ns"] <= numbers["find_avg_ns"]
        );
        let db = Db::open(folder.path(), Options::new().memory_bytes(32 << 20)).unwrap();
        look_again(&db, &db.keyspace("context").unwrap(), &generator).unwrap();
    }

    #[test]
    fn a_store_that_differs_from_the_seed_is_detected() {
        let folder = tempfile::tempdir().unwrap();
        let (db, context) = opened(folder.path(), 1);
        let mut generator = Generator::new(ENTRIES, 1);
        Replay::run(&db, &context, &mut generator, 3).unwrap();
        // The same store again, starting with the first commit.
        assert!(Replay::run(&db, &context, &mut Generator::new(ENTRIES, 1), 3).is_err());
        let mut transaction = db.begin();
        let place = generator.recent()[0];
        let mut look = Commit::default();
        look.find(generator.model(), place);
        transaction.put(&context, look.key(&look.operations[0]), b"something else").unwrap();
        transaction.commit().unwrap();
        assert!(look_again(&db, &context, &generator).is_err());
    }
}
