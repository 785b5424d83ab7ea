//! `bench warm`: the cost of a restart, with and without a warm image.
//!
//! A store many times larger than memory is created once, and once a process requests hot rows
//! until they are in memory. Its image is kept: a process that begins with hot rows in memory
//! begins with a copy of it, and has removed the copy before the measurement. Then, round after
//! round, a process lives and ends (it closes, or kills itself); the store's files are dropped from
//! the page cache; and another process opens the store and answers requests. Each runs in its own
//! process ([`life`]), with and without the image, one after the other.

mod life;
mod relstorage;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::Args;
pub(crate) use life::WarmLife;
use life::{End, Hot};
pub(crate) use relstorage::RelstorageRestart;
use serde_json::{Map, Value};

use crate::quiet;
use crate::results::Results;
use crate::sizes::{parse_size, show_size};
use crate::statistics::{interval, median};
use crate::table::{self, number};
use crate::work_folder::{Places, WorkFolder, drop_from_page_cache, link_files};

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
    /// Part of the budget that the hot rows take, in percent
    #[arg(long, default_value_t = 25)]
    hot_percent: u64,
    /// Whether hot rows are neighbours on pages or scattered over all of them
    #[arg(long, value_delimiter = ',', default_value = "together,scattered")]
    hot: Vec<Hot>,
    /// Seconds between two images
    #[arg(long, default_value_t = 2.0)]
    interval: f64,
    /// Seconds that a process lives before it is killed or closes the store: an interval and a
    /// sixth of it, if nothing else is said
    #[arg(long)]
    kill_after: Option<f64>,
    /// Rounds
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Requests by eight threads, after each hot object was asked for once, until the image of what
    /// is hot is kept
    #[arg(long, default_value_t = 10_000_000)]
    requests: u64,
    /// Folder in which the stores stay, with the images of their hot rows: the next run with the
    /// same sizes begins with them
    #[arg(long)]
    keep: Option<PathBuf>,
}

/// The folder of a store, and the image of its hot rows.
struct Place {
    store: PathBuf,
    image: PathBuf,
}

/// The task of a process.
struct Life<'a> {
    act: &'a str,
    hot: Hot,
    end: End,
    warm: bool,
    interval: f64,
}

impl Warm {
    /// Measures, prints the table, stores the results.
    pub(crate) fn run(&self, places: &Places) -> Result<()> {
        let mut results = Results::new("warm", places.results().as_deref());
        quiet::check(&mut results);
        let work = match &self.keep {
            Some(folder) => WorkFolder::kept(folder)?,
            None => places.work("warm")?,
        };
        let (mut rows, mut goals) = (Vec::new(), Vec::new());
        for &hot in &self.hot {
            let name = format!(
                "{}-{}-{}-{}-{}",
                hot.name(),
                self.memory,
                self.times,
                self.value_bytes,
                self.hot_percent
            );
            let place = Place {
                store: work.path().join(&name).join("store"),
                image: work.path().join(&name).join("image"),
            };
            results.note(
                "warm",
                &self.settings(hot, "make"),
                "make_seconds",
                self.make(&place, hot)?,
            );
            for end in [End::Close, End::Kill] {
                let seen = self.restarts(&place, hot, end)?;
                rows.extend(seen.rows(
                    &mut results,
                    &self.settings(hot, end.name()),
                    hot,
                    end.name(),
                ));
                goals.extend(seen.restart_goals(hot, end));
            }
            // Not in the table, because there is a metric for each moment. `bench readme` draws
            // them.
            let seen = self.answers(&place, hot)?;
            seen.rows(&mut results, &self.settings(hot, "answer"), hot, "answer");
            let seen = self.closes(&place, hot)?;
            rows.extend(seen.rows(
                &mut results,
                &self.settings(hot, End::Changed.name()),
                hot,
                End::Changed.name(),
            ));
            goals.extend(seen.close_goal(hot, "all is new", 300.0));
            let (seen, what) = (self.cost(&place, hot)?, "an image each interval");
            rows.extend(seen.rows(&mut results, &self.settings(hot, what), hot, what));
            goals.extend(seen.cost_goals(hot));
            if self.keep.is_none() {
                work.remove(&name);
            }
        }
        table::print(&["hot", "what", "metric", "with", "without", "with / without"], &rows);
        for goal in goals {
            results.note("warm", &goal.of, "goal_met", f64::from(u8::from(goal.met)));
            println!("{}: {}", goal.of, goal.verdict);
        }
        results.save()
    }

    /// Makes the store and the image of its hot rows, unless they exist; returns the seconds that
    /// it took.
    fn make(&self, place: &Place, hot: Hot) -> Result<f64> {
        if place.image.exists() {
            return Ok(0.0);
        }
        let begun = Instant::now();
        if !place.store.exists() {
            let making = place.store.with_extension("making");
            if making.exists() {
                // Left over from a run that was interrupted while creating it.
                std::fs::remove_dir_all(&making)?;
            }
            std::fs::create_dir_all(place.store.parent().expect("it was joined"))?;
            self.live(
                &making,
                &Life { act: "make", hot, end: End::Close, warm: false, interval: 30.0 },
            )?;
            std::fs::rename(&making, &place.store)?;
        }
        plimsoll::delete_warm_image(&place.store, &plimsoll::Options::new())?;
        self.live(
            &place.store,
            &Life { act: "heat", hot, end: End::Close, warm: true, interval: 2.0 },
        )?;
        std::fs::rename(place.store.join("warm"), &place.image)?;
        let took = begun.elapsed().as_secs_f64();
        println!("made in {took:.0} s");
        Ok(took)
    }

    /// Restarts after one kind of end. Without an image, nothing of a life remains, so only the
    /// restart differs.
    fn restarts(&self, place: &Place, hot: Hot, end: End) -> Result<Pairs> {
        let store = &place.store;
        let reopen = |warm| Life { act: "reopen", hot, end: End::Close, warm, interval: 3600.0 };
        let mut seen = Pairs::default();
        for _ in 0..self.rounds {
            self.heat(place)?;
            seen.add(
                true,
                &self.live(
                    store,
                    &Life { act: "live", hot, end, warm: true, interval: self.interval },
                )?,
            );
            drop_from_page_cache(store)?;
            seen.add(true, &self.live(store, &reopen(true))?);
            self.drop_image(store)?;
            seen.add(false, &self.live(store, &reopen(false))?);
        }
        Ok(seen)
    }

    /// Requests over time after a kill.
    fn answers(&self, place: &Place, hot: Hot) -> Result<Pairs> {
        /// Seconds covered.
        const SECONDS: f64 = 4.0;
        let mut seen = Pairs::default();
        for _ in 0..self.rounds {
            for warm in [true, false] {
                self.heat(place)?;
                if !warm {
                    self.drop_image(&place.store)?;
                }
                let life = Life { act: "answer", hot, end: End::Close, warm, interval: 3600.0 };
                seen.add(warm, &self.live_until(&place.store, &life, SECONDS)?);
            }
        }
        Ok(seen)
    }

    /// Closes before any image was written.
    fn closes(&self, place: &Place, hot: Hot) -> Result<Pairs> {
        let mut seen = Pairs::default();
        for _ in 0..self.rounds {
            self.heat(place)?;
            let life = Life { act: "live", hot, end: End::Changed, warm: true, interval: 3600.0 };
            seen.add(true, &self.live(&place.store, &life)?);
            self.drop_image(&place.store)?;
            let life = Life { act: "reopen", hot, end: End::Close, warm: false, interval: 3600.0 };
            seen.add(false, &self.live(&place.store, &life)?);
        }
        Ok(seen)
    }

    /// The cost of writing the image for concurrent readers: written at each interval, or never.
    fn cost(&self, place: &Place, hot: Hot) -> Result<Pairs> {
        let mut seen = Pairs::default();
        for _ in 0..self.rounds {
            for writes in [true, false] {
                self.heat(place)?;
                let end = if writes { End::Close } else { End::Changed };
                let interval = if writes { self.interval } else { 3600.0 };
                let until = self.interval * 2.2;
                seen.add(
                    writes,
                    &self.live_until(
                        &place.store,
                        &Life { act: "serve", hot, end, warm: true, interval },
                        until,
                    )?,
                );
            }
        }
        Ok(seen)
    }

    /// The next process finds the image of hot rows, and cold files.
    fn heat(&self, place: &Place) -> Result<()> {
        plimsoll::delete_warm_image(&place.store, &plimsoll::Options::new())?;
        link_files(&place.image, &place.store.join("warm"))?;
        drop_from_page_cache(&place.store)
    }

    /// The next process finds no image, and cold files.
    fn drop_image(&self, store: &Path) -> Result<()> {
        plimsoll::delete_warm_image(store, &plimsoll::Options::new())?;
        drop_from_page_cache(store)
    }

    /// Runs a process and returns its report.
    fn live(&self, store: &Path, life: &Life<'_>) -> Result<Map<String, Value>> {
        self.live_until(store, life, self.kill_after.unwrap_or(self.interval / 6.0 * 7.0))
    }

    /// Runs a process that lives so many seconds.
    fn live_until(
        &self,
        store: &Path,
        life: &Life<'_>,
        seconds: f64,
    ) -> Result<Map<String, Value>> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([
            "warm-life",
            "--act",
            life.act,
            "--hot",
            life.hot.name(),
            "--end",
            life.end.name(),
        ]);
        command.arg("--store").arg(store);
        let numbers = [
            ("--memory", self.memory.to_string()),
            ("--times", self.times.to_string()),
            ("--value-bytes", self.value_bytes.to_string()),
            ("--hot-percent", self.hot_percent.to_string()),
            ("--requests", self.requests.to_string()),
            ("--interval", life.interval.to_string()),
            ("--kill-after", seconds.to_string()),
        ];
        numbers.iter().for_each(|(name, value)| _ = command.args([*name, value]));
        if life.warm {
            command.arg("--warm");
        }
        let output = command
            .stderr(std::process::Stdio::inherit())
            .output()
            .context("starting a process")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let killed = life.end == End::Kill
            && std::os::unix::process::ExitStatusExt::signal(&output.status) == Some(9);
        if !output.status.success() && !killed {
            bail!("a process ended with {}: {text}", output.status);
        }
        let line = text.lines().last().context("a process says what it measured")?;
        Ok(serde_json::from_str(line)?)
    }

    fn settings(&self, hot: Hot, what: &str) -> String {
        format!(
            "memory={} times={} value_bytes={} hot={} hot_percent={} requests={} interval={} what={what}",
            show_size(self.memory),
            self.times,
            self.value_bytes,
            hot.name(),
            self.hot_percent,
            self.requests,
            self.interval
        )
    }
}

/// The measurements with and without the image, by metric, in order of appearance.
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

    /// Medians with the image and without.
    fn medians(&self, metric: &str) -> Option<[f64; 2]> {
        let (_, values) = self.metrics.iter().find(|(known, _)| known == metric)?;
        values
            .iter()
            .all(|values| !values.is_empty())
            .then(|| values.each_ref().map(|values| median(values)))
    }

    /// The median with the image, for metrics that exist only there.
    fn median_with(&self, metric: &str) -> Option<f64> {
        let (_, [with, _]) = self.metrics.iter().find(|(known, _)| known == metric)?;
        (!with.is_empty()).then(|| median(with))
    }

    /// The maximum extra cost of closing with an image.
    fn close_goal(&self, hot: Hot, what: &str, most_ms: f64) -> Option<Goal> {
        let [with, without] = self.medians("close_ms")?;
        let of = format!("goal 1, {}: closing, {what}, beside without an image, ms", hot.name());
        Some(Goal::at_most(of, (with - without).max(0.0), most_ms))
    }

    fn restart_goals(&self, hot: Hot, end: End) -> Vec<Goal> {
        let mut goals = Vec::new();
        if end == End::Close {
            goals.extend(self.close_goal(hot, "nothing changed", 100.0));
        }
        let of = |what: &str| format!("goal 2, {}, after {}: {what}", hot.name(), end.name());
        if let Some([first, _]) = self.medians("open_and_first_request_ms") {
            goals.push(Goal::at_most(of("open and first request, ms"), first, 20.0));
        }
        if let (Some(warm), Some([first, cold])) =
            (self.median_with("warm_10k_ms"), self.medians("first_10k_ms"))
        {
            let mut goal =
                Goal::at_most(of("first 10,000 requests over those when warm"), first / warm, 2.0);
            goal.verdict += &format!("; without an image {}", number(cold / warm));
            goals.push(goal);
        }
        goals
    }

    fn cost_goals(&self, hot: Hot) -> Vec<Goal> {
        let of = |what: &str| format!("goal 3, {}: {what} with an image over without", hot.name());
        let ratio = |metric| self.medians(metric).map(|[with, without]| with / without);
        let mut goals = Vec::new();
        goals.extend(
            ratio("requests_per_second")
                .map(|ratio| Goal::at_least(of("requests per second"), ratio, 0.97)),
        );
        goals.extend(ratio("p99_ns").map(|ratio| Goal::at_most(of("p99"), ratio, 1.10)));
        goals
    }

    fn rows(
        &self,
        results: &mut Results,
        settings: &str,
        hot: Hot,
        what: &str,
    ) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        for (metric, [with, without]) in &self.metrics {
            for (name, values) in [("with", with), ("without", without)] {
                values.iter().for_each(|&value| {
                    results.note("warm", settings, &format!("{metric}_{name}"), value)
                });
            }
            // Neighbours ran one after the other, so their ratios are less affected by other load.
            let ratios: Vec<f64> =
                with.iter().zip(without).filter(|(_, b)| **b > 0.0).map(|(a, b)| a / b).collect();
            let ratio = if ratios.is_empty() {
                "-".to_owned()
            } else {
                let of = interval(&ratios);
                format!("{} [{} {}]", number(of.median), number(of.low), number(of.high))
            };
            let middle = |values: &[f64]| {
                if values.is_empty() { "-".to_owned() } else { number(median(values)) }
            };
            rows.push(vec![
                hot.name().to_owned(),
                what.to_owned(),
                metric.clone(),
                middle(with),
                middle(without),
                ratio,
            ]);
        }
        rows
    }
}

/// The goals, and whether they were met.
struct Goal {
    of: String,
    met: bool,
    verdict: String,
}

impl Goal {
    fn at_most(of: String, value: f64, most: f64) -> Self {
        let met = value <= most;
        let verdict =
            if met { "met".to_owned() } else { format!("MISSED by {}", number(value - most)) };
        Self {
            of,
            met,
            verdict: format!("{} (at most {}): {verdict}", number(value), number(most)),
        }
    }

    fn at_least(of: String, value: f64, least: f64) -> Self {
        let met = value >= least;
        let verdict =
            if met { "met".to_owned() } else { format!("MISSED by {}", number(least - value)) };
        Self {
            of,
            met,
            verdict: format!("{} (at least {}): {verdict}", number(value), number(least)),
        }
    }
}
