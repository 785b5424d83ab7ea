//! `bench log-append`: durable appends and durable commits against the bound that the disk sets.
//!
//! The bound is a bare loop of write + fdatasync that writes as many appends at once as the
//! contestant got into one sync. Both alternate in changing order; a ratio is taken within a pair
//! of turns, and the table shows the median of the pairs with its interval. With several threads a
//! simple group commit takes part too, which shows the cost of waking threads on this machine.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use hdrhistogram::Histogram;

use crate::appender::bare::{self, ZeroedFile};
use crate::appender::commits::CommitAppender;
use crate::appender::file_log::FileLogAppender;
use crate::appender::group::Group;
use crate::appender::{Appender, Turn, new_histogram, turn};
use crate::counting_disk::{CountingDisk, Counts};
use crate::quiet;
use crate::results::Results;
use crate::statistics::interval;
use crate::table::{self, number};
use crate::work_folder::{Places, WorkFolder};

/// Minimum fraction of the bare loop's rate.
const GOAL: f64 = 0.9;

#[derive(Args, Debug)]
pub(crate) struct LogAppend {
    /// Threads that append
    #[arg(long, value_delimiter = ',', default_value = "1,8", value_parser = clap::value_parser!(u64).range(1..))]
    threads: Vec<u64>,
    /// Entries of an append, and puts of a transaction
    #[arg(long, value_delimiter = ',', default_value = "1,100", value_parser = clap::value_parser!(u64).range(1..=1000))]
    batch: Vec<u64>,
    /// Bytes of a payload
    #[arg(long, default_value_t = 128)]
    payload_bytes: usize,
    /// Pairs of turns
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u64).range(1..))]
    pairs: u64,
    /// Length of a turn in milliseconds
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    turn_ms: u64,
}

/// The target of appends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contestant {
    Log,
    Commits,
}

impl Contestant {
    fn name(self) -> &'static str {
        match self {
            Self::Log => "append",
            Self::Commits => "commit",
        }
    }

    fn make(
        self,
        folder: &Path,
        disk: Arc<CountingDisk>,
        batch: u64,
        payload_bytes: usize,
    ) -> Result<Box<dyn Appender>> {
        Ok(match self {
            Self::Log => {
                Box::new(FileLogAppender::make(folder, disk, batch as usize, payload_bytes)?)
            }
            Self::Commits => Box::new(CommitAppender::make(folder, disk, batch, payload_bytes)?),
        })
    }

    /// Payload bytes of one append.
    fn bytes(self, batch: u64, payload_bytes: usize) -> usize {
        let key_bytes = if self == Self::Commits { 8 } else { 0 };
        batch as usize * (payload_bytes + key_bytes)
    }
}

/// One line of the table.
struct Case {
    contestant: Contestant,
    threads: u64,
    batch: u64,
}

/// All turns of one contestant.
struct Party {
    turns: Vec<Turn>,
}

impl Party {
    fn new() -> Self {
        Self { turns: Vec::new() }
    }

    fn per_second(&self) -> Vec<f64> {
        self.turns.iter().map(Turn::per_second).collect()
    }

    fn latency(&self) -> Histogram<u64> {
        let mut all = new_histogram();
        for turn in &self.turns {
            all.add(&turn.latency).expect("all histograms have the same bounds");
        }
        all
    }
}

/// All measurements of a case.
struct Measured {
    own: Party,
    bare: Party,
    group: Party,
    /// Appends per sync, and bytes written per append.
    appends_per_sync: f64,
    bytes_per_append: f64,
}

impl LogAppend {
    /// Measures, prints the table, stores the results.
    pub(crate) fn run(&self, places: &Places) -> Result<()> {
        let mut results = Results::new("log-append", places.results().as_deref());
        quiet::check(&mut results);
        let work = places.work("log-append")?;
        let mut rows = Vec::new();
        for contestant in [Contestant::Log, Contestant::Commits] {
            for &threads in &self.threads {
                for &batch in &self.batch {
                    let case = Case { contestant, threads, batch };
                    let measured = self.measure(&case, &work)?;
                    self.note(&mut results, &case, &measured);
                    rows.push(row(&case, &measured));
                }
            }
        }
        println!(
            "Durable appends a second, and their ratio to a bare loop of write + fdatasync with the same batching (goal: {GOAL})"
        );
        let head = [
            "what",
            "threads",
            "entries",
            "appends/s",
            "p50 us",
            "p99 us",
            "p99.9 us",
            "max us",
            "per sync",
            "bare/s",
            "bare p50 us",
            "ratio",
            "low",
            "high",
            "group/s",
            "ratio to group",
        ];
        table::print(&head, &rows);
        results.save()
    }

    fn measure(&self, case: &Case, work: &WorkFolder) -> Result<Measured> {
        let folder = work.path().join("log");
        let disk = Arc::new(CountingDisk::default());
        let counts = disk.counts();
        let bytes = case.contestant.bytes(case.batch, self.payload_bytes);
        let own = case.contestant.make(&folder, disk, case.batch, self.payload_bytes)?;
        let mut bare_file = ZeroedFile::make(&work.path().join("bare"))?;
        let group = Group::make(&work.path().join("group"), bytes)?;
        let measured = self.take_turns(case, &*own, &counts, &mut bare_file, &group)?;
        drop(own);
        work.remove("log");
        std::fs::remove_file(work.path().join("bare"))?;
        std::fs::remove_file(work.path().join("group"))?;
        Ok(measured)
    }

    fn take_turns(
        &self,
        case: &Case,
        own: &dyn Appender,
        counts: &Counts,
        bare_file: &mut ZeroedFile,
        group: &Group,
    ) -> Result<Measured> {
        let length = Duration::from_millis(self.turn_ms);
        let bytes = case.contestant.bytes(case.batch, self.payload_bytes);
        // The first turn warms up, and determines the bare loop's batch size.
        let before = counts.now();
        let mut appends = turn(own, case.threads, length, 0)?.appends;
        let mut measured = Measured {
            own: Party::new(),
            bare: Party::new(),
            group: Party::new(),
            appends_per_sync: 1.0,
            bytes_per_append: 0.0,
        };
        for pair in 0..self.pairs {
            let [syncs, _, _] = since(before, counts.now());
            measured.appends_per_sync = appends as f64 / syncs.max(1) as f64;
            let own_turn = || turn(own, case.threads, length, (pair + 1) << 20);
            let mut bare_turn = || bare::turn(bare_file, bytes, measured.appends_per_sync, length);
            let (own, bare) = if pair.is_multiple_of(2) {
                (own_turn()?, bare_turn()?)
            } else {
                let bare = bare_turn()?;
                (own_turn()?, bare)
            };
            appends += own.appends;
            measured.own.turns.push(own);
            measured.bare.turns.push(bare);
            if case.threads > 1 {
                measured.group.turns.push(turn(group, case.threads, length, 0)?);
            }
        }
        let [syncs, _, written] = since(before, counts.now());
        measured.appends_per_sync = appends as f64 / syncs.max(1) as f64;
        measured.bytes_per_append = written as f64 / appends.max(1) as f64;
        Ok(measured)
    }

    fn note(&self, results: &mut Results, case: &Case, measured: &Measured) {
        let name = format!("log-{}", case.contestant.name());
        let settings =
            format!("threads={} batch={} payload={}", case.threads, case.batch, self.payload_bytes);
        let mut note = |metric: &str, value: f64| results.note(&name, &settings, metric, value);
        for (party, who) in
            [(&measured.own, "own"), (&measured.bare, "bare"), (&measured.group, "group")]
        {
            if party.turns.is_empty() {
                continue;
            }
            note(&format!("{who}_appends_per_second"), interval(&party.per_second()).median);
            let latency = party.latency();
            for (metric, q) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)] {
                note(&format!("{who}_latency_us_{metric}"), micros(&latency, q));
            }
        }
        let ratio = interval(&ratios(&measured.own, &measured.bare));
        note("ratio_to_bare", ratio.median);
        note("ratio_to_bare_low", ratio.low);
        note("ratio_to_bare_high", ratio.high);
        note("appends_per_sync", measured.appends_per_sync);
        note("log_bytes_per_append", measured.bytes_per_append);
    }
}

fn since(before: [u64; 3], now: [u64; 3]) -> [u64; 3] {
    std::array::from_fn(|i| now[i] - before[i])
}

fn ratios(own: &Party, other: &Party) -> Vec<f64> {
    own.turns
        .iter()
        .zip(&other.turns)
        .map(|(own, other)| own.per_second() / other.per_second())
        .collect()
}

fn micros(latency: &Histogram<u64>, q: f64) -> f64 {
    latency.value_at_quantile(q) as f64 / 1000.0
}

fn row(case: &Case, measured: &Measured) -> Vec<String> {
    let mut row =
        vec![case.contestant.name().to_owned(), case.threads.to_string(), case.batch.to_string()];
    let latency = measured.own.latency();
    row.push(number(interval(&measured.own.per_second()).median));
    row.extend([0.5, 0.99, 0.999, 1.0].map(|q| number(micros(&latency, q))));
    row.push(number(measured.appends_per_sync));
    row.push(number(interval(&measured.bare.per_second()).median));
    row.push(number(micros(&measured.bare.latency(), 0.5)));
    let ratio = interval(&ratios(&measured.own, &measured.bare));
    row.extend([ratio.median, ratio.low, ratio.high].map(|part| format!("{part:.3}")));
    if measured.group.turns.is_empty() {
        row.extend(["-", "-"].map(str::to_owned));
    } else {
        row.push(number(interval(&measured.group.per_second()).median));
        row.push(format!("{:.3}", interval(&ratios(&measured.own, &measured.group)).median));
    }
    row
}
