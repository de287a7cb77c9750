//! Values in filetests: `; input x = [1, 2.5, inf]` lines of a case, and results on one line.

use crate::Case;
use std::collections::HashMap;
use tracecast_ir::eval::Value;
use tracecast_ir::{DType, Graph, TensorType};

/// One run of a graph.
pub(crate) struct Run {
    /// A value for every port.
    pub(crate) inputs: HashMap<String, Value>,
    /// These values as text, in the order of the ports.
    pub(crate) text: String,
}

/// The runs that a case asks for. An input that is given again begins another run, in which the
/// others keep their values.
pub(crate) fn runs(case: &Case, graph: &Graph) -> Result<Vec<Run>, String> {
    let mut given: Vec<HashMap<&str, Vec<f64>>> = vec![HashMap::new()];
    let mut set_now: Vec<&str> = Vec::new();
    for line in &case.lines {
        let Some(input) = line.strip_prefix("; input ") else { continue };
        let (name, numbers) = input
            .split_once('=')
            .ok_or_else(|| format!("expected `name = numbers`, found `{input}`"))?;
        let name = name.trim();
        if set_now.contains(&name) {
            given.push(given.last().cloned().unwrap_or_default());
            set_now.clear();
        }
        set_now.push(name);
        given.last_mut().expect("begins with one").insert(name, read(numbers)?);
    }
    given.into_iter().map(|numbers| run(&numbers, graph)).collect()
}

fn run(numbers: &HashMap<&str, Vec<f64>>, graph: &Graph) -> Result<Run, String> {
    if let Some(unknown) =
        numbers.keys().find(|name| !graph.ports().iter().any(|p| p.name == **name))
    {
        return Err(format!("no port is named `{unknown}`"));
    }
    let mut inputs = HashMap::new();
    let mut text = Vec::new();
    for port in graph.ports() {
        let numbers = numbers
            .get(port.name.as_str())
            .ok_or_else(|| format!("no `; input {} = …`", port.name))?;
        let value = Value::from_f64s(port.ty.clone(), numbers)
            .map_err(|e| format!("input {}: {e}", port.name))?;
        text.push(format!("{} = {}", port.name, number_list(&value.ty, &value.to_f64s())));
        inputs.insert(port.name.clone(), value);
    }
    Ok(Run { inputs, text: text.join(", ") })
}

/// Named results, then updates.
pub(crate) fn show(outputs: &[(String, Value)], updates: &[(String, Value)]) -> String {
    let one = |prefix: &str, (name, value): &(String, Value)| {
        format!("{prefix}{name} = {}", number_list(&value.ty, &value.to_f64s()))
    };
    let outputs = outputs.iter().map(|o| one("", o));
    outputs.chain(updates.iter().map(|u| one("update ", u))).collect::<Vec<_>>().join(", ")
}

/// `3`, or `[1, 2, inf]` in row-major order.
fn read(text: &str) -> Result<Vec<f64>, String> {
    let text = text.trim();
    let inside = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    let numbers = inside.split(',').map(str::trim).filter(|n| !n.is_empty());
    numbers.map(|n| n.parse().map_err(|_| format!("expected a number, found `{n}`"))).collect()
}

/// A scalar alone, any other shape as its elements in row-major order.
fn number_list(ty: &TensorType, numbers: &[f64]) -> String {
    let words: Vec<String> = numbers.iter().map(|&v| number(ty.dtype, v)).collect();
    if ty.shape.rank() == 0 { words.concat() } else { format!("[{}]", words.join(", ")) }
}

/// The shortest text that reads back to the same number of the dtype.
fn number(dtype: DType, v: f64) -> String {
    let text = match dtype {
        DType::F32 | DType::F16 | DType::BF16 => format!("{:?}", v as f32),
        _ => format!("{v:?}"),
    };
    match text.as_str() {
        "NaN" => "nan".to_owned(),
        _ => text.strip_suffix(".0").map_or(text.clone(), str::to_owned),
    }
}
