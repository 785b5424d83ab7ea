//! Processes of the bench that have one store open, from their parent's view: it starts them, sends
//! tasks, reads answers, stops and kills them.
//!
//! They are not sampled while they are measured, because sampling slows many processes more than
//! few.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::store::Opening;
use super::task::{Answer, Task};
use super::worker::{READY, now_nanos};

/// Time until the last process of a fleet has received a task.
const LEAD_NANOS: u64 = 30_000_000;

/// Common settings of all processes on a store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) opening: Opening,
    /// Rows of the store.
    pub(crate) rows: u64,
    /// The memory cgroup to join.
    pub(crate) cgroup: Option<&'a Path>,
}

/// One process. It is killed when dropped.
pub(crate) struct Member {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Member {
    /// Starts a process, and waits until it has the store open.
    pub(crate) fn start(start: &Start<'_>, seed: u64) -> Result<Self> {
        let Start { folder, opening, rows, cgroup } = start;
        let program = std::env::current_exe()?;
        let mut command = Command::new(&program);
        command.arg("launch");
        if let Some(cgroup) = cgroup {
            command.arg("--cgroup").arg(cgroup);
        }
        command
            .env("RUST_BACKTRACE", "0")
            .arg("--")
            .arg(&program)
            .args(["processes-worker", "--store"])
            .arg(folder);
        let numbers = [
            ("--peer", opening.peer.name()),
            ("--memory", opening.memory_total.to_string()),
            ("--processes", opening.processes.to_string()),
            ("--rows", rows.to_string()),
            ("--seed", seed.to_string()),
        ];
        command.args(numbers.iter().flat_map(|(name, value)| [*name, value]));
        command.args(
            [
                ("--alone", opening.is_alone),
                ("--relaxed", opening.is_relaxed),
                ("--small", opening.is_small),
            ]
            .iter()
            .filter(|flag| flag.1)
            .map(|flag| flag.0),
        );
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("standard output is piped")?);
        let mut member = Self { child, input, output };
        ensure!(member.line()? == READY, "a process of the bench does not say that it is ready");
        Ok(member)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn tell(&mut self, task: Task) -> Result<()> {
        let input = self.input.as_mut().context("its input is closed")?;
        Ok(writeln!(input, "{task}")?)
    }

    pub(crate) fn hear(&mut self) -> Result<Answer> {
        Answer::parse(&self.line()?)
    }

    /// Has a task run, and returns its answer.
    pub(crate) fn ask(&mut self, task: Task) -> Result<Answer> {
        self.tell(task)?;
        self.hear()
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            bail!("a process of the bench has ended ({})", self.child.wait()?);
        }
        Ok(line.trim_end().to_owned())
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Kills it and waits until it has ended.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Makes it close the store.
    pub(crate) fn end(mut self) -> Result<()> {
        drop(self.input.take());
        let status = self.child.wait()?;
        ensure!(status.success(), "a process of the bench failed ({status})");
        Ok(())
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processes on one store.
pub(crate) struct Fleet(pub(crate) Vec<Member>);

impl Fleet {
    /// Starts this many processes, one after the other.
    pub(crate) fn start(start: &Start<'_>, processes: u64) -> Result<Self> {
        (0..processes).map(|seed| Member::start(start, seed)).collect::<Result<_>>().map(Self)
    }

    /// Makes all processes run a task at the same time; `task` builds it from a process's number
    /// and the common start time.
    pub(crate) fn ask(&mut self, task: impl Fn(u64, u64) -> Task) -> Result<Vec<Answer>> {
        let start = now_nanos() + LEAD_NANOS;
        self.tell(|number| task(number, start))?;
        self.hear()
    }

    pub(crate) fn tell(&mut self, task: impl Fn(u64) -> Task) -> Result<()> {
        self.0.iter_mut().zip(0..).try_for_each(|(member, number)| member.tell(task(number)))
    }

    pub(crate) fn hear(&mut self) -> Result<Vec<Answer>> {
        self.0.iter_mut().map(Member::hear).collect()
    }

    /// Makes all processes close the store.
    pub(crate) fn end(self) -> Result<()> {
        self.0.into_iter().try_for_each(Member::end)
    }
}

/// Memory of a process, from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// RssAnon + RssShmem + page tables.
    pub(crate) own_bytes: u64,
    /// Pages of files that are mapped.
    pub(crate) mapped_bytes: u64,
    pub(crate) threads: u64,
}

impl Memory {
    /// The memory of a process; zero if it has ended.
    pub(crate) fn of(pid: u32) -> Self {
        std::fs::read_to_string(format!("/proc/{pid}/status"))
            .map_or_else(|_| Self::default(), |status| Self::parse(&status))
    }

    fn parse(status: &str) -> Self {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
        };
        Self {
            own_bytes: (field("RssAnon") + field("RssShmem") + field("VmPTE")) * 1024,
            mapped_bytes: field("RssFile") * 1024,
            threads: field("Threads"),
        }
    }

    /// The memory of several processes.
    pub(crate) fn of_all(pids: &[u32]) -> Self {
        pids.iter().map(|pid| Self::of(*pid)).fold(Self::default(), |sum, one| Self {
            own_bytes: sum.own_bytes + one.own_bytes,
            mapped_bytes: sum.mapped_bytes + one.mapped_bytes,
            threads: sum.threads + one.threads,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_what_a_process_has_of_its_own_with_its_page_tables() {
        let status = "Name:\ta\nVmPTE:\t      40 kB\nRssAnon:\t    1000 kB\nRssFile:\t  2000 kB\nRssShmem:\t 8 kB\nThreads:\t5\n";
        let memory = Memory { own_bytes: 1048 * 1024, mapped_bytes: 2000 * 1024, threads: 5 };
        assert_eq!(Memory::parse(status), memory);
        assert!(Memory::of(std::process::id()).own_bytes > 0);
        assert_eq!(Memory::of(u32::MAX), Memory::default());
    }
}
