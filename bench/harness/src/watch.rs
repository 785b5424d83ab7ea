//! Watches a process from outside: memory, bytes at the device, processor time.
//!
//! Memory is sampled every 10 ms (at first every millisecond) from `/proc/PID/status`; what counts against the line is RssAnon + RssShmem + VmPTE, at
//! the same moment (the kernel keeps these counters exact to some 256 KiB). What is counted since the start (bytes, time) is
//! read after the process has ended and before it is forgotten, so nothing is missed.

use std::fmt;
use std::fs;
use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::results::Results;

const SAMPLE_EVERY: Duration = Duration::from_millis(10);
/// At first more often: a short process would hardly be seen.
const SAMPLE_EVERY_AT_FIRST: Duration = Duration::from_millis(1);
const FIRST_SAMPLES: u64 = 100;

/// Ticks of a second in `/proc/PID/stat`: the same on every Linux.
const TICKS: f64 = 100.0;

/// What was seen of a process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// The most RssAnon + RssShmem + VmPTE at one moment.
    pub(crate) peak_line_bytes: u64,
    /// The most bytes of page tables.
    pub(crate) peak_page_table_bytes: u64,
    /// The most resident bytes of any kind (VmHWM), code and mapped files included.
    pub(crate) peak_resident_bytes: u64,
    /// Bytes it caused to be written to the device, without those that were dropped before they got there.
    pub(crate) written_bytes: u64,
    /// Bytes it caused to be read from the device.
    pub(crate) read_bytes: u64,
    /// Processor time, user and system.
    pub(crate) cpu_seconds: f64,
    /// From start to end.
    pub(crate) seconds: f64,
    /// How often memory was looked at.
    pub(crate) samples: u64,
    /// What it wrote to standard output.
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
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Well => f.write_str("ok"),
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "killed by signal {signal}"),
            Self::OutOfMemory => f.write_str("killed for want of memory"),
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
            ("device_written_bytes", self.written_bytes as f64),
            ("device_read_bytes", self.read_bytes as f64),
            ("cpu_seconds", self.cpu_seconds),
            ("process_seconds", self.seconds),
            ("failed", f64::from(u8::from(self.end != End::Well))),
        ];
        for (metric, value) in numbers {
            results.note(workload, settings, metric, value);
        }
    }
}

/// Runs a command to its end and watches it.
pub(crate) fn watch(command: &mut Command) -> Result<Seen> {
    let start = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    let mut stdout = child.stdout.take().context("standard output is piped")?;
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).map(|_| text)
    });
    let mut seen = Seen::default();
    let sampled = sample_until_end(&child, &mut seen);
    seen.seconds = start.elapsed().as_secs_f64();
    let status = reap(&mut child, sampled)?;
    seen.output = reader.join().expect("reading text does not panic").context("cannot read what the process said")?;
    seen.end = end_of(status);
    Ok(seen)
}

/// Reaps the child; kills it first if it could not be watched.
fn reap(child: &mut Child, sampled: Result<()>) -> Result<ExitStatus> {
    if sampled.is_err() {
        child.kill()?;
    }
    let status = child.wait()?;
    sampled.map(|()| status)
}

fn end_of(status: ExitStatus) -> End {
    match (status.code(), status.signal()) {
        (Some(0), _) => End::Well,
        (Some(code), _) => End::Code(code),
        (None, signal) => End::Signal(signal.unwrap_or(0)),
    }
}

fn sample_until_end(child: &Child, seen: &mut Seen) -> Result<()> {
    let pid = child.id();
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    loop {
        if let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) {
            seen.sample(&status);
        }
        if waitid(WaitId::Pid(Pid::from_child(child)), options)?.is_some() {
            break;
        }
        let pause = if seen.samples < FIRST_SAMPLES { SAMPLE_EVERY_AT_FIRST } else { SAMPLE_EVERY };
        std::thread::sleep(pause);
    }
    let io = fs::read_to_string(format!("/proc/{pid}/io")).context("cannot read the process's I/O counters")?;
    seen.read_bytes = field(&io, "read_bytes");
    seen.written_bytes = field(&io, "write_bytes").saturating_sub(field(&io, "cancelled_write_bytes"));
    seen.cpu_seconds = cpu_seconds(&fs::read_to_string(format!("/proc/{pid}/stat"))?);
    Ok(())
}

impl Seen {
    fn sample(&mut self, status: &str) {
        let bytes = |name| field(status, name) * 1024;
        let page_tables = bytes("VmPTE");
        let line = bytes("RssAnon") + bytes("RssShmem") + page_tables;
        self.peak_line_bytes = self.peak_line_bytes.max(line);
        self.peak_page_table_bytes = self.peak_page_table_bytes.max(page_tables);
        self.peak_resident_bytes = self.peak_resident_bytes.max(bytes("VmHWM"));
        self.samples += 1;
    }
}

/// The number of a line `name: number`; 0 if it is not there (a process that has just ended has no memory).
fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// User and system time of a line of `/proc/PID/stat`, whose second field may hold anything, in brackets.
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
            echo ${{#x}}; sleep 0.05; exit 3",
            folder.path().display()
        );
        let seen = watch(Command::new("bash").args(["-c", &script])).unwrap();
        assert_eq!(seen.output, "30000000\n");
        assert_eq!(seen.end, End::Code(3));
        assert!(seen.peak_line_bytes > 30_000_000, "{seen:?}");
        assert!(seen.written_bytes >= 2_000_000, "{seen:?}");
        assert!(seen.cpu_seconds > 0.0 && seen.seconds > 0.05 && seen.samples > 2, "{seen:?}");
    }

    #[test]
    fn processor_time_is_found_behind_a_name_with_spaces_and_brackets() {
        let stat = "5 (a) b (c)) S 1 1 1 0 -1 0 0 0 0 0 250 50 9 9 20";
        assert!((cpu_seconds(stat) - 3.0).abs() < 1e-9);
    }
}
