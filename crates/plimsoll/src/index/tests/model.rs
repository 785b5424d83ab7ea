//! Random operations whose results are compared with the model.

use super::*;

const SIZES: [Sizes; 4] = [
    Sizes { memtable_bytes: 4 << 10, table_bytes: 64 << 10, keys: 40 },
    Sizes { memtable_bytes: 16 << 10, table_bytes: 100 << 10, keys: 400 },
    Sizes { memtable_bytes: 30 << 10, table_bytes: 1 << 20, keys: 300 },
    Sizes { memtable_bytes: 200 << 10, table_bytes: 300 << 10, keys: 3000 },
];

impl World {
    /// One random operation.
    pub(super) fn step(&mut self) -> Result<()> {
        self.horizon.visible.store(self.log.bounds().durable.0, Ordering::Relaxed);
        match self.random.below(100) {
            0..=49 => {
                let writes = self.random_writes(8, false);
                self.commit(writes)?;
            }
            50..=52 => self.append_other()?,
            53..=55 => {
                let runs =
                    (0..=self.random.below(3)).map(|_| self.random_writes(40, true)).collect();
                self.commit_spilled(runs)?;
            }
            56..=59 => {
                let index = Arc::clone(self.index());
                index.memtables.flush_up_to(self.applied)?;
                assert!(self.applied == Glsn::NONE || index.runs.checkpoint().glsn == self.applied);
            }
            60..=64 => drop(self.index().memtables.flush_step()?),
            65..=80 => drop(self.index().compaction.step()?),
            81 => self.index().compaction.run_all(Glsn::MAX)?,
            82 => {
                self.log.sync().lift()?;
                self.open()?;
            }
            83..=85 => self.move_snapshot(),
            86 => self.trim()?,
            87..=90 => self.log.sync().lift()?,
            91..=92 => self.pin(),
            93 => drop(lock(&self.horizon.pins).pop_first()),
            _ => {}
        }
        Ok(())
    }

    /// Closes old snapshots.
    fn move_snapshot(&mut self) {
        let oldest = self.horizon.snapshot.load(Ordering::Relaxed);
        let newest = self.horizon.visible.load(Ordering::Relaxed);
        let moved = oldest + self.random.below(newest - oldest + 1);
        self.horizon.snapshot.store(moved, Ordering::Relaxed);
    }

    /// Pins a moment that an open snapshot may read.
    fn pin(&mut self) {
        let oldest = self.horizon.snapshot.load(Ordering::Relaxed);
        let newest = self.horizon.visible.load(Ordering::Relaxed);
        let pinned = oldest + self.random.below(newest - oldest + 1);
        lock(&self.horizon.pins).insert(Glsn(pinned));
    }

    /// Trims the log like the store.
    fn trim(&mut self) -> Result<()> {
        let until = Glsn(self.random.below(self.applied.0 + 1));
        self.horizon.relocate_below.fetch_max(until.0, Ordering::Relaxed);
        self.index().memtables.flush_up_to(self.applied)?;
        if self.index().sources.view().min_pointer().is_some_and(|oldest| oldest < until) {
            self.index().compaction.relocate()?;
        }
        assert!(
            self.index().sources.view().min_pointer().is_none_or(|oldest| oldest >= until),
            "all values below were moved"
        );
        let until = until.min(self.index().runs.checkpoint().glsn.next());
        self.log.trim(until, &|blob| self.index().runs.uses_blob(blob)).lift()?;
        Ok(())
    }

    pub(super) fn check_some(&mut self) {
        for _ in 0..4 {
            self.check_get();
            self.check_changed();
        }
        match self.random.below(6) {
            0 => self.check_visible(),
            1 => self.check_versions(),
            2 => self.check_changed_in(),
            _ => {}
        }
    }
}

#[test]
fn random_operations_match_the_model() {
    for seed in seeds(24) {
        println!("seed {seed}");
        let mut world =
            World::new(Arc::new(MemDisk::new()), seed, SIZES[seed as usize % SIZES.len()]);
        for _ in 0..400 {
            world.step().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            world.check_some();
        }
        world.check_all();
        assert_eq!(world.problems(), [""; 0], "seed {seed}");
        while world.index().compaction.step().unwrap() == crate::index::env::Progress::Worked {}
        assert_eq!(world.run_files(), world.named_files(), "seed {seed}: no file is left behind");
        world.log.sync().unwrap();
        world.open().unwrap();
        world.check_all();
        assert_eq!(world.run_files(), world.named_files(), "seed {seed}");
        world.index().memtables.flush_up_to(world.applied).unwrap();
        world.index().compaction.run_all(Glsn::MAX).unwrap();
        world.check_all();
        let stats = world.index().stats();
        assert!(stats.runs.len() <= 1 && stats.history_runs.len() <= 1, "seed {seed}: {stats:?}");
        let bytes_written = stats.bytes_compaction_written;
        world.index().compaction.run_all(Glsn::MAX).unwrap();
        assert_eq!(
            world.index().stats().bytes_compaction_written,
            bytes_written,
            "seed {seed}: no work is left"
        );
    }
}
