//! Restores a folder to an earlier state, in whole or in part.
//!
//! After a restore of the whole folder, the store is the earlier one and diverges from there, at
//! times with the warm image of the abandoned history. After a restore of one part, the store must
//! not open if the index knows of commits that the log does not have; otherwise the index is only
//! behind, and every answer is right. Partial restores are tried in a copy of the world.

use std::path::Path;

use plimsoll::Error;
use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::vfs::{Caching, Disk, Open};

use crate::driver::image::IMAGE_DIR;
use crate::driver::{Driver, inspect};
use crate::failure::{Failure, Outcome, ensure};
use crate::model::Model;
use crate::op::Part;
use crate::world::World;

/// An earlier state of a store's folder.
pub(super) struct SavedState {
    disk: LyingDisk,
    model: Model,
    times_ordered: bool,
    trim_asked: u64,
}

impl Driver {
    /// Keeps a copy of the present folder.
    pub(super) fn keep_aside(&mut self) -> Outcome<String> {
        if self.close_for_copying()? {
            self.kept = Some(self.as_it_is());
            self.open_store(0)?;
            return Ok("kept".to_owned());
        }
        Ok("failed".to_owned())
    }

    /// Restores the kept state.
    pub(super) fn restore(&mut self, part: Part) -> Outcome<String> {
        let Some(kept) = self.kept.take() else { return Ok("nothing was kept".to_owned()) };
        if !self.close_for_copying()? {
            self.kept = Some(kept);
            return Ok("failed".to_owned());
        }
        match part {
            // Keep the replaced state instead, which is another history from the same beginning.
            Part::Whole => {
                let replaced = self.as_it_is();
                self.world.disk = kept.disk.snapshot();
                (self.model, self.times_ordered, self.trim_asked) =
                    (kept.model, kept.times_ordered, kept.trim_asked);
                if self.model.newest() % 2 == 1 {
                    self.leave_image(&replaced.disk)?;
                }
                self.kept = Some(replaced);
            }
            Part::Log => {
                self.try_together(&self.model, &kept.model, &kept.disk, "log")?;
                self.kept = Some(kept);
            }
            Part::Index => {
                self.try_together(&kept.model, &self.model, &kept.disk, "index")?;
                self.kept = Some(kept);
            }
        }
        self.open_store(0)?;
        Ok("restored".to_owned())
    }

    /// Replaces the store's warm image by that of `other`. The new image refers to commits that
    /// this log does not have, or has replaced by others.
    fn leave_image(&self, other: &LyingDisk) -> Outcome {
        let dir = self.world.store_path().join(IMAGE_DIR);
        let failed =
            |error: std::io::Error| Failure::new(format!("leaving the warm image: {error}"));
        let both =
            [other, &self.world.disk].into_iter().map(|disk| Ok(disk.entry(&dir)?.is_some()));
        let both: Vec<bool> = both.collect::<Result<_, _>>().map_err(failed)?;
        if both.contains(&false) {
            Ok(())
        } else {
            copy_folder(other, &self.world, &dir).map_err(failed)
        }
    }

    /// Closes the store cleanly; if that fails the store is reopened, and the result is `false`.
    pub(super) fn close_for_copying(&mut self) -> Outcome<bool> {
        self.heal();
        // A scheduled cut would happen in the middle of the copy.
        self.world.disk.cut_power_at_sync(u64::MAX);
        self.close()?;
        if self.closed_cleanly {
            return Ok(true);
        }
        self.open_store(0)?;
        Ok(false)
    }

    fn as_it_is(&self) -> SavedState {
        let (disk, model) = (self.world.disk.snapshot(), self.model.clone());
        SavedState { disk, model, times_ordered: self.times_ordered, trim_asked: self.trim_asked }
    }

    /// Opens a copy of the store with one folder taken from `other`.
    fn try_together(
        &self,
        of_index: &Model,
        of_log: &Model,
        other: &LyingDisk,
        folder: &str,
    ) -> Outcome {
        let world = self.world.copy();
        let dir = world.store_path().join(folder);
        copy_folder(other, &world, &dir)
            .map_err(|error| Failure::new(format!("copying: {error}")))?;
        let known = of_index.last_commit();
        let common = of_index.common_entries(of_log);
        let mut model = of_log.clone();
        model.raise_floors_to(of_index);
        let failed = |failure: Failure| Failure::new(format!("with another {folder}: {failure}"));
        match inspect(&world, &model, model.newest(), &|_| true).map_err(failed)? {
            Err(error) => ensure(is_refusal(&error), || {
                format!(
                    "with another {folder} the store fails to open with the wrong error: {error} \
                     [{error:?}]"
                )
            }),
            Ok(_) => ensure(known <= common, || {
                format!(
                    "the index knows of commit {known}, the log agrees only up to {common}, and \
                     the store opens"
                )
            }),
        }
    }
}

fn is_refusal(error: &Error) -> bool {
    let missing = matches!(error, Error::Io { kind: std::io::ErrorKind::NotFound, .. });
    missing
        || matches!(
            error,
            Error::Corrupt { .. }
                | Error::Format { .. }
                | Error::Forked { .. }
                | Error::Trimmed { .. }
        )
}

fn copy_folder(from: &LyingDisk, world: &World, dir: &Path) -> std::io::Result<()> {
    world.remove_all(dir)?;
    world.disk.create_dir(dir)?;
    for entry in from.list(dir)?.into_iter().filter(|entry| !entry.is_dir) {
        let path = dir.join(&entry.name);
        let mut bytes = vec![0; entry.len as usize];
        from.open(&path, Open::Read, Caching::Buffered)?.read_exact_at(&mut bytes, 0)?;
        world.disk.open(&path, Open::CreateNew, Caching::Buffered)?.write_at(&bytes, 0)?;
    }
    Ok(())
}
