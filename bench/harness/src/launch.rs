//! Starts children of the bench; also the command `launch` that they start as.
//!
//! A child first runs as `bench launch`, which ties its life to ours and joins the cgroup, and then
//! executes the target program with the same process id, so that the measurement starts from zero.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::cgroup;
use crate::watch::{End, Seen, Watched};

/// Room for memory outside the budget, page cache included, in a cgroup with a hard limit.
pub(crate) const CGROUP_ROOM_BYTES: u64 = 32 << 20;

#[derive(Args, Debug)]
pub(crate) struct Launch {
    /// Cgroup to join
    #[arg(long)]
    cgroup: Option<PathBuf>,
    /// Program and arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl Launch {
    /// Executes the target program. Returns only if that fails.
    pub(crate) fn run(&self) -> Result<()> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if let Some(folder) = &self.cgroup {
            cgroup::join(folder)?;
        }
        let error = Command::new(&self.command[0]).args(&self.command[1..]).exec();
        Err(error).with_context(|| format!("cannot run {}", self.command[0].display()))
    }
}

/// The environment of a child.
#[derive(Debug)]
pub(crate) enum Limit {
    /// Without a limit other than the machine's.
    None,
    /// In a cgroup of this many bytes, page cache included.
    Hard(u64),
    /// A limit was requested but is unavailable.
    Refused,
}

impl Limit {
    /// The hard limit for a budget, if requested and permitted. Prints a message if it is not
    /// permitted.
    pub(crate) fn for_budget(wanted: bool, budget_bytes: u64) -> Self {
        if !wanted {
            return Self::None;
        }
        Self::hard(budget_bytes + CGROUP_ROOM_BYTES)
    }

    /// A hard limit, if permitted. Prints a message if it is not.
    pub(crate) fn hard(bytes: u64) -> Self {
        match cgroup::MemoryCgroup::make(bytes) {
            Ok(_) => Self::Hard(bytes),
            Err(error) => {
                eprintln!(
                    "no hard memory limit on this machine: {error:#}; the rows are marked cgroup=refused"
                );
                Self::Refused
            }
        }
    }

    /// Its name in a result's settings.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::None => "none".to_owned(),
            Self::Hard(bytes) => crate::sizes::show_size(*bytes),
            Self::Refused => "refused".to_owned(),
        }
    }
}

/// Observations of a child and its cgroup.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) seen: Seen,
    /// The peak memory of its cgroup, page cache included.
    pub(crate) cgroup_peak_bytes: Option<u64>,
}

/// A child that runs within a limit.
pub(crate) struct Launched {
    /// The process itself.
    pub(crate) process: Watched,
    cgroup: Option<cgroup::MemoryCgroup>,
}

impl Launched {
    /// Starts a program, optionally with line-based communication.
    pub(crate) fn start(
        program: &Path,
        arguments: &[String],
        limit: &Limit,
        talk: bool,
    ) -> Result<Self> {
        let cgroup = match limit {
            Limit::Hard(bytes) => Some(cgroup::MemoryCgroup::make(*bytes)?),
            Limit::None | Limit::Refused => None,
        };
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("launch");
        if let Some(cgroup) = &cgroup {
            command.arg("--cgroup").arg(cgroup.folder());
        }
        // A backtrace reads the program's debug information, which needs more memory than a small
        // limit allows.
        command.env("RUST_BACKTRACE", "0");
        let process = Watched::start(command.arg("--").arg(program).args(arguments), talk)?;
        Ok(Self { process, cgroup })
    }

    /// Waits for its end; kills it after `timeout`.
    pub(crate) fn end(self, timeout: Option<Duration>) -> Result<Outcome> {
        let mut seen = self.process.end(timeout)?;
        let is_killed = matches!(seen.end, End::Signal(_));
        if is_killed && self.cgroup.as_ref().is_some_and(|cgroup| cgroup.kills() > 0) {
            seen.end = End::OutOfMemory;
        }
        Ok(Outcome {
            seen,
            cgroup_peak_bytes: self.cgroup.as_ref().and_then(cgroup::MemoryCgroup::peak_bytes),
        })
    }
}

/// Runs a program to its end, observed, within a limit.
pub(crate) fn launch(program: &Path, arguments: &[String], limit: &Limit) -> Result<Outcome> {
    Launched::start(program, arguments, limit, false)?.end(None)
}
