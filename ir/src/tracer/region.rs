//! The autocast state of a tracer: which region ops are recorded under, and what the policies then
//! say.

use super::blame::operand_name;
use super::{Former, Restore, State, Tracer};
use crate::args::Args;
use crate::graph::query::Question;
use crate::graph::residence::{beside, of_result, together};
use crate::graph::{Graph, NodeId, ValueId};
use crate::op::{Dispatch, OpDef, OpRef};
use crate::policy::parity::{Leaf, RegionObject, Thread};
use crate::policy::{
    Casts, Decision, DeviceType, OperandInfo, OperandKind, Policy, Query, Region, Site,
};
use crate::{Attrs, DType, Var};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::collections::HashMap;

impl Tracer {
    /// The device type a value lives on, as policies see it: that of its port, or that of the
    /// operands of the op that made it; the cpu for what is made of constants alone.
    pub fn device_of(&self, value: Var<'_>) -> DeviceType {
        let state = self.state.borrow();
        let home = state.devices.get(value.id.node.index()).copied().flatten();
        home.unwrap_or(DeviceType::Cpu)
    }

    /// The same tracer with constants living on `device`, unless [`Tracer::on_device`] says
    /// otherwise.
    #[must_use]
    pub fn at_home(self, device: impl Into<Site>) -> Self {
        self.state.borrow_mut().home = Some(device.into());
        self
    }

    /// Runs `body` with constants living on `device`. Elsewhere they live where the operands beside
    /// them do.
    pub fn on_device<R>(&self, device: impl Into<Site>, body: impl FnOnce() -> R) -> R {
        let _restore = self.come_home(device.into());
        body()
    }

    fn come_home(&self, device: Site) -> Restore<'_> {
        let before = self.state.borrow_mut().home.replace(device);
        Restore(self, Some(Former::Home(before)))
    }

    /// Refuses operands on device types that have nothing to do with each other, for an op that
    /// policies see.
    pub(super) fn check_devices(&self, def: &OpDef, args: &Args<'_>) -> Result<(), String> {
        if matches!(def.dispatch, Dispatch::Internal) {
            return Ok(());
        }
        let state = self.state.borrow();
        let homes = || args.vars.iter().map(|v| state.devices[v.id.node.index()]);
        together(homes()).map(drop).map_err(|(first, other)| {
            let named = |device| {
                let at = homes().position(|home| home == Some(device)).unwrap_or_default();
                operand_name(def, &args.groups, at)
            };
            format!(
                "{} lives on {first}, {} on {other}: expected operands on one device type, the cpu aside",
                named(first),
                named(other)
            )
        })
    }

    /// The current autocast state.
    pub fn region(&self) -> Region {
        let state = self.state.borrow();
        state.graph.regions[state.region as usize].clone()
    }

    /// Runs `body` under an autocast state; the former one returns however `body` ends.
    pub fn in_region<R>(&self, region: &Region, body: impl FnOnce() -> R) -> R {
        let _restore = self.enter_region(region);
        body()
    }

    fn enter_region(&self, region: &Region) -> Restore<'_> {
        let index = self.region_index(region);
        let mut state = self.state.borrow_mut();
        let outer = std::mem::replace(&mut state.region, index);
        let thread = state.thread.as_mut().map(|thread| thread.swap(region.clone()));
        Restore(self, Some(Former::Region(outer, thread)))
    }

    /// Runs `body` inside a region object as PyTorch has it, which leaves autocast on if it is
    /// entered twice.
    ///
    /// Only a tracer whose policies ask for [parity](crate::policy::parity) knows such objects;
    /// elsewhere `body` runs as if there were none.
    pub fn in_object<R>(&self, object: &RefCell<RegionObject>, body: impl FnOnce() -> R) -> R {
        self.change(|thread, _| thread.enter(&mut object.borrow_mut()));
        let _leave = Leave { tracer: self, object };
        body()
    }

    /// Says that PyTorch would have changed `tensor` in place here, to `next`. It matters to
    /// policies that ask for [parity](crate::policy::parity) alone: its cast cache takes both for
    /// one tensor. [`Tracer::update`] says the same.
    pub fn changed_in_place(&self, tensor: Var<'_>, next: Var<'_>) {
        let mut state = self.state.borrow_mut();
        if state.thread.is_some() {
            let first = state.changed.get(&tensor.id).copied().unwrap_or(tensor.id);
            state.changed.insert(next.id, first);
        }
    }

    /// Changes PyTorch's state of the thread, if there is one, and takes over the region that comes
    /// of it. `change` is also given a number for a new cache scope.
    fn change(&self, change: impl FnOnce(&mut Thread, u32)) {
        let scope = self.next_cache_scope();
        let mut state = self.state.borrow_mut();
        let Some(thread) = &mut state.thread else { return };
        change(thread, scope);
        let region = thread.region().clone();
        drop(state);
        let index = self.region_index(&region);
        self.state.borrow_mut().region = index;
    }

    /// What PyTorch's cast cache does to a decision: an operand may get the cast of another dtype
    /// or of an earlier version.
    fn recall(
        &self,
        decision: &mut Decision,
        operands: &[(DType, DeviceType)],
        args: &mut Args<'_>,
    ) {
        let State { graph, thread, changed, .. } = &mut *self.state.borrow_mut();
        let Some(thread) = thread else { return };
        for (i, cast) in decision.casts.iter_mut().enumerate() {
            let Some(to) = *cast else { continue };
            let leaf = leaf(graph, changed, args.vars[i].id);
            let (dtype, device) = operands[i];
            let given = thread.cast(device, leaf, dtype, to);
            *cast = Some(given.dtype);
            if let Some(version) = given.version {
                args.vars[i].id = contents(version);
            }
        }
    }

    /// A number for a cache scope, not used before in this trace.
    pub fn next_cache_scope(&self) -> u32 {
        let mut state = self.state.borrow_mut();
        state.cache_scopes += 1;
        state.cache_scopes
    }

    /// The cast of each operand of a call that PyTorch's tables list under that name and that is
    /// recorded as several ops. `None` if no policy decides for the call: then the policies are
    /// queried for its parts.
    ///
    /// # Errors
    /// If the policies refuse the call.
    pub fn casts_as_one(&self, name: &str, operands: &[Var<'_>]) -> Result<Option<Casts>, String> {
        let region = self.region();
        if self.explicit || region.is_off() {
            return Ok(None);
        }
        let state = self.state.borrow();
        let home = |v: &Var<'_>| state.devices[v.id.node.index()];
        let all = of_result(operands.iter().map(home));
        let info = |v: &Var<'_>| {
            let (dtype, device) = (state.graph.ty(v.id).dtype, beside(home(v), all));
            OperandInfo { dtype, device, kind: OperandKind::Tensor }
        };
        let infos: SmallVec<[OperandInfo; 8]> = operands.iter().map(info).collect();
        let query = Query { scope: &state.scope, ..Query::new(name, &infos, &region) };
        let decision = self.policies.decide(&query);
        match decision.error {
            Some(refusal) => Err(refusal.to_string()),
            None => Ok(Some(decision.casts).filter(|_| decision.policy != Policy::Fallthrough)),
        }
    }

    fn region_index(&self, region: &Region) -> u32 {
        let graph = &mut self.state.borrow_mut().graph;
        let at = graph.regions.iter().position(|r| r == region).unwrap_or_else(|| {
            graph.regions.push(region.clone());
            graph.regions.len() - 1
        });
        if at > 0 {
            graph.policy = self.policies.hash();
        }
        at as u32
    }

    /// What the policies say about an op under the current autocast state; `None` if that is
    /// nothing.
    ///
    /// # Errors
    /// If they refuse it.
    pub(super) fn decide(
        &self,
        op: &OpRef,
        args: &mut Args<'_>,
        attrs: &Attrs,
    ) -> Result<Option<Decision>, String> {
        let state = self.state.borrow();
        let region = &state.graph.regions[state.region as usize];
        if state.region == 0 || region.is_off() {
            return Ok(None);
        }
        let home = |v: &Var<'_>| state.devices[v.id.node.index()];
        let all = of_result(args.vars.iter().map(home));
        let operands: SmallVec<[(DType, DeviceType); 4]> =
            args.vars.iter().map(|v| (state.graph.ty(v.id).dtype, beside(home(v), all))).collect();
        let question = Question {
            op,
            attrs,
            groups: &args.groups,
            operands: operands.clone(),
            scope: &state.scope,
            number: state.counts.get(&(state.scope.clone(), op.name())).copied().unwrap_or(0),
            region,
        };
        let Some(mut decision) = question.put(|query| self.policies.decide(query)) else {
            return Ok(None);
        };
        if let Some(refusal) = decision.error {
            return Err(refusal.to_string());
        }
        drop(state);
        self.recall(&mut decision, &operands, args);
        // Where a policy speaks of an op, none is asked about its parts, also if there is nothing
        // to cast.
        let is_whole = matches!(op.def().dispatch, Dispatch::ListedOrExpands { .. })
            && decision.policy != Policy::Fallthrough;
        Ok(Some(decision).filter(|d| is_whole || !d.is_trivial()))
    }
}

/// The tensor that a value is for PyTorch's cast cache, if it is a leaf that requires a gradient.
fn leaf(graph: &Graph, changed: &HashMap<ValueId, ValueId>, value: ValueId) -> Option<Leaf> {
    let tensor = changed.get(&value).copied().unwrap_or(value);
    let port = graph.port_of(tensor.node).filter(|port| port.requires_grad())?;
    let version = u64::from(value.result) << 32 | value.node.index() as u64;
    Some(Leaf { id: port.node.index() as u64, version })
}

/// The value that a version of a leaf is.
fn contents(version: u64) -> ValueId {
    let node = NodeId::new((version & u64::from(u32::MAX)) as usize);
    ValueId { node, result: (version >> 32) as u16 }
}

/// Leaves a region object, also when the body panics.
struct Leave<'t> {
    tracer: &'t Tracer,
    object: &'t RefCell<RegionObject>,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.tracer.change(|thread, scope| thread.exit(&self.object.borrow(), scope));
    }
}
