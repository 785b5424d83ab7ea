//! Commits of several processes: rate, latency and fairness; and conflicts.

use anyhow::{Result, ensure};

use super::fleet::{Fleet, Member};
use super::store::Opening;
use super::summary::{Summary, ratio};
use super::task::Task;
use super::worker::{VALUE_BYTES, counter};
use super::{Bound, Run};
use crate::peer::PeerKind;

/// Counters that are read and written.
const COUNTERS: u64 = 16;

/// Work before the measurement.
const WARM_MILLIS: u64 = 150;

/// A contestant, and how its threads are spread over processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spread {
    peer: PeerKind,
    is_alone: bool,
    processes: u64,
    threads: u64,
}

impl Spread {
    fn name(&self) -> String {
        let Self { peer, is_alone, processes, threads } = *self;
        let how = if is_alone { " alone" } else { "" };
        format!("{}{how} {processes}x{threads}", peer.name())
    }

    /// The rate and all other figures of a short time on a new store.
    fn play(&self, run: &Run<'_>) -> Result<Summary> {
        let folder = run.new_store("store");
        let opening = Opening { is_alone: self.is_alone, ..run.opening(self.peer, self.processes) };
        let mut fleet = Fleet::start(&run.start(&folder, opening), self.processes)?;
        let mut answers = Vec::new();
        for millis in [WARM_MILLIS, run.millis()] {
            let threads = self.threads;
            answers = fleet.ask(|_, start_nanos| Task::Commit {
                threads,
                millis,
                rate: 0,
                value_bytes: VALUE_BYTES,
                start_nanos,
            })?;
        }
        fleet.end()?;
        Summary::of(&answers)
    }
}

fn ours(is_alone: bool, processes: u64, threads: u64) -> Spread {
    Spread { peer: PeerKind::Plimsoll, is_alone, processes, threads }
}

/// `commits`.
pub(super) fn commits(run: &mut Run<'_>) -> Result<()> {
    let (alone_1, shared_1) = (ours(true, 1, 1), ours(false, 1, 1));
    let (alone_8, shared_8) = (ours(true, 1, 8), ours(false, 1, 8));
    let (eight, sixteen) = (ours(false, 8, 1), ours(false, 16, 1));
    let mut spreads = Vec::new();
    for peer in run.peers() {
        match peer {
            PeerKind::Plimsoll => {
                spreads.extend([alone_1, shared_1, alone_8, shared_8, eight, sixteen])
            }
            peer => spreads.extend([8, 16].map(|processes| Spread {
                peer,
                is_alone: false,
                processes,
                threads: 1,
            })),
        }
    }
    let mut rounds = vec![Vec::new(); spreads.len()];
    for round in 0..run.rounds() {
        for turn in 0..spreads.len() {
            let at = (turn + round) % spreads.len();
            rounds[at].push(spreads[at].play(run)?);
        }
    }
    let rows: Vec<_> = spreads
        .iter()
        .zip(&rounds)
        .map(|(spread, rounds)| (spread.name(), Summary::median(rounds)))
        .collect();
    run.table(&rows);
    let of = |wanted: Spread| {
        spreads.iter().position(|spread| *spread == wanted).map(|at| rounds[at].clone())
    };
    let mut goal =
        |what: &str, one: Spread, other: Spread, number: fn(&Summary) -> f64, bound: Bound| {
            if let (Some(one), Some(other)) = (of(one), of(other)) {
                run.goal(what, ratio(&one, &other, number), bound);
            }
        };
    goal(
        "1 thread, shared over alone, commits a second",
        shared_1,
        alone_1,
        |one| one.rate,
        Bound::AtLeast(0.95),
    );
    goal(
        "1 thread, shared over alone, p99",
        shared_1,
        alone_1,
        |one| one.p99_ms,
        Bound::AtMost(1.1),
    );
    goal(
        "8 threads, shared over alone, commits a second",
        shared_8,
        alone_8,
        |one| one.rate,
        Bound::AtLeast(0.95),
    );
    goal(
        "8 threads, shared over alone, p99",
        shared_8,
        alone_8,
        |one| one.p99_ms,
        Bound::AtMost(1.1),
    );
    goal(
        "8 processes over 8 threads of one, commits a second",
        eight,
        alone_8,
        |one| one.rate,
        Bound::AtLeast(0.7),
    );
    for (peer, least) in [(PeerKind::Sqlite, 5.0), (PeerKind::Redb, 10.0), (PeerKind::Lmdb, 5.0)] {
        let theirs = Spread { peer, ..sixteen };
        goal(
            &format!("16 processes over {}, commits a second", theirs.name()),
            sixteen,
            theirs,
            |one| one.rate,
            Bound::AtLeast(least),
        );
    }
    for spread in [eight, sixteen] {
        let Some(rounds) = of(spread) else { continue };
        let median = Summary::median(&rounds);
        run.goal(
            &format!("{} processes, p99.9 in ms", spread.processes),
            median.p999_ms,
            Bound::AtMost(5.0),
        );
        run.goal(
            &format!("{} processes, the slowest over the mean", spread.processes),
            median.least,
            Bound::AtLeast(0.5),
        );
        run.goal(
            &format!("{} processes, the fastest over the mean", spread.processes),
            median.most,
            Bound::AtMost(1.5),
        );
    }
    Ok(())
}

/// `conflicts`: each transaction reads one of a few counters and writes it. In the end the sum of
/// the counters is the number of transactions.
pub(super) fn conflicts(run: &mut Run<'_>) -> Result<()> {
    if !run.has(PeerKind::Plimsoll) {
        println!(
            "only Plimsoll's transactions conflict: the others let one process write at a time"
        );
        return Ok(());
    }
    let millis = run.millis();
    let mut rows = Vec::new();
    for processes in [8, 16] {
        let mut rounds = Vec::new();
        for _ in 0..run.rounds() {
            let folder = run.new_store("store");
            let opening = run.opening(PeerKind::Plimsoll, processes);
            let mut fleet = Fleet::start(&run.start(&folder, opening), processes)?;
            let answers = fleet.ask(|_, start_nanos| Task::Count {
                counters: COUNTERS,
                millis,
                start_nanos,
            })?;
            fleet.end()?;
            let counted = counted(&folder, &opening)?;
            let done: u64 = answers.iter().map(|answer| answer.count).sum();
            ensure!(
                counted == done,
                "{done} transactions were acknowledged, the counters say {counted}"
            );
            rounds.push(Summary::of(&answers)?);
        }
        rows.push((
            format!("plimsoll {processes}x1, {COUNTERS} counters"),
            Summary::median(&rounds),
        ));
    }
    run.table(&rows);
    for (contestant, summary) in &rows {
        run.goal(
            &format!("{contestant}, the slowest over the mean"),
            summary.least,
            Bound::AtLeast(0.5),
        );
    }
    Ok(())
}

/// The sum of all counters of a store.
fn counted(folder: &std::path::Path, opening: &Opening) -> Result<u64> {
    let store = super::store::Store::open(folder, opening)?;
    let sum =
        (0..COUNTERS).map(|number| store.number(counter(number).as_bytes())).sum::<Result<u64>>();
    store.close()?;
    sum
}

/// Processes that commit without being measured, on an open fleet.
pub(super) fn commit_beside(
    member: &mut Member,
    millis: u64,
    rate: u64,
    start_nanos: u64,
) -> Result<()> {
    member.tell(Task::Commit { threads: 1, millis, rate, value_bytes: VALUE_BYTES, start_nanos })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_says_how_many_processes_and_threads() {
        assert_eq!(ours(true, 1, 8).name(), "plimsoll alone 1x8");
        assert_eq!(Spread { peer: PeerKind::Sqlite, ..ours(false, 16, 1) }.name(), "sqlite 16x1");
    }
}
