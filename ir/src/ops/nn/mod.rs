//! The parts of neural networks, composed of other ops: activations, softmax, normalisation, losses.
//!
//! Those that PyTorch computes in one kernel compute inside f32 here and round once, and have the gradient that PyTorch's kernel
//! has, from the same saved results.

pub mod activation;
pub mod curve;
pub mod loss;
pub mod margin;
pub mod norm;
pub mod regression;
pub mod softmax;

pub use activation::Activations;
pub use curve::Curves;
pub use loss::Losses;
pub use margin::Margins;
pub use norm::Norms;
pub use regression::Regressions;
pub use softmax::Softmaxes;
