//! `plimsoll replay`: a trace of requests against the object cache, or against the policies of others.
//!
//! Law: a replay is the same each time: one thread, no clock in any decision, no randomness but the seeded one of generated workloads.

#[path = "../../../replay/src/cachebench.rs"]
mod cachebench;
#[path = "../../../replay/src/curve.rs"]
mod curve;
#[path = "../../../replay/src/delimited.rs"]
mod delimited;
#[path = "../../../replay/src/latency.rs"]
mod latency;
#[path = "../../../replay/src/lists.rs"]
mod lists;
#[path = "../../../replay/src/oracle.rs"]
mod oracle;
#[path = "../../../replay/src/sketch.rs"]
mod sketch;
#[path = "../../../replay/src/subject.rs"]
mod subject;
#[path = "../../../replay/src/trace.rs"]
mod trace;

use std::path::Path;
use std::time::Duration;

use plimsoll_disk::clock::{Clock, SystemClock};
use serde_json::Value;

use crate::args::{Count, Globals, Policy, Replay, TraceFormat};
use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::memory_use::MemoryWatch;
use crate::output::{Fact, Output, Section};
use crate::size::{show_count, show_size};
use latency::Latency;
use subject::Subject;
use trace::{Operation, Problem, Request, Trace};

/// Latency is taken of one request in so many: looking at the clock takes as long as a hit.
const SAMPLED: usize = 16;

/// Requests are read ahead while the time does not count.
const READ_AT_ONCE: usize = 4096;

/// Points of a curve: from a 64th of the memory to four times as much, each twice the one before.
const CURVE_HALVINGS: u32 = 6;
const CURVE_DOUBLINGS: u32 = 2;

/// What one pass over a trace came to.
struct Pass {
    policy: Policy,
    memory_bytes: u64,
    requests: u64,
    finds: u64,
    hits: u64,
    bytes_asked: u64,
    bytes_hit: u64,
    sets: u64,
    deletes: u64,
    elapsed: Duration,
    latency: Latency,
    counts: subject::Counts,
    peak_bytes: Option<u64>,
}

pub(crate) fn run(globals: &Globals, args: &Replay, output: &mut Output) -> Outcome {
    let interrupt = Interrupt::listen()?;
    let format = args.format.or_else(|| trace::format_of(&args.trace)).ok_or_else(|| {
        Failure::usage(format!(
            "{}: the name does not tell the format; say --format oracle, csv or cachebench",
            args.trace.display()
        ))
    })?;
    let policies = without_doubles(&args.policy);
    can_be_read_so_often(args, format, &policies)?;
    can_be_drawn(args)?;
    let memory_bytes = memory_of(globals, args, format)?;
    let mut passes = Vec::new();
    for policy in &policies {
        passes.push(pass(args, format, *policy, memory_bytes, &interrupt)?);
        if interrupt.came() {
            break;
        }
    }
    print(args, &passes, output)?;
    if let Some(path) = &args.curve {
        draw_curve(args, format, &policies, memory_bytes, path, &interrupt)?;
    }
    Ok(if interrupt.came() { Exit::Interrupted } else { Exit::Done })
}

fn without_doubles(policies: &[Policy]) -> Vec<Policy> {
    let is_first = |at: usize| !policies[..at].contains(&policies[at]);
    (0..policies.len()).filter(|at| is_first(*at)).map(|at| policies[at]).collect()
}

/// Each policy, and each memory of a curve, reads the trace from its beginning.
fn can_be_read_so_often(args: &Replay, format: TraceFormat, policies: &[Policy]) -> Result<(), Failure> {
    let needs = match format {
        TraceFormat::Cachebench => "a configuration",
        _ if args.curve.is_some() => "a trace that a curve is drawn of",
        _ if policies.len() > 1 => "a trace for several policies",
        _ => return Ok(()),
    };
    if trace::can_be_read_again(&args.trace) {
        return Ok(());
    }
    let path = args.trace.display();
    Err(Failure::usage(format!("{path}: {needs} is read more than once, and this can be only once: save it in a file")))
}

/// A name that is mistyped should not be found out after an hour of replaying.
fn can_be_drawn(args: &Replay) -> Result<(), Failure> {
    let folder = args.curve.as_deref().and_then(Path::parent).filter(|folder| !folder.as_os_str().is_empty());
    match folder {
        Some(folder) if !folder.is_dir() => {
            Err(Failure::system(format!("{}: there is no such folder", folder.display())))
        }
        _ => Ok(()),
    }
}

fn memory_of(globals: &Globals, args: &Replay, format: TraceFormat) -> Result<u64, Failure> {
    // A configuration's own size counts less than what was asked for. Reading it here also names what is not used, once.
    let configured = match format {
        TraceFormat::Cachebench => cachebench::open(&args.trace, true).map_err(of_problem)?.memory_bytes,
        _ => None,
    };
    let memory =
        globals.memory.or(configured).ok_or_else(|| Failure::usage("say how large the cache is: --memory 64MiB"))?;
    let (least, most) = (subject::MIN_MEMORY_BYTES, subject::max_memory_bytes(args.count));
    if !(least..=most).contains(&memory) {
        let (least, most, counted) = (show_size(least), show_size(most), args.count.words());
        return Err(Failure::usage(format!(
            "a cache of {memory} bytes: one that counts {counted} has at least {least} and at most {most} (--memory)"
        )));
    }
    Ok(memory)
}

fn of_problem(problem: Problem) -> Failure {
    match &problem {
        Problem::Io { .. } => Failure::system(problem.to_string()),
        Problem::Malformed { .. } => Failure::usage(problem.to_string()),
    }
}

fn open(args: &Replay, format: TraceFormat) -> Result<Box<dyn Trace>, Failure> {
    let opened = match format {
        TraceFormat::Cachebench => cachebench::open(&args.trace, false).map(|cachebench| cachebench.trace),
        _ => trace::open(&args.trace, format),
    };
    opened.map_err(of_problem)
}

/// Replays the trace once.
fn pass(
    args: &Replay,
    format: TraceFormat,
    policy: Policy,
    memory_bytes: u64,
    interrupt: &Interrupt,
) -> Result<Pass, Failure> {
    let mut trace = open(args, format)?;
    let watch = MemoryWatch::start();
    let mut subject = subject::of(policy, memory_bytes, args.count, args.largest)?;
    let clock = SystemClock::new();
    let mut pass = Pass::new(policy, memory_bytes);
    let mut requests = vec![Request::default(); READ_AT_ONCE];
    let mut filler = Vec::new();
    // What is larger than that is kept by none.
    let largest_bytes = (memory_bytes as f64 * args.largest) as u64;
    while !interrupt.came() {
        let read = read_some(&mut *trace, &mut requests)?;
        let longest = read.iter().map(|request| request.value_bytes).filter(|bytes| *bytes <= largest_bytes).max();
        let len = longest.map_or(0, |bytes| bytes as usize).max(filler.len());
        filler.resize(len, b'v');
        let started = clock.monotonic_nanos();
        pass.serve_all(&mut *subject, read, &filler, &clock);
        pass.elapsed += Duration::from_nanos(clock.monotonic_nanos() - started);
        if read.len() < READ_AT_ONCE {
            break;
        }
    }
    pass.counts = subject.counts();
    pass.peak_bytes = watch.peak_bytes();
    if pass.requests == 0 && !interrupt.came() {
        return Err(Failure::usage(format!("{}: there is no request in it", args.trace.display())));
    }
    Ok(pass)
}

/// Reads as many requests as there is room for, or the last ones.
fn read_some<'a>(trace: &mut dyn Trace, requests: &'a mut [Request]) -> Result<&'a [Request], Failure> {
    let mut len = 0;
    while len < requests.len() && trace.next(&mut requests[len]).map_err(of_problem)? {
        len += 1;
    }
    Ok(&requests[..len])
}

impl Pass {
    fn new(policy: Policy, memory_bytes: u64) -> Self {
        Self {
            policy,
            memory_bytes,
            requests: 0,
            finds: 0,
            hits: 0,
            bytes_asked: 0,
            bytes_hit: 0,
            sets: 0,
            deletes: 0,
            elapsed: Duration::ZERO,
            latency: Latency::default(),
            counts: subject::Counts::default(),
            peak_bytes: None,
        }
    }

    fn serve_all(&mut self, subject: &mut dyn Subject, requests: &[Request], filler: &[u8], clock: &SystemClock) {
        for (at, request) in requests.iter().enumerate() {
            if at % SAMPLED > 0 {
                self.serve(subject, request, filler);
                continue;
            }
            let started = clock.monotonic_nanos();
            self.serve(subject, request, filler);
            self.latency.add(clock.monotonic_nanos() - started);
        }
    }

    fn serve(&mut self, subject: &mut dyn Subject, request: &Request, filler: &[u8]) {
        self.requests += 1;
        let bytes = request.value_bytes;
        match request.operation {
            Operation::Delete => {
                self.deletes += 1;
                subject.remove(&request.key);
            }
            Operation::Set => {
                self.sets += 1;
                subject.set(&request.key, bytes, filler);
            }
            Operation::Find | Operation::ReadThrough => {
                let found = subject.find(&request.key);
                self.finds += 1;
                self.bytes_asked += bytes;
                self.hits += u64::from(found);
                self.bytes_hit += if found { bytes } else { 0 };
                if !found && request.operation == Operation::ReadThrough {
                    self.sets += 1;
                    subject.set(&request.key, bytes, filler);
                }
            }
        }
    }

    fn hit_ratio(&self) -> f64 {
        ratio(self.hits, self.finds)
    }

    fn byte_hit_ratio(&self) -> f64 {
        ratio(self.bytes_hit, self.bytes_asked)
    }

    fn facts(&self, count: Count) -> Vec<Fact> {
        let per_second = self.requests as f64 / self.elapsed.as_secs_f64().max(1e-9);
        let percent = |name: &str, part: f64| Fact::new(name, format!("{:.2} %", part * 100.0), part);
        let mut facts = vec![
            Fact::new("counted", count.words(), count.words()),
            Fact::bytes("memory", self.memory_bytes),
            Fact::count("requests", self.requests),
            Fact::count("finds", self.finds),
            Fact::count("sets", self.sets),
            Fact::count("deletes", self.deletes),
            percent("hit ratio", self.hit_ratio()),
            percent("byte hit ratio", self.byte_hit_ratio()),
            Fact::count("entries", self.counts.entries),
            Fact::count("evictions", self.counts.evictions),
            Fact::new("requests a second", show_count(per_second as u64), per_second),
            Fact::bytes("cache memory", self.counts.memory_bytes),
        ];
        for (name, part) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)] {
            let nanos = self.latency.percentile(part);
            facts.push(Fact::new(format!("latency {name}"), format!("{} ns", show_count(nanos)), nanos));
        }
        let shown = self.peak_bytes.map_or_else(|| "unknown".to_owned(), show_size);
        facts.push(Fact::new("peak memory", shown, self.peak_bytes.map_or(Value::Null, Value::from)));
        facts
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn print(args: &Replay, passes: &[Pass], output: &mut Output) -> Result<(), Failure> {
    let sections: Vec<_> = passes.iter().map(|pass| Section::new(pass.policy.name(), pass.facts(args.count))).collect();
    output.sections(&sections)
}

#[allow(clippy::disallowed_methods, reason = "the drawing is the user's file")]
fn draw_curve(
    args: &Replay,
    format: TraceFormat,
    policies: &[Policy],
    memory_bytes: u64,
    path: &Path,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let memories = memories_of_curve(memory_bytes, subject::max_memory_bytes(args.count));
    let mut lines = Vec::new();
    for policy in policies {
        let mut points = Vec::new();
        for bytes in &memories {
            let pass = pass(args, format, *policy, *bytes, interrupt)?;
            if interrupt.came() {
                eprintln!("plimsoll: stopped; {} is not drawn", path.display());
                return Ok(());
            }
            points.push((*bytes, 1.0 - pass.hit_ratio()));
        }
        lines.push(curve::Line { name: policy.name().to_owned(), points });
    }
    let name = args.trace.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let title = format!("Requests that missed: {name}, {}", args.count.words());
    std::fs::write(path, curve::draw(&title, &lines, show_size))
        .map_err(|error| Failure::system(format!("{}: {error}", path.display())))
}

/// Those that a cache can have.
fn memories_of_curve(memory_bytes: u64, most: u64) -> Vec<u64> {
    (0..=CURVE_HALVINGS + CURVE_DOUBLINGS)
        .map(|step| (u128::from(memory_bytes) << step) >> CURVE_HALVINGS)
        .filter_map(|bytes| u64::try_from(bytes).ok())
        .filter(|bytes| (subject::MIN_MEMORY_BYTES..=most).contains(bytes))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_has_the_memories_that_a_cache_can_have() {
        assert_eq!(memories_of_curve(6 << 20, u64::MAX).len(), 9);
        assert_eq!(memories_of_curve(64 << 10, u64::MAX), [64 << 10, 128 << 10, 256 << 10]);
        assert!(memories_of_curve(100, 1000).is_empty());
        assert_eq!(memories_of_curve(u64::MAX, u64::MAX).last(), Some(&u64::MAX));
        assert_eq!(memories_of_curve(8 << 30, 16 << 30).last(), Some(&(16 << 30)));
    }
}
