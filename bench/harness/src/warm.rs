//! `bench warm`: what a restart costs, with a warm image and without one.
//!
//! A store many times larger than memory is made once. Then, round after round, a process lives on it until its hot objects are in memory, and
//! ends (it closes, or kills itself); the store's files are taken out of the page cache; and another process opens it and answers
//! requests. Each in a process of its own ([`life`]), with the image and without, one after the other.

mod life;

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use clap::Args;
pub(crate) use life::WarmLife;
use life::{End, Hot};
use serde_json::{Map, Value};

use crate::quiet;
use crate::results::Results;
use crate::sizes::{parse_size, show_size};
use crate::statistics::{interval, median};
use crate::table::{self, number};
use crate::work_folder::{Places, drop_from_page_cache};

#[derive(Args, Debug)]
pub(crate) struct Warm {
    /// Memory budget
    #[arg(long, default_value = "128MiB", value_parser = parse_size)]
    memory: u64,
    /// How many times larger than the budget the store is
    #[arg(long, default_value_t = 16)]
    times: u64,
    /// Bytes of a value
    #[arg(long, default_value = "100", value_parser = parse_size)]
    value_bytes: u64,
    /// Part of the budget that the hot objects take, in percent
    #[arg(long, default_value_t = 25)]
    hot_percent: u64,
    /// Whether hot objects stand together on pages or are scattered over all of them
    #[arg(long, value_delimiter = ',', default_value = "together,scattered")]
    hot: Vec<Hot>,
    /// Seconds between two images where the process is killed
    #[arg(long, default_value_t = 2.0)]
    interval: f64,
    /// Rounds
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Requests of a life before it counts as warm
    #[arg(long, default_value_t = 1_000_000)]
    requests: u64,
}

/// What a process does.
struct Life<'a> {
    act: &'a str,
    hot: Hot,
    end: End,
    warm: bool,
    interval: f64,
}

impl Warm {
    /// Measures, prints the table, keeps the results.
    pub(crate) fn run(&self, places: &Places) -> Result<()> {
        let mut results = Results::new("warm", places.results().as_deref());
        quiet::check(&mut results);
        let work = places.work("warm")?;
        let mut rows = Vec::new();
        for &hot in &self.hot {
            let store = work.path().join("store");
            let made = Life { act: "make", hot, end: End::Close, warm: false, interval: 30.0 };
            self.live(&store, &made)?;
            for end in [End::Close, End::Kill] {
                rows.extend(self.restarts(&mut results, &store, hot, end)?);
            }
            rows.extend(self.cost(&mut results, &store, hot)?);
            work.remove("store");
        }
        table::print(&["hot", "what", "metric", "with", "without", "with / without"], &rows);
        results.save()
    }

    /// Restarts after one kind of end.
    fn restarts(&self, results: &mut Results, store: &Path, hot: Hot, end: End) -> Result<Vec<Vec<String>>> {
        let mut seen = Pairs::default();
        for _ in 0..self.rounds {
            for warm in [true, false] {
                let interval = if end == End::Kill { self.interval } else { 3600.0 };
                let ended = self.live(store, &Life { act: "live", hot, end, warm, interval })?;
                seen.add(warm, &ended);
                drop_from_page_cache(store)?;
                let life = Life { act: "reopen", hot, end: End::Close, warm, interval: 3600.0 };
                seen.add(warm, &self.live(store, &life)?);
            }
        }
        let what = format!("after {}", end.name());
        Ok(seen.rows(results, &self.settings(hot, &what), hot, &what))
    }

    /// What writing the image costs those who read beside it: written at each interval, all the time.
    fn cost(&self, results: &mut Results, store: &Path, hot: Hot) -> Result<Vec<Vec<String>>> {
        let mut seen = Pairs::default();
        for _ in 0..self.rounds {
            for warm in [true, false] {
                let life = Life { act: "serve", hot, end: End::Close, warm, interval: self.interval };
                seen.add(warm, &self.live(store, &life)?);
            }
        }
        let what = "an image each interval";
        Ok(seen.rows(results, &self.settings(hot, what), hot, what))
    }

    /// Runs a process; what it reports.
    fn live(&self, store: &Path, life: &Life<'_>) -> Result<Map<String, Value>> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["warm-life", "--act", life.act, "--hot", life.hot.name(), "--end", life.end.name()]);
        command.arg("--store").arg(store);
        let numbers = [
            ("--memory", self.memory.to_string()),
            ("--times", self.times.to_string()),
            ("--value-bytes", self.value_bytes.to_string()),
            ("--hot-percent", self.hot_percent.to_string()),
            ("--requests", self.requests.to_string()),
            ("--interval", life.interval.to_string()),
        ];
        numbers.iter().for_each(|(name, value)| _ = command.args([*name, value]));
        if life.warm {
            command.arg("--warm");
        }
        let output = command.stderr(std::process::Stdio::inherit()).output().context("starting a process")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let killed = life.end == End::Kill && std::os::unix::process::ExitStatusExt::signal(&output.status) == Some(9);
        if !output.status.success() && !killed {
            bail!("a process ended with {}: {text}", output.status);
        }
        let line = text.lines().last().context("a process says what it measured")?;
        Ok(serde_json::from_str(line)?)
    }

    fn settings(&self, hot: Hot, what: &str) -> String {
        format!(
            "memory={} times={} value_bytes={} hot={} hot_percent={} requests={} what={what}",
            show_size(self.memory),
            self.times,
            self.value_bytes,
            hot.name(),
            self.hot_percent,
            self.requests
        )
    }
}

/// What was measured with the image and without, by metric, in the order in which metrics came.
#[derive(Default)]
struct Pairs {
    metrics: Vec<(String, [Vec<f64>; 2])>,
}

impl Pairs {
    fn add(&mut self, warm: bool, report: &Map<String, Value>) {
        for (metric, value) in report {
            let Some(value) = value.as_f64() else { continue };
            let at = match self.metrics.iter().position(|(known, _)| known == metric) {
                Some(at) => at,
                None => {
                    self.metrics.push((metric.clone(), Default::default()));
                    self.metrics.len() - 1
                }
            };
            self.metrics[at].1[usize::from(!warm)].push(value);
        }
    }

    fn rows(&self, results: &mut Results, settings: &str, hot: Hot, what: &str) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        for (metric, [with, without]) in &self.metrics {
            for (name, values) in [("with", with), ("without", without)] {
                values.iter().for_each(|&value| results.note("warm", settings, &format!("{metric}_{name}"), value));
            }
            if with.is_empty() || without.is_empty() {
                continue;
            }
            // Neighbours ran one after the other: their ratios bear what the machine did meanwhile.
            let ratios: Vec<f64> = with.iter().zip(without).filter(|(_, b)| **b > 0.0).map(|(a, b)| a / b).collect();
            let ratio = if ratios.is_empty() {
                "-".to_owned()
            } else {
                let of = interval(&ratios);
                format!("{} [{} {}]", number(of.median), number(of.low), number(of.high))
            };
            rows.push(vec![
                hot.name().to_owned(),
                what.to_owned(),
                metric.clone(),
                number(median(with)),
                number(median(without)),
                ratio,
            ]);
        }
        rows
    }
}
