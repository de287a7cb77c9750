//! [`LinearCrossEntropyLoss`]: the last layer of a model and its loss.

use super::{CrossEntropyLoss, Reduction};
use crate::nn::{Context, Layer, Linear};
use crate::setters::setters;
use tracecast_ir::{DType, Size, Var};
use tracecast_runtime::Tensor;

/// The cross entropy of what a matrix product without bias makes of `x`:
/// `torch.nn.LinearCrossEntropyLoss`.
///
/// `x` is `[N, inputs]`, the target `[N, …]` of i64 with the sizes of [`outputs`](Self::outputs)
/// behind the batch, or probabilities `[N, classes, …]`. The parameter is `linear.weight`,
/// `[classes · …, inputs]`, and starts as that of [`Linear`]; the weights of classes are the buffer
/// `weight`.
///
/// ```
/// use tracecast::nn::{Layer, LinearCrossEntropyLoss};
/// let names: Vec<String> = LinearCrossEntropyLoss::new(64, 10).entries()?.into_iter().map(|entry| entry.name).collect();
/// assert_eq!(names, ["linear.weight"]);
/// # Ok::<(), tracecast::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LinearCrossEntropyLoss {
    inputs: usize,
    classes: usize,
    outputs: Vec<usize>,
    bias: bool,
    dtype: DType,
    loss: CrossEntropyLoss,
}

impl LinearCrossEntropyLoss {
    /// From `inputs` numbers to `classes`, in f32.
    pub fn new(inputs: usize, classes: usize) -> Self {
        let loss = CrossEntropyLoss::new();
        LinearCrossEntropyLoss {
            inputs,
            classes,
            outputs: Vec::new(),
            bias: false,
            dtype: DType::F32,
            loss,
        }
    }

    setters! {
        /// With as many predictions for each example as these sizes have positions.
        outputs(sizes: impl Into<Vec<usize>>) => outputs = sizes.into();
        /// With a bias, the parameter `linear.bias`.
        with_bias() => bias = true;
    }

    /// With another reduction than the mean.
    #[must_use]
    pub fn reduction(mut self, reduction: Reduction) -> Self {
        self.loss = self.loss.reduction(reduction);
        self
    }

    /// With a weight for each class, `[classes]`.
    #[must_use]
    pub fn weight(mut self, weight: Tensor) -> Self {
        self.loss = self.loss.weight(weight);
        self
    }

    /// Without the examples that have this index, in the place of -100.
    #[must_use]
    pub fn ignore_index(mut self, index: i64) -> Self {
        self.loss = self.loss.ignore_index(index);
        self
    }

    /// With this share of the probability spread over all classes.
    #[must_use]
    pub fn label_smoothing(mut self, share: f64) -> Self {
        self.loss = self.loss.label_smoothing(share);
        self
    }

    setters! {
        /// With parameters of another dtype.
        dtype(dtype: DType) => dtype = dtype;
    }
}

impl Layer for LinearCrossEntropyLoss {
    type Input<'t> = (Var<'t>, Var<'t>);
    type Output<'t> = Var<'t>;

    fn forward<'t>(&self, cx: &Context<'t>, (x, target): (Var<'t>, Var<'t>)) -> Var<'t> {
        let rows = self.classes * self.outputs.iter().product::<usize>();
        let linear = Linear::new(self.inputs, rows).dtype(self.dtype);
        let linear = if self.bias { linear } else { linear.without_bias() };
        let logits = cx.part("linear", &linear, x);
        let logits = cx.here(|| {
            if self.outputs.is_empty() || logits.is_poison() {
                return logits;
            }
            let inner = std::iter::once(&self.classes).chain(&self.outputs);
            let inner = inner.map(|n| Size::from(*n));
            let rank = logits.rank();
            let shape = logits.shape();
            logits.reshape_to(&shape[..rank - 1].iter().copied().chain(inner).collect())
        });
        self.loss.forward(cx, (logits, target))
    }
}
