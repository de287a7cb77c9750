//! Random numbers of a part of a batch: each rank of a parallel run draws for its rows what a run
//! with all rows draws for them.

use super::Tracer;
use crate::args::Args;
use crate::op::{Intrinsic, OpDef};
use crate::ops::elementwise::Elementwise;
use crate::ops::view::cat;
use crate::{Attrs, DType, Must, Shape, TensorType, ValueId, Var};
use std::collections::VecDeque;

/// What becomes of the ops that draw random numbers.
#[derive(Default)]
pub(crate) enum Draws {
    /// They are recorded as they are.
    #[default]
    Own,
    /// And the shapes that they draw are noted.
    Noted(Vec<Shape>),
    /// They draw what a part of a whole batch draws.
    Parts(Parts),
}

/// The part of a batch that a trace is for.
pub(crate) struct Parts {
    /// How many rows it has.
    rows: usize,
    /// How many rows the whole has.
    of: usize,
    /// The number of its first row: i64 without axes.
    first: ValueId,
    /// What the ops draw in a trace of the whole batch, in their order.
    whole: VecDeque<Shape>,
}

impl Tracer {
    /// Notes from now on what ops draw at random, for [`draw_parts`](Tracer::draw_parts).
    pub fn note_draws(&self) {
        *self.draws.borrow_mut() = Draws::Noted(Vec::new());
    }

    /// The shapes that ops have drawn at random since [`note_draws`](Tracer::note_draws), in their
    /// order.
    pub fn noted_draws(&self) -> Vec<Shape> {
        match std::mem::take(&mut *self.draws.borrow_mut()) {
            Draws::Noted(shapes) => shapes,
            Draws::Own | Draws::Parts(_) => Vec::new(),
        }
    }

    /// Has ops that draw at random draw from now on what a trace of a whole batch draws for these
    /// rows of it: `rows` of the `of` that there are, of which `first`, an i64 without axes, is the
    /// number of the first one. `whole` are the [shapes](Tracer::noted_draws) that the same code
    /// draws for the whole batch.
    ///
    /// What has the same shape there is the same for all parts. Of everything else one axis is
    /// longer there in proportion to the rows, and rows follow one another along it.
    pub fn draw_parts(&self, rows: usize, of: usize, first: Var<'_>, whole: Vec<Shape>) {
        let parts = Parts { rows, of, first: first.id(), whole: whole.into() };
        *self.draws.borrow_mut() = Draws::Parts(parts);
    }

    /// The shape of what an op draws at random, if it does, and which of the operands that are
    /// given tells what.
    fn drawn(&self, def: &OpDef, args: &Args<'_>, attrs: &Attrs) -> Option<(Shape, usize)> {
        let at = def.schema.operands.iter().position(|operand| operand.name == "rng")?;
        if args.groups.get(at) != Some(&1) {
            return None;
        }
        let rng = args.groups[..at].iter().map(|count| usize::from(*count)).sum();
        match def.facts.draws {
            Some(shape) => {
                let types: Vec<TensorType> = args.vars.iter().map(|x| x.ty()).collect();
                self.with_graph(|graph| shape(&Must::proven(graph.sizes()), attrs, &types))
            }
            None if def.facts.intrinsic == Some(Intrinsic::Random) => Some(args.vars[0].shape()),
            None => None,
        }
        .map(|shape| (shape, rng))
    }

    /// Notes what an op draws, or has it draw a part.
    pub(super) fn divide_draw<'t>(
        &'t self,
        def: &OpDef,
        args: &mut Args<'t>,
        attrs: &Attrs,
    ) -> Result<(), String> {
        if matches!(*self.draws.borrow(), Draws::Own) {
            return Ok(());
        }
        let Some((own, at)) = self.drawn(def, args, attrs) else { return Ok(()) };
        let rng = args.vars[at];
        let (rows, of, first, whole) = match &mut *self.draws.borrow_mut() {
            Draws::Own => return Ok(()),
            Draws::Noted(shapes) => {
                shapes.push(own);
                return Ok(());
            }
            Draws::Parts(Parts { rows, of, first, whole }) => {
                (*rows, *of, *first, whole.pop_front())
            }
        };
        let whole = whole.ok_or("draws more often for a part of the batch than for all of it")?;
        if own == whole || rng.ty() != TensorType::new(DType::I64, [2]) {
            return Ok(());
        }
        let cannot = || {
            format!(
                "draws {own} for a part of the batch and {whole} for all of it: expected one axis that has rows one after another"
            )
        };
        let (own, all) = (own.numbers(), whole.numbers());
        let differ: Vec<usize> =
            (0..own.len().min(all.len())).filter(|axis| own[*axis] != all[*axis]).collect();
        let [axis] = differ[..] else { return Err(cannot()) };
        let is_in_proportion = own[axis].checked_mul(of) == all[axis].checked_mul(rows);
        if own.len() != all.len() || rows == 0 || own[axis] % rows != 0 || !is_in_proportion {
            return Err(cannot());
        }
        let strides: Vec<usize> = (0..all.len()).map(|i| all[i + 1..].iter().product()).collect();
        let of_row = own[axis] / rows * strides[axis];
        args.vars[at] = self.at_caller(|| {
            let element =
                self.var(first).mul(of_row as f64).reshape_to(&Shape::from_iter([1usize]));
            let strides: Vec<f64> = strides.iter().map(|stride| *stride as f64).collect();
            let strides = self.constant(DType::I64, &[strides.len()], &strides);
            cat(&[rng, element, strides], 0)
        });
        Ok(())
    }
}
