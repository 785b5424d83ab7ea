//! Children of the bench: how they are started, and the command `launch` that they start as.
//!
//! A child first runs as `bench launch`, which ties its life to ours and joins the cgroup, and then becomes the wanted program with the
//! same process id: what is measured starts from nothing.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use clap::Args;
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::cgroup;
use crate::watch::{End, Seen, watch};

/// Room for what lies outside the budget, page cache included, in a cgroup with a hard limit.
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
    /// Becomes the wanted program. Returns only if that fails.
    pub(crate) fn run(&self) -> Result<()> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if let Some(folder) = &self.cgroup {
            cgroup::join(folder)?;
        }
        let error = Command::new(&self.command[0]).args(&self.command[1..]).exec();
        Err(error).with_context(|| format!("cannot run {}", self.command[0].display()))
    }
}

/// Where a child runs.
#[derive(Debug)]
pub(crate) enum Limit {
    /// Without a limit other than the machine's.
    None,
    /// In a cgroup of this many bytes, page cache included.
    Hard(u64),
    /// A limit was wanted and is not to be had.
    Refused,
}

impl Limit {
    /// The hard limit for a budget, if it is wanted and permitted. Says so if it is not.
    pub(crate) fn for_budget(wanted: bool, budget_bytes: u64) -> Self {
        if !wanted {
            return Self::None;
        }
        let bytes = budget_bytes + CGROUP_ROOM_BYTES;
        match cgroup::MemoryCgroup::make(bytes) {
            Ok(_) => Self::Hard(bytes),
            Err(error) => {
                eprintln!("no hard memory limit on this machine: {error:#}; the rows are marked cgroup=refused");
                Self::Refused
            }
        }
    }

    /// How a result's settings name it.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::None => "none".to_owned(),
            Self::Hard(bytes) => crate::sizes::show_size(*bytes),
            Self::Refused => "refused".to_owned(),
        }
    }
}

/// What was seen of a child, and of its cgroup.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) seen: Seen,
    /// The most memory of its cgroup, page cache included.
    pub(crate) cgroup_peak_bytes: Option<u64>,
}

/// Runs a program to its end, watched, within a limit.
pub(crate) fn launch(program: &Path, arguments: &[String], limit: &Limit) -> Result<Outcome> {
    let cgroup = match limit {
        Limit::Hard(bytes) => Some(cgroup::MemoryCgroup::make(*bytes)?),
        Limit::None | Limit::Refused => None,
    };
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("launch");
    if let Some(cgroup) = &cgroup {
        command.arg("--cgroup").arg(cgroup.folder());
    }
    let mut seen = watch(command.arg("--").arg(program).args(arguments))?;
    if let Some(cgroup) = &cgroup
        && cgroup.kills() > 0
    {
        seen.end = End::OutOfMemory;
    }
    Ok(Outcome { seen, cgroup_peak_bytes: cgroup.as_ref().and_then(cgroup::MemoryCgroup::peak_bytes) })
}
