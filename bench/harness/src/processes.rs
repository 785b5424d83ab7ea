//! `bench processes`: several processes that have one store open for reading and writing.
//!
//! Each is a real process, started from this program. Every contestant has the same memory, divided
//! among its processes, and each commit is durable when it returns. Contestants alternate within a
//! run. Below each scene, the reached goals are printed.

mod commits;
mod fleet;
mod lost;
mod memory;
mod reads;
mod store;
mod summary;
mod task;
mod worker;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};

use self::fleet::Start;
use self::store::{Opening, can_be_shared};
use self::summary::Summary;
pub(crate) use self::worker::ProcessesWorker;
use crate::peer::PeerKind;
use crate::quiet;
use crate::results::Results;
use crate::sizes::{parse_size, show_size};
use crate::table::{self, number};
use crate::work_folder::{Places, WorkFolder};

/// The scenes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scene {
    /// Durable commits of one put: alone in shared mode, by 8 processes, by 16, against the peers
    Commits,
    /// 8 processes that read and write the same counters: conflicts that `transact` tries again
    Conflicts,
    /// Gets, walks and `begin` of a process that is alone in shared mode, against one that has the
    /// store for itself
    Alone,
    /// When a commit of one process is seen by another
    Visible,
    /// 8 processes that read, with one that commits 1,000 times a second and without
    Readers,
    /// Memory of 8 processes that load and walk, from outside, in a memory cgroup
    Memory,
    /// How warm a ninth process starts
    Ninth,
    /// The effect on the others of a process that is stopped and of one that is killed; when its
    /// space is freed
    Lost,
    /// Commits with `sync` in a loop beside them
    Sync,
}

#[derive(Args, Debug)]
pub(crate) struct Processes {
    /// Contestants [default: all that were built]
    #[arg(long, value_delimiter = ',')]
    peer: Vec<PeerKind>,
    /// Scenes [default: all]
    #[arg(long, value_delimiter = ',')]
    scene: Vec<Scene>,
    /// Memory of all processes together
    #[arg(long, default_value = "256MiB", value_parser = parse_size)]
    memory: u64,
    /// Rows of 8 + 200 bytes of a store
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1000..))]
    rows: u64,
    /// Seconds that a rate is measured for
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Rounds in which all contestants take turns
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
}

impl Processes {
    /// Measures, prints a table for each scene, stores the results after each.
    pub(crate) fn run(mut self, places: &Places) -> Result<()> {
        if self.peer.is_empty() {
            let all = [PeerKind::Plimsoll, PeerKind::Lmdb, PeerKind::Redb, PeerKind::Sqlite];
            self.peer = all.into_iter().filter(|peer| peer.is_built()).collect();
        }
        self.peer.iter().try_for_each(|peer| can_be_shared(*peer))?;
        let mut results = Results::new("processes", places.results().as_deref());
        quiet::check(&mut results);
        let work = places.work("processes")?;
        for scene in Scene::value_variants()
            .iter()
            .filter(|scene| self.scene.is_empty() || self.scene.contains(scene))
        {
            let about = scene
                .to_possible_value()
                .and_then(|value| value.get_help().map(ToString::to_string));
            println!("\n{}: {}", scene.name(), about.unwrap_or_default());
            let mut run = Run {
                settings: &self,
                scene: *scene,
                work: &work,
                results: &mut results,
                goals: Vec::new(),
            };
            scene.play(&mut run)?;
            run.goals.iter().for_each(|goal| println!("{}", goal.line()));
            results.keep()?;
        }
        results.save()
    }
}

impl Scene {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn play(self, run: &mut Run<'_>) -> Result<()> {
        match self {
            Self::Commits => commits::commits(run),
            Self::Conflicts => commits::conflicts(run),
            Self::Alone => reads::alone(run),
            Self::Visible => reads::visible(run),
            Self::Readers => reads::readers(run),
            Self::Memory => memory::memory(run),
            Self::Ninth => memory::ninth(run),
            Self::Lost => lost::lost(run),
            Self::Sync => lost::sync(run),
        }
    }
}

/// The goals.
#[derive(Clone, Debug, PartialEq)]
struct Goal {
    what: String,
    reached: f64,
    bound: Bound,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Goal {
    fn is_met(&self) -> bool {
        match self.bound {
            Bound::AtLeast(least) => self.reached >= least,
            Bound::AtMost(most) => self.reached <= most,
        }
    }

    fn line(&self) -> String {
        let (sign, bound) = match self.bound {
            Bound::AtLeast(least) => (">=", least),
            Bound::AtMost(most) => ("<=", most),
        };
        let verdict = if self.is_met() { "met" } else { "MISSED" };
        format!(
            "{verdict}: {}: {}, wanted {sign} {}",
            self.what,
            number(self.reached),
            number(bound)
        )
    }
}

/// A scene while it is measured.
struct Run<'a> {
    settings: &'a Processes,
    scene: Scene,
    work: &'a WorkFolder,
    results: &'a mut Results,
    goals: Vec<Goal>,
}

impl Run<'_> {
    /// Milliseconds that a rate is measured for.
    fn millis(&self) -> u64 {
        (self.settings.seconds * 1000.0) as u64
    }

    fn rounds(&self) -> usize {
        self.settings.rounds as usize
    }

    fn has(&self, peer: PeerKind) -> bool {
        self.settings.peer.contains(&peer)
    }

    /// Plimsoll, if it is measured, and the others.
    fn peers(&self) -> Vec<PeerKind> {
        self.settings.peer.clone()
    }

    /// A folder for a new store; existing contents are removed.
    fn new_store(&self, name: &str) -> PathBuf {
        self.work.remove(name);
        self.work.path().join(name)
    }

    /// How processes open a store of a contestant that they share.
    fn opening(&self, peer: PeerKind, processes: u64) -> Opening {
        Opening {
            peer,
            is_alone: false,
            memory_total: self.settings.memory,
            processes,
            is_relaxed: false,
            is_small: false,
        }
    }

    fn start<'a>(&self, folder: &'a std::path::Path, opening: Opening) -> Start<'a> {
        Start { folder, opening, rows: self.settings.rows, cgroup: None }
    }

    /// Records a number of a contestant.
    fn note(&mut self, contestant: &str, metric: &str, value: f64) {
        let Processes { memory, rows, seconds, rounds, .. } = self.settings;
        let memory = show_size(*memory);
        let settings = format!(
            "contestant={contestant} memory={memory} rows={rows} seconds={seconds} rounds={rounds}"
        );
        self.results.note(&format!("processes-{}", self.scene.name()), &settings, metric, value);
    }

    fn goal(&mut self, what: &str, reached: f64, bound: Bound) {
        let goal = Goal { what: what.to_owned(), reached, bound };
        let met = if goal.is_met() { 1.0 } else { 0.0 };
        self.note(&what.replace(',', ";"), "goal_reached", reached);
        self.note(&what.replace(',', ";"), "goal_met", met);
        self.goals.push(goal);
    }

    /// Prints a line for each contestant, and records its numbers.
    fn table(&mut self, rows: &[(String, Summary)]) {
        let head = [
            "contestant",
            "a second",
            "p50 ms",
            "p99 ms",
            "p99.9 ms",
            "CPU us each",
            "least/mean",
            "most/mean",
            "retries each",
        ];
        let mut lines = Vec::new();
        for (contestant, summary) in rows {
            let numbers = summary.numbers();
            numbers.iter().for_each(|(metric, value)| self.note(contestant, metric, *value));
            lines.push(
                std::iter::once(contestant.clone())
                    .chain(numbers.iter().map(|(_, value)| number(*value)))
                    .collect(),
            );
        }
        table::print(&head, &lines);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_met_at_its_bound_and_says_by_how_much_it_is_missed() {
        let goal = |reached, bound| Goal { what: "rate".to_owned(), reached, bound };
        assert!(goal(0.7, Bound::AtLeast(0.7)).is_met() && goal(5.0, Bound::AtMost(5.0)).is_met());
        assert_eq!(goal(0.5, Bound::AtLeast(0.7)).line(), "MISSED: rate: 0.500, wanted >= 0.700");
        assert_eq!(goal(4.0, Bound::AtMost(5.0)).line(), "met: rate: 4.00, wanted <= 5.00");
    }

    #[test]
    fn only_stores_that_several_processes_write_to_are_contestants() {
        assert!(can_be_shared(PeerKind::Plimsoll).is_ok());
        for peer in [PeerKind::Btree, PeerKind::Fjall, PeerKind::Rocksdb, PeerKind::PlimsollForever]
        {
            assert!(can_be_shared(peer).is_err(), "{peer:?}");
        }
    }
}
