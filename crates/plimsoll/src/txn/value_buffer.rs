//! An append-only buffer of chunks for uncommitted values. It may begin with a small piece of a
//! chunk.

use std::sync::Arc;

use plimsoll_memory::budget::{Budget, Kind, OutOfBudget};
use plimsoll_memory::chunk::{CHUNK_BYTES, Chunk};
use plimsoll_memory::pieces::{Piece, Pieces};

/// An append-only buffer in chunks of the budget.
#[derive(Debug)]
pub(crate) struct ValueBuffer {
    budget: Budget,
    small: Arc<[Pieces]>,
    /// The part before the chunks.
    piece: Option<Piece>,
    chunks: Vec<Chunk>,
    len: usize,
}

impl ValueBuffer {
    /// An empty buffer. It takes its first memory with the first byte, from `small` if a piece is
    /// sufficient.
    pub(crate) fn new(budget: &Budget, small: &Arc<[Pieces]>) -> Self {
        Self {
            budget: budget.clone(),
            small: Arc::clone(small),
            piece: None,
            chunks: Vec::new(),
            len: 0,
        }
    }

    /// Appends and returns the offset.
    ///
    /// # Errors
    /// The budget has no room; the buffer is unchanged.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<u64, OutOfBudget> {
        let start = self.len;
        if start == 0
            && self.held_bytes() == 0
            && let Some(small) =
                self.small.iter().find(|pieces| bytes.len() <= pieces.piece_bytes())
        {
            self.piece = Some(small.take()?);
        }
        let held = self.chunks.len();
        while self.held_bytes() < (start + bytes.len()) as u64 {
            match self.budget.take(Kind::WriteSet) {
                Ok(chunk) => self.chunks.push(chunk),
                Err(refusal) => {
                    self.chunks.truncate(held);
                    return Err(refusal);
                }
            }
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let first = self.piece_bytes();
            let into = match (&mut self.piece, self.len.checked_sub(first)) {
                (Some(piece), None) => &mut piece[self.len..],
                (_, at) => {
                    let at = at.expect("without a piece everything is in chunks");
                    &mut self.chunks[at / CHUNK_BYTES][at % CHUNK_BYTES..]
                }
            };
            let fits = rest.len().min(into.len());
            into[..fits].copy_from_slice(&rest[..fits]);
            self.len += fits;
            rest = &rest[fits..];
        }
        Ok(start as u64)
    }

    /// Whether this many more bytes fit without more memory.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.len as u64 + bytes <= self.held_bytes()
    }

    fn piece_bytes(&self) -> usize {
        self.piece.as_ref().map_or(0, |piece| piece.len())
    }

    /// The bytes from `at` to the end of the same piece or chunk.
    fn from(&self, at: usize) -> &[u8] {
        match (&self.piece, at.checked_sub(self.piece_bytes())) {
            (Some(piece), None) => &piece[at..],
            (_, at) => {
                let at = at.expect("without a piece everything is in chunks");
                &self.chunks[at / CHUNK_BYTES][at % CHUNK_BYTES..]
            }
        }
    }

    /// The bytes of a pushed range, in slices.
    pub(crate) fn slices(&self, offset: u64, len: u64) -> impl Iterator<Item = &[u8]> {
        let (mut at, end) = (offset as usize, (offset + len) as usize);
        assert!(end <= self.len, "the range was pushed");
        std::iter::from_fn(move || {
            if at == end {
                return None;
            }
            let slice = self.from(at);
            let slice = &slice[..slice.len().min(end - at)];
            at += slice.len();
            Some(slice)
        })
    }

    /// Memory held, in bytes.
    pub(crate) fn held_bytes(&self) -> u64 {
        (self.piece_bytes() + self.chunks.len() * CHUNK_BYTES) as u64
    }

    /// Releases all memory.
    pub(crate) fn clear(&mut self) {
        self.piece = None;
        self.chunks.clear();
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_memory::budget::Backing;

    use super::*;

    fn small(budget: &Budget) -> Arc<[Pieces]> {
        [512, 4096].map(|bytes| Pieces::new(budget, Kind::WriteSet, bytes)).into()
    }

    #[test]
    fn values_that_span_chunks_round_trip() {
        let budget = Budget::new(16 << 20, Backing::Heap).unwrap();
        for first in [1, 512, 3000, 4096, 5000] {
            let mut buffer = ValueBuffer::new(&budget, &small(&budget));
            let lens = std::iter::once(first).chain((0..9).map(|i| 1 + 20_000 * i));
            let values: Vec<Vec<u8>> =
                lens.enumerate().map(|(i, len)| vec![i as u8; len]).collect();
            let places: Vec<u64> = values.iter().map(|value| buffer.push(value).unwrap()).collect();
            for (value, place) in values.iter().zip(places) {
                assert_eq!(
                    &buffer.slices(place, value.len() as u64).collect::<Vec<_>>().concat(),
                    value
                );
            }
            buffer.clear();
            assert_eq!((buffer.held_bytes(), budget.free_bytes()), (0, budget.limit_bytes()));
        }
    }

    #[test]
    fn a_value_that_does_not_fit_leaves_the_buffer_unchanged() {
        let budget = Budget::new(2 * CHUNK_BYTES as u64, Backing::Heap).unwrap();
        let mut buffer = ValueBuffer::new(&budget, &small(&budget));
        buffer.push(&[1; 10]).unwrap();
        assert!(buffer.push(&vec![2; 3 * CHUNK_BYTES]).is_err());
        assert_eq!(buffer.held_bytes(), 512);
        assert_eq!(buffer.push(&[3; 5]).unwrap(), 10);
    }
}
