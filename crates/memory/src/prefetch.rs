//! Asks the processor to bring bytes near before they are read. A hint: it changes no answer, and does nothing where no instruction for
//! it is known.
#![allow(unsafe_code, reason = "the instructions take addresses")]

/// Bytes that come together.
const LINE_BYTES: usize = 64;

/// Begins to bring `bytes` near, and does not wait.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    // The end may lie in a line that no step from the start falls into.
    for byte in bytes.iter().step_by(LINE_BYTES).chain(bytes.last()) {
        prefetch_line(byte);
    }
}

/// Begins to bring the line at an address near, which others may write meanwhile, and which need not be there.
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
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(readonly, nostack, preserves_flags));
    }
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
#[inline]
fn prefetch_line(_: *const u8) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_any_length_and_alignment_may_be_asked_for_and_stay_as_they_are() {
        let bytes: Vec<u8> = (0..200).collect();
        for start in 0..70 {
            for end in [start, start + 1, start + 64, start + 65, 200] {
                prefetch(&bytes[start..end]);
            }
        }
        assert!(bytes.iter().copied().eq(0..200));
    }
}
