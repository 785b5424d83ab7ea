//! Names that end with `.cut`, for files that a repair takes out of a log.
//!
//! Law: a name that is taken is never used again.

use std::path::Path;

use plimsoll_disk::vfs::{Caching, Disk, File, Open};

use crate::error::LogError;
use crate::file_log::files::names::FileName;
use crate::file_log::files::rewrite::copy_front;

/// Renames a file, if it is there.
pub(crate) fn move_aside(disk: &dyn Disk, dir: &Path, name: FileName, aside: &mut Vec<String>) -> Result<(), LogError> {
    let path = name.path(dir);
    if disk.entry(&path)?.is_some() {
        let (free, target) = free_name(disk, dir, &name.name())?;
        disk.rename(&path, &target)?;
        disk.sync_dir(dir)?;
        aside.push(free);
    }
    Ok(())
}

/// An unused name that ends with `.cut`.
fn free_name(disk: &dyn Disk, dir: &Path, name: &str) -> Result<(String, std::path::PathBuf), LogError> {
    let mut number = 0u32;
    loop {
        let free = if number == 0 { format!("{name}.cut") } else { format!("{name}.{number}.cut") };
        let path = dir.join(&free);
        if disk.entry(&path)?.is_none() {
            return Ok((free, path));
        }
        number += 1;
    }
}

/// Gives a file that is about to be replaced a second name; a copy where the disk has no links.
pub(crate) fn keep_aside(
    disk: &dyn Disk,
    dir: &Path,
    name: FileName,
    file: &dyn File,
    staging: &mut [u8],
    aside: &mut Vec<String>,
) -> Result<(), LogError> {
    let (free, target) = free_name(disk, dir, &name.name())?;
    if disk.hard_link(&name.path(dir), &target).is_err() {
        copy_aside(disk, &target, file, staging)?;
    }
    disk.sync_dir(dir)?;
    aside.push(free);
    Ok(())
}

fn copy_aside(disk: &dyn Disk, target: &Path, file: &dyn File, staging: &mut [u8]) -> Result<(), LogError> {
    let copy = disk.open(target, Open::CreateNew, Caching::Buffered)?;
    copy_front(file, &*copy, file.len()?, staging)?;
    Ok(copy.sync()?)
}
