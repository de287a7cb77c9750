//! Dead code, the order of a body's instructions, and how many registers an order needs.

use super::inst::{Inst, Op, VReg};
use smallvec::SmallVec;

/// Eliminates dead code.
pub(super) fn needed(insts: Vec<Inst>) -> Vec<Inst> {
    let mut keep = vec![false; insts.len()];
    for at in (0..insts.len()).rev() {
        let root = insts[at].op.is_store() || insts[at].fixed.is_some();
        if root || keep[at] {
            keep[at] = true;
            insts[at].args.iter().for_each(|a| keep[*a as usize] = true);
        }
    }
    let order: SmallVec<[usize; 64]> = (0..insts.len()).filter(|at| keep[*at]).collect();
    in_order(&insts, &order)
}

/// The instructions at those places, renumbered.
fn in_order(insts: &[Inst], order: &[usize]) -> Vec<Inst> {
    let mut number = vec![VReg::MAX; insts.len()];
    let mut out: Vec<Inst> = Vec::with_capacity(order.len());
    for at in order {
        number[*at] = out.len() as VReg;
        let mut inst = insts[*at].clone();
        inst.args = inst.args.iter().map(|a| number[*a as usize]).collect();
        out.push(inst);
    }
    out
}

/// The halves one after the other rather than side by side: fewer values live at a time.
pub(super) fn one_by_one(insts: &[Inst]) -> Vec<Inst> {
    let mut done = vec![false; insts.len()];
    let mut order: Vec<usize> = Vec::with_capacity(insts.len());
    for half in [0, 1] {
        for (at, inst) in insts.iter().enumerate() {
            let ready = inst.args.iter().all(|a| done[*a as usize]);
            let mine = inst.half == half || inst.half == 2;
            if !done[at] && mine && ready {
                done[at] = true;
                order.push(at);
            }
        }
    }
    if order.len() < insts.len() {
        return insts.to_vec();
    }
    in_order(insts, &order)
}

/// How many registers the values of a body need at most, apart from what can stay in memory.
pub(super) fn pressure(insts: &[Inst]) -> usize {
    let mut last = vec![0usize; insts.len()];
    let mut first = vec![usize::MAX; insts.len()];
    let mut count = vec![0usize; insts.len()];
    for (at, inst) in insts.iter().enumerate() {
        for a in &inst.args {
            let a = *a as usize;
            (last[a], count[a]) = (at, count[a] + 1);
            first[a] = first[a].min(at);
        }
    }
    let mut change = vec![0i32; insts.len() + 1];
    for (at, inst) in insts.iter().enumerate() {
        let from = match inst.op {
            Op::Folded(_) if count[at] > 1 => first[at],
            op if op.is_rematerialised() => continue,
            Op::Acc(_) | Op::Store(..) | Op::Prefetch(..) => continue,
            _ if inst.fixed.is_some() || count[at] == 0 => continue,
            _ => at,
        };
        change[from] += 1;
        change[last[at]] -= 1;
    }
    let mut live = 0;
    let peak = change.iter().map(|c| {
        live += c;
        live
    });
    peak.max().unwrap_or(0).max(0) as usize
}
