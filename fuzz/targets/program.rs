//! The fuzz target `program`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tracecast_fuzz::program::run(bytes));
