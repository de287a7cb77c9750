//! What `place` promises of bytes: no program moves more of them than before in the kernels that
//! `fuse` makes; and where all uses of a value end in 16 bits, no other way to place the casts that
//! gives the same bits moves fewer with one kernel for each op. How much fewer the best way moves
//! in the kernels of `fuse`, with f32 uses and without.
//!
//! A value between a producer and its uses is held in f32 or in 16 bits. All ways to choose are
//! tried; those that change a bit of a result, on numbers with ties, zeros of both signs and
//! infinities, are not allowed.

#[path = "../../tests/support/dice.rs"]
mod dice;
#[path = "../../tests/support/random.rs"]
mod random;

use dice::Dice;
use std::collections::{HashMap, HashSet};
use tracecast_ir::eval::{self, Value};
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{Attr, DType, Graph, Stage, TensorType, Tracer, ValueId, Var, Verified, verify};
use tracecast_passes::{Fuse, Pass, PassOptions, Place, Simplify, standard};

const SIDE: usize = 16;
/// The most values that can be held in either dtype where all ways are tried.
const MOVABLE: usize = 12;

/// Random programs.
const PROGRAMS: u64 = 2000;

/// An op that hands elements on.
#[derive(Clone, Copy, Debug)]
enum Move {
    Relu,
    Neg,
    Abs,
    Permute,
}

/// What takes a value in the end.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sink {
    /// A product of 16-bit numbers.
    Product,
    /// A sum along rows, of numbers rounded to 16 bits.
    Sum,
    /// A result in 16 bits.
    Narrow,
    /// A result in f32.
    Wide,
}

/// A producer, values made of it or of each other by moves, and what takes them.
#[derive(Debug)]
struct Plan {
    low: DType,
    /// For each value behind the first, what it is made of and how.
    moves: Vec<(usize, Move)>,
    sinks: Vec<(usize, Sink)>,
}

impl Plan {
    /// With an f32 use in some, if `wide` has it so.
    fn random(dice: &mut Dice, movable: usize, wide: bool) -> Self {
        let moves: Vec<(usize, Move)> = (0..1 + dice.below(movable - 1))
            .map(|i| {
                (
                    i - dice.below(2).min(i),
                    dice.pick(&[Move::Relu, Move::Neg, Move::Abs, Move::Permute]),
                )
            })
            .collect();
        let mut sinks: Vec<(usize, Sink)> = Vec::new();
        for value in 0..=moves.len() {
            if moves.iter().all(|(from, _)| *from != value) || dice.chance(20) {
                sinks.push((value, dice.pick(&[Sink::Product, Sink::Sum, Sink::Narrow])));
            }
        }
        if wide && dice.chance(60) {
            sinks.push((dice.below(moves.len() + 1), Sink::Wide));
        }
        Plan { low: dice.pick(&[DType::BF16, DType::F16]), moves, sinks }
    }

    /// The program with value `i` held in 16 bits if bit `i` is set.
    fn placed(&self, narrow: u32) -> Verified {
        let t = Tracer::explicit("plan");
        let square = TensorType::new(DType::F32, [SIDE, SIDE]);
        let (x, w) = (t.input("x", square.clone()), t.input("w", square.with_dtype(self.low)));
        let dtype = |i: usize| if narrow >> i & 1 == 1 { self.low } else { DType::F32 };
        let mut casts: HashMap<(ValueId, DType), Var<'_>> = HashMap::new();
        let mut to = |x: Var<'_>, dtype: DType| {
            if x.dtype() == dtype {
                return t.var(x.id());
            }
            *casts.entry((x.id(), dtype)).or_insert_with(|| t.var(x.id()).cast(dtype))
        };
        let first = x.tanh();
        let mut values = vec![to(first, dtype(0))];
        for (i, (from, step)) in self.moves.iter().enumerate() {
            let x = to(values[*from], dtype(i + 1));
            values.push(match step {
                Move::Relu => x.relu(),
                Move::Neg => x.neg(),
                Move::Abs => x.abs(),
                Move::Permute => x.permute([1, 0]),
            });
        }
        for (i, (value, sink)) in self.sinks.iter().enumerate() {
            let x = values[*value];
            let y = match sink {
                Sink::Product => to(x, self.low).contract(w, None),
                Sink::Sum => {
                    let rounded = to(x, self.low);
                    to(rounded, DType::F32).reduce_row(Some("sum"))
                }
                Sink::Narrow => to(x, self.low),
                Sink::Wide => to(x, DType::F32),
            };
            t.output(&format!("y{i}"), y);
        }
        verify(t.finish().expect("records"), Stage::Core).expect("well formed")
    }
}

fn after(pass: &dyn Pass, graph: &Verified) -> Verified {
    verify(pass.run(graph).expect("runs"), pass.ensures(graph.stage())).expect("well formed")
}

fn is_cast(graph: &Graph, value: ValueId) -> bool {
    matches!(graph.node(value.node).op.name().text(), "cast" | "round_to")
}

/// What is read where a value is wanted: a widening is part of the load.
fn read_as(graph: &Graph, value: ValueId) -> ValueId {
    match graph.args(value.node).first() {
        Some(&x) if is_cast(graph, value) && graph.ty(x).dtype.fits_in(graph.ty(value).dtype) => {
            read_as(graph, x)
        }
        _ => value,
    }
}

/// The bytes that a program reads and writes with one kernel for each op, of which casts of its
/// operands and results are a part.
fn moved(graph: &Graph) -> usize {
    let live = graph.live();
    let is_port = |value: ValueId| graph.node(value.node).arity() == 0;
    let (mut read, mut stored) = (0, HashSet::new());
    for id in graph.nodes().filter(|id| live[id.index()]) {
        for arg in graph.args(id) {
            let source = read_as(graph, arg);
            if !is_cast(graph, ValueId { node: id, result: 0 }) {
                read += graph.ty(source).bytes().get();
                stored.insert(source);
            } else if is_port(source) {
                read += graph.ty(source).bytes().get();
            }
        }
    }
    stored.extend(graph.roots());
    read + stored
        .into_iter()
        .filter(|v| !is_port(*v))
        .map(|v| graph.ty(v).bytes().get())
        .sum::<usize>()
}

/// The bytes that the kernels of a program read and write.
fn moved_fused(graph: &Verified) -> usize {
    let fused = after(&Fuse::default(), graph);
    let kernels = fused.nodes().filter_map(|id| match fused.node(id).attrs.get("kernel") {
        Some(Attr::Kernel(kernel)) => Some(kernel.clone()),
        _ => None,
    });
    kernels
        .map(|k| {
            let read: usize = k.inputs.iter().map(|ty| ty.bytes().get()).sum();
            read + k.outputs.iter().map(|o| o.ty.bytes().get()).sum::<usize>()
        })
        .sum()
}

fn results(graph: &Graph, inputs: &HashMap<String, Value>) -> Vec<Value> {
    let out = eval::graph(graph, inputs).expect("runs");
    out.outputs.into_iter().map(|(_, value)| value).collect()
}

fn same(a: &[Value], b: &[Value]) -> bool {
    a.iter().zip(b).all(|(a, b)| a.ty == b.ty && a.first_difference(b).is_none())
}

/// A program, what goes into it and what comes out, and the program as `place` leaves it, which
/// gives the same.
struct Trial {
    plan: Plan,
    simple: Verified,
    placed: Verified,
    inputs: HashMap<String, Value>,
    wanted: Vec<Value>,
}

impl Trial {
    fn random(seed: u64, movable: usize, wide: bool) -> Self {
        let special =
            [0.0, -0.0, 1.0, 4.0, 0.1, f64::INFINITY, 2.0, 1e-12, -1.0, 65_520.0 * 65_520.0];
        let mut dice = Dice::new(seed);
        let plan = Plan::random(&mut dice, movable, wide);
        let original = plan.placed(0);
        let numbers: Vec<f64> = (0..SIDE * SIDE)
            .map(|_| if dice.chance(30) { dice.pick(&special) } else { dice.unit() * 3.0 })
            .collect();
        let inputs: HashMap<String, Value> = original
            .ports()
            .iter()
            .map(|p| (p.name.clone(), Value::from_f64s(p.ty.clone(), &numbers).expect("as many")))
            .collect();
        let wanted = results(&original, &inputs);
        let simple = after(&Simplify, &original);
        let placed = after(&Place::default(), &simple);
        assert!(same(&wanted, &results(&placed, &inputs)), "seed {seed}: {plan:?}");
        Trial { plan, simple, placed, inputs, wanted }
    }
}

#[test]
fn no_program_moves_more_bytes() {
    let (mut bytes, mut gained, mut risen) = ([0, 0], 0, [0, 0]);
    for seed in 0..PROGRAMS {
        let Trial { plan, simple, placed, .. } = Trial::random(seed, 20, true);
        let [written, before, now] = [&plan.placed(0), &simple, &placed].map(moved_fused);
        risen = [risen[0] + u64::from(before > written), risen[1] + u64::from(now > written)];
        assert!(now <= before, "seed {seed}: {now} bytes, not {before}: {plan:?}");
        bytes = [bytes[0] + before, bytes[1] + now];
        gained += u64::from(now < before);
        let again = after(&Place::default(), &placed);
        assert_eq!(again.to_string(), placed.to_string(), "seed {seed}: {plan:?}");
    }
    assert!(gained * 10 > PROGRAMS * 6, "{gained} programs gained");
    assert!(bytes[1] * 1000 < bytes[0] * 865, "{bytes:?} bytes");
    // Equal values that are made once are stored where each was computed in the packing of a
    // contraction.
    assert!(risen[0] * 1000 <= PROGRAMS * 14, "`simplify` raised the bytes of {}", risen[0]);
    assert!(risen[1] * 1000 <= PROGRAMS * 6, "the passes raised the bytes of {}", risen[1]);
}

/// Programs of all ops, forward and backward.
#[test]
fn no_program_of_any_ops_moves_more_bytes() {
    let simplify = standard(&PassOptions::default()).up_to(Simplify::NAME).expect("a pass");
    let (mut bytes, mut gained) = ([0, 0], 0);
    for seed in 0..600 {
        let graph = random::program(seed, 5 + seed as usize % 40);
        let simple = simplify.run(graph, |_, _, _| ()).expect("runs");
        let placed = after(&Place::default(), &simple);
        let [before, now] = [&simple, &placed].map(moved_fused);
        assert!(now <= before, "seed {seed}: {now} bytes, not {before}\n{}\n{}", *simple, *placed);
        bytes = [bytes[0] + before, bytes[1] + now];
        gained += usize::from(now < before);
    }
    assert!(gained > 60 && bytes[1] < bytes[0], "{gained} programs gained, {bytes:?} bytes");
}

#[test]
fn no_other_placement_of_casts_moves_fewer_bytes() {
    let (mut tried, mut gained) = (0, 0);
    for seed in 0..24 {
        let Trial { plan, simple, placed, inputs, wanted } = Trial::random(seed, MOVABLE, false);
        let ours = moved(&placed);
        for narrow in 1..1_u32 << (plan.moves.len() + 1) {
            let other = plan.placed(narrow);
            let theirs = moved(&other);
            if theirs < ours {
                let allowed = same(&wanted, &results(&other, &inputs));
                let bytes = format!("seed {seed}: {theirs} bytes, not {ours}");
                assert!(!allowed, "{bytes}\n{}\n{}", *other, *placed);
            }
            tried += 1;
        }
        gained += usize::from(ours < moved(&simple));
    }
    assert!(tried > 10_000 && gained > 10, "{tried} placements, {gained} programs gained");
}

/// The placements that hold no value in 16 bits that is wanted in f32, and make none wide again of
/// a narrow one: `fuse` computes cheap ops again behind a widening, where it would store their
/// results otherwise, which saves bytes in other ways than by dtypes.
fn placements(plan: &Plan) -> impl Iterator<Item = u32> + '_ {
    let is_narrow = |narrow: u32, value: usize| narrow >> value & 1 == 1;
    (0..1_u32 << (plan.moves.len() + 1)).filter(move |narrow| {
        let wanted =
            |(value, sink): &(usize, Sink)| *sink != Sink::Wide || !is_narrow(*narrow, *value);
        let mut moves = plan.moves.iter().enumerate();
        plan.sinks.iter().all(wanted)
            && moves.all(|(i, (from, _))| !is_narrow(*narrow, *from) || is_narrow(*narrow, i + 1))
    })
}

#[test]
fn the_best_placement_for_fused_kernels_is_hardly_better() {
    for wide in [false, true] {
        let (mut ours, mut best, mut better) = (0, 0, 0);
        for seed in 0..200 {
            let Trial { plan, placed, inputs, wanted, .. } = Trial::random(seed, 9, wide);
            let own = moved_fused(&placed);
            let others = placements(&plan).map(|narrow| after(&Simplify, &plan.placed(narrow)));
            let allowed = others.filter(|other| {
                moved_fused(other) < own && same(&wanted, &results(other, &inputs))
            });
            let least = allowed.map(|other| moved_fused(&other)).min().unwrap_or(own);
            better += usize::from(least < own);
            (ours, best) = (ours + own, best + least);
        }
        let found = format!("{better} of 200 could be better, {best} bytes, not {ours}");
        match wide {
            // What is computed across the rows of a contraction's factor is stored, which no cut
            // knows of.
            false => assert!(better <= 2 && ours * 1000 < best * 1006, "{found}"),
            true => assert!(better <= 7 && ours * 1000 < best * 1012, "f32 uses: {found}"),
        }
    }
}
