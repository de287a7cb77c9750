//! A small plan for every entry of [`Capability`], from which tests see that an emitter accepts
//! what the table promises, and nothing else.

use super::{Capability, Class, Kind, Lanes, Phase, Phases};
use crate::plan::{Affine, Place, Plan, Sink, Source};
use smallvec::{SmallVec, smallvec};
use tracecast_ir::kernel::{
    Access, Body, Cmp, Combiner, Function, Inst, Reduction, Scalar, ScalarOp, Val,
};
use tracecast_ir::{DType, Size};

/// The positions of a plan: two vectors, one, and some that are left, whatever the width.
const POSITIONS: i64 = 59;

const SCALARS: [Scalar; 5] = [Scalar::F32, Scalar::F64, Scalar::I32, Scalar::I64, Scalar::Bool];

/// One entry of the table.
pub(crate) struct Sample {
    /// What the entry is about.
    pub(crate) name: String,
    /// A plan of one stage.
    pub(crate) plan: Plan,
    /// Everything in one vector phase.
    pub(crate) cut: Phases,
    /// Whether the table says that vectors do it.
    pub(crate) promised: bool,
}

/// A sample of every entry.
pub(crate) fn samples(can: Capability) -> Vec<Sample> {
    let mut samples = computations(can);
    samples.extend(DType::ALL.into_iter().flat_map(|dtype| memory(can, dtype)));
    samples.extend(SCALARS.into_iter().flat_map(|ty| [row_buffer(can, ty), positions(can, ty)]));
    for ty in SCALARS {
        for reduction in Reduction::ALL {
            let name = format!("{reduction} of {}", ty.name());
            let along = Sink::Reduce { reduction, value: 0, register: 0 };
            samples.push(taken(can, format!("{name} along rows"), ty, along));
            let down = Sink::Column {
                reduction,
                value: 0,
                slot: 1,
                keep: smallvec![Size::from(1)],
                count: smallvec![Size::from(0)],
                size: POSITIONS.into(),
            };
            samples.push(taken(can, format!("{name} down columns"), ty, down));
        }
        let keep = Sink::Keep { value: 0, buffer: 0 };
        samples.push(taken(can, format!("keeping {}", ty.name()), ty, keep));
    }
    samples
}

/// Every instruction, with operands of every type that it has in any kernel.
fn computations(can: Capability) -> Vec<Sample> {
    let mut samples = Vec::new();
    let mut op = Some(ScalarOp::Const(0));
    while let Some(at) = op {
        for (operands, ty) in signatures(at) {
            let name = format!("{} of {operands:?} as {}", at.name(), ty.name());
            let loads: Vec<DType> = operands.iter().map(|ty| ty.dtype()).collect();
            let args: SmallVec<[Val; 3]> = (0..operands.len() as Val).collect();
            let inst = Inst { op: at, args, ty };
            let value = loads.len() as Val;
            let promised = can.computes(&inst, |v| operands[v as usize]) == Class::Vector;
            let sinks = vec![stored(value, ty.dtype(), loads.len())];
            samples.push(sample(can, name, &loads, vec![inst], sinks, promised));
        }
        op = next(at);
    }
    samples
}

/// The types of operands and results that an instruction may have; none for what is no computation.
fn signatures(op: ScalarOp) -> Vec<(Vec<Scalar>, Scalar)> {
    let alike = |operands: usize| SCALARS.map(|ty| (vec![ty; operands], ty)).to_vec();
    match op {
        ScalarOp::Const(_)
        | ScalarOp::Argument(_)
        | ScalarOp::Load(_)
        | ScalarOp::Index(_)
        | ScalarOp::Row(_)
        | ScalarOp::Register(_)
        | ScalarOp::Acc => Vec::new(),
        ScalarOp::Neg
        | ScalarOp::Abs
        | ScalarOp::Sqrt
        | ScalarOp::Floor
        | ScalarOp::Call(_)
        | ScalarOp::Round(_)
        | ScalarOp::Not
        | ScalarOp::WrapU8 => alike(1),
        ScalarOp::Add
        | ScalarOp::Sub
        | ScalarOp::Mul
        | ScalarOp::Div
        | ScalarOp::Rem
        | ScalarOp::Max
        | ScalarOp::Min
        | ScalarOp::And
        | ScalarOp::Or => alike(2),
        ScalarOp::MulAdd => alike(3),
        ScalarOp::Cmp(_) => SCALARS.map(|ty| (vec![ty; 2], Scalar::Bool)).to_vec(),
        ScalarOp::Select => SCALARS.map(|ty| (vec![Scalar::Bool, ty, ty], ty)).to_vec(),
        ScalarOp::Convert => {
            SCALARS.iter().flat_map(|from| SCALARS.map(|to| (vec![*from], to))).collect()
        }
        ScalarOp::Random { .. } => vec![(vec![Scalar::I64; 3], Scalar::I32)],
        ScalarOp::Check(_) => [vec![Scalar::Bool], vec![Scalar::Bool, Scalar::I64]]
            .map(|operands| (operands, Scalar::Bool))
            .to_vec(),
    }
}

/// The instruction after one in the list of all: a match, so that a new one does not compile
/// without a place in it.
fn next(op: ScalarOp) -> Option<ScalarOp> {
    let function = |at: usize| Function::ALL.get(at).copied().map(ScalarOp::Call);
    let round = |at: usize| DType::ALL.get(at).copied().map(ScalarOp::Round);
    Some(match op {
        ScalarOp::Const(_) => ScalarOp::Argument(0),
        ScalarOp::Argument(_) => ScalarOp::Load(0),
        ScalarOp::Load(_) => ScalarOp::Index(0),
        ScalarOp::Index(_) => ScalarOp::Row(0),
        ScalarOp::Row(_) => ScalarOp::Register(0),
        ScalarOp::Register(_) => ScalarOp::Acc,
        ScalarOp::Acc => ScalarOp::Add,
        ScalarOp::Add => ScalarOp::Sub,
        ScalarOp::Sub => ScalarOp::Mul,
        ScalarOp::Mul => ScalarOp::MulAdd,
        ScalarOp::MulAdd => ScalarOp::Div,
        ScalarOp::Div => ScalarOp::Rem,
        ScalarOp::Rem => ScalarOp::Max,
        ScalarOp::Max => ScalarOp::Min,
        ScalarOp::Min => ScalarOp::Neg,
        ScalarOp::Neg => ScalarOp::Abs,
        ScalarOp::Abs => ScalarOp::Sqrt,
        ScalarOp::Sqrt => ScalarOp::Floor,
        ScalarOp::Floor => return function(0),
        ScalarOp::Call(f) => return function(f as usize + 1).or_else(|| round(0)),
        ScalarOp::Round(dtype) => {
            let at = DType::ALL.iter().position(|other| *other == dtype)?;
            return round(at + 1).or(Some(ScalarOp::Cmp(Cmp::Eq)));
        }
        ScalarOp::Cmp(Cmp::Eq) => ScalarOp::Cmp(Cmp::Ne),
        ScalarOp::Cmp(Cmp::Ne) => ScalarOp::Cmp(Cmp::Lt),
        ScalarOp::Cmp(Cmp::Lt) => ScalarOp::Cmp(Cmp::Le),
        ScalarOp::Cmp(Cmp::Le) => ScalarOp::And,
        ScalarOp::And => ScalarOp::Or,
        ScalarOp::Or => ScalarOp::Not,
        ScalarOp::Not => ScalarOp::Select,
        ScalarOp::Select => ScalarOp::Convert,
        ScalarOp::Convert => ScalarOp::WrapU8,
        ScalarOp::WrapU8 => ScalarOp::Random { stream: 0 },
        ScalarOp::Random { .. } => ScalarOp::Check(0),
        ScalarOp::Check(_) => return None,
    })
}

/// Loads and stores of a dtype, and what scatters do with elements in place.
fn memory(can: Capability, dtype: DType) -> Vec<Sample> {
    let loads = matches!(can.loads(dtype), Class::Free | Class::Vector);
    let Some(ty) = Scalar::of(dtype) else {
        assert!(!loads, "vectors of {dtype}, which no kernel computes");
        return Vec::new();
    };
    let load = |name: &str, loaded: DType, sink: Sink, promised: bool| {
        sample(can, format!("{name} {dtype}"), &[loaded], Vec::new(), vec![sink], promised)
    };
    let takes = |sink: &Sink, uniform| can.takes(sink, ty, uniform) == Class::Vector;
    let store = stored(0, dtype, 1);
    let combine = |combiner| Sink::Combine {
        combiner,
        slot: 1,
        dtype,
        access: Access { strides: smallvec![Size::from(1)], ..Access::default() },
        index: SmallVec::new(),
        elements: POSITIONS.into(),
        value: 0,
    };
    let [narrowed, repeated] = [false, true].map(|uniform| takes(&store, uniform));
    let mut uniform = load("storing repeated", ty.dtype(), store.clone(), repeated);
    uniform.cut.class[0] = Class::Uniform;
    uniform.cut.phases[0].insts.clear();
    uniform.plan.loads[0].place = place(0);
    let combined = Combiner::ALL.map(|combiner| {
        let (sink, name) = (combine(combiner), format!("a scatter's {}", combiner.name()));
        let promised = takes(&sink, false);
        load(&name, ty.dtype(), sink, promised)
    });
    let mut all = vec![
        load("loading", dtype, stored(0, ty.dtype(), 1), loads),
        load("storing", ty.dtype(), store, narrowed),
        uniform,
    ];
    all.extend(combined);
    all
}

/// A value read from a row buffer.
fn row_buffer(can: Capability, ty: Scalar) -> Sample {
    let read = Inst { op: ScalarOp::Row(0), args: SmallVec::new(), ty };
    let name = format!("a row buffer of {}", ty.name());
    sample(can, name, &[], vec![read], vec![stored(0, ty.dtype(), 0)], can.keeps(ty))
}

/// The numbers of positions; in loops over 32-bit lanes they are of 32 bits.
fn positions(can: Capability, ty: Scalar) -> Sample {
    let index = Inst { op: ScalarOp::Index(0), args: SmallVec::new(), ty };
    let promised = ty == Scalar::I32 && can.computes(&index, |_| ty) == Class::Free;
    let name = format!("positions as {}", ty.name());
    sample(can, name, &[], vec![index], vec![stored(0, ty.dtype(), 0)], promised)
}

/// A loaded value in a sink.
fn taken(can: Capability, name: String, ty: Scalar, sink: Sink) -> Sample {
    let promised = can.takes(&sink, ty, false) == Class::Vector;
    sample(can, name, &[ty.dtype()], Vec::new(), vec![sink], promised)
}

fn place(stride: i64) -> Place {
    Place::At(Access { strides: smallvec![Size::from(stride)], ..Access::default() })
}

fn stored(value: Val, dtype: DType, slot: usize) -> Sink {
    Sink::Store { slot, dtype, place: place(1), value, after: SmallVec::new() }
}

/// A plan that loads neighbours of those dtypes, each from a slot of its own, and then does that.
fn sample(
    can: Capability,
    name: String,
    loads: &[DType],
    insts: Vec<Inst>,
    sinks: Vec<Sink>,
    promised: bool,
) -> Sample {
    let source = |(slot, dtype): (usize, &DType)| {
        Source::new(slot, *dtype, place(1), POSITIONS.into(), true)
    };
    let load = |(at, dtype): (usize, &DType)| Inst {
        op: ScalarOp::Load(at as u32),
        args: SmallVec::new(),
        ty: Scalar::of(*dtype).expect("only what kernels compute is loaded"),
    };
    let all: Vec<Inst> = loads.iter().enumerate().map(load).chain(insts).collect();
    let count = all.len();
    let buffers = vec![all[0].ty];
    let sources = loads.iter().enumerate().map(source).collect();
    let kept = sinks.len();
    let map = Plan::map(POSITIONS.into(), loads.len() + 1, sources, Body::from(all), sinks);
    let affine = Affine { offset: Size::from(0), strides: smallvec![Size::from(1)] };
    let phase = Phase {
        kind: Kind::Vector,
        insts: (0..count as Val).collect(),
        sinks: (0..kept).collect(),
    };
    let cut = Phases {
        class: vec![Class::Vector; count],
        needed: vec![true; count],
        moved: vec![false; count],
        phases: vec![phase],
        temporaries: vec![None; count],
        tile: 128,
        bytes: 0,
        lanes: can.lanes,
    };
    Sample { name, plan: Plan { positions: vec![affine], buffers, ..map }, cut, promised }
}

/// Holds an emitter to the table: `emits` says whether it has code for a sample.
pub(crate) fn hold(can: Capability, mut emits: impl FnMut(&Sample) -> Result<(), String>) {
    let samples = samples(can);
    let promised = samples.iter().filter(|sample| sample.promised).count();
    assert_eq!(promised > 0, can.exists(), "{can:?}");
    let wrong: Vec<String> = samples
        .iter()
        .filter_map(|sample| match (sample.promised, emits(sample)) {
            (true, Ok(())) | (false, Err(_)) => None,
            (true, Err(why)) => Some(format!("{} is promised, but: {why}", sample.name)),
            (false, Ok(())) => Some(format!("{} is not promised, but has code", sample.name)),
        })
        .collect();
    assert!(wrong.is_empty(), "{can:?}:\n{}", wrong.join("\n"));
}

#[test]
fn the_table_is_what_it_was_made_for() {
    let counts = |loops, lanes| {
        let samples = samples(Capability { loops, lanes });
        (samples.iter().filter(|s| s.promised).count(), samples.len())
    };
    use super::VectorLoops::{Avx2, Avx512, Cranelift};
    let (all, total) = counts(Avx2, Lanes::Bits32);
    let portable = counts(Cranelift { floor: true }, Lanes::Bits32).0;
    assert_eq!(counts(Avx512, Lanes::Bits32), (all, total));
    assert_eq!(counts(Avx2, Lanes::Bits64).0, 0);
    // Straight-line functions, f16 loaded, stored, put in place by a scatter and rounded; but it
    // has checks.
    let functions =
        Function::ALL.iter().filter(|f| f.code() == tracecast_ir::kernel::Code::StraightLine);
    assert_eq!(all - portable, functions.count() + 4 - 1);
    assert_eq!(portable - counts(Cranelift { floor: false }, Lanes::Bits32).0, 1);
}

#[test]
#[should_panic(expected = "is not promised, but has code")]
fn an_emitter_that_does_more_is_seen() {
    let can = Capability { loops: super::VectorLoops::Avx2, lanes: Lanes::Bits32 };
    hold(can, |_| Ok(()));
}

#[test]
#[should_panic(expected = "exp of [F32] as f32 is promised, but: no")]
fn an_emitter_that_does_less_is_seen() {
    let can = Capability { loops: super::VectorLoops::Avx2, lanes: Lanes::Bits32 };
    hold(can, |sample| match sample.promised && !sample.name.starts_with("exp") {
        true => Ok(()),
        false => Err("no".to_owned()),
    });
}
