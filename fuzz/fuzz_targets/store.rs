//! A whole store with changed bytes but valid checksums.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plimsoll::fuzz::store::store(bytes));
