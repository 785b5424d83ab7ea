//! Processes that stop or die, and their effect on the others; and commits beside `sync`.

use std::path::Path;
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

/// Turns of each kind. There are many, because the effect is small.
const TURNS: usize = 4;

/// Few rows: the space they take when all have large values is small beside the written bytes.
const ROWS: u64 = 100;

/// Values of this size fill the store.
const LARGE_BYTES: u64 = 16 << 10;
const LARGE_RATE: u64 = 200;

/// How long such values are written, with a low floor and without one.
const FILL_MILLIS: u64 = 5000;

/// About a segment, depending on the position of the log's end in one.
const SLACK_BYTES: u64 = 4 << 20;

/// Maximum wait for the space to be freed.
const TIMEOUT: Duration = Duration::from_secs(15);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// `lost`: a process that only has a snapshot open is stopped, resumed, and finally killed.
pub(super) fn lost(run: &mut Run<'_>) -> Result<()> {
    if !run.has(PeerKind::Plimsoll) {
        return Ok(());
    }
    let folder = run.new_store("store");
    let opening = Opening { is_small: true, ..run.opening(PeerKind::Plimsoll, COMMITTERS + 1) };
    let start = Start { rows: ROWS, ..run.start(&folder, opening) };
    let mut fleet = Fleet::start(&start, COMMITTERS)?;
    fill(&mut fleet.0[0], start.rows)?;
    let millis = run.millis();
    let large = |millis, start_nanos| Task::Commit {
        threads: 1,
        millis,
        rate: LARGE_RATE,
        value_bytes: LARGE_BYTES,
        start_nanos,
    };
    // The maximum size of the store while nothing retains space.
    let (_, usual) =
        watch_size(&folder, || fleet.ask(|_, start_nanos| large(FILL_MILLIS, start_nanos)));

    let mut sleeper = Member::start(&start, COMMITTERS)?;
    sleeper.ask(Task::Hold)?;
    let commit = |start_nanos| Task::Commit {
        threads: 1,
        millis,
        rate: 0,
        value_bytes: VALUE_BYTES,
        start_nanos,
    };
    let mut rounds: [Vec<Summary>; 2] = Default::default();
    fleet.ask(|_, start_nanos| commit(start_nanos))?;
    for round in 0..TURNS * run.rounds() {
        for turn in 0..2 {
            let at = (turn + round) % 2;
            sleeper.signal(if at == 1 { Signal::STOP } else { Signal::CONT })?;
            rounds[at].push(Summary::of(&fleet.ask(|_, start_nanos| commit(start_nanos))?)?);
        }
    }
    let rows = [("all running", &rounds[0]), ("one of them stopped", &rounds[1])];
    run.table(&rows.map(|(how, rounds)| (format!("plimsoll; {how}"), Summary::median(rounds))));
    let others = ratio(&rounds[1], &rounds[0], |one| one.rate);
    run.goal("commits of the others while one is stopped", others, Bound::AtLeast(0.98));

    let (_, held) =
        watch_size(&folder, || fleet.ask(|_, start_nanos| large(FILL_MILLIS, start_nanos)));
    fleet.tell(|_| large(TIMEOUT.as_millis() as u64, 0))?;
    std::thread::sleep(Duration::from_millis(200));
    let killed = Instant::now();
    sleeper.kill()?;
    let (mut gone, mut back) = (None, None);
    while killed.elapsed() < TIMEOUT {
        if gone.is_none()
            && plimsoll::members(&folder, &plimsoll::Options::new())?.len() as u64 == COMMITTERS
        {
            gone = Some(killed.elapsed());
        }
        if back.is_none() && bytes_on_disk(&folder) <= usual + SLACK_BYTES {
            back = Some(killed.elapsed());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    fleet.hear()?;
    let seconds =
        |time: Option<Duration>| time.map_or(TIMEOUT.as_secs_f64(), |time| time.as_secs_f64());
    println!(
        "{} MiB at most without a floor, {} MiB under the floor of the one that was killed; it is \
         no longer listed after {} s, the space is freed {}",
        usual >> 20,
        held >> 20,
        number(seconds(gone)),
        back.map_or_else(
            || format!("not within {} s: {} MiB", TIMEOUT.as_secs(), bytes_on_disk(&folder) >> 20),
            |back| format!("after {} s", number(back.as_secs_f64()))
        )
    );
    run.note("plimsoll", "bytes_usual", usual as f64);
    run.note("plimsoll", "bytes_under_floor", held as f64);
    run.goal("the space of the killed one is freed, in s", seconds(back), Bound::AtMost(1.0));
    fleet.end()
}

/// The maximum size of a store during an operation.
fn watch_size<T>(folder: &Path, work: impl FnOnce() -> T) -> (T, u64) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let mut most = 0;
            while !is_over.load(Ordering::Relaxed) {
                most = bytes_on_disk(folder).max(most);
                std::thread::sleep(POLL_INTERVAL);
            }
            most
        });
        let result = work();
        is_over.store(true, Ordering::Relaxed);
        (result, watching.join().unwrap_or_default())
    })
}

/// `sync`: seven processes commit durably. An eighth commits without waiting for the disk, 1,000
/// times a second: it waits for the turn and nothing else, so its longest times bound how long the
/// turn is held.
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
            rounds
                .iter()
                .zip(names)
                .map(|(rounds, name)| (format!("{name}; {beside}"), Summary::median(rounds))),
        );
    }
    run.table(&rows);
    let held: Vec<f64> = rounds[1][1].iter().map(|summary| summary.p999_ms).collect();
    run.goal(
        "the turn is waited for and held beside sync, p99.9 in ms",
        median(&held),
        Bound::AtMost(5.0),
    );
    fleet.end()
}
