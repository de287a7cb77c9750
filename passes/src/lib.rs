//! The passes of tracecast: from a traced graph to fused kernels.
//!
//! A [`Pass`] makes a new graph from a verified one, always by tracing it again; a [`Pipeline`] is
//! passes in order with the verifier after each. [`standard`] is the order in which programs are
//! compiled, with the reason for each place.
//!
//! ```
//! use tracecast_ir::ops::elementwise::Elementwise;
//! use tracecast_ir::ops::reduce::Reductions;
//! use tracecast_ir::{DType, TensorType, Tracer};
//! use tracecast_passes::{Decompose, PassOptions, standard};
//!
//! let t = Tracer::new("slope");
//! let x = t.param("x", TensorType::new(DType::F32, [3]));
//! let loss = x.mul(x).sum(());
//! t.output("dx", t.grad(loss, &[x])[0]);
//!
//! let pipeline = standard(&PassOptions::default()).up_to(Decompose::NAME).unwrap();
//! let core = pipeline.run(t.finish().unwrap(), |pass, graph, _| println!("{pass}: {} nodes", graph.len())).unwrap();
//! assert_eq!(core.outputs().len(), 1);
//! ```

pub mod autocast;
pub mod autodiff;
pub mod decompose;
pub mod explain;
pub mod fuse;
mod invariants;
mod pass;
pub mod place;
pub mod scaler;
pub mod simplify;

pub use autocast::Autocast;
pub use autodiff::Autodiff;
pub use decompose::Decompose;
pub use fuse::Fuse;
pub use pass::{Pass, Pipeline};
pub use place::{Place, Precision};
pub use scaler::Scaler;
pub use simplify::Simplify;
pub use tracecast_ir::PassError;

use std::sync::Arc;
use tracecast_ir::kernel::FormKind;
use tracecast_ir::policy::PolicySet;

/// What a user can choose about the passes.
#[derive(Clone, Debug)]
pub struct PassOptions {
    /// The policies the program is to be traced under; `None` takes any.
    pub policies: Option<Arc<PolicySet>>,
    /// False to unscale and check each gradient in one sweep of its own.
    pub fold: bool,
    /// Which results moving casts may change.
    pub precision: Precision,
    /// The forms of kernels that the device has code for; see [`Decompose`].
    pub forms: Vec<FormKind>,
    /// What fusion weighs: the prices of the device's kind.
    pub fusion: fuse::Settings,
}

impl Default for PassOptions {
    fn default() -> Self {
        let forms = FormKind::ALL.to_vec();
        PassOptions {
            policies: None,
            fold: true,
            precision: Precision::Exact,
            forms,
            fusion: fuse::Settings::default(),
        }
    }
}

/// The standard pipeline, in order.
pub fn standard(options: &PassOptions) -> Pipeline {
    passes(options).into_iter().fold(Pipeline::new(), Pipeline::then_boxed)
}

/// The names of the passes, in the order of the standard pipeline.
pub fn names() -> Vec<&'static str> {
    standard(&PassOptions::default()).names()
}

/// The pass of that name.
pub fn find(name: &str, options: &PassOptions) -> Option<Box<dyn Pass>> {
    passes(options).into_iter().find(|pass| pass.name() == name)
}

fn passes(options: &PassOptions) -> Vec<Box<dyn Pass>> {
    let autocast = options.policies.clone().map_or_else(Autocast::new, Autocast::under);
    vec![
        // First, because a policy speaks about the ops that the user wrote.
        Box::new(autocast),
        // Gradients inherit the casts, so no second policy is needed for them.
        Box::new(Autodiff),
        // Gradients exist now. Before `decompose`, because it speaks about the ops of the scaler
        // family as they were recorded.
        Box::new(Scaler { fold: options.fold }),
        // All that remain are composites, with their own gradients used: f32 inside, one rounding
        // at each result. What the device has no code for goes with them.
        Box::new(Decompose { forms: options.forms.clone() }),
        // Share equal values, drop the dead and what cancels exactly; optional.
        Box::new(Simplify),
        // Move casts to where they cost least; optional.
        Box::new(Place::new(options.precision).for_fusion(options.fusion)),
        // Nothing after this sees an op.
        Box::new(Fuse::new(options.fusion)),
    ]
}
