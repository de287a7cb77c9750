//! Random programs through all passes and both engines: every choice of a program, its devices and
//! its data is a byte. Some are explained, compiled with fewer roundings, or listed as plans and
//! code besides.

use crate::outcome::{Outcome, devices, follow, wild_inputs};
use crate::support::dice::Dice;
use crate::support::{self, layers, random};
use std::sync::{Arc, LazyLock};
use tracecast_codegen::{PlanStage, PlanTarget, plan_stages, plan_text};
use tracecast_ir::{Graph, eval, text};
use tracecast_passes::explain::explain;
use tracecast_passes::{PassOptions, Precision, standard};
use tracecast_runtime::{Device, Program};

/// The CPU with each kind of vectors, and the reference.
static DEVICES: LazyLock<Vec<Arc<dyn Device>>> = LazyLock::new(devices);

/// Tries it.
pub fn run(bytes: &[u8]) {
    let dice = &mut Dice::given(bytes);
    let device = DEVICES[dice.below(DEVICES.len())].clone();
    let size = 1 + dice.below(16);
    let graph = if dice.chance(25) {
        layers::drawn(dice, 0, size.min(6))
    } else {
        random::drawn(dice, 0, size)
    };
    let printed = graph.to_string();
    let again = text::parse(&printed).unwrap_or_else(|error| panic!("{error}\n{printed}"));
    assert_eq!(again.to_string(), printed);
    match follow(&graph, &[device], dice) {
        Ok(Outcome::Refused(reason)) => panic!("refused: {reason}\n{printed}"),
        Ok(_) => {}
        Err(fault) => panic!("{fault}\n{printed}"),
    }
    match dice.below(8) {
        0 => explained(&graph),
        1 => rounded_less(&graph, dice),
        2 => listed(&graph),
        _ => {}
    }
}

/// Every part of the program can be explained, also one by one.
fn explained(graph: &Graph) {
    let all = explain(graph, &PassOptions::default()).unwrap_or_else(|e| panic!("{e}\n{graph}"));
    assert!(!all.to_string().is_empty());
    for op in &all.ops {
        let one = all.about(&op.value).unwrap_or_else(|e| panic!("{e}\n{graph}"));
        assert!(!one.to_string().is_empty());
    }
}

/// With fewer roundings it is a program as well: it is computed, whatever the bits, and explained.
fn rounded_less(graph: &Graph, dice: &mut Dice) {
    let options = PassOptions { precision: Precision::Optimised, ..PassOptions::default() };
    let fused = standard(&options)
        .run(graph.clone(), |_, _, _| ())
        .unwrap_or_else(|e| panic!("optimised: {e}\n{graph}"));
    let inputs = wild_inputs(graph, dice);
    for device in &DEVICES[..1] {
        let found = support::computed(&fused, device.clone(), &inputs);
        // Data without meaning for an op is refused.
        assert!(found.is_ok() || eval::graph(&fused, &inputs).is_err(), "{found:?}\n{graph}");
    }
    explain(graph, &options).unwrap_or_else(|e| panic!("optimised: {e}\n{graph}"));
}

/// The plans of its kernels for every kind of vectors, and their code, as text.
fn listed(graph: &Graph) {
    let fused = standard(&PassOptions::default())
        .run(graph.clone(), |_, _, _| ())
        .unwrap_or_else(|e| panic!("{e}\n{graph}"));
    let program = Program::plan(&fused).and_then(|program| program.load(DEVICES[0].clone()));
    let program = program.unwrap_or_else(|e| panic!("{e}\n{graph}"));
    for (kernel, code) in program.code() {
        assert!(code.is_none_or(|code| !code.is_empty()));
        for target in [PlanTarget::Portable, PlanTarget::Avx2, PlanTarget::Avx512] {
            plan_text(kernel, PlanStage::Finished(target))
                .unwrap_or_else(|e| panic!("{e}\n{graph}"));
        }
        for stage in plan_stages() {
            plan_text(kernel, PlanStage::Until(stage)).unwrap_or_else(|e| panic!("{e}\n{graph}"));
        }
    }
}
