//! Memory of several processes, from outside; and how warm a further process starts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;

use super::fleet::{Fleet, Member, Memory, Start};
use super::reads::fill;
use super::task::{Answer, Task};
use super::{Bound, Run};
use crate::cgroup::MemoryCgroup;
use crate::launch::CGROUP_ROOM_BYTES;
use crate::peer::PeerKind;
use crate::sizes::mib;
use crate::table::{self, number};
use crate::work_folder::drop_from_page_cache;

const PROCESSES: u64 = 8;

/// Allowance outside the budget, per process and per thread.
const PROCESS_BYTES: u64 = 8 << 20;
const THREAD_BYTES: u64 = 64 << 10;

/// Rows that all processes load together, over those that fit in memory.
const ROWS_TO_MEMORY: f64 = 1.25;
const ROW_BYTES: u64 = 208;

const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Gets of the last process.
const FIRST: u64 = 1000;
/// One row in this many is hot.
const HOT: u64 = 10;

/// The maximum of each kind at one moment, over all processes together.
fn watch<T>(pids: &[u32], work: impl FnOnce() -> T) -> (T, Memory) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let mut most = Memory::default();
            while !is_over.load(Ordering::Relaxed) {
                let now = Memory::of_all(pids);
                most.own_bytes = most.own_bytes.max(now.own_bytes);
                most.mapped_bytes = most.mapped_bytes.max(now.mapped_bytes);
                most.threads = most.threads.max(now.threads);
                std::thread::sleep(POLL_INTERVAL);
            }
            most
        });
        let result = work();
        is_over.store(true, Ordering::Relaxed);
        (result, watching.join().unwrap_or_default())
    })
}

/// The maximum that processes may use.
fn allowed(total: u64, processes: u64, threads: u64) -> u64 {
    total + processes * PROCESS_BYTES + threads * THREAD_BYTES
}

/// `memory`: all processes load a part of the rows, then all scan all of them, in a memory cgroup.
pub(super) fn memory(run: &mut Run<'_>) -> Result<()> {
    let total = run.settings.memory;
    let limit = total + PROCESSES * PROCESS_BYTES + CGROUP_ROOM_BYTES;
    let rows =
        ((total as f64 * ROWS_TO_MEMORY) as u64 / ROW_BYTES / PROCESSES).min(run.settings.rows * 2);
    let millis = 4 * run.millis();
    let mut lines = Vec::new();
    for peer in run.peers() {
        let cgroup = MemoryCgroup::make(limit)
            .inspect_err(|error| eprintln!("no memory cgroup: {error:#}"))
            .ok();
        let folder = run.new_store("store");
        let start = Start {
            cgroup: cgroup.as_ref().map(MemoryCgroup::folder),
            ..run.start(&folder, run.opening(peer, PROCESSES))
        };
        let mut fleet = Fleet::start(&start, PROCESSES)?;
        let pids: Vec<u32> = fleet.0.iter().map(Member::pid).collect();
        let (done, peak) = watch(&pids, || -> Result<[Vec<Answer>; 2]> {
            let loaded = fleet.ask(|number, _| Task::Load { from: number * rows, rows, millis })?;
            Ok([loaded, fleet.ask(|_, start_nanos| Task::Scan { millis, start_nanos })?])
        });
        let kills = cgroup.as_ref().map_or(0, MemoryCgroup::kills);
        let (loaded, walked, end) = match done {
            Ok([loaded, walked]) => {
                let sum =
                    |answers: &[Answer]| answers.iter().map(|answer| answer.count).sum::<u64>();
                (sum(&loaded), sum(&walked), "ok".to_owned())
            }
            Err(error) => (0, 0, format!("{error:#}")),
        };
        let allowed = allowed(total, PROCESSES, peak.threads);
        let numbers = [
            ("rows_loaded", loaded as f64),
            ("rows_walked", walked as f64),
            ("peak_mib", mib(peak.own_bytes)),
            ("allowed_mib", mib(allowed)),
            ("mapped_mib", mib(peak.mapped_bytes)),
            (
                "cgroup_peak_mib",
                mib(cgroup.as_ref().and_then(MemoryCgroup::peak_bytes).unwrap_or(0)),
            ),
            ("threads", peak.threads as f64),
            ("killed", kills as f64),
        ];
        numbers.iter().for_each(|(metric, value)| run.note(&peer.name(), metric, *value));
        lines.push(
            [peer.name()]
                .into_iter()
                .chain(numbers.iter().map(|(_, value)| number(*value)))
                .chain([end.clone()])
                .collect::<Vec<_>>(),
        );
        if peer == PeerKind::Plimsoll {
            run.goal(
                "memory of 8 processes over what is allowed",
                peak.own_bytes as f64 / allowed as f64,
                Bound::AtMost(1.0),
            );
            run.goal(
                "processes killed by the cgroup or failed",
                kills as f64 + f64::from(u8::from(end != "ok")),
                Bound::AtMost(0.0),
            );
        }
        if end == "ok" {
            fleet.end()?;
        }
    }
    let head = [
        "contestant",
        "rows loaded",
        "rows walked",
        "peak MiB",
        "allowed MiB",
        "mapped MiB",
        "cgroup peak MiB",
        "threads",
        "killed",
        "end",
    ];
    table::print(&head, &lines);
    Ok(())
}

/// `ninth`: the store's files are taken out of the page cache, eight processes read the hot rows,
/// and a ninth one opens the store.
pub(super) fn ninth(run: &mut Run<'_>) -> Result<()> {
    let (millis, hot) = (run.millis(), run.settings.rows / HOT);
    let mut lines = Vec::new();
    for peer in run.peers() {
        let folder = run.new_store("store");
        let opening = run.opening(peer, PROCESSES + 1);
        let start = run.start(&folder, opening);
        let mut first = Member::start(&start, 0)?;
        fill(&mut first, run.settings.rows)?;
        first.end()?;
        drop_from_page_cache(&folder)?;
        let hot_start = Start { rows: hot, ..start };
        let mut fleet = Fleet::start(&hot_start, PROCESSES)?;
        fleet.ask(|_, start_nanos| Task::Get { threads: 1, millis, start_nanos })?;
        let mut last = Member::start(&start, 99)?;
        let answer = last.ask(Task::First { count: FIRST, rows: hot })?;
        let misses = answer.numbers.first().copied().unwrap_or(0);
        let hits = 1.0 - misses as f64 / FIRST as f64;
        let p99_us = answer.latency.value_at_quantile(0.99) as f64 / 1e3;
        run.note(&peer.name(), "hit_ratio", hits);
        run.note(&peer.name(), "first_gets_ms", answer.time.as_secs_f64() * 1e3);
        lines.push(vec![
            peer.name(),
            number(hits),
            number(answer.time.as_secs_f64() * 1e3),
            number(p99_us),
        ]);
        if peer == PeerKind::Plimsoll {
            run.goal(
                "first 1,000 gets of a ninth process that read nothing from the device",
                hits,
                Bound::AtLeast(0.9),
            );
        }
        last.end()?;
        fleet.end()?;
    }
    table::print(&["contestant", "hits", "1,000 gets ms", "p99 us"], &lines);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allowance_counts_processes_and_threads() {
        assert_eq!(allowed(256 << 20, 8, 16), (256 << 20) + (64 << 20) + (1 << 20));
    }

    #[test]
    fn the_most_memory_at_one_moment_is_seen() {
        let mut most = Memory::default();
        // On a busy machine the sampling thread may not run in so short a time.
        for millis in [100, 1000, 20_000] {
            let length;
            (length, most) = watch(&[std::process::id()], || {
                let block = vec![1_u8; 40 << 20];
                std::thread::sleep(Duration::from_millis(millis));
                std::hint::black_box(&block).len()
            });
            assert_eq!(length, 40 << 20);
            if most.own_bytes > 40 << 20 && most.threads > 1 {
                return;
            }
        }
        panic!("{most:?}");
    }
}
