//! Decides how far ahead of a scan the blocks of a segment are read: nothing until the first miss,
//! then more with each miss.
//!
//! Only for direct reads, because the system itself reads ahead in files that are read through the
//! page cache.

use std::ops::Range;

/// Blocks that are requested at the first miss.
const FIRST_BLOCKS: u64 = 4;

/// The most blocks that are requested: 1 MiB.
const MOST_BLOCKS: u64 = 64;

/// The blocks that were requested in one segment.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    window: u64,
    /// Blocks below this one were requested, or are not wanted.
    asked: u64,
    /// The last block of the scan.
    last: u64,
}

impl ReadAhead {
    /// Whether a block was missing before.
    pub(crate) fn has_begun(&self) -> bool {
        self.window > 0
    }

    /// Begins read-ahead at the first missing block. The scan ends in the block `last`.
    pub(crate) fn begin(&mut self, last: u64) {
        *self = Self { window: FIRST_BLOCKS / 2, asked: 0, last };
    }

    /// The blocks to request when the scan reaches `block`; at most `most` blocks may be read
    /// ahead.
    pub(crate) fn advance_to(
        &mut self,
        block: u64,
        missing: bool,
        most: u64,
    ) -> Option<Range<u64>> {
        if missing {
            self.window = (2 * self.window).min(MOST_BLOCKS);
        }
        let window = self.window.min(most);
        let from = self.asked.max(block);
        let until = (block + window).min(self.last + 1);
        // Request half a window at a time, because a request costs little and longer reads cost
        // less per block.
        let due =
            block + window / 2 >= self.asked && until > from + u64::from(missing && from == block);
        due.then(|| {
            self.asked = until;
            from..until
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(last: u64) -> ReadAhead {
        let mut ahead = ReadAhead::default();
        ahead.begin(last);
        ahead
    }

    #[test]
    fn the_window_grows_with_each_missing_block_and_the_next_half_is_requested_in_time() {
        let mut ahead = begun(1000);
        assert_eq!(ahead.advance_to(10, true, 100), Some(10..14));
        assert_eq!(ahead.advance_to(11, false, 100), None);
        assert_eq!(ahead.advance_to(12, false, 100), Some(14..16));
        assert_eq!(ahead.advance_to(13, true, 100), Some(16..21));
        for block in 14..1000 {
            if let Some(range) = ahead.advance_to(block, true, 100) {
                assert!(
                    range.end <= block + MOST_BLOCKS && range.start > block,
                    "{block}: {range:?}"
                );
            }
        }
        assert_eq!(ahead.asked, 1001);
    }

    #[test]
    fn nothing_is_requested_beyond_the_last_block_nor_twice() {
        assert_eq!(begun(7).advance_to(7, true, 100), None, "the scan reads it itself");
        let mut ahead = begun(8);
        assert_eq!(ahead.advance_to(7, true, 100), Some(7..9));
        assert_eq!(ahead.advance_to(8, false, 100), None);
        assert_eq!(begun(100).advance_to(7, true, 1), None, "a pool without room");
    }
}
