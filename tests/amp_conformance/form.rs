//! The arguments of a recorded call put into the operands and attributes of our op of that name.
//!
//! Tensors go to operands and everything else to attributes, both in the order of our record, which
//! is PyTorch's but for what [`ARGUMENTS`] says. What the call leaves out has PyTorch's default.

use crate::cases::{Call, dtype};
use serde_json::Value;
use tracecast::ir::op::{AttrDef, AttrKind, OperandKind};
use tracecast::ir::ops::find;
use tracecast::ir::{Args, Attr, Attrs, OpDef, Role, Size, Tracer, Var};
use tracecast::{DType, TensorType};

/// PyTorch's positional arguments, by our names for them, where they are others than ours or in
/// another order. `_` is one that is nothing here.
const ARGUMENTS: &[(&str, &[&str])] = &[
    (
        "batch_norm",
        &["x", "weight", "bias", "running_mean", "running_var", "training", "_", "eps", "_"],
    ),
    ("cdist", &["x1", "x2", "p", "_"]),
    ("linalg_vector_norm", &["x", "ord", "dim", "keepdim"]),
    ("max_unpool3d", &["x", "indices", "output_size", "_", "_"]),
    ("std", &["x", "correction"]),
    ("var", &["x", "correction"]),
];

/// Arguments that are called otherwise here.
const CALLED: &[(&str, &str, &str)] = &[("addcdiv", "value", "scalar")];

/// What an attribute that the call leaves out is in PyTorch.
const DEFAULTS: &[(&str, &str, f64)] = &[
    ("addcdiv", "scalar", 1.0),
    ("addcmul", "value", 1.0),
    ("batch_norm", "eps", 1e-5),
    ("cat", "dim", 0.0),
    ("group_norm", "eps", 1e-5),
    ("layer_norm", "eps", 1e-5),
    ("scaled_dot_product_attention", "dropout_p", 0.0),
    ("scaled_dot_product_attention", "stream", 0.0),
    ("slice", "step", 1.0),
    ("stack", "dim", 0.0),
    ("topk", "dim", -1.0),
];

/// What numbers stand for that are words here.
const WORDS: &[(&str, &[&str])] = &[
    ("mode", &["bilinear", "nearest", "bicubic"]),
    ("padding_mode", &["zeros", "border", "reflection"]),
    ("reduction", &["none", "mean", "sum"]),
];

/// Operands and attributes of a call in our form.
pub(crate) struct Form<'t> {
    pub(crate) def: &'static OpDef,
    pub(crate) args: Args<'t>,
    pub(crate) attrs: Attrs,
}

/// Puts the arguments of a call into our form.
///
/// # Errors
/// If one of them has no place here, or one that is needed is missing.
pub(crate) fn form<'t>(t: &'t Tracer, call: &Call<'_>, plain: bool) -> Result<Form<'t>, String> {
    let def = find(&call.op).ok_or("there is no such op")?;
    let filling = Filling {
        t,
        call,
        plain,
        def,
        operands: Vec::new(),
        is_closed: false,
        attrs: Attrs::new(),
    };
    filling.filled()
}

struct Filling<'c, 't> {
    t: &'t Tracer,
    call: &'c Call<'c>,
    /// Every float is f32.
    plain: bool,
    def: &'static OpDef,
    /// The tensors of each operand that has been reached.
    operands: Vec<Vec<Var<'t>>>,
    /// The last of them is a list that has been given as one.
    is_closed: bool,
    attrs: Attrs,
}

impl<'t> Filling<'_, 't> {
    fn filled(mut self) -> Result<Form<'t>, String> {
        let args = self.call.case["args"].as_array().expect("args is a list");
        let names = ARGUMENTS.iter().find(|(op, _)| *op == self.call.op).map(|(_, names)| *names);
        for (at, value) in args.iter().enumerate() {
            match names.map(|names| names.get(at)) {
                Some(Some(&"_")) => {}
                Some(Some(name)) => self.put(name, &at.to_string(), value)?,
                Some(None) => return Err(format!("argument {at} has no name")),
                None => self.place(&at.to_string(), value)?,
            }
        }
        for (name, value) in
            self.call.case.get("kwargs").and_then(Value::as_object).into_iter().flatten()
        {
            let called =
                CALLED.iter().find(|(op, theirs, _)| *op == self.call.op && theirs == name);
            self.put(called.map_or(name, |(_, _, ours)| ours), name, value)?;
        }
        self.complete()?;
        let mut given = Args::new();
        for (i, operand) in self.def.schema.operands.iter().enumerate() {
            let vars = self.operands.get(i).cloned().unwrap_or_default();
            let is_number = self.attrs.get("scalar").is_some();
            if operand.kind == OperandKind::One && vars.len() != 1 && !is_number {
                return Err(format!("`{}` is missing", operand.name));
            }
            given.push(vars);
        }
        Ok(Form { def: self.def, args: given, attrs: self.attrs })
    }

    /// An argument by its place alone.
    fn place(&mut self, path: &str, value: &Value) -> Result<(), String> {
        let operands = self.def.schema.operands;
        let is_list = |i: usize| operands.get(i).is_some_and(|o| o.kind == OperandKind::List);
        let next = self.operands.len();
        if value.get("tensor").is_some() {
            let tensor = self.port(path, value)?;
            if next > 0 && is_list(next - 1) && !self.is_closed {
                self.operands[next - 1].push(tensor);
            } else if next < operands.len() {
                self.operands.push(vec![tensor]);
            } else {
                return Err(format!("tensor {path} has no operand"));
            }
            return Ok(());
        }
        if let Some(items) = value.as_array().filter(|_| is_list(next))
            && items.iter().all(|item| item.get("tensor").is_some())
        {
            let item = |(i, item): (usize, &Value)| self.port(&format!("{path}[{i}]"), item);
            let vars = items.iter().enumerate().map(item).collect::<Result<_, _>>()?;
            self.operands.push(vars);
            self.is_closed = true;
            return Ok(());
        }
        let is_optional =
            operands.get(next).is_some_and(|operand| operand.kind == OperandKind::Optional);
        if value.is_null() && is_optional {
            self.operands.push(Vec::new());
            return Ok(());
        }
        if value.is_null() {
            return Err(format!("argument {path} is null"));
        }
        if next == 0 && value.is_number() {
            return Err("a number stands in the place of the first operand".to_owned());
        }
        if value == "same" || value == "valid" {
            return self.put("padding", path, value);
        }
        let takes = |attr: &&AttrDef| {
            let is_open = self.attrs.get(attr.name).is_none() || attr.kind == AttrKind::OptFloats;
            is_open && self.attr(attr, value).is_some()
        };
        let attr = self.def.schema.attrs.iter().find(takes);
        let attr = attr.ok_or_else(|| format!("argument {path}, {value}, has no attribute"))?;
        self.put(attr.name, path, value)
    }

    /// An argument by our name for it.
    fn put(&mut self, name: &str, path: &str, value: &Value) -> Result<(), String> {
        if let Some(i) = self.def.schema.operands.iter().position(|o| o.name == name)
            && (value.get("tensor").is_some() || value.is_null())
        {
            let var = if value.is_null() { None } else { Some(self.port(path, value)?) };
            self.operands.resize(self.operands.len().max(i + 1), Vec::new());
            self.operands[i] = var.into_iter().collect();
            return Ok(());
        }
        if value == "same" || value == "valid" {
            self.attrs.set("same", value == "same");
            self.attrs.set("padding", &[][..] as &[i64]);
            return Ok(());
        }
        let attr = self.def.schema.attrs.iter().find(|attr| attr.name == name);
        let attr = attr.ok_or_else(|| format!("there is no `{name}`"))?;
        if let Some(value) = self.attr(attr, value) {
            self.attrs.set(attr.name, value);
            return Ok(());
        }
        if value.is_null() { Ok(()) } else { Err(format!("`{name}` is {value}")) }
    }

    /// The value as an attribute of that kind; `None` if it is none.
    fn attr(&self, attr: &AttrDef, value: &Value) -> Option<Attr> {
        let number = || value.as_f64().or_else(|| value.as_bool().map(|b| f64::from(u8::from(b))));
        let ints = || match value {
            Value::Array(list) => list.iter().map(Value::as_i64).collect::<Option<Vec<i64>>>(),
            one => one.as_i64().map(|one| vec![one]),
        };
        Some(match attr.kind {
            AttrKind::Bool => value.as_bool()?.into(),
            AttrKind::Int | AttrKind::OptInt => value.as_i64()?.into(),
            AttrKind::Float => value.as_f64()?.into(),
            AttrKind::OptFloat | AttrKind::OptNumber => {
                let by_name = ARGUMENTS.iter().any(|(op, _)| *op == self.call.op);
                (if by_name { number()? } else { value.as_f64()? }).into()
            }
            AttrKind::DType | AttrKind::OptDType => {
                let wanted = dtype(value.get("dtype")?);
                (if self.plain { DType::F32 } else { wanted }).into()
            }
            AttrKind::Ints => ints()?[..].into(),
            AttrKind::Size => Size::from(value.as_i64()?).into(),
            AttrKind::Sizes => {
                let sizes: Vec<Size> = ints()?.into_iter().map(Size::from).collect();
                sizes[..].into()
            }
            AttrKind::OptFloats => {
                let mut scales = self.attrs.floats(attr.name).to_vec();
                scales.push(value.as_f64()?);
                scales[..].into()
            }
            AttrKind::OptStr => match (value, WORDS.iter().find(|(name, _)| *name == attr.name)) {
                (Value::String(text), _) => text.as_str().into(),
                (Value::Number(n), Some((_, words))) => (*words.get(n.as_u64()? as usize)?).into(),
                _ => return None,
            },
            AttrKind::Kernel => return None,
        })
    }

    /// PyTorch's defaults for what the call leaves out.
    fn complete(&mut self) -> Result<(), String> {
        for attr in self.def.schema.attrs {
            if self.attrs.get(attr.name).is_some() {
                continue;
            }
            let default =
                DEFAULTS.iter().find(|(op, name, _)| *op == self.call.op && *name == attr.name);
            match (attr.kind, default, self.call.op.as_str()) {
                (AttrKind::Int, Some((_, _, n)), _) => self.attrs.set(attr.name, *n as i64),
                (_, Some((_, _, n)), _) => self.attrs.set(attr.name, *n),
                (AttrKind::Ints, None, "index_put") => {
                    let dims: Vec<i64> = (0..self.operands[1].len() as i64).collect();
                    self.attrs.set(attr.name, &dims[..]);
                }
                // The last two axes of one, the first two of the other.
                (AttrKind::Ints, None, "tensordot") => {
                    let first = if attr.name == "dims_self" {
                        self.operands[0][0].rank() as i64 - 2
                    } else {
                        0
                    };
                    self.attrs.set(attr.name, &[first, first + 1][..]);
                }
                (AttrKind::Ints, None, _) => self.attrs.set(attr.name, &[][..] as &[i64]),
                // The first axis of three elements.
                (AttrKind::Int, None, "cross") => {
                    let axis = self.operands[0][0].shape().iter().position(|n| *n == 3);
                    self.attrs.set(attr.name, axis.ok_or("no axis of 3")? as i64);
                }
                (AttrKind::Int | AttrKind::Float | AttrKind::Size | AttrKind::Sizes, None, _) => {
                    return Err(format!("`{}` is missing", attr.name));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn port(&self, name: &str, value: &Value) -> Result<Var<'t>, String> {
        let recorded = dtype(value.get("tensor").ok_or_else(|| format!("{name} is no tensor"))?);
        let is_plain = self.plain && (recorded.is_float() || !recorded.is_computable());
        let dtype = if is_plain { DType::F32 } else { recorded };
        let sizes = value["shape"].as_array().expect("a shape is a list").iter();
        let sizes: Vec<i64> = sizes.map(|size| size.as_i64().expect("a size")).collect();
        let device = value.get("on").map_or(self.call.home, crate::cases::device);
        Ok(self.t.port(name, TensorType::new(dtype, &sizes[..]), Role::Input, false, device))
    }
}
