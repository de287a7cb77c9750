//! The schedules that are chosen for the shapes of the benches, as golden text:
//! `tests/data/schedules` has a file for each machine, two threads each. A schedule is chosen for
//! any machine on any CPU of its architecture, so every x86-64 CPU checks all of them.
//!
//! `TRACECAST_BLESS=1` writes the files anew. They change only in a commit that says why.

#[path = "../benches/support/attention.rs"]
mod attention;
#[path = "../benches/support/convolution.rs"]
mod convolution;
#[path = "../benches/support/product.rs"]
mod product;

use std::fmt::Write;
use std::path::Path;
use tracecast::ir::Attr;
use tracecast::ir::kernel::Kernel;
use tracecast::{Graph, Options, passes};
use tracecast_codegen::{Machine, schedule_text};

const MACHINES: [&str; 4] = ["avx512-pairs", "avx512", "avx2", "portable"];

/// Threads that share a product.
const THREADS: usize = 2;

#[test]
fn schedules_are_as_recorded() {
    let all = programs();
    for name in MACHINES {
        let Some(machine) = Machine::named(name, THREADS) else {
            eprintln!("skipped: {name} is of another architecture");
            continue;
        };
        let mut text = String::new();
        for (shape, kernels) in &all {
            writeln!(text, "{shape}").expect("a string");
            for kernel in kernels {
                let line = schedule_text(kernel, &machine).expect("a kernel that has code");
                line.iter().for_each(|line| writeln!(text, "  {line}").expect("a string"));
            }
        }
        let path = format!("tests/data/schedules/{name}.txt");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        if std::env::var_os("TRACECAST_BLESS").is_some() {
            std::fs::write(&path, &text).expect("the file can be written");
        }
        let known = std::fs::read_to_string(&path).expect("the file is there");
        let differs = known.lines().zip(text.lines()).enumerate().find(|(_, (a, b))| a != b);
        let differs = differs.map(|(i, (a, b))| format!("line {}:\n- {a}\n+ {b}", i + 1));
        assert!(known == text, "{}: {}", path.display(), differs.unwrap_or_default());
    }
}

/// The kernels of each shape.
fn programs() -> Vec<(String, Vec<Kernel>)> {
    let mut all = Vec::new();
    for (shape, batch) in convolution::all() {
        for direction in convolution::DIRECTIONS {
            for dtype in convolution::DTYPES {
                let name = format!("{} {direction} {dtype}", shape.name(batch));
                all.push((name, kernels(shape.graph(batch, direction, dtype))));
            }
        }
    }
    for shape in product::SHAPES.into_iter().chain(product::large()) {
        for dtype in product::DTYPES {
            let name = format!("{} {dtype}", product::name(shape));
            all.push((name, kernels(product::graph(shape, dtype))));
        }
    }
    for row in attention::rows() {
        for dtype in attention::DTYPES {
            let name = format!("attention {}", attention::name(row, dtype));
            all.push((name, kernels(attention::graph(row, dtype))));
        }
    }
    all
}

/// The kernels of a program.
fn kernels(graph: Graph) -> Vec<Kernel> {
    let fused = passes::standard(&Options::new().passes()).run(graph, |_, _, _| ());
    let fused = fused.expect("a program that can be fused");
    let mut kernels: Vec<Kernel> = Vec::new();
    for id in fused.nodes() {
        if let Some(Attr::Kernel(kernel)) = fused.node(id).attrs.get("kernel")
            && !kernels.contains(kernel)
        {
            kernels.push((**kernel).clone());
        }
    }
    kernels
}
