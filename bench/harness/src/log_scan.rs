//! `bench log-scan`: scans by global sequence number against the access pattern of Varlog's
//! storage, and one entry by scan against one entry by `read`.
//!
//! All logs hold the same entries. They alternate in one run, a few slices each per round, so that
//! other load on the machine affects them alike. A ratio is taken within a round; the table shows
//! the median of the rounds with its interval.

use anyhow::{Result, ensure};
use clap::Args;
use plimsoll_disk::vfs::Caching;

use crate::log_peer::file_log::{FileLogPeer, Shape};
use crate::log_peer::store_log::StoreLogPeer;
use crate::log_peer::varlog_pattern::VarlogPattern;
use crate::log_peer::{LogPeer, Operation, Setting, Slices};
use crate::quiet;
use crate::results::Results;
use crate::statistics::{Interval, interval, median, quantile};
use crate::table::{self, number};
use crate::work_folder::{Places, copy_folder};

const SETTINGS: [Setting; 3] = [Setting::Resident, Setting::ResidentFresh, Setting::SmallCache];

/// Maximum cost of a scan of one entry, relative to a read of one entry.
const SCAN_TO_READ_LIMIT: f64 = 1.2;

#[derive(Args, Debug)]
pub(crate) struct LogScan {
    /// Entries in each log
    #[arg(long, default_value_t = 200_000)]
    entries: u64,
    /// Bytes of a payload
    #[arg(long, default_value_t = 128)]
    payload_bytes: usize,
    /// Entries that are appended at once: one record of Plimsoll's log (at most 1 MiB)
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    record: u64,
    /// Lengths of scans
    #[arg(long, value_delimiter = ',', default_value = "1,10,100,1000", value_parser = clap::value_parser!(u64).range(1..))]
    n: Vec<u64>,
    /// Rounds in which the logs take turns
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Slices of about 2 ms that each log has in a round
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    slices: u64,
}

/// The rounds of one log in one series.
struct Series {
    name: &'static str,
    rounds: Vec<Slices>,
}

impl LogScan {
    /// Measures, prints the tables, stores the results.
    pub(crate) fn run(&self, places: &Places) -> Result<()> {
        ensure!(self.n.iter().all(|&n| n <= self.entries), "a scan cannot be longer than the log");
        let mut results = Results::new("log-scan", places.results().as_deref());
        quiet::check(&mut results);
        let work = places.work("log-scan")?;
        let shape = Shape {
            entries: self.entries,
            payload_bytes: self.payload_bytes,
            entries_of_a_record: self.record,
        };
        let log = work.path().join("log");
        let mut peers: Vec<Box<dyn LogPeer>> = vec![
            Box::new(VarlogPattern::start(
                &work.path().join("varlog"),
                self.entries,
                self.payload_bytes,
            )?),
            Box::new(FileLogPeer::make(&log, shape)?),
            Box::new(FileLogPeer::again(&work.path().join("log-direct"), shape, Caching::Direct)),
            Box::new(StoreLogPeer::make(&work.path().join("store"), shape)?),
        ];
        copy_folder(&log, &work.path().join("log-direct"))?;
        let scans = self.scans(&mut peers, &mut results)?;
        let reads = self.reads(&mut peers, &mut results)?;
        println!(
            "Scans: ns of one scan, median (minimum); ratio to varlog-pattern with its 95 % interval"
        );
        let head = [
            "setting",
            "entries",
            "log",
            "ns",
            "(min)",
            "ratio",
            "low",
            "high",
            "goal",
            "reached",
            "allocations/entry",
        ];
        table::print(&head, &scans);
        println!(
            "\nOne entry: ns by scan and by read; the ratio may be at most {SCAN_TO_READ_LIMIT}"
        );
        let head = ["setting", "log", "scan ns", "read ns", "ratio", "low", "high", "reached"];
        table::print(&head, &reads);
        results.save()
    }

    fn scans(
        &self,
        peers: &mut [Box<dyn LogPeer>],
        results: &mut Results,
    ) -> Result<Vec<Vec<String>>> {
        let mut rows = Vec::new();
        for setting in SETTINGS {
            for &n in &self.n {
                let series = self.take_turns(peers, setting, &[Operation::Scan(n)])?;
                let mut series = series.into_iter().flatten();
                let Some(baseline) = series.next() else { continue };
                self.note(results, setting, Operation::Scan(n), &baseline);
                rows.push(scan_row(setting, n, &baseline, None));
                for own in series {
                    self.note(results, setting, Operation::Scan(n), &own);
                    let ratio = interval(&ratios(&own, &baseline));
                    results.note(
                        "log-scan",
                        &self.settings(setting, own.name),
                        &format!("scan-{n}_ratio"),
                        ratio.median,
                    );
                    rows.push(scan_row(setting, n, &own, Some(ratio)));
                }
            }
        }
        Ok(rows)
    }

    fn reads(
        &self,
        peers: &mut [Box<dyn LogPeer>],
        results: &mut Results,
    ) -> Result<Vec<Vec<String>>> {
        let mut rows = Vec::new();
        for setting in [Setting::Resident, Setting::SmallCache] {
            let mut operations =
                self.take_turns(peers, setting, &[Operation::Read, Operation::Scan(1)])?;
            let (scans, reads) =
                (operations.pop().unwrap_or_default(), operations.pop().unwrap_or_default());
            for read in reads {
                let Some(scan) = scans.iter().find(|scan| scan.name == read.name) else { continue };
                self.note(results, setting, Operation::Read, &read);
                let ratio = interval(&ratios(scan, &read));
                results.note(
                    "log-scan",
                    &self.settings(setting, read.name),
                    "scan-1_to_read_ratio",
                    ratio.median,
                );
                rows.push(read_row(setting, scan, &read, ratio));
            }
        }
        Ok(rows)
    }

    /// One series for each operation and each participating log, by round.
    fn take_turns(
        &self,
        peers: &mut [Box<dyn LogPeer>],
        setting: Setting,
        operations: &[Operation],
    ) -> Result<Vec<Vec<Series>>> {
        let mut all = Vec::new();
        for _ in operations {
            all.push(
                peers
                    .iter()
                    .map(|peer| Series { name: peer.name(), rounds: Vec::new() })
                    .collect::<Vec<_>>(),
            );
        }
        for _ in 0..self.rounds {
            for (operation, series) in operations.iter().zip(&mut all) {
                for (peer, series) in peers.iter_mut().zip(series) {
                    if peer.takes(setting, *operation) {
                        series.rounds.push(peer.measure(
                            setting,
                            *operation,
                            self.slices as usize,
                        )?);
                    }
                }
            }
        }
        for series in &mut all {
            series.retain(|series| !series.rounds.is_empty());
        }
        Ok(all)
    }

    fn settings(&self, setting: Setting, log: &str) -> String {
        format!(
            "log={log} setting={} entries={} payload={} record={}",
            setting.name(),
            self.entries,
            self.payload_bytes,
            self.record
        )
    }

    fn note(&self, results: &mut Results, setting: Setting, operation: Operation, series: &Series) {
        let settings = self.settings(setting, series.name);
        let nanos = series.nanos();
        let name = operation.name();
        let numbers = [
            ("ns_median", median(&nanos)),
            ("ns_min", quantile(&nanos, 0.0)),
            ("ns_quartile_1", quantile(&nanos, 0.25)),
            ("ns_quartile_3", quantile(&nanos, 0.75)),
            ("allocations", series.allocations()),
        ];
        for (metric, value) in numbers {
            results.note("log-scan", &settings, &format!("{name}_{metric}"), value);
        }
    }
}

impl Series {
    fn nanos(&self) -> Vec<f64> {
        self.rounds.iter().flat_map(|round| round.nanos.iter().copied()).collect()
    }

    fn allocations(&self) -> f64 {
        self.rounds.iter().map(|round| round.allocations).sum::<f64>() / self.rounds.len() as f64
    }
}

/// By round, the time relative to the other's.
fn ratios(own: &Series, other: &Series) -> Vec<f64> {
    own.rounds
        .iter()
        .zip(&other.rounds)
        .map(|(own, other)| median(&own.nanos) / median(&other.nanos))
        .collect()
}

/// Maximum time of a scan as a fraction of Varlog's.
fn goal(setting: Setting, n: u64) -> f64 {
    if setting == Setting::SmallCache || n == 1 { 1.0 / 5.0 } else { 1.0 / 10.0 }
}

fn scan_row(setting: Setting, n: u64, series: &Series, ratio: Option<Interval>) -> Vec<String> {
    let nanos = series.nanos();
    let mut row = vec![setting.name().to_owned(), n.to_string(), series.name.to_owned()];
    row.extend([number(median(&nanos)), format!("({})", number(quantile(&nanos, 0.0)))]);
    match ratio {
        None => row.extend(["1", "-", "-", "-", ""].map(str::to_owned)),
        Some(ratio) => {
            let goal = goal(setting, n);
            row.extend(
                [ratio.median, ratio.low, ratio.high, goal].map(|part| format!("{part:.4}")),
            );
            row.push(reached(ratio, goal));
        }
    }
    row.push(format!("{:.4}", series.allocations() / n as f64));
    row
}

fn read_row(setting: Setting, scan: &Series, read: &Series, ratio: Interval) -> Vec<String> {
    let mut row = vec![setting.name().to_owned(), read.name.to_owned()];
    row.extend([scan, read].map(|series| number(median(&series.nanos()))));
    row.extend([ratio.median, ratio.low, ratio.high].map(|part| format!("{part:.3}")));
    row.push(reached(ratio, SCAN_TO_READ_LIMIT));
    row
}

/// Whether a ratio is at most the goal, within its interval.
fn reached(ratio: Interval, goal: f64) -> String {
    let word = match ratio {
        Interval { high, .. } if high <= goal => "yes",
        Interval { low, .. } if low > goal => "NO",
        Interval { median, .. } if median <= goal => "likely",
        _ => "hardly",
    };
    word.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_counts_as_reached_only_if_the_whole_interval_is_below_it() {
        let of = |low, median, high| reached(Interval { low, median, high }, 0.2);
        assert_eq!(of(0.1, 0.15, 0.2), "yes");
        assert_eq!(of(0.1, 0.15, 0.21), "likely");
        assert_eq!(of(0.1, 0.205, 0.21), "hardly");
        assert_eq!(of(0.21, 0.22, 0.23), "NO");
    }
}
