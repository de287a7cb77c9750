//! The attention of the benches, each row with its program; schedules are chosen for them in tests
//! as well.

use tracecast::Graph;
use tracecast::prelude::*;

const LENGTHS: [usize; 4] = [128, 512, 2048, 4096];
pub(crate) const DTYPES: [DType; 2] = [DType::F32, DType::BF16];

/// Queries and keys, whether each query sees those before it alone, and whether there are
/// gradients.
pub(crate) type Row = (usize, bool, bool);

/// All of them.
pub(crate) fn rows() -> impl Iterator<Item = Row> {
    let all = LENGTHS.into_iter().flat_map(|length| [(length, false), (length, true)]);
    all.flat_map(|(length, causal)| [(length, causal, false), (length, causal, true)])
}

pub(crate) fn name((length, causal, backward): Row, dtype: DType) -> String {
    let seen = if causal { "causal" } else { "whole" };
    let direction = if backward { "backward" } else { "forward" };
    format!("{length} {seen} {direction} {dtype}")
}

/// Attention in one dtype.
pub(crate) fn graph((length, causal, backward): Row, dtype: DType) -> Graph {
    trace("attention", |t: &Trace| {
        let ty = TensorType::new(dtype, [4, 8, length, 64]);
        let of = ["q", "k", "v"].map(|name| t.param_of(name, ty.clone()));
        let none = None::<Var<'_>>;
        let y = of[0]
            .scaled_dot_product_attention(of[1], of[2], none, none, 0.0, causal, None, false, 0);
        t.update(t.state_of("y", ty.clone()), y);
        if backward {
            let dy = t.state_of("dy", ty.clone());
            let loss = y.mul(dy).sum(().dtype(DType::F32));
            for (name, g) in ["dq", "dk", "dv"].into_iter().zip(t.grad(loss, &of)) {
                t.update(t.state_of(name, ty.clone()), g);
            }
        }
    })
    .expect("a program")
}
