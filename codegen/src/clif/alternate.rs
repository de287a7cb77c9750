//! Scalar phases that do nothing but put elements of two rows in memory in turn: vectors of 16
//! bytes.
//!
//! ```text
//! s0 = load x[r]; s1 = load y[r]; store z[2*r], s0; store z[2*r + 1], s1
//!   16 bits: x[r..r+8], y[r..r+8]  ->  x0 y0 x1 y1 x2 y2 x3 y3, x4 y4 x5 y5 x6 y6 x7 y7
//! ```

use super::emitter::{Emitter, MEMORY};
use super::row::Row;
use crate::plan::phases::Phase;
use crate::plan::{Place, Sink};
use cranelift::codegen::ir::{BlockArg, ConstantData};
use cranelift::prelude::{InstBuilder, IntCC, Value, types};
use std::collections::HashMap;
use tracecast_ir::kernel::{Access, ScalarOp, Val};

/// Bytes of a vector.
const VECTOR: usize = 16;

/// The stores of a phase in which rows alternate.
pub(super) struct Turns {
    /// Two whose elements lie next to each other.
    pairs: Vec<[usize; 2]>,
    /// Bytes of an element.
    bytes: usize,
}

impl Turns {
    /// Positions of a vector.
    pub(super) fn positions(&self) -> i64 {
        (VECTOR / self.bytes) as i64
    }

    /// Which bytes of two vectors make the lower or the upper half of their elements in turn.
    fn half(&self, upper: bool) -> ConstantData {
        let first = if upper { VECTOR / 2 } else { 0 };
        let byte = |n: usize| {
            let (element, within) = (n / self.bytes, n % self.bytes);
            (first + element / 2 * self.bytes + within + VECTOR * (element % 2)) as u8
        };
        let bytes: Vec<u8> = (0..VECTOR).map(byte).collect();
        ConstantData::from(&bytes[..])
    }
}

/// True for stores of elements that are two apart along the row, of which the second lies behind
/// the first.
fn follows(first: &Sink, second: &Sink) -> bool {
    let of = |sink: &Sink| match sink {
        Sink::Store { slot, dtype, place: place @ Place::At(access), .. }
            if place.row_stride() == 2 =>
        {
            Some((*slot, *dtype, access.clone()))
        }
        _ => None,
    };
    let (Some((slot, dtype, before)), Some(next)) = (of(first), of(second)) else { return false };
    next == (slot, dtype, Access { offset: before.offset + 1, ..before })
}

impl Row<'_> {
    /// The stores of a phase in pairs, if it only moves elements of rows to them, or puts down what
    /// is the same along the row.
    pub(super) fn alternating(&self, em: &Emitter<'_>, phase: &Phase) -> Option<Turns> {
        let moves = |v: &Val| match self.inst(*v).op {
            ScalarOp::Load(l) => {
                let source = &em.plan.loads[l as usize];
                let is_row = source.place.row_stride() == 1 && self.inst(*v).args.is_empty();
                self.cut.moved[*v as usize] && is_row && source.read_only
            }
            _ => false,
        };
        let sinks = &self.stage.sinks;
        let second = |first: &usize| {
            let mut all = phase.sinks.iter();
            all.find(|second| follows(&sinks[*first], &sinks[**second])).map(|s| [*first, *s])
        };
        let pairs: Vec<[usize; 2]> = phase.sinks.iter().filter_map(second).collect();
        let lie = |i: &usize| {
            let value = sinks[*i].values().last().copied();
            self.bits.contains_key(i) || value.is_some_and(|v| self.cut.moved[v as usize])
        };
        let all = 2 * pairs.len() == phase.sinks.len() && phase.sinks.iter().all(lie);
        let bytes = self.targets[&pairs.first()?[0]].dtype().bytes();
        let alike = pairs.iter().all(|[i, _]| self.targets[i].dtype().bytes() == bytes);
        let turns = Turns { pairs, bytes };
        let long = em.plan.may_reach(turns.positions());
        (long && all && alike && phase.insts.iter().all(moves)).then_some(turns)
    }

    /// A loop over vectors of positions, of which there is at least one.
    pub(super) fn alternate(
        &self,
        em: &mut Emitter<'_>,
        phase: &Phase,
        turns: &Turns,
        (low, high): (Value, Value),
    ) {
        let masks = [false, true].map(|upper| em.fb.func.dfg.immediates.push(turns.half(upper)));
        let mut same = HashMap::new();
        for i in turns.pairs.iter().flatten() {
            if let Some(bits) = self.bits.get(i) {
                let vector = em.repeated(*bits)[0];
                same.insert(*i, em.bitcast(types::I8X16, vector));
            }
        }
        let (head, exit) = (em.fb.create_block(), em.fb.create_block());
        let position = em.fb.append_block_param(head, types::I64);
        em.fb.ins().jump(head, &[BlockArg::from(low)]);
        em.fb.switch_to_block(head);
        let mut loaded = HashMap::new();
        for v in &phase.insts {
            let address = em.address(&self.bases[v], Some(position), &[]);
            loaded.insert(*v, em.fb.ins().load(types::I8X16, MEMORY, address, 0));
        }
        let vector = |i: usize| match same.get(&i) {
            Some(vector) => *vector,
            None => loaded[&self.stage.sinks[i].values()[0]],
        };
        for [first, second] in &turns.pairs {
            let address = em.address(&self.targets[first], Some(position), &[]);
            for (mask, at) in masks.into_iter().zip([0, VECTOR as i32]) {
                let both = em.fb.ins().shuffle(vector(*first), vector(*second), mask);
                em.fb.ins().store(MEMORY, both, address, at);
            }
        }
        let next = em.fb.ins().iadd_imm_s(position, turns.positions());
        let more = em.fb.ins().icmp(IntCC::SignedLessThan, next, high);
        em.fb.ins().brif(more, head, &[BlockArg::from(next)], exit, &[] as &[BlockArg]);
        em.fb.switch_to_block(exit);
    }
}
