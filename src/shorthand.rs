//! [`Shorthand`]: the usual cases of ops with many settings.

use tracecast_ir::Var;
use tracecast_ir::ops::nn::loss::Losses;

/// The usual cases of ops with many settings, as methods.
pub trait Shorthand<'t>: Copy {
    /// The mean cross entropy of logits (one row each) against class indices.
    #[track_caller]
    fn cross_entropy(self, target: Var<'t>) -> Var<'t>;

    /// The mean of the squared differences.
    #[track_caller]
    fn mean_squared_error(self, target: Var<'t>) -> Var<'t>;
}

impl<'t> Shorthand<'t> for Var<'t> {
    #[track_caller]
    fn cross_entropy(self, target: Var<'t>) -> Var<'t> {
        let loss = || self.cross_entropy_loss(target, None, None, None, None);
        called(self, "cross_entropy", loss)
    }

    #[track_caller]
    fn mean_squared_error(self, target: Var<'t>) -> Var<'t> {
        called(self, "mean_squared_error", || self.mse_loss(target, None))
    }
}

/// Records what is a function of that name to the user.
#[track_caller]
fn called<'t>(x: Var<'t>, name: &'static str, body: impl FnOnce() -> Var<'t>) -> Var<'t> {
    if x.is_poison() {
        return x;
    }
    x.tracer().at_caller(|| x.tracer().called(name, Some(x.ty()), body))
}
