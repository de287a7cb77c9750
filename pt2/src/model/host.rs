//! [`Host`]: who has a program recorded, and [`Plain`], one on a bare tracer.

use super::State;
use std::cell::RefCell;
use tracecast_ir::policy::{DeviceType, Region};
use tracecast_ir::{DType, TensorType, Tracer, Var};

/// Who has a program recorded: where its parameters and state come from, and its regions.
pub trait Host<'t> {
    /// What it is recorded on.
    fn tracer(&self) -> &'t Tracer;

    /// The value of a parameter or buffer before the call.
    fn state(&self, state: &State) -> Var<'t>;

    /// A generator of random numbers, `i64[2]`, and a stream of its own.
    fn draw(&self) -> (Var<'t>, i64);

    /// Records `body` in an autocast region of the file.
    fn region(&self, device: &str, dtype: Option<DType>, enabled: bool, body: &mut dyn FnMut());

    /// Takes note of what was left out.
    fn warn(&self, message: &str);

    /// Is told of each node, by its path such as `region1/linear`, and of what it gives.
    fn recorded(&self, path: &str, results: &[Var<'t>]) {
        let _ = (path, results);
    }
}

/// A host on a bare tracer.
pub struct Plain<'t> {
    tracer: &'t Tracer,
    pub(super) warnings: RefCell<Vec<String>>,
}

impl<'t> Plain<'t> {
    /// One on this tracer.
    pub fn new(tracer: &'t Tracer) -> Self {
        Plain { tracer, warnings: RefCell::default() }
    }
}

impl<'t> Host<'t> for Plain<'t> {
    fn tracer(&self) -> &'t Tracer {
        self.tracer
    }

    fn state(&self, state: &State) -> Var<'t> {
        match state.is_trained {
            true => self.tracer.param(&state.name, state.ty.clone()),
            false => self.tracer.state(&state.name, state.ty.clone()),
        }
    }

    fn draw(&self) -> (Var<'t>, i64) {
        let rng = self.tracer.state("rng", TensorType::new(DType::I64, [2]));
        (rng, i64::from(self.tracer.next_stream()))
    }

    fn region(&self, device: &str, dtype: Option<DType>, enabled: bool, body: &mut dyn FnMut()) {
        let entered = device.parse::<DeviceType>().and_then(|device| {
            self.tracer.region().enter_accepting(device.accepted(), device, dtype, enabled, None)
        });
        match entered {
            Ok((region, _)) => {
                let outer: Region = self.tracer.region();
                let scope =
                    if outer.is_off() { self.tracer.next_cache_scope() } else { outer.scope() };
                self.tracer.in_region(&region.with_scope(scope), body);
            }
            Err(error) => {
                self.tracer.fail("autocast", error.to_string());
            }
        }
    }

    fn warn(&self, message: &str) {
        self.warnings.borrow_mut().push(message.to_owned());
    }
}
