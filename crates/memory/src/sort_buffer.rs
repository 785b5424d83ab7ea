//! A sort buffer: takes rows in any order and returns them sorted. Keys and values are in chunks of
//! the budget; a separate list has a slot for each row, with the row's place.
//!
//! The list is sorted by the first bytes in which the keys differ, so that nearly all comparisons
//! read nothing but the list. Rows that arrive in order are not sorted at all.
//!
//! Invariants:
//! 1. A row that is refused changes nothing.
//! 2. Of rows with equal keys, only the last one added is returned.

use crate::budget::chunk::{CHUNK_BYTES, Chunk};
use crate::budget::{Budget, Kind, OutOfBudget};
use crate::buffer::Buffer;
use crate::cpu_prefetch::prefetch_address;

/// Bytes in front of a row's key and value: their lengths.
const HEAD_BYTES: usize = 4;

/// Bytes of a key that its slot holds.
const PREFIX_BYTES: usize = 12;

/// The first capacity of the list, in slots.
const FIRST_SLOTS: usize = 256;

/// Prefetch distance, in rows.
const FETCHED_AHEAD: usize = 8;

/// Rows to be sorted.
#[derive(Debug)]
pub struct SortBuffer {
    budget: Budget,
    kind: Kind,
    chunks: Vec<Chunk>,
    /// Chunks used; the others are kept for later rows.
    used: usize,
    /// Bytes used of the last used chunk.
    filled: usize,
    /// The list. The low bits of a slot are a row's place; the high bits are a prefix of the row's
    /// key, and zero until the sort.
    slots: Buffer<u128>,
    /// Length of the common prefix of all keys.
    common: usize,
    /// Whether each key is greater than the one before it.
    is_rising: bool,
    is_sorted: bool,
}

impl SortBuffer {
    /// The longest key plus value that fits.
    pub const MAX_ROW_BYTES: usize = CHUNK_BYTES - HEAD_BYTES;

    /// An empty buffer. It takes memory with the first row.
    ///
    /// # Errors
    /// None at present, because no memory is taken yet.
    pub fn new(budget: &Budget, kind: Kind) -> Result<Self, OutOfBudget> {
        Ok(Self {
            budget: budget.clone(),
            kind,
            chunks: Vec::new(),
            used: 0,
            filled: CHUNK_BYTES,
            slots: Buffer::with_capacity(budget, kind, 0)?,
            common: usize::MAX,
            is_rising: true,
            is_sorted: false,
        })
    }

    /// Adds a row.
    ///
    /// # Errors
    /// The budget has no room; nothing has changed.
    ///
    /// # Panics
    /// Key and value together are longer than [`SortBuffer::MAX_ROW_BYTES`], or the buffer was
    /// sorted and not cleared.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<(), OutOfBudget> {
        let bytes = HEAD_BYTES + key.len() + value.len();
        assert!(
            bytes <= CHUNK_BYTES && !self.is_sorted,
            "a row fits into a chunk and is added before the sort"
        );
        if self.slots.len() == self.slots.capacity() {
            self.slots.reserve(self.slots.len().max(FIRST_SLOTS))?;
        }
        if bytes > CHUNK_BYTES - self.filled {
            if self.used == self.chunks.len() {
                self.chunks.push(self.budget.take(self.kind)?);
            }
            (self.used, self.filled) = (self.used + 1, 0);
        }
        self.note_order(key);
        let number = self.used - 1;
        let row = &mut self.chunks[number][self.filled..self.filled + bytes];
        row[..2].copy_from_slice(&(key.len() as u16).to_le_bytes());
        row[2..HEAD_BYTES].copy_from_slice(&(value.len() as u16).to_le_bytes());
        row[HEAD_BYTES..HEAD_BYTES + key.len()].copy_from_slice(key);
        row[HEAD_BYTES + key.len()..].copy_from_slice(value);
        self.slots.push((number * CHUNK_BYTES + self.filled) as u128);
        self.filled += bytes;
        Ok(())
    }

    fn note_order(&mut self, key: &[u8]) {
        let Some(&last) = self.slots.last() else {
            self.common = key.len();
            return;
        };
        let last = row_at(&self.chunks, last).0;
        self.is_rising &= last < key;
        let both = last[..self.common.min(last.len())].iter().zip(key);
        self.common = both.take_while(|(one, other)| one == other).count();
    }

    /// The number of rows, including rows with equal keys.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Memory of the rows and their list. If the list was kept from a larger set of rows, it counts
    /// at most twice the size that these rows need.
    pub fn row_bytes(&self) -> u64 {
        let needed = 2 * (self.slots.len() * size_of::<u128>()) as u64;
        (self.used * CHUNK_BYTES) as u64 + self.slots.charged_bytes().min(needed)
    }

    /// Sorts the rows by key. Takes no memory.
    pub fn sort(&mut self) {
        if std::mem::replace(&mut self.is_sorted, true) || self.is_rising {
            return;
        }
        let Self { chunks, slots, common, .. } = self;
        for slot in slots.iter_mut() {
            *slot |= u128::from_be_bytes(prefix(&row_at(chunks, *slot).0[*common..]));
        }
        slots.sort_unstable();
        let ties = slots.chunk_by_mut(|one, other| one >> PLACE_BITS == other >> PLACE_BITS);
        for tie in ties.filter(|tie| tie.len() > 1) {
            // Of equal keys, the earlier row has the lower place.
            tie.sort_unstable_by(|one, other| {
                row_at(chunks, *one)
                    .0
                    .cmp(row_at(chunks, *other).0)
                    .then((*one as u32).cmp(&(*other as u32)))
            });
        }
    }

    /// The rows in order of their keys, each key once.
    ///
    /// # Panics
    /// The buffer is not sorted.
    pub fn rows(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        assert!(self.is_sorted, "rows are read after the sort");
        (0..self.slots.len()).filter_map(|at| {
            if let Some(ahead) = self.slots.get(at + FETCHED_AHEAD) {
                prefetch_address(bytes_at(&self.chunks, *ahead).as_ptr());
            }
            let (key, value) = row_at(&self.chunks, self.slots[at]);
            let next = self.slots.get(at + 1).filter(|_| !self.is_rising);
            let is_newer = next.is_some_and(|next| {
                next >> PLACE_BITS == self.slots[at] >> PLACE_BITS
                    && row_at(&self.chunks, *next).0 == key
            });
            (!is_newer).then_some((key, value))
        })
    }

    /// Removes all rows. Keeps their memory for reuse, unless the budget is short.
    pub fn clear(&mut self) {
        if self.budget.is_short() {
            self.chunks = Vec::new();
        }
        // Release the list if it is larger than the rows' chunks, as it is after many short rows.
        if self.slots.charged_bytes() > (self.chunks.len() * CHUNK_BYTES) as u64 {
            self.slots.release();
        }
        self.slots.clear();
        (self.used, self.filled, self.common) = (0, CHUNK_BYTES, usize::MAX);
        (self.is_rising, self.is_sorted) = (true, false);
    }

    /// Removes all rows and returns all memory.
    pub fn release(&mut self) {
        self.clear();
        self.chunks = Vec::new();
        self.slots.release();
    }
}

/// Bits of a slot that hold the row's place.
const PLACE_BITS: u32 = 32;

/// The first bytes of `rest`, the key without the common prefix, as the high bytes of a slot.
fn prefix(rest: &[u8]) -> [u8; 16] {
    let mut bytes = [0; 16];
    let len = rest.len().min(PREFIX_BYTES);
    bytes[..len].copy_from_slice(&rest[..len]);
    bytes
}

fn bytes_at(chunks: &[Chunk], slot: u128) -> &[u8] {
    let place = slot as u32 as usize;
    &chunks[place / CHUNK_BYTES][place % CHUNK_BYTES..]
}

fn row_at(chunks: &[Chunk], slot: u128) -> (&[u8], &[u8]) {
    let row = bytes_at(chunks, slot);
    let len = |at: usize| usize::from(u16::from_le_bytes([row[at], row[at + 1]]));
    let (key, value) = (len(0), len(2));
    row[HEAD_BYTES..HEAD_BYTES + key + value].split_at(key)
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::budget::Backing;

    fn budget(chunks: u64) -> Budget {
        Budget::new(chunks * CHUNK_BYTES as u64, Backing::Heap).unwrap()
    }

    fn sorted(rows: &[(Vec<u8>, Vec<u8>)]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut buffer = SortBuffer::new(&budget(64), Kind::Sort).unwrap();
        rows.iter().for_each(|(key, value)| buffer.push(key, value).unwrap());
        buffer.sort();
        buffer.rows().map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
    }

    fn expect_as_map(rows: &[(Vec<u8>, Vec<u8>)]) {
        let map: BTreeMap<_, _> = rows.iter().cloned().collect();
        assert_eq!(sorted(rows), map.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn sort_buffer_returns_rows_like_a_map() {
        let mut state = 1_u64;
        let mut below = |bound: usize| {
            // Knuth's MMIX generator; its high bits are the good ones.
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % bound
        };
        let rounds = if cfg!(miri) { 3 } else { 60 };
        for round in 0..rounds {
            let letters = [2, 4, 256][round % 3];
            let longest = [3, 20, 40][round / 3 % 3];
            let common = vec![9; [0, 4, 30][round / 9 % 3]];
            let count = if cfg!(miri) { 40 } else { below(2000) };
            let mut row = |value: usize| {
                let rest: Vec<u8> = (0..below(longest)).map(|_| below(letters) as u8).collect();
                ([&common[..], &rest].concat(), value.to_le_bytes().to_vec())
            };
            expect_as_map(&(0..count).map(&mut row).collect::<Vec<_>>());
        }
    }

    #[test]
    fn keys_differing_by_trailing_zeros_are_distinct() {
        let keys: [&[u8]; 6] = [b"a\0\0", b"a", b"a\0", b"", b"\0", b"a"];
        expect_as_map(
            &keys
                .iter()
                .enumerate()
                .map(|(i, key)| (key.to_vec(), vec![i as u8]))
                .collect::<Vec<_>>(),
        );
    }

    #[test]
    fn ascending_keys_skip_the_sort_until_a_duplicate() {
        let rows: Vec<_> = (0..300_u32).map(|key| (key.to_be_bytes().to_vec(), vec![1])).collect();
        expect_as_map(&rows);
        let mut buffer = SortBuffer::new(&budget(4), Kind::Sort).unwrap();
        rows.iter().for_each(|(key, value)| buffer.push(key, value).unwrap());
        assert!(buffer.is_rising);
        buffer.push(&299_u32.to_be_bytes(), &[2]).unwrap();
        assert!(!buffer.is_rising);
        buffer.sort();
        assert_eq!((buffer.len(), buffer.rows().count()), (301, 300));
        assert_eq!(buffer.rows().last(), Some((&299_u32.to_be_bytes()[..], &[2][..])));
    }

    #[test]
    fn refused_row_changes_nothing_and_release_frees_all() {
        let budget = budget(3);
        let mut buffer = SortBuffer::new(&budget, Kind::Sort).unwrap();
        let mut pushed = 0_u64;
        while buffer.push(&pushed.to_be_bytes(), &[7; 1000]).is_ok() {
            pushed += 1;
        }
        assert!(pushed > 60 && buffer.len() as u64 == pushed);
        buffer.sort();
        let keys: Vec<_> =
            buffer.rows().map(|(key, _)| u64::from_be_bytes(key.try_into().unwrap())).collect();
        assert_eq!(keys, (0..pushed).collect::<Vec<_>>());
        assert!(buffer.row_bytes() <= 3 * CHUNK_BYTES as u64);
        buffer.release();
        assert_eq!((budget.usage().of(Kind::Sort), buffer.row_bytes()), (0, 0));
        buffer.push(b"again", b"").unwrap();
        buffer.sort();
        assert_eq!(buffer.rows().collect::<Vec<_>>(), [(&b"again"[..], &b""[..])]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "it takes minutes")]
    fn reused_buffer_keeps_only_memory() {
        let budget = budget(8);
        let mut buffer = SortBuffer::new(&budget, Kind::Sort).unwrap();
        for round in 0..3_u8 {
            for number in (0..200_u8).rev() {
                buffer.push(&[3, number, round], &[round; 700]).unwrap();
            }
            buffer.sort();
            let expected: Vec<_> = (0..200_u8).map(|number| [3, number, round]).collect();
            assert_eq!(buffer.rows().map(|(key, _)| key).collect::<Vec<_>>(), expected);
            assert!(buffer.rows().all(|(_, value)| value == [round; 700]));
            let (held, rows) = (budget.usage().of(Kind::Sort), buffer.row_bytes());
            buffer.clear();
            assert!(buffer.is_empty() && buffer.row_bytes() < rows);
            assert_eq!(budget.usage().of(Kind::Sort), held);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "it takes minutes")]
    fn buffer_filled_by_short_rows_doubles() {
        let limit_bytes = 4 * CHUNK_BYTES as u64;
        let mut buffer = SortBuffer::new(&budget(64), Kind::Sort).unwrap();
        for bytes in [1, 3, 20, 60, 500] {
            let mut filled = Vec::new();
            for _ in 0..4 {
                buffer.clear();
                while buffer.row_bytes() <= limit_bytes {
                    buffer.push(&vec![7; bytes], &[]).unwrap();
                }
                filled.push(buffer.len());
            }
            assert!(filled.iter().all(|rows| rows * 4 > filled[0]), "{bytes}: {filled:?}");
            buffer.release();
        }
    }
}
