//! `bench hits`: the cost of reading a word of a resident page.
//!
//! Each thread reads a word of a random page, and that word determines the next page. A read
//! therefore cannot start before the previous one has ended, and the latency of a read is measured.
//! The unit is a load that misses the processor's caches, measured in the same way in the same
//! rounds: the same pages without a cache around them. The time of a read is processor time of the
//! thread, which is hardly affected by other load; the throughput of several threads is measured in
//! wall time.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use plimsoll_memory::page::PAGE_BYTES;

use crate::cpu_time::thread_nanos;
use crate::page_cache::{self, PAGE_WORDS, PageCache, word_at};
use crate::payload;
use crate::quiet;
use crate::results::Results;
use crate::sizes::{parse_size, show_size};
use crate::statistics::{Interval, interval, median};
use crate::table::{self, number};
use crate::work_folder::Places;

/// Maximum cost of a read with one thread, in loads.
const LOADS_MAX: f64 = 2.5;

/// Minimum speed-up with two threads.
const TWO_THREADS_MIN: f64 = 1.6;

/// Reads between two checks of the stop flag.
const READS_AT_ONCE: u64 = 256;

#[derive(Args, Debug)]
pub(crate) struct Hits {
    /// Bytes of pages, all resident in each contestant
    #[arg(long, default_value = "512MiB", value_parser = parse_size)]
    pages: u64,
    /// Threads that read
    #[arg(long, value_delimiter = ',', default_value = "1,2,8", value_parser = clap::value_parser!(u64).range(1..))]
    threads: Vec<u64>,
    /// Rounds in which all take turns
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Length of a turn in milliseconds
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    turn_ms: u64,
}

/// All turns of one contestant with one thread count.
struct Series {
    name: &'static str,
    threads: u64,
    /// Reads per second of all threads together, by round.
    rates: Vec<f64>,
    /// Nanoseconds of processor time per read, by round.
    nanos: Vec<f64>,
}

/// The work of the threads in a turn.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    reads: u64,
    wrong: u64,
    cpu_nanos: u64,
}

impl Done {
    fn and(self, other: Self) -> Self {
        Self {
            reads: self.reads + other.reads,
            wrong: self.wrong + other.wrong,
            cpu_nanos: self.cpu_nanos + other.cpu_nanos,
        }
    }
}

impl Hits {
    /// Measures, prints the table, keeps the results.
    pub(crate) fn run(&self, places: &Places) -> Result<()> {
        let mut results = Results::new("hits", places.results().as_deref());
        quiet::check(&mut results);
        let work = places.work("hits")?;
        let pages = u32::try_from(self.pages / PAGE_BYTES as u64)?;
        let mut caches = vec![page_cache::direct(pages)?];
        caches.extend(page_cache::contestants(pages, work.path())?);
        let all = self.take_turns(&caches, pages)?;
        let rows: Vec<_> = all.iter().map(|series| self.row(series, &all, &mut results)).collect();
        println!(
            "A word of a resident page: a load is one that misses the processor's caches (goal of the pool: {LOADS_MAX} with one thread,"
        );
        println!(
            "{TWO_THREADS_MIN} times the work with two, no less than with two with more; ahead of all others)"
        );
        let head = [
            "cache",
            "threads",
            "ns/read",
            "reads/s",
            "loads",
            "low",
            "high",
            "to one thread",
            "low",
            "high",
            "pool's lead",
        ];
        table::print(&head, &rows);
        results.save()
    }

    fn take_turns(&self, caches: &[Box<dyn PageCache>], pages: u32) -> Result<Vec<Series>> {
        let mut all: Vec<Series> = caches
            .iter()
            .flat_map(|cache| {
                self.threads.iter().map(|&threads| Series {
                    name: cache.name(),
                    threads,
                    rates: Vec::new(),
                    nanos: Vec::new(),
                })
            })
            .collect();
        for round in 0..=self.rounds {
            let mut series = all.iter_mut();
            for cache in caches {
                for &threads in &self.threads {
                    let (rate, nanos) =
                        turn(&**cache, pages, threads, Duration::from_millis(self.turn_ms), round)?;
                    let series =
                        series.next().expect("one series for each cache and count of threads");
                    // The first round warms up.
                    if round > 0 {
                        series.rates.push(rate);
                        series.nanos.push(nanos);
                    }
                }
            }
        }
        Ok(all)
    }

    fn row(&self, series: &Series, all: &[Series], results: &mut Results) -> Vec<String> {
        let find = |name: &str, threads| {
            all.iter().find(|other| other.name == name && other.threads == threads)
        };
        let loads = find("load", 1).map(|load| ratios(&series.nanos, &load.nanos));
        let to_one = find(series.name, 1).map(|one| ratios(&series.rates, &one.rates));
        let lead = find("pool", series.threads).map(|pool| ratios(&pool.rates, &series.rates));
        let settings = format!(
            "cache={} pages={} threads={}",
            series.name,
            show_size(self.pages),
            series.threads
        );
        let mut note = |metric: &str, value| results.note("hits", &settings, metric, value);
        note("read_ns", median(&series.nanos));
        note("reads_per_second", median(&series.rates));
        for (metric, interval) in [("loads", loads), ("to_one_thread", to_one), ("pool_lead", lead)]
        {
            if let Some(Interval { low, median, high }) = interval {
                note(metric, median);
                note(&format!("{metric}_low"), low);
                note(&format!("{metric}_high"), high);
            }
        }
        let cell = |value: Option<f64>| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"))
        };
        let of = |interval: Option<Interval>| {
            [interval.map(|i| i.median), interval.map(|i| i.low), interval.map(|i| i.high)]
                .map(cell)
        };
        let mut row = vec![series.name.to_owned(), series.threads.to_string()];
        row.extend([number(median(&series.nanos)), number(median(&series.rates))]);
        row.extend(of(loads));
        row.extend(of(to_one));
        row.push(cell(lead.map(|lead| lead.median)));
        row
    }
}

/// Ratios by round.
fn ratios(own: &[f64], other: &[f64]) -> Interval {
    interval(&own.iter().zip(other).map(|(own, other)| own / other).collect::<Vec<_>>())
}

/// Reads per second of all threads together, and nanoseconds of processor time per read.
fn turn(
    cache: &dyn PageCache,
    pages: u32,
    threads: u64,
    length: Duration,
    round: u64,
) -> Result<(f64, f64)> {
    let (start, stop) = (Barrier::new(threads as usize + 1), AtomicBool::new(false));
    let (done, seconds) = std::thread::scope(|scope| {
        let walks: Vec<_> = (0..threads)
            .map(|thread| {
                let (start, stop) = (&start, &stop);
                scope.spawn(move || {
                    start.wait();
                    walk(cache, pages, payload::mix(round << 8 | thread), stop)
                })
            })
            .collect();
        start.wait();
        let began = Instant::now();
        std::thread::sleep(length);
        stop.store(true, Ordering::Relaxed);
        let seconds = began.elapsed().as_secs_f64();
        let done = walks.into_iter().map(|walk| walk.join().expect("a walk does not panic"));
        (done.fold(Done::default(), Done::and), seconds)
    });
    ensure!(done.wrong == 0, "{} gave {} wrong words", cache.name(), done.wrong);
    ensure!(done.reads > 0, "no thread came to its turn: make turns longer (--turn-ms)");
    Ok((done.reads as f64 / seconds, done.cpu_nanos as f64 / done.reads as f64))
}

/// Reads until stopped.
fn walk(cache: &dyn PageCache, pages: u32, seed: u64, stop: &AtomicBool) -> Done {
    let (mut state, mut done) = (seed, Done::default());
    let began = thread_nanos();
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..READS_AT_ONCE {
            let page = (((state >> 32) * u64::from(pages)) >> 32) as u32;
            let word = state as usize % PAGE_WORDS;
            let found = cache.read(page, word);
            // Counted without a branch, so that the processor cannot predict the word.
            done.wrong += u64::from(found != word_at(page, word));
            state = payload::mix(state.wrapping_add(found));
        }
        done.reads += READS_AT_ONCE;
    }
    done.cpu_nanos = thread_nanos() - began;
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Liar;

    impl PageCache for Liar {
        fn name(&self) -> &'static str {
            "liar"
        }

        fn read(&self, page: u32, word: usize) -> u64 {
            word_at(page, word) ^ u64::from(word == 3)
        }
    }

    #[test]
    fn a_cache_that_returns_a_wrong_word_fails_the_measurement() {
        let length = Duration::from_millis(20);
        assert!(turn(&Liar, 100, 2, length, 0).is_err());
        let direct = page_cache::direct(100).unwrap();
        // On a busy machine a short turn may end before its threads have run.
        let rate = [1, 50, 1000]
            .into_iter()
            .find_map(|times| turn(&*direct, 100, 2, times * length, 0).ok());
        assert!(rate.unwrap().0 > 0.0);
    }
}
