//! The processes that have a store open together.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use plimsoll_log::glsn::Glsn;
use plimsoll_log::members::{Member, members_of};

use crate::types::error::{Error, Lift, Result};
use crate::types::options::Options;

/// A process that has the store open with [`Options::shared`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberInfo {
    /// Its process id in its own container, which may denote another process elsewhere.
    pub pid: u32,
    /// Whether it is the keeper: the member that does the background work of the index for all.
    pub is_keeper: bool,
    /// Whether it has the store open read-only. If so, it follows the others, and is never the
    /// keeper.
    pub is_reader: bool,
    /// Whether it is this process.
    pub is_here: bool,
    /// Its current memory budget in bytes.
    pub memory_bytes: u64,
    /// The last commit that it had applied at its last report, which is every half second while
    /// commits are made. Its reads are always up to date regardless.
    pub applied: Glsn,
    /// The oldest moment that it can read. Versions from that moment on are retained, and so is the
    /// log after it.
    pub floor: Glsn,
    /// When it opened the store.
    pub since: SystemTime,
}

impl From<Member> for MemberInfo {
    fn from(member: Member) -> Self {
        Self {
            pid: member.pid,
            is_keeper: member.is_keeper,
            is_reader: member.is_reader,
            is_here: member.is_here,
            memory_bytes: member.budget_bytes,
            applied: member.applied,
            floor: member.floor,
            since: UNIX_EPOCH + Duration::from_micros(member.since_micros),
        }
    }
}

/// The processes that have the store at `path` open with [`Options::shared`], the oldest first.
/// Does not open the store. Empty if this process has no permission to read the list.
///
/// # Errors
/// The disk.
pub fn members(path: impl AsRef<Path>, options: &Options) -> Result<Vec<MemberInfo>> {
    match members_of(&options.disk, path.as_ref()).lift() {
        Ok(members) => Ok(members.into_iter().map(MemberInfo::from).collect()),
        Err(Error::Io {
            kind: std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem,
            ..
        }) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
