//! What the rules of an op see: its type rule, gradient, expansion and scalar code.

use super::OpName;
use crate::graph::Groups;
use crate::kernel::{Body as Code, Check, Scalar, ScalarOp, Val, argument_bits};
use crate::{Attrs, DType, Must, Number, Shape, Size, Source, TensorType, Tracer, Var};
use smallvec::SmallVec;
use std::iter;

/// What a type rule sees.
pub struct InferCx<'a> {
    /// The flat operands' types.
    pub types: &'a [TensorType],
    /// Their split among the schema's operands.
    pub groups: &'a Groups,
    /// The attributes.
    pub attrs: &'a Attrs,
    /// Answers what the rule must know of sizes.
    pub must: &'a Must<'a>,
}

impl<'a> InferCx<'a> {
    /// The flat operands of schema operand `i`.
    pub fn list(&self, i: usize) -> &'a [TensorType] {
        let start: usize = self.groups[..i].iter().map(|&n| usize::from(n)).sum();
        &self.types[start..start + usize::from(self.groups[i])]
    }

    /// Schema operand `i`, if present.
    pub fn get(&self, i: usize) -> Option<&'a TensorType> {
        self.list(i).first()
    }

    /// Schema operand `i`, which is not optional.
    pub fn operand(&self, i: usize) -> &'a TensorType {
        &self.list(i)[0]
    }
}

/// What a type rule answers.
#[derive(Clone, Debug, Default)]
pub struct Inferred {
    /// The types of the results.
    pub results: SmallVec<[TensorType; 1]>,
    /// For each flat operand, the dtype it must be cast to first (promotion). Empty: none.
    pub casts: SmallVec<[Option<DType>; 4]>,
    /// For each flat operand, the shape it must be expanded to first. Empty: none.
    pub shapes: Vec<Option<Shape>>,
}

impl Inferred {
    /// One result, operands as they are.
    pub fn one(ty: TensorType) -> Self {
        Inferred { results: SmallVec::from_elem(ty, 1), ..Inferred::default() }
    }

    /// Several results, operands as they are.
    pub fn many(types: impl IntoIterator<Item = TensorType>) -> Self {
        Inferred { results: types.into_iter().collect(), ..Inferred::default() }
    }

    /// True if operands can be taken as they are.
    pub fn is_explicit(&self) -> bool {
        self.casts.iter().all(Option::is_none) && self.shapes.iter().all(Option::is_none)
    }
}

/// What a gradient rule sees.
pub struct GradCx<'a, 't> {
    /// Records the rule's ops.
    pub tracer: &'t Tracer,
    /// The flat operands.
    pub args: &'a [Var<'t>],
    /// Their split among the schema's operands.
    pub groups: &'a Groups,
    /// The results.
    pub outs: &'a [Var<'t>],
    /// The gradients of the results; `None` is zero, and at least one is not.
    pub dys: &'a [Option<Var<'t>>],
    /// The attributes.
    pub attrs: &'a Attrs,
}

impl<'t> GradCx<'_, 't> {
    /// The gradient of the first result, zeros if none flows.
    pub fn dy(&self) -> Var<'t> {
        self.dys[0].unwrap_or_else(|| self.tracer.zeros_like(self.outs[0]))
    }

    /// The first result.
    pub fn out(&self) -> Var<'t> {
        self.outs[0]
    }

    /// Schema operand `i`, if present.
    pub fn get(&self, i: usize) -> Option<Var<'t>> {
        operand_at(self.args, self.groups, i)
    }
}

/// What an expansion sees.
pub struct ExpandCx<'a, 't> {
    /// Records the parts.
    pub tracer: &'t Tracer,
    /// The flat operands, widened to f32 if the composite computes inside f32.
    pub args: &'a [Var<'t>],
    /// Their split among the schema's operands.
    pub groups: &'a Groups,
    /// The attributes.
    pub attrs: &'a Attrs,
    /// The types the results will have.
    pub results: &'a [TensorType],
}

impl<'t> ExpandCx<'_, 't> {
    /// Schema operand `i`, if present.
    pub fn get(&self, i: usize) -> Option<Var<'t>> {
        operand_at(self.args, self.groups, i)
    }
}

fn operand_at<'t>(args: &[Var<'t>], groups: &Groups, i: usize) -> Option<Var<'t>> {
    let start: usize = groups[..i].iter().map(|&n| usize::from(n)).sum();
    (groups[i] > 0).then(|| args[start])
}

/// What an elementwise rule sees while its scalar code is put together.
pub struct MapCx<'a> {
    /// The code so far; append to it.
    pub body: &'a mut Code,
    /// The attributes.
    pub attrs: &'a Attrs,
    /// The type of the result.
    pub result: &'a TensorType,
    /// The dtypes of the operands.
    pub operands: &'a [DType],
    /// The op and source line for checks.
    pub origin: (OpName, Source),
    /// The checks of the kernel so far.
    pub checks: &'a mut Vec<Check>,
    /// The arguments of the kernel so far.
    pub arguments: &'a mut Vec<Number>,
    /// For each axis of the result, the position as (offset, strides over the kernel's axes,
    /// run-time index if any).
    pub position: &'a [Position],
    /// The row-major number of the element, where the positions along the axes are not known:
    /// behind a reshape that merges them.
    pub number: Option<&'a Position>,
}

/// A position along one axis of a tensor, as a function of the kernel's loop positions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Position {
    /// Added to the sum.
    pub offset: Size,
    /// One per axis of the kernel.
    pub strides: SmallVec<[Size; 4]>,
    /// An i64 of the body to add.
    pub index: Option<Val>,
}

impl MapCx<'_> {
    /// The scalar type of the result.
    pub fn scalar(&self) -> Scalar {
        Scalar::of(self.result.dtype).expect("kernels are built for computable dtypes")
    }

    /// A number of the result's scalar type.
    pub fn constant(&mut self, v: f64) -> Val {
        let ty = self.scalar();
        self.body.constant(ty, v)
    }

    /// A number of that scalar type: a constant, or an argument of the kernel if it depends on
    /// names.
    pub fn number_of(&mut self, ty: Scalar, number: Number) -> Val {
        if let Some(bits) = argument_bits(number, ty) {
            return self.body.push(ScalarOp::Const(bits), &[], ty);
        }
        let known = self.arguments.iter().position(|known| *known == number);
        let at = known.unwrap_or_else(|| {
            self.arguments.push(number);
            self.arguments.len() - 1
        });
        self.body.push(ScalarOp::Argument(at as u32), &[], ty)
    }

    /// A size as an i64.
    pub fn size(&mut self, size: Size) -> Val {
        self.number_of(Scalar::I64, Number::Size(size))
    }

    /// The position along an axis of the result, as i64.
    pub fn position(&mut self, axis: usize) -> Val {
        let p = self.position[axis].clone();
        self.position_value(&p)
    }

    fn position_value(&mut self, p: &Position) -> Val {
        let mut sum = p.index;
        for (axis, &stride) in p.strides.iter().enumerate().filter(|(_, s)| **s != 0) {
            let mut term = self.body.push(ScalarOp::Index(axis as u32), &[], Scalar::I64);
            if stride != 1 {
                let by = self.size(stride);
                term = self.body.binary(ScalarOp::Mul, term, by);
            }
            sum = Some(sum.map_or(term, |s| self.body.binary(ScalarOp::Add, s, term)));
        }
        match sum {
            Some(s) if p.offset == 0 => s,
            sum => {
                let c = self.size(p.offset);
                sum.map_or(c, |s| self.body.binary(ScalarOp::Add, s, c))
            }
        }
    }

    /// The row-major number of the result's element, as i64.
    pub fn element(&mut self) -> Val {
        if let Some(number) = self.number {
            return self.position_value(&number.clone());
        }
        let strides = self.result.shape.strides();
        let mut total = Position { strides: SmallVec::new(), ..Position::default() };
        let mut dynamic: Option<Val> = None;
        for (p, &scale) in self.position.to_vec().iter().zip(strides.iter()) {
            total.offset += p.offset * scale;
            if total.strides.len() < p.strides.len() {
                total.strides.resize(p.strides.len(), Size::from(0));
            }
            for (t, s) in total.strides.iter_mut().zip(&p.strides) {
                *t += *s * scale;
            }
            if let Some(index) = p.index {
                let by = self.size(scale);
                let term = self.body.binary(ScalarOp::Mul, index, by);
                dynamic = Some(dynamic.map_or(term, |d| self.body.binary(ScalarOp::Add, d, term)));
            }
        }
        total.index = dynamic;
        self.position_value(&total)
    }

    /// Raises a data error unless `condition` holds, which is about the i64 `found` if there is
    /// one.
    pub fn check(&mut self, condition: Val, found: Option<Val>, message: impl Into<String>) -> Val {
        self.check_within(condition, found, message, None)
    }

    /// As [`check`](MapCx::check), of something that has to lie within a range whose ends may
    /// depend on names.
    pub fn check_within(
        &mut self,
        condition: Val,
        found: Option<Val>,
        message: impl Into<String>,
        range: Option<[Size; 2]>,
    ) -> Val {
        let check = Check {
            message: message.into(),
            range,
            op: self.origin.0.to_string(),
            source: self.origin.1.to_string(),
        };
        let number = self.checks.iter().position(|c| *c == check).unwrap_or_else(|| {
            self.checks.push(check);
            self.checks.len() - 1
        });
        let args: SmallVec<[Val; 2]> = iter::once(condition).chain(found).collect();
        self.body.push(ScalarOp::Check(number as u32), &args, Scalar::Bool)
    }
}
