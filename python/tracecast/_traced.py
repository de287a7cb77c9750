"""What a training step computes, as graphs of ATen ops: forward, backward, unscaling and its check, the update of the optimizer."""

from __future__ import annotations

import contextlib
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
from torch.fx import GraphModule, Node, proxy, traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._pytree import TreeSpec, tree_map, tree_unflatten

from ._attention import DenseHeads

Tensors = list[torch.Tensor]


@dataclass
class Subject:
    """The objects of PyTorch that a step is made of."""

    model: torch.nn.Module
    loss: Callable[..., torch.Tensor]
    optimizer: torch.optim.Optimizer
    autocast: torch.dtype | None
    scaler: torch.amp.GradScaler | None
    policy: str | None

    def trained(self) -> list[torch.nn.Parameter]:
        """The parameters of the optimizer."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def state(self) -> list[dict[str, Any]]:
        """The state that the optimizer has for each of its parameters."""
        return [self.optimizer.state.get(p, {}) for p in self.trained()]

    def scaling(self) -> Tensors:
        """The scale and the count of good steps, which belong to the scaler."""
        scaler = self.scaler
        if scaler is None or not scaler.is_enabled():
            return []
        if scaler._scale is None:
            scaler._lazy_init_scale_growth_tracker(torch.device("cpu"))
        return [scaler._scale, scaler._growth_tracker]

    def slots(self) -> Tensors:
        """All tensors that a step may give a new value: parameters, buffers, states of optimizer and scaler."""
        model = self.model
        return [*model.parameters(), *model.buffers(), *tensors_of(self.state()), *self.scaling()]


@dataclass
class Traced:
    """The graphs of a step. Their first inputs are the slots of the subject and the learning rates.

    Without a policy one graph is all: then come the inputs of the step. It gives the loss, whether gradients overflowed, the new
    value of each slot, and the tensors of the optimizer's state that were not there before. With a policy `whole` gives the loss and the new
    buffers, and `update`, which takes gradients behind the rates, what `whole` gives else.
    """

    whole: GraphModule
    update: GraphModule | None
    structure: list[dict[str, Any]]
    """The state of the optimizer behind the step."""
    reached: list[int] = field(default_factory=list)
    """With a policy, the parameters that gradients are taken of: those that the loss depends on."""


def tensors_of(state: list[dict[str, Any]]) -> Tensors:
    return [v for one in state for v in one.values() if torch.is_tensor(v)]


class _Parts:
    """The arguments of a traced function, from the first on."""

    def __init__(self, of: Subject, values: tuple[torch.Tensor, ...]) -> None:
        self.rest = list(values)
        take = self.take
        self.names = [name for name, _ in of.model.named_parameters()]
        self.parameters = take(len(self.names))
        self.buffers = take(sum(1 for _ in of.model.buffers()))
        self.state = tree_map(lambda v: take(1)[0] if torch.is_tensor(v) else v, of.state())
        self.scaling = take(len(of.scaling()))
        self.rates = take(len(of.optimizer.param_groups))

    def take(self, count: int) -> Tensors:
        return [self.rest.pop(0) for _ in range(count)]


def trace(
    of: Subject, given: list[Any], structure: TreeSpec, values: Tensors, decompositions: dict[Any, Any]
) -> Traced:
    """The graphs of a step on these values: the slots, learning rates, and the tensors among what is given."""
    after: list[dict[str, Any]] = []

    def inputs(parts: _Parts) -> Any:
        return tree_unflatten([parts.take(1)[0] if torch.is_tensor(x) else x for x in given], structure)

    def evaluate(parts: _Parts, leaves: Tensors) -> tuple[torch.Tensor, Tensors]:
        names = [name for name, _ in of.model.named_buffers()]
        buffers = {name: value.clone() for name, value in zip(names, parts.buffers)}
        replaced = {**dict(zip(parts.names, leaves)), **buffers}
        is_on = of.autocast is not None and of.policy is None
        with _reparametrize_module(of.model, replaced, tie_weights=True):
            with torch.autocast("cpu", of.autocast if is_on else None, enabled=is_on):
                value = of.loss(of.model, *inputs(parts))
            held = dict(of.model.named_buffers())
        if not torch.is_tensor(value) or value.dim() != 0:
            shown = tuple(value.shape) if torch.is_tensor(value) else type(value).__name__
            raise ValueError(f"train_step: the loss has shape {shown}, expected a single number")
        return value, [held.get(name, buffers[name]).detach() for name in names]

    def update(parts: _Parts, leaves: Tensors, buffers: Tensors | None, gradients: list[torch.Tensor | None]) -> Tensors:
        nonlocal after
        own = {id(p): leaf for p, leaf in zip(of.model.parameters(), leaves)}
        overflow = torch.zeros((), dtype=torch.bool)
        if parts.scaling:
            inverse = parts.scaling[0].double().reciprocal().float()
            gradients = [g if g is None else g * inverse.to(g.dtype) for g in gradients]
            finite = [g.isfinite().all() for g in gradients if g is not None]
            overflow = torch.stack(finite).all().logical_not()
        if any(g is not None and g.layout is not torch.strided for g in gradients):
            raise ValueError("train_step: a gradient is sparse, expected dense ones")
        for p, gradient in zip((p for p in of.trained() if p.requires_grad), gradients):
            own[id(p)].grad = gradient
        before = parts.state
        # The optimizer writes to its state.
        state = tree_map(lambda v: v.clone() if torch.is_tensor(v) else v, before)
        after = _step(of.optimizer, own, state, parts.rates)
        states, made = [], []
        for old, now in zip(before, after):
            numbers = [key for key, value in now.items() if isinstance(value, (int, float)) and not isinstance(value, bool)]
            if any(key not in old or now[key] != old[key] for key in numbers):
                raise ValueError("train_step: the optimizer changes numbers of its state that are no tensors")
            states += [now[key] for key, value in old.items() if torch.is_tensor(value)]
            made += [value for key, value in now.items() if torch.is_tensor(value) and key not in old]
        new, moved = [leaf.detach() for leaf in leaves], []
        if parts.scaling:
            chosen = lambda old, new: [torch.where(overflow, a, b.to(a.dtype)) for a, b in zip(old, new)]
            new, states = chosen(parts.parameters, new), chosen(tensors_of(before), states)
            moved = _rescaled(of.scaler, *parts.scaling, overflow)
        return [overflow, *new, *(parts.buffers if buffers is None else buffers), *states, *moved, *made]

    def wanted() -> list[torch.nn.Parameter]:
        return [p for p in of.trained() if p.requires_grad]

    def whole(*values: torch.Tensor) -> Tensors:
        parts = _Parts(of, values)
        leaves = [
            value.clone().requires_grad_(p.requires_grad) for p, value in zip(of.model.parameters(), parts.parameters)
        ]
        with torch.enable_grad():
            value, buffers = evaluate(parts, leaves)
            own = {id(p): leaf for p, leaf in zip(of.model.parameters(), leaves)}
            scaled = value * parts.scaling[0] if parts.scaling else value
            gradients = torch.autograd.grad(scaled, [own[id(p)] for p in wanted()], allow_unused=True)
        return [value.detach().clone(), *update(parts, leaves, buffers, list(gradients))]

    if of.policy is None:
        graph = _graph(of, whole, values, decompositions, False)
        return Traced(graph, None, after)

    def alone(*values: torch.Tensor) -> Tensors:
        parts = _Parts(of, values)
        value, buffers = evaluate(parts, parts.parameters)
        return [value, *buffers]

    forwards = _graph(of, alone, values, decompositions, True)
    names = [id(p) for p in of.model.parameters()]
    places = [names.index(id(p)) for p in wanted()]
    inputs_ = [node for node in forwards.graph.nodes if node.op == "placeholder"]
    known = needed([forwards.graph.output_node().args[0][0]], without_gradient(forwards.graph))
    reached = [at for at in places if inputs_[at] in known]

    def rest(*values: torch.Tensor) -> Tensors:
        parts = _Parts(of, values)
        leaves = [value.clone() for value in parts.parameters]
        found = dict(zip(reached, parts.take(len(reached))))
        with torch.no_grad():
            return update(parts, leaves, None, [found.get(at) for at in places])

    count = len(of.slots()) + len(of.optimizer.param_groups)
    gradients = [torch.zeros_like(values[at]) for at in reached]
    return Traced(forwards, _graph(of, rest, [*values[:count], *gradients], decompositions, False), after, reached)


def _graph(
    of: Subject, f: Callable[..., Tensors], values: Tensors, decompositions: dict[Any, Any], is_whole: bool
) -> GraphModule:
    """The graph of a function. If it is whole, functions of PyTorch that policies know by name are not taken apart."""
    flagged = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    mode = FunctionalTensorMode(pre_dispatch=True, export=True) if is_whole else FunctionalTensorMode()
    try:
        tracer = make_fx(
            dispatch_functionalize(f, mode),
            decomposition_table={} if is_whole else decompositions,
            tracing_mode="fake",
            record_stack_traces=True,
            pre_dispatch=is_whole,
        )
        with torch.enable_grad(), _noted(of), contextlib.nullcontext() if is_whole else DenseHeads():
            graph = tracer(*(value.detach() for value in values))
    finally:
        torch.compiler._is_compiling_flag = flagged
    _keep_factors(graph.graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


@contextlib.contextmanager
def _noted(of: Subject) -> Iterator[None]:
    """Has nodes note the module that makes them, and the line: in a `forward`, or in the loss."""
    for function in (of.loss, inspect.unwrap(type(of.optimizer).step)):
        proxy._register_stack_trace_anchor(getattr(function, "func", function))
    names = {module: name for name, module in of.model.named_modules()}
    stack: list[str] = []

    def enter(module: torch.nn.Module, _given: Any) -> None:
        stack.append(names.get(module, stack[-1] if stack else ""))
        traceback.current_meta["nn_module_stack"] = {name: (name, "") for name in stack[-1:]}

    def leave(_module: torch.nn.Module, _given: Any, _result: Any) -> None:
        stack.pop()
        traceback.current_meta["nn_module_stack"] = {name: (name, "") for name in stack[-1:]}

    nodes = torch.nn.modules.module
    hooks = [nodes.register_module_forward_pre_hook(enter), nodes.register_module_forward_hook(leave, always_call=True)]
    try:
        with traceback.preserve_node_meta():
            yield
    finally:
        for hook in hooks:
            hook.remove()


def needed(roots: list[Any], without: set[Node] | None = None) -> set[Node]:
    """The nodes that these depend on, not by way of those `without`."""
    found: set[Node] = set()
    todo = [node for node in roots if isinstance(node, Node)]
    while todo:
        node = todo.pop()
        if node not in found and node not in (without or ()):
            found.add(node)
            todo.extend(node.all_input_nodes)
    return found


def without_gradient(graph: torch.fx.Graph) -> set[Node]:
    """The nodes of a graph of functions that were called where gradients are off, and those that detach."""
    found, is_on = set(), True
    for node in graph.nodes:
        if node.target is torch._C._set_grad_enabled:
            is_on = bool(node.args[0])
        elif node.op == "call_function" and (not is_on or node.target is torch.ops.aten.detach.default):
            found.add(node)
    return found


def _keep_factors(graph: torch.fx.Graph) -> None:
    """Computes with learning rates as tensors where the optimizer took their numbers, which a graph cannot know."""
    aten = torch.ops.aten
    for node in list(graph.nodes):
        name = "alpha" if node.target is aten.add.Tensor else "value"
        number = node.kwargs.get(name)
        if not isinstance(number, Node) or number.target is not aten._local_scalar_dense.default:
            continue
        x, a, *b = node.args
        with graph.inserting_before(node):
            term = graph.call_function(aten.mul.Tensor, (a, number.args[0]))
            for other in b:
                join = aten.div.Tensor if node.target is aten.addcdiv.default else aten.mul.Tensor
                term = graph.call_function(join, (term, other))
            total = graph.call_function(aten.add.Tensor, (x, term))
        total.meta = node.meta
        node.replace_all_uses_with(total)
        graph.erase_node(node)


def _step(
    optimizer: torch.optim.Optimizer, own: dict[int, torch.Tensor], state: list[dict[str, Any]], rates: Tensors
) -> list[dict[str, Any]]:
    """Lets the optimizer update tensors in the place of its parameters; gives the state that it has then."""
    step = inspect.unwrap(type(optimizer).step)
    kept, groups = optimizer.state, [dict(group) for group in optimizer.param_groups]
    of = [own[id(p)] for group in groups for p in group["params"]]
    try:
        optimizer.state = defaultdict(dict, {p: dict(one) for p, one in zip(of, state) if one})
        for group, rate in zip(optimizer.param_groups, rates):
            group.update(params=[own[id(p)] for p in group["params"]], lr=rate, foreach=False)
        with torch.no_grad():
            step(optimizer)
        return [dict(optimizer.state.get(p, {})) for p in of]
    finally:
        optimizer.state = kept
        for group, before in zip(optimizer.param_groups, groups):
            group.clear()
            group.update(before)


def _rescaled(scaler: Any, scale: torch.Tensor, count: torch.Tensor, overflow: torch.Tensor) -> Tensors:
    """The next scale and count, as `GradScaler.update` has them."""
    grows = count + 1 == scaler.get_growth_interval()
    larger = scale * scaler.get_growth_factor()
    grown = torch.where(grows & larger.isfinite(), larger, scale)
    return [
        torch.where(overflow, scale * scaler.get_backoff_factor(), grown),
        torch.where(overflow | grows, torch.zeros_like(count), count + 1),
    ]
