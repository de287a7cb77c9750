//! Widens rows of low-precision floats once instead of in every pass along the row.
//!
//! Widening takes the units that also add; loading an f32 from the first-level cache does not. So
//! the first stage that loads a row keeps it in a row buffer for the others, and an operand that is
//! the same for all rows is widened in the first row of a call:
//!
//! ```text
//! along the row: sum x          first row: keep w in b1
//! along the row: sum x * x  ->  along the row: sum x, keep x in b0
//! along the row: x * w          along the row: sum b0 * b0
//!                               along the row: b0 * b1
//! ```

use super::facts::Facts;
use super::{Place, Plan, Sink, Source, Stage};
use tracecast_ir::Size;
use tracecast_ir::kernel::{Body, Inst, Scalar, ScalarOp, Val};

/// The bytes of all row buffers: half of a small first-level cache.
const ROOM: i64 = 16 << 10;

/// With fewer rows it does not pay to widen what they share.
const ROWS: i64 = 16;

/// A load that several passes take, or several rows.
struct Often {
    load: u32,
    /// The stages along the row that take it, in order.
    stages: Vec<usize>,
    /// The same for all rows.
    shared: bool,
}

impl Often {
    /// How often fewer it is widened for a row.
    fn saved(&self) -> usize {
        self.stages.len() - usize::from(!self.shared)
    }
}

/// Gives loads of 16-bit floats row buffers, as long as there is room. Only where rows are whole:
/// with more than one pass along them.
pub(super) fn widen(plan: &mut Plan, facts: &Facts) {
    let passes = plan.stages.iter().filter(|s| !s.once).count();
    if passes < 2 {
        return;
    }
    let mut often: Vec<Often> = (0..plan.loads.len() as u32)
        .filter(|l| is_plain(&plan.loads[*l as usize]))
        .map(|load| Often {
            load,
            stages: (0..plan.stages.len()).filter(|s| takes(&plan.stages[*s], load)).collect(),
            shared: !facts.proves(Size::from(ROWS - 1).at_least(plan.rows()))
                && is_shared(&plan.loads[load as usize]),
        })
        .filter(|often| !often.stages.is_empty() && often.saved() > 0)
        .collect();
    if often.is_empty() {
        return;
    }
    often.sort_by_key(|often| std::cmp::Reverse(often.saved()));
    let row = facts.capacity(plan.row());
    let size = |ty: Scalar| i64::from(super::phases::scratch_bytes(ty)).saturating_mul(row);
    let taken = plan.buffers.iter().map(|b| size(*b));
    let mut free = taken.fold(ROOM, i64::saturating_sub);
    let each = size(Scalar::F32);
    let (mut body, mut sinks) = (Body::default(), Vec::new());
    for often in often {
        if free < each {
            break;
        }
        free -= each;
        let buffer = plan.buffers.len();
        plan.buffers.push(Scalar::F32);
        let mut stages = often.stages.as_slice();
        if often.shared {
            let value = body.push(ScalarOp::Load(often.load), &[], Scalar::F32);
            sinks.push(Sink::Keep { value, buffer });
        } else if let Some((first, rest)) = stages.split_first() {
            stages = rest;
            let stage = &mut plan.stages[*first];
            let value = stage.body.insts.iter().position(|inst| is_load(inst, often.load));
            let value = value.unwrap_or_default() as Val;
            stage.sinks.push(Sink::Keep { value, buffer });
        }
        for stage in stages {
            let insts = &mut plan.stages[*stage].body.insts;
            for inst in insts.iter_mut().filter(|inst| is_load(inst, often.load)) {
                inst.op = ScalarOp::Row(buffer as u32);
            }
        }
    }
    if !sinks.is_empty() {
        plan.stages.insert(0, Stage { once: false, first: true, body, sinks });
    }
}

fn is_load(inst: &Inst, load: u32) -> bool {
    inst.op == ScalarOp::Load(load)
}

fn takes(stage: &Stage, load: u32) -> bool {
    !stage.once && stage.body.insts.iter().any(|inst| is_load(inst, load))
}

/// True for a 16-bit float at every position of every row.
fn is_plain(source: &Source) -> bool {
    let dense = match &source.place {
        Place::At(access) => access.guards.is_empty() && access.indirect.is_empty(),
        Place::Stream | Place::Gathered { .. } => false,
    };
    source.dtype.is_low() && source.place.row_stride() == 1 && dense
}

/// True if it is the same in every row.
fn is_shared(source: &Source) -> bool {
    let Place::At(access) = &source.place else { return false };
    let outer = access.strides.len().saturating_sub(1);
    source.read_only && access.strides[..outer].iter().all(|s| *s == 0)
}
