//! The fuzz target `npz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tracecast_fuzz::npz::run(bytes));
