//! Bytes of values that wait for their commit, in chunks, appended one behind the other.

use plimsoll_memory::budget::{Budget, Kind, OutOfBudget};
use plimsoll_memory::chunk::{CHUNK_BYTES, Chunk};

/// An append-only buffer in chunks of the budget.
#[derive(Debug)]
pub(crate) struct ValueBuffer {
    budget: Budget,
    chunks: Vec<Chunk>,
    len: usize,
}

impl ValueBuffer {
    /// An empty buffer; it takes its first chunk with the first byte.
    pub(crate) fn new(budget: &Budget) -> Self {
        Self { budget: budget.clone(), chunks: Vec::new(), len: 0 }
    }

    /// Appends and returns the offset.
    ///
    /// # Errors
    /// The budget has no room; the buffer is as it was.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<u64, OutOfBudget> {
        let start = self.len;
        let held = self.chunks.len();
        while self.chunks.len() * CHUNK_BYTES < start + bytes.len() {
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
            let at = self.len % CHUNK_BYTES;
            let fits = rest.len().min(CHUNK_BYTES - at);
            self.chunks[self.len / CHUNK_BYTES][at..at + fits].copy_from_slice(&rest[..fits]);
            self.len += fits;
            rest = &rest[fits..];
        }
        Ok(start as u64)
    }

    /// The bytes of a range that was pushed, in slices.
    pub(crate) fn slices(&self, offset: u64, len: u64) -> impl Iterator<Item = &[u8]> {
        let (mut at, end) = (offset as usize, (offset + len) as usize);
        assert!(end <= self.len, "a range that was pushed");
        std::iter::from_fn(move || {
            if at == end {
                return None;
            }
            let start = at % CHUNK_BYTES;
            let fits = (end - at).min(CHUNK_BYTES - start);
            let slice = &self.chunks[at / CHUNK_BYTES][start..start + fits];
            at += fits;
            Some(slice)
        })
    }

    /// Bytes of the chunks held.
    pub(crate) fn held_bytes(&self) -> u64 {
        (self.chunks.len() * CHUNK_BYTES) as u64
    }

    /// Gives everything back.
    pub(crate) fn clear(&mut self) {
        self.chunks.clear();
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_memory::budget::Backing;

    use super::*;

    #[test]
    fn values_that_span_chunks_come_back_whole() {
        let budget = Budget::new(16 << 20, Backing::Heap).unwrap();
        let mut buffer = ValueBuffer::new(&budget);
        let values: Vec<Vec<u8>> = (0..9u8).map(|i| vec![i; 1 + 20_000 * i as usize]).collect();
        let places: Vec<u64> = values.iter().map(|value| buffer.push(value).unwrap()).collect();
        for (value, place) in values.iter().zip(places) {
            assert_eq!(&buffer.slices(place, value.len() as u64).collect::<Vec<_>>().concat(), value);
        }
    }

    #[test]
    fn a_value_that_does_not_fit_leaves_the_buffer_as_it_was() {
        let budget = Budget::new(2 * CHUNK_BYTES as u64, Backing::Heap).unwrap();
        let mut buffer = ValueBuffer::new(&budget);
        buffer.push(&[1; 10]).unwrap();
        assert!(buffer.push(&vec![2; 3 * CHUNK_BYTES]).is_err());
        assert_eq!(buffer.held_bytes(), CHUNK_BYTES as u64);
        assert_eq!(buffer.push(&[3; 5]).unwrap(), 10);
    }
}
