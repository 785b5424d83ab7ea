//! The results of the replays: the table that Irmin's own replay prints, the time of each
//! operation, and the goals.

use anyhow::{Result, ensure};

use super::replay::TIMED;
use crate::child;
use crate::launch::Outcome;
use crate::results::Results;
use crate::sizes::mib;
use crate::table::{self, number};
use crate::watch::End;

/// Memory of a process beyond its budget, without the allowance per thread.
const ROOM_BYTES: u64 = 8 << 20;
const ROOM_OF_THREAD_BYTES: u64 = 64 << 10;

/// Tolerance when a larger budget does less per second of processor time: the difference between
/// two runs of the same replay.
const SLOWER: f64 = 0.97;

/// irmin-pack (Lwt) on the original trace of 10,310 commits: not durable, values emptied, an AMD of
/// 12 threads; all operations a second, and resident memory.
const ANCHOR_OPERATIONS_PER_SECOND: f64 = 135_000.0;
const ANCHOR_MB: f64 = 314.0;

/// One replay.
pub(super) struct Measured {
    settings: String,
    relaxed: bool,
    memory: u64,
    threads: u64,
    numbers: Vec<(String, f64)>,
}

/// A line of the table: its label, the metric, and its format.
type Line = (&'static str, &'static str, fn(f64) -> String);

const LINES: [Line; 20] = [
    ("CPU time, s", "cpu_seconds", number),
    ("wall time, s", "wall_seconds", number),
    ("operations", "operations", number),
    ("operations / CPU s", "operations_per_cpu_second", number),
    ("operations / s", "operations_per_second", number),
    ("adds / CPU s", "adds_per_cpu_second", number),
    ("adds / s", "adds_per_second", number),
    ("commits / s", "commits_per_second", number),
    ("tail latency (longest commit), ms", "longest_commit_seconds", millis),
    ("longest transaction, ms", "longest_transaction_seconds", millis),
    ("disk reads, calls", "read_calls", number),
    ("disk reads, MiB", "read_bytes", in_mib),
    ("disk writes, calls", "written_calls", number),
    ("disk writes, MiB", "written_bytes", in_mib),
    ("peak memory, MB", "peak_line_bytes", megabytes),
    ("mean CPU, %", "mean_cpu_percent", number),
    ("pages loaded", "pages_loaded", number),
    ("object hits", "row_hits", number),
    ("store, MiB", "disk_bytes", in_mib),
    ("making the commits, s (left out above)", "making_seconds", number),
];

fn millis(seconds: f64) -> String {
    number(seconds * 1e3)
}

fn megabytes(bytes: f64) -> String {
    number(bytes / 1e6)
}

fn in_mib(bytes: f64) -> String {
    number(mib(bytes as u64))
}

impl Measured {
    /// Records the measurements of one replay.
    ///
    /// # Errors
    /// It failed: a result was wrong, or the store failed.
    pub(super) fn of(
        outcome: &Outcome,
        relaxed: bool,
        memory: u64,
        disk_bytes: u64,
        settings: String,
        results: &mut Results,
    ) -> Result<Self> {
        let seen = &outcome.seen;
        ensure!(seen.end == End::Well, "the replay with {settings} ended with {}", seen.end);
        let mut numbers = child::numbers(&seen.output);
        ensure!(!numbers.is_empty(), "the replay with {settings} said nothing");
        let outside = [
            ("peak_line_bytes", seen.peak_line_bytes as f64),
            ("peak_resident_bytes", seen.peak_resident_bytes as f64),
            ("peak_threads", seen.peak_threads as f64),
            ("disk_bytes", disk_bytes as f64),
        ];
        numbers.extend(outside.map(|(metric, value)| (metric.to_owned(), value)));
        numbers.iter().for_each(|(metric, value)| results.note("tezos", &settings, metric, *value));
        Ok(Self { settings, relaxed, memory, threads: seen.peak_threads, numbers })
    }

    fn get(&self, metric: &str) -> f64 {
        self.numbers.iter().find(|(name, _)| name == metric).map_or(f64::NAN, |(_, value)| *value)
    }

    fn name(&self) -> String {
        format!(
            "{} MB {}",
            number(self.memory as f64 / 1e6),
            if self.relaxed { "relaxed" } else { "durable" }
        )
    }
}

/// Prints the tables.
pub(super) fn print(measured: &[Measured]) {
    let names: Vec<String> = measured.iter().map(Measured::name).collect();
    let head: Vec<&str> = std::iter::once("").chain(names.iter().map(String::as_str)).collect();
    let row = |(what, metric, show): Line| {
        std::iter::once(what.to_owned())
            .chain(measured.iter().map(|run| show(run.get(metric))))
            .collect()
    };
    table::print(&head, &LINES.map(row));
    println!("\nMicroseconds of an operation");
    let mut rows = Vec::new();
    for (run, name) in measured.iter().zip(&names) {
        for what in TIMED {
            let micros = |of: &str| number(run.get(&format!("{what}_{of}_ns")) / 1e3);
            let count = format!("{:.0}", run.get(&format!("{what}_count")));
            rows.push(vec![
                name.clone(),
                what.to_owned(),
                count,
                micros("min"),
                micros("avg"),
                micros("p99"),
                micros("max"),
            ]);
        }
    }
    table::print(&["run", "operation", "count", "min", "avg", "p99", "max"], &rows);
    println!();
}

/// Prints and records the goals and whether they were met; returns the number of missed ones.
pub(super) fn judge(measured: &[Measured], results: &mut Results) -> usize {
    let mut missed = 0;
    let mut say = |settings: &str, metric: &str, what: String, is_met: bool| {
        println!("{what}: {}", if is_met { "met" } else { "MISSED" });
        results.note("tezos-goal", settings, metric, f64::from(u8::from(is_met)));
        missed += usize::from(!is_met);
    };
    for run in measured {
        let (peak, allowed) = (
            run.get("peak_line_bytes"),
            run.memory + ROOM_BYTES + run.threads * ROOM_OF_THREAD_BYTES,
        );
        let what = format!(
            "{}: peak {} MB of {} MB",
            run.name(),
            megabytes(peak),
            megabytes(allowed as f64)
        );
        say(&run.settings, "line_kept", what, peak <= allowed as f64);
    }
    for pair in measured
        .windows(2)
        .filter(|pair| pair[0].relaxed == pair[1].relaxed && pair[0].memory < pair[1].memory)
    {
        let rate = |run: &Measured| run.get("operations_per_cpu_second");
        let ratio = rate(&pair[1]) / rate(&pair[0]);
        let what = format!(
            "{} does {} times the work a CPU second of {}",
            pair[1].name(),
            number(ratio),
            pair[0].name()
        );
        say(&pair[1].settings, "more_memory_is_not_slower", what, ratio >= SLOWER);
    }
    for run in measured {
        let rate = run.get("operations_per_second");
        println!(
            "{}: {} k operations/s at {} MB; irmin-pack without durability, on another machine: {} k at {} MB",
            run.name(),
            number(rate / 1e3),
            megabytes(run.get("peak_line_bytes")),
            number(ANCHOR_OPERATIONS_PER_SECOND / 1e3),
            number(ANCHOR_MB)
        );
        results.note(
            "tezos",
            &run.settings,
            "times_the_anchor",
            rate / ANCHOR_OPERATIONS_PER_SECOND,
        );
    }
    missed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(relaxed: bool, memory: u64, peak: f64, rate: f64) -> Measured {
        let numbers = [
            ("peak_line_bytes", peak),
            ("operations_per_cpu_second", rate),
            ("operations_per_second", rate),
        ];
        let numbers = numbers.map(|(name, value)| (name.to_owned(), value)).to_vec();
        Measured { settings: String::new(), relaxed, memory, threads: 4, numbers }
    }

    #[test]
    fn a_peak_above_the_line_and_a_larger_budget_that_does_less_are_missed() {
        let judge = |measured: &[Measured]| judge(measured, &mut Results::new("test", None));
        let good = [measured(false, 40 << 20, 41e6, 9e4), measured(false, 80 << 20, 81e6, 1e5)];
        assert_eq!(judge(&good), 0);
        assert_eq!(judge(&[measured(false, 40 << 20, 60e6, 9e4)]), 1);
        assert_eq!(
            judge(&[measured(false, 40 << 20, 41e6, 9e4), measured(false, 80 << 20, 81e6, 8e4)]),
            1
        );
        // A replay without durability is a separate one.
        assert_eq!(
            judge(&[measured(true, 40 << 20, 41e6, 9e4), measured(false, 80 << 20, 81e6, 8e4)]),
            0
        );
    }
}
