//! One program before and after each pass, on many numbers: interpreted on a sample, compiled on
//! all of them.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};
use tracecast_codegen::{CpuDevice, CpuOptions};
use tracecast_ir::eval::{self, Value};
use tracecast_ir::{DType, Graph, Stage, TensorType, Tracer, Var, Verified, verify};
use tracecast_passes::{Fuse, Pass, Place, Simplify};
use tracecast_runtime::{Executable, Program, Store, Tensor};

use DType::{BF16, F16, F32};

/// The number of elements of a tensor in these programs, as rows of [`COLUMNS`].
pub(crate) const NUMBERS: usize = 1 << 16;
const COLUMNS: usize = 256;

/// What is done to a value.
pub(crate) type Step<'a> = &'a dyn for<'t> Fn(&'t Tracer, Var<'t>) -> Var<'t>;
/// A program of one value.
pub(crate) type Recorded<'a> = &'a dyn for<'t> Fn(&'t Tracer, Var<'t>) -> Vec<Var<'t>>;

fn recorded(dtype: DType, program: Recorded<'_>) -> Verified {
    let t = Tracer::explicit("rule");
    let x = t.input("x", ty(dtype));
    for (i, y) in program(&t, x).into_iter().enumerate() {
        t.output(&format!("y{i}"), y);
    }
    verify(t.finish().expect("well formed"), Stage::Core).expect("well formed")
}

fn ty(dtype: DType) -> TensorType {
    TensorType::new(dtype, [NUMBERS / COLUMNS, COLUMNS])
}

/// What a pass makes of a program.
pub(crate) fn after(graph: &Verified, pass: &dyn Pass) -> Verified {
    verify(pass.run(graph).expect("runs"), pass.ensures(graph.stage())).expect("well formed")
}

/// How many casts and roundings a program has.
pub(crate) fn casts(graph: &Graph) -> usize {
    graph
        .nodes()
        .filter(|id| matches!(graph.node(*id).op.name().text(), "cast" | "round_to"))
        .count()
}

/// Every 16-bit number, or a sample of wider ones: random bits, every special number, and the ties
/// of each 16-bit float.
fn numbers(dtype: DType, round: u64) -> Value {
    let mut bytes = Vec::with_capacity(NUMBERS * dtype.bytes());
    for i in 0..NUMBERS {
        let word = word(round, i);
        match dtype {
            F16 | BF16 => bytes.extend((i as u16).to_le_bytes()),
            F32 => bytes.extend(single(i, word).to_le_bytes()),
            _ => bytes.extend(double(i, word).to_le_bytes()),
        }
    }
    Value { ty: ty(dtype), bytes: bytes.into() }
}

/// Random bits.
fn word(round: u64, i: usize) -> u64 {
    let mut hasher = DefaultHasher::new();
    (round, i).hash(&mut hasher);
    hasher.finish()
}

/// The bits of an f32: one third random, one third 16-bit numbers and what is next to them, one
/// third ties between those and what is next to them; of both 16-bit floats in turn, and every
/// twentieth a special number.
fn single(i: usize, word: u64) -> u32 {
    const SPECIAL: [u32; 16] = [
        0,
        0x8000_0000,
        1,
        0x8000_0001,
        0x007f_ffff,
        0x0080_0000,
        0x7f7f_ffff,
        0xff7f_ffff,
        0x7f80_0000,
        0xff80_0000,
        0x7f80_0001,
        0x7fc0_0000,
        0xffc0_0001,
        0x3300_0000,
        0x477f_f000,
        0x477f_efff,
    ];
    let random = word as u32;
    let beside = ((word >> 32) % 3) as u32;
    if (word >> 34).is_multiple_of(20) {
        return SPECIAL[(word >> 60) as usize];
    }
    match i % 6 {
        0 | 1 => random,
        2 => (random & 0xffff_0000).wrapping_add(beside).wrapping_sub(1),
        3 => (random & 0xffff_e000).wrapping_add(beside).wrapping_sub(1),
        4 => (random & 0xffff_0000 | 0x8000).wrapping_add(beside).wrapping_sub(1),
        _ => (random & 0xffff_e000 | 0x1000).wrapping_add(beside).wrapping_sub(1),
    }
}

/// The bits of an f64: random, or an f32 of [`single`] and what is next to it.
fn double(i: usize, word: u64) -> u64 {
    if i.is_multiple_of(4) {
        return word;
    }
    let wide = f64::from(f32::from_bits(single(i, word))).to_bits();
    wide.wrapping_add(word >> 16 & 3).wrapping_sub(1)
}

/// The tensors that a rule is tried on, made once for each dtype.
fn tensors(dtype: DType) -> &'static [Tensor] {
    static ALL: [OnceLock<Vec<Tensor>>; 4] = [const { OnceLock::new() }; 4];
    let set = std::env::var("TRACECAST_NUMBERS").ok().and_then(|n| n.parse().ok());
    let count = set.unwrap_or(10_000_000_u64);
    let (at, count) = match dtype {
        F16 => (0, 1),
        BF16 => (1, 1),
        F32 => (2, count),
        _ => (3, count / 5),
    };
    let rounds = count.div_ceil(NUMBERS as u64).max(1);
    let tensor = |round| {
        let value = numbers(dtype, round);
        Tensor::from_bytes(value.ty, value.bytes).expect("as many bytes as elements")
    };
    ALL[at].get_or_init(|| (0..rounds).map(tensor).collect())
}

/// The program as machine code, fused but otherwise as it is.
fn compiled(graph: &Verified) -> Executable {
    static CPU: OnceLock<Arc<CpuDevice>> = OnceLock::new();
    let device = CPU.get_or_init(|| {
        let options = CpuOptions { threads: Some(1), ..CpuOptions::default() };
        Arc::new(CpuDevice::new(options).expect("a host that compiles"))
    });
    let fused =
        if graph.stage() == Stage::Fused { graph.clone() } else { after(graph, &Fuse::default()) };
    Program::plan(&fused).and_then(|plan| plan.load(device.clone())).expect("compiles")
}

fn run(program: &Executable, x: &Tensor) -> Vec<Tensor> {
    let out = program.run(&mut Store::new(), &[("x", x)]).expect("runs");
    out.iter().map(|(_, tensor)| tensor.clone()).collect()
}

/// The first result that differs, where it does, and both numbers there.
fn difference<'a>(
    wanted: impl IntoIterator<Item = &'a Value>,
    found: impl IntoIterator<Item = &'a Value>,
) -> Option<String> {
    wanted.into_iter().zip(found).enumerate().find_map(|(i, (a, b))| {
        if a == b {
            return None;
        }
        let at = a.first_difference(b)?;
        Some(format!("y{i}[{at}] is {:?}, then {:?}", a.to_f64s()[at], b.to_f64s()[at]))
    })
}

/// The program, and all that passes make of it, give the same bits for every number; returns what
/// is there before `fuse`.
#[track_caller]
pub(crate) fn checked(what: &str, dtype: DType, program: Recorded<'_>) -> Verified {
    let before = recorded(dtype, program);
    let simple = after(&before, &Simplify);
    let placed = after(&simple, &Place::default());
    let only_placed = after(&before, &Place::default());
    let fused = after(&placed, &Fuse::default());
    let others = [&simple, &placed, &only_placed, &fused];
    let tensors = tensors(dtype);
    let inputs: HashMap<String, Value> = [("x".to_owned(), tensors[0].value().clone())].into();
    let interpreted = |graph: &Verified| -> Vec<Value> {
        let out = eval::graph(graph, &inputs).expect("runs");
        out.outputs.into_iter().map(|(_, value)| value).collect()
    };
    let wanted = interpreted(&before);
    let code = compiled(&before);
    let first = run(&code, &tensors[0]);
    let wrong = difference(&wanted, first.iter().map(Tensor::value));
    assert_eq!(wrong, None, "{what}: interpreted, then compiled\n{}", *before);
    let mut codes: Vec<(&Verified, Executable)> = Vec::new();
    for other in others {
        let wrong = difference(&wanted, &interpreted(other));
        assert_eq!(wrong, None, "{what}\n{}\n{}", *before, **other);
        codes.push((other, compiled(other)));
    }
    for x in tensors {
        let wanted = run(&code, x);
        for (other, code) in &codes {
            let found = run(code, x);
            let wrong =
                difference(wanted.iter().map(Tensor::value), found.iter().map(Tensor::value));
            assert_eq!(wrong, None, "{what}\n{}\n{}", *before, ***other);
        }
    }
    placed
}

/// As [`checked`], with that many casts left.
#[track_caller]
pub(crate) fn leaves(casts_left: usize, what: &str, dtype: DType, program: Recorded<'_>) {
    let placed = checked(what, dtype, program);
    assert_eq!(casts(&placed), casts_left, "{what}\n{}", *placed);
}
