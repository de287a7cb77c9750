//! The fuzz target `text`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tracecast_fuzz::text::run(bytes));
