//! Crash tests: the power is cut at every sync of random operations, including those of the log.
//! The recovered index has exactly the commits of the log.

use plimsoll_disk::lying::LyingDisk;

use super::*;

const STEPS: u64 = 60;

fn sizes(seed: u64) -> Sizes {
    let memtable_bytes = [3 << 10, 12 << 10][seed as usize % 2];
    Sizes { memtable_bytes, table_bytes: [64 << 10, 300 << 10][seed as usize / 2 % 2], keys: 80 }
}

impl World {
    /// A world whose log and index share a disk.
    fn on(disk: &LyingDisk, seed: u64) -> Self {
        Self::with_log_on(Arc::new(disk.clone()), Arc::new(disk.clone()), seed, sizes(seed))
    }

    /// Closes everything, and opens the log as the power cut left it. The model forgets lost
    /// commits.
    fn restore_power(&mut self, disk: &LyingDisk, seed: u64) {
        self.index = None;
        assert!(self.log.close().is_err(), "the power is cut");
        disk.restore_power();
        self.log = open_log(Arc::clone(&self.disk), &self.pool, seed, self.sizes);
        let durable = self.log.bounds().durable;
        self.commits.retain(|commit| commit.glsn <= durable);
        for versions in self.versions.values_mut() {
            versions.retain(|glsn, _| *glsn <= durable);
        }
        self.applied = durable;
    }

    fn walk(&mut self, steps: u64, disk: &LyingDisk, seed: u64) {
        for _ in 0..steps {
            if let Err(error) = self.step() {
                assert!(disk.power_is_cut(), "seed {seed}: {error}");
                return;
            }
        }
    }
}

#[test]
fn everything_durable_survives_a_power_cut_at_any_sync() {
    for seed in seeds(4) {
        println!("seed {seed}");
        let disk = LyingDisk::new(seed);
        let mut world = World::on(&disk, seed);
        let first = disk.sync_count() + 1;
        world.walk(STEPS, &disk, seed);
        let last = disk.sync_count();
        for cut in first..=last {
            let disk = LyingDisk::new(seed + 1000 * cut);
            let mut world = World::on(&disk, seed);
            disk.cut_power_at_sync(cut);
            world.walk(STEPS, &disk, seed);
            world.restore_power(&disk, seed);
            world.open().unwrap_or_else(|error| panic!("seed {seed}, cut at {cut}: {error}"));
            assert_eq!(world.problems(), [""; 0], "seed {seed}, cut at {cut}");
            assert_eq!(
                world.run_files(),
                world.named_files(),
                "seed {seed}, cut at {cut}: leftovers are swept"
            );
            world.check_all();
            world.walk(STEPS / 4, &disk, seed);
            world.check_all();
        }
    }
}

#[test]
fn a_full_disk_loses_nothing_and_writes_resume_once_there_is_space() {
    for seed in seeds(10) {
        println!("seed {seed}");
        let disk = LyingDisk::new(seed);
        let mut world = World::new(Arc::new(disk.clone()), seed, sizes(seed));
        let mut refused = 0;
        for round in 0..6 {
            world.walk(STEPS / 2, &disk, seed);
            disk.fill_up(Some(round * 40_000));
            for _ in 0..STEPS {
                if let Err(error) = world.step() {
                    let is_full = |error: &crate::types::error::Error| {
                        matches!(
                            error,
                            crate::types::error::Error::Io {
                                kind: std::io::ErrorKind::StorageFull,
                                ..
                            }
                        )
                    };
                    assert!(is_full(&error), "seed {seed}: {error}");
                    refused += 1;
                }
                if world.index.is_none() {
                    disk.fill_up(None);
                    world.open().unwrap();
                }
            }
            disk.fill_up(None);
            world.check_all();
        }
        assert!(refused > 0, "seed {seed}");
        assert_eq!(world.problems(), [""; 0]);
        world.index().memtables.flush_up_to(world.applied).unwrap();
        world.index().compaction.run_all(Glsn::MAX).unwrap();
        assert_eq!(world.run_files(), world.named_files(), "seed {seed}");
        assert_eq!(world.index().stats().last_error, None);
    }
}
