//! A recorded call of an op that Tracecast has, recorded in a tracer under the region of the case.

use crate::cases::{Call, dtype};
use serde_json::Value;
use tracecast::DType;
use tracecast::TensorType;
use tracecast::ir::ops::{elementwise, find, view};
use tracecast::ir::policy::DeviceType;
use tracecast::ir::{Args, Attrs, OpDef, Role, Tracer, Var};

/// What came of recording a call.
pub(crate) enum Recorded {
    /// The op is not in the table, or not in this form: `out` is nothing to compare.
    NotRegistered,
    /// An operand has a dtype without kernels, which cannot be an input of a program.
    NoKernels,
    /// The dtypes of the results, or why the op was refused.
    Ran(Result<Vec<DType>, String>),
}

/// Operands and attributes of a call in our form.
struct Form<'t> {
    def: &'static OpDef,
    args: Args<'t>,
    attrs: Attrs,
}

/// Records a call.
pub(crate) fn record(call: &Call<'_>) -> Recorded {
    let t = Tracer::new("case");
    if !call.operands.iter().all(|(_, info)| info.dtype.is_computable()) {
        return Recorded::NoKernels;
    }
    let Some(form) = (Shape { t: &t, call, plain: false }).form() else {
        return Recorded::NotRegistered;
    };
    let results = t.in_region(&call.region, || t.apply(form.def, form.args, form.attrs));
    match t.error() {
        None => Recorded::Ran(Ok(results.iter().map(|result| result.dtype()).collect())),
        Some(_) if !takes_shapes(call) => Recorded::NotRegistered,
        Some(error) => Recorded::Ran(Err(error.to_string())),
    }
}

/// True if the op takes operands of these shapes: then what it refuses is dtypes.
fn takes_shapes(call: &Call<'_>) -> bool {
    let t = Tracer::new("shapes");
    let form = Shape { t: &t, call, plain: true }.form();
    form.is_some_and(|form| {
        t.apply(form.def, form.args, form.attrs);
        t.error().is_none()
    })
}

/// Compares what came of a call with what was recorded; `None` if there is nothing to compare.
pub(crate) fn difference(call: &Call<'_>, ran: &Result<Vec<DType>, String>) -> Option<String> {
    let expect = &call.case["expect"];
    let refused = expect.get("error").is_some() || expect["kernel_refuses"] == true;
    match ran {
        Err(_) if refused => None,
        Ok(_) if refused => Some("recorded a refusal, and we take it".to_owned()),
        Err(_) if expect["out"].is_null() => None,
        // Other devices were recorded without running kernels, which is where f64 beside another float is refused.
        Err(_) if call.home != DeviceType::Cpu && mixes_f64(call) => None,
        Err(message) => Some(format!("out: {message}, recorded {}", expect["out"])),
        Ok(found) => {
            let recorded: Vec<_> = match &expect["out"] {
                Value::Array(list) => list.iter().map(dtype).collect(),
                Value::Null => return None,
                one => vec![dtype(one)],
            };
            let alike = recorded.iter().zip(found).all(|(a, b)| a == b);
            (!alike).then(|| format!("out: {found:?}, recorded {recorded:?}"))
        }
    }
}

/// True if an f64 operand, which autocast leaves alone, is beside another float.
fn mixes_f64(call: &Call<'_>) -> bool {
    let floats =
        || call.operands.iter().map(|(_, info)| info.dtype).filter(|dtype| dtype.is_float());
    floats().any(|dtype| dtype == DType::F64) && floats().any(|dtype| dtype != DType::F64)
}

/// Puts the arguments of a call into our form.
struct Shape<'c, 't> {
    t: &'t Tracer,
    call: &'c Call<'c>,
    /// Every float is f32.
    plain: bool,
}

impl<'t> Shape<'_, 't> {
    fn form(&self) -> Option<Form<'t>> {
        let op = self.call.op.as_str();
        let none = Attrs::new();
        // Ops have no out forms here.
        if self.call.overload.ends_with("out") {
            return None;
        }
        let (args, attrs) = match op {
            _ if is_unary(op) && self.call.arity() == 1 => (self.tensors(&[(0, "self")])?, none),
            "gelu" => {
                let way = self.call.arg(1, "approximate").and_then(Value::as_str).unwrap_or("none");
                (self.tensors(&[(0, "self")])?, none.with("approximate", way))
            }
            _ if is_binary(op) && self.call.arity() == 2 => self.binary()?,
            "where" => (self.tensors(&[(0, "condition"), (1, "self"), (2, "other")])?, none),
            "gather" => {
                (self.tensors(&[(0, "self"), (2, "index")])?, none.with("dim", self.int(1, "dim")?))
            }
            "scatter_add" => (
                self.tensors(&[(0, "self"), (2, "index"), (3, "src")])?,
                none.with("dim", self.int(1, "dim")?),
            ),
            "embedding" if self.call.arity() == 2 => {
                (self.tensors(&[(0, "weight"), (1, "indices")])?, none)
            }
            // PyTorch multiplies elements where the inner axis is 1, and promotes there.
            "matmul" if self.inner_is_one() && self.has_f64() => return None,
            "matmul" => (self.tensors(&[(0, "self"), (1, "other")])?, none),
            "linear" => {
                let mut args = self.tensors(&[(0, "input"), (1, "weight")])?;
                args.push(self.tensor(2, "bias"));
                (args, none)
            }
            "sum" | "mean" => {
                let attrs =
                    none.with("dim", &self.dims(1)[..]).with("keepdim", self.flag(2, "keepdim"));
                (self.tensors(&[(0, "self")])?, self.with_dtype(attrs))
            }
            "amax" => (
                self.tensors(&[(0, "self")])?,
                none.with("dim", &self.dims(1)[..]).with("keepdim", self.flag(2, "keepdim")),
            ),
            "softmax" | "log_softmax" => (
                self.tensors(&[(0, "self")])?,
                self.with_dtype(none.with("dim", self.int(1, "dim")?)),
            ),
            "layer_norm" => self.layer_norm()?,
            "mse_loss" => (
                self.tensors(&[(0, "self"), (1, "target")])?,
                none.with("reduction", self.reduction(2)),
            ),
            "nll_loss" | "cross_entropy_loss" => {
                let mut args = self.tensors(&[(0, "self"), (1, "target")])?;
                args.push(self.tensor(2, "weight"));
                (args, none.with("reduction", self.reduction(3)))
            }
            "cat" => self.cat()?,
            "permute" => (self.tensors(&[(0, "self")])?, none.with("dims", &self.dims(1)[..])),
            _ => return None,
        };
        let def = if op == "cat" { &view::CAT } else { find(op)? };
        Some(Form { def, args, attrs })
    }

    fn binary(&self) -> Option<(Args<'t>, Attrs)> {
        let mut args = self.tensors(&[(0, "self")])?;
        let other = self.tensor(1, "other");
        let both =
            matches!(self.call.op.as_str(), "maximum" | "minimum" | "logical_and" | "logical_or");
        let attrs = match (&other, self.call.arg(1, "other").and_then(Value::as_f64)) {
            (Some(_), _) => Attrs::new(),
            (None, Some(scalar)) if !both => Attrs::new().with("scalar", scalar),
            _ => return None,
        };
        args.push(other);
        Some((args, attrs))
    }

    fn layer_norm(&self) -> Option<(Args<'t>, Attrs)> {
        let mut args = self.tensors(&[(0, "input")])?;
        args.push(self.tensor(2, "weight"));
        args.push(self.tensor(3, "bias"));
        let eps = self.call.arg(4, "eps").and_then(Value::as_f64).unwrap_or(1e-5);
        Some((args, Attrs::new().with("normalized_shape", &self.dims(1)[..]).with("eps", eps)))
    }

    fn cat(&self) -> Option<(Args<'t>, Attrs)> {
        let items = self.call.arg(0, "tensors")?.as_array()?;
        let tensors: Option<Vec<_>> = items
            .iter()
            .enumerate()
            .map(|(at, item)| self.port(&format!("0[{at}]"), item))
            .collect();
        let mut args = Args::new();
        args.push(tensors?);
        Some((args, Attrs::new().with("dim", self.int(1, "dim").unwrap_or(0))))
    }

    fn tensors(&self, wanted: &[(usize, &str)]) -> Option<Args<'t>> {
        let vars: Option<Vec<_>> = wanted.iter().map(|(at, name)| self.tensor(*at, name)).collect();
        Some(Args::of(&vars?))
    }

    fn tensor(&self, at: usize, name: &str) -> Option<Var<'t>> {
        self.port(&at.to_string(), self.call.arg(at, name)?)
    }

    fn port(&self, name: &str, value: &Value) -> Option<Var<'t>> {
        let recorded = dtype(value.get("tensor")?);
        let dtype = if self.plain && recorded.is_float() { DType::F32 } else { recorded };
        let sizes: Vec<usize> = value["shape"]
            .as_array()?
            .iter()
            .map(|size| size.as_u64().map(|size| size as usize))
            .collect::<Option<_>>()?;
        let device = value.get("on").map_or(self.call.home, crate::cases::device);
        Some(self.t.port(name, TensorType::new(dtype, &sizes[..]), Role::Input, false, device))
    }

    fn inner_is_one(&self) -> bool {
        let shape = self.call.arg(0, "self").and_then(|value| value["shape"].as_array());
        shape.and_then(|shape| shape.last()).is_some_and(|size| *size == 1)
    }

    fn has_f64(&self) -> bool {
        self.call.operands.iter().any(|(_, info)| info.dtype == DType::F64)
    }

    fn int(&self, at: usize, name: &str) -> Option<i64> {
        self.call.arg(at, name)?.as_i64()
    }

    fn flag(&self, at: usize, name: &str) -> bool {
        self.call.arg(at, name).and_then(Value::as_bool).unwrap_or(false)
    }

    fn dims(&self, at: usize) -> Vec<i64> {
        match self.call.arg(at, "dim") {
            Some(Value::Array(list)) => list.iter().filter_map(Value::as_i64).collect(),
            Some(one) => one.as_i64().into_iter().collect(),
            None => Vec::new(),
        }
    }

    fn reduction(&self, at: usize) -> &'static str {
        match self.call.arg(at, "reduction") {
            Some(Value::Number(number)) => {
                ["none", "mean", "sum"][number.as_u64().unwrap_or(1) as usize % 3]
            }
            Some(Value::String(name)) if name == "none" => "none",
            Some(Value::String(name)) if name == "sum" => "sum",
            _ => "mean",
        }
    }

    fn with_dtype(&self, attrs: Attrs) -> Attrs {
        match self.call.explicit.filter(|_| !self.plain) {
            Some(dtype) => attrs.with("dtype", dtype),
            None => attrs,
        }
    }
}

fn is_unary(op: &str) -> bool {
    let schema = find(op).filter(|def| elementwise::OPS.iter().any(|other| other.name == def.name));
    schema.is_some_and(|def| def.schema.operands.len() == 1 && def.schema.attrs.is_empty())
        || matches!(op, "sigmoid" | "silu" | "tanh")
}

fn is_binary(op: &str) -> bool {
    let names =
        ["add", "sub", "mul", "div", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge"];
    names.contains(&op)
}
