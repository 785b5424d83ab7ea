//! `bench resident`: stores whose data fits in memory, against the peers: gets, ranges, deletes,
//! queues, large values, slow commits.
//!
//! Each scene runs in its own process in a new store, with the same memory for every contestant.
//! Contestants alternate, and a ratio is taken within a round. Every result is checked.

mod commits;
mod gets;
mod held;
mod overwrites;
mod queue;
mod rows;
mod scans;
mod scene;
mod turns;
mod values;

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use clap::Args;

pub(crate) use self::scene::{Scale, Scene};
use crate::child;
use crate::launch::{Limit, launch};
use crate::peer::PeerKind;
use crate::quiet;
use crate::results::Results;
use crate::sizes::{parse_size, show_size};
use crate::statistics::median;
use crate::table::{self, number};
use crate::watch::End;
use crate::work_folder::{Places, WorkFolder};

/// The baseline of all comparisons.
const OURS: PeerKind = PeerKind::Plimsoll;

#[derive(Args, Debug)]
pub(crate) struct Resident {
    /// Contestants
    #[arg(long, value_delimiter = ',', default_value = "plimsoll,lmdb,redb,rocksdb,fjall,sqlite")]
    peer: Vec<PeerKind>,
    /// Scenes [default: all]
    #[arg(long, value_delimiter = ',')]
    scene: Vec<Scene>,
    /// Memory of a process, page cache included; the data takes a tenth of it
    #[arg(long, default_value = "4GiB", value_parser = parse_size)]
    limit: u64,
    /// Rows of 24 + 150 bytes; scenes of larger values use fewer
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    rows: u64,
    /// Seconds that a rate is measured for
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Rounds in which all contestants take turns
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
}

/// Numbers of one contestant, by metric, one a round.
type Numbers = BTreeMap<String, Vec<f64>>;

impl Resident {
    /// Measures, prints a table for each scene, stores the results after each.
    pub(crate) fn run(&self, places: &Places) -> Result<()> {
        let missing: Vec<_> =
            self.peer.iter().filter(|peer| !peer.is_built()).map(|peer| peer.name()).collect();
        ensure!(
            missing.is_empty(),
            "this program was built without {}: leave it out with --peer, or build with --features rocksdb",
            missing.join(", ")
        );
        let mut results = Results::new("resident", places.results().as_deref());
        quiet::check(&mut results);
        let (work, limit) = (places.work("resident")?, Limit::hard(self.limit));
        for scene in
            Scene::all().filter(|scene| self.scene.is_empty() || self.scene.contains(scene))
        {
            println!("\n{}: {} (limit {})", scene.name(), scene.about(), show_size(self.limit));
            let mut all = vec![Numbers::new(); self.peer.len()];
            for round in 0..self.rounds as usize {
                for turn in 0..self.peer.len() {
                    let i = (turn + round) % self.peer.len();
                    for (metric, value) in self.play(scene, self.peer[i], &work, &limit)? {
                        all[i].entry(metric).or_default().push(value);
                    }
                }
            }
            self.note(scene, &limit, &all, &mut results);
            self.print(&all);
            results.keep()?;
        }
        results.save()
    }

    /// Runs one scene of one contestant; a failure is printed and has no numbers.
    fn play(
        &self,
        scene: Scene,
        peer: PeerKind,
        work: &WorkFolder,
        limit: &Limit,
    ) -> Result<Vec<(String, f64)>> {
        let (peer_name, rows, seconds) =
            (peer.name(), self.rows.to_string(), self.seconds.to_string());
        let scene_name = scene.name();
        let arguments = [
            "resident",
            "--peer",
            &peer_name,
            "--scene",
            &scene_name,
            "--rows",
            &rows,
            "--seconds",
            &seconds,
        ];
        let store = work.path().join("store");
        let arguments = child::arguments(&store, peer.share_of(self.limit), &arguments);
        let outcome = launch(&std::env::current_exe()?, &arguments, limit)?;
        work.remove("store");
        if outcome.seen.end != End::Well {
            eprintln!("{peer_name} failed in {scene_name}: {}", outcome.seen.end);
            return Ok(Vec::new());
        }
        Ok(child::numbers(&outcome.seen.output))
    }

    fn note(&self, scene: Scene, limit: &Limit, all: &[Numbers], results: &mut Results) {
        let workload = format!("resident-{}", scene.name());
        for (peer, numbers) in self.peer.iter().zip(all) {
            let settings = format!(
                "contestant={} rows={} limit={} cgroup={} rounds={}",
                peer.name(),
                self.rows,
                show_size(self.limit),
                limit.name(),
                self.rounds
            );
            for (metric, values) in numbers {
                results.note(&workload, &settings, metric, median(values));
                if let Some(ratio) = self.lead(all, metric, numbers) {
                    results.note(&workload, &settings, &format!("{metric}_lead"), ratio);
                }
            }
        }
    }

    /// How many times better ours is than another contestant: the median over the rounds.
    fn lead(&self, all: &[Numbers], metric: &str, other: &Numbers) -> Option<f64> {
        let ours = all.get(self.peer.iter().position(|peer| *peer == OURS)?)?.get(metric)?;
        let other = other.get(metric)?;
        if std::ptr::eq(ours, other) || ours.len() != other.len() {
            return None;
        }
        let ratios: Vec<_> = ours.iter().zip(other).map(|(ours, other)| ours / other).collect();
        let ratio = median(&ratios);
        Some(if is_better_low(metric) { 1.0 / ratio } else { ratio })
    }

    /// A line for each metric; in brackets how many times better ours is.
    fn print(&self, all: &[Numbers]) {
        let metrics: std::collections::BTreeSet<_> = all.iter().flat_map(Numbers::keys).collect();
        let names: Vec<_> = self.peer.iter().map(|peer| peer.name()).collect();
        let head: Vec<_> =
            std::iter::once("metric").chain(names.iter().map(String::as_str)).collect();
        let cell = |metric: &str, numbers: &Numbers| match (
            numbers.get(metric),
            self.lead(all, metric, numbers),
        ) {
            (None, _) => "-".to_owned(),
            (Some(values), None) => number(median(values)),
            (Some(values), Some(lead)) => format!("{} ({lead:.2})", number(median(values))),
        };
        let line = |metric: &String| {
            std::iter::once(metric.clone())
                .chain(all.iter().map(|numbers| cell(metric, numbers)))
                .collect()
        };
        table::print(&head, &metrics.into_iter().map(line).collect::<Vec<_>>());
    }
}

/// Times and sizes are better low, rates are better high.
fn is_better_low(metric: &str) -> bool {
    ["_ns", "_us", "_ms", "_to_live"].iter().any(|unit| metric.ends_with(unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(metric: &str, values: &[f64]) -> Numbers {
        BTreeMap::from([(metric.to_owned(), values.to_vec())])
    }

    fn resident() -> Resident {
        let peer = vec![PeerKind::Plimsoll, PeerKind::Btree];
        Resident { peer, scene: Vec::new(), limit: 1 << 30, rows: 2000, seconds: 0.02, rounds: 3 }
    }

    #[test]
    fn a_lead_above_one_is_a_win_for_rates_and_for_times() {
        for (metric, ours, other) in [("gets_per_second", 4.0, 2.0), ("get_ns", 2.0, 4.0)] {
            let all = [numbers(metric, &[ours; 3]), numbers(metric, &[other; 3])];
            assert_eq!(resident().lead(&all, metric, &all[1]), Some(2.0), "{metric}");
            assert_eq!(resident().lead(&all, metric, &all[0]), None, "{metric}");
        }
    }

    #[test]
    fn a_contestant_that_failed_in_any_round_has_no_ratio() {
        let all = [numbers("a_ns", &[1.0; 3]), numbers("a_ns", &[1.0; 2])];
        assert_eq!(resident().lead(&all, "a_ns", &all[1]), None);
    }

    #[test]
    fn every_scene_plays_to_its_end_and_measures_something() {
        let scale = Scale { rows: 2000, seconds: 0.02, rest_seconds: 0.0 };
        for peer in resident().peer {
            for scene in Scene::all() {
                let folder = tempfile::tempdir().unwrap();
                let mut notes = Vec::new();
                let mut note = |metric: &str, value: f64| notes.push((metric.to_owned(), value));
                scene
                    .play(peer, &folder.path().join("store"), 64 << 20, &scale, &mut note)
                    .unwrap();
                let measures = peer == OURS || scene != Scene::Held;
                assert_eq!(notes.iter().any(|(_, value)| *value > 0.0), measures, "{scene:?}");
                assert!(notes.iter().all(|(_, value)| value.is_finite()), "{scene:?}: {notes:?}");
            }
        }
    }
}
