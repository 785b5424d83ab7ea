//! Heap memory that direct reads and writes accept, under a lease.

use plimsoll_disk::vfs::DIRECT_ALIGN;
use plimsoll_memory::budget::{Budget, Kind, Lease, OutOfBudget};

/// Bytes that begin at a multiple of [`DIRECT_ALIGN`].
#[derive(Debug)]
pub(crate) struct AlignedBytes {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
    _lease: Lease,
}

impl AlignedBytes {
    /// `len` zeros.
    pub(crate) fn new(len: usize, budget: &Budget) -> Result<Self, OutOfBudget> {
        let whole = len + DIRECT_ALIGN;
        let lease = budget.lease(Kind::Staging, whole as u64)?;
        let bytes = vec![0; whole];
        let start = bytes.as_ptr().align_offset(DIRECT_ALIGN).min(DIRECT_ALIGN);
        Ok(Self { bytes, start, len, _lease: lease })
    }

    /// The bytes.
    pub(crate) fn get(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    /// The bytes, to be written to.
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
        let mut bytes = AlignedBytes::new(8192, &budget).unwrap();
        assert_eq!(bytes.get_mut().as_ptr().addr() % DIRECT_ALIGN, 0);
        assert_eq!(bytes.get().len(), 8192);
        assert!(budget.usage().of(Kind::Staging) >= 8192);
        assert!(AlignedBytes::new(2 << 20, &budget).is_err());
    }
}
