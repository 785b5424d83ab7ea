//! One replay of a trace against one cache, and its counts.

use std::time::Duration;

use hdrhistogram::Histogram;
use plimsoll_disk::clock::{Clock, SystemClock};

use crate::cache;
use crate::error::Result;
use crate::model::Model;
use crate::policy::Policy;
use crate::request::{Operation, Request, Requests};
use crate::subject::{Held, Subject};

/// Latency is measured for every 16th request, because reading the clock takes as long as a hit.
const SAMPLED: usize = 16;
/// Requests read in one batch outside the measured time.
const READ_AT_ONCE: usize = 4096;
/// Latencies are exact to two digits.
const LATENCY_DIGITS: u8 = 2;

/// A cache that serves a trace.
pub struct Replay {
    subject: Box<dyn Subject>,
    /// The size of the largest value that the cache keeps.
    largest_bytes: u64,
    tally: Tally,
}

/// The counts of a replay.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Tally {
    /// Requests that were served.
    pub requests: u64,
    /// Requests for a value.
    pub finds: u64,
    /// Requests for a value that the cache had.
    pub hits: u64,
    /// Bytes of the requested values.
    pub bytes_asked: u64,
    /// Bytes of the values that the cache had.
    pub bytes_hit: u64,
    /// Values that were inserted.
    pub sets: u64,
    /// Requests to remove a value.
    pub deletes: u64,
    /// Time in the cache, excluding reading the trace.
    pub elapsed: Duration,
    latency: Histogram<u64>,
}

impl Replay {
    /// An empty cache of `memory_bytes`, from [`MIN_MEMORY_BYTES`](crate::MIN_MEMORY_BYTES) to
    /// [`MAX_MEMORY_BYTES`](crate::MAX_MEMORY_BYTES). `largest` is the size of the largest entry as
    /// a fraction of the memory, up to 0.5.
    pub fn new(policy: Policy, memory_bytes: u64, largest: f64) -> Result<Self> {
        let subject: Box<dyn Subject> = match policy {
            Policy::S3Fifo => Box::new(cache::open(memory_bytes, largest)?),
            _ => Box::new(Model::new(policy, memory_bytes, largest)),
        };
        Ok(Self {
            subject,
            largest_bytes: (memory_bytes as f64 * largest) as u64,
            tally: Tally::new(),
        })
    }

    /// Serves all requests, or until `stop` returns `true`.
    pub fn run(&mut self, requests: &mut dyn Requests, stop: impl Fn() -> bool) -> Result<()> {
        let clock = SystemClock::new();
        let mut buffer = vec![Request::default(); READ_AT_ONCE];
        let mut filler = Vec::new();
        while !stop() {
            let read = read_some(requests, &mut buffer)?;
            let kept = read
                .iter()
                .map(|request| request.value_bytes)
                .filter(|bytes| *bytes <= self.largest_bytes);
            let len = kept.max().map_or(0, |bytes| bytes as usize).max(filler.len());
            filler.resize(len, b'v');
            let started = clock.monotonic_nanos();
            self.serve_all(read, &filler, &clock);
            self.tally.elapsed += Duration::from_nanos(clock.monotonic_nanos() - started);
            if read.len() < READ_AT_ONCE {
                break;
            }
        }
        Ok(())
    }

    /// The counts so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The entries and the memory of the cache.
    pub fn held(&self) -> Held {
        self.subject.held()
    }

    fn serve_all(&mut self, requests: &[Request], filler: &[u8], clock: &SystemClock) {
        for (at, request) in requests.iter().enumerate() {
            if at % SAMPLED > 0 {
                self.serve(request, filler);
                continue;
            }
            let started = clock.monotonic_nanos();
            self.serve(request, filler);
            self.tally.add_latency(clock.monotonic_nanos() - started);
        }
    }

    fn serve(&mut self, request: &Request, filler: &[u8]) {
        let (subject, tally) = (&mut self.subject, &mut self.tally);
        tally.requests += 1;
        let bytes = request.value_bytes;
        match request.operation {
            Operation::Delete => {
                tally.deletes += 1;
                subject.remove(&request.key);
            }
            Operation::Set => {
                tally.sets += 1;
                subject.set(&request.key, bytes, filler);
            }
            Operation::Find | Operation::ReadThrough => {
                let found = subject.find(&request.key);
                tally.finds += 1;
                tally.bytes_asked += bytes;
                tally.hits += u64::from(found);
                tally.bytes_hit += if found { bytes } else { 0 };
                if !found && request.operation == Operation::ReadThrough {
                    tally.sets += 1;
                    subject.set(&request.key, bytes, filler);
                }
            }
        }
    }
}

/// Reads requests until the buffer is full or the trace ends.
fn read_some<'a>(requests: &mut dyn Requests, buffer: &'a mut [Request]) -> Result<&'a [Request]> {
    let mut len = 0;
    while len < buffer.len() && requests.next(&mut buffer[len])? {
        len += 1;
    }
    Ok(&buffer[..len])
}

impl Tally {
    fn new() -> Self {
        Self {
            requests: 0,
            finds: 0,
            hits: 0,
            bytes_asked: 0,
            bytes_hit: 0,
            sets: 0,
            deletes: 0,
            elapsed: Duration::ZERO,
            latency: Histogram::new(LATENCY_DIGITS)
                .expect("a histogram may have up to five digits"),
        }
    }

    fn add_latency(&mut self, nanos: u64) {
        self.latency.record(nanos).expect("the histogram grows with its largest value");
    }

    /// Hits as a fraction of the requests for a value.
    pub fn hit_ratio(&self) -> f64 {
        ratio(self.hits, self.finds)
    }

    /// Bytes of hits as a fraction of the requested bytes.
    pub fn byte_hit_ratio(&self) -> f64 {
        ratio(self.bytes_hit, self.bytes_asked)
    }

    /// The latency quantile in nanoseconds; `part` is e.g. 0.99.
    pub fn latency_nanos(&self, part: f64) -> u64 {
        self.latency.value_at_quantile(part)
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Skewed requests for values of 500 bytes.
    struct Skewed {
        random: fastrand::Rng,
        left: u32,
    }

    impl Requests for Skewed {
        fn next(&mut self, request: &mut Request) -> Result<bool> {
            let key = (self.random.f64().powi(4) * 10_000.0) as u64;
            *request = Request {
                operation: Operation::ReadThrough,
                key: key.to_le_bytes().into(),
                value_bytes: 500,
            };
            self.left = self.left.saturating_sub(1);
            Ok(self.left > 0)
        }
    }

    #[test]
    fn cache_and_models_are_counted_alike() {
        for (policy, least) in [(Policy::S3Fifo, 0.4), (Policy::Wtinylfu, 0.4), (Policy::Fifo, 0.2)]
        {
            let mut replay = Replay::new(policy, 1 << 20, 0.25).unwrap();
            let mut requests = Skewed { random: fastrand::Rng::with_seed(2), left: 50_001 };
            replay.run(&mut requests, || false).unwrap();
            let tally = replay.tally();
            assert_eq!(
                (tally.requests, tally.finds, tally.sets),
                (50_000, 50_000, 50_000 - tally.hits)
            );
            assert!(tally.hit_ratio() > least, "{policy:?}: {}", tally.hit_ratio());
            assert_eq!(tally.bytes_hit, tally.hits * 500);
            assert_eq!(tally.latency.len(), 50_000 / SAMPLED as u64);
            assert!(tally.latency_nanos(0.5) <= tally.latency_nanos(0.999));
            assert!(replay.held().entries > 1000 && replay.held().evictions > 1000, "{policy:?}");
        }
    }

    #[test]
    fn latencies_are_exact_to_two_digits() {
        let mut tally = Tally::new();
        (1..=1_000_000).step_by(1000).for_each(|nanos| tally.add_latency(nanos));
        for (part, exact) in [(0.5, 500_000), (0.99, 990_000), (1.0, 1_000_000)] {
            let found = tally.latency_nanos(part);
            assert!(found.abs_diff(exact) <= exact / 100 + 1000, "{part}: {found}");
        }
        tally.add_latency(u64::MAX);
        assert!(tally.latency_nanos(1.0) > u64::MAX / 2);
    }

    #[test]
    fn replay_stops_on_request() {
        let mut replay = Replay::new(Policy::Lru, 1 << 20, 0.25).unwrap();
        let calls = std::cell::Cell::new(0);
        let stop = || calls.replace(calls.get() + 1) == 3;
        replay
            .run(&mut Skewed { random: fastrand::Rng::with_seed(2), left: u32::MAX }, stop)
            .unwrap();
        assert_eq!(replay.tally().requests, 3 * READ_AT_ONCE as u64);
        assert_eq!(Tally::new().latency_nanos(0.5), 0);
    }
}
