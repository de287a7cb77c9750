//! Reads a [`Program`] from JSON.

use super::{Listed, NamedRange, Place, Program, Stated, dtype, expression};
use crate::argument::Argument;
use serde_json::Value as Json;
use tracecast_ir::{Shape, Size, TensorType};

type Made<T> = Result<T, String>;

impl Program {
    /// Reads a program from JSON.
    ///
    /// The object has `name`; `sizes`, each `[name, least, most or null, traced]`; `inputs`, each
    /// `[name, dtype, sizes]`; `calls`, each `[name, overload, arguments, results, line, scope]`;
    /// `outputs`, each `[call or input, which result]`. An argument is `[name or null, value]`, a
    /// result `[dtype, sizes]`. Values are null, truths, integers, texts and lists of JSON, or
    /// `{"float": "0.1"}`, `{"tensor": [call, which]}`, `{"size": "2*s0"}`, `{"dtype": "float32"}`,
    /// `{"place": null}`.
    ///
    /// A training step may also have `updates`, each `[input, [call, which result]]`: such an input
    /// is state of the store. `parameters` names inputs that are trained. `in_region` is the number
    /// of calls, from the first on, that lie in the autocast region of the
    /// [`Scene`](super::Scene).
    ///
    /// # Errors
    /// Text that is no such object.
    pub fn parse(text: &str) -> Result<Self, String> {
        let json: Json = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let field =
            |name: &str| list(json.get(name).ok_or_else(|| format!("`{name}` is missing"))?);
        let optional = |name: &str| json.get(name).map_or(Ok(&[][..]), list);
        let in_region = json.get("in_region").map_or(Ok(0), integer)?;
        Ok(Program {
            name: string(json.get("name").ok_or("`name` is missing")?)?,
            sizes: each(field("sizes")?, range)?,
            inputs: each(field("inputs")?, |json| {
                let [name, dtype, sizes] = parts(json)?;
                Ok((string(name)?, stated(dtype, sizes)?))
            })?,
            calls: each(field("calls")?, call)?,
            outputs: each(field("outputs")?, place)?,
            updates: each(optional("updates")?, |json| {
                let [input, from] = parts(json)?;
                Ok((string(input)?, place(from)?))
            })?,
            parameters: each(optional("parameters")?, string)?,
            in_region: usize::try_from(in_region)
                .map_err(|_| wrong("a count", &in_region.into()))?,
        })
    }
}

fn range(json: &Json) -> Made<NamedRange> {
    let [name, least, most, traced] = parts(json)?;
    let most = if most.is_null() { None } else { Some(integer(most)?) };
    Ok(NamedRange { name: string(name)?, least: integer(least)?, most, traced: integer(traced)? })
}

fn call(json: &Json) -> Made<Listed> {
    let [name, overload, arguments, results, line, scope] = parts(json)?;
    Ok(Listed {
        name: string(name)?,
        overload: string(overload)?,
        arguments: each(list(arguments)?, |json| {
            let [name, value] = parts(json)?;
            let name = if name.is_null() { None } else { Some(string(name)?) };
            Ok((name, argument(value)?))
        })?,
        results: each(list(results)?, |json| {
            let [dtype, sizes] = parts(json)?;
            stated(dtype, sizes)
        })?,
        line: string(line)?,
        scope: string(scope)?,
    })
}

fn argument(json: &Json) -> Made<Argument<Place>> {
    Ok(match json {
        Json::Null => Argument::None,
        Json::Bool(truth) => Argument::Bool(*truth),
        Json::Number(_) => Argument::Int(integer(json)?),
        Json::String(text) => Argument::Text(text.clone()),
        Json::Array(all) => Argument::List(each(all, argument)?),
        Json::Object(tagged) => {
            let (tag, value) = tagged.iter().next().ok_or_else(|| wrong("a tag", json))?;
            match tag.as_str() {
                "tensor" => Argument::Tensor(place(value)?),
                "size" => size(value)
                    .map(|size| size.number().map_or(Argument::Size(size), Argument::Int))?,
                "dtype" => {
                    let name = string(value)?;
                    // The table refuses a text where it takes a dtype, and quotes it.
                    dtype::named(&name).map_or(Argument::Text(name), Argument::DType)
                }
                "float" => {
                    let value = string(value)?;
                    Argument::Float(value.parse().map_err(|_| wrong("a number", json))?)
                }
                "place" => Argument::Place,
                _ => return Err(wrong("tensor, size, dtype, float or place", json)),
            }
        }
    })
}

/// The type of a tensor. One of a dtype without kernels has none.
fn stated(dtype: &Json, sizes: &Json) -> Made<Stated> {
    let dtype = dtype::named(&string(dtype)?).filter(|dtype| dtype.is_computable());
    let shape: Shape = each(list(sizes)?, size)?.into();
    Ok(Stated(dtype.map(|dtype| TensorType { dtype, shape })))
}

fn size(json: &Json) -> Made<Size> {
    match json {
        Json::String(text) => expression::size(text),
        number => integer(number).map(Size::from),
    }
}

fn place(json: &Json) -> Made<Place> {
    let [name, result] = parts(json)?;
    let result = result.as_u64().and_then(|at| usize::try_from(at).ok());
    Ok((string(name)?, result.ok_or_else(|| wrong("which result", json))?))
}

fn each<T>(list: &[Json], read: impl Fn(&Json) -> Made<T>) -> Made<Vec<T>> {
    list.iter().map(read).collect()
}

fn list(json: &Json) -> Made<&[Json]> {
    json.as_array().map(Vec::as_slice).ok_or_else(|| wrong("a list", json))
}

fn parts<const N: usize>(json: &Json) -> Made<[&Json; N]> {
    let all: Vec<&Json> = list(json)?.iter().collect();
    all.try_into().map_err(|_| wrong(&format!("a list of {N}"), json))
}

fn string(json: &Json) -> Made<String> {
    json.as_str().map(str::to_owned).ok_or_else(|| wrong("a text", json))
}

fn integer(json: &Json) -> Made<i64> {
    json.as_i64().ok_or_else(|| wrong("an integer", json))
}

fn wrong(expected: &str, found: &Json) -> String {
    format!("expected {expected}, found {found}")
}
