//! Power cuts on a real file system: a loop device, and the call that stops the file system as if
//! its device were gone (`EXT4_IOC_SHUTDOWN`, `XFS_IOC_GOINGDOWN`, by `xfs_io`). Data not yet on
//! the device is lost; the next mount replays the journal.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::time::Duration;

use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::random::Random;

use crate::failure::{Failure, Outcome};
use crate::kill::{Kills, Life, Numbers, Running, Scenario, look};
use crate::real::tool;

/// Bytes of the device; xfs needs at least 300 MiB.
const DEVICE_BYTES: u64 = 512 << 20;

/// Number of children that use a store in turn before a new store is made.
pub(crate) const LIVES_OF_A_STORE: u64 = 10;

/// Retries of unmounting a busy device.
const UNMOUNT_TRIES: u32 = 50;

/// A file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// ext4, with its journal.
    Ext4,
    /// xfs, with its log.
    Xfs,
}

impl FromStr for FileSystem {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "ext4" => Ok(Self::Ext4),
            "xfs" => Ok(Self::Xfs),
            _ => Err(format!("cannot cut the power of {text:?}, only of ext4 and xfs")),
        }
    }
}

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        })
    }
}

/// A file system in a file, mounted until this is dropped.
pub(crate) struct Device {
    image: PathBuf,
    pub(crate) folder: PathBuf,
    is_mounted: bool,
}

impl Device {
    #[allow(clippy::disallowed_methods, reason = "the file that is a device, no file of a store")]
    pub(crate) fn make(dir: &Path, file_system: FileSystem) -> Outcome<Self> {
        let (image, folder) =
            (dir.join(format!("{file_system}.img")), dir.join(format!("{file_system}.mnt")));
        let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", dir.display()));
        std::fs::create_dir_all(&folder).map_err(failed)?;
        File::create(&image).and_then(|file| file.set_len(DEVICE_BYTES)).map_err(failed)?;
        let mut device = Self { image, folder, is_mounted: false };
        match file_system {
            FileSystem::Ext4 => tool("mkfs.ext4", &["-q", "-F", &device.image()])?,
            FileSystem::Xfs => tool("mkfs.xfs", &["-q", "-f", &device.image()])?,
        };
        device.mount()?;
        Ok(device)
    }

    fn image(&self) -> String {
        self.image.display().to_string()
    }

    fn folder(&self) -> String {
        self.folder.display().to_string()
    }

    pub(crate) fn mount(&mut self) -> Outcome {
        tool("mount", &["-o", "loop", &self.image(), &self.folder()])?;
        self.is_mounted = true;
        Ok(())
    }

    pub(crate) fn unmount(&mut self) -> Outcome {
        let mut tries = 0;
        while let Err(failure) = tool("umount", &[&self.folder()]) {
            tries += 1;
            if tries == UNMOUNT_TRIES {
                return Err(failure);
            }
            SystemClock::new().sleep(Duration::from_millis(100));
        }
        self.is_mounted = false;
        Ok(())
    }

    /// Cuts the power, at once or after a flush of the file system's log (which excludes data).
    pub(crate) fn cut(&self, log_first: bool) -> Outcome {
        let command = if log_first { "shutdown -f" } else { "shutdown" };
        tool("xfs_io", &["-x", "-c", command, &self.folder()]).map(drop)
    }
}

impl Drop for Device {
    #[allow(clippy::disallowed_methods, reason = "the file that was a device")]
    fn drop(&mut self) {
        // The next mount detects a failed unmount.
        if self.is_mounted {
            let _ = self.unmount();
        }
        let _ = std::fs::remove_file(&self.image);
        let _ = std::fs::remove_dir(&self.folder);
    }
}

/// Cuts the power of this many children, one after the other; `program` is the binary that can be a
/// child, `dir` a folder to work in.
///
/// # Errors
/// An acknowledged commit is gone, a transaction is partly present, the store does not open, or
/// such a device is unavailable.
pub fn cut_power(
    program: &Path,
    dir: &Path,
    file_system: FileSystem,
    cuts: u64,
    seed: u64,
) -> Outcome<Kills> {
    let mut random = Random::new(seed);
    let mut report = Kills::default();
    let mut numbers = Numbers::default();
    let mut device = Device::make(dir, file_system)?;
    for life in 0..cuts {
        let store = device.folder.join(format!("store{}", life / LIVES_OF_A_STORE));
        if life % LIVES_OF_A_STORE == 0 {
            make_way(&mut device, life)?;
            numbers = Numbers::default();
        }
        let scenario = [Scenario::Compact, Scenario::Write, Scenario::Buffered, Scenario::Buffered]
            [random.below(4) as usize];
        let lifetime = Life::choose(scenario, life, &mut random);
        let failed = |failure: Failure| {
            Failure::new(format!(
                "{file_system}, cut {life}, {lifetime:?}, seed {seed}, {scenario}: {failure}"
            ))
        };
        let child = Running::start(Command::new(program), scenario, &store).map_err(failed)?;
        child.await_end_of(lifetime);
        let before_the_cut = child.arrived();
        device.cut(random.below(3) == 0).map_err(failed)?;
        let acknowledged = child.kill().map_err(failed)?.acknowledged;
        // A sync that runs concurrently with the shutdown may return although its data is lost:
        // presumably the system ignores that it could not record new blocks as written. Overwritten
        // bytes, as with `Sync`, need no such record.
        let certain =
            if scenario == Scenario::Buffered { before_the_cut } else { acknowledged.len() };
        device.unmount().and_then(|()| device.mount()).map_err(failed)?;
        report.kills += 1;
        report.with_commits += u64::from(!acknowledged.is_empty());
        report.acknowledged += acknowledged.len() as u64;
        numbers = look(&store, &numbers, &acknowledged, certain, scenario).map_err(failed)?;
    }
    Ok(report)
}

/// Removes the previous store, so that the device does not fill up.
#[allow(clippy::disallowed_methods, reason = "a store of the test's own that is done with")]
pub(crate) fn make_way(device: &mut Device, life: u64) -> Outcome {
    let Some(number) = (life / LIVES_OF_A_STORE).checked_sub(1) else { return Ok(()) };
    let store = device.folder.join(format!("store{number}"));
    std::fs::remove_dir_all(&store)
        .map_err(|error| Failure::new(format!("{}: {error}", store.display())))
}
