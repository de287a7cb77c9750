//! [`Program`]: what `torch.export` writes about a model, in typed form.
//!
//! Versions 8.x of the schema are read. What is not known is skipped: with a warning if it stands
//! beside what is, and as an argument of its own kind where a node has it, so that the node is told
//! of.

use serde_json::{Map, Value as Json};
use std::collections::BTreeMap;
use std::collections::HashMap;
use tracecast_aten::Argument;
use tracecast_ir::DType;

/// The major version of the schema that is read.
const MAJOR: i64 = 8;

type Made<T> = Result<T, String>;

/// An exported program.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) graph: Graph,
    pub(crate) takes: Vec<Take>,
    pub(crate) gives: Vec<Give>,
    /// The least and the largest value of each name of a size.
    pub(crate) ranges: BTreeMap<String, (i64, Option<i64>)>,
    pub(crate) warnings: Vec<String>,
    pub(crate) written_by: String,
}

/// What a value among the inputs of the graph is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Take {
    Parameter {
        value: String,
        name: String,
    },
    Buffer {
        value: String,
        name: String,
        persistent: bool,
    },
    Constant {
        value: String,
        name: String,
    },
    Input {
        value: String,
    },
    /// An input that every call gave the same, which the program does not use.
    Fixed,
}

/// What becomes of a value among the outputs of the graph.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Give {
    Output(Option<String>),
    /// The next value of a buffer or parameter.
    Next {
        value: String,
        name: String,
    },
    /// A gradient, or a token: what a step here makes by itself.
    Dropped,
}

/// Nodes in order, and the types of values.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) inputs: Vec<Operand>,
    pub(crate) outputs: Vec<Operand>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) tensors: HashMap<String, Meta>,
    /// The expressions of sizes that are values.
    pub(crate) sizes: HashMap<String, Extent>,
    /// The expressions of truth values about sizes.
    pub(crate) truths: HashMap<String, String>,
}

/// The type of a tensor.
#[derive(Clone, Debug)]
pub(crate) struct Meta {
    pub(crate) dtype: Result<DType, String>,
    pub(crate) sizes: Vec<Extent>,
    pub(crate) strides: Vec<Extent>,
    pub(crate) offset: Extent,
    pub(crate) requires_grad: bool,
}

/// A size: a number, or an expression and the value that it had when the program was exported.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Extent {
    Number(i64),
    Expression(String, Option<i64>),
}

/// A call.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) target: String,
    pub(crate) inputs: Vec<(String, Operand)>,
    pub(crate) outputs: Vec<Operand>,
    /// The user's line, such as `model.py:12`.
    pub(crate) line: String,
    /// The path of modules.
    pub(crate) scope: String,
}

/// An argument of a node, or a result of one.
#[derive(Debug)]
pub(crate) enum Operand {
    Tensor(String),
    /// A size that is a value.
    Size(String),
    /// A truth value about sizes.
    Truth(String),
    List(Vec<Operand>),
    Graph(Box<Graph>),
    Plain(Argument<std::convert::Infallible>),
    Unknown(String),
}

impl Program {
    pub(crate) fn parse(json: &Json) -> Made<Program> {
        let program = object(json, "the program")?;
        let version =
            program.get("schema_version").and_then(|v| v.get("major")).and_then(Json::as_i64);
        match version {
            Some(MAJOR) => {}
            Some(other) => {
                return Err(format!(
                    "has version {other} of the schema, expected {MAJOR}: export it again with a PyTorch that writes that version"
                ));
            }
            None => return Err("does not say which version of the schema it has".to_owned()),
        }
        let module = object(field(program, "graph_module")?, "`graph_module`")?;
        let signature = object(field(module, "signature")?, "`signature`")?;
        let mut warnings = Vec::new();
        unknown_fields(program, &KNOWN, &mut warnings);
        let takes =
            list(field(signature, "input_specs")?)?.iter().map(take).collect::<Made<_>>()?;
        let gives =
            list(field(signature, "output_specs")?)?.iter().map(give).collect::<Made<_>>()?;
        let ranges = program.get("range_constraints").and_then(Json::as_object);
        let ranges = ranges.into_iter().flatten().map(|(name, range)| {
            let end = |key: &str| range.get(key).and_then(Json::as_i64);
            (name.clone(), (end("min_val").unwrap_or(0).max(0), end("max_val")))
        });
        let written_by = program.get("torch_version").and_then(Json::as_str).unwrap_or_default();
        Ok(Program {
            graph: graph(field(module, "graph")?)?,
            takes,
            gives,
            ranges: ranges.collect(),
            warnings,
            written_by: written_by.to_owned(),
        })
    }
}

/// What a program of the schema has.
const KNOWN: [&str; 7] = [
    "graph_module",
    "opset_version",
    "range_constraints",
    "schema_version",
    "verifiers",
    "torch_version",
    "guards_code",
];

fn unknown_fields(program: &Map<String, Json>, known: &[&str], warnings: &mut Vec<String>) {
    let unknown = program.keys().filter(|key| !known.contains(&key.as_str()));
    warnings.extend(
        unknown.map(|key| format!("`{key}` of the file is not known here, and is skipped")),
    );
}

fn object<'a>(json: &'a Json, what: &str) -> Made<&'a Map<String, Json>> {
    json.as_object().ok_or_else(|| format!("{what} is no object"))
}

fn field<'a>(object: &'a Map<String, Json>, name: &str) -> Made<&'a Json> {
    object.get(name).ok_or_else(|| format!("`{name}` is missing"))
}

fn list(json: &Json) -> Made<&Vec<Json>> {
    json.as_array().ok_or_else(|| format!("expected a list, found {}", shown(json)))
}

fn text(json: &Json) -> Made<String> {
    json.as_str()
        .map(str::to_owned)
        .ok_or_else(|| format!("expected a text, found {}", shown(json)))
}

/// The beginning of a piece of JSON.
fn shown(json: &Json) -> String {
    let text = json.to_string();
    if text.len() <= 60 { text } else { text.chars().take(57).chain("...".chars()).collect() }
}

/// The only field of a union, and its value.
fn variant<'a>(json: &'a Json, what: &str) -> Made<(&'a str, &'a Json)> {
    let object = object(json, what)?;
    let mut given = object.iter().filter(|(_, value)| !value.is_null());
    match (given.next(), given.next()) {
        (Some((name, value)), None) => Ok((name, value)),
        _ => Err(format!("{what} is to have one field, found {}", shown(json))),
    }
}

fn name_of(json: &Json) -> Made<String> {
    text(field(object(json, "a value")?, "name")?)
}

fn take(spec: &Json) -> Made<Take> {
    let (kind, spec) = variant(spec, "an input")?;
    let spec = object(spec, "an input")?;
    let value = || name_of(field(spec, "arg")?);
    let named = |key: &str| text(field(spec, key)?);
    Ok(match kind {
        "parameter" => Take::Parameter { value: value()?, name: named("parameter_name")? },
        "buffer" => {
            let persistent = spec.get("persistent").and_then(Json::as_bool).unwrap_or(true);
            Take::Buffer { value: value()?, name: named("buffer_name")?, persistent }
        }
        "tensor_constant" => {
            Take::Constant { value: value()?, name: named("tensor_constant_name")? }
        }
        "user_input" => {
            let (kind, arg) = variant(field(spec, "arg")?, "an input")?;
            match kind {
                "as_tensor" => Take::Input { value: name_of(arg)? },
                "as_sym_int" => {
                    return Err(
                        "has a size as an input: give it as the size of a tensor".to_owned()
                    );
                }
                _ => Take::Fixed,
            }
        }
        "constant_input" | "token" => Take::Fixed,
        other => return Err(format!("has an input of the kind `{other}`, which is not read")),
    })
}

fn give(spec: &Json) -> Made<Give> {
    let (kind, spec) = variant(spec, "an output")?;
    let spec = object(spec, "an output")?;
    let value = || name_of(field(spec, "arg")?);
    let named = |key: &str| text(field(spec, key)?);
    Ok(match kind {
        "user_output" => match variant(field(spec, "arg")?, "an output")? {
            ("as_tensor", arg) => Give::Output(Some(name_of(arg)?)),
            _ => Give::Output(None),
        },
        "loss_output" => Give::Output(Some(value()?)),
        "buffer_mutation" => Give::Next { value: value()?, name: named("buffer_name")? },
        "parameter_mutation" => Give::Next { value: value()?, name: named("parameter_name")? },
        "user_input_mutation" => {
            return Err(
                "writes to an input, which is given anew with each call: copy it first".to_owned()
            );
        }
        "gradient_to_parameter" | "gradient_to_user_input" | "token" => Give::Dropped,
        other => return Err(format!("has an output of the kind `{other}`, which is not read")),
    })
}

fn graph(json: &Json) -> Made<Graph> {
    let json = object(json, "a graph")?;
    let operands =
        |key: &str| list(field(json, key)?)?.iter().map(operand).collect::<Made<Vec<_>>>();
    let values = |key: &str| json.get(key).and_then(Json::as_object).into_iter().flatten();
    let tensors = values("tensor_values").map(|(name, json)| Ok((name.clone(), meta(json)?)));
    let sizes = values("sym_int_values").map(|(name, json)| Ok((name.clone(), extent(json)?)));
    let truths = values("sym_bool_values").filter_map(|(name, json)| {
        let text = json.get("as_expr")?.get("expr_str")?.as_str()?;
        Some((name.clone(), text.to_owned()))
    });
    Ok(Graph {
        inputs: operands("inputs")?,
        outputs: operands("outputs")?,
        nodes: list(field(json, "nodes")?)?.iter().map(node).collect::<Made<_>>()?,
        tensors: tensors.collect::<Made<_>>()?,
        sizes: sizes.collect::<Made<_>>()?,
        truths: truths.collect(),
    })
}

fn node(json: &Json) -> Made<Node> {
    let json = object(json, "a node")?;
    let target = text(field(json, "target")?)?;
    let inputs = list(field(json, "inputs")?)?.iter().map(|input| {
        let input = object(input, "an argument")?;
        let name = input.get("name").and_then(Json::as_str).unwrap_or_default().to_owned();
        Ok((name, operand(field(input, "arg")?)?))
    });
    let inputs = inputs.collect::<Made<Vec<_>>>()?;
    let outputs: Vec<Operand> =
        list(field(json, "outputs")?)?.iter().map(operand).collect::<Made<_>>()?;
    let metadata = |key: &str| {
        json.get("metadata").and_then(|m| m.get(key)).and_then(Json::as_str).unwrap_or_default()
    };
    let first = outputs.iter().find_map(|output| match output {
        Operand::Tensor(name) | Operand::Size(name) => Some(name.clone()),
        _ => None,
    });
    let name = json.get("name").and_then(Json::as_str).map(str::to_owned).or(first);
    Ok(Node {
        name: name.unwrap_or_else(|| target.clone()),
        line: line(metadata("stack_trace")),
        scope: scope(metadata("nn_module_stack")),
        target,
        inputs,
        outputs,
    })
}

/// The innermost line that is not PyTorch's, or the innermost one.
fn line(trace: &str) -> String {
    let mut found = String::new();
    let mut is_users = false;
    for frame in trace.lines().filter_map(|line| line.trim_start().strip_prefix("File \"")) {
        let Some((file, rest)) = frame.split_once("\", line ") else { continue };
        let number = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
        let users = !file.contains("site-packages/") && !file.starts_with("torch/");
        if users || !is_users {
            found = format!("{file}:{number}");
            is_users |= users;
        }
    }
    found
}

/// The path of the innermost module: `L__self__e,model.e,torch.nn.modules.linear.Linear` is
/// `model.e`.
fn scope(stack: &str) -> String {
    let innermost = stack.rsplit(';').next().unwrap_or_default();
    let path = innermost.split(',').nth(1).unwrap_or_default();
    let is_path = !path.starts_with('_') && !path.is_empty();
    if is_path { path.replace('@', ".") } else { String::new() }
}

fn operand(json: &Json) -> Made<Operand> {
    let (kind, value) = match variant(json, "an argument") {
        Ok(found) => found,
        // `{"as_none": null}` says so with its name.
        Err(_) if json.get("as_none").is_some() => return Ok(Operand::Plain(Argument::None)),
        Err(why) => return Err(why),
    };
    let each = |one: &dyn Fn(&Json) -> Made<Operand>| {
        Ok::<_, String>(Operand::List(list(value)?.iter().map(one).collect::<Made<_>>()?))
    };
    let int = |json: &Json| match json.as_i64() {
        Some(n) => Ok(Operand::Plain(Argument::Int(n))),
        None => Err(format!("expected an integer, found {}", shown(json))),
    };
    let float = |json: &Json| number(json).map(|v| Operand::Plain(Argument::Float(v)));
    let tensor = |json: &Json| name_of(json).map(Operand::Tensor);
    let truth = |json: &Json| match json.as_bool() {
        Some(b) => Ok(Operand::Plain(Argument::Bool(b))),
        None => Err(format!("expected true or false, found {}", shown(json))),
    };
    Ok(match kind {
        "as_none" => Operand::Plain(Argument::None),
        "as_tensor" => tensor(value)?,
        "as_tensors" => each(&tensor)?,
        "as_optional_tensor" => optional(value)?,
        "as_optional_tensors" => each(&optional)?,
        "as_int" => int(value)?,
        "as_ints" => each(&int)?,
        "as_float" => float(value)?,
        "as_floats" => each(&float)?,
        "as_bool" => truth(value)?,
        "as_bools" => each(&truth)?,
        "as_string" => Operand::Plain(Argument::Text(text(value)?)),
        "as_scalar_type" => match value.as_i64().map(dtype) {
            Some(Ok(dtype)) => Operand::Plain(Argument::DType(dtype)),
            Some(Err(why)) => Operand::Unknown(why),
            None => Operand::Unknown(format!("the dtype {}", shown(value))),
        },
        "as_sym_int" => symbol(value, Operand::Size)?,
        "as_sym_ints" => each(&|json| symbol(json, Operand::Size))?,
        "as_sym_bool" => symbol(value, Operand::Truth)?,
        "as_graph" => {
            let inner = object(value, "a graph")?;
            Operand::Graph(Box::new(graph(field(inner, "graph")?)?))
        }
        "as_device" | "as_layout" | "as_memory_format" => Operand::Plain(Argument::Place),
        other => Operand::Unknown(format!("an argument of the kind `{other}`")),
    })
}

fn optional(json: &Json) -> Made<Operand> {
    match variant(json, "an optional tensor") {
        Ok(("as_tensor", value)) => name_of(value).map(Operand::Tensor),
        Ok((_, value)) if !value.is_boolean() => {
            Err(format!("expected a tensor, found {}", shown(json)))
        }
        _ => Ok(Operand::Plain(Argument::None)),
    }
}

/// A value by its name, or a number.
fn symbol(json: &Json, named: fn(String) -> Operand) -> Made<Operand> {
    let (kind, value) = variant(json, "a size")?;
    match (kind, value) {
        ("as_name", Json::String(name)) => Ok(named(name.clone())),
        ("as_int", Json::Number(n)) if n.as_i64().is_some() => {
            Ok(Operand::Plain(Argument::Int(n.as_i64().unwrap_or_default())))
        }
        ("as_bool", Json::Bool(b)) => Ok(Operand::Plain(Argument::Bool(*b))),
        _ => Err(format!("expected a size, found {}", shown(json))),
    }
}

/// A number, which is a text where JSON has no form for it.
fn number(json: &Json) -> Made<f64> {
    let word = json.as_str().and_then(|text| match text {
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        "NaN" => Some(f64::NAN),
        _ => None,
    });
    json.as_f64().or(word).ok_or_else(|| format!("expected a number, found {}", shown(json)))
}

/// The type of a tensor, as graphs and descriptions of stored tensors have it.
pub(crate) fn meta(json: &Json) -> Made<Meta> {
    let json = object(json, "the type of a tensor")?;
    let code = field(json, "dtype")?.as_i64().ok_or("`dtype` is no number")?;
    let extents = |key: &str| list(field(json, key)?)?.iter().map(extent).collect::<Made<Vec<_>>>();
    let (sizes, strides) = (extents("sizes")?, extents("strides")?);
    if sizes.len() != strides.len() {
        return Err(format!("a tensor has {} sizes and {} strides", sizes.len(), strides.len()));
    }
    if json.get("layout").and_then(Json::as_i64).is_some_and(|layout| layout != STRIDED) {
        return Err("a tensor is not dense, which is not read".to_owned());
    }
    Ok(Meta {
        dtype: dtype(code),
        sizes,
        strides,
        offset: json.get("storage_offset").map_or(Ok(Extent::Number(0)), extent)?,
        requires_grad: json.get("requires_grad").and_then(Json::as_bool).unwrap_or(false),
    })
}

/// The number of the usual layout.
const STRIDED: i64 = 7;

fn extent(json: &Json) -> Made<Extent> {
    let (kind, value) = variant(json, "a size")?;
    match kind {
        "as_int" => value
            .as_i64()
            .map(Extent::Number)
            .ok_or_else(|| format!("expected a size, found {}", shown(value))),
        "as_expr" => {
            let expression = text(field(object(value, "a size")?, "expr_str")?)?;
            let hint = value.get("hint").and_then(|hint| hint.get("as_int")).and_then(Json::as_i64);
            Ok(Extent::Expression(expression, hint))
        }
        other => Err(format!("a size is given as `{other}`")),
    }
}

/// The dtype of that number in the schema.
fn dtype(code: i64) -> Made<DType> {
    Ok(match code {
        1 => DType::U8,
        4 => DType::I32,
        5 => DType::I64,
        6 => DType::F16,
        7 => DType::F32,
        8 => DType::F64,
        12 => DType::Bool,
        13 => DType::BF16,
        2 => return Err("the dtype int8, which is not computed here".to_owned()),
        3 => return Err("the dtype int16, which is not computed here".to_owned()),
        9..=11 => return Err("complex numbers, which are not computed here".to_owned()),
        other => {
            return Err(format!("the dtype with the number {other}, which is not computed here"));
        }
    })
}
