//! Workers that are killed at code points, rather than at random times.
//!
//! A worker reports each point that it crosses, and the one at which it kills itself by SIGKILL. It
//! does so at its n-th crossing of a point that has too few kills so far. The threshold differs
//! between workers, so that some seek points without any kill, and others die anywhere. A worker
//! that does not reach its point in time leaves cleanly; it can still reach the point while it
//! leaves.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::random::Random;
use rustix::process::Signal;

use crate::failure::{Failure, Outcome, ensure};
use crate::workers::points::{End, group_of};
use crate::workers::{Judge, Running, WorkerOutput, Workers, longest_and_99th, of_worker};

/// Interval between checks of the workers.
const LOOK: Duration = Duration::from_millis(1);

/// Seconds after which a leaving worker counts as hung.
const PATIENCE: u64 = 60;

/// Number of the last deaths that a failure lists.
const LAST: usize = 12;

/// Kills by point.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deaths {
    /// All points that any worker has crossed, by name, with the number of kills at each.
    pub points: BTreeMap<String, u64>,
    /// Milliseconds from the death of a keeper to the next keeper: the count, the maximum and the
    /// 99th percentile.
    pub keepers_millis: (u64, u64, u64),
}

/// The planned end of a worker.
#[derive(Debug)]
pub(crate) struct Planned {
    /// The crossing at which it is killed.
    pub(crate) nth: u64,
    /// The group of points that count.
    pub(crate) group: String,
    /// A file with the names of the points that do not count.
    pub(crate) enough: PathBuf,
}

impl Planned {
    /// Chooses the end of a worker.
    fn choose(deaths: &Deaths, random: &mut Random, dir: &Path, number: usize) -> Outcome<Self> {
        let kills = [1, 1, 1, 2, 8, u64::MAX][random.below(6) as usize];
        // Points with few kills are crossed seldom, so die at the first crossing; at other points,
        // early or late.
        let most = if kills <= 2 { 1 } else { [1, 8, 64][random.below(3) as usize] };
        let wanted: Vec<&str> = deaths.points_killed(|killed| killed < kills).collect();
        // Prefer a group with many such points.
        let group = match random.below(wanted.len() as u64 + 1) as usize {
            number if number < wanted.len() => group_of(wanted[number]).to_owned(),
            _ => String::new(),
        };
        let enough = dir.join(format!("enough-{number}"));
        write_names(&enough, deaths.points_killed(|killed| killed >= kills))?;
        // Some leave cleanly, and report points that others do not reach.
        let is_killed = !deaths.points.is_empty() && random.chance(0.9);
        Ok(Self { nth: if is_killed { 1 + random.below(most) } else { u64::MAX }, group, enough })
    }
}

impl Deaths {
    /// Reads the file that earlier runs wrote with [`Deaths::write`]; empty if it does not exist.
    ///
    /// # Errors
    /// The file cannot be read or parsed.
    #[allow(clippy::disallowed_methods, reason = "no file of a store")]
    pub fn read(path: &Path) -> Result<Self, String> {
        if !path.exists() {
            return Ok(Self::default());
        }
        let failed = |why: &str| format!("{}: {why}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| failed(&error.to_string()))?;
        let line = |line: &str| {
            let (kills, point) = line.split_once(' ')?;
            Some((point.to_owned(), kills.parse().ok()?))
        };
        let points = text.lines().map(|text| line(text).ok_or_else(|| failed(text)));
        Ok(Self { points: points.collect::<Result<_, _>>()?, ..Self::default() })
    }

    /// Writes the number of kills at each point.
    ///
    /// # Errors
    /// The file cannot be written.
    #[allow(clippy::disallowed_methods, reason = "no file of a store")]
    pub fn write(&self, path: &Path) -> Result<(), String> {
        let lines: String =
            self.points.iter().map(|(point, kills)| format!("{kills} {point}\n")).collect();
        std::fs::write(path, lines).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn points_killed(&self, is_wanted: impl Fn(u64) -> bool) -> impl Iterator<Item = &str> {
        self.points
            .iter()
            .filter(move |(_, killed)| is_wanted(**killed))
            .map(|(name, _)| name.as_str())
    }
}

#[allow(clippy::disallowed_methods, reason = "no file of a store")]
fn write_names<'n>(path: &Path, names: impl Iterator<Item = &'n str>) -> Outcome {
    let names: Vec<&str> = names.collect();
    std::fs::write(path, names.join("\n"))
        .map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

/// Reads the planned end of this process.
///
/// # Errors
/// The file cannot be read.
#[allow(clippy::disallowed_methods, reason = "no file of a store")]
pub fn read_plan(nth: u64, group: String, enough: Option<&Path>) -> Result<End, String> {
    let Some(path) = enough else { return Ok(End { nth, group, enough: BTreeSet::new() }) };
    let names =
        std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(End { nth, group, enough: names.lines().map(str::to_owned).collect() })
}

/// Parses a line about points.
pub(super) fn parse_point_line(output: &mut WorkerOutput, line: &str, now: u64) {
    match line.split_once(' ') {
        Some(("sees", point)) => output.points.push(point.to_owned()),
        Some(("dies", point)) => output.end = Some(point.to_owned()),
        _ => output.keeps_nanos = Some(now),
    }
}

/// A worker, and its deadlines.
struct Life {
    running: Running,
    /// Time at which it is asked to leave.
    leaves_nanos: u64,
    was_told: bool,
}

/// Keepers that were killed.
#[derive(Default)]
struct Keepers {
    /// Time of the last kill, until there is a next keeper.
    died_nanos: Option<u64>,
    gaps_millis: Vec<u64>,
}

impl Keepers {
    /// Records that a worker has been the keeper since this time.
    fn came(&mut self, nanos: u64) {
        if let Some(died) = self.died_nanos.filter(|died| *died <= nanos) {
            self.gaps_millis.push((nanos - died) / 1_000_000);
            self.died_nanos = None;
        }
    }
}

impl Workers {
    /// Starts workers until the time is over, each with a planned point.
    pub(super) fn kill_at_points(&self, before: &Deaths, judge: &mut Judge) -> Outcome {
        judge.report.deaths.points.clone_from(&before.points);
        let clock = Arc::new(SystemClock::new());
        let mut random = Random::new(self.seed);
        let (mut keepers, mut last, mut keeper) = (Keepers::default(), VecDeque::new(), None);
        let mut lives: Vec<Option<Life>> = (0..self.workers).map(|_| None).collect();
        loop {
            let now = clock.monotonic_nanos();
            let is_over = now >= self.time.as_nanos() as u64;
            for (number, place) in lives.iter_mut().enumerate() {
                if let Some(life) = place {
                    if let Some(nanos) = life.running.output().keeps_nanos.take() {
                        keepers.came(nanos);
                        keeper = Some(number);
                    }
                    if !life.has_ended(now, is_over)? {
                        continue;
                    }
                }
                if let Some(life) = place.take() {
                    let end = judge
                        .check_own_exit(number, life)
                        .map_err(|failure| with_last(failure, &last))?;
                    if keeper == Some(number) {
                        keeper = None;
                        keepers.died_nanos = end.is_some().then_some(now);
                    }
                    if let Some(end) = end {
                        last.push_back(format!("worker {number}: {end}"));
                        last.drain(..last.len().saturating_sub(LAST));
                    }
                }
                if !is_over {
                    let end =
                        Planned::choose(&judge.report.deaths, &mut random, &self.dir, number)?;
                    let running = self.start(number, Some(&end), &clock)?;
                    // A worker that will be killed while it leaves need not work for long.
                    let part = if end.group.starts_with("leaving") { 4 } else { 1 };
                    let life_nanos = random.below(2 * self.life.as_nanos() as u64 / part);
                    *place =
                        Some(Life { running, leaves_nanos: now + life_nanos, was_told: false });
                }
            }
            if is_over && lives.iter().all(Option::is_none) {
                break;
            }
            clock.sleep(LOOK);
        }
        let (longest, most) = longest_and_99th(&mut keepers.gaps_millis);
        judge.report.deaths.keepers_millis = (keepers.gaps_millis.len() as u64, longest, most);
        Ok(())
    }
}

fn with_last(failure: Failure, last: &VecDeque<String>) -> Failure {
    let last: Vec<&str> = last.iter().map(String::as_str).collect();
    Failure { message: format!("{}; last kills: {}", failure.message, last.join("; ")), ..failure }
}

impl Life {
    /// Whether the worker has exited. Asks it to leave when its time is over.
    fn has_ended(&mut self, now: u64, is_over: bool) -> Outcome<bool> {
        if self.running.child.try_wait().map_err(of_worker)?.is_some() {
            return Ok(true);
        }
        if !self.was_told && (is_over || now >= self.leaves_nanos) {
            drop(self.running.child.stdin.take());
            (self.was_told, self.leaves_nanos) = (true, now);
        }
        ensure(!self.was_told || now - self.leaves_nanos < PATIENCE * 1_000_000_000, || {
            "a worker does not leave".to_owned()
        })?;
        Ok(false)
    }
}

impl Judge {
    /// As [`Judge::check_exit`], for a worker that exited by itself; returns the point at which it
    /// killed itself, if any.
    fn check_own_exit(&mut self, number: usize, life: Life) -> Outcome<Option<String>> {
        let (status, complaints, mut output) = life.running.ended()?;
        let end = output.end.take();
        let was_killed = end.is_some() && status.signal() == Some(Signal::KILL.as_raw());
        ensure(was_killed || status.success(), || {
            format!(
                "worker {number} exited by itself ({status}; planned end: {end:?}): \
                 {complaints}"
            )
        })?;
        for point in std::mem::take(&mut output.points) {
            self.report.deaths.points.entry(point).or_default();
        }
        if let Some(end) = &end {
            *self.report.deaths.points.entry(end.clone()).or_default() += 1;
        }
        self.check_exit(number, output, was_killed)?;
        Ok(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deaths_round_trip_through_their_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deaths");
        assert_eq!(Deaths::read(&path), Ok(Deaths::default()));
        let mut deaths = Deaths::default();
        deaths.points.insert("working, turn: before write segment".to_owned(), 3);
        deaths.points.insert("leaving: after wake words, word 1".to_owned(), 0);
        deaths.write(&path).unwrap();
        assert_eq!(Deaths::read(&path), Ok(deaths));
    }

    #[test]
    fn deaths_record_the_points_that_a_worker_reports() {
        let mut output = WorkerOutput::default();
        parse_point_line(&mut output, "sees working, turn: before write segment", 1);
        parse_point_line(&mut output, "dies working, turn: before write segment", 2);
        parse_point_line(&mut output, "keeps the index", 3);
        let point = "working, turn: before write segment".to_owned();
        assert_eq!((output.points, output.end), (vec![point.clone()], Some(point)));
        assert_eq!(output.keeps_nanos, Some(3));
    }
}
