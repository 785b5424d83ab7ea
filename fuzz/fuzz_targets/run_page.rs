//! A page of a run.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plimsoll::fuzz::run_page(bytes));
