//! The rules by which casts move, each by itself and bit by bit: on every 16-bit number, and on f32 at random with every special number
//! and tie among them. `TRACECAST_ALL_NUMBERS=1` takes ten million random numbers for each rule instead of some thousands.
//!
//! L1 to L10 are the laws of casts: same dtype, casts of casts, there and back, rounding, movement, monotone selections, sharing, what
//! casts never pass, narrow storage, and free widening.

#[path = "../../tests/support/random.rs"]
#[allow(dead_code, reason = "only the dice are used here")]
mod random;

use random::Dice;
use std::collections::HashMap;
use tracecast_ir::eval::{self, Value};
use tracecast_ir::ops::prelude::*;
use tracecast_ir::ops::view;
use tracecast_ir::{DType, Graph, Stage, TensorType, Tracer, Var, Verified, verify};
use tracecast_passes::{Fuse, Pass, Place, Simplify};

use DType::{BF16, F16, F32, F64};

/// The number of elements of a tensor in these programs, as rows of [`COLUMNS`].
const NUMBERS: usize = 1 << 16;
const COLUMNS: usize = 256;
const FLOATS: [DType; 4] = [F16, BF16, F32, F64];

/// What is done to a value.
type Step<'a> = &'a dyn for<'t> Fn(&'t Tracer, Var<'t>) -> Var<'t>;
type Program<'a> = &'a dyn for<'t> Fn(&'t Tracer, Var<'t>) -> Vec<Var<'t>>;

fn recorded(dtype: DType, program: Program<'_>) -> Verified {
    let t = Tracer::explicit("rule");
    let x = t.input("x", TensorType::new(dtype, [NUMBERS / COLUMNS, COLUMNS]));
    for (i, y) in program(&t, x).into_iter().enumerate() {
        t.output(&format!("y{i}"), y);
    }
    verify(t.finish().expect("well formed"), Stage::Core).expect("well formed")
}

fn after(graph: &Verified, pass: &dyn Pass) -> Verified {
    verify(pass.run(graph).expect("runs"), pass.ensures(graph.stage())).expect("well formed")
}

/// How many casts and roundings a program has.
fn casts(graph: &Graph) -> usize {
    graph.nodes().filter(|id| matches!(graph.node(*id).op.name(), "cast" | "round_to")).count()
}

/// Every 16-bit number, or a sample of wider ones: random bits, every special number, and the ties of each 16-bit float.
fn numbers(dtype: DType, round: u64) -> Value {
    let mut dice = Dice::new(round);
    let ty = TensorType::new(dtype, [NUMBERS / COLUMNS, COLUMNS]);
    let mut bytes = Vec::new();
    for i in 0..NUMBERS {
        let word = dice.word();
        match dtype {
            F16 | BF16 => bytes.extend((i as u16).to_le_bytes()),
            F32 => bytes.extend(single(i, word).to_le_bytes()),
            _ => bytes.extend(double(i, word).to_le_bytes()),
        }
    }
    Value { ty, bytes }
}

/// The bits of an f32: one third random, one third 16-bit numbers and what is next to them, one third ties between those.
fn single(i: usize, word: u64) -> u32 {
    let random = word as u32;
    let beside = ((word >> 32) % 3) as u32;
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

fn rounds(dtype: DType) -> u64 {
    let all = std::env::var_os("TRACECAST_ALL_NUMBERS").is_some();
    match dtype {
        F16 | BF16 => 1,
        _ if all => 10_000_000_u64.div_ceil(NUMBERS as u64),
        _ => 1,
    }
}

/// Both programs, and all that passes make of them, give the same bits for every number; returns what is there before `fuse`.
#[track_caller]
fn checked(what: &str, dtype: DType, program: Program<'_>) -> Verified {
    let before = recorded(dtype, program);
    let simple = after(&before, &Simplify);
    let placed = after(&simple, &Place::default());
    let only_placed = after(&before, &Place::default());
    let fused = after(&placed, &Fuse);
    for round in 0..rounds(dtype) {
        let inputs: HashMap<String, Value> = [("x".to_owned(), numbers(dtype, round))].into();
        let wanted = eval::graph(&before, &inputs).expect("runs");
        for after in [&simple, &placed, &only_placed, &fused] {
            let found = eval::graph(after, &inputs).expect("runs");
            for ((name, a), (_, b)) in wanted.outputs.iter().zip(&found.outputs) {
                if let Some(at) = a.first_difference(b) {
                    let pair = (a.to_f64s()[at], b.to_f64s()[at]);
                    panic!(
                        "{what}: {name}[{at}] is {pair:?} before and after\n{}\n{}",
                        *before, **after
                    );
                }
            }
        }
    }
    placed
}

/// As [`checked`], with that many casts left.
#[track_caller]
fn leaves(casts_left: usize, what: &str, dtype: DType, program: Program<'_>) {
    let placed = checked(what, dtype, program);
    assert_eq!(casts(&placed), casts_left, "{what}\n{}", *placed);
}

#[test]
fn l1_a_cast_to_the_own_dtype_is_nothing() {
    for dtype in FLOATS {
        leaves(0, "own dtype", dtype, &|_, x| vec![x.cast(x.dtype()).abs()]);
    }
}

#[test]
fn l2_a_cast_of_a_cast_is_one_cast_if_the_first_keeps_every_number() {
    for from in FLOATS {
        for by in FLOATS.into_iter().filter(|by| *by != from) {
            for to in FLOATS.into_iter().filter(|to| *to != by) {
                let left = match (from.fits_in(by), from == to) {
                    (true, true) => 0,
                    (true, false) => 1,
                    (false, _) => 2,
                };
                let what = format!("{from} to {by} to {to}");
                leaves(left, &what, from, &|_, x| vec![x.cast(by).cast(to)]);
            }
        }
    }
}

#[test]
fn l3_there_and_back_is_nothing_if_there_keeps_every_number() {
    for (from, by) in [(F16, F32), (BF16, F32), (F16, F64), (BF16, F64), (F32, F64)] {
        leaves(0, "there and back", from, &|_, x| vec![x.cast(by).cast(x.dtype()).neg()]);
    }
}

#[test]
fn l4_back_from_a_narrower_dtype_is_a_rounding() {
    for (from, by) in [(F32, F16), (F32, BF16), (F64, F16), (F64, BF16), (F64, F32)] {
        leaves(2, "rounding", from, &|_, x| vec![x.cast(by).cast(x.dtype()).exp()]);
        leaves(2, "rounded twice", from, &|_, x| vec![x.round_to(by).round_to(by).exp()]);
        leaves(1, "rounded, then cast", from, &|_, x| vec![x.round_to(by).cast(by)]);
        leaves(1, "widened, then rounded", by, &|_, x| vec![x.cast(from).round_to(by).exp()]);
    }
}

#[test]
fn l5_casts_pass_movement() {
    let moves: [(&str, Step<'_>); 8] = [
        ("permute", &|_, x| x.permute(&[1, 0])),
        ("reshape", &|_, x| x.reshape(&[-1])),
        ("slice", &|_, x| x.slice(0, 3, 200, 2)),
        ("expand", &|_, x| x.reshape(&[1, -1]).expand(&[2, NUMBERS as i64])),
        ("cat", &|_, x| view::cat(&[x, x.permute(&[1, 0])], 1)),
        ("pad", &|_, x| x.pad(&[1, 2], &[0, 1], 0.5)),
        ("gather", &|t, x| x.gather(t.iota(DType::I64, &x.shape(), 1), 1)),
        ("where", &|t, x| {
            t.iota(DType::I64, &x.shape(), 1).lt(None, Some(99.0)).choose(x, x.permute(&[1, 0]))
        }),
    ];
    for (what, moved) in moves {
        for low in [F16, BF16] {
            // Widened, moved, narrowed: nothing is left. Narrowed behind the move: one narrowing in front of it.
            leaves(0, what, low, &|t, x| vec![moved(t, x.cast(F32)).cast(low)]);
            let placed = checked(what, F32, &|t, x| vec![moved(t, x.exp()).cast(low)]);
            let is_wide = |id| placed.node(id).results[0].dtype == F32;
            let wide =
                placed.nodes().filter(|id| is_wide(*id) && placed.node(*id).op.name() == what);
            let stored = what != "slice" && !matches!(what, "pad" | "where" | "gather" | "cat");
            assert!(!stored || wide.count() == 0, "{what}\n{}", *placed);
        }
    }
}

#[test]
fn l6_narrowing_passes_monotone_selections() {
    for low in [F16, BF16] {
        for wide in [F32, F64] {
            leaves(1, "relu", wide, &|_, x| vec![x.relu().cast(low)]);
            leaves(1, "neg", wide, &|_, x| vec![x.neg().cast(low)]);
            leaves(1, "abs", wide, &|_, x| vec![x.abs().cast(low)]);
            leaves(1, "all", wide, &|_, x| vec![x.relu().neg().permute(&[1, 0]).cast(low)]);
            checked("maximum", wide, &|_, x| vec![x.maximum(x.permute(&[1, 0])).cast(low)]);
            checked("minimum", wide, &|_, x| vec![x.minimum(x.permute(&[1, 0])).cast(low)]);
            leaves(0, "widened maximum", low, &|_, x| {
                vec![x.cast(wide).maximum(x.permute(&[1, 0]).cast(wide)).cast(low)]
            });
        }
    }
}

#[test]
fn l7_equal_casts_are_one() {
    leaves(1, "three times", F32, &|_, x| {
        vec![x.cast(BF16).exp(), x.cast(BF16).neg(), x.cast(BF16).abs()]
    });
    leaves(2, "two dtypes", F32, &|_, x| vec![x.cast(BF16), x.cast(F16), x.cast(BF16)]);
}

#[test]
fn l8_casts_pass_no_arithmetic_and_no_comparison() {
    let ops: [(&str, Step<'_>); 6] = [
        ("add", &|_, x| x.add(x, None)),
        ("mul", &|_, x| x.mul(x, None)),
        ("exp", &|_, x| x.exp()),
        ("sqrt", &|_, x| x.sqrt()),
        ("sum", &|_, x| x.reduce_row(Some("sum"))),
        ("reciprocal", &|_, x| x.rsub(1.0)),
    ];
    for (what, op) in ops {
        for low in [F16, BF16] {
            leaves(1, what, F32, &|t, x| vec![op(t, x).cast(low)]);
            leaves(2, what, low, &|t, x| vec![op(t, x.cast(F32)).cast(low)]);
        }
    }
    leaves(2, "compared", F32, &|_, x| {
        let rounded = x.cast(BF16).cast(F32);
        vec![rounded.lt(x, None)]
    });
}

#[test]
fn l9_what_all_uses_round_is_stored_rounded() {
    for low in [F16, BF16] {
        let placed = checked("three uses", F32, &|_, x| {
            let y = x.exp();
            vec![y.relu().cast(low), y.permute(&[1, 0]).cast(low), y.neg().reshape(&[-1]).cast(low)]
        });
        assert_eq!(casts(&placed), 1, "{}", *placed);
        let fused = after(&placed, &Fuse);
        let wide = fused.nodes().filter(|id| fused.port_of(*id).is_none());
        let wide = wide.flat_map(|id| fused.node(id).results.to_vec()).any(|ty| ty.dtype == F32);
        assert!(!wide, "nothing is stored in f32: {}", *fused);
        // One use as it is: nothing may be narrowed for it.
        let kept = checked("one wide use", F32, &|_, x| {
            let y = x.exp();
            vec![y.relu().cast(low), y]
        });
        assert_eq!(kept.ty(kept.outputs()[1].1).dtype, F32);
    }
}

#[test]
fn l10_widening_costs_no_kernel() {
    for low in [F16, BF16] {
        let placed = checked("used twice", low, &|_, x| {
            let wide = x.cast(F32);
            vec![wide.exp(), wide.permute(&[1, 0]).reduce_row(Some("sum"))]
        });
        let fused = after(&placed, &Fuse);
        for id in fused.nodes() {
            if let Some(tracecast_ir::Attr::Kernel(kernel)) = fused.node(id).attrs.get("kernel") {
                assert!(!kernel.only_casts(), "a kernel that only casts: {}", *fused);
            }
        }
    }
}
