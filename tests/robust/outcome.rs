//! What becomes of a program: refused with a reason, or computed as the interpreter says. Anything
//! else is a fault.

use crate::support::{self, dice::Dice};
use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tracecast_codegen::{CpuDevice, CpuOptions, Vectors};
use tracecast_ir::eval::{self, EvalError, Value};
use tracecast_ir::{Graph, PassError, TensorType};
use tracecast_passes::{Autodiff, PassOptions, standard};
use tracecast_runtime::{Device, Program, ReferenceDevice};

/// How a program ended that has no fault.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    /// It was refused, with this reason.
    Refused(String),
    /// It was compiled, and is too large to run here.
    Compiled,
    /// The data had no meaning for it.
    Data(String),
    /// It was run.
    Computed,
}

/// Elements of all values of a program that is run.
const LARGEST: usize = 100_000;

/// The devices that programs run on: the CPU and the reference.
pub(crate) fn devices() -> Vec<Arc<dyn Device>> {
    let cpu = |vectors, threads| {
        let options = CpuOptions { threads: Some(threads), vectors, ..CpuOptions::default() };
        Arc::new(CpuDevice::new(options).expect("a host that compiles"))
    };
    vec![
        cpu(Vectors::Native, 1),
        cpu(Vectors::Avx2, 2),
        cpu(Vectors::Portable, 3),
        Arc::new(ReferenceDevice),
    ]
}

/// Runs `body`; a panic becomes an error with its message.
pub(crate) fn caught<R>(body: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(body)).map_err(|payload| format!("panic: {}", message(&*payload)))
}

fn message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// Passes, planning, compilation and a run on each device.
///
/// # Errors
/// What is wrong about it.
pub(crate) fn follow(
    graph: &Graph,
    devices: &[Arc<dyn Device>],
    dice: &mut Dice,
) -> Result<Outcome, String> {
    let mut differentiated = None;
    let (mut elements, mut products) = (0, 0);
    let passes = standard(&PassOptions::default());
    let fused = passes.run(graph.clone(), |pass, graph, _| {
        (elements, products) = (size(graph).max(elements), work(graph).max(products));
        if pass == Autodiff::NAME {
            differentiated = Some(graph.clone());
        }
    });
    let fused = match fused {
        Ok(fused) => fused,
        Err(error @ PassError::AfterPass { .. }) => return Err(error.to_string()),
        Err(error) => return Ok(Outcome::Refused(error.to_string())),
    };
    let reference = differentiated.ok_or("the pipeline has no autodiff")?;
    let program = Program::plan(&fused).map_err(|e| e.to_string())?;
    drop(program.to_string());
    if elements > LARGEST || products > 20 * LARGEST {
        for device in devices {
            let loaded = Program::plan(&fused).and_then(|p| p.load(device.clone()));
            loaded.map_err(|e| format!("{}: {e}", device.name()))?;
        }
        return Ok(Outcome::Compiled);
    }
    let inputs = wild_inputs(graph, dice);
    let wanted = match eval::graph(&reference, &inputs) {
        Ok(wanted) => Ok(wanted),
        Err(error @ EvalError::Data(_)) => Err(error.to_string()),
        // A program for several ranks, of which this is one.
        Err(error) if error.to_string().contains("ranks, evaluated with 1") => {
            return Ok(Outcome::Refused(error.to_string()));
        }
        Err(error) => return Err(format!("interpreter: {error}")),
    };
    for device in devices {
        let found = support::computed(&fused, device.clone(), &inputs);
        let fault = match (&found, &wanted) {
            (Ok(found), Ok(wanted)) => support::difference(found, wanted),
            (Err(error), Ok(_)) => Some(error.clone()),
            // The interpreter also looks at what no result needs.
            (_, Err(_)) => None,
        };
        if let Some(fault) = fault {
            return Err(format!("{}: {fault}\ninputs {}", device.name(), shown(&inputs)));
        }
    }
    Ok(wanted.map_or_else(Outcome::Data, |_| Outcome::Computed))
}

impl std::fmt::Display for Numbers<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let numbers = self.0.to_f64s();
        write!(f, "{:?}", &numbers[..numbers.len().min(64)])
    }
}

struct Numbers<'a>(&'a Value);

fn shown(inputs: &HashMap<String, Value>) -> String {
    let all: Vec<String> =
        inputs.iter().map(|(name, v)| format!("{name} = {}", Numbers(v))).collect();
    all.join(", ")
}

fn size(graph: &Graph) -> usize {
    let nodes = graph.nodes().flat_map(|id| &graph.node(id).results);
    nodes.fold(0usize, |sum, ty| sum.saturating_add(ty.numel().get()))
}

/// The multiplications of the products.
fn work(graph: &Graph) -> usize {
    let product = |id| {
        let node = graph.node(id);
        let inner =
            graph.args(id).first().map_or(1, |x| graph.ty(*x).shape.last().map_or(1, |n| n.get()));
        let is_product = matches!(node.op.name().text(), "contract" | "matmul" | "linear");
        if is_product { node.results[0].numel().get().saturating_mul(inner) } else { 0 }
    };
    graph.nodes().fold(0usize, |sum, id| sum.saturating_add(product(id)))
}

/// A value for every port, some of them extreme.
pub(crate) fn wild_inputs(graph: &Graph, dice: &mut Dice) -> HashMap<String, Value> {
    let wild = dice.chance(40);
    graph.ports().iter().map(|p| (p.name.clone(), wild_value(&p.ty, wild, dice))).collect()
}

fn wild_value(ty: &TensorType, wild: bool, dice: &mut Dice) -> Value {
    let limit = 1 + dice.below(3);
    const FLOATS: [f64; 10] = [
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        0.0,
        -0.0,
        1e-40,
        65519.9,
        1e38,
        -1e300,
        3.0e-8,
    ];
    const INTS: [f64; 8] = [-1.0, 0.0, 255.0, 256.0, 2147483647.0, -2147483648.0, 9.3e18, -9.3e18];
    let one = |dice: &mut Dice| match (ty.dtype.is_float(), wild && dice.chance(25)) {
        (true, true) => dice.pick(&FLOATS),
        (true, false) => dice.unit() * 2.0,
        (false, true) => dice.pick(&INTS),
        (false, false) => dice.below(limit) as f64,
    };
    let numbers: Vec<f64> = (0..ty.numel().get()).map(|_| one(dice)).collect();
    Value::from_f64s(ty.clone(), &numbers).expect("a computable type")
}
