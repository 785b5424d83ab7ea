//! Memory that the page cache may grow into: the machine's available memory, and the room below the
//! limit of each cgroup of this process.
//!
//! Pages of the page cache are charged to the cgroup that reads them. The system drops clean pages
//! when memory is needed, so they do not count as used here; dirty pages do.
#![allow(clippy::disallowed_methods, reason = "reads files of the kernel, not of a store")]

use std::fmt::Debug;
use std::fs;
use std::path::Path;

use crate::machine::{Cgroups, memory_groups, read_limit};

/// An amount of memory, and the part of it in use that cannot be dropped at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Total bytes: the machine's, or a cgroup's limit.
    pub limit_bytes: u64,
    /// Bytes in use, excluding the clean page cache.
    pub used_bytes: u64,
}

impl Room {
    /// Unused bytes.
    pub fn free_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes)
    }
}

/// All memory limits of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rooms {
    /// The machine's; `None` if the system does not report it.
    pub machine: Option<Room>,
    /// The limits of the process's cgroups (version 1 and 2), up to the root.
    pub cgroups: Vec<Room>,
}

/// A source of the current limits.
pub trait RoomGauge: Send + Sync + Debug {
    /// Reads the current values.
    fn read(&self) -> Rooms;
}

/// This machine, and the process's cgroups at the time of each read.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsRoomGauge;

impl RoomGauge for OsRoomGauge {
    fn read(&self) -> Rooms {
        let machine =
            fs::read_to_string("/proc/meminfo").ok().and_then(|text| room_of_machine(&text));
        let lines = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let mount = Path::new("/sys/fs/cgroup");
        Rooms {
            machine,
            cgroups: lines.lines().flat_map(|line| rooms_of_line(line, mount)).collect(),
        }
    }
}

fn room_of_machine(meminfo: &str) -> Option<Room> {
    let total = number_after(meminfo, "MemTotal:")?;
    let available = number_after(meminfo, "MemAvailable:")?;
    Some(Room { limit_bytes: total * 1024, used_bytes: total.saturating_sub(available) * 1024 })
}

/// A line of `/proc/self/cgroup`: one hierarchy.
fn rooms_of_line(line: &str, mount: &Path) -> Vec<Room> {
    let Some((groups, version)) = memory_groups(line, mount) else { return Vec::new() };
    groups.iter().filter_map(|group| room_of_group(group, version)).collect()
}

fn room_of_group(group: &Path, version: Cgroups) -> Option<Room> {
    let mut limit = read_limit(&group.join(version.limit_file()));
    if version == Cgroups::V2 {
        // Above this, the kernel throttles processes of the cgroup.
        limit = [limit, read_limit(&group.join("memory.high"))].into_iter().flatten().min();
    }
    let limit_bytes = limit?;
    let used = match version {
        Cgroups::V1 => "memory.usage_in_bytes",
        Cgroups::V2 => "memory.current",
    };
    // A cgroup whose use is unknown counts as full.
    let used_bytes =
        fs::read_to_string(group.join(used)).ok().and_then(|text| text.trim().parse().ok());
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    Some(Room {
        limit_bytes,
        used_bytes: used_bytes.unwrap_or(limit_bytes).saturating_sub(clean_cache(&stat, version)),
    })
}

/// Bytes of a cgroup's page cache that can be dropped at once.
fn clean_cache(stat: &str, version: Cgroups) -> u64 {
    let (lists, unwritten) = match version {
        Cgroups::V1 => {
            (["total_inactive_file", "total_active_file"], ["total_dirty", "total_writeback"])
        }
        Cgroups::V2 => (["inactive_file", "active_file"], ["file_dirty", "file_writeback"]),
    };
    let sum = |names: [&str; 2]| {
        names.into_iter().filter_map(|name| number_after(stat, name)).sum::<u64>()
    };
    sum(lists).saturating_sub(sum(unwritten))
}

/// The number after a name at the start of a line.
fn number_after(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next() == Some(name)).then(|| words.next()?.parse().ok())?
    });
    lines.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn machine_reports_its_memory() {
        let meminfo =
            "MemTotal:       4096 kB\nMemFree:  10 kB\nMemAvailable:    1024 kB\nDirty: 5 kB\n";
        let room = room_of_machine(meminfo).unwrap();
        assert_eq!((room.limit_bytes, room.used_bytes, room.free_bytes()), (4 * MIB, 3 * MIB, MIB));
        assert_eq!(room_of_machine("MemTotal: 4096 kB\n"), None);
        let room = OsRoomGauge.read().machine;
        assert!(room.is_none_or(|room| room.used_bytes <= room.limit_bytes), "{room:?}");
    }

    #[test]
    fn only_clean_page_cache_is_room() {
        let dir = tempfile::tempdir().unwrap();
        let mount = dir.path();
        let write = |path: &str, text: &str| {
            fs::create_dir_all(mount.join(path).parent().unwrap()).unwrap();
            fs::write(mount.join(path), text).unwrap();
        };
        let room = |limit, used| Room { limit_bytes: limit * MIB, used_bytes: used * MIB };
        write("a/b/memory.max", "104857600\n");
        write("a/b/memory.current", "94371840\n");
        write(
            "a/b/memory.stat",
            "anon 1048576\nfile 0\ninactive_file 31457280\nactive_file 10485760\nfile_dirty \
             1048576\n",
        );
        write("a/memory.max", "max\n");
        write("a/memory.high", "209715200\n");
        write("a/memory.current", "104857600\n");
        assert_eq!(rooms_of_line("0::/a/b", mount), [room(100, 90 - 39), room(200, 100)]);
        write("memory/x/memory.limit_in_bytes", "104857600\n");
        write("memory/x/memory.usage_in_bytes", "94371840\n");
        // Its own use plus that of nested groups, as the limit counts it.
        write(
            "memory/x/memory.stat",
            "inactive_file 1\ntotal_inactive_file 31457280\ntotal_active_file 0\ntotal_dirty 0\n",
        );
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(rooms_of_line("4:cpu,memory:/x", mount), [room(100, 60)]);
        assert_eq!(rooms_of_line("4:cpu:/x", mount), []);
    }

    #[test]
    fn cgroup_without_usage_has_no_room() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("memory.max"), "104857600\n").unwrap();
        let rooms = rooms_of_line("0::/", dir.path());
        assert_eq!(rooms.iter().map(Room::free_bytes).collect::<Vec<_>>(), [0]);
    }
}
