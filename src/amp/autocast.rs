//! [`autocast`]: recording under an autocast state, with PyTorch's rules for entering and leaving.
//!
//! A region is a value of the trace and not of the thread: it is left however its body ends, and can be entered any number of
//! times. Entering is decided by [`Region::enter`](tracecast_ir::policy::Region::enter); an outermost region is a cache scope
//! of its own, also when it is switched off.

use crate::trace::Trace;
use std::panic::Location;
use tracecast_ir::policy::DeviceType;
use tracecast_ir::{DType, Source};

/// Records `body` under autocast for a device, in `dtype`, or in the current low dtype of that device if there is none.
///
/// A device type that does not exist is an error of the trace. A dtype that the device does not take switches the region off,
/// with a warning in the report of the compilation.
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
    /// A region of this device type, such as `cpu` or `cuda:0`, in its current low dtype.
    pub fn new(device: impl Into<String>) -> Self {
        Autocast { device: device.into(), dtype: None, enabled: true, cache: None }
    }

    /// With this low dtype.
    #[must_use]
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = Some(dtype);
        self
    }

    /// Switched on or off; off is an island without autocast.
    #[must_use]
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }

    /// With or without one shared cast per weight; as the surrounding region if not said.
    #[must_use]
    pub fn cache(mut self, cache: bool) -> Self {
        self.cache = Some(cache);
        self
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
        let device = self.device.split_once(':').map_or(self.device.as_str(), |(device, _)| device);
        let entered = device
            .parse::<DeviceType>()
            .and_then(|device| t.region().enter(device, self.dtype, self.enabled, self.cache));
        match entered {
            Ok((region, warning)) => {
                if let Some(warning) = warning {
                    t.warn(warning);
                }
                t.inside(region, body)
            }
            Err(error) => {
                t.at(Source::Rust(line), || t.fail("autocast", error.to_string()));
                body()
            }
        }
    }
}
