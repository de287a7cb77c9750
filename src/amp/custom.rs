//! [`custom_grad`] and [`CustomGrad`]: functions whose gradient the user gives, with the precision
//! rules of PyTorch's `torch.amp.custom_fwd` and `torch.amp.custom_bwd`.
//!
//! Both closures run once, while the call is recorded, so they may capture what they like: numbers,
//! models, other values of the trace. Backward becomes part of the graph, see
//! [`tracecast_ir::ops::custom`].

use crate::setters::setters;
use crate::trace::Trace;
use tracecast_ir::ops::custom::{COTANGENT, CUSTOM_GRAD};
use tracecast_ir::policy::{DeviceType, Region};
use tracecast_ir::{Args, Attrs, DType, Var};

/// Records a function of one result with a gradient of its own: [`CustomGrad::apply`] as it is most
/// often needed.
///
/// `forward` gets the inputs and returns the result and whatever backward needs; `backward` gets
/// that and the gradient of the result, and returns that of each input, `None` for zero.
///
/// ```
/// use tracecast::prelude::*;
///
/// // The gradient of a square, turned around and weakened.
/// let strength = 0.25;
/// let graph = trace("reversed", |t| {
///     let x = t.param_of("x", TensorType::new(DType::F32, [3]));
///     let y = custom_grad(t, [x], |[x]| (x * x, x), |x, dy| [Some(dy * x * 2.0 * -strength)]);
///     t.output("dx", t.grad(y.sum(()), &[x])[0]);
/// })?;
/// let mut store = Store::new().with("x", Tensor::new([3], &[1.0f32, -0.5, -3.0])?);
/// let out = compile(graph, &Options::new().device("reference"))?.run(&mut store, &[])?;
/// assert_eq!(out["dx"].to_vec::<f32>()?, [-0.5, 0.25, 1.5]);
/// # Ok::<(), tracecast::Error>(())
/// ```
#[track_caller]
pub fn custom_grad<'t, S, const N: usize>(
    t: &'t Trace,
    inputs: [Var<'t>; N],
    forward: impl FnOnce([Var<'t>; N]) -> (Var<'t>, S),
    backward: impl FnOnce(S, Var<'t>) -> [Option<Var<'t>>; N],
) -> Var<'t> {
    let forward = |inputs| {
        let (y, saved) = forward(inputs);
        ([y], saved)
    };
    let [y] = CustomGrad::new().apply(t, inputs, forward, |saved, [dy]| backward(saved, dy));
    y
}

/// How a function with a gradient of its own meets autocast.
///
/// * Forward runs under the current regions. With [`cast_inputs`](CustomGrad::cast_inputs), inside
///   a region, the inputs on its device are cast first, f64 and what is not floating point
///   excepted, and forward runs with that autocast off; outside of every region it does nothing.
/// * Backward runs under the autocast state of forward, off if the inputs were cast, in a cache
///   scope of its own, wherever the gradient is asked for.
/// * A gradient in another floating point dtype is cast to that of its input, as autograd does.
///   Another shape is an error.
///
/// With [`device`](CustomGrad::device) only regions of that device type count, as with PyTorch's
/// `device_type`: inside forward the others stay as they are, inside backward they are off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CustomGrad {
    device: Option<String>,
    cast_inputs: Option<DType>,
}

impl CustomGrad {
    /// For every device type, without casts of inputs.
    pub fn new() -> Self {
        CustomGrad::default()
    }

    setters! {
        /// For regions of this device type alone, such as `cuda`.
        device(device: impl Into<String>) => device = Some(device.into());
        /// With floating point inputs cast to `dtype` inside a region.
        cast_inputs(dtype: DType) => cast_inputs = Some(dtype);
    }

    /// Records a function of known numbers of inputs and results.
    ///
    /// Results are floating point. What is wrong with them or with the gradients is an error of the
    /// trace at the line of the call.
    #[track_caller]
    pub fn apply<'t, S, const N: usize, const M: usize>(
        &self,
        t: &'t Trace,
        inputs: [Var<'t>; N],
        forward: impl FnOnce([Var<'t>; N]) -> ([Var<'t>; M], S),
        backward: impl FnOnce(S, [Var<'t>; M]) -> [Option<Var<'t>>; N],
    ) -> [Var<'t>; M] {
        let forward = |inputs: &[Var<'t>]| {
            let (outputs, saved) = forward(std::array::from_fn(|i| inputs[i]));
            (outputs.to_vec(), saved)
        };
        let backward =
            |saved, dys: &[Var<'t>]| backward(saved, std::array::from_fn(|i| dys[i])).to_vec();
        let results = self.apply_list(t, &inputs, forward, backward);
        std::array::from_fn(|i| results[i])
    }

    /// Records a function of any numbers of inputs and results. Backward returns one gradient, or
    /// `None`, for each input.
    ///
    /// What is wrong is an error of the trace at the line of the call.
    #[track_caller]
    pub fn apply_list<'t, S>(
        &self,
        t: &'t Trace,
        inputs: &[Var<'t>],
        forward: impl FnOnce(&[Var<'t>]) -> (Vec<Var<'t>>, S),
        backward: impl FnOnce(S, &[Var<'t>]) -> Vec<Option<Var<'t>>>,
    ) -> Vec<Var<'t>> {
        let state = t.tracer().region();
        let on = match self.counts(&state) {
            Ok(devices) => devices,
            Err(message) => {
                t.fail(NAME, message);
                Vec::new()
            }
        };
        let (inputs, outputs, saved, after) = match self.cast_inputs.filter(|_| !on.is_empty()) {
            None => {
                let (outputs, saved) = forward(inputs);
                (inputs.to_vec(), outputs, saved, state_of(&state, &on))
            }
            Some(to) => {
                let inputs = cast_inputs(t, inputs, to, &on);
                let island = on.iter().fold(state, |state, device| state.without(*device));
                let (outputs, saved) = t.inside(island, || forward(&inputs));
                (inputs, outputs, saved, Region::default())
            }
        };
        let cotangents = cotangents(t, &outputs);
        let gradients = t.afresh(after, || backward(saved, &cotangents));
        joined(t, &inputs, &outputs, &cotangents, gradients)
    }

    /// The device types whose regions are on and count.
    fn counts(&self, state: &Region) -> Result<Vec<DeviceType>, String> {
        let only = self.device.as_deref().map(str::parse::<DeviceType>).transpose();
        let only = only.map_err(|error| error.to_string())?;
        let counts = |device: &DeviceType| {
            state.is_enabled(*device) && only.is_none_or(|only| only == *device)
        };
        Ok(DeviceType::ALL.into_iter().filter(counts).collect())
    }
}

/// What errors name.
const NAME: &str = "custom_grad";

/// The autocast state of backward: these devices on, in the low dtypes of forward.
fn state_of(forward: &Region, on: &[DeviceType]) -> Region {
    on.iter().fold(Region::default(), |state, device| {
        state.with_device(*device, true, forward.low(*device))
    })
}

/// The inputs cast as `custom_fwd` does: what is floating point, not f64, and lives on one of these
/// devices.
#[track_caller]
fn cast_inputs<'t>(
    t: &Trace,
    inputs: &[Var<'t>],
    to: DType,
    devices: &[DeviceType],
) -> Vec<Var<'t>> {
    let mut cast = inputs.to_vec();
    for x in &mut cast {
        let is_eligible = |x: Var<'_>| x.dtype().is_float() && x.dtype() != DType::F64;
        if !x.is_poison() && is_eligible(*x) && devices.contains(&t.tracer().device_of(*x)) {
            *x = x.to(to);
        }
    }
    cast
}

/// What stands for the gradients of the outputs.
#[track_caller]
fn cotangents<'t>(t: &'t Trace, outputs: &[Var<'t>]) -> Vec<Var<'t>> {
    let mut all = Vec::with_capacity(outputs.len());
    for (i, y) in outputs.iter().enumerate() {
        let attrs = Attrs::new().with("output", i as i64);
        all.push(t.tracer().apply(&COTANGENT, Args::of(&[*y]), attrs)[0]);
    }
    all
}

/// The outputs with these gradients of the inputs.
#[track_caller]
fn joined<'t>(
    t: &'t Trace,
    inputs: &[Var<'t>],
    outputs: &[Var<'t>],
    cotangents: &[Var<'t>],
    gradients: Vec<Option<Var<'t>>>,
) -> Vec<Var<'t>> {
    if gradients.len() != inputs.len() {
        let message =
            format!("backward gives {} gradients for {} inputs", gradients.len(), inputs.len());
        return vec![t.fail(NAME, message); outputs.len()];
    }
    let (mut differentiated, mut fitting) = (Vec::new(), Vec::new());
    for (i, (x, gradient)) in inputs.iter().zip(gradients).enumerate() {
        let Some(gradient) = gradient else { continue };
        differentiated.push(*x);
        fitting.push(match misfit(*x, gradient) {
            None => gradient.to(x.dtype()),
            Some(what) => t.fail(NAME, format!("the gradient of input {i} {what}")),
        });
    }
    let mut args = Args::new();
    args.push(outputs.iter().copied());
    args.push(differentiated.iter().copied());
    args.push(cotangents.iter().copied());
    args.push(fitting.iter().copied());
    let results = t.tracer().apply(&CUSTOM_GRAD, args, Attrs::new());
    // A call that could not be recorded has one value that stands for all.
    (0..outputs.len()).map(|i| *results.get(i).unwrap_or(&results[0])).collect()
}

/// Why a value cannot be the gradient of an input.
fn misfit(x: Var<'_>, gradient: Var<'_>) -> Option<String> {
    if x.is_poison() || gradient.is_poison() {
        return None;
    }
    if !x.dtype().is_float() {
        return Some(format!("is to be `None`: {} is not floating point", x.ty()));
    }
    let fits = gradient.shape() == x.shape() && gradient.dtype().is_float();
    (!fits).then(|| format!("is {}, expected {}", gradient.ty(), x.ty()))
}
