//! Reading the cases: numbers, tensors and errors as the file writes them.

use serde_json::Value;
use tracecast::amp::ScalerError;
use tracecast::eager::{DeviceTensor, Eager};
use tracecast::ir::DType;
use tracecast::{Error, Options, Tensor, TensorType};

/// The CPU and the reference device.
pub(crate) fn eagers() -> [Eager; 2] {
    ["cpu", "reference"].map(|name| Eager::new(Options::new().device(name)).expect("a device"))
}

/// A number, or one of the words for those that JSON lacks.
pub(crate) fn number(value: &Value) -> f64 {
    match value.as_str() {
        Some("inf") => f64::INFINITY,
        Some("-inf") => f64::NEG_INFINITY,
        Some("nan") => f64::NAN,
        Some(other) => panic!("`{other}` is not a number"),
        None => value.as_f64().unwrap_or_else(|| panic!("{value} is not a number")),
    }
}

/// The numbers of a list, of lists in it too, in order.
pub(crate) fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(list) => list.iter().flat_map(numbers).collect(),
        Value::Null => Vec::new(),
        _ => vec![number(value)],
    }
}

/// The tensor with these numbers; by default of one axis.
pub(crate) fn tensor(
    eager: &Eager,
    dtype: &str,
    shape: Option<&Value>,
    numbers: &[f64],
) -> Result<DeviceTensor, String> {
    let dtype: DType = dtype.parse().map_err(|_| format!("there is no dtype {dtype}"))?;
    let shape = match shape.and_then(Value::as_array) {
        None => vec![numbers.len()],
        Some(sizes) => sizes.iter().map(|size| size.as_u64().expect("a size") as usize).collect(),
    };
    let value = Tensor::from_f64s(TensorType::new(dtype, &shape[..]), numbers);
    Ok(eager.tensor(value.map_err(|error| error.to_string())?))
}

/// The tensor that `{v, dtype, shape}` stands for.
pub(crate) fn described(eager: &Eager, value: &Value) -> Result<DeviceTensor, String> {
    let dtype = value["dtype"].as_str().unwrap_or("f32");
    tensor(eager, dtype, value.get("shape"), &numbers(&value["v"]))
}

/// The elements of a tensor.
pub(crate) fn read(tensor: &DeviceTensor) -> Vec<f64> {
    tensor.to_host().expect("a device that works").to_f64s()
}

/// Fails unless both are the same numbers; all NaNs are one.
pub(crate) fn same(what: &str, found: &[f64], expected: &[f64]) -> Result<(), String> {
    let equal = |(a, b): (&f64, &f64)| a == b || (a.is_nan() && b.is_nan());
    if found.len() == expected.len() && found.iter().zip(expected).all(equal) {
        return Ok(());
    }
    Err(format!("{what}: expected {expected:?}, found {found:?}"))
}

/// The class of the Python exception that stands for an error.
pub(crate) fn class(error: &Error) -> &'static str {
    use ScalerError as E;
    let error = match error {
        Error::Scaler(error) => error,
        // A tensor of another type or on another device.
        Error::Tensor(_) | Error::Device(_) | Error::SparseGradient(_) => return "RuntimeError",
        _ => return "another error",
    };
    match error {
        E::GrowthFactor(_)
        | E::BackoffFactor(_)
        | E::NoScale { .. }
        | E::NothingChecked
        | E::NothingToUpdate
        | E::NewScale(_)
        | E::OpenIteration => "AssertionError",
        E::AlreadyUnscaled
        | E::UnscaleAfterStep
        | E::AlreadyStepped
        | E::Closure
        | E::EmptyState
        | E::FlagShape
        | E::Operand { .. } => "RuntimeError",
        E::HalfGradient | E::NotTensor(_) => "ValueError",
        E::IntegerScale(_) | E::Disabled(_) => "AttributeError",
        E::MissingEntry(_) => "KeyError",
        E::Gradient(_) => "NotImplementedError",
        _ => "another refusal",
    }
}

/// Fails unless a call was refused as recorded, or went through as recorded.
pub(crate) fn outcome<T>(
    result: tracecast::Result<T>,
    expected: Option<&Value>,
) -> Result<Option<T>, String> {
    match (result, expected) {
        (Ok(value), None) => Ok(Some(value)),
        (Ok(_), Some(expected)) => Err(format!("went through, expected {expected}")),
        (Err(error), None) => Err(format!("failed: {error}")),
        (Err(error), Some(expected)) if expected["class"] == class(&error) => Ok(None),
        (Err(error), Some(expected)) => {
            Err(format!("failed with {} ({error}), expected {expected}", class(&error)))
        }
    }
}
