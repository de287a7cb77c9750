//! Accumulators of reductions along a row.
//!
//! The lanes of a sum or maximum live in scratch between loops; a vector loop carries them in four
//! registers or eight, a loop over single positions works on them in place.

use super::emitter::{Emitter, MEMORY, scalar_type, vector_type};
use super::memory::Group;
use crate::plan::phases::{Lanes, scratch_bytes};
use cranelift::codegen::ir::BlockArg;
use cranelift::prelude::{Block, FloatCC, InstBuilder, IntCC, Value, types};
use tracecast_ir::kernel::{Combine, Extreme, LANES, Reduction, Scalar};

/// A reduction of a stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reduce {
    /// How.
    pub(super) reduction: Reduction,
    /// The type of what is reduced.
    pub(super) ty: Scalar,
    /// The register it ends in.
    pub(super) register: usize,
    /// Its accumulators in the scratch.
    pub(super) at: i32,
}

impl Reduce {
    /// True if it ends in a position.
    pub(super) fn is_position(&self) -> bool {
        self.reduction.is_position()
    }
}

impl Emitter<'_> {
    /// The value that changes nothing.
    pub(super) fn identity(&mut self, r: &Reduce) -> Value {
        self.number(r.ty, r.reduction.identity(r.ty), false)
    }

    /// Puts the identity into all lanes, but for accumulators that have begun elsewhere.
    pub(super) fn start_lanes(&mut self, reductions: &[Reduce], begun: &[i32]) {
        let lanes = self.plan.lanes();
        for r in reductions.iter().filter(|r| !begun.contains(&r.at)) {
            let bits = r.reduction.identity(r.ty);
            if Lanes::Bits32.hold(r.ty) {
                let v = self.number(r.ty, bits, true);
                self.store_vectors(&vec![v; lanes / 4], self.scratch, r.at);
            } else {
                let v = self.number(r.ty, bits, false);
                for lane in 0..lanes as i32 {
                    self.fb.ins().store(MEMORY, v, self.scratch, r.at + 8 * lane);
                }
            }
        }
    }

    /// The registers of all lanes in use, sixteen lanes at a time.
    pub(super) fn load_lanes(&mut self, r: &Reduce) -> Vec<Group> {
        let sixteen = |at: i32| r.at + 4 * at;
        (0..self.plan.lanes() as i32)
            .step_by(16)
            .map(|at| self.vectors(vector_type(r.ty), self.scratch, sixteen(at)))
            .collect()
    }

    /// Parameters of a block for all lanes in use.
    pub(super) fn lane_params(&mut self, block: Block, r: &Reduce) -> Vec<Group> {
        let ty = vector_type(r.ty);
        (0..self.plan.lanes() / 16)
            .map(|_| (0..4).map(|_| self.fb.append_block_param(block, ty)).collect())
            .collect()
    }

    /// Stores all lanes in use after a loop over groups, those first that the sixteen positions
    /// from `next` on would go to.
    pub(super) fn store_lanes(&mut self, r: &Reduce, lanes: &[Value], next: Value) {
        let (first, others) = lanes.split_at(4);
        if others.is_empty() {
            self.store_vectors(first, self.scratch, r.at);
            return;
        }
        let odd = self.fb.ins().band_imm_u(next, 16);
        let near = self.scaled(odd, 4);
        let far = self.fb.ins().bxor_imm_u(near, 64);
        for (lanes, offset) in [(first, near), (others, far)] {
            let at = self.fb.ins().iadd(self.scratch, offset);
            self.store_vectors(lanes, at, r.at);
        }
    }

    /// Takes a single position into its lane.
    pub(super) fn reduce_one(&mut self, r: &Reduce, position: Value, value: Value) {
        if let Combine::Position(extreme) = r.reduction.combines() {
            self.position_one(r, extreme, position, value);
            return;
        }
        let lane = self.fb.ins().band_imm_u(position, LANES as i64 - 1);
        let lane = self.scaled(lane, i64::from(scratch_bytes(r.ty)));
        let at = self.fb.ins().iadd(self.scratch, lane);
        let before = self.fb.ins().load(scalar_type(r.ty), MEMORY, at, r.at);
        let after = self.combine(r.reduction, r.ty, false, before, value);
        self.fb.ins().store(MEMORY, after, at, r.at);
    }

    /// Combines the lanes of every reduction: those of a short row in order, others as halves,
    /// quarters, pairs.
    pub(super) fn combine_lanes(&mut self, reductions: &[Reduce]) -> Vec<Value> {
        let mut results = Vec::new();
        for r in reductions {
            if self.plan.is_short() {
                results.push(self.combine_in_order(r));
                continue;
            }
            let mut lanes: Vec<Value> = if Lanes::Bits32.hold(r.ty) {
                let v = self
                    .load_lanes(r)
                    .into_iter()
                    .reduce(|a, b| {
                        let both = a.into_iter().zip(b);
                        both.map(|(a, b)| self.combine(r.reduction, r.ty, true, a, b)).collect()
                    })
                    .unwrap_or_default();
                let low = self.combine(r.reduction, r.ty, true, v[0], v[2]);
                let high = self.combine(r.reduction, r.ty, true, v[1], v[3]);
                let all = self.combine(r.reduction, r.ty, true, low, high);
                (0..4u8).map(|l| self.fb.ins().extractlane(all, l)).collect()
            } else {
                let ty = scalar_type(r.ty);
                (0..self.plan.lanes() as i32)
                    .map(|l| self.fb.ins().load(ty, MEMORY, self.scratch, r.at + 8 * l))
                    .collect()
            };
            while lanes.len() > 1 {
                let upper = lanes.split_off(lanes.len() / 2);
                lanes = lanes
                    .into_iter()
                    .zip(upper)
                    .map(|(a, b)| self.combine(r.reduction, r.ty, false, a, b))
                    .collect();
            }
            results.push(lanes[0]);
        }
        results
    }

    /// Combines a lane for each position of a short row.
    fn combine_in_order(&mut self, r: &Reduce) -> Value {
        let (ty, bytes) = (scalar_type(r.ty), scratch_bytes(r.ty));
        let positions = self.plan.row_at_most().unwrap_or(0) as i32;
        let mut all = self.fb.ins().load(ty, MEMORY, self.scratch, r.at);
        for lane in 1..positions {
            let next = self.fb.ins().load(ty, MEMORY, self.scratch, r.at + bytes * lane);
            all = self.combine(r.reduction, r.ty, false, all, next);
        }
        all
    }

    pub(super) fn set_registers(&mut self, reductions: &[Reduce], values: &[Value]) {
        for (r, value) in reductions.iter().zip(values) {
            self.state_mut().registers.insert(r.register, *value);
        }
    }

    /// The registers of reductions to positions take these.
    pub(super) fn set_positions(&mut self, reductions: &[Reduce]) {
        for r in reductions {
            let index = self.fb.ins().load(types::I64, MEMORY, self.scratch, r.at + 8);
            self.state_mut().registers.insert(r.register, index);
        }
    }

    /// The best so far is what any other number beats, at position 0.
    pub(super) fn start_positions(&mut self, reductions: &[Reduce]) {
        for r in reductions {
            let worst = self.identity(r);
            self.fb.ins().store(MEMORY, worst, self.scratch, r.at);
            let zero = self.fb.ins().iconst(types::I64, 0);
            self.fb.ins().store(MEMORY, zero, self.scratch, r.at + 8);
        }
    }

    /// Takes a single position if its value beats the best so far.
    fn position_one(&mut self, r: &Reduce, extreme: Extreme, position: Value, value: Value) {
        let best = self.fb.ins().load(scalar_type(r.ty), MEMORY, self.scratch, r.at);
        let (low, high) = match extreme {
            Extreme::Largest => (best, value),
            Extreme::Smallest => (value, best),
        };
        let better = match r.ty {
            Scalar::F32 | Scalar::F64 => {
                let beyond = self.fb.ins().fcmp(FloatCC::LessThan, low, high);
                let nan = self.fb.ins().fcmp(FloatCC::Unordered, value, value);
                let number = self.fb.ins().fcmp(FloatCC::Ordered, best, best);
                let first_nan = self.fb.ins().band(nan, number);
                self.fb.ins().bor(beyond, first_nan)
            }
            Scalar::Bool => self.fb.ins().icmp(IntCC::UnsignedLessThan, low, high),
            Scalar::I32 | Scalar::I64 => self.fb.ins().icmp(IntCC::SignedLessThan, low, high),
        };
        let (take, after) = (self.fb.create_block(), self.fb.create_block());
        self.fb.ins().brif(better, take, &[], after, &[] as &[BlockArg]);
        self.fb.switch_to_block(take);
        self.fb.ins().store(MEMORY, value, self.scratch, r.at);
        self.fb.ins().store(MEMORY, position, self.scratch, r.at + 8);
        self.fb.ins().jump(after, &[]);
        self.fb.switch_to_block(after);
    }
}
