//! [`Schema`]: the names, types and defaults of an overload's arguments, parsed from PyTorch's
//! text.

use crate::Argument;

/// The signature of an overload.
#[derive(Debug)]
pub struct Schema {
    /// The name with its overload, such as `add.Tensor`; `default` is written out.
    pub name: String,
    /// The arguments in order.
    pub parameters: Vec<Parameter>,
    /// Whether a result shares memory with the first argument, or may.
    pub is_view: bool,
}

/// An argument of a signature.
#[derive(Debug)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// Its type as PyTorch writes it, such as `SymInt[]?`.
    pub kind: &'static str,
    /// What stands for it where it is left out.
    pub default: Option<Argument<std::convert::Infallible>>,
    /// Whether the call writes to it.
    pub is_written: bool,
}

/// Arguments that choose a kernel or a place in memory, and no numbers.
const WITHOUT_EFFECT: [&str; 17] = [
    "layout",
    "device",
    "pin_memory",
    "memory_format",
    "non_blocking",
    "implicit",
    "sparse",
    "sparse_grad",
    "cudnn_enabled",
    "cudnn_enable",
    "generator",
    "stable",
    "sorted",
    "assume_unique",
    "path",
    "copy",
    "compute_mode",
];

impl Parameter {
    /// Whether any value of it leaves the results as they are.
    pub(crate) fn is_without_effect(&self) -> bool {
        WITHOUT_EFFECT.contains(&self.name)
    }
}

impl Schema {
    /// Parses `add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor`.
    pub(crate) fn parse(text: &'static str) -> Schema {
        let (name, rest) = text.split_once('(').unwrap_or((text, ""));
        let (list, results) = rest.rsplit_once(") -> ").unwrap_or((rest, ""));
        let name = if name.contains('.') { name.to_owned() } else { format!("{name}.default") };
        let parameters = top_level(list).filter(|part| *part != "*").map(Parameter::parse);
        let parameters: Vec<Parameter> = parameters.collect();
        let first = parameters.first();
        let is_view = results.contains("(a") && first.is_some_and(|first| !first.is_written);
        Schema { name, parameters, is_view }
    }

    /// The position of an argument.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.parameters.iter().position(|parameter| parameter.name == name)
    }
}

impl Parameter {
    fn parse(text: &'static str) -> Parameter {
        let (left, default) = match text.split_once('=') {
            Some((left, default)) => (left, Some(value(default))),
            None => (text, None),
        };
        let (kind, name) = left.rsplit_once(' ').unwrap_or((left, ""));
        // What may be absent can be left out.
        let default = default.or_else(|| kind.ends_with('?').then_some(Argument::None));
        Parameter { name, kind, default, is_written: kind.contains('!') }
    }
}

/// The parts of a list, which commas separate outside of brackets.
fn top_level(list: &'static str) -> impl Iterator<Item = &'static str> {
    let mut depth = 0;
    let parts = list.split(move |c| {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    });
    parts.map(str::trim).filter(|part| !part.is_empty())
}

/// A default.
fn value<T>(text: &'static str) -> Argument<T> {
    if let Some(list) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        return Argument::List(top_level(list).map(value).collect());
    }
    if let Some(text) = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
        return Argument::Text(text.to_owned());
    }
    match text {
        "None" => return Argument::None,
        "True" | "False" => return Argument::Bool(text == "True"),
        _ => {}
    }
    let int = text.parse().ok().map(Argument::Int);
    int.or_else(|| text.parse().ok().map(Argument::Float)).unwrap_or(Argument::Place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_are_read() {
        let pool = Schema::parse(
            "avg_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], float x=1e-05, str m=\"none\", *, Device? d=None) -> Tensor",
        );
        assert_eq!((pool.name.as_str(), pool.is_view), ("avg_pool2d.default", false));
        let names: Vec<&str> = pool.parameters.iter().map(|p| p.name).collect();
        assert_eq!(names, ["self", "kernel_size", "stride", "x", "m", "d"]);
        assert!(
            matches!(&pool.parameters[2].default, Some(Argument::List(list)) if list.is_empty())
        );
        assert!(matches!(pool.parameters[3].default, Some(Argument::Float(1e-5))));
        assert!(pool.parameters[1].default.is_none());
        let split = Schema::parse(
            "split.Tensor(Tensor(a -> *) self, SymInt split_size, int dim=0) -> Tensor(a)[]",
        );
        assert!(split.is_view && !split.parameters[0].is_written);
        let fill = Schema::parse("fill_.Scalar(Tensor(a!) self, Scalar value) -> Tensor(a!)");
        assert!(fill.parameters[0].is_written && !fill.is_view);
    }
}
