//! The payload of a transaction's entry.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plimsoll::fuzz::payload(bytes));
