//! `bench cluster`: members of one store whose commits are ordered by objects in a bucket.
//!
//! 1. A bucket in a folder, one member: a lone durable commit beside a bare write + fdatasync, many
//!    committers beside the same store without a cluster, and reads, with and without commits
//!    elsewhere.
//! 2. A bucket whose PUT takes some milliseconds, as in a cloud: committers of one member, several
//!    members that commit at once, and the time from the call of a commit until another member
//!    reads it.
//!
//! The slow bucket is a folder that sleeps before each PUT is stored. It does not say that it is a
//! folder, so members treat it as a cloud.

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use plimsoll::{Db, Keyspace, Options};
use plimsoll_archive::{Bucket, Folders, Object, Put, bucket_at};
use plimsoll_replica::{BucketOrder, create, join, open_member};

use crate::quiet;
use crate::results::Results;
use crate::sizes::{parse_size, show_size};
use crate::statistics::{interval, median, quantile};
use crate::table::{self, number};
use crate::turns::{self, Compared};
use crate::work_folder::Places;

/// Bytes of a value.
const VALUE_BYTES: usize = 100;

/// Reads of a turn.
const GETS: u64 = 20_000;

/// Lone commits of a turn.
const COMMITS: u64 = 50;

#[derive(Args, Debug)]
pub(crate) struct Cluster {
    /// Memory budget of each member
    #[arg(long, default_value = "64MiB", value_parser = parse_size)]
    memory: u64,
    /// Rows that are read
    #[arg(long, default_value_t = 50_000)]
    rows: u64,
    /// Committers of one member
    #[arg(long, default_value_t = 64)]
    committers: usize,
    /// Members that commit at the same time
    #[arg(long, default_value_t = 4)]
    members: usize,
    /// Milliseconds of a PUT of the slow bucket
    #[arg(long, value_delimiter = ',', default_value = "15,60")]
    put_ms: Vec<u64>,
    /// Length of a turn of committers in milliseconds
    #[arg(long, default_value_t = 2000)]
    turn_ms: u64,
    /// Rounds in which two contestants take turns
    #[arg(long, default_value_t = 11)]
    rounds: u64,
    /// Commits whose way to another member is timed
    #[arg(long, default_value_t = 200)]
    followed: u64,
}

/// A store and its keyspace.
struct Store {
    db: Db,
    keys: Keyspace,
}

impl Store {
    fn of(db: Db) -> Result<Self> {
        let keys = db.keyspace("keys")?;
        Ok(Self { db, keys })
    }

    fn put(&self, key: u64, value: &[u8]) -> Result<()> {
        self.db.put(&self.keys, key.to_be_bytes(), value)?;
        Ok(())
    }

    fn get(&self, key: u64) -> Result<()> {
        ensure!(self.db.get(&self.keys, key.to_be_bytes())?.is_some(), "a row is missing");
        Ok(())
    }
}

/// The numbers that the bench has measured.
#[derive(Default)]
struct Found {
    compared: Vec<(String, Compared)>,
    alone: Vec<(String, f64)>,
}

impl Cluster {
    /// Measures, prints two tables, keeps the results.
    pub(crate) fn run(&self, places: &Places) -> Result<()> {
        let mut results = Results::new("cluster", places.results().as_deref());
        quiet::check(&mut results);
        let work = places.work("cluster")?;
        let Found { compared, alone } = self.measure(work.path())?;
        let settings = format!(
            "memory={} rows={} committers={} members={}",
            show_size(self.memory),
            self.rows,
            self.committers,
            self.members
        );
        let rows: Vec<_> = compared
            .iter()
            .map(|(what, it)| it.note(&mut results, "cluster", &settings, what))
            .collect();
        table::print(&turns::COLUMNS, &rows);
        println!();
        let rows: Vec<_> = alone
            .iter()
            .map(|(what, value)| {
                results.note("cluster", &settings, what, *value);
                vec![what.clone(), number(*value)]
            })
            .collect();
        table::print(&["what", "value"], &rows);
        results.save()
    }

    fn measure(&self, folder: &Path) -> Result<Found> {
        let mut found = Found::default();
        self.in_a_folder(&folder.join("folder"), &mut found)?;
        for &millis in &self.put_ms {
            self.slow(&folder.join(format!("put-{millis}")), millis, &mut found)?;
        }
        Ok(found)
    }

    fn options(&self) -> Options {
        Options::new().memory_bytes(self.memory)
    }

    /// A loaded store without a cluster.
    fn loaded(&self, path: &Path) -> Result<Store> {
        let store = Store::of(Db::open(path, self.options())?)?;
        let rows = (0..self.rows).map(|key| (key.to_be_bytes(), [7; VALUE_BYTES]));
        store.db.bulk_load(&store.keys, rows)?;
        Ok(store)
    }

    /// A bucket in a folder.
    fn in_a_folder(&self, folder: &Path, found: &mut Found) -> Result<()> {
        std::fs::create_dir_all(folder)?;
        let plain = self.loaded(&folder.join("plain"))?;
        let url = folder.join("bucket").display().to_string();
        self.loaded(&folder.join("member"))?.db.close()?;
        create(&url, folder.join("member"), self.options())?;
        join(&url, folder.join("other"), self.options())?;
        let member = Store::of(open_member(folder.join("member"), self.options())?)?;

        let mut file = File::create(folder.join("bare"))?;
        let mut bare = || -> io::Result<()> {
            file.write_all(&[7; 300])?;
            file.sync_data()
        };
        let value = [1; VALUE_BYTES];
        let rows = self.rows;
        let alone = turns::compare(self.rounds, COMMITS, &mut |_| Ok(bare()?), &mut |random| {
            member.put(random.u64(0..rows), &value)
        })?;
        found.compared.push(("lone_commit_beside_fdatasync_ns".to_owned(), alone));
        let alone = turns::compare(
            self.rounds,
            COMMITS,
            &mut |random| plain.put(random.u64(0..rows), &value),
            &mut |random| member.put(random.u64(0..rows), &value),
        )?;
        found.compared.push(("lone_commit_beside_plain_store_ns".to_owned(), alone));

        let (mut without, mut with) = (Vec::new(), Vec::new());
        for round in 0..=self.rounds {
            let (one, two) = match round % 2 {
                0 => (&plain, &member),
                _ => (&member, &plain),
            };
            let (first, second) = (self.commits(&[one])?[0], self.commits(&[two])?[0]);
            let (of_plain, of_member) =
                if round % 2 == 0 { (first, second) } else { (second, first) };
            if round > 0 {
                without.push(of_plain);
                with.push(of_member);
            }
        }
        let ratios: Vec<f64> = with.iter().zip(&without).map(|(with, of)| with / of).collect();
        let many =
            Compared { without: median(&without), with: median(&with), ratio: interval(&ratios) };
        found.compared.push(("committers_commits_per_s".to_owned(), many));

        let mut reads = |name: &str| -> Result<()> {
            let compared = turns::compare(
                self.rounds,
                GETS,
                &mut |random| plain.get(random.u64(0..rows)),
                &mut |random| member.get(random.u64(0..rows)),
            )?;
            found.compared.push((name.to_owned(), compared));
            Ok(())
        };
        reads("get_ns")?;
        let other = Store::of(open_member(folder.join("other"), self.options())?)?;
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut key = 0;
                while !is_over.load(Ordering::Relaxed) {
                    other.put(key % rows, &value)?;
                    key += 1;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok::<_, anyhow::Error>(())
            });
            let outcome = reads("get_beside_commits_elsewhere_ns");
            is_over.store(true, Ordering::Relaxed);
            writer.join().expect("the writer panicked")?;
            outcome
        })?;
        for store in [plain, member, other] {
            store.db.close()?;
        }
        Ok(())
    }

    /// A bucket whose PUT takes this long.
    fn slow(&self, folder: &Path, millis: u64, found: &mut Found) -> Result<()> {
        std::fs::create_dir_all(folder)?;
        let url = folder.join("bucket").display().to_string();
        let path = |member: usize| folder.join(format!("member-{member}"));
        self.loaded(&path(0))?.db.close()?;
        create(&url, path(0), self.options())?;
        (1..self.members).try_for_each(|it| join(&url, path(it), self.options()).map(drop))?;
        let open = |member: usize| -> Result<Store> {
            let put = Duration::from_millis(millis);
            let bucket = Slow { inner: bucket_at(&url, Folders::Existing)?, put };
            let order = Arc::new(BucketOrder::new(Arc::new(bucket), &url)?);
            Store::of(Db::open(path(member), self.options().create(false).order(order))?)
        };
        let mut push =
            |what: &str, value| found.alone.push((format!("put_{millis}ms_{what}"), value));
        let stores = (0..self.members).map(open).collect::<Result<Vec<_>>>()?;

        let alone: Vec<f64> =
            (0..3).map(|_| Ok(self.commits(&[&stores[0]])?[0])).collect::<Result<_>>()?;
        push("committers_of_one_member_commits_per_s", median(&alone));

        let (first, last) = (&stores[0], &stores[stores.len() - 1]);
        let mut lags = Vec::new();
        for number in 0..self.followed {
            let begun = Instant::now();
            let glsn = first.db.put(&first.keys, number.to_be_bytes(), [2; VALUE_BYTES])?;
            while last.db.newest() < glsn {
                ensure!(begun.elapsed() < Duration::from_secs(60), "a member does not follow");
                std::thread::sleep(Duration::from_micros(200));
            }
            lags.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        push("commit_to_read_elsewhere_ms_p50", median(&lags));
        push("commit_to_read_elsewhere_ms_p99", quantile(&lags, 0.99));

        let all: Vec<&Store> = stores.iter().collect();
        let rates = self.commits(&all)?;
        push("members_together_commits_per_s", rates.iter().sum());
        push("slowest_member_commits_per_s", quantile(&rates, 0.0));
        push("fastest_member_commits_per_s", quantile(&rates, 1.0));
        stores.into_iter().try_for_each(|store| Ok(store.db.close()?))
    }

    /// Commits a second of each store, with the committers divided among the stores.
    fn commits(&self, stores: &[&Store]) -> Result<Vec<f64>> {
        let is_over = AtomicBool::new(false);
        let done: Vec<AtomicU64> = stores.iter().map(|_| AtomicU64::new(0)).collect();
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.committers.max(stores.len()))
                .map(|thread| {
                    let (store, done) = (stores[thread % stores.len()], &done);
                    let is_over = &is_over;
                    scope.spawn(move || {
                        let mut number = 0;
                        while !is_over.load(Ordering::Relaxed) {
                            store.put(
                                ((thread as u64) << 32) | (number % 1000),
                                &[3; VALUE_BYTES],
                            )?;
                            done[thread % stores.len()].fetch_add(1, Ordering::Relaxed);
                            number += 1;
                        }
                        Ok::<_, anyhow::Error>(())
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_millis(self.turn_ms));
            is_over.store(true, Ordering::Relaxed);
            threads.into_iter().try_for_each(|it| it.join().expect("a committer panicked"))
        })?;
        let seconds = begun.elapsed().as_secs_f64();
        Ok(done.into_iter().map(|it| it.into_inner() as f64 / seconds).collect())
    }
}

/// A bucket that sleeps before it stores an object.
#[derive(Debug)]
struct Slow {
    inner: Arc<dyn Bucket>,
    put: Duration,
}

impl Bucket for Slow {
    fn put_new(&self, name: &str, bytes: &mut dyn Read) -> io::Result<Put> {
        std::thread::sleep(self.put);
        self.inner.put_new(name, bytes)
    }

    fn get(&self, name: &str) -> io::Result<Option<Object>> {
        self.inner.get(name)
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.inner.list(folder)
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        self.inner.delete(name)
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        self.inner.exists(name)
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        std::thread::sleep(self.put);
        self.inner.replace(name, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_measures_something() {
        let bench = Cluster {
            memory: 16 << 20,
            rows: 500,
            committers: 4,
            members: 2,
            put_ms: vec![2],
            turn_ms: 50,
            rounds: 1,
            followed: 3,
        };
        let folder = tempfile::tempdir().unwrap();
        let Found { compared, alone } = bench.measure(folder.path()).unwrap();
        assert_eq!((compared.len(), alone.len()), (5, 6));
        assert!(compared.iter().all(|(_, compared)| compared.ratio.median > 0.0));
        assert!(alone.iter().all(|(_, value)| *value > 0.0));
    }
}
