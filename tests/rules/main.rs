//! The rules by which casts move, each by itself and bit by bit: on every 16-bit number, on ten
//! million of f32 and on two million of f64, random with every special number and tie among them.
//!
//! L1 to L10 are the laws of casts: same dtype, casts of casts, there and back, rounding, movement,
//! monotone selections, sharing, what casts never pass, narrow storage, and free widening.
//!
//! `TRACECAST_NUMBERS` sets how many numbers of f32 each rule is tried on.

mod check;

use check::{Step, after, casts, checked, leaves};
use tracecast_ir::DType;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::ops::view;
use tracecast_passes::Fuse;

use DType::{BF16, F16, F32, F64};

const FLOATS: [DType; 4] = [F16, BF16, F32, F64];

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
        ("permute", &|_, x| x.permute([1, 0])),
        ("reshape", &|_, x| x.reshape([-1])),
        ("slice", &|_, x| x.slice(0, 3, 200, 2)),
        ("expand", &|_, x| x.reshape([1, -1]).expand([2, check::NUMBERS as i64])),
        ("cat", &|_, x| view::cat(&[x, x.permute([1, 0])], 1)),
        ("pad", &|_, x| x.pad([1, 2], [0, 1], 0.5)),
        ("gather", &|t, x| x.gather(t.iota(DType::I64, x.shape(), 1), 1)),
        ("where", &|t, x| t.iota(DType::I64, x.shape(), 1).lt(99.0).choose(x, x.permute([1, 0]))),
    ];
    for (what, moved) in moves {
        for low in [F16, BF16] {
            // Widened, moved, narrowed: nothing is left. Narrowed behind the move: one narrowing in
            // front of it.
            leaves(0, what, low, &|t, x| vec![moved(t, x.cast(F32)).cast(low)]);
            let placed = checked(what, F32, &|t, x| vec![moved(t, x.exp()).cast(low)]);
            let is_wide = |id| placed.node(id).results[0].dtype == F32;
            let wide = placed
                .nodes()
                .filter(|id| is_wide(*id) && placed.node(*id).op.name().text() == what);
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
            leaves(1, "all", wide, &|_, x| vec![x.relu().neg().permute([1, 0]).cast(low)]);
            checked("maximum", wide, &|_, x| vec![x.maximum(x.permute([1, 0])).cast(low)]);
            checked("minimum", wide, &|_, x| vec![x.minimum(x.permute([1, 0])).cast(low)]);
            leaves(0, "widened maximum", low, &|_, x| {
                vec![x.cast(wide).maximum(x.permute([1, 0]).cast(wide)).cast(low)]
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
        ("add", &|_, x| x.add(x)),
        ("mul", &|_, x| x.mul(x)),
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
        vec![rounded.lt(x)]
    });
}

#[test]
fn l9_what_all_uses_round_is_stored_rounded() {
    for low in [F16, BF16] {
        let placed = checked("three uses", F32, &|_, x| {
            let y = x.exp();
            vec![y.relu().cast(low), y.permute([1, 0]).cast(low), y.neg().reshape([-1]).cast(low)]
        });
        assert_eq!(casts(&placed), 1, "{}", *placed);
        let fused = after(&placed, &Fuse::default());
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
            vec![wide.exp(), wide.permute([1, 0]).reduce_row(Some("sum"))]
        });
        let fused = after(&placed, &Fuse::default());
        for id in fused.nodes() {
            if let Some(tracecast_ir::Attr::Kernel(kernel)) = fused.node(id).attrs.get("kernel") {
                assert!(!kernel.only_casts(), "a kernel that only casts: {}", *fused);
            }
        }
    }
}
