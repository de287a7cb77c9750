//! Replaces composites by the core ops they are made of.
//!
//! ```text
//! before:  %0 = sum %x {dim = [1]} : bf16[8]
//! after:   %0 = cast %x {to = f32} : f32[8, 4]
//!          %1 = reduce_row %0 {kind = "sum"} : f32[8]
//!          %2 = cast %1 {to = bf16} : bf16[8]
//! ```
//!
//! A composite that computes in f32 gets its 16-bit operands widened, and each result is rounded
//! once, to the type that its rule of types gave. Composites inside composites are replaced in
//! turn. Results that nobody uses go with what made them. A concatenation of many operands becomes
//! one of concatenations of few.
//!
//! An op whose kernels are of a form that the device has no code for is replaced in the same way,
//! if it can be made of others.

use crate::pass::{Pass, need_decided, swept};
use smallvec::smallvec;
use tracecast_ir::kernel::FormKind;
use tracecast_ir::op::{ExpandCx, Inside, Lower};
use tracecast_ir::ops::cast::Cast;
use tracecast_ir::{
    Args, Attrs, Graph, Node, OpRef, Reason, Results, Stage, TensorType, TraceError, Tracer, Var,
    Verified,
};

/// How deep composites may lie inside each other.
pub(crate) const DEEPEST: usize = 32;

/// The most operands of a concatenation that one kernel takes.
pub(crate) const MOST_OPERANDS: usize = 32;

/// Expands composites, and ops of forms that the device has no code for.
#[derive(Clone, Debug)]
pub struct Decompose {
    /// The forms that the device has code for.
    pub forms: Vec<FormKind>,
}

impl Default for Decompose {
    fn default() -> Self {
        Decompose { forms: FormKind::ALL.to_vec() }
    }
}

impl Decompose {
    /// The name of the pass.
    pub const NAME: &'static str = "decompose";

    /// True for a composite, and for what can be made of other ops and has to be.
    fn replaces(&self, node: &Node) -> bool {
        let op = node.op.def();
        let form = op.lowering().and_then(FormKind::begun_by);
        op.parts().is_some() && form.is_none_or(|form| !self.forms.contains(&form))
    }

    /// Every op that is replaced by what its own expansion records.
    fn one_layer(&self, graph: &Graph) -> Result<Graph, TraceError> {
        graph.retrace(|t, id, node, args| match self.replaces(node) {
            true => record_parts(t, &node.op, &args, &node.attrs, &node.results),
            false if is_wide_cat(node, &args) => record_cat(t, node, args),
            false => t.carry(graph, id, args),
        })
    }
}

impl Pass for Decompose {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn ensures(&self, before: Stage) -> Stage {
        before.max(Stage::Core)
    }

    fn run(&self, graph: &Verified) -> Result<Graph, TraceError> {
        need_decided(graph)?;
        let mut current = self.one_layer(graph)?;
        for _ in 0..DEEPEST {
            if !current.nodes().any(|id| self.replaces(current.node(id))) {
                return swept(current);
            }
            current = self.one_layer(&current)?;
        }
        Ok(current)
    }
}

/// True for a concatenation of more operands than a kernel takes.
fn is_wide_cat(node: &Node, args: &Args<'_>) -> bool {
    args.vars.len() > MOST_OPERANDS && matches!(node.op.def().lowering(), Some(Lower::Cat))
}

/// Records concatenations of few operands each, and of their results: a kernel asks at each
/// position for every operand whether it is there.
fn record_cat<'t>(t: &'t Tracer, node: &Node, args: Args<'t>) -> Results<'t> {
    let few = |vars: &[Var<'t>]| match vars {
        [one] => *one,
        several => {
            let mut args = Args::new();
            args.push(several.iter().copied());
            t.apply(node.op.clone(), args, node.attrs.clone())[0]
        }
    };
    let mut parts = args.vars;
    while parts.len() > 1 {
        parts = parts.chunks(MOST_OPERANDS).map(few).collect();
    }
    parts.into_iter().next().map_or_else(|| t.again(node, Args::new()), |whole| smallvec![whole])
}

/// Records what an op is made of, under the rule for its inside; the results have the types it was
/// recorded with.
pub(crate) fn record_parts<'t>(
    t: &'t Tracer,
    op: &OpRef,
    args: &Args<'t>,
    attrs: &Attrs,
    types: &[TensorType],
) -> Results<'t> {
    let refuse = |message: String| -> Results<'t> {
        let failed = t.fail(op.name(), message);
        types.iter().map(|_| failed).collect()
    };
    let Some((expand, inside)) = op.def().parts() else {
        return refuse("is not made of other ops".to_owned());
    };
    let own = |cast: &mut dyn FnMut() -> Var<'t>| t.because(Reason::Inside(op.name()), cast);
    let inner: Vec<Var<'t>> = args
        .vars
        .iter()
        .map(|&x| if inside == Inside::F32 { own(&mut || widen(x)) } else { x })
        .collect();
    let cx = ExpandCx { tracer: t, args: &inner, groups: &args.groups, attrs, results: types };
    let parts = t.part_of(op.name(), || expand(&cx));
    if t.error().is_some() {
        return refuse("cannot be expanded".to_owned());
    }
    if parts.len() != types.len() {
        return refuse(format!("expands to {} results, expected {}", parts.len(), types.len()));
    }
    let fits = |(part, ty): (&Var<'t>, &TensorType)| match own(&mut || part.to(ty.dtype)) {
        y if y.ty() == *ty => y,
        y => t.fail(op.name(), format!("expands to {}, expected {ty}", y.ty())),
    };
    parts.iter().zip(types).map(fits).collect()
}

fn widen(x: Var<'_>) -> Var<'_> {
    if x.dtype().is_low() { x.cast(x.dtype().compute()) } else { x }
}
