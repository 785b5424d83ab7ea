//! Observes a process from outside: memory, bytes at the device, processor time.
//!
//! Memory is sampled every 10 ms (at first every millisecond) from `/proc/PID/status`; the figure
//! to compare with the limit is RssAnon + RssShmem + VmPTE at the same moment (the kernel keeps
//! these counters exact to about 256 KiB). Cumulative counters (bytes, time) are read after the
//! process has ended and before it is reaped, so nothing is missed.

use std::fmt;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::results::Results;

const SAMPLE_EVERY: Duration = Duration::from_millis(10);
/// More often at first, because a short process would hardly be sampled.
const SAMPLE_EVERY_AT_FIRST: Duration = Duration::from_millis(1);
const FIRST_SAMPLES: u64 = 100;

/// Samples that are kept for a plot.
const KEEP_EVERY: Duration = Duration::from_millis(100);

/// Ticks of a second in `/proc/PID/stat`: the same on every Linux.
const TICKS: f64 = 100.0;

/// The observations of a process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// The most RssAnon + RssShmem + VmPTE at one moment.
    pub(crate) peak_line_bytes: u64,
    /// The most bytes of page tables.
    pub(crate) peak_page_table_bytes: u64,
    /// The most resident bytes of any kind (VmHWM), code and mapped files included.
    pub(crate) peak_resident_bytes: u64,
    /// The most threads at one moment.
    pub(crate) peak_threads: u64,
    /// The figure compared with the limit, over the time in which the process was not paused.
    pub(crate) memory: Vec<(Duration, u64)>,
    /// Its usage from start to end.
    pub(crate) counters: Counters,
    /// From start to end.
    pub(crate) seconds: f64,
    /// Number of memory samples.
    pub(crate) samples: u64,
    /// Its standard output.
    pub(crate) output: String,
    /// How it ended.
    pub(crate) end: End,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum End {
    /// With exit code 0.
    #[default]
    Well,
    /// With another exit code.
    Code(i32),
    /// By a signal.
    Signal(i32),
    /// By the kernel, because its cgroup had no memory left.
    OutOfMemory,
    /// By the bench, because it took too long.
    TimedOut,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Well => f.write_str("ok"),
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "killed by signal {signal}"),
            Self::OutOfMemory => f.write_str("killed for want of memory"),
            Self::TimedOut => f.write_str("did not end in time"),
        }
    }
}

impl Seen {
    /// Notes everything that has a number.
    pub(crate) fn note(&self, results: &mut Results, workload: &str, settings: &str) {
        let numbers = [
            ("peak_line_bytes", self.peak_line_bytes as f64),
            ("peak_page_table_bytes", self.peak_page_table_bytes as f64),
            ("peak_resident_bytes", self.peak_resident_bytes as f64),
            ("peak_threads", self.peak_threads as f64),
            ("device_written_bytes", self.counters.written_bytes as f64),
            ("device_read_bytes", self.counters.read_bytes as f64),
            ("cpu_seconds", self.counters.cpu_seconds),
            ("process_seconds", self.seconds),
            ("failed", f64::from(u8::from(self.end != End::Well))),
        ];
        for (metric, value) in numbers {
            results.note(workload, settings, metric, value);
        }
    }
}

/// Cumulative counters since the start of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    /// Bytes it caused to be written to the device, without those that were dropped before they got
    /// there.
    pub(crate) written_bytes: u64,
    /// Bytes it caused to be read from the device.
    pub(crate) read_bytes: u64,
    /// Read calls of any kind.
    pub(crate) read_calls: u64,
    /// Write calls of any kind.
    pub(crate) written_calls: u64,
    /// Processor time, user and system.
    pub(crate) cpu_seconds: f64,
}

impl Counters {
    /// The usage of a process so far.
    pub(crate) fn of(pid: u32) -> Result<Self> {
        let io = fs::read_to_string(format!("/proc/{pid}/io"))
            .context("cannot read the process's I/O counters")?;
        Ok(Self {
            written_bytes: field(&io, "write_bytes")
                .saturating_sub(field(&io, "cancelled_write_bytes")),
            read_bytes: field(&io, "read_bytes"),
            read_calls: field(&io, "syscr"),
            written_calls: field(&io, "syscw"),
            cpu_seconds: cpu_seconds(&fs::read_to_string(format!("/proc/{pid}/stat"))?),
        })
    }

    /// The usage since an earlier sample.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
            read_bytes: self.read_bytes - before.read_bytes,
            read_calls: self.read_calls - before.read_calls,
            written_calls: self.written_calls - before.written_calls,
            cpu_seconds: self.cpu_seconds - before.cpu_seconds,
        }
    }
}

/// An observed process with line-based communication. It is killed on drop.
pub(crate) struct Watched {
    child: Child,
    start: Instant,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    is_paused: Arc<AtomicBool>,
    sampler: Option<JoinHandle<Result<Seen>>>,
}

impl Watched {
    /// Starts a command. Its standard input is empty unless it is to receive lines.
    pub(crate) fn start(command: &mut Command, talk: bool) -> Result<Self> {
        let start = Instant::now();
        let mut child = command
            .stdin(if talk { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        let output = BufReader::new(child.stdout.take().context("standard output is piped")?);
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let is_paused = Arc::new(AtomicBool::new(false));
        let (pid, paused) = (child.id(), Arc::clone(&is_paused));
        let sampler = Some(std::thread::spawn(move || sample_until_end(pid, &paused)));
        let input = child.stdin.take();
        Ok(Self { child, start, input, lines, is_paused, sampler })
    }

    /// Sends a line to its standard input.
    pub(crate) fn tell(&mut self, line: &str) -> Result<()> {
        let input = self.input.as_mut().context("this process cannot be talked to")?;
        Ok(writeln!(input, "{line}")?)
    }

    /// Waits for the next line of its output.
    pub(crate) fn hear(&mut self, timeout: Duration) -> Result<String> {
        self.lines.recv_timeout(timeout).map_err(|error| match error {
            RecvTimeoutError::Timeout => anyhow!("no answer in {} s", timeout.as_secs()),
            RecvTimeoutError::Disconnected => anyhow!("it has ended"),
        })
    }

    /// Pauses it: it neither works nor is sampled until resumed.
    pub(crate) fn pause(&self) -> Result<()> {
        self.is_paused.store(true, Ordering::Relaxed);
        Ok(kill_process(Pid::from_child(&self.child), Signal::STOP)?)
    }

    /// Resumes it.
    pub(crate) fn resume(&self) -> Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::CONT)?;
        self.is_paused.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Its usage so far.
    pub(crate) fn counters(&self) -> Result<Counters> {
        Counters::of(self.child.id())
    }

    /// Waits for its end; kills it after the timeout.
    pub(crate) fn end(mut self, timeout: Option<Duration>) -> Result<Seen> {
        drop(self.input.take());
        let mut output = String::new();
        let until = timeout.map(|timeout| Instant::now() + timeout);
        let is_late = loop {
            let left = until
                .map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            match self.lines.recv_timeout(left) {
                Ok(line) => output.extend([&line, "\n"]),
                Err(RecvTimeoutError::Disconnected) => break false,
                Err(RecvTimeoutError::Timeout) => break true,
            }
        };
        if is_late {
            self.child.kill()?;
        }
        let sampler = self.sampler.take().context("a process ends once")?;
        let sampled = sampler.join().map_err(|_| anyhow!("the sampler panicked"))?;
        let seconds = self.start.elapsed().as_secs_f64();
        let status = reap(&mut self.child, sampled.is_err())?;
        let end = if is_late { End::TimedOut } else { end_of(status) };
        Ok(Seen { seconds, output, end, ..sampled? })
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // The sampler records the end before the process is reaped.
        if let Some(sampler) = self.sampler.take() {
            let _ = self.child.kill();
            let _ = sampler.join();
            let _ = self.child.wait();
        }
    }
}

/// Reaps the child; kills it first if it could not be observed.
fn reap(child: &mut Child, kill: bool) -> Result<ExitStatus> {
    if kill {
        child.kill()?;
    }
    Ok(child.wait()?)
}

fn end_of(status: ExitStatus) -> End {
    match (status.code(), status.signal()) {
        (Some(0), _) => End::Well,
        (Some(code), _) => End::Code(code),
        (None, signal) => End::Signal(signal.unwrap_or(0)),
    }
}

fn sample_until_end(pid: u32, is_paused: &AtomicBool) -> Result<Seen> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let id = Pid::from_raw(i32::try_from(pid)?).context("a child has a number")?;
    let mut seen = Seen::default();
    let mut active = Duration::ZERO;
    loop {
        let start = Instant::now();
        let paused = is_paused.load(Ordering::Relaxed);
        if !paused && let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) {
            seen.sample(active, &status);
        }
        if waitid(WaitId::Pid(id), options)?.is_some() {
            break;
        }
        let pause = if seen.samples < FIRST_SAMPLES { SAMPLE_EVERY_AT_FIRST } else { SAMPLE_EVERY };
        std::thread::sleep(pause);
        if !paused {
            active += start.elapsed();
        }
    }
    seen.counters = Counters::of(pid)?;
    Ok(seen)
}

impl Seen {
    fn sample(&mut self, active: Duration, status: &str) {
        let bytes = |name| field(status, name) * 1024;
        let page_tables = bytes("VmPTE");
        let line = bytes("RssAnon") + bytes("RssShmem") + page_tables;
        self.peak_line_bytes = self.peak_line_bytes.max(line);
        self.peak_page_table_bytes = self.peak_page_table_bytes.max(page_tables);
        self.peak_resident_bytes = self.peak_resident_bytes.max(bytes("VmHWM"));
        self.peak_threads = self.peak_threads.max(field(status, "Threads"));
        self.samples += 1;
        if line > 0 && self.memory.last().is_none_or(|(last, _)| active >= *last + KEEP_EVERY) {
            self.memory.push((active, line));
        }
    }
}

/// The number of a line `name: number`; 0 if it is not there (a process that has just ended has no
/// memory).
fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// User and system time of a line of `/proc/PID/stat`, whose second field may hold anything, in
/// brackets.
fn cpu_seconds(stat: &str) -> f64 {
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|ticks| ticks.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / TICKS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_seen_with_its_memory_bytes_and_end() {
        let folder = tempfile::tempdir().unwrap();
        let script = format!(
            "head -c 2000000 /dev/zero > {}/file; x=$(head -c 30000000 /dev/zero | tr '\\0' x); \
            echo ${{#x}}; sleep 1; exit 3",
            folder.path().display()
        );
        let seen = Watched::start(Command::new("bash").args(["-c", &script]), false)
            .unwrap()
            .end(None)
            .unwrap();
        assert_eq!(seen.output, "30000000\n");
        assert_eq!(seen.end, End::Code(3));
        assert_eq!(seen.peak_threads, 1);
        assert!(seen.peak_line_bytes > 30_000_000, "{seen:?}");
        assert!(seen.counters.written_bytes >= 2_000_000, "{seen:?}");
        assert!(
            seen.counters.cpu_seconds > 0.0 && seen.seconds > 1.0 && seen.samples > 2,
            "{seen:?}"
        );
    }

    #[test]
    fn a_paused_process_prints_nothing_until_it_is_resumed() {
        let mut watched = Watched::start(Command::new("cat").arg("-"), true).unwrap();
        watched.tell("one").unwrap();
        assert_eq!(watched.hear(Duration::from_secs(60)).unwrap(), "one");
        watched.pause().unwrap();
        watched.tell("two").unwrap();
        assert!(watched.hear(Duration::from_millis(50)).is_err());
        watched.resume().unwrap();
        assert_eq!(watched.hear(Duration::from_secs(60)).unwrap(), "two");
        // Leave time for the sampler to run on a busy machine.
        std::thread::sleep(Duration::from_secs(1));
        let seen = watched.end(Some(Duration::from_secs(60))).unwrap();
        assert_eq!((seen.end, seen.output.as_str()), (End::Well, ""));
        assert!(!seen.memory.is_empty());
    }

    #[test]
    fn a_process_that_does_not_end_is_killed() {
        let watched = Watched::start(Command::new("sleep").arg("1000"), false).unwrap();
        assert_eq!(watched.end(Some(Duration::from_millis(20))).unwrap().end, End::TimedOut);
    }

    #[test]
    fn processor_time_is_parsed_after_a_name_with_spaces_and_brackets() {
        let stat = "5 (a) b (c)) S 1 1 1 0 -1 0 0 0 0 0 250 50 9 9 20";
        assert!((cpu_seconds(stat) - 3.0).abs() < 1e-9);
    }
}
