//! [`check_gradients`]: the gradient of a function beside its differences.

use crate::error::Result;
use crate::jit::jit;
use crate::options::Options;
use crate::trace::Trace;
use std::fmt;
use tracecast_ir::ops::reduce::Reductions;
use tracecast_ir::{DType, Var};
use tracecast_runtime::{Error, Store, Tensor};

/// An element of an input for which the gradient is not what differences give.
#[derive(Clone, Debug, PartialEq)]
pub struct WrongGradient {
    /// The input.
    pub input: String,
    /// The element of it.
    pub position: Vec<usize>,
    /// What the gradient says.
    pub gradient: f64,
    /// What a small step to both sides says.
    pub difference: f64,
}

/// `x[1, 2]: the gradient is 3, differences give 6`
impl fmt::Display for WrongGradient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WrongGradient { input, position, gradient, difference } = self;
        write!(f, "{input}{position:?}: the gradient is {gradient}, differences give {difference}")
    }
}

/// How far apart the two may be, and with it how long the step is: those of PyTorch's `gradcheck`.
const STEP: f64 = 1e-6;
const ABSOLUTE: f64 = 1e-5;
const RELATIVE: f64 = 1e-3;

/// Compares the gradient of a function with differences of the function, at each element of each
/// input of f64: PyTorch's `gradcheck`. The list is empty if all agree to within a thousandth and
/// 1e-5.
///
/// `body` records the function of its inputs and returns its result, of any shape, each element of
/// which counts with a weight of its own. A gradient that is right only at the given numbers is not
/// found out, so they should not be special. Of a function with a kink, such as `relu`, there are
/// no differences at the kink. The function stays in f64 throughout: behind a cast to f32 a
/// difference is rounding noise, and every element counts as wrong.
///
/// ```
/// use tracecast::numerics::check_gradients;
/// use tracecast::prelude::*;
///
/// let x = Tensor::from([[0.5, -1.0], [2.0, 0.1]]);
/// let right = check_gradients(&Options::new(), &[("x", &x)], |t| t.input("x").tanh())?;
/// assert!(right.is_empty());
///
/// // The gradient of a square that forgets the factor 2.
/// let wrong = check_gradients(&Options::new(), &[("x", &x)], |t| {
///     custom_grad(t, [t.input("x")], |[x]| (x * x, x), |x, dy| [Some(dy * x)])
/// })?;
/// assert_eq!((wrong.len(), &wrong[1].position[..]), (4, &[0, 1][..]));
/// assert!((wrong[1].difference / wrong[1].gradient - 2.0).abs() < 1e-6);
/// # Ok::<(), tracecast::Error>(())
/// ```
///
/// # Errors
/// An input of another floating point dtype than f64, or none of f64; a function that cannot be
/// recorded, compiled or run.
pub fn check_gradients(
    options: &Options,
    inputs: &[(&str, &Tensor)],
    body: impl for<'t> Fn(&'t Trace) -> Var<'t> + Send + Sync + 'static,
) -> Result<Vec<WrongGradient>> {
    let names = differentiable(inputs)?;
    let program = jit(options.clone(), move |t| {
        let y = body(t);
        if y.is_poison() {
            return;
        }
        let sum = weighted(t, y);
        let inputs: Vec<Var<'_>> = names.iter().map(|name| t.input(name)).collect();
        for (name, gradient) in names.iter().zip(t.grad(sum, &inputs)) {
            t.output(&gradient_of(name), gradient);
        }
        t.output(SUM, sum);
    });
    // State that the function declares starts anew with every run, so that all runs compute the
    // same function.
    let run = |inputs: &[(&str, &Tensor)]| program.run(&mut Store::new(), inputs);
    let out = run(inputs)?;
    let mut wrong = Vec::new();
    for (i, (name, x)) in inputs.iter().enumerate().filter(|(_, (_, x))| x.dtype() == DType::F64) {
        let (numbers, gradients) = (x.to_f64s(), out.get(&gradient_of(name))?.to_f64s());
        for (at, gradient) in gradients.into_iter().enumerate() {
            let sum_at = |number: f64| -> Result<f64> {
                let mut moved = numbers.clone();
                moved[at] = number;
                let moved = Tensor::from_f64s(x.ty().clone(), &moved)?;
                let mut there = inputs.to_vec();
                there[i].1 = &moved;
                run(&there)?.get(SUM)?.item()
            };
            let (low, high) = (numbers[at] - STEP, numbers[at] + STEP);
            let difference = (sum_at(high)? - sum_at(low)?) / (high - low);
            // Written so that a NaN is wrong.
            let agrees = (gradient - difference).abs() <= ABSOLUTE + RELATIVE * difference.abs();
            if !agrees {
                let (input, position) = ((*name).to_owned(), position(at, &x.shape().numbers()));
                wrong.push(WrongGradient { input, position, gradient, difference });
            }
        }
    }
    Ok(wrong)
}

/// The output that is the weighted sum of the function's result.
const SUM: &str = "check_gradients.sum";

fn gradient_of(name: &str) -> String {
    format!("check_gradients.gradient.{name}")
}

/// The inputs of f64.
fn differentiable(inputs: &[(&str, &Tensor)]) -> Result<Vec<String>> {
    let narrow = |x: &Tensor| x.dtype().is_float() && x.dtype() != DType::F64;
    if let Some((name, x)) = inputs.iter().find(|(_, x)| narrow(x)) {
        let message = format!("is {}: differences are taken in f64", x.ty());
        return Err(Error::Input { name: (*name).to_owned(), message });
    }
    let wide = inputs.iter().filter(|(_, x)| x.dtype() == DType::F64);
    let names: Vec<String> = wide.map(|(name, _)| (*name).to_owned()).collect();
    if names.is_empty() {
        let message = "differences are taken of inputs of f64, and none is given".to_owned();
        return Err(Error::Option { option: "inputs", message });
    }
    Ok(names)
}

/// The sum of the elements, each times a number between 0.5 and 1.5 of its own.
fn weighted<'t>(t: &'t Trace, y: Var<'t>) -> Var<'t> {
    let sizes = y.shape().numbers();
    let count = sizes.iter().product::<usize>();
    // Multiples of the golden ratio, whose fractions lie far apart.
    let weights: Vec<f64> =
        (1..=count).map(|i| 0.5 + (i as f64 * 0.618_033_988_749_895).fract()).collect();
    (y.to(DType::F64) * t.constant(DType::F64, &sizes, &weights)).sum(())
}

fn position(mut number: usize, sizes: &[usize]) -> Vec<usize> {
    let mut position = vec![0; sizes.len()];
    for (place, size) in position.iter_mut().zip(sizes).rev() {
        (*place, number) = (number % size, number / size);
    }
    position
}
