//! Arrays that reserve address space for their largest possible size. Only touched parts take
//! memory, and unneeded parts can be released.
#![allow(unsafe_code, reason = "makes arrays of atomics from zeroed memory")]

use std::fmt;
use std::io;
use std::ops::Deref;
use std::ptr::NonNull;

use crate::backing::Backing;

/// Granularity of releases: a multiple of the system's page size, which is 4 or 16 KiB.
const PAGE_BYTES_MAX: usize = 16 << 10;

/// An array whose elements are all zeros at first. It is shared: its elements have interior
/// mutability (atomics).
pub(crate) struct Reserved<T> {
    base: NonNull<T>,
    len: usize,
    backing: Backing,
}

// SAFETY: like a boxed slice.
unsafe impl<T: Send> Send for Reserved<T> {}
// SAFETY: like a boxed slice.
unsafe impl<T: Sync> Sync for Reserved<T> {}

impl<T> Reserved<T> {
    /// An array of `len` elements.
    ///
    /// # Errors
    /// The system refuses the address space, because it counts reserved memory as used
    /// (`vm.overcommit_memory` is 2) or limits address space (`ulimit -v`).
    ///
    /// # Panics
    /// There are no elements, or an element needs more than a page's alignment or a destructor.
    ///
    /// # Safety
    /// All zeros is a valid `T`, and all of it may change while it is shared (it is made of
    /// atomics).
    pub(crate) unsafe fn zeroed(len: usize, backing: Backing) -> io::Result<Self> {
        let bytes = len
            .checked_mul(size_of::<T>())
            .ok_or_else(|| refused(usize::MAX, "more than the address space"))?;
        assert!(bytes > 0 && align_of::<T>() <= 4096 && !std::mem::needs_drop::<T>());
        let base = match backing {
            // SAFETY: a new private mapping overlaps no other memory.
            Backing::Mapped => unsafe {
                use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
                let (protection, flags) =
                    (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
                mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags)
                    .map_err(|error| refused(bytes, &error.to_string()))?
                    .cast()
            },
            // SAFETY: the layout has a size above zero.
            Backing::Heap => unsafe { std::alloc::alloc_zeroed(layout::<T>(len)).cast() },
        };
        let base = NonNull::new(base).ok_or_else(|| refused(bytes, "no heap"))?;
        Ok(Self { base, len, backing })
    }

    /// Returns the memory of the elements from `from` on to the system, in whole pages. These
    /// elements are then zeros until they are written again. They keep their values instead if they
    /// share a page with elements before `from`, if the array is on the heap, or if the system
    /// refuses.
    pub(crate) fn release(&self, from: usize) {
        assert!(from <= self.len);
        if self.backing == Backing::Mapped {
            let start = (from * size_of::<T>()).next_multiple_of(PAGE_BYTES_MAX);
            let bytes = (self.len * size_of::<T>()).saturating_sub(start);
            let address = self.base.as_ptr().cast::<u8>().wrapping_add(start).cast();
            if bytes > 0 {
                // SAFETY: the range lies inside the mapping, up to its last page. Other threads
                // then read zeros, which are valid elements, and an element may change as a whole
                // at any time: the caller of `zeroed` promised both.
                let _ = unsafe {
                    rustix::mm::madvise(address, bytes, rustix::mm::Advice::LinuxDontNeed)
                };
            }
        }
    }
}

fn refused(bytes: usize, cause: &str) -> io::Error {
    let message = format!(
        "the system refuses {bytes} bytes of address space for sparse tables ({cause}): set \
         vm.overcommit_memory to 0 or 1, raise the limit on address space (ulimit -v), or lower \
         the maximum budget"
    );
    io::Error::new(io::ErrorKind::OutOfMemory, message)
}

impl<T> Deref for Reserved<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `zeroed` made this many elements, valid as they are, and they live as long as
        // `self`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl<T> Drop for Reserved<T> {
    fn drop(&mut self) {
        match self.backing {
            // SAFETY: exactly what `zeroed` mapped.
            Backing::Mapped => unsafe {
                let _ = rustix::mm::munmap(self.base.as_ptr().cast(), self.len * size_of::<T>());
            },
            // SAFETY: allocated in `zeroed` with the same layout.
            Backing::Heap => unsafe {
                std::alloc::dealloc(self.base.as_ptr().cast(), layout::<T>(self.len))
            },
        }
    }
}

impl<T> fmt::Debug for Reserved<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reserved({} elements)", self.len)
    }
}

fn layout<T>(len: usize) -> std::alloc::Layout {
    std::alloc::Layout::array::<T>(len).expect("an array that fits into the address space")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn elements_are_zero_until_they_change() {
        for backing in
            if cfg!(miri) { [Backing::Heap; 2] } else { [Backing::Heap, Backing::Mapped] }
        {
            // SAFETY: all-zero bytes are a valid zero.
            let array: Reserved<AtomicU64> = unsafe { Reserved::zeroed(1000, backing) }.unwrap();
            array[999].store(7, Ordering::Relaxed);
            assert_eq!(array.iter().map(|element| element.load(Ordering::Relaxed)).sum::<u64>(), 7);
        }
    }

    #[test]
    fn release_zeroes_or_keeps_elements_and_spares_the_others() {
        for backing in
            if cfg!(miri) { [Backing::Heap; 2] } else { [Backing::Heap, Backing::Mapped] }
        {
            // SAFETY: all-zero bytes are a valid zero.
            let array: Reserved<AtomicU64> = unsafe { Reserved::zeroed(5000, backing) }.unwrap();
            array.iter().for_each(|element| element.store(7, Ordering::Relaxed));
            array.release(1000);
            let all: Vec<_> = array.iter().map(|element| element.load(Ordering::Relaxed)).collect();
            assert!(all[..1000].iter().all(|&element| element == 7));
            assert!(all[1000..].iter().all(|&element| element == 7 || element == 0));
            assert_eq!(all.contains(&0), backing == Backing::Mapped);
            array.release(5000);
            array[4999].store(9, Ordering::Relaxed);
            assert_eq!(array[4999].load(Ordering::Relaxed), 9);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the system")]
    fn refused_address_space_is_an_error_with_a_remedy() {
        for len in [1 << 46, usize::MAX] {
            // SAFETY: all-zero bytes are a valid zero.
            let array: io::Result<Reserved<AtomicU64>> =
                unsafe { Reserved::zeroed(len, Backing::Mapped) };
            let error = array.expect_err("no processor has that much address space");
            assert!(error.to_string().contains("vm.overcommit_memory"), "{error}");
        }
    }
}
