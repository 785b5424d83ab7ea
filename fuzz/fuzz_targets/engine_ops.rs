//! A workload, against the store and against the model.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plimsoll_fuzz::engine_ops(bytes));
