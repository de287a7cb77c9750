//! Saving a training step's state, and going on with it.

use crate::checkpoint::{Load, Loaded, Save, load_model, load_state, save_model_as, save_state};
use crate::error::Result;
use crate::train::TrainStep;
use std::path::Path;
use tracecast_runtime::Store;

impl TrainStep {
    /// Writes the whole state of the training: the model, what the optimizer, the scaler, the
    /// schedule and the averages remember, the state of random numbers, and whatever else the store
    /// holds, such as the number of the epoch that you put there.
    ///
    /// A run that goes on from the file, in this process or another, continues bit for bit as one
    /// that was never interrupted. The file is written whole: if the process ends in the midst of
    /// it, the old one is still there.
    ///
    /// ```
    /// use tracecast::checkpoint::Load;
    /// use tracecast::nn::{Linear, Module};
    /// use tracecast::prelude::*;
    ///
    /// let path = std::env::temp_dir().join(format!("run-{}.safetensors", std::process::id()));
    /// let step = TrainStep::new(Linear::new(2, 1), |t, model| model.forward(t.input("x")).mean_squared_error(t.input("y")))
    ///     .optimizer(AdamW::new(0.1))
    ///     .build()?;
    /// let (x, y) = (Tensor::rand([8, 2], 1)?, Tensor::rand([8, 1], 2)?);
    /// let mut store = Store::new();
    /// step.init(&mut store, 0)?;
    /// step.run(&mut store, &[("x", &x), ("y", &y)])?;
    /// store.insert("epoch", Tensor::scalar(1i64));
    /// step.save(&store, &path)?;
    ///
    /// let mut resumed = Store::new();
    /// step.load(&mut resumed, &path, &Load::strict())?;
    /// assert_eq!(resumed.get("epoch")?.item::<i64>()?, 1);
    /// for _ in 0..3 {
    ///     let (a, b) = (step.run(&mut store, &[("x", &x), ("y", &y)])?, step.run(&mut resumed, &[("x", &x), ("y", &y)])?);
    ///     assert_eq!(a.loss.to_bits(), b.loss.to_bits());
    /// }
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), tracecast::Error>(())
    /// ```
    ///
    /// # Errors
    /// If an entry of the step is not in the store or of another type there, or the file cannot be
    /// written.
    pub fn save(&self, store: &Store, path: impl AsRef<Path>) -> Result<()> {
        let own = self.own_entries();
        save_state(&self.recipe.entries, &own, store, path.as_ref())
    }

    /// Reads what [`save`](TrainStep::save) has written into a store, in the place of what is
    /// there.
    ///
    /// A strict load asks for every entry that this step keeps, and for everything else that the
    /// store has; what else was in the saved store comes along.
    ///
    /// # Errors
    /// If the file cannot be read, is no training state, or does not have what `load` asks for:
    /// [`Error::Checkpoint`](crate::Error::Checkpoint) lists all that is wrong. The store is as it
    /// was before.
    pub fn load(&self, store: &mut Store, path: impl AsRef<Path>, load: &Load) -> Result<Loaded> {
        let own = self.own_entries();
        load_state(&self.recipe.entries, &own, store, path.as_ref(), load)
    }

    /// Writes the model alone: see [`save_model`](crate::checkpoint::save_model()).
    ///
    /// # Errors
    /// As there.
    pub fn save_model(&self, store: &Store, path: impl AsRef<Path>) -> Result<()> {
        self.save_model_as(store, path, &Save::new())
    }

    /// Writes the model alone under other names or in other shapes: see
    /// [`save_model_as`](crate::checkpoint::save_model_as()).
    ///
    /// ```
    /// use tracecast::checkpoint::{Load, Save};
    /// use tracecast::nn::{Linear, Module};
    /// use tracecast::prelude::*;
    ///
    /// let step = TrainStep::new(Linear::new(3, 2), |t, model| model.forward(t.input("x")).mean(()))
    ///     .optimizer(Sgd::new(0.1))
    ///     .build()?;
    /// let mut store = Store::new();
    /// step.init(&mut store, 0)?;
    /// // In the file the names are `net.weight`, f32[3, 2], and `net.bias`, f32[2].
    /// let theirs = Load::strict().prefix("net.").transpose(&["weight"]);
    /// let path = std::env::temp_dir().join(format!("theirs-{}.safetensors", std::process::id()));
    /// step.save_model_as(&store, &path, &Save::new().like(&theirs))?;
    /// step.load_model(&mut store, &path, &theirs)?;
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), tracecast::Error>(())
    /// ```
    ///
    /// # Errors
    /// As there.
    pub fn save_model_as(&self, store: &Store, path: impl AsRef<Path>, save: &Save) -> Result<()> {
        save_model_as(self.recipe.module.as_ref(), store, path, save)
    }

    /// Reads the model alone: see [`load_model`](crate::checkpoint::load_model()). What the step
    /// keeps besides is not touched; start with [`init`](TrainStep::init).
    ///
    /// # Errors
    /// As there.
    pub fn load_model(
        &self,
        store: &mut Store,
        path: impl AsRef<Path>,
        load: &Load,
    ) -> Result<Loaded> {
        load_model(self.recipe.module.as_ref(), store, path, load)
    }
}
