//! Steps that are given to the device before the result of the one in front of them is known.

use super::recipe::Recipe;
use super::result::StepResult;
use crate::error::Result;
use std::fmt;
use std::iter;
use std::sync::Arc;
use tracecast_runtime::{Started, Store};

/// A training step that need not have ended: see [`TrainStep::start`](super::TrainStep::start).
pub struct StartedStep {
    pub(super) started: Started,
    pub(super) recipe: Arc<Recipe>,
}

impl StartedStep {
    /// Waits for the end of the step; `store` is the one that it was started on.
    ///
    /// # Errors
    /// As [`Started::finish`].
    pub fn finish(self, store: &Store) -> Result<StepResult> {
        StepResult::of(&self.recipe, self.started.finish(store)?)
    }
}

impl fmt::Debug for StartedStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.started.fmt(f)
    }
}

/// The results of the steps that `start` starts, up to the first error. With `overlaps` a step is
/// started before the result of the one in front of it is waited for.
pub(super) fn results<'s>(
    store: &'s mut Store,
    overlaps: bool,
    mut start: impl FnMut(&mut Store) -> Option<Result<StartedStep>> + 's,
) -> impl Iterator<Item = Result<StepResult>> + 's {
    let mut ahead = None;
    let mut failed = false;
    iter::from_fn(move || {
        if failed {
            return None;
        }
        let due = ahead.take().or_else(|| start(store))?;
        if overlaps && due.is_ok() {
            ahead = start(store);
        }
        let result = due.and_then(|started| started.finish(store));
        failed = result.is_err();
        Some(result)
    })
}
