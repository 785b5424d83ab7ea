//! Processor prefetch: loads bytes into the cache before they are read. It is a hint that changes
//! no result, and does nothing on processors without a known instruction for it.
#![allow(unsafe_code, reason = "the instructions take addresses")]

/// Size of a cache line.
const LINE_BYTES: usize = 64;

/// Prefetches `bytes`, without waiting.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    // The last byte may be in a line that the steps from the start skip.
    for byte in bytes.iter().step_by(LINE_BYTES).chain(bytes.last()) {
        prefetch_line(byte);
    }
}

/// Prefetches the cache line of the byte at `at`; does nothing beyond the end of `bytes`.
#[inline]
pub fn prefetch_at(bytes: &[u8], at: usize) {
    if let Some(byte) = bytes.get(at) {
        prefetch_line(byte);
    }
}

/// Prefetches `len` bytes at an address, as [`prefetch_address`] does.
#[inline]
pub(crate) fn prefetch_from(address: *const u8, len: usize) {
    (0..len).step_by(LINE_BYTES).for_each(|at| prefetch_line(address.wrapping_add(at)));
}

/// Prefetches the line at an address. Other threads may write it meanwhile, and the address need
/// not be mapped.
#[inline]
pub(crate) fn prefetch_address<T>(address: *const T) {
    prefetch_line(address.cast());
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn prefetch_line(address: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: it reads nothing and never faults; every x86-64 processor knows it.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline]
fn prefetch_line(address: *const u8) {
    // SAFETY: it reads nothing, changes no register and never faults.
    unsafe {
        std::arch::asm!(
            "prfm pldl1keep, [{}]",
            in(reg) address,
            options(readonly, nostack, preserves_flags)
        );
    }
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
#[inline]
fn prefetch_line(_: *const u8) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefetch_accepts_any_range_and_changes_nothing() {
        let bytes: Vec<u8> = (0..200).collect();
        for start in 0..70 {
            for end in [start, start + 1, start + 64, start + 65, 200] {
                prefetch(&bytes[start..end]);
                prefetch_at(&bytes, end + start);
                prefetch_from(bytes.as_ptr().wrapping_add(start), end);
            }
        }
        assert!(bytes.iter().copied().eq(0..200));
    }
}
