//! Fragments of records in a segment of the log.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plimsoll_fuzz::log_record(bytes));
