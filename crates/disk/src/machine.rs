//! Memory of the machine, and the memory limit of this process's container.
#![allow(clippy::disallowed_methods, reason = "reads files of the kernel, not of a store")]

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes of memory of the machine; `None` if the system does not report it.
pub fn total_memory_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// The lowest memory limit of this process's cgroup (version 1 or 2) and its ancestors; `None` if
/// there is none.
pub fn cgroup_limit_bytes() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    groups.lines().filter_map(|line| limit_of_line(line, Path::new("/sys/fs/cgroup"))).min()
}

/// Parses `hierarchy:controllers:path`, e.g. `0::/app` (version 2) or `4:memory:/app` (version 1).
/// If the path is not visible from within the container, its limit is at the root.
fn limit_of_line(line: &str, mount: &Path) -> Option<u64> {
    let (groups, version) = memory_groups(line, mount)?;
    groups.iter().filter_map(|group| read_limit(&group.join(version.limit_file()))).min()
}

/// The two interfaces of cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cgroups {
    V1,
    V2,
}

impl Cgroups {
    /// The file with the limit above which processes are killed.
    pub(crate) fn limit_file(self) -> &'static str {
        match self {
            Self::V1 => "memory.limit_in_bytes",
            Self::V2 => "memory.max",
        }
    }
}

/// The folders of the memory cgroups in a line of `/proc/self/cgroup`, from the innermost to the
/// root.
pub(crate) fn memory_groups(line: &str, mount: &Path) -> Option<(Vec<PathBuf>, Cgroups)> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let (root, version) = match controllers {
        "" => (mount.to_owned(), Cgroups::V2),
        _ if controllers.split(',').any(|name| name == "memory") => {
            (mount.join("memory"), Cgroups::V1)
        }
        _ => return None,
    };
    let group = root.join(path.trim_start_matches('/'));
    let groups =
        group.ancestors().take_while(|dir| dir.starts_with(&root)).map(Path::to_owned).collect();
    Some((groups, version))
}

pub(crate) fn read_limit(path: &Path) -> Option<u64> {
    let bytes = fs::read_to_string(path).ok()?.trim().parse().ok()?;
    // Version 1 writes "no limit" as the largest multiple of a page.
    (bytes < 1 << 60).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_has_memory() {
        assert!(total_memory_bytes().is_none_or(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn a_line_of_another_controller_has_no_limit() {
        let mount = Path::new("/sys/fs/cgroup");
        assert_eq!(limit_of_line("3:cpu,cpuacct:/", mount), None);
        assert_eq!(limit_of_line("garbage", mount), None);
    }

    #[test]
    fn lowest_cgroup_limit_applies() {
        let dir = tempfile::tempdir().unwrap();
        let mount = dir.path();
        let write = |path: &str, text: &str| {
            fs::create_dir_all(mount.join(path).parent().unwrap()).unwrap();
            fs::write(mount.join(path), text).unwrap();
        };
        write("a/b/memory.max", "max\n");
        write("a/memory.max", "1073741824\n");
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        write("memory/x/memory.limit_in_bytes", "2147483648\n");
        write("memory/x/y/memory.limit_in_bytes", "4294967296\n");
        let limits = [
            ("0::/a/b", Some(1 << 30)),
            ("0::/", None),
            ("0::/not/seen/from/here", None),
            ("4:memory:/", None),
            ("4:cpu,memory:/x/y", Some(2 << 30)),
            ("4:memory:/x/docker-id", Some(2 << 30)),
        ];
        for (line, limit) in limits {
            assert_eq!(limit_of_line(line, mount), limit, "{line}");
        }
    }
}
