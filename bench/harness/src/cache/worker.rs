//! One cache and its requests in a separate process, so that its memory can be measured.

use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde_json::{Value, json};

use super::contestant;
use super::requests::{self, Key, Requests, Source};
use crate::watch::Counters;

#[derive(Args, Debug)]
pub(crate) struct CacheWorker {
    /// Which cache
    #[arg(long)]
    cache: String,
    /// Bytes that it is told
    #[arg(long)]
    capacity: u64,
    /// Source of the requests
    #[arg(long, value_parser = Source::parse)]
    source: Source,
    /// Threads that ask
    #[arg(long)]
    threads: usize,
    /// How often all requests are asked before it counts
    #[arg(long)]
    warm: u64,
}

/// The outcome of the requests.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    pub(super) requests: u64,
    pub(super) hits: u64,
    pub(super) bytes: u64,
    pub(super) bytes_hit: u64,
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    /// Growth of the process's memory (RssAnon) since before the cache was created.
    pub(super) grown_bytes: u64,
    /// Bytes of the values of all keys.
    pub(super) working_set_bytes: u64,
}

impl CacheWorker {
    /// Sends the requests and prints the outcome as a line of JSON.
    pub(crate) fn run(&self) -> Result<()> {
        let outcome = match &self.source {
            Source::Zipf(count) => self.ask(&requests::zipf(*count)),
            Source::Cachebench(count) => self.ask(&requests::cachebench(*count)),
            Source::Trace(path) => self.ask(&requests::trace(path)?),
        }?;
        println!("{}", outcome.to_json());
        Ok(())
    }

    fn ask<K: Key>(&self, requests: &Requests<K>) -> Result<Outcome> {
        ensure!(
            self.threads > 0 && !requests.order.is_empty(),
            "there are no threads or no requests"
        );
        let mean = requests.working_set_bytes() / requests.keys.len() as u64;
        let filler = vec![7; requests.largest_bytes()];
        let before = anonymous_bytes()?;
        let cache = contestant::make::<K>(&self.cache, self.capacity, filler, mean)?;
        let mut outcome = Outcome::default();
        for _ in 0..=self.warm {
            let used = Counters::of(std::process::id())?.cpu_seconds;
            outcome = self.round(requests, &*cache);
            outcome.cpu_seconds = Counters::of(std::process::id())?.cpu_seconds - used;
        }
        outcome.grown_bytes = anonymous_bytes()?.saturating_sub(before);
        outcome.working_set_bytes = requests.working_set_bytes();
        Ok(outcome)
    }

    /// Sends all requests once, shared among the threads.
    fn round<K: Key>(
        &self,
        requests: &Requests<K>,
        cache: &dyn contestant::Contestant<K>,
    ) -> Outcome {
        let start = Barrier::new(self.threads + 1);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads)
                .map(|thread| {
                    let start = &start;
                    scope.spawn(move || {
                        start.wait();
                        let mut outcome = Outcome::default();
                        for key in requests.order.iter().skip(thread).step_by(self.threads) {
                            let bytes = requests.value_bytes[*key as usize];
                            let hit = cache.request(&requests.keys[*key as usize], bytes as usize);
                            outcome.requests += 1;
                            outcome.bytes += u64::from(bytes);
                            outcome.hits += u64::from(hit);
                            outcome.bytes_hit += u64::from(bytes) * u64::from(hit);
                        }
                        outcome
                    })
                })
                .collect();
            start.wait();
            let began = Instant::now();
            let mut all = Outcome::default();
            for thread in threads {
                let one = thread.join().expect("a request does not panic");
                all.requests += one.requests;
                all.hits += one.hits;
                all.bytes += one.bytes;
                all.bytes_hit += one.bytes_hit;
            }
            all.seconds = began.elapsed().as_secs_f64();
            all
        })
    }
}

impl Outcome {
    fn to_json(self) -> Value {
        json!({
            "requests": self.requests, "hits": self.hits, "bytes": self.bytes, "bytes_hit": self.bytes_hit,
            "seconds": self.seconds, "cpu_seconds": self.cpu_seconds, "grown_bytes": self.grown_bytes,
            "working_set_bytes": self.working_set_bytes,
        })
    }

    /// Parses a worker's output.
    pub(super) fn parse(line: &str) -> Result<Self> {
        let json: Value =
            serde_json::from_str(line).with_context(|| format!("a worker printed {line:?}"))?;
        let count = |name: &str| json[name].as_u64().with_context(|| format!("{name} in {line}"));
        let time = |name: &str| json[name].as_f64().with_context(|| format!("{name} in {line}"));
        Ok(Self {
            requests: count("requests")?,
            hits: count("hits")?,
            bytes: count("bytes")?,
            bytes_hit: count("bytes_hit")?,
            seconds: time("seconds")?,
            cpu_seconds: time("cpu_seconds")?,
            grown_bytes: count("grown_bytes")?,
            working_set_bytes: count("working_set_bytes")?,
        })
    }

    pub(super) fn hit_percent(&self) -> f64 {
        100.0 * self.hits as f64 / self.requests as f64
    }

    pub(super) fn byte_hit_percent(&self) -> f64 {
        100.0 * self.bytes_hit as f64 / self.bytes.max(1) as f64
    }

    pub(super) fn per_second(&self) -> f64 {
        self.requests as f64 / self.seconds
    }

    /// Processor time of a request, in nanoseconds.
    pub(super) fn cpu_nanos(&self) -> f64 {
        self.cpu_seconds * 1e9 / self.requests as f64
    }
}

/// Anonymous memory of this process that is resident.
fn anonymous_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .context("the kernel tells RssAnon")?;
    let kib: u64 = line.split_whitespace().next().context("a number of RssAnon")?.parse()?;
    Ok(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_read_as_it_was_written() {
        let worker = CacheWorker {
            cache: "plimsoll".to_owned(),
            capacity: 8 << 20,
            source: Source::Zipf(20_000),
            threads: 2,
            warm: 1,
        };
        let outcome = worker.ask(&requests::zipf(20_000)).unwrap();
        assert_eq!(outcome.requests, 20_000);
        assert!(
            outcome.hit_percent() > 90.0 && outcome.hits <= outcome.requests,
            "everything fits: {outcome:?}"
        );
        let read = Outcome::parse(&outcome.to_json().to_string()).unwrap();
        assert_eq!(
            (read.hits, read.bytes_hit, read.bytes),
            (outcome.hits, outcome.bytes_hit, outcome.bytes)
        );
        assert!(Outcome::parse("{}").is_err());
    }
}
