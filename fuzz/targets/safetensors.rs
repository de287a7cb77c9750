//! The fuzz target `safetensors`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tracecast_fuzz::safetensors::run(bytes));
