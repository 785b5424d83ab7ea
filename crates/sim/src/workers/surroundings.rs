//! What is around a worker's process: a namespace of process ids, a user.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use crate::failure::{Failure, Outcome};

/// The group of workers that are different users, and the first of the users. Nobody's on any
/// machine.
const GROUP: u32 = 65_430;
const FIRST_USER: u32 = 65_431;

/// How many different users there are.
const USERS: u64 = 2;

/// What differs between workers beside their numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Surroundings {
    /// Nothing.
    #[default]
    Equal,
    /// Each has a namespace of process ids of its own, as in a container, in which its id is 1.
    /// Needs root.
    Namespaces,
    /// They are two users of one group, and the folder is the group's. Needs root.
    Users,
}

impl Surroundings {
    /// Makes the folder in which the store will be ready for them.
    pub(crate) fn prepare(self, dir: &Path) -> Outcome {
        if self != Self::Users {
            return Ok(());
        }
        let told = |error: std::io::Error| Failure::new(format!("{}: {error}", dir.display()));
        chown(dir, None, Some(GROUP)).map_err(told)?;
        std::fs::set_permissions(dir, Permissions::from_mode(0o2770)).map_err(told)
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

    /// The process id of a worker here, from that of what was started for it; `None` if it is not
    /// there yet.
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
