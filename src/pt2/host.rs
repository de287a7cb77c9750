//! [`InContext`]: an exported program as a part of a traced one.

use crate::amp::Autocast;
use crate::entry::{Entry, Start};
use crate::nn::Context;
use std::panic::Location;
use tracecast_ir::{DType, Role, Tracer, Var};
use tracecast_pt2::{Host, State};

/// A place of a traced program.
pub(super) struct InContext<'c, 't> {
    pub(super) cx: &'c Context<'t>,
    pub(super) line: &'static Location<'static>,
}

impl<'t> Host<'t> for InContext<'_, 't> {
    fn tracer(&self) -> &'t Tracer {
        self.cx.trace().tracer()
    }

    fn state(&self, state: &State) -> Var<'t> {
        // The value of the file is in the store already.
        let start = Start::Constant(0.0);
        match state.is_trained {
            true => self.cx.parameter(&state.name, state.ty.clone(), start),
            false => self.cx.buffer(&state.name, state.ty.clone(), start),
        }
    }

    fn draw(&self) -> (Var<'t>, i64) {
        self.cx.draw()
    }

    fn region(&self, device: &str, dtype: Option<DType>, enabled: bool, body: &mut dyn FnMut()) {
        // The file says that casts are not shared, whatever Python said: PyTorch's default holds.
        let region = Autocast::new(device).enabled(enabled);
        let region = match dtype {
            Some(dtype) => region.dtype(dtype),
            None => region,
        };
        region.run_from(self.cx.trace(), self.line, body);
    }

    fn warn(&self, message: &str) {
        self.cx.trace().warn(message);
    }
}

/// Notes an entry of a model that is asked for its parameters.
pub(super) fn declare(cx: &Context<'_>, entry: &Entry) {
    match entry.role {
        Role::Param => cx.parameter(&entry.name, entry.ty.clone(), entry.start.clone()),
        _ => cx.buffer(&entry.name, entry.ty.clone(), entry.start.clone()),
    };
}
