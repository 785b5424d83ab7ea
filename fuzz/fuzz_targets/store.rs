//! A whole store of which bytes were changed although every checksum fits.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plimsoll::fuzz::store::store(bytes));
