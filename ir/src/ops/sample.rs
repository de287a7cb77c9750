//! The operands that an op's [`Domain`](crate::op::Domain) proposes for tests, read from their
//! one-line notation.
//!
//! ```
//! use tracecast_ir::ops::{elementwise, sample::parse_sample};
//! use tracecast_ir::DType;
//!
//! let sample = parse_sample(&elementwise::DIV, "T[3, 5], T[3, 5] > 0", DType::BF16).unwrap();
//! assert_eq!(sample.operands[1].0.to_string(), "bf16[3, 5]");
//! ```

use crate::graph::Groups;
use crate::op::{AttrKind, OpDef, OperandKind};
use crate::{Args, Attr, Attrs, DType, Results, Shape, TensorType, Tracer};
use std::sync::Arc;

/// Operands and attributes to test an op with.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The flat operands: their types and where their elements lie.
    pub operands: Vec<(TensorType, Range)>,
    /// Their split among the schema's operands.
    pub groups: Groups,
    /// The attributes.
    pub attrs: Attrs,
}

/// Where the elements of an operand lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Range {
    /// Anywhere.
    Any,
    /// Above zero.
    Positive,
    /// Not at zero.
    NonZero,
    /// From the first up to the second number; an integer does not reach the second.
    Between(f64, f64),
}

impl Sample {
    /// Records the op on inputs named `x0`, `x1` and so on.
    #[track_caller]
    pub fn record<'t>(&self, tracer: &'t Tracer, op: &'static OpDef) -> Results<'t> {
        tracer.apply(op, self.inputs(tracer), self.attrs.clone())
    }

    /// Inputs of the operands' types, named `x0`, `x1` and so on.
    #[track_caller]
    pub fn inputs<'t>(&self, tracer: &'t Tracer) -> Args<'t> {
        let input = |(i, (ty, _)): (usize, &(TensorType, Range))| {
            tracer.input(&format!("x{i}"), ty.clone())
        };
        Args {
            vars: self.operands.iter().enumerate().map(input).collect(),
            groups: self.groups.clone(),
        }
    }
}

/// Reads a sample of an op with `T` standing for `dtype`.
///
/// # Errors
/// Where the text is no sample of the op's schema, with the rest of the text.
pub fn parse_sample(op: &OpDef, sample: &str, dtype: DType) -> Result<Sample, String> {
    let mut reader = Reader { rest: sample.trim_start(), dtype };
    reader.sample(op).map_err(|message| {
        format!("sample {sample:?} of `{}`: {message}, at {:?}", op.name, reader.rest)
    })
}

struct Reader<'a> {
    rest: &'a str,
    dtype: DType,
}

impl<'a> Reader<'a> {
    fn sample(&mut self, op: &OpDef) -> Result<Sample, String> {
        let mut sample =
            Sample { operands: Vec::new(), groups: Groups::new(), attrs: Attrs::new() };
        for (i, operand) in op.schema.operands.iter().enumerate() {
            let before = sample.operands.len();
            let absent = self.rest.is_empty() || self.rest.starts_with('{');
            if absent && operand.kind == OperandKind::Optional {
                sample.groups.push(0);
                continue;
            }
            if i > 0 {
                self.expect(",")?;
            }
            match operand.kind {
                OperandKind::List => {
                    self.expect("[")?;
                    self.list("]", |r| r.operand().map(|o| sample.operands.push(o)))?;
                }
                OperandKind::Optional if self.accept("none") => {}
                _ => sample.operands.push(self.operand()?),
            }
            sample.groups.push((sample.operands.len() - before) as u16);
        }
        if self.accept("{") {
            self.list("}", |r| {
                let name = r.word();
                let def = op
                    .schema
                    .attrs
                    .iter()
                    .find(|a| a.name == name)
                    .ok_or(format!("no attribute `{name}`"))?;
                r.expect("=")?;
                let value = r.value(def.kind)?;
                sample.attrs.set(def.name, value);
                Ok(())
            })?;
        }
        if self.rest.is_empty() { Ok(sample) } else { Err("expected the end".to_owned()) }
    }

    fn operand(&mut self) -> Result<(TensorType, Range), String> {
        let dtype = self.dtype()?;
        self.expect("[")?;
        let mut sizes = Vec::new();
        self.list("]", |r| {
            sizes.push(r.word().parse::<usize>().map_err(|_| "expected a size")?);
            Ok(())
        })?;
        let range = if self.accept(">") {
            self.expect("0")?;
            Range::Positive
        } else if self.accept("!=") {
            self.expect("0")?;
            Range::NonZero
        } else if self.accept("in ") {
            Range::Between(self.number()?, self.number()?)
        } else {
            Range::Any
        };
        Ok((TensorType { dtype, shape: Shape::new(&sizes) }, range))
    }

    fn value(&mut self, kind: AttrKind) -> Result<Attr, String> {
        Ok(match kind {
            AttrKind::Bool => {
                Attr::Bool(self.word().parse().map_err(|_| "expected true or false")?)
            }
            AttrKind::Int | AttrKind::OptInt | AttrKind::Size => Attr::Int(self.integer()?),
            AttrKind::Float | AttrKind::OptFloat | AttrKind::OptNumber => {
                Attr::Float(self.number()?)
            }
            AttrKind::DType | AttrKind::OptDType => Attr::DType(self.dtype()?),
            AttrKind::Ints | AttrKind::Sizes => {
                let mut list: Vec<i64> = Vec::new();
                self.expect("[")?;
                self.list("]", |r| r.integer().map(|v| list.push(v)))?;
                Attr::from(&list[..])
            }
            AttrKind::OptFloats => {
                let mut list: Vec<f64> = Vec::new();
                self.expect("[")?;
                self.list("]", |r| r.number().map(|v| list.push(v)))?;
                Attr::from(&list[..])
            }
            AttrKind::OptStr => {
                let inside = self.rest.strip_prefix('"').and_then(|r| r.split_once('"'));
                let (text, rest) = inside.ok_or("expected a text in quotes")?;
                self.rest = rest.trim_start();
                Attr::Str(Arc::from(text))
            }
            AttrKind::Kernel => return Err("kernels cannot be written".to_owned()),
        })
    }

    /// Items between commas up to `end`.
    fn list(
        &mut self,
        end: &str,
        mut item: impl FnMut(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        if self.accept(end) {
            return Ok(());
        }
        loop {
            item(self)?;
            if self.accept(end) {
                return Ok(());
            }
            self.expect(",")?;
        }
    }

    fn dtype(&mut self) -> Result<DType, String> {
        match self.word() {
            "T" => Ok(self.dtype),
            name => name.parse(),
        }
    }

    fn integer(&mut self) -> Result<i64, String> {
        self.word().parse().map_err(|_| "expected an integer".to_owned())
    }

    fn number(&mut self) -> Result<f64, String> {
        self.word().parse().map_err(|_| "expected a number".to_owned())
    }

    /// Letters, digits, and what else belongs to a number or a name.
    fn word(&mut self) -> &'a str {
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '+');
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        word
    }

    fn accept(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        if self.accept(token) { Ok(()) } else { Err(format!("expected `{token}`")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{elementwise, index, nn, source, view};

    #[test]
    fn every_part_of_the_notation() {
        let s = parse_sample(&view::CAT, "[T[2, 3], T[2, 1]] {dim = 1}", DType::F16).unwrap();
        assert_eq!(
            (s.groups.as_slice(), s.operands.len(), s.attrs.int("dim")),
            (&[2][..], 2, Some(1))
        );
        let s = parse_sample(&elementwise::ADD, "T[7], none {scalar = 3.0}", DType::I32).unwrap();
        assert_eq!((s.groups.as_slice(), s.attrs.float("scalar")), (&[1, 0][..], Some(3.0)));
        let s = parse_sample(
            &source::CONSTANT,
            "{dtype = T, shape = [3], data = [0.0, -1e3, inf]}",
            DType::F32,
        )
        .unwrap();
        assert_eq!(
            (s.attrs.dtype("dtype"), s.attrs.floats("data")),
            (Some(DType::F32), &[0.0, -1e3, f64::INFINITY][..])
        );
        let s =
            parse_sample(&index::GATHER, "T[5] > 0, i64[4] in 0 7 {dim = 0}", DType::F64).unwrap();
        assert_eq!((s.operands[0].1, s.operands[1].1), (Range::Positive, Range::Between(0.0, 7.0)));
        let s =
            parse_sample(&nn::activation::GELU, "T[] != 0 {approximate = \"tanh\"}", DType::BF16)
                .unwrap();
        assert_eq!(
            (s.operands[0].0.to_string(), s.operands[0].1),
            ("bf16[]".to_owned(), Range::NonZero)
        );
        assert_eq!(s.attrs.str("approximate"), Some("tanh"));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let fails = |text: &str| parse_sample(&elementwise::EXP, text, DType::F32).unwrap_err();
        assert!(fails("T[3] {a = 1}").contains("no attribute `a`"));
        assert!(fails("T[3], T[4]").contains("expected the end"));
        assert!(fails("q[3]").contains("unknown dtype"));
        assert!(fails("T[x]").contains("expected a size"));
        assert!(fails("").contains("sample \"\" of `exp`"));
    }
}
