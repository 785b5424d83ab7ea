//! Work in a child process, so that it can be observed from outside: one task on one store.
//!
//! Each prints a JSON object with the figures that only it knows: the duration of its phases, and
//! that the results were correct. A wrong result is a failure.

mod scenes;
mod snapshots;
mod writes;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::{Args, Subcommand, ValueEnum};
use plimsoll::{Db, Options, Snapshot};
pub(crate) use scenes::Scene;
use serde_json::{Map, Value, json};

use crate::payload;
use crate::peer::{Peer, PeerKind, Setup};
use crate::resident;
use crate::sizes::parse_size;

/// Keys of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Order {
    /// 0, 1, 2, ...
    Consecutive,
    /// The same number of distinct keys in random order.
    Random,
}

impl Order {
    fn key(self, number: u64) -> u64 {
        match self {
            Self::Consecutive => number,
            Self::Random => payload::mix(number),
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct Child {
    /// Folder of the store
    #[arg(long)]
    store: PathBuf,
    /// Memory budget
    #[arg(long, value_parser = parse_size)]
    memory: u64,
    #[command(subcommand)]
    work: Work,
}

#[derive(Debug, Subcommand)]
enum Work {
    /// Load pairs of integers
    Pairs {
        #[arg(long)]
        peer: PeerKind,
        #[arg(long)]
        rows: u64,
        #[arg(long)]
        order: Order,
        /// Pairs of a transaction
        #[arg(long)]
        batch: u64,
        /// How often the same pairs are loaded
        #[arg(long, default_value_t = 1)]
        times: u64,
    },
    /// One transaction of many small values
    Transaction {
        #[arg(long, value_parser = parse_size)]
        bytes: u64,
        #[arg(long, value_parser = parse_size)]
        value_bytes: u64,
    },
    /// One transaction of one value, handed over as a stream
    Value {
        #[arg(long, value_parser = parse_size)]
        bytes: u64,
    },
    /// Random writes
    Writes {
        #[arg(long, value_parser = parse_size)]
        bytes: u64,
        /// Kill this process at the end, in the middle of a transaction
        #[arg(long)]
        be_killed: bool,
    },
    /// Open what random writes left, and look at it
    Recover {
        #[arg(long, value_parser = parse_size)]
        bytes: u64,
    },
    /// Many snapshots at once
    Snapshots {
        #[arg(long)]
        count: u64,
    },
    /// Something that is hard on the line
    Scene {
        #[arg(long)]
        scene: Scene,
    },
    /// A scene of the resident bench
    Resident {
        #[arg(long)]
        peer: PeerKind,
        #[arg(long)]
        scene: resident::Scene,
        #[arg(long)]
        rows: u64,
        #[arg(long)]
        seconds: f64,
    },
    /// Walk all keyspaces from end to end
    Scan,
    /// Read and check every byte
    Verify,
}

/// Time for a store to do background work after a load, before it is read.
const REST_SECONDS: f64 = 5.0;

/// Pairs looked up after a load.
const GETS: u64 = 10_000;

/// The report of a child.
#[derive(Default)]
struct Report(Map<String, Value>);

impl Report {
    fn note(&mut self, metric: &str, value: f64) {
        self.0.insert(metric.to_owned(), json!(value));
    }

    /// Records the duration of a phase.
    fn time<T>(&mut self, metric: &str, phase: impl FnOnce() -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let result = phase();
        self.note(metric, start.elapsed().as_secs_f64());
        result
    }
}

impl Child {
    /// Does the work and prints the report.
    pub(crate) fn run(&self) -> Result<()> {
        let mut report = Report::default();
        match self.work {
            Work::Pairs { peer, rows, order, batch, times } => {
                let peer = peer.open(&self.store, &Setup::new(self.memory))?;
                for _ in 1..times {
                    report.time("first_load_seconds", || load(&*peer, rows, order, batch))?;
                }
                pairs(peer, rows, order, batch, &mut report)?;
            }
            Work::Transaction { bytes, value_bytes } => {
                let db = self.open()?;
                report.time("transaction_seconds", || transaction(&db, bytes, value_bytes))?;
                report.time("close_seconds", || Ok(db.close()?))?;
            }
            Work::Value { bytes } => {
                let db = self.open()?;
                report.time("write_seconds", || write_value(&db, bytes))?;
                report.time("read_seconds", || read_value(&db, bytes))?;
                report.time("close_seconds", || Ok(db.close()?))?;
            }
            Work::Writes { bytes, be_killed } => {
                let db = self.open()?;
                if be_killed {
                    writes::write_and_be_killed(&db, bytes)?;
                }
                report.time("write_seconds", || writes::write(&db, bytes))?;
                report.time("close_seconds", || Ok(db.close()?))?;
            }
            Work::Recover { bytes } => {
                let db = report.time("open_seconds", || self.open())?;
                report.time("check_seconds", || writes::check(&db, bytes))?;
                report.time("close_seconds", || Ok(db.close()?))?;
            }
            Work::Snapshots { count } => {
                let db = self.open()?;
                report.time("snapshots_seconds", || snapshots::hold(&db, count))?;
                report.time("close_seconds", || Ok(db.close()?))?;
            }
            Work::Scene { scene } => {
                let open = || {
                    let options = scenes::options(scene, Options::new().memory_bytes(self.memory));
                    anyhow::Ok(Db::open(&self.store, options)?)
                };
                let db = open()?;
                let refusals = report.time("scene_seconds", || scene.play(&db, &open))?;
                report.note("refusals", refusals as f64);
                report.time("close_seconds", || Ok(db.close()?))?;
            }
            Work::Resident { peer, scene, rows, seconds } => {
                let scale = resident::Scale { rows, seconds, rest_seconds: REST_SECONDS };
                let mut note = |metric: &str, value: f64| report.note(metric, value);
                scene.play(peer, &self.store, self.memory, &scale, &mut note)?;
            }
            Work::Scan => {
                let db = self.open()?;
                let (rows, bytes) = report.time("scan_seconds", || scan(&db))?;
                report.note("rows", rows as f64);
                report.note("bytes", bytes as f64);
            }
            Work::Verify => {
                let db = self.open()?;
                let bytes = report.time("verify_seconds", || verify(&db))?;
                report.note("bytes", bytes as f64);
            }
        }
        println!("{}", Value::Object(report.0));
        Ok(())
    }

    fn open(&self) -> Result<Db> {
        Ok(Db::open(&self.store, Options::new().memory_bytes(self.memory))?)
    }
}

fn pairs(
    peer: Box<dyn Peer>,
    rows: u64,
    order: Order,
    batch: u64,
    report: &mut Report,
) -> Result<()> {
    report.time("load_seconds", || load(&*peer, rows, order, batch))?;
    report.time("scan_seconds", || check_pairs(&*peer, rows, order))?;
    report.time("get_seconds", || check_gets(&*peer, rows, order))?;
    report.time("close_seconds", || peer.close())
}

/// Sets the key of each number below `rows` to the number.
fn load(peer: &dyn Peer, rows: u64, order: Order, batch: u64) -> Result<()> {
    for first in (0..rows).step_by(usize::try_from(batch)?) {
        let numbers = first..rows.min(first + batch);
        peer.commit(&mut |transaction| {
            let mut pairs = numbers.clone();
            pairs.try_for_each(|number| {
                transaction.put(&order.key(number).to_be_bytes(), &number.to_le_bytes())
            })
        })?;
    }
    Ok(())
}

/// Scans all pairs: as many as loaded, in order, each value matching its key.
fn check_pairs(peer: &dyn Peer, rows: u64, order: Order) -> Result<()> {
    let (mut seen, mut wrong, mut last) = (0_u64, 0_u64, None);
    peer.scan(&[], &mut |key, value| {
        let parsed = key
            .try_into()
            .map(u64::from_be_bytes)
            .ok()
            .zip(value.try_into().map(u64::from_le_bytes).ok());
        let right = parsed.is_some_and(|(key, number)| {
            number < rows && order.key(number) == key && last < Some(key)
        });
        last = parsed.map(|(key, _)| key);
        seen += 1;
        wrong += u64::from(!right);
        true
    })?;
    ensure!(
        seen == rows && wrong == 0,
        "{rows} pairs were loaded, {seen} were found, {wrong} of them wrong"
    );
    Ok(())
}

/// Looks up some pairs by key, and missing keys.
fn check_gets(peer: &dyn Peer, rows: u64, order: Order) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..GETS.min(rows) {
        let number = random.u64(0..rows);
        let mut right = false;
        peer.get(&order.key(number).to_be_bytes(), &mut |value| {
            right = value == number.to_le_bytes()
        })?;
        ensure!(right, "pair {number} differs from the one that was loaded");
        let missing = order.key(rows + number).to_be_bytes();
        ensure!(!peer.get(&missing, &mut |_| {})?, "a key exists that was not loaded");
    }
    Ok(())
}

fn transaction(db: &Db, bytes: u64, value_bytes: u64) -> Result<()> {
    let keyspace = db.keyspace("transaction")?;
    let mut value = vec![0; usize::try_from(value_bytes)?];
    let mut transaction = db.begin();
    for number in 0..bytes / (8 + value_bytes) {
        payload::fill(number, &mut value);
        transaction.put(&keyspace, &payload::mix(number).to_be_bytes(), &value)?;
    }
    transaction.commit()?;
    Ok(())
}

/// Bytes determined by their position.
struct Stream {
    next: u64,
    left: u64,
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let bytes =
            self.left.min(into.len() as u64 & !7).max(self.left.min(8)).min(into.len() as u64)
                as usize;
        for piece in into[..bytes].chunks_mut(8) {
            self.next += 1;
            piece.copy_from_slice(&payload::mix(self.next).to_le_bytes()[..piece.len()]);
        }
        self.left -= bytes as u64;
        Ok(bytes)
    }
}

fn write_value(db: &Db, bytes: u64) -> Result<()> {
    let keyspace = db.keyspace("value")?;
    let mut transaction = db.begin();
    let written =
        transaction.put_reader(&keyspace, b"value", &mut Stream { next: 0, left: bytes })?;
    ensure!(written == bytes, "{written} of {bytes} bytes were taken");
    transaction.commit()?;
    Ok(())
}

fn read_value(db: &Db, bytes: u64) -> Result<()> {
    let keyspace = db.keyspace("value")?;
    let mut reader = db
        .snapshot()
        .get_reader(&keyspace, b"value")?
        .ok_or_else(|| anyhow::anyhow!("the value is missing"))?;
    let mut expected = Stream { next: 0, left: bytes };
    let (mut got, mut want) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    while expected.left > 0 {
        let piece = expected.left.min(got.len() as u64) as usize;
        reader.read_exact(&mut got[..piece])?;
        expected.read_exact(&mut want[..piece])?;
        ensure!(
            got[..piece] == want[..piece],
            "the value differs, {} bytes before its end",
            expected.left
        );
    }
    ensure!(reader.read(&mut got)? == 0, "the value is too long");
    Ok(())
}

fn scan(db: &Db) -> Result<(u64, u64)> {
    let snapshot: Snapshot = db.snapshot();
    let (mut rows, mut bytes) = (0, 0);
    for info in db.keyspaces() {
        let keyspace = db.keyspace(&info.name)?;
        let mut pairs = snapshot.range(&keyspace, ..)?;
        while let Some((key, value)) = pairs.advance()? {
            rows += 1;
            bytes += (key.len() + value.len()) as u64;
        }
    }
    Ok((rows, bytes))
}

fn verify(db: &Db) -> Result<u64> {
    let report = db.verify(&mut |_| {})?;
    ensure!(
        report.problems.is_empty(),
        "{} problems, first: {}",
        report.problems.len(),
        report.problems[0]
    );
    Ok(report.bytes)
}

/// The arguments of a child that works on `store`.
pub(crate) fn arguments(store: &Path, memory_bytes: u64, work: &[&str]) -> Vec<String> {
    let mut all = vec!["child".to_owned(), "--store".to_owned(), store.display().to_string()];
    all.extend(["--memory".to_owned(), memory_bytes.to_string()]);
    all.extend(work.iter().map(|&argument| argument.to_owned()));
    all
}

/// The numbers of a child's report; empty if it did not get that far.
pub(crate) fn numbers(output: &str) -> Vec<(String, f64)> {
    let Ok(Value::Object(report)) = serde_json::from_str(output.trim()) else { return Vec::new() };
    report.iter().filter_map(|(metric, value)| Some((metric.clone(), value.as_f64()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_checked_to_the_last_pair() {
        for order in [Order::Consecutive, Order::Random] {
            let folder = tempfile::tempdir().unwrap();
            let peer = PeerKind::Btree.open(folder.path(), &Setup::new(0)).unwrap();
            load(&*peer, 1000, order, 300).unwrap();
            check_pairs(&*peer, 1000, order).unwrap();
            check_gets(&*peer, 1000, order).unwrap();
            assert!(check_gets(&*peer, 500, order).is_err());
            assert!(check_pairs(&*peer, 999, order).is_err());
            assert!(check_pairs(&*peer, 1001, order).is_err());
            let wrong = order.key(5).to_be_bytes();
            peer.commit(&mut |transaction| transaction.put(&wrong, &6_u64.to_le_bytes())).unwrap();
            assert!(check_pairs(&*peer, 1000, order).is_err());
        }
    }

    #[test]
    fn a_stream_has_the_expected_bytes_for_any_read_size() {
        let mut whole = Vec::new();
        Stream { next: 0, left: 1003 }.read_to_end(&mut whole).unwrap();
        assert_eq!(whole.len(), 1003);
        let (mut first, mut second) = (vec![0; 512], Vec::new());
        let mut stream = Stream { next: 0, left: 1003 };
        stream.read_exact(&mut first).unwrap();
        stream.read_to_end(&mut second).unwrap();
        assert_eq!([first, second].concat(), whole);
    }

    #[test]
    fn random_writes_and_snapshots_are_checked() {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(folder.path(), Options::new().memory_bytes(16 << 20)).unwrap();
        writes::write(&db, 3_000_000).unwrap();
        writes::check(&db, 3_000_000).unwrap();
        assert!(writes::check(&db, 3_001_000).is_err());
        snapshots::hold(&db, 2500).unwrap();
    }

    #[test]
    fn a_report_is_read_back() {
        assert_eq!(
            numbers("{\"a\":1.5,\"b\":2}\n"),
            [("a".to_owned(), 1.5), ("b".to_owned(), 2.0)]
        );
        assert!(numbers("").is_empty());
    }
}
