//! Estimates how often a key was requested recently: a count-min sketch with aging. Each key maps
//! to four small counters, which keys share.

/// Counters from 0 to 15.
#[derive(Debug)]
pub(crate) struct Sketch {
    counters: Vec<u8>,
    adds: usize,
}

const ROWS: usize = 4;
const MAX: u8 = 15;

impl Sketch {
    /// A sketch for about `keys` keys.
    pub(crate) fn new(keys: u64) -> Self {
        let width =
            usize::try_from(keys).unwrap_or(usize::MAX).clamp(256, 1 << 24).next_power_of_two();
        Self { counters: vec![0; width * ROWS], adds: 0 }
    }

    fn counters_of(&self, hash: u64) -> [usize; ROWS] {
        let width = self.counters.len() / ROWS;
        std::array::from_fn(|row| {
            let mixed =
                hash.wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ ((row as u64) << 32 | 1)).rotate_left(31);
            row * width + (mixed as usize & (width - 1))
        })
    }

    pub(crate) fn add(&mut self, hash: u64) {
        for at in self.counters_of(hash) {
            self.counters[at] = (self.counters[at] + 1).min(MAX);
        }
        self.adds += 1;
        // Aging: halve all counters periodically.
        if self.adds > self.counters.len() / ROWS * 10 {
            self.adds /= 2;
            self.counters.iter_mut().for_each(|counter| *counter /= 2);
        }
    }

    pub(crate) fn frequency(&self, hash: u64) -> u64 {
        self.counters_of(hash).iter().map(|at| u64::from(self.counters[*at])).min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_keys_count_more_and_counts_age() {
        let mut sketch = Sketch::new(256);
        (0..5).for_each(|_| sketch.add(1));
        sketch.add(2);
        assert!(sketch.frequency(1) == 5 && sketch.frequency(2) < 5);
        (0..3000).for_each(|other| sketch.add(other * 7919));
        assert!(sketch.frequency(1) < 15);
    }
}
