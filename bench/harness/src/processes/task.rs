//! The messages between the bench and a process of the fleet, one per line.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::appender::new_histogram;

/// A piece of work. All times are of the machine's monotonic clock, which is the same in all
/// processes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Task {
    /// Puts the rows of the store from one number on, in commits of a thousand, until the time is
    /// up.
    Load { from: u64, rows: u64, millis: u64 },
    /// Commits of one put, `rate` a second, or at full speed if that is 0. Begins at `start_nanos`.
    Commit { threads: u64, millis: u64, rate: u64, value_bytes: u64, start_nanos: u64 },
    /// Transactions that read and write one of this many counters.
    Count { counters: u64, millis: u64, start_nanos: u64 },
    /// Gets of random rows.
    Get { threads: u64, millis: u64, start_nanos: u64 },
    /// Scans of all rows, repeatedly.
    Scan { millis: u64, start_nanos: u64 },
    /// This many transactions, begun and dropped.
    Begin { count: u64 },
    /// Gets of random rows among the first `rows`, and how many of them had to read from the
    /// device.
    First { count: u64, rows: u64 },
    /// Commits numbers, and reports when each commit returned.
    Tick { count: u64, rate: u64, start_nanos: u64 },
    /// Reads the commits of [`Task::Tick`] in a loop, and reports when it saw each.
    Look { until: u64 },
    /// Waits for each commit by following the log, and reports when it arrived.
    Follow { count: u64 },
    /// Opens a snapshot, and keeps it.
    Hold,
    /// Flushes memory.
    Settle,
}

impl Task {
    /// The name and numbers of a task, in message order.
    fn words(&self) -> (&'static str, Vec<u64>) {
        match *self {
            Self::Load { from, rows, millis } => ("load", vec![from, rows, millis]),
            Self::Commit { threads, millis, rate, value_bytes, start_nanos } => {
                ("commit", vec![threads, millis, rate, value_bytes, start_nanos])
            }
            Self::Count { counters, millis, start_nanos } => {
                ("count", vec![counters, millis, start_nanos])
            }
            Self::Get { threads, millis, start_nanos } => {
                ("get", vec![threads, millis, start_nanos])
            }
            Self::Scan { millis, start_nanos } => ("scan", vec![millis, start_nanos]),
            Self::Begin { count } => ("begin", vec![count]),
            Self::First { count, rows } => ("first", vec![count, rows]),
            Self::Tick { count, rate, start_nanos } => ("tick", vec![count, rate, start_nanos]),
            Self::Look { until } => ("look", vec![until]),
            Self::Follow { count } => ("follow", vec![count]),
            Self::Hold => ("hold", Vec::new()),
            Self::Settle => ("settle", Vec::new()),
        }
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, numbers) = self.words();
        f.write_str(name)?;
        numbers.iter().try_for_each(|number| write!(f, " {number}"))
    }
}

impl FromStr for Task {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> Result<Self> {
        let mut words = line.split_whitespace();
        let name = words.next().context("an empty line is no task")?;
        let numbers: Vec<u64> =
            words.map(str::parse).collect::<Result<_, _>>().with_context(|| line.to_owned())?;
        Ok(match (name, numbers.as_slice()) {
            ("load", &[from, rows, millis]) => Self::Load { from, rows, millis },
            ("commit", &[threads, millis, rate, value_bytes, start_nanos]) => {
                Self::Commit { threads, millis, rate, value_bytes, start_nanos }
            }
            ("count", &[counters, millis, start_nanos]) => {
                Self::Count { counters, millis, start_nanos }
            }
            ("get", &[threads, millis, start_nanos]) => Self::Get { threads, millis, start_nanos },
            ("scan", &[millis, start_nanos]) => Self::Scan { millis, start_nanos },
            ("begin", &[count]) => Self::Begin { count },
            ("first", &[count, rows]) => Self::First { count, rows },
            ("tick", &[count, rate, start_nanos]) => Self::Tick { count, rate, start_nanos },
            ("look", &[until]) => Self::Look { until },
            ("follow", &[count]) => Self::Follow { count },
            ("hold", []) => Self::Hold,
            ("settle", []) => Self::Settle,
            _ => bail!("no task: {line:?}"),
        })
    }
}

/// The result of a process.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// Operations that it did.
    pub(crate) count: u64,
    /// The time that they took.
    pub(crate) time: Duration,
    /// Processor time of all threads of the process meanwhile.
    pub(crate) cpu: Duration,
    /// Number of transaction retries.
    pub(crate) retries: u64,
    /// Latencies of single operations, in nanoseconds.
    pub(crate) latency: Histogram<u64>,
    /// Other figures of a task.
    pub(crate) numbers: Vec<u64>,
}

impl Default for Answer {
    fn default() -> Self {
        Self {
            count: 0,
            time: Duration::ZERO,
            cpu: Duration::ZERO,
            retries: 0,
            latency: new_histogram(),
            numbers: Vec::new(),
        }
    }
}

impl Answer {
    /// Formats it as a line.
    pub(crate) fn line(&self) -> String {
        let latency: Vec<_> = self
            .latency
            .iter_recorded()
            .map(|step| [step.value_iterated_to(), step.count_at_value()])
            .collect();
        json!({
            "count": self.count,
            "nanos": self.time.as_nanos() as u64,
            "cpu_nanos": self.cpu.as_nanos() as u64,
            "retries": self.retries,
            "latency": latency,
            "numbers": self.numbers,
        })
        .to_string()
    }

    /// Parses such a line.
    pub(crate) fn parse(line: &str) -> Result<Self> {
        let answer: Value =
            serde_json::from_str(line).with_context(|| format!("no answer: {line:?}"))?;
        let number = |name: &str| {
            answer[name].as_u64().with_context(|| format!("no number {name} in {line:?}"))
        };
        let list = |name: &str| {
            answer[name].as_array().with_context(|| format!("no list {name} in {line:?}"))
        };
        let mut latency = new_histogram();
        for step in list("latency")? {
            let (value, count) =
                step[0].as_u64().zip(step[1].as_u64()).context("no step of a histogram")?;
            latency.record_n(value, count)?;
        }
        Ok(Self {
            count: number("count")?,
            time: Duration::from_nanos(number("nanos")?),
            cpu: Duration::from_nanos(number("cpu_nanos")?),
            retries: number("retries")?,
            latency,
            numbers: list("numbers")?
                .iter()
                .map(Value::as_u64)
                .collect::<Option<_>>()
                .context("no number")?,
        })
    }

    /// Operations a second.
    pub(crate) fn rate(&self) -> f64 {
        self.count as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_parses_from_its_message() {
        let tasks = [
            Task::Load { from: 1, rows: 2, millis: 3 },
            Task::Commit { threads: 1, millis: 2, rate: 3, value_bytes: 4, start_nanos: 5 },
            Task::Count { counters: 1, millis: 2, start_nanos: 3 },
            Task::Get { threads: 1, millis: 2, start_nanos: 3 },
            Task::Scan { millis: 1, start_nanos: 2 },
            Task::Begin { count: 1 },
            Task::First { count: 1, rows: 2 },
            Task::Tick { count: 1, rate: 2, start_nanos: 3 },
            Task::Look { until: 1 },
            Task::Follow { count: 1 },
            Task::Hold,
            Task::Settle,
        ];
        for task in tasks {
            assert_eq!(task.to_string().parse::<Task>().unwrap(), task);
        }
        for wrong in ["", "commit", "commit 1 2 x 4 5", "begin 1 2", "dance 1"] {
            assert!(wrong.parse::<Task>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn an_answer_parses_from_its_message() {
        let mut answer = Answer { count: 3, retries: 2, numbers: vec![7, 8], ..Answer::default() };
        (answer.time, answer.cpu) = (Duration::from_millis(1500), Duration::from_millis(20));
        [10, 10, 123_456_789].iter().for_each(|nanos| answer.latency.record(*nanos).unwrap());
        let heard = Answer::parse(&answer.line()).unwrap();
        assert_eq!((heard.count, heard.retries, &heard.numbers), (3, 2, &vec![7, 8]));
        assert_eq!((heard.time, heard.cpu), (answer.time, answer.cpu));
        assert_eq!(heard.latency.len(), 3);
        assert_eq!(heard.latency.value_at_quantile(1.0), answer.latency.value_at_quantile(1.0));
        assert!((heard.rate() - 2.0).abs() < 1e-9);
        for wrong in ["", "{}", "{\"count\":1}"] {
            assert!(Answer::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
