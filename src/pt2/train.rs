//! Training steps of exported models.

use super::Model;
use crate::trace::Trace;
use crate::train::{Objective, TrainStep, TrainStepBuilder};
use tracecast_ir::Var;

impl TrainStep {
    /// A step that trains an exported model by a loss, which `loss` computes from the inputs of a
    /// run and the model's results. The model's own inputs have the names of the file.
    ///
    /// ```
    /// use tracecast::prelude::*;
    /// use tracecast::pt2;
    ///
    /// let model = pt2::open("tests/data/pt2/net_gru.pt2")?;
    /// let step = TrainStep::from_exported(model, |t, outputs| outputs[0].cross_entropy(t.input("y")))
    ///     .optimizer(AdamW::new(1e-3))
    ///     .autocast("cpu", DType::BF16)
    ///     .build()?;
    /// let mut store = Store::new();
    /// step.init(&mut store, 0)?;
    /// let (x, y) = (Tensor::new([2, 12], &[1i64; 24])?, Tensor::new([2], &[0i64, 1])?);
    /// assert!(step.run(&mut store, &[("args_0", &x), ("y", &y)])?.loss.is_finite());
    /// # Ok::<(), tracecast::Error>(())
    /// ```
    #[track_caller]
    pub fn from_exported(
        model: Model,
        loss: impl for<'t> Fn(&'t Trace, &[Var<'t>]) -> Var<'t> + Send + Sync + 'static,
    ) -> TrainStepBuilder {
        let recorded = model.clone();
        TrainStepBuilder::new(
            Box::new(model),
            Objective::Mean(Box::new(move |t, model| {
                loss(t, &recorded.call_on_inputs(model.context()))
            })),
        )
    }

    /// A step that trains an exported model whose only result is the loss. Labels that are
    /// constants of the file become inputs with [`Model::with_input`].
    ///
    /// ```
    /// use tracecast::prelude::*;
    /// use tracecast::pt2;
    ///
    /// let model = pt2::open("tests/data/pt2/net_gru.loss.pt2")?.with_input("lifted_tensor_0", "y")?;
    /// let step = TrainStep::from_exported_loss(model).optimizer(AdamW::new(1e-3)).build()?;
    /// let mut store = Store::new();
    /// step.init(&mut store, 0)?;
    /// let (x, y) = (Tensor::new([2, 12], &[1i64; 24])?, Tensor::new([2], &[0i64, 1])?);
    /// assert!(step.run(&mut store, &[("args_0", &x), ("y", &y)])?.loss.is_finite());
    /// # Ok::<(), tracecast::Error>(())
    /// ```
    #[track_caller]
    pub fn from_exported_loss(model: Model) -> TrainStepBuilder {
        TrainStep::from_exported(model, |t, outputs| match *outputs {
            [loss] => loss,
            _ => {
                let message = format!("has {} results, expected the loss alone", outputs.len());
                t.fail("exported model", message)
            }
        })
    }
}
