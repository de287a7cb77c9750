//! The command-line tool with these chips:
//! `cargo run --features tool -- explain --device npu:1 FILE`. The smallest ones are `small`, and
//! need a fallback: `train --device small --fallback reference`.

use sim_npu::{Driver, Settings};
use std::process::ExitCode;
use std::sync::Arc;
use tracecast_runtime::Registry;

fn main() -> ExitCode {
    let registry = Arc::new(Registry::new());
    let small = Driver { settings: Settings::strict() };
    registry.register("npu", Arc::new(Driver::default())).expect("an empty registry takes it");
    registry.register("small", Arc::new(small)).expect("there is room for four kinds");
    tracecast_cli::main_with(&registry)
}
