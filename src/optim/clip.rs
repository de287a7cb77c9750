//! [`Clip`]: gradients limited before a step.

use crate::cast_to::CastTo;
use crate::setters::setters;
use crate::trace::Trace;
use tracecast_ir::ops::elementwise::Elementwise;
use tracecast_ir::ops::reduce::Reductions;
use tracecast_ir::{DType, TensorType, Var};

/// How the length of all gradients together is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// The root of the sum of squares.
    Euclidean,
    /// The largest absolute value.
    Largest,
}

/// Limits gradients, as PyTorch's
/// [`clip_grad_norm_`](https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html)
/// and
/// [`clip_grad_value_`](https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_value_.html).
///
/// ```
/// use tracecast::optim::Clip;
/// use tracecast::prelude::*;
///
/// let step = jit(Options::new(), |t| {
///     let w = t.param("w");
///     let sgd = Sgd::new(1.0);
///     let mut optimizer = Recorded::new(t, &sgd, &[w]);
///     optimizer.backward((w * w).sum(()));
///     let clipped = optimizer.clip(&Clip::norm(1.0));
///     t.output("norm", clipped.norm.expect("clipped by norm"));
///     optimizer.step();
/// });
/// let mut store = Store::new().with("w", Tensor::new([2], &[1.5f32, 2.0])?);
/// let norm = step.run(&mut store, &[])?["norm"].item::<f32>()?;
/// assert_eq!(norm, 5.0);
/// assert!((store.get("w")?.to_vec::<f32>()?[0] - 0.9).abs() < 1e-6);
/// # Ok::<(), tracecast::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Clip {
    limit: f64,
    norm: Option<NormKind>,
    refuses: bool,
}

/// What clipping found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clipped<'t> {
    /// The norm of all gradients together, before; `None` if they were clipped by value.
    pub norm: Option<Var<'t>>,
    /// f32, 1 if the norm is not finite, else 0; only if that is to skip the step.
    pub nonfinite: Option<Var<'t>>,
}

impl Clip {
    /// To a Euclidean norm of all gradients together.
    pub fn norm(max: f64) -> Self {
        Clip::norm_of(NormKind::Euclidean, max)
    }

    /// To another norm.
    pub fn norm_of(kind: NormKind, max: f64) -> Self {
        Clip { limit: max, norm: Some(kind), refuses: false }
    }

    /// Each element to between `-limit` and `limit`.
    pub fn value(limit: f64) -> Self {
        Clip { limit, norm: None, refuses: false }
    }

    setters! {
        /// With steps skipped in which the norm is infinite or NaN. PyTorch raises an error there
        /// (`error_if_nonfinite`); a compiled step returns it with its results.
        skip_if_nonfinite() => refuses = true;
    }

    /// What is wrong with it, if anything is.
    pub(crate) fn problem(&self) -> Option<String> {
        if self.limit.is_nan() || self.limit < 0.0 {
            return Some(format!("gradients are clipped to {}, expected at least 0", self.limit));
        }
        (self.refuses && self.norm.is_none())
            .then(|| "clipping by value has no norm that could be infinite".to_owned())
    }

    /// Records the clipped gradients in the place of the others.
    ///
    /// By norm, each is multiplied by the smaller of 1 and `max / (norm + 1e-6)`, as PyTorch
    /// computes it: one value for all.
    #[track_caller]
    pub fn record<'t>(&self, t: &'t Trace, grads: &mut [Var<'t>]) -> Clipped<'t> {
        if let Some(problem) = self.problem() {
            t.fail("clip", problem);
        }
        if t.error().is_some() || grads.is_empty() {
            return Clipped::default();
        }
        let Some(kind) = self.norm else {
            for grad in grads {
                *grad = clamp(t, *grad, self.limit);
            }
            return Clipped::default();
        };
        let norm = total(kind, grads);
        let one = t.ones_like(norm);
        let coefficient = (one / (norm + 1e-6) * self.limit).minimum(one);
        for grad in grads {
            let wide = grad.widened();
            *grad = (wide * coefficient.to_dtype(wide.dtype())).to_dtype(grad.dtype());
        }
        Clipped { norm: Some(norm), nonfinite: self.refuses.then(|| flag(t, norm)) }
    }
}

/// 1 if a number is infinite or NaN, else 0.
fn flag<'t>(t: &'t Trace, x: Var<'t>) -> Var<'t> {
    let ty = TensorType::scalar(DType::F32);
    x.abs().lt(f64::INFINITY).choose(t.full(ty.clone(), 0.0), t.full(ty, 1.0))
}

/// NaN stays NaN.
fn clamp<'t>(t: &'t Trace, x: Var<'t>, limit: f64) -> Var<'t> {
    let at = |limit: f64| t.full(x.ty(), limit);
    x.maximum(at(-limit)).minimum(at(limit))
}

/// The norm of the norms of all. Each has the dtype of its gradient, the result the one they are
/// promoted to, as in PyTorch.
fn total<'t>(kind: NormKind, x: &[Var<'t>]) -> Var<'t> {
    let promoted = |a: DType, b: DType| DType::promote(a, b).unwrap_or(DType::F32);
    let dtype = x.iter().map(|x| x.dtype()).reduce(promoted).expect("there is a gradient");
    let norms: Vec<Var<'t>> = x.iter().map(|x| length(kind, *x).to_dtype(dtype)).collect();
    let wide = norms.iter().map(|norm| norm.widened());
    let joined = match kind {
        _ if norms.len() == 1 => return norms[0],
        NormKind::Euclidean => {
            wide.map(|norm| norm * norm).reduce(|a, b| a + b).map(Elementwise::sqrt)
        }
        NormKind::Largest => wide.reduce(|a, b| a.maximum(b)),
    };
    joined.expect("there is a gradient").to_dtype(dtype)
}

/// The norm of one gradient, in its dtype. That of a single number is found without squaring it.
fn length(kind: NormKind, x: Var<'_>) -> Var<'_> {
    let wide = x.widened();
    let norm = match kind {
        NormKind::Euclidean if x.ty().numel() != 1 => (wide * wide).sum(()).sqrt(),
        _ => largest(wide),
    };
    norm.to_dtype(x.dtype())
}

/// The largest absolute value, 0 if there is none.
fn largest(x: Var<'_>) -> Var<'_> {
    if x.ty().numel() == 0 {
        return x.tracer().full(TensorType::scalar(x.dtype()), 0.0);
    }
    x.abs().amax(())
}
