//! [`autocast`]: recording under an autocast state, with PyTorch's rules for entering and leaving.
//!
//! A region is a value of the trace and not of the thread: it is left however its body ends, and
//! can be entered any number of times. Entering is decided by [`Region::enter`]; an outermost
//! region is a cache scope of its own, also when it is switched off. Under policies with
//! [parity](tracecast_ir::policy::parity) a region is an object as in PyTorch instead.

use crate::setters::setters;
use crate::trace::Trace;
use std::cell::RefCell;
use std::panic::Location;
use std::rc::Rc;
use tracecast_ir::policy::parity::RegionObject;
use tracecast_ir::policy::{DeviceType, Region};
use tracecast_ir::{DType, Source};

/// Records `body` under autocast for a device, in `dtype`, or in the current low dtype of that
/// device if there is none.
///
/// A device type that does not exist is an error of the trace. A dtype that the device does not
/// take switches the region off, with a warning in the report of the compilation.
///
/// ```
/// use tracecast::prelude::*;
///
/// trace("head", |t| {
///     let x = t.input_of("x", TensorType::new(DType::F32, [8, 4]));
///     let w = t.param_of("w", TensorType::new(DType::F32, [4, 2]));
///     let y = autocast(t, "cpu", DType::BF16, || x.matmul(w));
///     assert_eq!(y.dtype(), DType::BF16);
///     t.output("y", y);
/// })?;
/// # Ok::<(), tracecast::Error>(())
/// ```
#[track_caller]
pub fn autocast<R>(
    t: &Trace,
    device: &str,
    dtype: impl Into<Option<DType>>,
    body: impl FnOnce() -> R,
) -> R {
    let region = Autocast { dtype: dtype.into(), ..Autocast::new(device) };
    region.run(t, body)
}

/// An autocast region with all its settings: a value that can be used again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Autocast {
    device: String,
    dtype: Option<DType>,
    enabled: bool,
    cache: Option<bool>,
}

impl Autocast {
    /// A region of this device type, such as `cpu` or `cuda:0`, or of the device of that name which
    /// the program is for, in its current low dtype.
    pub fn new(device: impl Into<String>) -> Self {
        Autocast { device: device.into(), dtype: None, enabled: true, cache: None }
    }

    setters! {
        /// With this low dtype.
        dtype(dtype: DType) => dtype = Some(dtype);
        /// Switched on or off; off is an island without autocast.
        enabled(enabled: bool) => enabled = enabled;
        /// With or without one shared cast per weight; as the surrounding region if not said.
        cache(cache: bool) => cache = Some(cache);
    }

    /// Records `body` inside the region.
    #[track_caller]
    pub fn run<R>(&self, t: &Trace, body: impl FnOnce() -> R) -> R {
        self.run_from(t, Location::caller(), body)
    }

    /// The same for a region that this line asked for.
    pub(crate) fn run_from<R>(
        &self,
        t: &Trace,
        line: &'static Location<'static>,
        body: impl FnOnce() -> R,
    ) -> R {
        let entered = if t.tracer().policies().parity() {
            self.object(t).map(Entered::Object)
        } else {
            self.enter(t).map(|(_, region)| Entered::State(region))
        };
        match entered {
            Ok(Entered::State(region)) => t.inside(region, body),
            Ok(Entered::Object(object)) => t.tracer().in_object(&object, body),
            Err(error) => {
                t.tracer().at(Source::Rust(line), || t.fail("autocast", error));
                body()
            }
        }
    }

    /// The function that records `body` inside the region at each call: what a decorator is in
    /// PyTorch.
    ///
    /// ```
    /// use tracecast::prelude::*;
    ///
    /// let region = Autocast::new("cpu");
    /// trace("layers", |t| {
    ///     let (x, w) = (t.input_of("x", TensorType::new(DType::F32, [2, 2])), t.param_of("w", TensorType::new(DType::F32, [2, 2])));
    ///     let layer = region.wrap(t, |x: Var<'_>| x.matmul(w).relu());
    ///     assert_eq!(layer(layer(x)).dtype(), DType::BF16);
    ///     assert_eq!(x.matmul(w).dtype(), DType::F32);
    /// })?;
    /// # Ok::<(), tracecast::Error>(())
    /// ```
    #[track_caller]
    pub fn wrap<'a, A, R>(
        &'a self,
        t: &'a Trace,
        body: impl Fn(A) -> R + 'a,
    ) -> impl Fn(A) -> R + 'a {
        let line = Location::caller();
        move |arguments| self.run_from(t, line, || body(arguments))
    }

    /// The device and the state inside.
    fn enter(&self, t: &Trace) -> Result<(DeviceType, Region), String> {
        let home = t.home();
        let device = home.device_type(&self.device)?;
        let accepted = home.accepted(device)?;
        let entered = home.around(t.tracer().region(), device).enter_accepting(
            accepted,
            device,
            self.dtype,
            self.enabled,
            self.cache,
        );
        let (region, warning) = entered.map_err(|error| error.to_string())?;
        if let Some(warning) = warning {
            t.warn(warning);
        }
        Ok((device, region))
    }

    /// PyTorch's object for this region: the one it was entered with, if it is entered inside
    /// itself.
    fn object(&self, t: &Trace) -> Result<Rc<RefCell<RegionObject>>, String> {
        let key = std::ptr::from_ref(self) as usize;
        if let Some(entered) = t.object(key) {
            return Ok(entered);
        }
        let (device, region) = self.enter(t)?;
        Ok(t.keep_object(key, RegionObject::new(device, region)))
    }
}

/// What a body runs in.
enum Entered {
    State(Region),
    Object(Rc<RefCell<RegionObject>>),
}
