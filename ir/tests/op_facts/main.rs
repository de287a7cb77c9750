//! What ops state of themselves ([`Facts`], [`Rounding`](tracecast_ir::op::Rounding)) holds, tried
//! from the table in the interpreter: for all values of at most 16 bits, and for zeros, ends,
//! infinities and NaN of the others. Rewrites and their check read the same facts, so a wrong one
//! would show nowhere else.

mod equations;
mod records;
mod values;

use equations::{Case, Wrong};
use std::collections::BTreeSet;
use std::sync::Arc;
use tracecast_ir::kernel::{Cmp, ScalarOp, Val};
use tracecast_ir::op::{
    Body, Compares, Dispatch, Domain, Facts, Func, Grad, Lower, Magnitude, Map, MapCx, NUMBERS,
    OpName, Operand, OperandKind, Rounding, Schema, Signs, WithItself,
};
use tracecast_ir::ops::elementwise::{ADD, GE, LT, MUL, SUB};
use tracecast_ir::ops::sample::parse_sample;
use tracecast_ir::ops::{all, infer};
use tracecast_ir::{OpDef, OpRef};

/// The op in each dtype of its domain and with each set of attributes of its samples.
fn cases(op: &OpRef) -> Vec<Case<'_>> {
    let def = op.def();
    let mut cases: Vec<Case<'_>> = Vec::new();
    for &dtype in def.domain.dtypes {
        let samples = def.domain.samples.iter().map(|text| parse_sample(def, text, dtype));
        for sample in samples {
            let mut attrs = sample.expect("samples are of their op").attrs;
            attrs.remove("scalar");
            let is_new = |case: &Case<'_>| case.dtype != dtype || case.attrs != attrs;
            if cases.iter().all(is_new) {
                cases.push(Case { op, dtype, attrs });
            }
        }
    }
    cases
}

fn broken(op: &OpRef) -> Vec<String> {
    cases(op).iter().flat_map(Case::broken).collect()
}

#[test]
fn every_fact_of_the_table_holds() {
    let broken: Vec<String> = all().flat_map(|op| broken(&op.into())).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// An op of floats and integers that computes that and states these facts.
fn op(operands: usize, facts: Facts, code: fn(&mut MapCx<'_>, &[Val]) -> Val) -> OpRef {
    const X: Operand = Operand { name: "x", kind: OperandKind::One };
    const BOTH: &[Operand] = &[X, Operand { name: "y", kind: OperandKind::One }];
    OpRef::Shared(Arc::new(OpDef {
        name: OpName::new("stated"),
        doc: "An op of a test.",
        schema: Schema { operands: &BOTH[..operands], attrs: &[], results: &["y"] },
        dispatch: Dispatch::Internal,
        infer: Func::Static(&infer::arithmetic),
        body: Body::Core {
            grad: Grad::Zero,
            kernel: Lower::Map(Map::new(Func::Shared(Arc::new(code)))),
        },
        rounding: Rounding::RESULT,
        facts,
        domain: Domain {
            dtypes: NUMBERS,
            samples: if operands == 1 { &["T[3]"] } else { &["T[3], T[3]"] },
        },
    }))
}

fn difference(cx: &mut MapCx<'_>, x: &[Val]) -> Val {
    cx.body.binary(ScalarOp::Sub, x[0], x[1])
}

fn sum(cx: &mut MapCx<'_>, x: &[Val]) -> Val {
    cx.body.binary(ScalarOp::Add, x[0], x[1])
}

fn product(cx: &mut MapCx<'_>, x: &[Val]) -> Val {
    cx.body.binary(ScalarOp::Mul, x[0], x[1])
}

fn same(_: &mut MapCx<'_>, x: &[Val]) -> Val {
    x[0]
}

/// `max(0, x)`.
fn positive(cx: &mut MapCx<'_>, x: &[Val]) -> Val {
    let zero = cx.constant(0.0);
    cx.body.binary(ScalarOp::Max, zero, x[0])
}

fn twice(cx: &mut MapCx<'_>, x: &[Val]) -> Val {
    cx.body.binary(ScalarOp::Add, x[0], x[0])
}

/// One for `x < y`, else zero: no truth value.
fn less(cx: &mut MapCx<'_>, x: &[Val]) -> Val {
    let holds = cx.body.cmp(Cmp::Lt, x[0], x[1]);
    let ty = cx.scalar();
    cx.body.convert(holds, ty)
}

#[test]
fn a_false_fact_is_found() {
    let none = Facts::new();
    let lies = [
        ("takes a number", op(2, none.takes_number(), sum)),
        ("swapped", op(2, none.commutes(), difference)),
        ("swapped", op(2, none.swapped(&SUB), sum)),
        ("opposite", op(2, none.opposite_without_nan(&GE), sum)),
        ("neutral", op(2, none.neutral(0.0), sum)),
        ("neutral", op(2, none.neutral(-0.0), difference)),
        ("negating", op(2, none.negating(1.0), product)),
        ("absorbing", op(2, none.absorbing(1.0), product)),
        ("settling", op(2, none.settling(1.0), sum)),
        ("with itself", op(2, none.with_itself(WithItself::Number(0.0)), difference)),
        ("with itself", op(2, none.with_itself(WithItself::Operand), sum)),
        ("involution", op(1, none.involution(), positive)),
        ("subtracts", op(2, none.subtracts(&ADD), sum)),
        ("passes signs", op(2, none.passes_signs(), sum)),
        ("ignores the sign", op(1, none.ignores_sign(), positive)),
        ("keeps what is not negative", op(1, none.keeps_nonnegative(), twice)),
        ("signs", op(1, none.signs(Signs::NeverNegative), same)),
        ("signs", op(1, none.signs(Signs::Cleared), positive)),
        ("compares", op(2, none.compares(Compares::Order), less)),
        ("magnitude", op(1, none.magnitude(Magnitude::Operand), twice)),
        ("magnitude", op(2, none.magnitude(Magnitude::Sum), product)),
    ];
    for (law, op) in lies {
        let found = broken(&op);
        let of_law = |line: &&String| line.contains(&format!(": {law}: "));
        assert!(found.iter().any(|line| of_law(&line)), "{law}: {found:?}");
    }
}

#[test]
fn equality_is_no_order() {
    let law = |op: &'static OpDef, facts: Facts| {
        // The record of the table with another statement.
        let found = OpRef::Shared(Arc::new(OpDef {
            name: OpName::new("stated"),
            doc: op.doc,
            schema: op.schema,
            dispatch: Dispatch::Internal,
            infer: op.infer.clone(),
            body: Body::Core {
                grad: Grad::Zero,
                kernel: Lower::Map(match op.lowering() {
                    Some(Lower::Map(map)) => map.clone(),
                    _ => panic!("{} is elementwise", op.name),
                }),
            },
            rounding: op.rounding,
            facts,
            domain: op.domain,
        }));
        broken(&found)
    };
    assert!(!law(&LT, Facts::new().compares(Compares::Equality)).is_empty());
    assert!(!law(&LT, Facts::new().takes_number().opposite(&GE)).is_empty(), "NaN");
    assert!(law(&LT, Facts::new().compares(Compares::Order)).is_empty());
    assert!(!law(&MUL, Facts::new().takes_number().by_inverse(&MUL)).is_empty());
}

/// Equations that hold and are not stated, with the reason.
const NOT_STATED: [(&str, &str, &str); 12] = [
    ("acos", "signs", "a rewrite that no program has asked for"),
    ("acosh", "signs", "a rewrite that no program has asked for"),
    ("cos", "ignores the sign", "a rewrite that no program has asked for"),
    ("cosh", "ignores the sign", "a rewrite that no program has asked for"),
    ("cosh", "signs", "a rewrite that no program has asked for"),
    ("erfc", "signs", "a rewrite that no program has asked for"),
    ("exp", "signs", "a rewrite that no program has asked for"),
    ("exp2", "signs", "a rewrite that no program has asked for"),
    ("sigmoid", "signs", "a rewrite that no program has asked for"),
    ("special_erfcx", "signs", "a rewrite that no program has asked for"),
    ("unscaled", "commutes", "stays what it is, beside the check of its first operand"),
    ("unscaled", "passes signs", "stays what it is, beside the check of its first operand"),
];

#[test]
fn what_holds_is_stated_or_listed() {
    let mut found: BTreeSet<(String, &str)> = BTreeSet::new();
    let maps = all().filter(|op| matches!(op.body, Body::Core { kernel: Lower::Map(_), .. }));
    for op in maps.map(OpRef::from) {
        let operands = op.def().schema.operands.len();
        let facts = *op.facts();
        let mut look = |is_stated: bool, law, holds: &dyn Fn(&Case<'_>) -> Wrong| {
            if !is_stated && cases(&op).iter().all(|case| holds(case).is_none()) {
                found.insert((op.def().name.to_string(), law));
            }
        };
        if operands == 2 {
            look(op.swapped().is_some(), "commutes", &|case| case.exchanged());
            look(facts.passes_signs, "passes signs", &|case| case.sign_of_operands());
            look(facts.with_itself.is_some(), "with itself", &|case| {
                case.with_itself(WithItself::Operand)
            });
        }
        let has_attribute = op.def().schema.attrs.iter().any(|attr| attr.name == "scalar");
        if operands == 1 && !has_attribute {
            look(facts.is_involution, "involution", &|case| case.twice());
            look(facts.ignores_sign, "ignores the sign", &|case| case.without_sign());
            look(facts.keeps_nonnegative, "keeps what is not negative", &|case| {
                case.not_negative()
            });
            let has_floats = op.def().domain.dtypes.iter().any(|dtype| dtype.is_float());
            let is_stated = facts.signs != Signs::Any || !has_floats;
            look(is_stated, "signs", &|case| case.signs(Signs::NeverNegative));
        }
    }
    let listed: BTreeSet<(String, &str)> =
        NOT_STATED.iter().map(|(op, law, _)| ((*op).to_owned(), *law)).collect();
    assert_eq!(found, listed);
}
