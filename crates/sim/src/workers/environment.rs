//! The environment of a worker process: PID namespace and user.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use crate::failure::{Failure, Outcome};

/// The group of workers with different users, and the first user id. Unassigned on any machine.
const GROUP: u32 = 65_430;
const FIRST_USER: u32 = 65_431;

/// Number of different users.
const USERS: u64 = 2;

/// Differences between workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Environment {
    /// None.
    #[default]
    Equal,
    /// Each worker has its own PID namespace, as in a container, in which its id is 1. Needs root.
    Namespaces,
    /// Workers run as two users of one group, which owns the folder. Needs root.
    Users,
}

impl Environment {
    /// Prepares the store's folder for the workers.
    pub(crate) fn prepare(self, dir: &Path) -> Outcome {
        if self != Self::Users {
            return Ok(());
        }
        let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", dir.display()));
        chown(dir, None, Some(GROUP)).map_err(failed)?;
        std::fs::set_permissions(dir, Permissions::from_mode(0o2770)).map_err(failed)
    }

    /// The command that runs `program` as the worker with this number.
    pub(crate) fn command(self, program: &Path, number: u64) -> Command {
        match self {
            Self::Equal => Command::new(program),
            Self::Namespaces => {
                let mut command = Command::new("unshare");
                command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]).arg(program);
                command
            }
            Self::Users => {
                let mut command = Command::new(program);
                command.gid(GROUP).uid(FIRST_USER + (number % USERS) as u32);
                command
            }
        }
    }

    /// The process id of a worker in the parent's namespace, from the id of the started wrapper;
    /// `None` if the worker does not exist yet.
    pub(crate) fn pid_of(self, started: u32) -> Option<u32> {
        match self {
            Self::Equal | Self::Users => Some(started),
            Self::Namespaces => {
                let children =
                    std::fs::read_to_string(format!("/proc/{started}/task/{started}/children"))
                        .ok()?;
                children.split_whitespace().next()?.parse().ok()
            }
        }
    }
}
