//! (removed before this lands) What the log does not offer yet.
#![allow(missing_docs, dead_code, reason = "temporary")]
use plimsoll_log::{error::LogError, file_log::FileLog, glsn::{Glsn, Position}};
use std::path::PathBuf;
pub(crate) struct BackupFiles { pub(crate) immutable: Vec<PathBuf>, pub(crate) active: Option<(PathBuf, u64)>, pub(crate) position: Position }
pub(crate) struct Found { pub(crate) findings: Vec<String>, pub(crate) files: u64, pub(crate) bytes: u64 }
pub(crate) struct Cut { pub(crate) last: Glsn, pub(crate) moved: Vec<PathBuf> }
fn no<T>() -> Result<T, LogError> { Err(LogError::Format { message: "pending".into() }) }
pub(crate) trait Pending {
    fn files_for_backup(&self) -> Result<BackupFiles, LogError> { no() }
    fn verify(&self, _: &mut dyn FnMut(u64)) -> Result<Found, LogError> { Ok(Found { findings: vec![], files: 0, bytes: 0 }) }
}
impl Pending for FileLog {}
pub(crate) mod salvage {
    use super::*;
    pub(crate) fn salvage(_: &std::sync::Arc<dyn plimsoll_disk::vfs::Disk>, _: &std::path::Path, _: &plimsoll_memory::budget::Budget, _: Glsn) -> Result<Cut, LogError> { no() }
    pub(crate) fn first_glsn(_: &dyn plimsoll_disk::vfs::Disk, _: &std::path::Path) -> Result<Glsn, LogError> { Ok(Glsn(1)) }
}
