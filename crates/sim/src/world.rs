//! The world of a store: a simulated disk with faults, a manual clock, and the settings of the
//! store.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use plimsoll::{Db, Durability, Options, Result, Sizes};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::random::Random;
use plimsoll_disk::vfs::Disk;

/// The time of the clock when a world begins: some day in 2026.
const START_MICROS: u64 = 1_780_000_000_000_000;

/// The settings of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The memory budget.
    pub memory_bytes: u64,
    /// Bytes at which a memtable is flushed.
    pub memtable_bytes: u64,
    /// Bytes of a segment of the log.
    pub segment_bytes: u64,
    /// The durability of commits.
    pub durability: Durability,
    /// Internal thresholds and sizes.
    pub sizes: Sizes,
}

impl Setting {
    /// The smallest budget, with small memtables and segments, so that much happens in a short run.
    pub const SMALL: Setting = Setting {
        memory_bytes: 16 << 20,
        memtable_bytes: 64 << 10,
        segment_bytes: 64 << 10,
        durability: Durability::Sync,
        sizes: Sizes::USUAL,
    };

    /// The setting for a seed.
    pub fn of_seed(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x05e7_71b6);
        let mut one_of = |sizes: &[u64]| sizes[random.below(sizes.len() as u64) as usize];
        Self {
            memory_bytes: one_of(&[16 << 20, 16 << 20, 17 << 20, 32 << 20]),
            memtable_bytes: one_of(&[16 << 10, 64 << 10, 256 << 10, 1 << 20]),
            segment_bytes: one_of(&[64 << 10, 256 << 10, 256 << 10, 4 << 20]),
            durability: if one_of(&[0, 0, 0, 1]) == 0 {
                Durability::Sync
            } else {
                Durability::Buffered
            },
            sizes: sizes_of(&mut one_of),
        }
    }
}

/// Mostly small sizes, so that border cases are reached often.
fn sizes_of(one_of: &mut impl FnMut(&[u64]) -> u64) -> Sizes {
    let mut if_any = |sizes: &[u64]| Some(one_of(sizes)).filter(|bytes| *bytes > 0);
    let write_set_bytes = if_any(&[64 << 10, 128 << 10, 128 << 10, 256 << 10, 0, 0]);
    let read_set_bytes = if_any(&[4 << 10, 4 << 10, 0]);
    Sizes {
        table_bytes: one_of(&[128 << 10, 128 << 10, 1 << 20, 64 << 20]),
        step_bytes: one_of(&[16 << 10, 16 << 10, 256 << 10, 4 << 20]),
        write_set_bytes,
        read_set_bytes,
        restore_loads: one_of(&[1, 2, 64]),
        sweeps_at_open: one_of(&[0, 1]) == 0,
        blind_after: one_of(&[0, 0, 2, 1000]) as u32,
        range_keys: 1,
    }
}

/// A disk and a clock, and a store on them.
#[derive(Clone, Debug)]
pub struct World {
    /// The disk.
    pub disk: LyingDisk,
    /// The clock.
    pub clock: Arc<ManualClock>,
    /// The settings of the store.
    pub setting: Setting,
    /// Time by which the clock advances at each open, because a process takes time to start.
    pub opening_takes: Duration,
}

impl World {
    /// An empty world.
    pub fn new(seed: u64, setting: Setting) -> Self {
        let clock = Arc::new(ManualClock::new(START_MICROS));
        let disk = LyingDisk::new(seed);
        disk.refuse_room(seed.is_multiple_of(4));
        Self { disk, clock, setting, opening_takes: Duration::from_millis(1) }
    }

    /// A separate world with the same contents.
    pub fn copy(&self) -> Self {
        use plimsoll_disk::clock::Clock;
        let clock = ManualClock::new(self.clock.wall_micros());
        Self { disk: self.disk.snapshot(), clock: Arc::new(clock), ..*self }
    }

    /// The store's path.
    pub fn store_path(&self) -> PathBuf {
        PathBuf::from("/store")
    }

    /// The options of a store in this world. Background work is done on demand only, so one seed
    /// replays a whole run.
    pub fn options(&self) -> Options {
        self.clock.advance(self.opening_takes);
        Options::new()
            .memory_bytes(self.setting.memory_bytes)
            .memtable_bytes(self.setting.memtable_bytes)
            .segment_bytes(self.setting.segment_bytes)
            .durability(self.setting.durability)
            .background(false)
            .sizes(self.setting.sizes)
            // The clock does not advance during work, so the warm image must not wait for it.
            .warm_bytes_per_second(1 << 50)
            .world(Arc::new(self.disk.clone()), Arc::clone(&self.clock) as _)
    }

    /// Opens the store.
    ///
    /// # Errors
    /// Any error of the store.
    pub fn open(&self) -> Result<Db> {
        Db::open(self.store_path(), self.options())
    }

    /// Every file below a folder, with its length, by path.
    ///
    /// # Errors
    /// The disk.
    pub fn files(&self, dir: &Path) -> std::io::Result<Vec<(PathBuf, u64)>> {
        let mut files = Vec::new();
        for entry in self.disk.list(dir)? {
            let path = dir.join(&entry.name);
            if entry.is_dir {
                files.extend(self.files(&path)?);
            } else {
                files.push((path, entry.len));
            }
        }
        Ok(files)
    }

    /// Removes a folder and its contents.
    ///
    /// # Errors
    /// The disk.
    pub fn remove_all(&self, dir: &Path) -> std::io::Result<()> {
        for entry in self.disk.list(dir)? {
            let path = dir.join(&entry.name);
            if entry.is_dir {
                self.remove_all(&path)?;
            } else {
                self.disk.remove(&path)?;
            }
        }
        self.disk.remove_dir(dir)
    }
}
