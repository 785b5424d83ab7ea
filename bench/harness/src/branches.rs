//! `bench branches`: what branches cost.
//!
//! 1. Creating a branch, beside a put, both durable; opening a store with many branches.
//! 2. Depth: reads on the last of a chain of branches, beside reads on main.
//! 3. Width: reads on a branch of a store in which many other branches wrote the same key and new
//!    keys in the same range, beside the same branch without them; and reads on main there.
//! 4. A group: the same on the last branch of one of several lines that left one branch.
//! 5. Merges of a few changes and of many, beside a put and beside a transaction of as many puts.
//! 6. Durable commits of several threads, each on a branch of its own, beside all on main.
//!
//! Two that are compared take turns, and a ratio is taken within a round. Before reads, the store is
//! compacted and everything is read once.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use clap::Args;
use plimsoll::{Branch, Db, Durability, Keyspace, MergeOutcome, Options};

use crate::quiet;
use crate::results::Results;
use crate::sizes::{parse_size, show_size};
use crate::statistics::{interval, median};
use crate::table::{self, number};
use crate::turns::{self, Compared};
use crate::work_folder::Places;

/// Point reads and scans of a turn.
const GETS: u64 = 5_000;
const SCANS: u64 = 200;

/// Rows of a scan.
const SCAN_ROWS: usize = 100;

/// Keys that each branch writes, beside the hot one.
const KEYS_OF_BRANCH: u64 = 10;

/// Changes of each side of a small merge.
const FEW: u64 = 10;

/// A key that main has in the middle, and that every branch writes.
const HOT: &[u8] = b"5-hot";

#[derive(Args, Debug)]
pub(crate) struct Branches {
    /// Memory budget of each store, which should hold its data: the stores with many branches hold
    /// more than those that they are compared with
    #[arg(long, default_value = "1GiB", value_parser = parse_size)]
    memory: u64,
    /// Memory budget of the store with many branches
    #[arg(long, default_value = "64MiB", value_parser = parse_size)]
    small_memory: u64,
    /// Rows of main
    #[arg(long, default_value_t = 1_000_000)]
    rows: u64,
    /// Branches beside each other
    #[arg(long, default_value_t = 100_000)]
    width: u64,
    /// Branches of the chain
    #[arg(long, default_value_t = 1_000)]
    depth: u64,
    /// Branches of each line of the group
    #[arg(long, default_value_t = 25)]
    line: u64,
    /// Lines of the group
    #[arg(long, default_value_t = 40)]
    lines: u64,
    /// Changes of each side of a large merge
    #[arg(long, default_value_t = 100_000)]
    changes: u64,
    /// Threads that commit
    #[arg(long, default_value_t = 8)]
    writers: usize,
    /// Length of a turn of commits, in milliseconds
    #[arg(long, default_value_t = 500)]
    turn_ms: u64,
    /// Rounds in which two take turns
    #[arg(long, default_value_t = 15)]
    rounds: u64,
}

/// Measured pairs, and numbers without a counterpart.
#[derive(Default)]
struct Found {
    compared: Vec<(String, Compared)>,
    alone: Vec<(&'static str, f64)>,
}

/// A store and its keyspace.
struct Store {
    db: Db,
    keys: Keyspace,
}

/// The key of a row of main, in an order that is not that of the numbers.
fn row_key(row: u64) -> [u8; 16] {
    let digits = format!("{:016x}", row.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    digits.into_bytes().try_into().expect("16 digits")
}

impl Store {
    fn open(path: &Path, memory: u64, durability: Durability) -> Result<Self> {
        let db = Db::open(path, Options::new().memory_bytes(memory).durability(durability))?;
        let keys = db.keyspace("keys")?;
        Ok(Self { db, keys })
    }

    /// A store with rows on main.
    fn loaded(path: &Path, memory: u64, durability: Durability, rows: u64) -> Result<Self> {
        let store = Self::open(path, memory, durability)?;
        let mut keys: Vec<_> = (0..rows).map(row_key).collect();
        keys.sort_unstable();
        store.db.bulk_load(&store.keys, keys.into_iter().map(|key| (key, [7; 100])))?;
        store.db.put(&store.keys, HOT, [7; 100])?;
        Ok(store)
    }

    /// Writes the hot key, and keys of this branch's own between the rows of main.
    fn write_on(&self, branch: &Branch, number: u64) -> Result<()> {
        branch.transact(|tx| {
            tx.put(&self.keys, HOT, [8; 100])?;
            (0..KEYS_OF_BRANCH).try_for_each(|key| {
                tx.put(&self.keys, own_key(number * KEYS_OF_BRANCH + key), [9; 100])
            })
        })?;
        Ok(())
    }

    /// Writes everything into tables, and reads both branches once.
    fn settle(&self, branches: &[&Branch]) -> Result<()> {
        self.db.compact()?;
        for branch in branches {
            for row in branch.range(&self.keys, ..)? {
                row?;
            }
        }
        Ok(())
    }
}

/// The key that only one branch has.
fn own_key(number: u64) -> Vec<u8> {
    let [digits @ .., _, _] = row_key(number.wrapping_add(1 << 40));
    [&digits[..], b"-own"].concat()
}

fn get(branch: &Branch, keys: &Keyspace, key: &[u8], is_there: bool) -> Result<()> {
    let found = branch.get_with(keys, key, |value| value[0])?;
    ensure!(found.is_some() == is_there, "the answer for {key:?} is wrong: {found:?}");
    Ok(())
}

/// Reads rows from a key on.
fn scan(branch: &Branch, keys: &Keyspace, from: &[u8]) -> Result<()> {
    let rows = branch.range(keys, from..)?.take(SCAN_ROWS);
    let mut read = 0;
    for row in rows {
        read += row?.0.len();
    }
    ensure!(read > 0, "the scan from {from:?} is empty");
    Ok(())
}

impl Branches {
    /// Measures, prints a table, keeps the results.
    pub(crate) fn run(&self, places: &Places) -> Result<()> {
        let mut results = Results::new("branches", places.results().as_deref());
        quiet::check(&mut results);
        let work = places.work("branches")?;
        let settings = format!("memory={} rows={}", show_size(self.memory), self.rows);
        let found = self.measure(work.path())?;
        let mut rows = Vec::new();
        for (what, compared) in &found.compared {
            rows.push(compared.note(&mut results, "branches", &settings, what));
        }
        for (what, value) in &found.alone {
            results.note("branches", &settings, what, *value);
            rows.push(vec![(*what).to_owned(), "-".to_owned(), number(*value), "-".to_owned()]);
        }
        table::print(&turns::COLUMNS, &rows);
        results.save()
    }

    fn measure(&self, folder: &Path) -> Result<Found> {
        let mut found = Found::default();
        let parts: [(&str, Part); 6] = [
            ("create", Self::create),
            ("depth", Self::depth),
            ("width", Self::width),
            ("group", Self::group),
            ("merge", Self::merges),
            ("writers", Self::writers),
        ];
        for (name, part) in parts {
            println!("{name} ...");
            let path = folder.join(name);
            std::fs::create_dir(&path)?;
            part(self, &path, &mut found)?;
            std::fs::remove_dir_all(&path)?;
        }
        Ok(found)
    }

    /// Creating branches, and opening a store that has many.
    fn create(&self, folder: &Path, found: &mut Found) -> Result<()> {
        let store = Store::open(&folder.join("durable"), self.small_memory, Durability::Sync)?;
        let (mut puts, mut branches, main) = (0u64, 0u64, store.db.main());
        let compared = turns::compare(
            self.rounds,
            20,
            &mut |_| {
                puts += 1;
                store.db.put(&store.keys, puts.to_be_bytes(), [7; 16])?;
                Ok(())
            },
            &mut |_| {
                branches += 1;
                store.db.create_branch(&format!("branch-{branches}"), &main)?;
                Ok(())
            },
        )?;
        found.compared.push(("create_durable_ns".to_owned(), compared));
        store.db.close()?;
        let open = |path: &Path| Store::open(path, self.small_memory, Durability::Buffered);
        let mut seconds = Vec::new();
        for (name, count) in [("few", 1), ("many", self.width)] {
            let path = folder.join(name);
            let store = open(&path)?;
            let main = store.db.main();
            let begun = Instant::now();
            for number in 0..count {
                store.db.create_branch(&format!("branch-{number}"), &main)?;
            }
            if count > 1 {
                let micros = begun.elapsed().as_secs_f64() * 1e6 / count as f64;
                found.alone.push(("create_buffered_us", micros));
            }
            store.db.close()?;
            let times: Vec<f64> = (0..5)
                .map(|_| {
                    let begun = Instant::now();
                    let store = open(&path)?;
                    store.db.branch("branch-0")?;
                    let seconds = begun.elapsed().as_secs_f64();
                    ensure!(store.db.branches()?.len() as u64 == count, "a branch is missing");
                    store.db.close()?;
                    Ok(seconds)
                })
                .collect::<Result<_>>()?;
            seconds.push(median(&times));
        }
        found.alone.push(("open_one_branch_s", seconds[0]));
        found.alone.push(("open_many_branches_s", seconds[1]));
        Ok(())
    }

    fn depth(&self, folder: &Path, found: &mut Found) -> Result<()> {
        let store = self.loaded(&folder.join("store"))?;
        let main = store.db.main();
        let mut last = main.clone();
        for number in 0..self.depth {
            last = store.db.create_branch(&format!("deep-{number}"), &last)?;
            store.write_on(&last, number)?;
        }
        store.settle(&[&main, &last])?;
        self.reads("depth", (&store, &main), (&store, &last), found)?;
        store.db.close()?;
        Ok(())
    }

    fn width(&self, folder: &Path, found: &mut Found) -> Result<()> {
        let (without, with) =
            (self.loaded(&folder.join("without"))?, self.loaded(&folder.join("with"))?);
        let (mut alone, mut beside) = (Vec::new(), Vec::new());
        for (store, branches, width) in
            [(&without, &mut alone, 1), (&with, &mut beside, self.width)]
        {
            let main = store.db.main();
            for number in 0..width {
                let branch = store.db.create_branch(&format!("wide-{number}"), &main)?;
                store.write_on(&branch, number)?;
                if number == 0 {
                    branches.extend([main.clone(), branch]);
                }
            }
            store.settle(&[&branches[0], &branches[1]])?;
        }
        self.reads("width", (&without, &alone[1]), (&with, &beside[1]), found)?;
        self.reads("width_main", (&without, &alone[0]), (&with, &beside[0]), found)?;
        without.db.close()?;
        with.db.close()?;
        Ok(())
    }

    fn group(&self, folder: &Path, found: &mut Found) -> Result<()> {
        let store = self.loaded(&folder.join("store"))?;
        let main = store.db.main();
        let root = store.db.create_branch("root", &main)?;
        let mut last = root.clone();
        for line in 0..self.lines {
            last = root.clone();
            for number in 0..self.line {
                last = store.db.create_branch(&format!("line-{line}-{number}"), &last)?;
                store.write_on(&last, line * self.line + number)?;
            }
        }
        store.settle(&[&main, &last])?;
        self.reads("group", (&store, &main), (&store, &last), found)?;
        store.db.close()?;
        Ok(())
    }

    fn loaded(&self, path: &Path) -> Result<Store> {
        Store::loaded(path, self.memory, Durability::Buffered, self.rows)
    }

    /// Reads on two branches, which both have the rows of main.
    fn reads(
        &self,
        what: &str,
        (without, one): (&Store, &Branch),
        (with, other): (&Store, &Branch),
        found: &mut Found,
    ) -> Result<()> {
        let row = |random: &mut fastrand::Rng| row_key(random.u64(0..self.rows));
        let missing = |random: &mut fastrand::Rng| {
            let mut key = row_key(random.u64(0..self.rows)).to_vec();
            key.push(b'!');
            key
        };
        let (plain, keys) = (&without.keys, &with.keys);
        let (rounds, gets, scans) = (self.rounds, GETS, SCANS);
        let mut push = |name: &str, compared| {
            found.compared.push((format!("{what}_{name}_ns"), compared));
        };
        push(
            "get",
            turns::compare(
                rounds,
                gets,
                &mut |random| get(one, plain, &row(random), true),
                &mut |random| get(other, keys, &row(random), true),
            )?,
        );
        push(
            "get_missing",
            turns::compare(
                rounds,
                gets,
                &mut |random| get(one, plain, &missing(random), false),
                &mut |random| get(other, keys, &missing(random), false),
            )?,
        );
        push(
            "get_hot",
            turns::compare(rounds, gets, &mut |_| get(one, plain, HOT, true), &mut |_| {
                get(other, keys, HOT, true)
            })?,
        );
        push(
            "scan",
            turns::compare(
                rounds,
                scans,
                &mut |random| scan(one, plain, &row(random)),
                &mut |random| scan(other, keys, &row(random)),
            )?,
        );
        Ok(())
    }

    fn merges(&self, folder: &Path, found: &mut Found) -> Result<()> {
        let path = folder.join("store");
        let store = Store::loaded(&path, self.memory, Durability::Sync, self.rows)?;
        let main = store.db.main();
        let (mut times, mut puts) = (Vec::new(), Vec::new());
        for round in 0..=self.rounds {
            let seconds = self.merge(&store, &main, round, FEW)?;
            let begun = Instant::now();
            store.db.put(&store.keys, HOT, [1; 100])?;
            if round > 0 {
                times.push(seconds * 1e9);
                puts.push(begun.elapsed().as_nanos() as f64);
            }
        }
        let ratios: Vec<f64> = times.iter().zip(&puts).map(|(merge, put)| merge / put).collect();
        let compared =
            Compared { without: median(&puts), with: median(&times), ratio: interval(&ratios) };
        found.compared.push(("merge_few_durable_ns".to_owned(), compared));
        let seconds = self.merge(&store, &main, self.rounds + 1, self.changes)?;
        found.alone.push(("merge_many_changes_per_s", 2.0 * self.changes as f64 / seconds));
        store.db.close()?;
        Ok(())
    }

    /// Changes other keys on main and on a new branch, and returns the seconds that it takes to
    /// merge the branch.
    fn merge(&self, store: &Store, main: &Branch, round: u64, changes: u64) -> Result<f64> {
        let name = format!("merged-{round}");
        let branch = store.db.create_branch(&name, main)?;
        ensure!(2 * changes <= self.rows, "more changes than rows");
        let mut random = fastrand::Rng::with_seed(round);
        let first = random.u64(0..self.rows);
        for (side, number) in [(main, 0), (&branch, 1)] {
            side.transact(|tx| {
                (0..changes).try_for_each(|change| {
                    let row = (first + 2 * change + number) % self.rows;
                    tx.put(&store.keys, row_key(row), round.to_be_bytes())
                })
            })?;
        }
        let begun = Instant::now();
        let outcome = store.db.merge(&branch).run()?;
        let seconds = begun.elapsed().as_secs_f64();
        let MergeOutcome::Merged(_) = outcome else { bail!("no merge: {outcome:?}") };
        let merged = store.db.get(&store.keys, row_key((first + 1) % self.rows))?;
        ensure!(merged.is_some_and(|value| value == round.to_be_bytes()[..]), "not merged");
        store.db.delete_branch(&name)?;
        Ok(seconds)
    }

    /// Durable commits of several threads.
    fn writers(&self, folder: &Path, found: &mut Found) -> Result<()> {
        let store = Store::open(&folder.join("store"), self.memory, Durability::Sync)?;
        let main = vec![store.db.main(); self.writers];
        let own = (0..self.writers)
            .map(|number| store.db.create_branch(&format!("writer-{number}"), &main[0]))
            .collect::<plimsoll::Result<Vec<_>>>()?;
        let (mut on_main, mut on_own) = (Vec::new(), Vec::new());
        for round in 0..=self.rounds {
            let (first, second) = match round % 2 {
                0 => (&main, &own),
                _ => (&own, &main),
            };
            let (one, two) = (self.commits(&store, first)?, self.commits(&store, second)?);
            let (of_main, of_own) = if round % 2 == 0 { (one, two) } else { (two, one) };
            if round > 0 {
                on_main.push(of_main);
                on_own.push(of_own);
            }
        }
        let ratios: Vec<f64> = on_own.iter().zip(&on_main).map(|(own, main)| own / main).collect();
        let compared =
            Compared { without: median(&on_main), with: median(&on_own), ratio: interval(&ratios) };
        found.compared.push(("writers_commits_per_s".to_owned(), compared));
        store.db.close()?;
        Ok(())
    }

    /// Commits a second of threads that write on these branches, each its own keys.
    fn commits(&self, store: &Store, branches: &[Branch]) -> Result<f64> {
        let (done, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let threads: Vec<_> = branches
                .iter()
                .enumerate()
                .map(|(thread, branch)| {
                    let (done, is_over) = (&done, &is_over);
                    scope.spawn(move || {
                        let mut number = 0u64;
                        while !is_over.load(Ordering::Relaxed) {
                            let key = [thread as u64, number % 1000].map(u64::to_be_bytes).concat();
                            branch.put(&store.keys, key, [7; 100])?;
                            number += 1;
                        }
                        done.fetch_add(number, Ordering::Relaxed);
                        Ok::<_, anyhow::Error>(())
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_millis(self.turn_ms));
            is_over.store(true, Ordering::Relaxed);
            threads.into_iter().try_for_each(|it| it.join().expect("a writer panicked"))
        })?;
        Ok(done.into_inner() as f64 / begun.elapsed().as_secs_f64())
    }
}

/// A part of the bench: works in a folder, and adds what it found.
type Part = fn(&Branches, &Path, &mut Found) -> Result<()>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_measures_something() {
        let bench = Branches {
            memory: 64 << 20,
            small_memory: 32 << 20,
            rows: 2000,
            width: 30,
            depth: 20,
            line: 3,
            lines: 4,
            changes: 100,
            writers: 2,
            turn_ms: 20,
            rounds: 1,
        };
        let folder = tempfile::tempdir().unwrap();
        let Found { compared, alone } = bench.measure(folder.path()).unwrap();
        assert_eq!((compared.len(), alone.len()), (1 + 4 * 4 + 1 + 1, 4));
        assert!(compared.iter().all(|(_, compared)| compared.ratio.median > 0.0));
        assert!(alone.iter().all(|(_, value)| *value > 0.0));
    }
}
