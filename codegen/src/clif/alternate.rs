//! Scalar phases that do nothing but put 16-bit elements of two rows in memory in turn: vectors of eight.
//!
//! ```text
//! s0 = load x[r]; s1 = load y[r]; store z[2*r], s0; store z[2*r + 1], s1
//!   x[r..r+8], y[r..r+8]  ->  x0 y0 x1 y1 x2 y2 x3 y3, x4 y4 x5 y5 x6 y6 x7 y7
//! ```

use super::row::Row;
use super::{Emitter, MEMORY};
use crate::plan::phases::Phase;
use crate::plan::{Place, Sink};
use cranelift::codegen::ir::{BlockArg, ConstantData};
use cranelift::prelude::{InstBuilder, IntCC, Value, types};
use std::collections::HashMap;
use tracecast_ir::kernel::{Access, ScalarOp, Val};

/// Positions of a vector.
pub(super) const POSITIONS: i64 = 8;

/// Which bytes of two vectors make the one that begins with the elements of that number.
fn in_turn(first: u8) -> ConstantData {
    let element = |n: u8| first + n / 2 + if n % 2 == 0 { 0 } else { POSITIONS as u8 };
    let bytes: Vec<u8> = (0..8).flat_map(|n| [2 * element(n), 2 * element(n) + 1]).collect();
    ConstantData::from(&bytes[..])
}

/// True for stores of 16-bit elements, two apart along the row, of which the second lies behind the first.
fn follows(first: &Sink, second: &Sink) -> bool {
    let of = |sink: &Sink| match sink {
        Sink::Store { slot, dtype, place: place @ Place::At(access), .. }
            if dtype.bytes() == 2 && place.row_stride() == 2 =>
        {
            Some((*slot, *dtype, access.clone()))
        }
        _ => None,
    };
    let (Some((slot, dtype, before)), Some(next)) = (of(first), of(second)) else { return false };
    next == (slot, dtype, Access { offset: before.offset + 1, ..before })
}

impl Row<'_> {
    /// The stores of a phase in pairs, if it only moves elements of rows to them, or puts down what is the same along the row.
    pub(super) fn alternating(&self, em: &Emitter<'_>, phase: &Phase) -> Option<Vec<[usize; 2]>> {
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
        let long = em.plan.may_reach(POSITIONS);
        (long && all && phase.insts.iter().all(moves)).then_some(pairs)
    }

    /// A loop over groups of eight positions, of which there is at least one.
    pub(super) fn alternate(
        &self,
        em: &mut Emitter<'_>,
        phase: &Phase,
        pairs: &[[usize; 2]],
        (low, high): (Value, Value),
    ) {
        let masks =
            [0, POSITIONS as u8 / 2].map(|first| em.fb.func.dfg.immediates.push(in_turn(first)));
        let mut same = HashMap::new();
        for i in pairs.iter().flatten() {
            if let Some(bits) = self.bits.get(i) {
                let vector = em.fb.ins().splat(types::I16X8, *bits);
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
        for [first, second] in pairs {
            let address = em.address(&self.targets[first], Some(position), &[]);
            for (mask, at) in masks.into_iter().zip([0, 16]) {
                let both = em.fb.ins().shuffle(vector(*first), vector(*second), mask);
                em.fb.ins().store(MEMORY, both, address, at);
            }
        }
        let next = em.fb.ins().iadd_imm_s(position, POSITIONS);
        let more = em.fb.ins().icmp(IntCC::SignedLessThan, next, high);
        em.fb.ins().brif(more, head, &[BlockArg::from(next)], exit, &[] as &[BlockArg]);
        em.fb.switch_to_block(exit);
    }
}
