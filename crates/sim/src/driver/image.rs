//! Changes the warm image while the store is closed: removes it, replaces it by an older one, or
//! damages it.
//!
//! The image is a cache of a cache, so no answer may depend on it, and no change of it is an error.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use plimsoll_disk::vfs::{Caching, Disk, Open};

use crate::driver::Driver;
use crate::failure::{Failure, Outcome};

/// The kind of background work that saves the warm image.
const WARMTH: usize = 4;

/// The image's folder within the store's.
pub(super) const IMAGE_DIR: &str = "warm";

/// An image at some time: its files, by name.
pub(super) type Image = Vec<(PathBuf, Vec<u8>)>;

/// The number of keys of each keyspace that are read before a store is closed.
const HOT_KEYS: usize = 24;

/// The interval between saves of an image.
const IMAGE_INTERVAL: Duration = Duration::from_secs(30);

/// The most steps that are run after the open.
const STEPS: u64 = 12;

impl Driver {
    /// Reads some keys of each keyspace with no page in memory, so that they enter the row cache.
    pub(super) fn make_warm(&self) {
        let snapshot = self.db().snapshot();
        for keyspace in self.spaces.values() {
            // Ignore unreadable keys here; checks of answers detect them.
            let Ok(walk) = snapshot.range(keyspace, ..) else { continue };
            let keys: Vec<_> =
                walk.take(HOT_KEYS).filter_map(|entry| Some(entry.ok()?.0.to_vec())).collect();
            for key in keys {
                self.db().drop_pages();
                let _ = snapshot.get(keyspace, &key);
            }
        }
    }

    /// Makes the store save its image now, as if it were due.
    pub(super) fn save_image(&self) {
        self.world.clock.advance(IMAGE_INTERVAL);
        for _ in 0..STEPS {
            let _ = self.db().step_from(WARMTH);
        }
    }

    /// Restores part or all of the image found at open. Flushes and merges may run in between.
    pub(super) fn take_some_in(&self, choice: u64) {
        for _ in 0..choice % STEPS {
            let _ = self.db().step_from(WARMTH);
        }
    }

    /// Changes the image of a closed store, and keeps the previous image for later.
    pub(super) fn meddle_with_image(&mut self, choice: u64) -> Outcome {
        let dir = self.world.store_path().join(IMAGE_DIR);
        let meddled = self.world.disk.entry(&dir).and_then(|entry| match entry {
            None => Ok(()),
            Some(_) => self.meddle(&dir, choice),
        });
        meddled.map_err(|error| Failure::new(format!("changing the warm image: {error}")))
    }

    fn meddle(&mut self, dir: &Path, choice: u64) -> io::Result<()> {
        let disk = &self.world.disk;
        let mut now = Image::new();
        for (path, len) in self.world.files(dir)? {
            let mut bytes = vec![0; len as usize];
            disk.open(&path, Open::Read, Caching::Buffered)?.read_exact_at(&mut bytes, 0)?;
            now.push((path, bytes));
        }
        let (kind, which) = (choice % 5, choice / 5);
        match kind {
            0 => self.world.remove_all(dir)?,
            1 | 2 => {
                if let Some(other) = &self.image {
                    self.world.remove_all(dir)?;
                    disk.create_dir(dir)?;
                    for (path, bytes) in other {
                        disk.open(path, Open::CreateNew, Caching::Buffered)?.write_at(bytes, 0)?;
                    }
                }
            }
            3 => {
                let whole: u64 = now.iter().map(|(_, bytes)| bytes.len() as u64).sum();
                let mut at = which % whole.max(1);
                for (path, bytes) in &now {
                    if at < bytes.len() as u64 {
                        disk.corrupt(path, at, 1 << (which / 7 % 8))?;
                        break;
                    }
                    at -= bytes.len() as u64;
                }
            }
            _ => {}
        }
        if self.image.is_none() || kind == 2 {
            self.image = Some(now);
        }
        Ok(())
    }
}
