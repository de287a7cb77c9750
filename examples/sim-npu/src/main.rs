//! The command-line tool with these chips:
//! `cargo run --features tool -- explain --device npu:1 FILE`.

use sim_npu::Driver;
use std::process::ExitCode;
use std::sync::Arc;
use tracecast_runtime::Registry;

fn main() -> ExitCode {
    let registry = Arc::new(Registry::new());
    registry.register("npu", Arc::new(Driver::default())).expect("an empty registry takes it");
    tracecast_cli::main_with(&registry)
}
