//! The getters, setters and the state of an [`EagerScaler`], as PyTorch has them.

use crate::amp::eager::counted;
use crate::amp::{EagerScaler, ScalerError};
use crate::error::Result;
use std::collections::BTreeMap;
use tracecast_ir::DType;
use tracecast_runtime::{Store, Tensor};

/// The state of a scaler by name, with PyTorch's names; empty for a disabled one.
pub type ScalerState = BTreeMap<String, f64>;

impl EagerScaler {
    /// True if it scales.
    pub fn is_enabled(&self) -> bool {
        self.options.enabled
    }

    /// The scale: 1 if disabled, that of the options before the first
    /// [`scale`](EagerScaler::scale), else what the device has.
    ///
    /// # Errors
    /// If the device fails.
    pub fn get_scale(&self) -> Result<f64> {
        match &self.state {
            _ if !self.options.enabled => Ok(1.0),
            None => Ok(self.options.init_scale),
            Some(state) => state.scale.number(),
        }
    }

    /// The number of good iterations since the scale last changed: 0 if disabled.
    ///
    /// # Errors
    /// If the device fails.
    pub fn get_growth_tracker(&self) -> Result<i64> {
        match &self.state {
            _ if !self.options.enabled => Ok(0),
            None => Ok(i64::from(self.init_tracker)),
            Some(state) => Ok(state.tracker.number()? as i64),
        }
    }

    /// What the scale grows by.
    ///
    /// # Errors
    /// If disabled.
    pub fn get_growth_factor(&self) -> Result<f64> {
        self.known("growth factor", self.options.growth_factor)
    }

    /// What the scale shrinks by.
    ///
    /// # Errors
    /// If disabled.
    pub fn get_backoff_factor(&self) -> Result<f64> {
        self.known("backoff factor", self.options.backoff_factor)
    }

    /// The number of good iterations after which the scale grows.
    ///
    /// # Errors
    /// If disabled.
    pub fn get_growth_interval(&self) -> Result<i64> {
        self.known("growth interval", self.options.growth_interval)
    }

    /// Another growth factor, unchecked.
    pub fn set_growth_factor(&mut self, factor: f64) {
        self.options.growth_factor = factor;
    }

    /// Another backoff factor, unchecked.
    pub fn set_backoff_factor(&mut self, factor: f64) {
        self.options.backoff_factor = factor;
    }

    /// Another growth interval, unchecked. The scale grows when the tracker is equal to it: one
    /// below the tracker is missed until the next back-off.
    pub fn set_growth_interval(&mut self, interval: i64) {
        self.options.growth_interval = interval;
    }

    /// What [`load_state_dict`](EagerScaler::load_state_dict) needs to go on exactly here; empty if
    /// disabled.
    ///
    /// # Errors
    /// If the device fails.
    pub fn state_dict(&self) -> Result<ScalerState> {
        if !self.options.enabled {
            return Ok(ScalerState::new());
        }
        let entries = [
            (SCALE, self.get_scale()?),
            (GROWTH_FACTOR, self.options.growth_factor),
            (BACKOFF_FACTOR, self.options.backoff_factor),
            (GROWTH_INTERVAL, self.options.growth_interval as f64),
            (GROWTH_TRACKER, self.get_growth_tracker()? as f64),
        ];
        Ok(entries.map(|(name, number)| (name.to_owned(), number)).into())
    }

    /// Goes on where the scaler was that this state is from. The values are not checked; the stages
    /// of optimizers stay. If disabled, does nothing.
    ///
    /// # Errors
    /// If the state is empty or lacks an entry. Nothing has changed then, but with `parity` for the
    /// entries that PyTorch reads first.
    pub fn load_state_dict(&mut self, state: &ScalerState) -> Result<()> {
        if !self.options.enabled {
            return Ok(());
        }
        if state.is_empty() {
            return Err(ScalerError::EmptyState.into());
        }
        let entry =
            |name: &'static str| state.get(name).copied().ok_or(ScalerError::MissingEntry(name));
        if !self.parity {
            for name in [SCALE, GROWTH_FACTOR, BACKOFF_FACTOR, GROWTH_INTERVAL, GROWTH_TRACKER] {
                entry(name)?;
            }
        }
        let scale = entry(SCALE)?;
        self.options.init_scale = scale;
        if let Some(state) = &self.state {
            state.scale.set(&Tensor::scalar(scale as f32))?;
        }
        self.options.growth_factor = entry(GROWTH_FACTOR)?;
        self.options.backoff_factor = entry(BACKOFF_FACTOR)?;
        self.options.growth_interval = entry(GROWTH_INTERVAL)? as i64;
        self.init_tracker = entry(GROWTH_TRACKER)? as i32;
        if let Some(state) = &self.state {
            state.tracker.set(&counted(state.tracker.dtype(), self.init_tracker)?)?;
        }
        Ok(())
    }

    /// Puts the scale and the growth tracker into a store, as `NAME.scale` and
    /// `NAME.growth_tracker`: a recorded [`GradScaler`](crate::amp::GradScaler) of that name goes
    /// on from them. The factors are settings and not stored.
    ///
    /// # Errors
    /// If the device fails.
    pub fn save(&self, store: &mut Store, name: &str) -> Result<()> {
        if self.options.enabled {
            store.insert(&format!("{name}.scale"), Tensor::scalar(self.get_scale()? as f32));
            let dtype = self.state.as_ref().map_or(DType::I32, |state| state.tracker.dtype());
            let tracker = counted(dtype, self.get_growth_tracker()? as i32)?;
            store.insert(&format!("{name}.growth_tracker"), tracker);
        }
        Ok(())
    }

    /// Goes on from the scale and the growth tracker that [`save`](EagerScaler::save) or a recorded
    /// scaler of this name left in a store. If disabled, does nothing.
    ///
    /// # Errors
    /// If one of them is not there or not one number; then nothing has changed. If the device
    /// fails.
    pub fn load(&mut self, store: &Store, name: &str) -> Result<()> {
        if !self.options.enabled {
            return Ok(());
        }
        let scale = store.get(&format!("{name}.scale"))?.item::<f32>()?;
        // Each device counts in a dtype of its own.
        let tracker = store.get(&format!("{name}.growth_tracker"))?.cast(DType::I32)?.item()?;
        self.go_on_from(f64::from(scale), tracker)
    }

    /// Takes a scale and a growth tracker, on the device if they are there already.
    pub(super) fn go_on_from(&mut self, scale: f64, tracker: i32) -> Result<()> {
        (self.options.init_scale, self.init_tracker) = (scale, tracker);
        if let Some(state) = &self.state {
            state.scale.set(&Tensor::scalar(scale as f32))?;
            state.tracker.set(&counted(state.tracker.dtype(), tracker)?)?;
        }
        Ok(())
    }

    /// A scaler of its own that goes on where this one is, on the device of the first tensor it
    /// scales: what pickling one and reading it back gives in PyTorch.
    ///
    /// # Errors
    /// If an optimizer was unscaled or stepped since the last update.
    pub fn copied(&self) -> Result<EagerScaler> {
        if self.options.enabled && !self.seen.is_empty() {
            return Err(ScalerError::OpenIteration.into());
        }
        let mut options = self.options.clone();
        if options.enabled {
            options.init_scale = self.get_scale()?;
        }
        let init_tracker = self.get_growth_tracker()? as i32;
        let (state, seen) = (None, Vec::new());
        let (parity, sharded) = (self.parity, self.sharded);
        Ok(EagerScaler { options, parity, sharded, init_tracker, state, seen })
    }

    fn known<T>(&self, what: &'static str, value: T) -> Result<T> {
        if self.options.enabled { Ok(value) } else { Err(ScalerError::Disabled(what).into()) }
    }
}

const SCALE: &str = "scale";
const GROWTH_FACTOR: &str = "growth_factor";
const BACKOFF_FACTOR: &str = "backoff_factor";
const GROWTH_INTERVAL: &str = "growth_interval";
const GROWTH_TRACKER: &str = "_growth_tracker";
