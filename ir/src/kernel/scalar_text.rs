//! [`ScalarText`]: scalar code and elements of buffers as text, for every kind of loop that holds
//! scalar code.
//!
//! ```text
//! s3 = load bf16 in0[10*i0 - r + 4*s0 + 9] if 0 <= r - 1 < 5 else 0.5 : f32
//! s4 = max s3, s0 : f32
//! ```
//!
//! What the numbers of loads and positions stand for, the loops say ([`Loops`]); sinks are theirs
//! as well.

use crate::kernel::{Access, Body, Guard, Inst, Scalar, ScalarOp, Val};
use crate::{DType, Size};
use std::fmt::{self, Display, Formatter, Write};

/// Writes items with `, ` between them.
pub(crate) fn commas<T>(
    f: &mut Formatter<'_>,
    items: impl IntoIterator<Item = T>,
    mut each: impl FnMut(&mut Formatter<'_>, T) -> fmt::Result,
) -> fmt::Result {
    for (i, item) in items.into_iter().enumerate() {
        if i > 0 {
            f.write_str(", ")?;
        }
        each(f, item)?;
    }
    Ok(())
}

/// What scalar code leaves to the loops around it.
pub trait Loops {
    /// Writes the operand and the element that a load of that number reads.
    ///
    /// # Errors
    /// Those of the formatter.
    fn load(&self, f: &mut Formatter<'_>, number: u32, inst: &Inst) -> fmt::Result;

    /// Writes the position of that number.
    ///
    /// # Errors
    /// Those of the formatter.
    fn index(&self, f: &mut Formatter<'_>, number: u32) -> fmt::Result;
}

/// How scalar code writes axes and values.
#[derive(Clone, Copy, Debug)]
pub struct ScalarText<'a> {
    /// The names of the axes; the row is `r`.
    pub axes: &'a [String],
    /// What stands in front of the number of a value: `s`, or another letter where a kernel has
    /// several bodies.
    pub letter: char,
    /// True if the code runs at every position of the row.
    pub row: bool,
}

impl ScalarText<'_> {
    /// Writes one instruction a line.
    ///
    /// # Errors
    /// Those of the formatter.
    pub fn body(&self, f: &mut Formatter<'_>, body: &Body, loops: &dyn Loops) -> fmt::Result {
        for (value, inst) in body.insts.iter().enumerate() {
            write!(f, "    {}{value} = ", self.letter)?;
            self.inst(f, inst, loops)?;
            writeln!(f, " : {}", inst.ty.name())?;
        }
        Ok(())
    }

    fn inst(&self, f: &mut Formatter<'_>, inst: &Inst, loops: &dyn Loops) -> fmt::Result {
        let at = if self.row { "[r]" } else { "" };
        let name = match inst.op {
            ScalarOp::Const(bits) => return write!(f, "const {}", Literal(inst.ty, bits)),
            ScalarOp::Load(number) => {
                f.write_str("load ")?;
                return loops.load(f, number, inst);
            }
            ScalarOp::Index(number) => {
                f.write_str("index ")?;
                return loops.index(f, number);
            }
            ScalarOp::Row(buffer) => return write!(f, "w{buffer}{at}"),
            ScalarOp::Register(register) => return write!(f, "g{register}"),
            op => op.name(),
        };
        f.write_str(name)?;
        match inst.op {
            ScalarOp::Round(to) => write!(f, " {to}")?,
            ScalarOp::Random { stream } => write!(f, " {stream}")?,
            ScalarOp::Check(check) => write!(f, " {check}")?,
            ScalarOp::Argument(argument) => write!(f, " {argument}")?,
            _ => {}
        }
        if !inst.args.is_empty() {
            f.write_char(' ')?;
        }
        commas(f, &inst.args, |f, arg| write!(f, "{}{arg}", self.letter))
    }

    /// Writes an element and its guards: `[10*i0 + r + 4*s2] if 0 <= r - 1 < 5 else 0.0`. Indices
    /// computed at run time are the values `index`; where a guard fails stands a number of type
    /// `fill`.
    ///
    /// # Errors
    /// Those of the formatter.
    pub fn access<N: Copy + Into<Size>>(
        &self,
        f: &mut Formatter<'_>,
        access: &Access<N>,
        index: &[Val],
        fill: Scalar,
    ) -> fmt::Result {
        f.write_char('[')?;
        let mut sum = Sum::default();
        self.strides(f, &mut sum, &access.strides)?;
        for (i, stride) in access.indirect.iter().enumerate() {
            match index.get(i) {
                Some(value) => {
                    sum.term(f, (*stride).into(), &format!("{}{value}", self.letter))?;
                }
                None => sum.term(f, (*stride).into(), "?")?,
            }
        }
        sum.end(f, access.offset.into())?;
        f.write_char(']')?;
        for (i, guard) in access.guards.iter().enumerate() {
            let Guard { offset, strides, extent } = guard;
            f.write_str(if i == 0 { " if 0 <= " } else { " and 0 <= " })?;
            self.affine(f, strides, *offset)?;
            let extent: Size = (*extent).into();
            write!(f, " < {extent}")?;
        }
        if access.guards.is_empty() {
            Ok(())
        } else {
            write!(f, " else {}", Literal(fill, access.fill))
        }
    }

    /// Writes `offset + Σ strides[axis] * axis` with its offset last: `10*i0 + r + 9`.
    ///
    /// # Errors
    /// Those of the formatter.
    pub fn affine<N: Copy + Into<Size>>(
        &self,
        f: &mut Formatter<'_>,
        strides: &[N],
        offset: N,
    ) -> fmt::Result {
        let mut sum = Sum::default();
        self.strides(f, &mut sum, strides)?;
        sum.end(f, offset.into())
    }

    /// Writes the dtype of an element in memory and a blank, unless the scalar is called the same.
    ///
    /// # Errors
    /// Those of the formatter.
    pub fn dtype(&self, f: &mut Formatter<'_>, memory: DType, scalar: Scalar) -> fmt::Result {
        if memory.name() == scalar.name() { Ok(()) } else { write!(f, "{memory} ") }
    }

    /// The name of an axis.
    pub fn axis(&self, axis: usize) -> &str {
        self.axes.get(axis).map_or("?", String::as_str)
    }

    fn strides<N: Copy + Into<Size>>(
        &self,
        f: &mut Formatter<'_>,
        sum: &mut Sum,
        strides: &[N],
    ) -> fmt::Result {
        strides
            .iter()
            .enumerate()
            .try_for_each(|(axis, stride)| sum.term(f, (*stride).into(), self.axis(axis)))
    }
}

/// A sum on its way to the text.
#[derive(Default)]
struct Sum {
    begun: bool,
}

impl Sum {
    /// Names as they are, in brackets where they are a sum: `(2*batch + 1)*i0`.
    fn term(&mut self, f: &mut Formatter<'_>, factor: Size, what: &str) -> fmt::Result {
        let Some(number) = factor.number() else {
            self.sign(f, 1)?;
            let factor = factor.to_string();
            let is_product = !factor.contains(' ') && !factor.starts_with('-');
            return match is_product {
                true => write!(f, "{factor}*{what}"),
                false => write!(f, "({factor})*{what}"),
            };
        };
        if number == 0 {
            return Ok(());
        }
        self.sign(f, number)?;
        match number.unsigned_abs() {
            1 => f.write_str(what),
            n => write!(f, "{n}*{what}"),
        }
    }

    fn end(&mut self, f: &mut Formatter<'_>, offset: Size) -> fmt::Result {
        if offset == 0 && self.begun {
            return Ok(());
        }
        match offset.number() {
            Some(number) => {
                self.sign(f, number)?;
                write!(f, "{}", number.unsigned_abs())
            }
            None => {
                self.sign(f, 1)?;
                write!(f, "{offset}")
            }
        }
    }

    fn sign(&mut self, f: &mut Formatter<'_>, number: i64) -> fmt::Result {
        let begun = std::mem::replace(&mut self.begun, true);
        f.write_str(match (begun, number < 0) {
            (true, true) => " - ",
            (true, false) => " + ",
            (false, true) => "-",
            (false, false) => "",
        })
    }
}

/// A number by its bits.
struct Literal(Scalar, u64);

impl Display for Literal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Literal(ty, bits) = *self;
        match ty {
            Scalar::F32 => show_float(f, f32::from_bits(bits as u32)),
            Scalar::F64 => show_float(f, f64::from_bits(bits)),
            Scalar::I32 => write!(f, "{}", bits as u32 as i32),
            Scalar::I64 => write!(f, "{}", bits as i64),
            Scalar::Bool => write!(f, "{}", bits != 0),
        }
    }
}

/// The shortest text that reads back as the same number of its width; `nan` for every NaN.
fn show_float(f: &mut Formatter<'_>, v: impl fmt::Debug + Copy) -> fmt::Result {
    let text = format!("{v:?}");
    f.write_str(if text.eq_ignore_ascii_case("nan") { "nan" } else { &text })
}
