//! `bench range-deletes`: the cost of deletions of ranges.
//!
//! 1. One range over all keys of a store: the time of the call, without a sync and with one.
//! 2. Many ranges in memory: point reads of keys outside of them and the start of an iterator,
//!    beside a store without ranges. Background work is off, so that the ranges stay in memory.
//! 3. A queue: keys are put at its tail and deleted at its head by ranges; then the first key is
//!    read, beside a store that only ever had the remaining keys.
//!
//! Two stores that are compared alternate, and a ratio is taken within a round.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;
use plimsoll::{Db, Durability, Keyspace, Options};

use crate::quiet;
use crate::results::Results;
use crate::sizes::{parse_size, show_size};
use crate::statistics::median;
use crate::table::{self, number};
use crate::turns::{self, Compared};
use crate::work_folder::Places;

/// Keys of one deleted range of many, and as many stay behind each.
const KEYS_OF_RANGE: u64 = 128;

/// Keys that stay in the queue.
const QUEUE_LEFT: u64 = 1000;

/// Calls of a turn.
const CALLS: u64 = 20_000;

#[derive(Args, Debug)]
pub(crate) struct RangeDeletes {
    /// Memory budget of each store
    #[arg(long, default_value = "1GiB", value_parser = parse_size)]
    memory: u64,
    /// Keys under the one range
    #[arg(long, default_value_t = 10_000_000)]
    rows: u64,
    /// Ranges in memory
    #[arg(long, default_value_t = 10_000)]
    ranges: u64,
    /// Keys that pass through the queue
    #[arg(long, default_value_t = 1_000_000)]
    queue: u64,
    /// Keys that each deletion of the queue takes
    #[arg(long, default_value_t = 500)]
    batch: u64,
    /// Rounds in which two stores take turns
    #[arg(long, default_value_t = 31)]
    rounds: u64,
}

/// A store and its keyspace.
struct Store {
    db: Db,
    keys: Keyspace,
}

impl Store {
    fn open(path: &Path, options: Options) -> Result<Self> {
        let db = Db::open(path, options)?;
        let keys = db.keyspace("keys")?;
        Ok(Self { db, keys })
    }

    fn load(&self, keys: impl Iterator<Item = u64>) -> Result<()> {
        let rows = keys.map(|key| (key.to_be_bytes(), [7; 16]));
        self.db.bulk_load(&self.keys, rows)?;
        Ok(())
    }
}

impl RangeDeletes {
    /// Measures, prints a table, keeps the results.
    pub(crate) fn run(&self, places: &Places) -> Result<()> {
        let mut results = Results::new("range-deletes", places.results().as_deref());
        quiet::check(&mut results);
        let work = places.work("range-deletes")?;
        let settings = format!("memory={}", show_size(self.memory));
        let mut rows = Vec::new();
        for (what, micros) in self.one(&work.path().join("one"))? {
            results.note("range-deletes", &settings, what, micros);
            rows.push(vec![what.to_owned(), "-".to_owned(), number(micros), "-".to_owned()]);
        }
        work.remove("one");
        let mut compared = self.many(work.path())?;
        compared.push(("queue_first_ns", self.queue(work.path())?));
        for (what, compared) in compared {
            rows.push(compared.note(&mut results, "range-deletes", &settings, what));
        }
        table::print(&turns::COLUMNS, &rows);
        results.save()
    }

    /// Microseconds to delete a range over all keys.
    fn one(&self, path: &Path) -> Result<Vec<(&'static str, f64)>> {
        let mut micros = Vec::new();
        for (what, put, durability) in [
            ("delete_all_buffered_us", "put_buffered_us", Durability::Buffered),
            ("delete_all_durable_us", "put_durable_us", Durability::Sync),
        ] {
            let options = Options::new().memory_bytes(self.memory).durability(durability);
            let store = Store::open(path, options)?;
            store.load(0..self.rows)?;
            store.db.put(&store.keys, 7u64.to_be_bytes(), [1; 16])?;
            let puts: Vec<f64> = (0..100u64)
                .map(|key| {
                    let begun = Instant::now();
                    store.db.put(&store.keys, key.to_be_bytes(), [2; 16])?;
                    Ok(micros_since(begun))
                })
                .collect::<Result<_>>()?;
            let begun = Instant::now();
            store.db.delete_range(&store.keys, ..)?;
            micros.push((what, micros_since(begun)));
            micros.push((put, median(&puts)));
            ensure!(store.db.snapshot().len(&store.keys)? == 0, "a key is left");
            // In a transaction, after many commits since its snapshot and before.
            store.load(0..self.rows)?;
            store.db.transact(|tx| {
                let mut keys = 0..10_000u64;
                keys.try_for_each(|key| tx.put(&store.keys, key.to_be_bytes(), [3; 16]))
            })?;
            let other = store.db.keyspace("other")?;
            let mut tx = store.db.begin();
            (0..100u64)
                .try_for_each(|key| store.db.put(&other, key.to_be_bytes(), "").map(drop))?;
            let begun = Instant::now();
            tx.delete_range(&store.keys, ..)?;
            tx.commit()?;
            let in_tx = micros_since(begun);
            let name = match durability {
                Durability::Buffered => "delete_all_in_transaction_buffered_us",
                Durability::Sync => "delete_all_in_transaction_durable_us",
            };
            micros.push((name, in_tx));
            store.db.close()?;
            std::fs::remove_dir_all(path)?;
        }
        Ok(micros)
    }

    /// Reads beside many ranges.
    fn many(&self, folder: &Path) -> Result<Vec<(&'static str, Compared)>> {
        let keys = self.ranges * 2 * KEYS_OF_RANGE;
        let open = |name: &str| {
            let options = Options::new().memory_bytes(self.memory).durability(Durability::Buffered);
            Store::open(&folder.join(name), options)
        };
        let (without, with) = (open("without")?, open("with")?);
        for store in [&without, &with] {
            // The keys between the ranges, and as many behind them.
            store.load(0..2 * keys)?;
        }
        let mut slowest = 0.0f64;
        for range in 0..self.ranges {
            let first = range * 2 * KEYS_OF_RANGE;
            let keys = first.to_be_bytes()..(first + KEYS_OF_RANGE).to_be_bytes();
            let begun = Instant::now();
            with.db.delete_range(&with.keys, keys)?;
            slowest = slowest.max(micros_since(begun));
        }
        println!("the slowest of {} deletions took {slowest:.0} us", self.ranges);
        let left = with.db.snapshot().len(&with.keys)?;
        ensure!(left == 2 * keys - self.ranges * KEYS_OF_RANGE, "{left} keys are left");
        let in_memory = with.db.stats().index.deleted_ranges;
        println!("{in_memory} ranges are in memory");
        ensure!(in_memory > self.ranges / 2, "most ranges were absorbed before they were measured");
        let between = |random: &mut fastrand::Rng| {
            let range = random.u64(0..self.ranges);
            (range * 2 + 1) * KEYS_OF_RANGE + random.u64(0..KEYS_OF_RANGE)
        };
        let behind = |random: &mut fastrand::Rng| random.u64(keys..2 * keys);
        let get = |store: &Store, key: u64| {
            let found = store.db.get_with(&store.keys, key.to_be_bytes(), |value| value[0])?;
            ensure!(found == Some(7), "key {key} is missing");
            Ok(())
        };
        let start = |store: &Store, key: u64| {
            let snapshot = store.db.snapshot();
            let mut range = snapshot.range(&store.keys, key.to_be_bytes()..)?;
            let (found, _) = range.next().transpose()?.unwrap_or_default();
            ensure!(found == key.to_be_bytes(), "the iterator begins elsewhere");
            Ok(())
        };
        let pair = (&without, &with);
        let measured = vec![
            ("get_between_ns", self.compare(pair, &between, &get)?),
            ("get_behind_ns", self.compare(pair, &behind, &get)?),
            ("iterator_between_ns", self.compare(pair, &between, &start)?),
            ("iterator_behind_ns", self.compare(pair, &behind, &start)?),
        ];
        without.db.close()?;
        with.db.close()?;
        Ok(measured)
    }

    /// The first key of a queue.
    fn queue(&self, folder: &Path) -> Result<Compared> {
        let open = |name: &str| {
            let options = Options::new().memory_bytes(self.memory).durability(Durability::Buffered);
            Store::open(&folder.join(name), options)
        };
        let (without, with) = (open("fresh")?, open("queue")?);
        let (all, left) = (self.queue + QUEUE_LEFT, self.queue);
        let put = |store: &Store, keys: std::ops::Range<u64>| {
            store.db.transact(|tx| {
                keys.clone().try_for_each(|key| tx.put(&store.keys, key.to_be_bytes(), [7; 16]))
            })
        };
        put(&without, left..all)?;
        put(&with, 0..QUEUE_LEFT)?;
        for first in (0..self.queue).step_by(self.batch as usize) {
            let next = (first + self.batch).min(self.queue);
            put(&with, first + QUEUE_LEFT..next + QUEUE_LEFT)?;
            with.db.delete_range(&with.keys, first.to_be_bytes()..next.to_be_bytes())?;
        }
        let first = |store: &Store, _: u64| {
            let (key, _) = store.db.snapshot().first(&store.keys)?.unwrap_or_default();
            ensure!(key == left.to_be_bytes(), "another key is the first one");
            Ok(())
        };
        let compared = self.compare((&without, &with), &|_: &mut fastrand::Rng| 0, &first)?;
        without.db.close()?;
        with.db.close()?;
        Ok(compared)
    }

    /// Calls `call` with keys that `pick` picks, in both stores in turns.
    fn compare(
        &self,
        (without, with): (&Store, &Store),
        pick: &dyn Fn(&mut fastrand::Rng) -> u64,
        call: &dyn Fn(&Store, u64) -> Result<()>,
    ) -> Result<Compared> {
        turns::compare(
            self.rounds,
            CALLS,
            &mut |random| call(without, pick(random)),
            &mut |random| call(with, pick(random)),
        )
    }
}

fn micros_since(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_measures_something() {
        let bench = RangeDeletes {
            memory: 64 << 20,
            rows: 1000,
            ranges: 20,
            queue: 2000,
            batch: 500,
            rounds: 1,
        };
        let folder = tempfile::tempdir().unwrap();
        let one = bench.one(&folder.path().join("one")).unwrap();
        assert!(one.len() == 6 && one.iter().all(|(_, micros)| *micros > 0.0));
        let mut compared = bench.many(folder.path()).unwrap();
        compared.push(("queue", bench.queue(folder.path()).unwrap()));
        assert!(compared.iter().all(|(_, compared)| compared.ratio.median > 0.0));
    }
}
