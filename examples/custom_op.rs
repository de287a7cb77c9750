//! An op of one's own with its gradient, which is compared with differences, and with the precision
//! that it wants under autocast.
//!
//! `cargo run --example custom_op`

use std::io::Write;
use tracecast::explain::explain;
use tracecast::ir::op::{Dispatch, Domain, FLOATS, Rounding, composite, rule};
use tracecast::ir::policy::{Policy, PolicySet, Target};
use tracecast::ir::{ops::infer, smallvec};
use tracecast::numerics::check_gradients;
use tracecast::prelude::*;
use tracecast::trace_with;

tracecast::ir::ops! { trait Robust;
/// The logarithm of the hyperbolic cosine: a square near zero, the magnitude far from it.
LOG_COSH = log_cosh(x) -> (y) {
    // In f32 under autocast, whatever it is given. Rules may say otherwise.
    dispatch: Dispatch::Declares(Policy::Fp32),
    infer:    &infer::float,
    body:     composite(
        Some(rule(&|cx| smallvec![Some(cx.dy() * cx.args[0].tanh())])),
        // |x| + log((1 + exp(-2 |x|)) / 2), which does not overflow.
        &|cx| {
            let x = cx.args[0].abs();
            smallvec![x + ((1.0 + (x * -2.0).exp()) * 0.5).log()]
        },
    ),
    rounding: Rounding::RESULT,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3]"] },
}
}

fn main() -> tracecast::Result<()> {
    let x = Tensor::from([-30.0, -1.5, -0.3, 0.1, 0.7, 2.0]);
    let wrong = check_gradients(&Options::new(), &[("x", &x)], |t| t.input("x").log_cosh())?;
    assert!(wrong.is_empty(), "{wrong:?}");

    // The residual is bf16, as it comes out of `linear`: the op gets it in f32, or as it is if a
    // rule wants low precision.
    let mut low = PolicySet::standard();
    low.add_rule(Target::Op("log_cosh".to_owned()), None, Policy::LowerPrecisionFp);
    let mut out = std::io::stdout();
    for (policies, dtype) in [(PolicySet::standard(), DType::F32), (low, DType::BF16)] {
        let options = Options::new().with_policies(policies);
        let graph = trace_with("loss", &options, |t| {
            let x = t.input_of("x", TensorType::new(DType::F32, [8, 4]));
            let w = t.param_of("w", TensorType::new(DType::F32, [2, 4]));
            let loss = autocast(t, "cpu", DType::BF16, || x.linear(w, None).log_cosh());
            assert_eq!(loss.dtype(), dtype);
            t.output("loss", loss.mean(()));
        })?;
        let why = explain(&graph, &options)?.about("log_cosh#0").expect("it is in the program");
        writeln!(out, "{}", why.ops[0]).expect("standard output is open");
    }
    Ok(())
}
