//! Memory that direct reads and writes accept, under a lease.

use plimsoll_disk::vfs::DIRECT_ALIGN;
use plimsoll_memory::budget::{Budget, Kind, OutOfBudget};
use plimsoll_memory::buffer::{Buffer, HEAP_BYTES_MAX};

/// Bytes that begin at a multiple of [`DIRECT_ALIGN`].
#[derive(Debug)]
pub(crate) struct AlignedBytes {
    bytes: Buffer,
    start: usize,
    len: usize,
}

impl AlignedBytes {
    /// `len` zeros.
    pub(crate) fn new(len: usize, budget: &Budget) -> Result<Self, OutOfBudget> {
        // A large buffer is aligned already.
        let whole = if len > HEAP_BYTES_MAX { len } else { len + DIRECT_ALIGN };
        let mut bytes = Buffer::zeroed(budget, Kind::Staging, whole)?;
        let mut start = bytes.as_ptr().align_offset(DIRECT_ALIGN);
        if start + len > bytes.len() {
            // If the system has no mapping left, the large buffer is on the heap and unaligned.
            // Make room to align it.
            bytes = Buffer::zeroed(budget, Kind::Staging, len + DIRECT_ALIGN)?;
            start = bytes.as_ptr().align_offset(DIRECT_ALIGN);
        }
        Ok(Self { bytes, start, len })
    }

    /// The bytes.
    pub(crate) fn get(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    /// The bytes, writable.
    pub(crate) fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_memory::budget::Backing;

    use super::*;

    #[test]
    fn bytes_are_aligned_and_leased() {
        let budget = Budget::new(1 << 20, Backing::Heap).unwrap();
        for len in [8192, 64 << 10, 256 << 10] {
            let mut bytes = AlignedBytes::new(len, &budget).unwrap();
            assert_eq!(bytes.get_mut().as_ptr().addr() % DIRECT_ALIGN, 0);
            assert_eq!(bytes.get().len(), len);
            assert!(budget.usage().of(Kind::Staging) >= len as u64);
        }
        assert!(AlignedBytes::new(2 << 20, &budget).is_err());
    }
}
