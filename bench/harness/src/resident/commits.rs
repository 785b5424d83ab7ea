//! Commits of one put of 1,000 bytes: the rate, the latency of the slowest, and the longest time
//! without a returning commit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::rows::random_key;
use super::scene::{Note, Scale};
use crate::payload;
use crate::peer::Peer;
use crate::statistics::quantile;

const VALUE_BYTES: usize = 1000;

const THREADS: [u64; 2] = [1, 8];

pub(super) fn play(store: &dyn Peer, scale: &Scale, note: &mut Note<'_>) -> Result<()> {
    // Large enough for the rarest events to occur several times: a new file, a flush.
    let rows = scale.rows / 2;
    for threads in THREADS {
        let next = AtomicU64::new(0);
        let start = Instant::now();
        let times: Vec<_> = std::thread::scope(|scope| {
            let writers: Vec<_> =
                (0..threads).map(|_| scope.spawn(|| write(store, rows, &next))).collect();
            let joined = writers
                .into_iter()
                .map(|writer| writer.join().ok().context("a thread panicked")?);
            joined.collect::<Result<Vec<_>>>()
        })?;
        let seconds = start.elapsed().as_secs_f64();
        let micros: Vec<_> = times
            .iter()
            .flatten()
            .map(|commit| (commit.end - commit.start).as_secs_f64() * 1e6)
            .collect();
        note(&format!("commits_{threads}_threads_per_second"), rows as f64 / seconds);
        note(&format!("commit_{threads}_threads_p999_us"), quantile(&micros, 0.999));
        note(&format!("commit_{threads}_threads_slowest_ms"), quantile(&micros, 1.0) / 1e3);
        note(
            &format!("longest_{threads}_threads_without_commit_ms"),
            longest_pause(start, &times).as_secs_f64() * 1e3,
        );
    }
    Ok(())
}

/// When a commit began, and when it had returned.
struct Commit {
    start: Instant,
    end: Instant,
}

/// The longest time in which no commit of any thread returned.
fn longest_pause(start: Instant, times: &[Vec<Commit>]) -> Duration {
    let mut ends: Vec<_> = times.iter().flatten().map(|commit| commit.end).collect();
    ends.sort_unstable();
    let pauses = std::iter::once(start)
        .chain(ends.iter().copied())
        .zip(&ends)
        .map(|(before, end)| *end - before);
    pauses.max().unwrap_or_default()
}

fn write(store: &dyn Peer, rows: u64, next: &AtomicU64) -> Result<Vec<Commit>> {
    let (mut value, mut times) = (vec![0; VALUE_BYTES], Vec::new());
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= rows {
            return Ok(times);
        }
        payload::fill(number, &mut value);
        let start = Instant::now();
        store.commit(&mut |commit| commit.put(&random_key(number), &value))?;
        times.push(Commit { start, end: Instant::now() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_one_of_all_threads() {
        let start = Instant::now();
        let commit = |from: u64, to: u64| {
            let at = |millis| start + Duration::from_millis(millis);
            Commit { start: at(from), end: at(to) }
        };
        let times = [vec![commit(0, 3), commit(3, 50)], vec![commit(0, 30), commit(30, 40)]];
        assert_eq!(longest_pause(start, &times), Duration::from_millis(27));
        assert_eq!(longest_pause(start, &[vec![commit(0, 9)], vec![]]), Duration::from_millis(9));
    }
}
