//! Bulk loads that stay open while other operations commit, merge, trim the log and drop keyspaces.

use crate::content::Content;
use crate::op::Op;
use crate::op::generate::{Generator, LOADS};

/// The most keys that one operation adds to an open load.
const KEYS: u64 = 300;

impl Generator {
    pub(super) fn load_begin(&mut self) -> Op {
        let slot = self.below(u64::from(LOADS)) as u8;
        self.open_loads[usize::from(slot)] = true;
        Op::LoadBegin { slot, space: self.space() }
    }

    fn open_load(&mut self) -> u8 {
        let start = self.below(u64::from(LOADS)) as u8;
        (0..LOADS)
            .map(|i| (start + i) % LOADS)
            .find(|&slot| self.open_loads[usize::from(slot)])
            .unwrap_or(start)
    }

    pub(super) fn load_put(&mut self) -> Op {
        Op::LoadPut { slot: self.open_load(), key: self.key(), value: self.content() }
    }

    pub(super) fn load_many(&mut self) -> Op {
        let (first, count) = (self.below(KEYS) as u32, 1 + self.below(KEYS) as u32);
        // Values above about a thousand bytes are stored outside the run.
        let bytes = self.below(1500) as u32;
        let value = Content { bytes, seed: self.content().seed.wrapping_mul(0x9e37_79b1) };
        Op::LoadMany {
            slot: self.open_load(),
            first,
            count,
            value,
            scattered: self.random.chance(0.5),
        }
    }

    pub(super) fn load_end(&mut self) -> Op {
        let slot = self.open_load();
        self.open_loads[usize::from(slot)] = false;
        if self.random.chance(0.8) { Op::LoadCommit { slot } } else { Op::LoadDrop { slot } }
    }
}
