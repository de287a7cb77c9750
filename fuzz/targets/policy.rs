//! The fuzz target `policy`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tracecast_fuzz::policy::run(bytes));
