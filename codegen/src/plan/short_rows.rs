//! Maps with rows of a few positions: each position becomes code of its own, and the axis around it
//! the row.
//!
//! ```text
//! loop i0 28, row r 2                          ->   loop row r 28
//!   s0 = load x[i0 + 784*r]                          s0 = load x[r]
//!   store y[2*i0 + r], s0                            s1 = load x[r + 784]
//!                                                    store y[2*r], s0
//!                                                    store y[2*r + 1], s1
//! ```
//!
//! Beginning a row costs more than a few positions do, and no vector holds them. What is put
//! together from parts along such a row, by `cat` or a permutation, is then known part by part:
//! guards of loads and comparisons of positions are decided here. So it is with what is put
//! together along the axis around the row, if that has a few positions.

use super::{Draft, Place, Plan, Sink, Source, Stage};
use smallvec::SmallVec;
use tracecast_ir::Size;
use tracecast_ir::kernel::{Access, Body, Cmp, Guard, Inst, Scalar, ScalarOp, Val};

/// The longest rows that are short.
const SHORT: i64 = 8;

/// The shortest rows that are made of them.
const LEAST: i64 = 4;

/// Longer rows cost so much more than their beginnings that parts around them are not
/// distinguished.
const LONG: i64 = 128;

/// No more instructions than this become of a body.
const MOST: usize = 160;

/// Unrolls the rows of the first plan, if they are short.
pub(super) fn unroll(draft: &mut Draft<'_>) {
    let is_map = draft.calls.merge_row && draft.calls.by_sixteens;
    if !is_map || !draft.columns.is_empty() || !draft.largest.is_empty() {
        return;
    }
    let [plan] = &mut draft.plans[..] else { return };
    let of_row = short_row(plan).map(|count| (plan.row_axis(), count));
    let Some((axis, count)) = of_row.or_else(|| parts(plan)) else { return };
    let [stage] = &plan.stages[..] else { return };
    let (mut body, mut sinks, mut loads) = (Body::default(), Vec::new(), Vec::new());
    for at in 0..count {
        let values = copied(&mut body, &stage.body, (axis, at), &plan.loads, &mut loads);
        sinks.extend(stage.sinks.iter().map(|sink| moved_sink(sink, (axis, at), &values)));
    }
    // A store waits for the loads of its position; those of all positions are these.
    let written = (0..loads.len() as u32).filter(|load| !loads[*load as usize].read_only);
    let written: SmallVec<[u32; 1]> = written.collect();
    for sink in &mut sinks {
        if let Sink::Store { after, .. } = sink {
            *after = written.clone();
        }
    }
    plan.extents.remove(axis);
    plan.loads = loads;
    plan.stages = vec![Stage::along_row(body, sinks)];
    plan.aligned = false;
}

/// The axis around a row that is not long and its positions, if there are few, more along an axis
/// around it, and guards of loads tell them apart.
fn parts(plan: &Plan) -> Option<(usize, i64)> {
    let axis = (0..plan.row_axis()).rev().find(|axis| plan.extents[*axis] != 1)?;
    let count = plan.extents[axis].number().filter(|count| (2..=SHORT).contains(count))?;
    let [stage] = &plan.stages[..] else { return None };
    let is_long = |extent: &Size| extent.number().is_some_and(|extent| extent >= LEAST);
    let are_many = plan.extents[..axis].iter().any(is_long)
        && plan.row().number().is_some_and(|row| row <= LONG);
    let is_guard = |guard: &Guard| {
        let mut others = guard.strides.iter().enumerate().filter(|(at, _)| *at != axis);
        guard.strides[axis] != 0 && others.all(|(_, stride)| *stride == 0)
    };
    let mut are_apart = false;
    for load in &plan.loads {
        let Place::At(place) = &load.place else { return None };
        are_apart |= place.guards.iter().any(is_guard);
    }
    let are_stores = |sink: &Sink| matches!(sink, Sink::Store { place: Place::At(_), .. });
    (are_many && are_apart && is_plain(plan, stage, count) && stage.sinks.iter().all(are_stores))
        .then_some((axis, count))
}

/// True if all a plan does is this stage along the row, and that number of copies of it is small.
fn is_plain(plan: &Plan, stage: &Stage, count: i64) -> bool {
    let is_small = stage.body.insts.len() * count as usize <= MOST;
    is_small && !stage.once && plan.buffers.is_empty() && plan.strided.is_empty()
}

/// The positions of a row, if there are few, more along the axis around it, along which loads lie
/// side by side, and the two are no one axis.
fn short_row(plan: &Plan) -> Option<i64> {
    let count = plan.row().number().filter(|row| (2..=SHORT).contains(row))?;
    let [stage] = &plan.stages[..] else { return None };
    let outer = (0..plan.row_axis()).rev().find(|axis| plan.extents[*axis] != 1)?;
    let long = plan.extents[outer].number().is_some_and(|extent| extent >= LEAST);
    if !long || !is_plain(plan, stage, count) {
        return None;
    }
    let row = plan.row_axis();
    let mut one = true;
    let mut look = |strides: &[Size]| one &= strides[outer] == strides[row] * count;
    let mut access = |access: &Access| {
        look(&access.strides);
        access.guards.iter().for_each(|guard| look(&guard.strides));
    };
    for load in &plan.loads {
        let Place::At(place) = &load.place else { return None };
        access(place);
        if place.strides[outer] != 0 && place.strides[outer] != 1 {
            return None;
        }
    }
    for sink in &stage.sinks {
        let Sink::Store { place: Place::At(place), .. } = sink else { return None };
        access(place);
    }
    (!one).then_some(count)
}

/// The access of that position of an axis, over the axes that are left.
fn moved(access: &Access, axis: usize, at: i64) -> Access {
    let mut access = access.clone();
    access.offset += access.strides.remove(axis) * at;
    for guard in &mut access.guards {
        guard.offset += guard.strides.remove(axis) * at;
    }
    let holds = |size: Size| size.number().is_some_and(|number| number >= 0);
    access.guards.retain(|guard| {
        let still = guard.strides.iter().all(|stride| *stride == 0);
        !(still && holds(guard.offset) && holds(guard.extent - guard.offset - 1))
    });
    access
}

/// True if a guard never holds.
fn is_never(access: &Access) -> bool {
    let beyond = |size: Size| size.number().is_some_and(|number| number < 0);
    access.guards.iter().any(|guard| {
        let still = guard.strides.iter().all(|stride| *stride == 0);
        still && (beyond(guard.offset) || beyond(guard.extent - guard.offset - 1))
    })
}

fn moved_load(load: &Source, axis: usize, at: i64) -> Source {
    let place = match &load.place {
        Place::At(access) => Place::At(moved(access, axis, at)),
        other => other.clone(),
    };
    Source { place, ..load.clone() }
}

fn moved_sink(sink: &Sink, (axis, at): (usize, i64), values: &[Val]) -> Sink {
    let mut sink = sink.clone();
    if let Sink::Store { place: Place::At(access), value, .. } = &mut sink {
        *access = moved(access, axis, at);
        *value = values[*value as usize];
    }
    sink
}

/// Appends a body for one position of an axis, and the loads of which something is there: the
/// values of its instructions. The position is a number, and so is what follows from it.
fn copied(
    body: &mut Body,
    from: &Body,
    (axis, at): (usize, i64),
    sources: &[Source],
    loads: &mut Vec<Source>,
) -> Vec<Val> {
    let mut numbers = vec![None; sources.len()];
    let mut values: Vec<Val> = Vec::with_capacity(from.insts.len());
    for inst in &from.insts {
        let args: SmallVec<[Val; 3]> = inst.args.iter().map(|arg| values[*arg as usize]).collect();
        let value = match inst.op {
            ScalarOp::Index(of) if of as usize == axis => {
                body.push(ScalarOp::Const(at as u64), &[], Scalar::I64)
            }
            ScalarOp::Index(of) if of as usize > axis => {
                body.push(ScalarOp::Index(of - 1), &[], inst.ty)
            }
            ScalarOp::Load(load) => {
                let source = moved_load(&sources[load as usize], axis, at);
                match &source.place {
                    Place::At(access) if is_never(access) => {
                        body.push(ScalarOp::Const(access.fill), &[], inst.ty)
                    }
                    _ => {
                        let number = *numbers[load as usize].get_or_insert_with(|| {
                            loads.push(source);
                            loads.len() as u32 - 1
                        });
                        body.push(ScalarOp::Load(number), &args, inst.ty)
                    }
                }
            }
            _ => decided(body, inst, &args),
        };
        values.push(value);
    }
    values
}

/// An instruction on these operands; a number or an operand where those that are numbers decide it.
fn decided(body: &mut Body, inst: &Inst, args: &[Val]) -> Val {
    let number = |body: &Body, arg: usize| {
        let inst = args.get(arg).map(|arg| &body.insts[*arg as usize])?;
        match inst.op {
            ScalarOp::Const(bits) if matches!(inst.ty, Scalar::I64 | Scalar::Bool) => {
                Some(bits as i64)
            }
            _ => None,
        }
    };
    let numbers = [number(body, 0), number(body, 1)];
    let of_integers = args.first().is_some_and(|arg| body.ty(*arg) == Scalar::I64);
    let of_bools = args.first().is_some_and(|arg| body.ty(*arg) == Scalar::Bool);
    let found = match (inst.op, numbers) {
        (ScalarOp::Add, [Some(a), Some(b)]) if of_integers => Some(a.wrapping_add(b)),
        (ScalarOp::Sub, [Some(a), Some(b)]) if of_integers => Some(a.wrapping_sub(b)),
        (ScalarOp::Mul, [Some(a), Some(b)]) if of_integers => Some(a.wrapping_mul(b)),
        (ScalarOp::Cmp(cmp), [Some(a), Some(b)]) if of_integers => Some(i64::from(match cmp {
            Cmp::Eq => a == b,
            Cmp::Ne => a != b,
            Cmp::Lt => a < b,
            Cmp::Le => a <= b,
        })),
        (ScalarOp::Not, [Some(a), None]) if of_bools => Some(i64::from(a == 0)),
        (ScalarOp::And, [Some(0), _] | [_, Some(0)]) if of_bools => Some(0),
        (ScalarOp::And, [Some(_), None]) if of_bools => return args[1],
        (ScalarOp::And, [_, Some(_)]) if of_bools => return args[0],
        (ScalarOp::Or, [Some(0), _]) if of_bools => return args[1],
        (ScalarOp::Or, [_, Some(0)]) if of_bools => return args[0],
        (ScalarOp::Or, [Some(_), _] | [_, Some(_)]) if of_bools => Some(1),
        (ScalarOp::Select, [Some(condition), _]) => {
            return args[if condition != 0 { 1 } else { 2 }];
        }
        _ => None,
    };
    match found {
        Some(bits) => body.push(ScalarOp::Const(bits as u64), &[], inst.ty),
        None => body.push(inst.op, args, inst.ty),
    }
}
