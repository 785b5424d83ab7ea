//! A memory limit enforced by the kernel: a separate memory cgroup (version 1 or 2) for one child.
//!
//! It is created inside the bench's own cgroup, so that every limit above still applies, and
//! removed on drop. If that is not permitted, [`MemoryCgroup::make`] returns the reason.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

/// Number of cgroups created by this process, for unique names.
static MADE: AtomicU64 = AtomicU64::new(0);

/// A cgroup with a hard limit, page cache included.
#[derive(Debug)]
pub(crate) struct MemoryCgroup {
    folder: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl MemoryCgroup {
    /// Creates a cgroup. The error names what is missing.
    pub(crate) fn make(limit_bytes: u64) -> Result<Self> {
        let (parent, version) = find_own()?;
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let folder = parent.join(format!("plimsoll-bench-{}-{number}", std::process::id()));
        fs::create_dir(&folder)
            .with_context(|| format!("not permitted to make {}", folder.display()))?;
        let cgroup = Self { folder, version };
        cgroup.limit(limit_bytes)?;
        Ok(cgroup)
    }

    fn limit(&self, limit_bytes: u64) -> Result<()> {
        let (limit, swap, swap_bytes) = match self.version {
            Version::One => ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", limit_bytes),
            Version::Two => ("memory.max", "memory.swap.max", 0),
        };
        let file = self.folder.join(limit);
        fs::write(&file, limit_bytes.to_string())
            .with_context(|| format!("not permitted to write {}", file.display()))?;
        // Missing in a kernel that does not count swap; then there is nothing to limit.
        let _ = fs::write(self.folder.join(swap), swap_bytes.to_string());
        Ok(())
    }

    /// Its folder; a process that calls [`join`] with it enters the cgroup.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The peak memory, page cache included; `None` if the kernel does not report it.
    pub(crate) fn peak_bytes(&self) -> Option<u64> {
        let name = match self.version {
            Version::One => "memory.max_usage_in_bytes",
            Version::Two => "memory.peak",
        };
        fs::read_to_string(self.folder.join(name)).ok()?.trim().parse().ok()
    }

    /// The number of its processes that the kernel killed for lack of memory.
    pub(crate) fn kills(&self) -> u64 {
        let name = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        kills(&fs::read_to_string(self.folder.join(name)).unwrap_or_default())
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        // A process that has just ended may still be listed for a moment.
        for _ in 0..50 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("{} is left over: remove it with rmdir", self.folder.display());
    }
}

/// The folder of the cgroup that this process runs in.
pub(crate) fn own() -> Result<PathBuf> {
    Ok(find_own()?.0)
}

fn find_own() -> Result<(PathBuf, Version)> {
    let own = fs::read_to_string("/proc/self/cgroup").context("no cgroups here")?;
    find_parent(&own, Path::new("/sys/fs/cgroup"))
}

/// Moves this process into a cgroup.
pub(crate) fn join(folder: &Path) -> Result<()> {
    let file = folder.join("cgroup.procs");
    fs::write(&file, "0").with_context(|| format!("cannot join by {}", file.display()))
}

fn find_parent(own: &str, mount: &Path) -> Result<(PathBuf, Version)> {
    let path_of = |wanted: &dyn Fn(&str, &str) -> bool| {
        own.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (id, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            wanted(id, controllers).then(|| path.trim_start_matches('/').to_owned())
        })
    };
    if let Some(path) =
        path_of(&|_, controllers| controllers.split(',').any(|name| name == "memory"))
    {
        return Ok((existing(&mount.join("memory"), &path)?, Version::One));
    }
    let Some(path) = path_of(&|id, controllers| id == "0" && controllers.is_empty()) else {
        bail!("no memory cgroups here");
    };
    let parent = existing(mount, &path)?;
    let controllers = fs::read_to_string(parent.join("cgroup.controllers")).unwrap_or_default();
    if !controllers.split_whitespace().any(|name| name == "memory") {
        bail!("the cgroup {} has no memory controller", parent.display());
    }
    Ok((parent, Version::Two))
}

/// The cgroup's folder. Inside a container the path may be the host's; then the mount itself is the
/// own cgroup.
fn existing(mount: &Path, path: &str) -> Result<PathBuf> {
    let folder = mount.join(path);
    match (folder.is_dir(), mount.is_dir()) {
        (true, _) => Ok(folder),
        (false, true) => Ok(mount.to_owned()),
        (false, false) => bail!("no cgroups at {}", mount.display()),
    }
}

fn kills(text: &str) -> u64 {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_the_own_cgroup_of_either_version() {
        let mount = tempfile::tempdir().unwrap();
        fs::create_dir_all(mount.path().join("memory/a/b")).unwrap();
        fs::create_dir_all(mount.path().join("user")).unwrap();
        let one = "8:pids:/\n4:cpu,memory:/a/b\n0::/user\n";
        assert_eq!(
            find_parent(one, mount.path()).unwrap(),
            (mount.path().join("memory/a/b"), Version::One)
        );
        let two = "0::/user\n";
        assert!(find_parent(two, mount.path()).is_err());
        fs::write(mount.path().join("user/cgroup.controllers"), "cpu memory\n").unwrap();
        assert_eq!(
            find_parent(two, mount.path()).unwrap(),
            (mount.path().join("user"), Version::Two)
        );
    }

    #[test]
    fn kills_are_counted_as_both_versions_write_them() {
        assert_eq!(kills("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"), 2);
        assert_eq!(kills("low 0\nhigh 0\nmax 5\noom 1\noom_kill 1\noom_group_kill 0\n"), 1);
    }
}
