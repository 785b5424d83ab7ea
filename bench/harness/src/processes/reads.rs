//! The cost of reading while other processes may write: alone in shared mode, and beside a writer;
//! and the time until a commit becomes visible.

use std::path::Path;

use anyhow::{Result, ensure};

use super::commits::commit_beside;
use super::fleet::{Fleet, Member};
use super::store::Opening;
use super::summary::{Seen, Summary, ratio};
use super::task::{Answer, Task};
use super::worker::now_nanos;
use super::{Bound, Run};
use crate::peer::PeerKind;
use crate::statistics::{median, quantile};
use crate::table::{self, number};

/// Processes that read.
const READERS: u64 = 8;

/// Commits per second beside the readers.
const WRITES: u64 = 1000;

const LEAD_NANOS: u64 = 50_000_000;

/// Loads rows into a new store, and writes them to their final place.
pub(super) fn fill(member: &mut Member, rows: u64) -> Result<()> {
    let loaded = member.ask(Task::Load { from: 0, rows, millis: 600_000 })?;
    ensure!(
        loaded.count == rows,
        "only {} of {rows} rows were loaded within ten minutes",
        loaded.count
    );
    member.ask(Task::Settle)?;
    Ok(())
}

/// `alone`: two stores with the same rows are open, one in each mode, and alternate.
pub(super) fn alone(run: &mut Run<'_>) -> Result<()> {
    if !run.has(PeerKind::Plimsoll) {
        return Ok(());
    }
    let open = |name: &str, is_alone: bool| -> Result<Member> {
        let folder = run.new_store(name);
        let opening = Opening { is_alone, ..run.opening(PeerKind::Plimsoll, 1) };
        let mut member = Member::start(&run.start(&folder, opening), 1)?;
        fill(&mut member, run.settings.rows)?;
        Ok(member)
    };
    let mut members = [open("alone", true)?, open("shared", false)?];
    let millis = run.millis() / 4;
    type Of = fn(&Answer) -> f64;
    let tasks: [(&str, Task, Of, bool); 4] = [
        (
            "get, 1 thread, a second",
            Task::Get { threads: 1, millis, start_nanos: 0 },
            Answer::rate,
            true,
        ),
        (
            "get, 8 threads, a second",
            Task::Get { threads: 8, millis, start_nanos: 0 },
            Answer::rate,
            true,
        ),
        ("scan, rows a second", Task::Scan { millis, start_nanos: 0 }, Answer::rate, true),
        ("begin, ns", Task::Begin { count: 200_000 }, begin_nanos, false),
    ];
    let mut lines = Vec::new();
    for (what, task, of, is_rate) in tasks {
        let mut numbers: [Vec<f64>; 2] = Default::default();
        members.iter_mut().try_for_each(|member| member.ask(task).map(drop))?;
        // Many short turns, because the effect is small.
        for round in 0..4 * run.rounds() {
            for turn in 0..2 {
                let at = (turn + round) % 2;
                numbers[at].push(of(&members[at].ask(task)?));
            }
        }
        let ratios: Vec<f64> =
            numbers[1].iter().zip(&numbers[0]).map(|(shared, alone)| shared / alone).collect();
        let (alone, shared, ratio) = (median(&numbers[0]), median(&numbers[1]), median(&ratios));
        run.note("plimsoll alone", what.replace(',', "").replace(' ', "_").as_str(), alone);
        run.note("plimsoll shared", what.replace(',', "").replace(' ', "_").as_str(), shared);
        lines.push(vec![what.to_owned(), number(alone), number(shared), number(ratio)]);
        match is_rate {
            true => run.goal(&format!("{what}, shared over alone"), ratio, Bound::AtLeast(0.97)),
            false => run.goal(
                "begin with nothing new, ns more than alone",
                shared - alone,
                Bound::AtMost(20.0),
            ),
        }
    }
    table::print(&["what", "alone", "shared", "ratio"], &lines);
    members.into_iter().try_for_each(Member::end)
}

/// Of one `begin`.
fn begin_nanos(answer: &Answer) -> f64 {
    let nanos: Vec<f64> = answer.numbers.iter().map(|picos| *picos as f64 / 1e3).collect();
    median(&nanos)
}

/// `visible`: one process commits numbers, the other reads them in a loop or follows the log.
pub(super) fn visible(run: &mut Run<'_>) -> Result<()> {
    let count = (run.settings.seconds * WRITES as f64 * run.settings.rounds as f64) as u64;
    let count = count.max(10);
    let mut lines = Vec::new();
    for peer in run.peers() {
        let folder = run.new_store("store");
        let mut fleet = Fleet::start(&run.start(&folder, run.opening(peer, 2)), 2)?;
        let start_nanos = now_nanos() + LEAD_NANOS;
        let tick = Task::Tick { count, rate: WRITES, start_nanos };
        fleet.tell(|number| if number == 0 { tick } else { Task::Look { until: count } })?;
        let answers = fleet.hear()?;
        let seen = Seen::of(&answers[0].numbers, &answers[1].numbers);
        ensure!(
            seen.delays_us.len() as u64 == count,
            "{} of {count} commits were seen",
            seen.delays_us.len()
        );
        let mut line = |how: &str, delays: &[f64], stale: u64| {
            let quantiles = [0.5, 0.99, 0.999].map(|part| quantile(delays, part));
            let contestant = format!("{}; {how}", peer.name());
            for (metric, value) in ["p50_us", "p99_us", "p999_us"].into_iter().zip(quantiles) {
                run.note(&contestant, metric, value);
            }
            run.note(&contestant, "stale", stale as f64);
            lines.push(
                std::iter::once(contestant)
                    .chain(quantiles.map(number))
                    .chain([stale.to_string()])
                    .collect(),
            );
            if peer == PeerKind::Plimsoll {
                run.goal(
                    &format!("a commit is seen after it returned ({how}), p50 in us"),
                    quantiles[0],
                    Bound::AtMost(100.0),
                );
                run.goal(
                    &format!("a commit is seen after it returned ({how}), p99 in us"),
                    quantiles[1],
                    Bound::AtMost(1000.0),
                );
                run.goal(
                    &format!("reads that were stale ({how})"),
                    stale as f64,
                    Bound::AtMost(0.0),
                );
            }
        };
        line("by reads in a loop", &seen.delays_us, seen.stale);
        if peer == PeerKind::Plimsoll {
            fleet.0[1].tell(Task::Follow { count })?;
            let start_nanos = now_nanos() + 4 * LEAD_NANOS;
            let ticked = fleet.0[0].ask(Task::Tick { count, rate: WRITES, start_nanos })?;
            let followed = fleet.0[1].hear()?;
            let late = |(returned, came): (&u64, &u64)| came.saturating_sub(*returned) as f64 / 1e3;
            let delays: Vec<f64> = ticked.numbers.iter().zip(&followed.numbers).map(late).collect();
            line("by following the log", &delays, 0);
        }
        fleet.end()?;
    }
    table::print(&["contestant", "p50 us", "p99 us", "p99.9 us", "stale reads"], &lines);
    Ok(())
}

/// `readers`: turns without a writer, beside a writer of this store, and beside a writer of another
/// store, which shows the processor time that any writer takes from the readers.
pub(super) fn readers(run: &mut Run<'_>) -> Result<()> {
    let millis = run.millis();
    let mut rows = Vec::new();
    for peer in run.peers() {
        let (folder, elsewhere) = (run.new_store("store"), run.new_store("elsewhere"));
        let mut fleet = Fleet::start(&run.start(&folder, run.opening(peer, READERS + 1)), READERS)?;
        fill(&mut fleet.0[0], run.settings.rows)?;
        let mut writers = Vec::new();
        for folder in [&folder, &elsewhere] {
            writers.push(writer(run, folder, peer)?);
        }
        let mut rounds: [Vec<Summary>; 3] = Default::default();
        fleet.ask(|_, start_nanos| Task::Get { threads: 1, millis, start_nanos })?;
        for round in 0..run.rounds() {
            for turn in 0..3 {
                let at = (turn + round) % 3;
                if let Some(writer) = at.checked_sub(1) {
                    commit_beside(&mut writers[writer], millis, WRITES, now_nanos() + LEAD_NANOS)?;
                }
                let answers =
                    fleet.ask(|_, start_nanos| Task::Get { threads: 1, millis, start_nanos })?;
                if let Some(writer) = at.checked_sub(1) {
                    let wrote = writers[writer].hear()?;
                    run.note(
                        &format!("{}; writer {writer}", peer.name()),
                        "commits_per_second",
                        wrote.rate(),
                    );
                }
                rounds[at].push(Summary::of(&answers)?);
            }
        }
        for (rounds, how) in
            rounds.iter().zip(["no writer", "a writer beside them", "a writer of another store"])
        {
            rows.push((format!("{}; {how}", peer.name()), Summary::median(rounds)));
        }
        let [without, with, other] = &rounds;
        let of = |one: &[Summary], other: &[Summary]| ratio(one, other, |summary| summary.rate);
        let (plain, fair) = (of(with, without), of(with, other));
        run.note(&peer.name(), "with_over_without", plain);
        run.note(&peer.name(), "with_over_writer_elsewhere", fair);
        println!(
            "{}: gets a second beside a writer over without one: {}; over beside one of another store: {}",
            peer.name(),
            number(plain),
            number(fair)
        );
        if peer == PeerKind::Plimsoll {
            run.goal("8 readers beside a writer over without one", plain, Bound::AtLeast(0.95));
        }
        fleet.end()?;
        writers.into_iter().try_for_each(Member::end)?;
    }
    run.table(&rows);
    Ok(())
}

fn writer(run: &Run<'_>, folder: &Path, peer: PeerKind) -> Result<Member> {
    Member::start(&run.start(folder, run.opening(peer, READERS + 1)), READERS)
}
