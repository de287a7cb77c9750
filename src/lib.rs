//! Tracecast records what a Rust closure computes with tensors, differentiates it, rewrites it for
//! mixed precision and compiles it to fused kernels for the CPU: a whole training step, optimizer
//! and loss scaling included, is one program.
//!
//! ```
//! use tracecast::nn::{Linear, Relu, Sequential};
//! use tracecast::prelude::*;
//!
//! fn main() -> tracecast::Result<()> {
//!     // A model is a description; its values live in a store.
//!     let model = Sequential::new().then(Linear::new(2, 16)).then(Relu).then(Linear::new(16, 2));
//!     let step = TrainStep::new(model, |t, model| model.forward(t.input("x")).cross_entropy(t.input("y")))
//!         .optimizer(AdamW::new(0.05))
//!         .autocast("cpu", DType::F16)
//!         .scaler(ScalerOptions::default())
//!         .build()?;
//!     let mut store = Store::new();
//!     step.init(&mut store, 0)?;
//!
//!     // Exclusive or. The first call traces and compiles; the others run.
//!     let x = Tensor::new([4, 2], &[0.0f32, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0])?;
//!     let y = Tensor::new([4], &[0i64, 1, 1, 0])?;
//!     let mut loss = f32::INFINITY;
//!     for _ in 0..200 {
//!         loss = step.run(&mut store, &[("x", &x), ("y", &y)])?.loss;
//!     }
//!     assert!(loss < 0.1);
//!
//!     // Another program over the same store.
//!     let evaluate = step.evaluation(|t, model| t.output("class", model.forward(t.input("x")).argmax(1)));
//!     let out = evaluate.run(&mut store, &[("x", &x)])?;
//!     assert_eq!(out["class"].to_vec::<i64>()?, [0, 1, 1, 0]);
//!     Ok(())
//! }
//! ```
//!
//! | to | see |
//! |---|---|
//! | record a program and look at it | [`trace()`] |
//! | compile a graph | [`compile()`] |
//! | run a closure for whatever types it meets | [`jit()`] |
//! | choose precision | [`amp`] |
//! | see why it is as it is | [`explain`](mod@explain) |
//! | run ops one by one | [`eager`] |
//! | add an op, with its gradient and its policy | [`ir::ops!`](tracecast_ir::ops!), [`amp::custom_grad`] |
//! | find wrong numbers and wrong gradients | [`numerics`] |
//! | put a model together | [`nn`] |
//! | shuffle examples and take batches | [`data`] |
//! | have it say one token after another | [`generate`] |
//! | train it | [`TrainStep`], [`optim`] |
//! | save it and load it | [`checkpoint`], [`TrainStep::save`] |
//! | take a model from PyTorch | [`pt2`] |
//!
//! Nothing panics on bad input: an op that cannot be recorded is an error with the line that asked
//! for it.

pub mod amp;
mod built_in;
mod cast_to;
pub mod checkpoint;
mod compile;
pub mod data;
mod device_context;
pub mod eager;
mod entry;
mod error;
pub mod explain;
pub mod generate;
mod jit;
mod names;
pub mod nn;
pub mod numerics;
pub mod optim;
mod options;
mod profile;
#[cfg(feature = "pt2")]
pub mod pt2;
mod report;
mod setters;
mod shorthand;
mod trace;
mod train;

pub use compile::{SizedProgram, compile, compile_reported, compile_sized, compile_sized_reported};
pub use entry::{Entry, Reader, Start};
pub use error::{Error, Result};
pub use jit::{Jit, JitCounters, Recompilation, jit};
pub use options::{Observer, Options, ProgressHook};
pub use profile::{ExchangeProfile, KernelProfile, Profile};
pub use report::{CompileReport, KernelCode, Progress};
pub use shorthand::Shorthand;
pub use trace::{Trace, trace, trace_with};
pub use train::{
    DataParallel, GradientReport, StartedStep, StepResult, TrainStep, TrainStepBuilder,
};

#[cfg(feature = "cpu")]
pub use tracecast_codegen::{CpuDevice, CpuOptions, Vectors, measure_flops, measure_limits};
pub use tracecast_ir as ir;
pub use tracecast_ir::{DType, Graph, Shape, Size, TensorType, Var, sizes};
pub use tracecast_passes as passes;
pub use tracecast_passes::Precision;
pub use tracecast_runtime as runtime;
pub use tracecast_runtime::{
    Cancel, Device, Executable, Limits, Outputs, Published, Session, Started, Store, Tensor,
    Weights,
};

/// What most programs use: `use tracecast::prelude::*`. With it come all ops and functions that
/// PyTorch has as methods of tensors, its functions of several tensors (`cat`, `stack`, `einsum`),
/// and `nn` and `optim` as the names that PyTorch's users write in front of layers and optimizers.
pub mod prelude {
    pub use crate::amp::{Autocast, CustomGrad, GradScaler, ScalerOptions, autocast, custom_grad};
    pub use crate::nn::{Layer, Module};
    pub use crate::optim::{Adam, AdamW, Clip, Groups, Recorded, Schedule, Sgd};
    pub use crate::{
        DType, Jit, Options, Shape, Shorthand, Size, Store, Tensor, TensorType, Trace, TrainStep,
        Var, compile, compile_sized, jit, nn, optim, sizes, trace,
    };
    pub use tracecast_ir::functions::{
        PadMode, Pick, bitwise_left_shift, bitwise_right_shift, block_diag, broadcast_tensors,
        column_stack, diff, dstack, einsum, float_power, floor_divide, hstack, meshgrid, multi_dot,
        pow, remainder, stack, vstack, xlog1py, xlogy,
    };
    pub use tracecast_ir::ops::prelude::{
        Activations, Attentions, Bags, BatchNorms, Bits, Cast, Collectives, Convolutions, Curves,
        Divisions, Elementwise, Functions, GroupNorms, Indexed, Indexing, IntoDims, Lengths,
        Losses, Margins, MatrixProducts, MulAdds, Neighbours, Norms, Paddings, Pools, Powers,
        Products, Random, Reductions, Regressions, Resizes, Scans, Scatters, Softmaxes, Sorting,
        Statistics, Views, Windowed, cat,
    };
}

/// Compiles and runs the programs of pages.
macro_rules! run_pages {
    ($($name:ident: $page:literal),* $(,)?) => {
        $(
            #[cfg(doctest)]
            #[doc = include_str!($page)]
            struct $name;
        )*
    };
}

run_pages! {
    Readme: "../README.md",
    FirstProgram: "../docs/guide/first-program.md",
    Training: "../docs/guide/training.md",
    MixedPrecision: "../docs/guide/mixed-precision.md",
    LookingInside: "../docs/guide/looking-inside.md",
    Saving: "../docs/guide/saving.md",
    Serving: "../docs/guide/serving.md",
    Generation: "../docs/guide/generation.md",
    ComingFromPyTorch: "../docs/guide/coming-from-pytorch.md",
    CustomOps: "../docs/guide/custom-ops.md",
    Debugging: "../docs/guide/debugging.md",
    Performance: "../docs/guide/performance.md",
    Memory: "../docs/guide/memory.md",
    OwnDevice: "../docs/guide/device.md",
    Devices: "../docs/devices.md",
    Autocast: "../docs/autocast.md",
    PyTorchOps: "../docs/pytorch-ops.md",
    PyTorchFunctions: "../docs/pytorch-functions.md",
    PyTorchTraining: "../docs/pytorch-training.md",
    Scaling: "../docs/scaling.md",
}

#[cfg(feature = "pt2")]
run_pages!(Exported: "../docs/pytorch.md");
