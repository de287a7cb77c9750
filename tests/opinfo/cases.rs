//! What was recorded: calls of PyTorch's operators and layers with their answers. The README of
//! `tests/data/opinfo` has the format.

use flate2::read::GzDecoder;
use serde_json::{Map, Value as Json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use tracecast_ir::eval::Value;
use tracecast_ir::{DType, Shape, TensorType};

/// A call of an operator, and what PyTorch made of it.
pub(crate) struct Case {
    /// `ENTRY/DTYPE/KIND/NUMBER`.
    pub(crate) id: String,
    /// The operator, without `nn.functional.`.
    pub(crate) op: String,
    /// The ATen op behind it, such as `sum.dim_IntList`; `None` if there are several, or if it was
    /// refused.
    pub(crate) aten: Option<String>,
    /// The arguments in order, each with the parameter that it is for, where that is known.
    pub(crate) args: Vec<Argument>,
    /// The results, where it was not refused, and behind them what it wrote.
    pub(crate) out: Vec<Wanted>,
    /// The running statistics and the state it writes to. What other calls write in place they give
    /// as results here.
    pub(crate) written: Vec<String>,
    /// The cotangent of each result that was differentiated.
    pub(crate) cotangents: Vec<Option<Value>>,
    /// The gradients, by the path of the argument; `None` is zero.
    pub(crate) grads: Vec<(String, Option<Value>)>,
    /// The class of the exception, if it was refused.
    pub(crate) refusal: Option<String>,
    /// The low dtype of the autocast region that the forward pass ran in.
    pub(crate) autocast: Option<DType>,
    /// The tolerance that was declared for it.
    pub(crate) tolerance: Option<(f64, f64)>,
    /// How far PyTorch itself is from its answer in f64, in units of the tolerance: results,
    /// gradients.
    pub(crate) error: (f64, f64),
    /// What is called, if it is a layer.
    pub(crate) layer: Option<Layer>,
}

/// A layer before it is called.
pub(crate) struct Layer {
    /// What its class was made with.
    pub(crate) constructor: Vec<Argument>,
    pub(crate) training: bool,
    /// Its parameters and buffers.
    pub(crate) state: Vec<(String, Value)>,
}

/// A result as it was recorded.
pub(crate) enum Wanted {
    /// Its elements.
    Value(Value),
    /// Its type: the elements are random.
    Type(TensorType),
}

/// An argument of a call.
pub(crate) struct Argument {
    /// The parameter it is for.
    pub(crate) name: Option<String>,
    /// Where it stands: `args/0`, `kwargs/dim`.
    pub(crate) path: String,
    pub(crate) is: Arg,
}

/// What an argument is.
pub(crate) enum Arg {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    DType(DType),
    List(Vec<Arg>),
    /// As a list, where the two differ: the indices of `__getitem__`, one for each axis.
    Tuple(Vec<Arg>),
    /// Of `__getitem__`: start, stop, step.
    Slice(Vec<Arg>),
    /// Of `__getitem__`: all the axes in between.
    Ellipsis,
    Tensor(Value),
    /// Something that no op here takes, such as a memory format.
    Other,
}

impl Case {
    /// The entry and the dtype: the id without kind and number.
    pub(crate) fn entry(&self) -> (&str, &str) {
        let mut parts = self.id.rsplitn(4, '/').skip(2);
        let dtype = parts.next().unwrap_or_default();
        (parts.next().unwrap_or(&self.op), dtype)
    }
}

impl Arg {
    /// True for the indices of several axes.
    pub(crate) fn is_tuple(&self) -> bool {
        matches!(self, Arg::Tuple(_))
    }

    /// True if there is a tensor in it.
    pub(crate) fn has_tensors(&self) -> bool {
        match self {
            Arg::Tensor(_) => true,
            Arg::List(list) | Arg::Tuple(list) | Arg::Slice(list) => {
                list.iter().any(Arg::has_tensors)
            }
            _ => false,
        }
    }
}

/// The cases of a file, in its order.
pub(crate) fn read(path: &Path) -> Vec<Case> {
    let packed = std::fs::File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let lines = BufReader::new(GzDecoder::new(packed)).lines();
    lines.map(|line| case(&serde_json::from_str(&line.unwrap()).unwrap())).collect()
}

fn case(json: &Json) -> Case {
    let text = |key: &str| json[key].as_str().unwrap_or_default().to_owned();
    let list = |key: &str| json[key].as_array().map_or(&[][..], Vec::as_slice);
    let aten = match list("aten") {
        [one] => one.as_str().map(str::to_owned),
        _ => None,
    };
    let err = |key: &str| json["err"][key].as_f64().unwrap_or(0.0);
    let known = |key: &str| json[key].as_f64();
    let after = json["state_after"].as_object().into_iter().flatten();
    let after = after.map(|(name, is)| (name.clone(), is));
    let changed = list("changed").iter().filter(|_| text("op").ends_with("_norm"));
    let written = changed.map(|one| (path(&one["of"]), &one["is"])).chain(after);
    let (written, is): (Vec<String>, Vec<&Json>) = written.unzip();
    Case {
        id: text("id"),
        op: text("op"),
        aten,
        args: arguments(json, json["names"].as_array()),
        out: list("out").iter().filter(|out| !out.is_null()).chain(is).map(wanted).collect(),
        written,
        cotangents: list("cot").iter().map(tensor).collect(),
        grads: list("grads").iter().map(|grad| (path(&grad["of"]), tensor(&grad["is"]))).collect(),
        refusal: json["error"]["type"].as_str().map(str::to_owned),
        autocast: json["autocast"].as_str().and_then(|dtype| dtype.parse().ok()),
        tolerance: known("rtol").zip(known("atol")),
        error: (err("out"), err("grads")),
        layer: json.get("constructor").map(|constructor| layer(json, constructor)),
    }
}

fn layer(json: &Json, constructor: &Json) -> Layer {
    let state = json["state"].as_object().into_iter().flatten();
    let value = |json: &Json| tensor(json).expect("recorded state has elements");
    Layer {
        constructor: arguments(constructor, None),
        training: json["training"] == true,
        state: state.map(|(name, json)| (name.clone(), value(json))).collect(),
    }
}

/// A result; a plain number is one without axes.
fn wanted(json: &Json) -> Wanted {
    let plain =
        |dtype, number: f64| Value::from_f64s(TensorType::scalar(dtype), &[number]).unwrap();
    match json {
        Json::Bool(b) => Wanted::Value(plain(DType::Bool, f64::from(u8::from(*b)))),
        Json::Object(_) => match tensor(json) {
            Some(value) => Wanted::Value(value),
            None => Wanted::Type(tensor_type(json).expect("a recorded result has a type")),
        },
        other => panic!("no result: {other}"),
    }
}

fn arguments(json: &Json, names: Option<&Vec<Json>>) -> Vec<Argument> {
    let name = |i: usize| names?.get(i)?.as_str().map(str::to_owned);
    let args = json["args"].as_array().into_iter().flatten().enumerate();
    let mut all: Vec<Argument> = args
        .map(|(i, json)| Argument { name: name(i), path: format!("args/{i}"), is: arg(json) })
        .collect();
    for (name, json) in json["kwargs"].as_object().into_iter().flatten() {
        let (path, name) = (format!("kwargs/{name}"), Some(name.clone()));
        all.push(Argument { name, path, is: arg(json) });
    }
    all
}

/// `["args", 0, 2]` as `args/0/2`.
fn path(json: &Json) -> String {
    let part = |json: &Json| json.as_str().map_or_else(|| json.to_string(), str::to_owned);
    json.as_array().into_iter().flatten().map(part).collect::<Vec<_>>().join("/")
}

fn arg(json: &Json) -> Arg {
    match json {
        Json::Null => Arg::None,
        Json::Bool(b) => Arg::Bool(*b),
        Json::Number(n) => {
            n.as_i64().map_or_else(|| n.as_f64().map_or(Arg::Other, Arg::Float), Arg::Int)
        }
        Json::String(text) => Arg::Text(text.clone()),
        Json::Array(list) => Arg::List(list.iter().map(arg).collect()),
        Json::Object(object) => special(json, object),
    }
}

/// What JSON has no form of its own for.
fn special(json: &Json, object: &Map<String, Json>) -> Arg {
    if let Some(value) = tensor(json) {
        return Arg::Tensor(value);
    }
    let list = |key: &str| object.get(key).and_then(Json::as_array);
    let each = |list: &Vec<Json>| list.iter().map(arg).collect();
    if let Some(list) = list("tuple") {
        return Arg::Tuple(each(list));
    }
    if let Some(list) = list("slice") {
        return Arg::Slice(each(list));
    }
    if object.contains_key("ellipsis") {
        return Arg::Ellipsis;
    }
    let text = |key: &str| object.get(key).and_then(Json::as_str);
    match (text("float"), text("dtype")) {
        (Some(number), _) => number.parse().map_or(Arg::Other, Arg::Float),
        (_, Some(dtype)) => dtype.parse().map_or(Arg::Other, Arg::DType),
        _ => Arg::Other,
    }
}

/// `{"t": "f32", "s": [2]}`.
fn tensor_type(json: &Json) -> Option<TensorType> {
    let dtype: DType = json["t"].as_str()?.parse().ok()?;
    let sizes = json["s"].as_array()?.iter().map(|n| Some(n.as_u64()? as usize));
    Some(TensorType { dtype, shape: Shape::new(&sizes.collect::<Option<Vec<_>>>()?) })
}

/// `{"t": "f32", "s": [2], "d": "…"}`, its bytes in hex.
fn tensor(json: &Json) -> Option<Value> {
    let ty = tensor_type(json)?;
    let digits = json["d"].as_str()?.as_bytes();
    let digit = |d: u8| char::from(d).to_digit(16).map(|d| d as u8);
    let byte = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(pair[1])?);
    let bytes = digits.chunks_exact(2).map(byte).collect::<Option<Vec<u8>>>()?;
    Value::new(ty, bytes).ok()
}
