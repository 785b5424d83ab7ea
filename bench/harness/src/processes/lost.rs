//! Processes that stop or die, and what the others feel of it; and commits beside `sync`.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::process::Signal;

use super::fleet::{Fleet, Member, Start};
use super::reads::fill;
use super::store::Opening;
use super::summary::{Summary, ratio};
use super::task::Task;
use super::worker::VALUE_BYTES;
use super::{Bound, Run};
use crate::peer::PeerKind;
use crate::statistics::median;
use crate::table::number;
use crate::work_folder::bytes_on_disk;

/// Processes that commit.
const COMMITTERS: u64 = 4;

/// Turns of each kind: what is looked for is small.
const TURNS: usize = 4;

/// While a floor is low, values of this size fill the store.
const LARGE_BYTES: u64 = 16 << 10;
const LARGE_RATE: u64 = 200;

/// How long it is waited for space.
const PATIENCE: Duration = Duration::from_secs(15);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// `lost`: a process that only has a snapshot open is stopped, goes on, and is killed in the end.
pub(super) fn lost(run: &mut Run<'_>) -> Result<()> {
    if !run.has(PeerKind::Plimsoll) {
        return Ok(());
    }
    let folder = run.new_store("store");
    let start =
        Start { rows: run.settings.rows / 100, ..run.start(&folder, run.opening(PeerKind::Plimsoll, COMMITTERS + 1)) };
    let mut fleet = Fleet::start(&start, COMMITTERS)?;
    fill(&mut fleet.0[0], start.rows)?;
    let mut sleeper = Member::start(&start, COMMITTERS)?;
    sleeper.ask(Task::Hold)?;
    let millis = run.millis();
    let commit = |start_nanos| Task::Commit { threads: 1, millis, rate: 0, value_bytes: VALUE_BYTES, start_nanos };
    let mut rounds: [Vec<Summary>; 2] = Default::default();
    fleet.ask(|_, start_nanos| commit(start_nanos))?;
    for round in 0..TURNS * run.rounds() {
        for turn in 0..2 {
            let at = (turn + round) % 2;
            sleeper.signal(if at == 1 { Signal::STOP } else { Signal::CONT })?;
            rounds[at].push(Summary::of(&fleet.ask(|_, start_nanos| commit(start_nanos))?)?);
        }
    }
    let rows = [("all awake", &rounds[0]), ("one of them stopped", &rounds[1])];
    run.table(&rows.map(|(how, rounds)| (format!("plimsoll; {how}"), Summary::median(rounds))));
    run.goal(
        "commits of the others while one is stopped",
        ratio(&rounds[1], &rounds[0], |one| one.rate),
        Bound::AtLeast(0.98),
    );

    // Large values, written over, until the floor of the sleeper has cost some space.
    let large = |millis, start_nanos| Task::Commit {
        threads: 1,
        millis,
        rate: LARGE_RATE,
        value_bytes: LARGE_BYTES,
        start_nanos,
    };
    let before = bytes_on_disk(&folder);
    fleet.ask(|_, start_nanos| large(3 * millis, start_nanos))?;
    let full = bytes_on_disk(&folder);
    fleet.tell(|_| large(PATIENCE.as_millis() as u64, 0))?;
    std::thread::sleep(Duration::from_millis(200));
    let killed = Instant::now();
    sleeper.kill()?;
    let mut gone = None;
    let mut most = full;
    let space = loop {
        if gone.is_none() && plimsoll::members(&folder, &plimsoll::Options::new())?.len() as u64 == COMMITTERS {
            gone = Some(killed.elapsed());
        }
        let now = bytes_on_disk(&folder);
        most = most.max(now);
        if now < before + (most - before) / 2 {
            break Some(killed.elapsed());
        }
        if killed.elapsed() > PATIENCE {
            break None;
        }
        std::thread::sleep(LOOK_EVERY);
    };
    fleet.hear()?;
    let seconds = |time: Option<Duration>| time.map_or(f64::INFINITY, |time| time.as_secs_f64());
    println!(
        "{} MiB before, {} MiB under the floor of the one that was killed; it is listed no more after {} s, half of the space is back after {} s",
        before >> 20,
        most >> 20,
        number(seconds(gone)),
        number(seconds(space))
    );
    run.note("plimsoll", "bytes_before", before as f64);
    run.note("plimsoll", "bytes_under_floor", most as f64);
    run.goal("half of the space is back, in s", seconds(space).min(1e6), Bound::AtMost(1.0));
    fleet.end()
}

/// `sync`: seven processes commit durably. An eighth commits without waiting for the disk, 1,000 times a second: it waits for the turn
/// and nothing else, so its longest times bound how long the turn is held.
pub(super) fn sync(run: &mut Run<'_>) -> Result<()> {
    if !run.has(PeerKind::Plimsoll) {
        return Ok(());
    }
    let folder = run.new_store("store");
    let opening = run.opening(PeerKind::Plimsoll, 8);
    let mut fleet = Fleet::start(&run.start(&folder, opening), 7)?;
    let relaxed = Opening { is_relaxed: true, ..opening };
    fleet.0.push(Member::start(&run.start(&folder, relaxed), 7)?);
    let millis = run.millis();
    let mut rounds: [[Vec<Summary>; 2]; 2] = Default::default();
    for round in 0..run.rounds() {
        for turn in 0..2 {
            let at = (turn + round) % 2;
            let is_over = AtomicBool::new(at == 0);
            let answers = std::thread::scope(|scope| {
                let syncing = scope.spawn(|| -> Result<u64> {
                    let mut times = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        Command::new("sync").status().context("cannot run sync")?;
                        times += 1;
                    }
                    Ok(times)
                });
                let answers = fleet.ask(|number, start_nanos| {
                    let rate = if number == 7 { 1000 } else { 0 };
                    Task::Commit { threads: 1, millis, rate, value_bytes: VALUE_BYTES, start_nanos }
                });
                is_over.store(true, Ordering::Relaxed);
                syncing.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
                answers
            })?;
            rounds[at][0].push(Summary::of(&answers[..7])?);
            rounds[at][1].push(Summary::of(&answers[7..])?);
        }
    }
    let names = ["7 that wait for the disk", "1 that waits for the turn only"];
    let beside = ["alone", "beside sync"];
    let mut rows = Vec::new();
    for (rounds, beside) in rounds.iter().zip(beside) {
        rows.extend(
            rounds.iter().zip(names).map(|(rounds, name)| (format!("{name}; {beside}"), Summary::median(rounds))),
        );
    }
    run.table(&rows);
    let held: Vec<f64> = rounds[1][1].iter().map(|summary| summary.p999_ms).collect();
    run.goal("the turn is waited for and held beside sync, p99.9 in ms", median(&held), Bound::AtMost(5.0));
    fleet.end()
}
