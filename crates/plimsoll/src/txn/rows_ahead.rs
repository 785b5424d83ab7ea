//! Rows that an iterator has read ahead, because attaching, releasing and charging an iterator
//! costs more than reading a small row.
//!
//! Invariants:
//! 1. Only small keys and values are read ahead, a few KiB in all, so an idle iterator holds no
//!    more.
//! 2. Each batch is larger than the one before, so a caller that wants few rows causes few useless
//!    reads.

use std::collections::VecDeque;

use crate::types::expiry::Expiry;

/// Maximum number of rows in a batch.
const ROWS_MAX: usize = 16;

/// Size of the keys and values at which a batch ends.
const BYTES_MAX: usize = 2 << 10;

/// A row with a longer key is not read ahead.
const KEY_BYTES_MAX: usize = 512;

/// A row with a longer value is not read ahead.
const VALUE_BYTES_MAX: usize = 1 << 10;

/// Rows in the order of the iterator. The first is the one that was returned last.
#[derive(Debug, Default)]
pub(crate) struct RowsAhead {
    /// Keys and values, concatenated.
    bytes: Vec<u8>,
    /// End offsets of the rows that were not passed.
    rows: VecDeque<Ends>,
    /// Offset of the first row.
    begin: usize,
    /// Maximum number of rows in the current batch.
    of_sitting: usize,
    /// Whether the first row was read by an earlier call, so that nothing was read since the
    /// iterator was last charged.
    is_settled: bool,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    key: usize,
    value: usize,
    expiry: Option<Expiry>,
}

impl RowsAhead {
    /// Begins a batch.
    pub(crate) fn begin(&mut self) {
        self.clear();
        self.of_sitting = (2 * self.of_sitting + 1).min(ROWS_MAX);
    }

    /// Forgets all rows.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.rows.clear();
        (self.begin, self.is_settled) = (0, false);
    }

    /// Replaces the values by empty ones.
    pub(crate) fn clear_values(&mut self) {
        let (mut begin, mut end) = (self.begin, 0);
        for ends in &mut self.rows {
            let key = begin..ends.key;
            begin = ends.value;
            ends.key = end + key.len();
            ends.value = ends.key;
            self.bytes.copy_within(key, end);
            end = ends.key;
        }
        self.bytes.truncate(end);
        self.begin = 0;
    }

    /// Whether the batch is full.
    pub(crate) fn is_full(&self) -> bool {
        self.rows.len() >= self.of_sitting || self.bytes.len() >= BYTES_MAX
    }

    /// Adds a row, and when its value expires; false if it is too large.
    pub(crate) fn push(&mut self, key: &[u8], value: &[u8], expiry: Option<Expiry>) -> bool {
        if key.len() > KEY_BYTES_MAX || value.len() > VALUE_BYTES_MAX {
            return false;
        }
        self.bytes.extend_from_slice(key);
        let key = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.rows.push_back(Ends { key, value: self.bytes.len(), expiry });
        true
    }

    /// The index key and the value of the row that was returned last, if it was read ahead.
    pub(crate) fn current(&self) -> Option<(&[u8], &[u8])> {
        let ends = self.rows.front()?;
        Some((&self.bytes[self.begin..ends.key], &self.bytes[ends.key..ends.value]))
    }

    /// The expiry of the value of that row.
    pub(crate) fn expiry(&self) -> Option<Expiry> {
        self.rows.front()?.expiry
    }

    /// Passes the current row; false if it is the last, which stays.
    pub(crate) fn pass(&mut self) -> bool {
        if self.rows.len() < 2 {
            return false;
        }
        let passed = self.rows.pop_front().expect("there are at least two");
        (self.begin, self.is_settled) = (passed.value, true);
        true
    }

    /// Whether the current row was read by an earlier call, which also charged the iterator.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// Heap size.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.bytes.capacity() + self.rows.capacity() * size_of::<Ends>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_returned_in_order_and_the_last_one_stays() {
        let mut rows = RowsAhead::default();
        assert_eq!(rows.current(), None);
        assert!(!rows.pass());
        for sitting in [1, 3, 7, 15, 16, 16] {
            rows.begin();
            let mut count = 0;
            while !rows.is_full() {
                let expiry = Expiry::from_micros(u64::from(count));
                assert!(rows.push(&[count; 3], &[count], expiry));
                count += 1;
            }
            assert_eq!(count, sitting);
            for number in 0..count {
                assert_eq!(rows.current(), Some((&[number; 3][..], &[number][..])));
                assert_eq!(rows.expiry(), Expiry::from_micros(u64::from(number)));
                assert_eq!(rows.is_settled(), number > 0);
                assert_eq!(rows.pass(), number + 1 < count);
            }
            assert_eq!(rows.current(), Some((&[count - 1; 3][..], &[count - 1][..])));
        }
    }

    #[test]
    fn rows_without_values_keep_their_keys() {
        let mut rows = RowsAhead::default();
        rows.clear_values();
        rows.begin();
        rows.begin();
        for (key, value) in [(&b"a"[..], &b"one"[..]), (b"bc", b""), (b"d", b"three")] {
            assert!(rows.push(key, value, Expiry::from_micros(7)));
        }
        assert!(rows.pass());
        rows.clear_values();
        assert_eq!(rows.current(), Some((&b"bc"[..], &b""[..])));
        assert!(rows.pass());
        assert_eq!(
            (rows.current(), rows.expiry()),
            (Some((&b"d"[..], &b""[..])), Expiry::from_micros(7))
        );
        assert!(!rows.pass());
    }

    #[test]
    fn a_batch_ends_after_a_few_kib_and_excludes_long_rows() {
        let mut rows = RowsAhead::default();
        (0..9).for_each(|_| rows.begin());
        assert!(
            !rows.push(&[1; KEY_BYTES_MAX + 1], b"v", None)
                && !rows.push(b"key", &[1; VALUE_BYTES_MAX + 1], None)
        );
        assert_eq!(rows.current(), None);
        let pushed = std::iter::from_fn(|| {
            (!rows.is_full()).then(|| rows.push(&[1; KEY_BYTES_MAX], &[2; VALUE_BYTES_MAX], None))
        });
        assert_eq!(pushed.count(), 2);
        assert!(rows.heap_bytes() < 8 << 10);
    }
}
