//! The life of one process on the store: creates it, requests hot rows until they are in memory,
//! lives on it, reopens it, or serves.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use plimsoll::{Db, Keyspace, Options, Retention, Snapshot};
use serde_json::{Map, json};

use crate::payload;
use crate::sizes::parse_size;
use crate::statistics::quantile;
use crate::yardstick::zipf::Zipf;

/// The requests that determine the quality of a restart.
const FIRST_REQUESTS: u64 = 10_000;

/// Rows of a transaction while the store is made.
const BATCH: usize = 10_000;

/// This many rows are sorted at a time while the store is created.
const ROWS_AT_ONCE: u64 = 8 << 20;

/// Threads that request rows until hot rows are in memory; each mostly waits for the disk.
const HEATERS: u64 = 8;

/// The time over which requests are counted after a restart.
const MOMENT: Duration = Duration::from_millis(50);

/// The longest wait for a complete image.
const REST_MAX: Duration = Duration::from_secs(600);

/// The placement of the hot rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Hot {
    /// Adjacent to each other.
    Together,
    /// Each on a separate page, as far as there are enough pages.
    Scattered,
}

impl Hot {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Together => "together",
            Self::Scattered => "scattered",
        }
    }

    /// The key of object `number`; the hot ones are numbered from 0.
    fn key(self, number: u64) -> [u8; 8] {
        match self {
            Self::Together => number,
            Self::Scattered => payload::mix(number),
        }
        .to_be_bytes()
    }
}

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum End {
    /// It closes the store after an image was written, without changes in between.
    Close,
    /// It closes the store before any image was written, so everything is new.
    #[value(name = "close-all-new")]
    Changed,
    /// It is killed some seconds after it opened the store.
    Kill,
}

impl End {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Close => "close",
            Self::Changed => "close-all-new",
            Self::Kill => "kill",
        }
    }
}

/// The task of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Act {
    /// Makes the store.
    Make,
    /// Requests until the hot rows are in memory and their image is written.
    Heat,
    /// Begins with hot rows in memory and without an image; measures requests, and ends.
    Live,
    /// Opens the store, and measures the first requests and, after the image was restored, as many
    /// more.
    Reopen,
    /// Measures requests for a while.
    Serve,
    /// Opens the store, and counts requests over time.
    Answer,
}

#[derive(Args, Debug)]
pub(crate) struct WarmLife {
    #[arg(long)]
    act: Act,
    #[arg(long)]
    store: PathBuf,
    #[arg(long, value_parser = parse_size)]
    memory: u64,
    #[arg(long)]
    times: u64,
    #[arg(long, value_parser = parse_size)]
    value_bytes: u64,
    #[arg(long)]
    hot_percent: u64,
    #[arg(long)]
    hot: Hot,
    #[arg(long)]
    end: End,
    #[arg(long)]
    interval: f64,
    #[arg(long)]
    kill_after: f64,
    #[arg(long)]
    requests: u64,
    #[arg(long)]
    warm: bool,
}

impl WarmLife {
    /// Runs the task, and prints its measurements.
    pub(crate) fn run(&self) -> Result<()> {
        let mut report = Map::new();
        match self.act {
            Act::Make => self.make()?,
            Act::Heat => self.heat()?,
            Act::Live => self.live(&mut report)?,
            Act::Reopen => self.reopen(&mut report)?,
            Act::Serve => self.serve(&mut report)?,
            Act::Answer => self.answer(&mut report)?,
        }
        println!("{}", serde_json::Value::Object(report));
        Ok(())
    }

    fn open(&self) -> Result<(Db, Keyspace)> {
        let options = Options::new()
            .memory_bytes(self.memory)
            .warm(self.warm)
            .warm_interval(Duration::from_secs_f64(self.interval));
        let db = Db::open(&self.store, options)?;
        let keyspace = db.create_keyspace("objects", Retention::Latest)?;
        Ok((db, keyspace))
    }

    fn rows(&self) -> u64 {
        self.memory * self.times / (self.value_bytes + 8)
    }

    fn hot_rows(&self) -> u64 {
        (self.memory * self.hot_percent / 100 / (self.value_bytes + 8)).max(2)
    }

    /// Puts rows in key order, so that nothing needs merging; the final files are the same.
    fn make(&self) -> Result<()> {
        let (db, keyspace) = self.open()?;
        let mut value = vec![0; self.value_bytes as usize];
        let (rows, parts) = (self.rows(), self.rows().div_ceil(ROWS_AT_ONCE));
        let mut keys: Vec<([u8; 8], u64)> = Vec::new();
        for part in 0..parts {
            keys.clear();
            keys.extend((0..rows).filter_map(|number| {
                let key = self.hot.key(number);
                let place = match self.hot {
                    Hot::Together => number / ROWS_AT_ONCE,
                    // Keys are spread over all numbers.
                    Hot::Scattered => {
                        ((u128::from(u64::from_be_bytes(key)) * u128::from(parts)) >> 64) as u64
                    }
                };
                (place == part).then_some((key, number))
            }));
            keys.sort_unstable();
            for batch in keys.chunks(BATCH) {
                let mut tx = db.begin();
                for (key, number) in batch {
                    payload::fill(*number, &mut value);
                    tx.put(&keyspace, key, &value)?;
                }
                tx.commit()?;
            }
        }
        db.compact()?;
        Ok(db.close()?)
    }

    /// Requests each hot object, and then by Zipf's law.
    fn heat(&self) -> Result<()> {
        let (db, keyspace) = self.open()?;
        std::thread::scope(|scope| {
            let ask = |heater| {
                let (db, keyspace) = (&db, &keyspace);
                scope.spawn(move || {
                    let mut client = Client::new(self, 100 + heater);
                    for number in (heater..self.hot_rows()).step_by(HEATERS as usize) {
                        client.ask_for(number, &db.snapshot(), keyspace)?;
                    }
                    (0..self.requests / HEATERS / 1000)
                        .try_for_each(|_| client.ask(&db.snapshot(), keyspace, 1000))
                })
            };
            let all: Vec<_> = (0..HEATERS).map(ask).collect();
            all.into_iter().try_for_each(|one| one.join().expect("a request does not panic"))
        })?;
        self.rest(&db);
        Ok(db.close()?)
    }

    /// Opens the store with the kept image, and removes the image once it was loaded.
    fn open_hot(&self) -> Result<(Db, Keyspace)> {
        let (db, keyspace) = self.open()?;
        while db.stats().warm.restoring {
            std::thread::sleep(Duration::from_millis(1));
        }
        let stats = db.stats();
        ensure!(
            stats.warm.rows_restored + stats.warm.pages_restored > 0,
            "nothing was restored: {stats:?}"
        );
        plimsoll::delete_warm_image(&self.store, &Options::new())?;
        Ok((db, keyspace))
    }

    fn live(&self, report: &mut Map<String, serde_json::Value>) -> Result<()> {
        let opened = Instant::now();
        let (db, keyspace) = self.open_hot()?;
        let mut client = Client::new(self, 1);
        client.ask(&db.snapshot(), &keyspace, 10 * FIRST_REQUESTS)?;
        report.insert("warm_10k_ms".into(), json!(client.time(&db, &keyspace, FIRST_REQUESTS)?));
        let objects = db.stats().row_cache;
        report.insert("objects".into(), json!(objects.entries as f64));
        report.insert("object_bytes".into(), json!(objects.live_bytes as f64));
        if self.end != End::Changed {
            // Like a process that has lived for more than an interval.
            while opened.elapsed().as_secs_f64() < self.kill_after {
                client.ask(&db.snapshot(), &keyspace, 1000)?;
            }
            report
                .insert("image_bytes_written".into(), json!(db.stats().warm.bytes_written as f64));
        }
        if self.end == End::Kill {
            println!("{}", serde_json::Value::Object(std::mem::take(report)));
            rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::KILL,
            )?;
        }
        if self.end == End::Close {
            self.rest(&db);
        }
        let start = Instant::now();
        db.close()?;
        report.insert("close_ms".into(), json!(start.elapsed().as_secs_f64() * 1e3));
        Ok(())
    }

    /// Waits until the image matches the store: no requests are made, and an interval passes in
    /// which nothing is written.
    fn rest(&self, db: &Db) {
        let enough = Duration::from_secs_f64(self.interval * 1.1);
        let (begun, mut quiet) = (Instant::now(), Instant::now());
        let mut written = db.stats().warm.bytes_written;
        while self.warm && quiet.elapsed() < enough && begun.elapsed() < REST_MAX {
            std::thread::sleep(Duration::from_millis(20));
            let now = db.stats().warm.bytes_written;
            if now != written {
                (written, quiet) = (now, Instant::now());
            }
        }
    }

    fn reopen(&self, report: &mut Map<String, serde_json::Value>) -> Result<()> {
        let mut client = Client::new(self, 2);
        let start = Instant::now();
        let (db, keyspace) = self.open()?;
        report.insert("open_ms".into(), json!(start.elapsed().as_secs_f64() * 1e3));
        client.ask(&db.snapshot(), &keyspace, 1)?;
        report
            .insert("open_and_first_request_ms".into(), json!(start.elapsed().as_secs_f64() * 1e3));
        report.insert("first_10k_ms".into(), json!(client.time(&db, &keyspace, FIRST_REQUESTS)?));
        report.insert("second_10k_ms".into(), json!(client.time(&db, &keyspace, FIRST_REQUESTS)?));
        while db.stats().warm.restoring {
            std::thread::sleep(Duration::from_millis(1));
        }
        report.insert("restored_after_ms".into(), json!(start.elapsed().as_secs_f64() * 1e3));
        report
            .insert("restored_10k_ms".into(), json!(client.time(&db, &keyspace, FIRST_REQUESTS)?));
        let stats = db.stats();
        ensure!(stats.warnings.is_empty(), "{:?}", stats.warnings);
        report.insert("pages_restored".into(), json!(stats.warm.pages_restored as f64));
        report.insert("rows_restored".into(), json!(stats.warm.rows_restored as f64));
        report.insert("rows_stale".into(), json!(stats.warm.rows_stale as f64));
        report.insert("pages_loaded".into(), json!(stats.pool.loads as f64));
        let start = Instant::now();
        db.close()?;
        // Without an image, closing is the same after each life.
        let what = if self.warm { "close_again_ms" } else { "close_ms" };
        report.insert(what.into(), json!(start.elapsed().as_secs_f64() * 1e3));
        Ok(())
    }

    /// Requests a second in each [`MOMENT`] since opening began.
    fn answer(&self, report: &mut Map<String, serde_json::Value>) -> Result<()> {
        let start = Instant::now();
        let (db, keyspace) = self.open()?;
        let mut client = Client::new(self, 4);
        let moments = (self.kill_after / MOMENT.as_secs_f64()).round() as u32;
        let mut counts = vec![0_u32; moments as usize];
        let snapshot = db.snapshot();
        loop {
            client.ask(&snapshot, &keyspace, 1)?;
            let moment = (start.elapsed().as_secs_f64() / MOMENT.as_secs_f64()) as usize;
            let Some(count) = counts.get_mut(moment) else { break };
            *count += 1;
        }
        for (moment, count) in counts.into_iter().enumerate() {
            let end = (moment + 1) as f64 * MOMENT.as_secs_f64();
            report.insert(
                format!("requests_at_{end:.2}"),
                json!(f64::from(count) / MOMENT.as_secs_f64()),
            );
        }
        Ok(db.close()?)
    }

    /// Serves for two intervals and the time to write the image; without an image, for the same
    /// time.
    fn serve(&self, report: &mut Map<String, serde_json::Value>) -> Result<()> {
        let opened = Instant::now();
        let (db, keyspace) = self.open_hot()?;
        let mut client = Client::new(self, 3);
        client.ask(&db.snapshot(), &keyspace, 10 * FIRST_REQUESTS)?;
        let (mut nanos, mut requests) = (Vec::new(), 0_u64);
        let begun = Instant::now();
        while opened.elapsed().as_secs_f64() < self.kill_after {
            let snapshot = db.snapshot();
            for _ in 0..100 {
                // One in ten is timed, because all of them would take too much memory.
                client.ask(&snapshot, &keyspace, 9)?;
                let start = Instant::now();
                client.ask(&snapshot, &keyspace, 1)?;
                nanos.push(start.elapsed().as_nanos() as f64);
                requests += 10;
            }
        }
        report.insert(
            "requests_per_second".into(),
            json!(requests as f64 / begun.elapsed().as_secs_f64()),
        );
        report.insert("p99_ns".into(), json!(quantile(&nanos, 0.99)));
        report.insert("bytes_written".into(), json!(db.stats().warm.bytes_written as f64));
        Ok(db.close()?)
    }
}

/// Requests hot rows by Zipf's law, and checks each result.
struct Client<'a> {
    life: &'a WarmLife,
    zipf: Zipf,
    random: fastrand::Rng,
    value: Vec<u8>,
}

impl<'a> Client<'a> {
    fn new(life: &'a WarmLife, seed: u64) -> Self {
        let value = vec![0; life.value_bytes as usize];
        Self {
            life,
            zipf: Zipf::new(life.hot_rows()),
            random: fastrand::Rng::with_seed(seed),
            value,
        }
    }

    fn ask(&mut self, snapshot: &Snapshot, keyspace: &Keyspace, requests: u64) -> Result<()> {
        for _ in 0..requests {
            // Ranks are scattered over the hot rows, so that the hottest are not neighbours.
            let rank = self.zipf.rank(self.random.f64());
            self.ask_for(payload::mix(rank) % self.life.hot_rows(), snapshot, keyspace)?;
        }
        Ok(())
    }

    fn ask_for(&mut self, number: u64, snapshot: &Snapshot, keyspace: &Keyspace) -> Result<()> {
        let found = snapshot.get(keyspace, &self.life.hot.key(number))?;
        payload::fill(number, &mut self.value);
        ensure!(
            found.is_some_and(|found| found == self.value[..]),
            "object {number} differs from the value that was put"
        );
        Ok(())
    }

    /// Milliseconds for this many requests.
    fn time(&mut self, db: &Db, keyspace: &Keyspace, requests: u64) -> Result<f64> {
        let start = Instant::now();
        self.ask(&db.snapshot(), keyspace, requests)?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    }
}
