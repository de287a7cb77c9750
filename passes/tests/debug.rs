//! debug
#[path = "../../tests/support/random.rs"]
#[allow(dead_code, reason = "x")]
mod random;
use tracecast_passes::{PassOptions, standard};
#[test]
fn show() {
    let seed: u64 = std::env::var("SEED").unwrap().parse().unwrap();
    let graph = random::program(seed, 12);
    let _ = standard(&PassOptions::default()).run(graph, |pass, graph, _| {
        if ["trace", "decompose", "place", "fuse"].contains(&pass) { println!("=== {pass}\n{}", &**graph); }
    });
}
