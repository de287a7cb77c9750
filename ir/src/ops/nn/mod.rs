//! The parts of neural networks, composed of other ops: activations, softmax, normalisation,
//! losses.
//!
//! Those that PyTorch computes in one kernel compute inside f32 here and round once, and have the
//! gradient that PyTorch's kernel has, from the same saved results.

pub mod activation;
pub mod attention;
pub mod batch_norm;
pub mod curve;
pub mod group_norm;
pub mod loss;
pub mod margin;
pub mod norm;
pub mod regression;
pub mod softmax;

pub use activation::Activations;
pub use attention::Attentions;
pub use batch_norm::BatchNorms;
pub use curve::Curves;
pub use group_norm::GroupNorms;
pub use loss::Losses;
pub use margin::Margins;
pub use norm::Norms;
pub use regression::Regressions;
pub use softmax::Softmaxes;
