//! A manifest, after its head.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plimsoll::fuzz::manifest(bytes));
