//! `simplify` and `place` change no bit of any result, on random graphs of core ops made to tempt
//! them: casts of every kind, views, selections, known numbers, signed zeros, infinities, NaNs and
//! ties.

#[path = "../../tests/support/dice.rs"]
mod dice;

use dice::Dice;
use std::collections::HashMap;
use std::time::Instant;
use tracecast_ir::eval::{self, Value};
use tracecast_ir::ops::prelude::*;
use tracecast_ir::ops::view;
use tracecast_ir::{DType, Graph, Node, Shape, Stage, TensorType, Tracer, Var, Verified, verify};
use tracecast_passes::{Pass, Place, Precision, Simplify};

const SPECIAL: [f64; 18] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    3.0,
    1e-45,
    -1e-45,
    1e-8,
    -6e-8,
    65504.0,
    65520.0,
    3.4e38,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
    // Ties: halfway between two bf16, and just beside it in f64.
    1.00390625,
    1.003_906_250_000_001,
];
const NUMBERS: [f64; 12] = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.0, 0.1, -4.0, 1e-5, 7.0, 65504.0];
const SHAPES: [&[usize]; 8] = [&[4, 6], &[6], &[4, 1], &[], &[1, 6], &[2, 2, 6], &[6, 4], &[4, 6]];

/// A random graph of core ops in explicit form.
fn graph(seed: u64) -> Graph {
    let mut dice = Dice::new(seed);
    let tracer = Tracer::explicit("tempting");
    {
        let t = &tracer;
        let mut pool: Vec<Var<'_>> = Vec::new();
        for i in 0..4 {
            let dtype = dice.pick(&[
                DType::F32,
                DType::BF16,
                DType::F16,
                DType::F64,
                DType::I32,
                DType::I64,
                DType::U8,
                DType::Bool,
            ]);
            pool.push(t.input(&format!("x{i}"), TensorType::new(dtype, dice.pick(&SHAPES))));
        }
        let count = 6 + dice.below(24);
        for _ in 0..count {
            if let Some(v) = step(&mut dice, t, &pool) {
                assert!(t.error().is_none(), "seed {seed}: {:?}", t.error());
                if v.ty().numel().get() <= 4000 {
                    pool.push(v);
                }
            }
        }
        for i in 0..1 + dice.below(4) {
            let from = pool.len() - 1 - dice.below(pool.len().min(5));
            t.output(&format!("y{i}"), pool[from]);
        }
    }
    tracer.finish().unwrap_or_else(|e| panic!("seed {seed}: {e}"))
}

fn step<'t>(dice: &mut Dice, t: &'t Tracer, pool: &[Var<'t>]) -> Option<Var<'t>> {
    let x = pool[if dice.chance(60) {
        pool.len() - 1 - dice.below(pool.len().min(3))
    } else {
        dice.below(pool.len())
    }];
    match dice.below(11) {
        0..=2 => casts(dice, x),
        3 | 4 => views(dice, x, pool),
        5 => Some(unary(dice, x)),
        6 | 7 => binary(dice, t, pool, x),
        8 => chosen(dice, t, pool, x),
        9 => constant(dice, t, x),
        _ => reduction(dice, t, x),
    }
}

fn casts<'t>(dice: &mut Dice, x: Var<'t>) -> Option<Var<'t>> {
    if x.dtype().is_float() && dice.chance(20) {
        let to = dice.pick(&[DType::BF16, DType::F16, DType::F32]);
        return (to.fits_in(x.dtype())).then(|| x.round_to(to));
    }
    let floats = [DType::F32, DType::BF16, DType::F16, DType::F64];
    let any = [DType::F32, DType::BF16, DType::F64, DType::I32, DType::I64, DType::U8, DType::Bool];
    let to = if dice.chance(80) { dice.pick(&floats) } else { dice.pick(&any) };
    Some(x.cast(to))
}

fn partner<'t>(dice: &mut Dice, pool: &[Var<'t>], x: Var<'t>) -> Option<Var<'t>> {
    let fit: Vec<Var<'t>> = pool.iter().copied().filter(|y| y.ty() == x.ty()).collect();
    (!fit.is_empty()).then(|| fit[dice.below(fit.len())])
}

fn unary<'t>(dice: &mut Dice, x: Var<'t>) -> Var<'t> {
    match (dice.below(6), x.dtype()) {
        (_, DType::Bool) => x.logical_not(),
        (0 | 1, _) => -x,
        (2, _) => x.abs(),
        (3, d) if d.is_float() => x.relu(),
        (4, d) if d.is_float() => x.sqrt(),
        (5, d) if d.is_float() => x.detach(),
        _ => -x,
    }
}

/// A number that the dtype holds, but for rounding of floats.
fn number(dice: &mut Dice, dtype: DType) -> f64 {
    loop {
        let number = dice.pick(&NUMBERS);
        let is_held = match dtype {
            DType::Bool => number == 0.0 || number == 1.0,
            DType::U8 => number.fract() == 0.0 && (0.0..=255.0).contains(&number),
            dtype => dtype.is_float() || number.fract() == 0.0,
        };
        if is_held {
            return number;
        }
    }
}

fn binary<'t>(dice: &mut Dice, t: &'t Tracer, pool: &[Var<'t>], x: Var<'t>) -> Option<Var<'t>> {
    let (y, scalar) = match dice.below(3) {
        0 => (None, Some(number(dice, x.dtype()))),
        1 => (Some(t.full(x.ty(), number(dice, x.dtype()))), None),
        _ => (partner(dice, pool, x), None),
    };
    if y.is_none() && scalar.is_none() {
        return None;
    }
    let (x, y) = if let Some(y) = y.filter(|_| dice.chance(30)) { (y, Some(x)) } else { (x, y) };
    // The other operand, or the number in its place.
    macro_rules! with {
        ($op:ident) => {
            match y {
                Some(y) => x.$op(y),
                None => x.$op(scalar?),
            }
        };
    }
    if x.dtype() == DType::Bool {
        return Some(match (dice.below(3), y) {
            (0, Some(y)) => x.logical_and(y),
            (1, Some(y)) => x.logical_or(y),
            _ => with!(eq),
        });
    }
    Some(match (dice.below(12), y) {
        (0 | 1, _) => with!(add),
        (2, _) => with!(sub),
        (3 | 4, _) => with!(mul),
        (5, _) if x.dtype().is_float() => with!(div),
        (6, Some(y)) => x.maximum(y),
        (7, Some(y)) => x.minimum(y),
        (8, _) => with!(lt),
        (9, _) => with!(ge),
        (10, _) => with!(ne),
        (_, None) => x.rsub(scalar?),
        _ => with!(eq),
    })
}

fn chosen<'t>(dice: &mut Dice, t: &'t Tracer, pool: &[Var<'t>], x: Var<'t>) -> Option<Var<'t>> {
    let y = if dice.chance(30) {
        t.full(x.ty(), number(dice, x.dtype()))
    } else {
        partner(dice, pool, x)?
    };
    let conditions: Vec<Var<'t>> = pool
        .iter()
        .copied()
        .filter(|c| c.dtype() == DType::Bool && c.shape() == x.shape())
        .collect();
    let c =
        if conditions.is_empty() { x.ne(1.0) } else { conditions[dice.below(conditions.len())] };
    let c = if dice.chance(30) { c.logical_not() } else { c };
    Some(if dice.chance(50) { c.choose(x, y) } else { c.choose(y, x) })
}

fn constant<'t>(dice: &mut Dice, t: &'t Tracer, x: Var<'t>) -> Option<Var<'t>> {
    if dice.chance(60) {
        return Some(t.full(x.ty(), number(dice, x.dtype())));
    }
    let data: Vec<f64> = (0..x.ty().numel().get()).map(|_| number(dice, x.dtype())).collect();
    (data.len() < 50).then(|| t.constant(x.dtype(), &x.shape().numbers(), &data))
}

fn views<'t>(dice: &mut Dice, x: Var<'t>, pool: &[Var<'t>]) -> Option<Var<'t>> {
    let (shape, rank) = (x.shape(), x.rank());
    let axis = dice.below(rank.max(1));
    let size = shape.get(axis).map_or(1, |n| n.get()) as i64;
    match dice.below(8) {
        0 => Some(x.reshape([-1])).filter(|_| x.ty().numel() != 0),
        1 => Some(x.reshape_to(&Shape::new(&[&shape.numbers()[..], &[1]].concat())))
            .filter(|_| rank < 4),
        2 if rank >= 2 => {
            let mut dims: Vec<i64> = (0..rank as i64).collect();
            dims.swap(dice.below(rank), axis);
            Some(x.permute(&dims))
        }
        3 if rank >= 1 && size > 0 => {
            let start = dice.below(size as usize) as i64;
            Some(x.slice(
                axis as i64,
                start,
                size - i64::from(dice.chance(40) && size > start + 1),
                dice.pick(&[1, 1, 2]),
            ))
        }
        4 if rank >= 1 => {
            let y = partner(dice, pool, x).unwrap_or(x);
            Some(view::cat(&[x, y], axis as i64))
        }
        5 if rank >= 1 => {
            let low: Vec<i64> = (0..rank).map(|_| dice.below(2) as i64).collect();
            let high: Vec<i64> = (0..rank).map(|_| dice.below(2) as i64).collect();
            Some(x.pad(&low, &high, number(dice, x.dtype())))
        }
        6 if (1..4).contains(&rank) => {
            let sizes: Vec<i64> = [
                &[2][..],
                &shape.iter().map(|&n| if n == 1 { 3 } else { n.get() as i64 }).collect::<Vec<_>>(),
            ]
            .concat();
            Some(x.expand(&sizes))
        }
        7 if rank >= 1 && size >= 4 => {
            let half = size / 2;
            let (a, b) = (x.slice(axis as i64, 0, half, 1), x.slice(axis as i64, half, size, 1));
            Some(view::cat(&[a, b], axis as i64))
        }
        _ => None,
    }
}

fn reduction<'t>(dice: &mut Dice, t: &'t Tracer, x: Var<'t>) -> Option<Var<'t>> {
    let (shape, rank) = (x.shape(), x.rank());
    if rank == 0 || x.ty().numel() == 0 || x.dtype() == DType::Bool {
        return None;
    }
    if dice.chance(30) {
        let index = t.iota(DType::I64, &shape, rank - 1);
        return Some(x.gather(index, rank as i64 - 1));
    }
    let kind = dice.pick(&["sum", "prod", "max", "min", "argmax", "argmin"]);
    let x = if matches!(kind, "sum" | "prod") { x.to(x.dtype().compute()) } else { x };
    if dice.chance(50) || rank < 2 || kind.starts_with("arg") {
        return Some(x.reduce_row(Some(kind)));
    }
    Some(x.reduce_column([dice.below(rank - 1) as i64], Some(kind)))
}

fn inputs(graph: &Graph, seed: u64) -> HashMap<String, Value> {
    let mut dice = Dice::new(seed ^ 0x5eed);
    let mut number = |dtype: DType| match dtype {
        _ if dtype.is_float() && dice.chance(60) => dice.pick(&SPECIAL),
        _ if dtype.is_float() => dice.unit() * 300.0,
        DType::Bool => dice.below(2) as f64,
        DType::U8 => dice.below(256) as f64,
        _ => dice.pick(&[
            0.0,
            1.0,
            -1.0,
            257.0,
            2_147_483_647.0,
            -2_147_483_648.0,
            16_777_217.0,
            33_685_505.0,
            65_793.0,
        ]),
    };
    let value = |ty: &TensorType, number: &mut dyn FnMut(DType) -> f64| {
        let numbers: Vec<f64> = (0..ty.numel().get()).map(|_| number(ty.dtype)).collect();
        Value::from_f64s(ty.clone(), &numbers).expect("as many numbers as elements")
    };
    graph.ports().iter().map(|p| (p.name.clone(), value(&p.ty, &mut number))).collect()
}

fn compare(seed: u64, what: &str, before: &Verified, after: &Verified) {
    for round in 0..3 {
        let inputs = inputs(before, seed * 3 + round);
        // An index that is out of range, a division by zero: an error in both, or dead in the
        // simpler graph.
        let Ok(expected) = eval::graph(before, &inputs) else { continue };
        let found = eval::graph(after, &inputs)
            .unwrap_or_else(|e| panic!("seed {seed}, {what}: {e}\n{}\n{}", **before, **after));
        for ((name, a), (_, b)) in expected.outputs.iter().zip(&found.outputs) {
            let at = a.first_difference(b);
            let pair = at.map(|i| (a.to_f64s()[i], b.to_f64s()[i]));
            assert!(
                at.is_none(),
                "seed {seed}, {what}: {name} differs at {at:?}: {pair:?}\n{}\n{}",
                **before,
                **after
            );
        }
    }
}

/// What a graph is made of, whatever the order.
fn parts(graph: &Graph) -> Vec<String> {
    let line = |n: &Node| format!("{} {} {}", n.op.name().text(), n.attrs, n.results[0]);
    let mut parts: Vec<String> = graph.nodes().map(|id| line(graph.node(id))).collect();
    parts.sort_unstable();
    parts
}

/// The bytes that arithmetic and movement would store, one op at a time; casts are part of loads
/// and stores.
fn moved_bytes(graph: &Graph) -> usize {
    let stored = |n: &Node| {
        let is_cast = matches!(n.op.name().text(), "cast" | "input" | "constant");
        if is_cast || is_view(n) { 0 } else { n.results[0].bytes().get() }
    };
    graph.nodes().map(|id| stored(graph.node(id))).sum()
}

fn is_view(node: &Node) -> bool {
    matches!(node.op.name().text(), "reshape" | "permute" | "expand" | "slice" | "detach")
}

fn run(seed: u64, pass: &dyn Pass, graph: &Verified) -> Verified {
    let next = pass.run(graph).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    verify(next, Stage::Core)
        .unwrap_or_else(|e| panic!("seed {seed}, {}: {e}\n{}", pass.name(), **graph))
}

#[test]
fn results_stay_as_they_are() {
    let count: u64 = std::env::var("N").ok().and_then(|v| v.parse().ok()).unwrap_or(600);
    for seed in 0..count {
        let graph = verify(graph(seed), Stage::Core).unwrap();
        let simple = run(seed, &Simplify, &graph);
        compare(seed, Simplify::NAME, &graph, &simple);
        let (once, twice) = (&*simple, &*run(seed, &Simplify, &simple));
        assert_eq!(
            parts(once),
            parts(twice),
            "seed {seed}, simplify twice, of\n{}\n{once}\n{twice}",
            *graph
        );
        compare(seed, Place::NAME, &graph, &run(seed, &Place::new(Precision::Exact), &graph));
        let placed = run(seed, &Place::default(), &simple);
        compare(seed, "place of simplify", &graph, &placed);
        assert_eq!(
            moved_bytes(&placed).min(moved_bytes(&simple)),
            moved_bytes(&placed),
            "seed {seed}\n{once}\n{}",
            *placed
        );
    }
}

#[test]
fn ten_thousand_nodes_take_little_time() {
    let tracer = Tracer::explicit("long");
    let x = tracer.input("x", TensorType::new(DType::BF16, [8, 8]));
    let mut y = x;
    while y.id().node.index() < 10_000 {
        y = y.cast(DType::F32).mul(1.5).t().cast(DType::BF16).add(x).neg().relu();
    }
    tracer.output("y", y);
    let graph = verify(tracer.finish().unwrap(), Stage::Core).unwrap();
    for pass in [&Simplify as &dyn Pass, &Place::default()] {
        let start = Instant::now();
        pass.run(&graph).unwrap();
        // The budget is 50 ms; tests are compiled with less care, and share the machine.
        let took = start.elapsed();
        assert!(took.as_millis() < 2000, "{} took {took:?}", pass.name());
    }
}

#[test]
fn gradients_still_to_be_taken_are_refused() {
    let tracer = Tracer::new("early");
    let x = tracer.param("x", TensorType::new(DType::F32, [2]));
    let loss = x.sum(());
    tracer.output("g", tracer.grad(loss, &[x])[0]);
    let graph = verify(tracer.finish().unwrap(), Stage::Traced).unwrap();
    let error = Simplify.run(&graph).unwrap_err();
    assert_eq!((error.op.as_str(), error.message.contains("gradients")), ("grad", true));
}
