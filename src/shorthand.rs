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
        self.tracer().at_caller(|| self.tracer().called("cross_entropy", Some(self.ty()), loss))
    }

    #[track_caller]
    fn mean_squared_error(self, target: Var<'t>) -> Var<'t> {
        let loss = || self.mse_loss(target, None);
        self.tracer()
            .at_caller(|| self.tracer().called("mean_squared_error", Some(self.ty()), loss))
    }
}
