//! A contiguous buffer, like a `Vec`, covered by a lease.
//!
//! Up to [`HEAP_BYTES_MAX`] the elements are on the heap. A larger buffer has its own mapping,
//! which goes back to the system before its lease goes back to the budget. An allocator may keep
//! freed blocks, and would then hold memory that no lease covers (glibc keeps all up to the largest
//! block that was ever freed, 32 MiB at most, in each of its arenas).
//!
//! Invariants:
//! 1. A mapping's lease covers all of it, not only the touched part, because it may be reused for
//!    another buffer.
//! 2. The budget keeps a few returned mappings, with their leases, for the next buffer
//!    ([`Kind::Spare`]), so that reading a large value costs neither a system call nor page faults
//!    each time. Spare mappings are the first memory released when the budget is short.
#![allow(unsafe_code, reason = "lends the elements in a mapping")]

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::budget::{Budget, Kind, Lease, OutOfBudget};
use crate::mapping::{MAPPING_ALIGN, Mapping};

/// Largest buffer on the heap: 64 KiB.
pub const HEAP_BYTES_MAX: usize = 64 << 10;

/// Granularity of mappings, so that a returned mapping fits the next buffer of about the same size.
const STEP_BYTES: usize = 16 << 10;

/// A buffer.
pub struct Buffer<T: Copy = u8> {
    /// Dropped before the lease.
    memory: Memory<T>,
    /// `None` if the memory belongs to the user and is not charged.
    lease: Option<Lease>,
}

enum Memory<T> {
    Heap(Vec<T>),
    Mapped {
        mapping: Mapping,
        /// Elements; the first `len` are initialised and valid.
        len: usize,
    },
}

impl<T: Copy> Buffer<T> {
    /// An empty buffer with room for `capacity` elements, charged to the budget.
    ///
    /// # Errors
    /// [`OutOfBudget`]; nothing is taken.
    pub fn with_capacity(
        budget: &Budget,
        kind: Kind,
        capacity: usize,
    ) -> Result<Self, OutOfBudget> {
        Self::in_lease(&budget.empty_lease(kind), capacity)
    }

    /// Like [`Buffer::with_capacity`], with the budget and kind of a lease.
    fn in_lease(of: &Lease, capacity: usize) -> Result<Self, OutOfBudget> {
        const { assert!(size_of::<T>() > 0 && align_of::<T>() <= MAPPING_ALIGN) };
        let bytes = capacity.saturating_mul(size_of::<T>());
        if bytes > HEAP_BYTES_MAX {
            let bytes = bytes.checked_next_multiple_of(STEP_BYTES).unwrap_or(bytes);
            if let Some((mapping, lease)) = of.take_spare(bytes)? {
                return Ok(Self { memory: Memory::Mapped { mapping, len: 0 }, lease: Some(lease) });
            }
            let lease = of.same_kind(bytes as u64)?;
            if let Some(mapping) = Mapping::new(bytes, of.backing()) {
                return Ok(Self { memory: Memory::Mapped { mapping, len: 0 }, lease: Some(lease) });
            }
            // The system has no mapping left (`vm.max_map_count`). Use the heap, which is slower to
            // give memory back.
            return Ok(Self {
                memory: Memory::Heap(Vec::with_capacity(capacity)),
                lease: Some(lease),
            });
        }
        let lease = of.same_kind(bytes as u64)?;
        Ok(Self { memory: Memory::Heap(Vec::with_capacity(capacity)), lease: Some(lease) })
    }

    /// The number of elements that fit. A buffer that is not charged to a budget can grow beyond this
    /// number.
    pub fn capacity(&self) -> usize {
        match &self.memory {
            Memory::Heap(elements) => elements.capacity(),
            Memory::Mapped { mapping, .. } => mapping.bytes() / size_of::<T>(),
        }
    }

    /// Makes room for `more` elements after the present ones; at least doubles the capacity.
    ///
    /// # Errors
    /// [`OutOfBudget`]; the buffer stays as it was.
    pub fn reserve(&mut self, more: usize) -> Result<(), OutOfBudget> {
        let wanted = self.len().saturating_add(more);
        if wanted <= self.capacity() {
            return Ok(());
        }
        let capacity = wanted.max(2 * self.capacity());
        match &self.lease {
            None => self.extend_own(more),
            Some(lease) => {
                let mut larger = Self::in_lease(lease, capacity)?;
                larger.extend_from_slice(self);
                *self = larger;
            }
        }
        Ok(())
    }

    /// Grows a buffer of the user's own memory. A mapping, which a copy may have, is moved to the
    /// heap.
    fn extend_own(&mut self, more: usize) {
        if let Memory::Mapped { .. } = &self.memory {
            let mut elements = Vec::with_capacity(self.len() + more);
            elements.extend_from_slice(self);
            self.memory = Memory::Heap(elements);
        }
        if let Memory::Heap(elements) = &mut self.memory {
            elements.reserve(more);
        }
    }

    /// Appends an element.
    ///
    /// # Panics
    /// There is no room for it.
    #[inline]
    pub fn push(&mut self, element: T) {
        self.extend_from_slice(&[element]);
    }

    /// Appends elements.
    ///
    /// # Panics
    /// The elements exceed the capacity, unless the buffer is not charged.
    pub fn extend_from_slice(&mut self, more: &[T]) {
        let charged = self.lease.is_some();
        if !charged && more.len() > self.capacity() - self.len() {
            self.extend_own(more.len());
        }
        let room = self.capacity() - self.len();
        match &mut self.memory {
            Memory::Heap(elements) => {
                assert!(
                    !charged || more.len() <= room,
                    "room is reserved before elements are appended"
                );
                elements.extend_from_slice(more);
            }
            Memory::Mapped { mapping, len } => {
                assert!(more.len() <= room, "room is reserved before elements are appended");
                // SAFETY: the elements fit after the first `len`, as just checked; the mapping has
                // no other holder, and it is aligned for `T`.
                unsafe {
                    let end = mapping.base().cast::<T>().add(*len);
                    end.as_ptr().copy_from_nonoverlapping(more.as_ptr(), more.len());
                }
                *len += more.len();
            }
        }
    }

    /// Keeps the first `len` elements; all of them if there are fewer.
    pub fn truncate(&mut self, keep: usize) {
        match &mut self.memory {
            Memory::Heap(elements) => elements.truncate(keep),
            Memory::Mapped { len, .. } => *len = keep.min(*len),
        }
    }

    /// Removes all elements and keeps the capacity.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Releases all memory of the buffer. If that was charged to the budget, the buffer's next
    /// allocation is charged too.
    pub fn release(&mut self) {
        drop(self.take());
    }

    /// Takes the elements, their memory and the charge, and leaves an empty buffer, like
    /// [`Buffer::release`].
    #[must_use]
    pub fn take(&mut self) -> Self {
        let lease = self.lease.as_ref().map(Lease::empty_like_it);
        std::mem::replace(self, Self { memory: Memory::Heap(Vec::new()), lease })
    }

    /// Removes the elements that equal the one before them.
    pub fn dedup(&mut self)
    where
        T: PartialEq,
    {
        let mut kept = 0;
        for at in 0..self.len() {
            if kept == 0 || self[at] != self[kept - 1] {
                self[kept] = self[at];
                kept += 1;
            }
        }
        self.truncate(kept);
    }

    /// Returns the elements as the user's own memory, and ends their charge.
    pub fn into_vec(mut self) -> Vec<T> {
        match &mut self.memory {
            Memory::Heap(elements) => std::mem::take(elements),
            Memory::Mapped { .. } => self.to_vec(),
        }
    }

    /// Bytes charged to the budget.
    pub fn charged_bytes(&self) -> u64 {
        self.lease.as_ref().map_or(0, Lease::bytes)
    }
}

impl Buffer<u8> {
    /// `len` zeros, charged to the budget.
    ///
    /// # Errors
    /// [`OutOfBudget`]; nothing is taken.
    pub fn zeroed(budget: &Budget, kind: Kind, len: usize) -> Result<Self, OutOfBudget> {
        let mut buffer = Self::with_capacity(budget, kind, len)?;
        buffer.resize(len);
        buffer.fill(0);
        Ok(buffer)
    }

    /// Sets the length to `new` bytes. Added bytes are zeros or an earlier holder's contents; the
    /// caller must overwrite them.
    ///
    /// # Panics
    /// `new` exceeds the capacity, unless the buffer is not charged.
    pub fn resize(&mut self, new: usize) {
        let charged = self.lease.is_some();
        if !charged && new > self.capacity() {
            self.extend_own(new - self.len());
        }
        let room = self.capacity();
        match &mut self.memory {
            Memory::Heap(bytes) => {
                assert!(!charged || new <= room, "room is reserved before bytes are added");
                bytes.resize(new, 0);
            }
            Memory::Mapped { len, .. } => {
                assert!(new <= room, "room is reserved before bytes are added");
                // All bytes of a mapping are initialised, and any byte is a `u8`.
                *len = new;
            }
        }
    }
}

impl<T: Copy> Drop for Buffer<T> {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            match std::mem::replace(&mut self.memory, Memory::Heap(Vec::new())) {
                Memory::Mapped { mapping, .. } => lease.release_with(mapping),
                heap @ Memory::Heap(_) => drop((heap, lease)),
            }
        }
    }
}

impl<T: Copy> Deref for Buffer<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match &self.memory {
            Memory::Heap(elements) => elements,
            // SAFETY: the mapping is aligned for `T` and lives as long as `self`; its first `len`
            // elements were written.
            Memory::Mapped { mapping, len } => unsafe {
                std::slice::from_raw_parts(mapping.base().cast::<T>().as_ptr(), *len)
            },
        }
    }
}

impl<T: Copy> DerefMut for Buffer<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.memory {
            Memory::Heap(elements) => elements,
            // SAFETY: as in `deref`, and `self` is borrowed exclusively.
            Memory::Mapped { mapping, len } => unsafe {
                std::slice::from_raw_parts_mut(mapping.base().cast::<T>().as_ptr(), *len)
            },
        }
    }
}

impl<T: Copy> Default for Buffer<T> {
    fn default() -> Self {
        Vec::new().into()
    }
}

/// A buffer of the user's own memory, not charged to a budget.
impl<T: Copy> From<Vec<T>> for Buffer<T> {
    fn from(elements: Vec<T>) -> Self {
        Self { memory: Memory::Heap(elements), lease: None }
    }
}

/// The copy is the user's own memory, not charged to a budget. A large one still goes back to the
/// system when it is dropped.
impl<T: Copy> Clone for Buffer<T> {
    fn clone(&self) -> Self {
        let backing = match &self.memory {
            Memory::Mapped { mapping, .. } => mapping.backing(),
            Memory::Heap(elements) => return elements.clone().into(),
        };
        let Some(mapping) = Mapping::new(size_of_val::<[T]>(self).max(1), backing) else {
            return self.to_vec().into();
        };
        let mut copy = Self { memory: Memory::Mapped { mapping, len: 0 }, lease: None };
        copy.extend_from_slice(self);
        copy
    }
}

impl<T: Copy> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} of {} elements)", self.len(), self.capacity())
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;
    use crate::budget::Backing;

    const BACKINGS: [Backing; 2] =
        if cfg!(miri) { [Backing::Heap; 2] } else { [Backing::Heap, Backing::Mapped] };

    fn held(budget: &Budget) -> [u64; 2] {
        [Kind::Staging, Kind::Spare].map(|kind| budget.usage().of(kind))
    }

    #[test]
    fn elements_round_trip_at_any_length() {
        for backing in BACKINGS {
            let budget = Budget::new(16 << 20, backing).unwrap();
            for count in if cfg!(miri) { &[0, 1, 8193][..] } else { &[0, 1, 8192, 8193, 30_000] } {
                let count = *count;
                let mut buffer =
                    Buffer::<u64>::with_capacity(&budget, Kind::Staging, count).unwrap();
                (0..count as u64).for_each(|number| buffer.push(number * 7));
                assert!(buffer.iter().zip(0..).all(|(element, number)| *element == number * 7));
                assert!(buffer.charged_bytes() >= 8 * count as u64);
                buffer.reserve(count + 3).unwrap();
                buffer.extend_from_slice(&[9, 9, 9]);
                buffer.dedup();
                assert_eq!((buffer.len(), buffer.last()), (count + 1, Some(&9)));
                let copy = buffer.clone();
                assert_eq!((copy.charged_bytes(), &copy[..]), (0, &buffer[..]));
                buffer.truncate(count / 2);
                assert_eq!(
                    buffer.into_vec(),
                    (0..count as u64 / 2).map(|number| number * 7).collect::<Vec<_>>()
                );
            }
        }
    }

    #[test]
    fn large_buffer_is_aligned_leased_and_reused() {
        for backing in BACKINGS {
            let budget = Budget::new(16 << 20, backing).unwrap();
            let mut buffer = Buffer::zeroed(&budget, Kind::Staging, 100_000).unwrap();
            assert_eq!(held(&budget), [7 * STEP_BYTES as u64, 0]);
            buffer[..500].fill(7);
            let address = buffer.as_ptr().addr();
            assert_eq!(address % MAPPING_ALIGN, 0);
            drop(buffer);
            assert_eq!(held(&budget), [0, 7 * STEP_BYTES as u64]);
            let small = Buffer::zeroed(&budget, Kind::Staging, 1000).unwrap();
            assert_eq!(held(&budget), [1000, 7 * STEP_BYTES as u64]);
            let again = Buffer::zeroed(&budget, Kind::Staging, 90_000).unwrap();
            assert_eq!(
                (again.as_ptr().addr(), held(&budget)),
                (address, [1000 + 7 * STEP_BYTES as u64, 0])
            );
            assert!(again[..1000].iter().all(|byte| *byte == 0));
            drop((small, again));
        }
    }

    #[test]
    fn spare_mappings_are_few_and_released_first() {
        let budget = Budget::new(16 << 20, BACKINGS[1]).unwrap();
        let buffers: Vec<_> =
            (0..9).map(|_| Buffer::zeroed(&budget, Kind::Staging, 100_000).unwrap()).collect();
        drop(buffers);
        assert_eq!(held(&budget), [0, 14 * STEP_BYTES as u64], "two are kept");
        let all = Buffer::<u8>::with_capacity(&budget, Kind::Sort, 16 << 20).unwrap();
        assert_eq!((held(&budget), budget.free_bytes()), ([0, 0], 0));
        drop(all);
        assert_eq!((held(&budget), budget.free_bytes()), ([0, 0], 16 << 20), "too large to keep");
    }

    #[test]
    fn refused_growth_changes_nothing() {
        let budget = Budget::new(1 << 20, BACKINGS[1]).unwrap();
        let mut buffer = Buffer::with_capacity(&budget, Kind::Staging, 3).unwrap();
        buffer.extend_from_slice(b"abc");
        assert!(buffer.reserve(2 << 20).is_err());
        assert!(Buffer::<u8>::with_capacity(&budget, Kind::Staging, usize::MAX).is_err());
        assert_eq!((&buffer[..], held(&budget)), (&b"abc"[..], [3, 0]));
        budget.fail_after(0);
        assert!(Buffer::<u8>::with_capacity(&budget, Kind::Staging, 70_000).is_err());
        drop(Buffer::<u8>::with_capacity(&budget, Kind::Staging, 70_000).unwrap());
        budget.fail_after(0);
        assert!(
            Buffer::<u8>::with_capacity(&budget, Kind::Staging, 70_000).is_err(),
            "reusing a spare mapping is refused, too"
        );
    }

    #[test]
    fn copy_grows_because_it_is_not_charged() {
        for backing in BACKINGS {
            let budget = Budget::new(16 << 20, backing).unwrap();
            for length in [10, HEAP_BYTES_MAX + 1] {
                let mut buffer = Buffer::with_capacity(&budget, Kind::Staging, length).unwrap();
                buffer.extend_from_slice(&vec![1_u8; length]);
                let mut copy = buffer.clone();
                let larger = 2 * copy.capacity();
                copy.resize(copy.capacity());
                copy.push(2);
                copy.resize(larger);
                copy.extend_from_slice(&[3]);
                assert_eq!((copy.len(), copy.charged_bytes()), (larger + 1, 0), "{length}");
                assert!(copy[..length] == buffer[..] && copy[larger / 2] == 2 && copy[larger] == 3);
            }
        }
    }

    #[test]
    #[should_panic(expected = "room is reserved")]
    fn buffer_does_not_grow_beyond_its_charge() {
        let budget = Budget::new(1 << 20, BACKINGS[0]).unwrap();
        Buffer::with_capacity(&budget, Kind::Staging, 3).unwrap().extend_from_slice(b"abcd");
    }
}
