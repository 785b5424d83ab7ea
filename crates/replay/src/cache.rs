//! The object cache of the store as a subject of replays.

use plimsoll_memory::budget::{Backing, Budget};
use plimsoll_memory::cache::{Cache, CacheOptions};

use crate::error::{Error, Result};
use crate::subject::{Held, Subject};

/// A cache with its own budget.
pub(crate) fn open(memory_bytes: u64, largest: f64) -> Result<Cache> {
    let mut options = CacheOptions::of_bytes(memory_bytes);
    options.largest_part = largest;
    let room = memory_bytes + memory_bytes / 64 + (1 << 20);
    let budget = Budget::new(room, Backing::Mapped)
        .map_err(|error| Error::Memory { message: error.to_string() })?;
    Cache::new(&budget, options).map_err(|refusal| Error::Budget { message: refusal.to_string() })
}

impl Subject for Cache {
    fn find(&mut self, key: &[u8]) -> bool {
        // Read each cache line of the value, as a caller would.
        let look_at = |piece: &[u8]| {
            std::hint::black_box(sum_of(piece));
        };
        self.read(key, |value| value.pieces().for_each(look_at)).is_some()
    }

    fn set(&mut self, key: &[u8], value_bytes: u64, filler: &[u8]) {
        match usize::try_from(value_bytes).ok().and_then(|len| filler.get(..len)) {
            Some(value) => {
                self.insert(key, value);
            }
            None => Subject::remove(self, key),
        }
    }

    fn remove(&mut self, key: &[u8]) {
        Cache::remove(self, key);
    }

    fn held(&self) -> Held {
        let stats = self.stats();
        Held {
            evictions: stats.evictions,
            entries: stats.entries,
            memory_bytes: stats.memory_bytes,
        }
    }
}

/// The sum of the first byte of each cache line.
fn sum_of(piece: &[u8]) -> u64 {
    piece.iter().step_by(64).map(|byte| u64::from(*byte)).sum()
}
