//! The fuzz target `pt2`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tracecast_fuzz::pt2::run(bytes));
