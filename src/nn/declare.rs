//! Finds what a module keeps in the store: records its `forward` without a program.

use crate::error::{Error, Result};
use crate::nn::Context;
use crate::nn::declared::Declared;
use crate::options::Options;
use crate::trace::{Trace, Types};
use std::rc::Rc;
use tracecast_ir::TraceError;
use tracecast_ir::unknown::{Ended, guarded};

impl Declared {
    /// What `forward` asks for when it trains, and what it asks for when it is evaluated as well.
    ///
    /// # Errors
    /// If `forward` decides by the type of a value that has none, or panics.
    pub(super) fn of(forward: impl for<'t> Fn(&Context<'t>)) -> Result<Rc<Declared>> {
        let trace = Trace::new("declared", &Options::new(), Types::default())?;
        let noted = |cx: Context<'_>| {
            let declared = Rc::new(Declared::default());
            match guarded(|| forward(&cx.declaring(&declared))) {
                Ok(()) => Ok(declared),
                Err(ended) => Err(trace.error().map_or_else(|| refusal(ended), Error::from)),
            }
        };
        let training = noted(Context::training(&trace))?;
        let evaluation = noted(Context::evaluation(&trace))?;
        training.add(&evaluation);
        Ok(training)
    }
}

/// Why the parameters of a module are not known.
fn refusal(ended: Ended) -> Error {
    match ended {
        Ended::Asked(at) => Error::Trace(TraceError {
            op: "module".to_owned(),
            message: "`forward` decides by the type of a value, and without a run the input has none: give it one, as in \
                      `module.for_input(TensorType::new(DType::F32, [1, 4]))`"
                .to_owned(),
            source_line: at.to_string(),
            scope: String::new(),
        }),
        Ended::Panicked(panic) => Error::Closure {
            name: "forward".to_owned(),
            message: format!("panicked when it was called without a run: {}", panicked(&*panic)),
        },
    }
}

/// What a panic said.
fn panicked(panic: &dyn std::any::Any) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no words")
}
