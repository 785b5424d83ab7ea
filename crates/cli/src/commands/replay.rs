//! `plimsoll replay`: replays a trace of requests against the object cache, or against models of
//! other policies.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use plimsoll_replay::{
    MAX_MEMORY_BYTES, MIN_MEMORY_BYTES, Opened, Policy, TraceFile, TraceFormat, curve,
};
use serde_json::Value;

use crate::args::{Globals, Replay};
use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::memory_use::MemoryWatch;
use crate::output::{Fact, Output, Section};
use crate::size::{show_count, show_size};
use crate::stderr::say;

pub(crate) fn run(globals: &Globals, args: &Replay, output: &mut Output) -> Outcome {
    let interrupt = Interrupt::listen()?;
    let format = args.format.or_else(|| TraceFormat::of_name(&args.trace)).ok_or_else(|| {
        Failure::usage(format!(
            "{}: cannot infer the format from the name; give --format oracle, csv or cachebench",
            args.trace.display()
        ))
    })?;
    let mut replays = Replays {
        file: TraceFile::new(&args.trace, format),
        args,
        interrupt: &interrupt,
        remarked: false,
    };
    let policies = without_doubles(&args.policy);
    replays.check_that_it_can_be_reread(policies.len())?;
    check_folder_of_curve(args)?;
    check_that_curve_is_not_the_trace(args)?;
    let memory_bytes = replays.memory_bytes(globals)?;
    let mut sections = Vec::new();
    for policy in &policies {
        let done = replays.replay(*policy, memory_bytes)?;
        sections.push(Section::new(policy.name(), done.facts(memory_bytes)));
        if interrupt.was_received() {
            break;
        }
    }
    output.sections(&sections)?;
    if let Some(path) = &args.curve {
        replays.draw_curve(&policies, memory_bytes, path)?;
    }
    Ok(if interrupt.was_received() { Exit::Interrupted } else { Exit::Done })
}

fn without_doubles(policies: &[Policy]) -> Vec<Policy> {
    let is_first = |at: usize| !policies[..at].contains(&policies[at]);
    (0..policies.len()).filter(|at| is_first(*at)).map(|at| policies[at]).collect()
}

/// Rejects a missing output folder now, not after an hour of replaying.
fn check_folder_of_curve(args: &Replay) -> Result<(), Failure> {
    let folder = args
        .curve
        .as_deref()
        .and_then(Path::parent)
        .filter(|folder| !folder.as_os_str().is_empty());
    match folder {
        Some(folder) if !folder.is_dir() => {
            Err(Failure::usage(format!("{}: there is no such folder", folder.display())))
        }
        _ => Ok(()),
    }
}

/// Rejects a curve file that would overwrite the trace, under any name.
fn check_that_curve_is_not_the_trace(args: &Replay) -> Result<(), Failure> {
    let file = |path: &Path| std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    match args.curve.as_deref() {
        Some(curve) if file(curve).is_some_and(|curve| file(&args.trace) == Some(curve)) => {
            Err(Failure::usage(format!(
                "{}: this is the trace; give --curve another file",
                curve.display()
            )))
        }
        _ => Ok(()),
    }
}

/// The replays of one trace.
struct Replays<'a> {
    file: TraceFile,
    args: &'a Replay,
    interrupt: &'a Interrupt,
    /// Whether the remarks on the trace were printed.
    remarked: bool,
}

/// The result of a replay, and this process's memory use.
struct Done {
    replay: plimsoll_replay::Replay,
    peak_bytes: Option<u64>,
}

impl Replays<'_> {
    /// Each policy and each memory size of a curve rereads the trace from its beginning.
    fn check_that_it_can_be_reread(&self, policies: usize) -> Result<(), Failure> {
        let why = match self.file.format() {
            TraceFormat::Cachebench => "a configuration is read several times",
            _ if self.args.curve.is_some() => "--curve reads the trace several times",
            _ if policies > 1 => "each policy reads the trace",
            _ => return Ok(()),
        };
        if self.file.can_be_read_again() {
            return Ok(());
        }
        let path = self.file.path().display();
        Err(Failure::usage(format!("{path}: it is not seekable, and {why}; save it in a file")))
    }

    /// Opens the trace; prints remarks on it to stderr once.
    fn open(&mut self) -> Result<Opened, Failure> {
        let opened = self.file.open()?;
        if !std::mem::replace(&mut self.remarked, true) {
            opened.remarks.iter().for_each(say);
        }
        Ok(opened)
    }

    /// The cache size: `--memory`, or that of the configuration.
    fn memory_bytes(&mut self, globals: &Globals) -> Result<u64, Failure> {
        let configured = match self.file.format() {
            TraceFormat::Cachebench => self.open()?.memory_bytes,
            _ => None,
        };
        let memory = globals.memory.or(configured);
        let memory =
            memory.ok_or_else(|| Failure::usage("set the cache size, e.g. --memory 64MiB"))?;
        if !(MIN_MEMORY_BYTES..=MAX_MEMORY_BYTES).contains(&memory) {
            let (least, most) = (show_size(MIN_MEMORY_BYTES), show_size(MAX_MEMORY_BYTES));
            return Err(Failure::usage(format!(
                "cannot make a cache of {memory} bytes; give --memory at least {least} and at \
                 most {most}"
            )));
        }
        Ok(memory)
    }

    /// Replays the trace once.
    fn replay(&mut self, policy: Policy, memory_bytes: u64) -> Result<Done, Failure> {
        let mut opened = self.open()?;
        let watch = MemoryWatch::start();
        let mut replay = plimsoll_replay::Replay::new(policy, memory_bytes, self.args.largest)?;
        replay.run(&mut *opened.requests, || self.interrupt.was_received())?;
        if replay.tally().requests == 0 && !self.interrupt.was_received() {
            return Err(Failure::usage(format!(
                "{}: the trace has no requests",
                self.file.path().display()
            )));
        }
        Ok(Done { peak_bytes: watch.peak_bytes(), replay })
    }

    #[allow(clippy::disallowed_methods, reason = "the drawing is the user's file")]
    fn draw_curve(
        &mut self,
        policies: &[Policy],
        memory_bytes: u64,
        path: &Path,
    ) -> Result<(), Failure> {
        let memories = curve::memories(memory_bytes);
        let mut lines = Vec::new();
        for policy in policies {
            let mut points = Vec::new();
            for bytes in &memories {
                let done = self.replay(*policy, *bytes)?;
                if self.interrupt.was_received() {
                    say(format_args!("interrupted; {} was not written", path.display()));
                    return Ok(());
                }
                points.push((*bytes, 1.0 - done.replay.tally().hit_ratio()));
            }
            lines.push(curve::Line { name: policy.name().to_owned(), points });
        }
        let name = self
            .file
            .path()
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let title = format!("Requests that missed: {name}");
        std::fs::write(path, curve::draw(&title, &lines, show_size))
            .map_err(|error| Failure::system(format!("{}: {error}", path.display())))
    }
}

impl Done {
    fn facts(&self, memory_bytes: u64) -> Vec<Fact> {
        let (tally, held) = (self.replay.tally(), self.replay.held());
        let per_second = tally.requests as f64 / tally.elapsed.as_secs_f64().max(1e-9);
        let percent =
            |name: &str, part: f64| Fact::new(name, format!("{:.2} %", part * 100.0), part);
        let mut facts = vec![
            Fact::bytes("memory", memory_bytes),
            Fact::count("requests", tally.requests),
            Fact::count("finds", tally.finds),
            Fact::count("sets", tally.sets),
            Fact::count("deletes", tally.deletes),
            percent("hit ratio", tally.hit_ratio()),
            percent("byte hit ratio", tally.byte_hit_ratio()),
            Fact::count("entries", held.entries),
            Fact::count("evictions", held.evictions),
            Fact::new("requests a second", show_count(per_second as u64), per_second),
            Fact::bytes("cache memory", held.memory_bytes),
        ];
        for (name, part) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)] {
            let nanos = tally.latency_nanos(part);
            facts.push(Fact::new(
                format!("latency {name}"),
                format!("{} ns", show_count(nanos)),
                nanos,
            ));
        }
        let shown = self.peak_bytes.map_or_else(|| "unknown".to_owned(), show_size);
        facts.push(Fact::new(
            "peak memory",
            shown,
            self.peak_bytes.map_or(Value::Null, Value::from),
        ));
        facts
    }
}
