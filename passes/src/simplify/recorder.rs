//! [`Recorder`]: records ops, each as what is simpler and equal if a rule knows that.

use super::share::Shared;
use smallvec::SmallVec;
use tracecast_ir::op::{Facts, InferCx, Intrinsic, Lower};
use tracecast_ir::ops::cast::CAST;
use tracecast_ir::{
    Args, Attrs, Graph, Must, NodeId, OpDef, OpRef, Results, TensorType, Tracer, Var,
};

/// Rules that may fire one inside the other.
const DEPTH: usize = 64;

/// Records ops, simpler if a rule knows how.
pub(crate) struct Recorder<'a, 't> {
    pub(crate) tracer: &'t Tracer,
    pub(super) shared: &'a mut Shared,
    depth: usize,
}

/// An op about to be recorded, or recorded already.
pub(crate) struct Draft<'t> {
    pub(crate) op: OpRef,
    pub(crate) args: Args<'t>,
    pub(crate) attrs: Attrs,
}

impl<'t> Draft<'t> {
    /// The first operand.
    pub(crate) fn x(&self) -> Var<'t> {
        self.args.vars[0]
    }

    /// The second operand, if there are exactly two.
    pub(crate) fn y(&self) -> Option<Var<'t>> {
        if let [_, y] = self.args.vars[..] { Some(y) } else { None }
    }

    /// The number in place of a second operand.
    pub(crate) fn scalar(&self) -> Option<f64> {
        self.attrs.float("scalar").filter(|_| self.args.vars.len() == 1)
    }

    /// How the op becomes part of a kernel.
    pub(crate) fn lowering(&self) -> Option<&Lower> {
        self.op.def().lowering()
    }

    /// The type of the only result.
    pub(super) fn result(&self) -> Option<TensorType> {
        let types: SmallVec<[TensorType; 4]> = self.args.vars.iter().map(|v| v.ty()).collect();
        let (groups, attrs) = (&self.args.groups, &self.attrs);
        self.args.vars.first()?.tracer().with_graph(|graph| {
            let must = Must::proven(graph.sizes());
            let cx = InferCx { types: &types, groups, attrs, must: &must };
            (self.op.def().infer)(&cx).ok()?.results.into_iter().next()
        })
    }
}

impl<'a, 't> Recorder<'a, 't> {
    pub(crate) fn new(tracer: &'t Tracer, shared: &'a mut Shared) -> Self {
        Recorder { tracer, shared, depth: 0 }
    }

    /// Records an op, or what is simpler and equal.
    pub(crate) fn record(&mut self, op: OpRef, args: Args<'t>, attrs: Attrs) -> Results<'t> {
        let draft = Draft { op, args, attrs };
        if let Some(var) = self.found(&draft) {
            return SmallVec::from_elem(var, 1);
        }
        self.shared.record(self.tracer, draft.op, draft.args, draft.attrs)
    }

    /// Records a node of another graph on these operands, or what is simpler and equal.
    pub(crate) fn carry(&mut self, graph: &Graph, id: NodeId, args: Args<'t>) -> Results<'t> {
        let node = graph.node(id);
        let draft = Draft { op: node.op.clone(), args, attrs: node.attrs.clone() };
        match self.found(&draft) {
            Some(var) => SmallVec::from_elem(var, 1),
            None => self.shared.carry(self.tracer, graph, id, draft.args),
        }
    }

    fn found(&mut self, draft: &Draft<'t>) -> Option<Var<'t>> {
        if self.depth == DEPTH || draft.args.vars.iter().any(|v| v.is_poison()) {
            return None;
        }
        self.depth += 1;
        let simpler = self.simpler(draft).filter(|simpler| {
            self.shared.raising.are_kept(self.tracer, &draft.args.vars, *simpler)
        });
        self.depth -= 1;
        simpler
    }

    /// Records an op of the table whose operands are one value each.
    pub(crate) fn apply(&mut self, op: &'static OpDef, vars: &[Var<'t>], attrs: Attrs) -> Var<'t> {
        self.record(op.into(), Args::of(vars), attrs)[0]
    }

    /// Records an op with a number in place of the second operand.
    pub(crate) fn with_scalar(&mut self, op: &OpRef, x: Var<'t>, number: f64) -> Var<'t> {
        let groups = if op.def().schema.operands.len() > 1 {
            SmallVec::from_slice(&[1, 0])
        } else {
            SmallVec::from_slice(&[1])
        };
        let mut args = Args { vars: SmallVec::from_slice(&[x]), groups };
        let attrs = Attrs::new().with("scalar", number);
        args.vars[0] = self.as_asked(op, &args, &attrs);
        self.record(op.clone(), args, attrs)[0]
    }

    /// The only operand in the dtype that an op asks for. The tracer would record the cast by
    /// itself, each time anew.
    fn as_asked(&mut self, op: &OpRef, args: &Args<'t>, attrs: &Attrs) -> Var<'t> {
        let (x, types) = (args.vars[0], [args.vars[0].ty()]);
        let to = self.tracer.with_graph(|graph| {
            let must = Must::proven(graph.sizes());
            let cx = InferCx { types: &types, groups: &args.groups, attrs, must: &must };
            (op.def().infer)(&cx).ok()?.casts.first().copied().flatten()
        });
        match to.filter(|to| *to != x.dtype()) {
            Some(to) => self.apply(&CAST, &[x], Attrs::new().with("to", to)),
            None => x,
        }
    }

    /// Records the draft's op with other operands.
    pub(crate) fn again(&mut self, d: &Draft<'t>, vars: &[Var<'t>]) -> Var<'t> {
        self.record(d.op.clone(), Args::grouped(vars, &d.args.groups), d.attrs.clone())[0]
    }

    /// How a value was made; `None` for ports, which are no op's result.
    pub(crate) fn made(&self, v: Var<'t>) -> Option<Draft<'t>> {
        made(self.tracer, v)
    }

    /// How a value was made, if by an op that the language knows as that.
    pub(crate) fn made_as(&self, v: Var<'t>, intrinsic: Intrinsic) -> Option<Draft<'t>> {
        self.is_made(v, |facts| facts.intrinsic == Some(intrinsic)).then(|| self.made(v)).flatten()
    }

    /// How a value was made, if by an op with such loops.
    pub(crate) fn made_by(&self, v: Var<'t>, is: impl FnOnce(&Lower) -> bool) -> Option<Draft<'t>> {
        let op = |g: &Graph| g.node(v.id().node).op.def().lowering().is_some_and(is);
        (!v.is_poison() && self.tracer.with_graph(op)).then(|| self.made(v)).flatten()
    }

    /// True for the result of an op of which that is true.
    pub(crate) fn is_made(&self, v: Var<'t>, is: impl FnOnce(&Facts) -> bool) -> bool {
        !v.is_poison() && self.tracer.with_graph(|g| is(g.node(v.id().node).op.facts()))
    }
}

/// How a value was made; `None` for ports, which are no op's result.
pub(crate) fn made<'t>(tracer: &'t Tracer, v: Var<'t>) -> Option<Draft<'t>> {
    if v.is_poison() {
        return None;
    }
    let (op, attrs, groups, ids) = tracer.with_graph(|g| {
        let id = v.id().node;
        let node = g.node(id);
        (node.op.clone(), node.attrs.clone(), node.groups.clone(), g.args(id))
    });
    let vars = ids.into_iter().map(|id| tracer.var(id)).collect();
    let draft = Draft { op, args: Args { vars, groups }, attrs };
    let is_port = matches!(draft.lowering(), Some(Lower::Port));
    (!is_port).then_some(draft)
}
