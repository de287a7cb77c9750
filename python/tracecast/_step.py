"""Training steps as one program: forward, backward, unscaling and its check, and the update of the optimizer."""

from __future__ import annotations

import contextlib
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from ._compiled import Options, compile_graph

Tensors = list[torch.Tensor]


class Step:
    """What `train_step` returns."""

    def __init__(
        self,
        model: torch.nn.Module,
        loss: Callable[..., torch.Tensor],
        optimizer: torch.optim.Optimizer,
        autocast: torch.dtype | None,
        scaler: torch.amp.GradScaler | None,
        options: Options,
        decompositions: dict[Any, Any],
    ) -> None:
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self.autocast, self.scaler = autocast, scaler
        self.options, self.decompositions = options, decompositions
        known = {id(p) for p in model.parameters()}
        self.trained = [p for group in optimizer.param_groups for p in group["params"]]
        if any(id(p) not in known for p in self.trained):
            raise ValueError("train_step: the optimizer has a parameter that the model does not have")
        for group in optimizer.param_groups:
            if group.get("differentiable") or group.get("fused"):
                raise ValueError("train_step: the optimizer is differentiable or fused, expected neither")
        self.programs: dict[Any, _Program] = {}

    def __call__(self, *inputs: Any) -> torch.Tensor:
        """Makes a step; gives the loss."""
        state = [self.optimizer.state.get(p, {}) for p in self.trained]
        numbers = [group["lr"] for group in self.optimizer.param_groups]
        key = self._key(state, inputs)
        program = self.programs.get(key)
        given, structure = tree_flatten(inputs)
        scaling = self._scaling()
        old = [*self.model.parameters(), *self.model.buffers(), *_tensors(state), *scaling]
        rates = [torch.as_tensor(rate, dtype=torch.float32) for rate in numbers]
        values = [*old, *rates, *filter(torch.is_tensor, given)]
        if program is None:
            program = _Program(self, state, given, structure, values)
            self.programs[key] = program
        return program(self, old, values)

    def _key(self, state: list[dict[str, Any]], inputs: Any) -> Any:
        """What a program depends on: constants of the optimizer, the state that it has, modes of modules, types of inputs."""
        known = [[(k, torch.is_tensor(v) or v) for k, v in one.items()] for one in state]
        groups = [
            [(k, v) for k, v in group.items() if k not in ("params", "lr", "initial_lr")]
            for group in self.optimizer.param_groups
        ]
        modes = [module.training for module in self.model.modules()]
        types = [(x.dtype, x.shape, x.stride()) if torch.is_tensor(x) else x for x in tree_leaves(inputs)]
        return repr((known, groups, modes, types))

    def _scaling(self) -> Tensors:
        """The scale and the count of good steps, which belong to the scaler."""
        scaler = self.scaler
        if scaler is None or not scaler.is_enabled():
            return []
        if scaler._scale is None:
            scaler._lazy_init_scale_growth_tracker(torch.device("cpu"))
        return [scaler._scale, scaler._growth_tracker]


class _Program:
    """A step for one kind of state and inputs, as a graph that gives the loss, whether gradients overflowed, and all new values."""

    def __init__(
        self, of: Step, state: list[dict[str, Any]], given: list[Any], structure: Any, values: Tensors
    ) -> None:
        self.is_first = not any(state)
        self.structure: list[dict[str, Any]] = []

        def traced(*values: torch.Tensor) -> Tensors:
            rest = list(values)
            take = lambda count: [rest.pop(0) for _ in range(count)]
            names = [name for name, _ in of.model.named_parameters()]
            leaves = {
                name: value.clone().requires_grad_(p.requires_grad)
                for (name, p), value in zip(of.model.named_parameters(), take(len(names)))
            }
            buffers = {name: value.clone() for (name, _), value in zip(of.model.named_buffers(), take(_count(of.model.buffers())))}
            before = tree_map(lambda v: take(1)[0] if torch.is_tensor(v) else v, state)
            old = [*values[: len(names)], *_tensors(before)]
            # The optimizer writes to its state.
            before = tree_map(lambda v: v.clone() if torch.is_tensor(v) else v, before)
            scaling = take(len(of._scaling()))
            rates = take(len(of.optimizer.param_groups))
            inputs = tree_unflatten([take(1)[0] if torch.is_tensor(x) else x for x in given], structure)

            with _reparametrize_module(of.model, {**leaves, **buffers}, tie_weights=True):
                with torch.autocast("cpu", of.autocast, enabled=of.autocast is not None):
                    value = of.loss(of.model, *inputs)
            if value.dim() != 0:
                raise ValueError(f"train_step: the loss has shape {tuple(value.shape)}, expected a single number")
            own = {id(p): leaf for (_, p), leaf in zip(of.model.named_parameters(), leaves.values())}
            trained = [own[id(p)] for p in of.trained if p.requires_grad]
            gradients = torch.autograd.grad(value * scaling[0] if scaling else value, trained, allow_unused=True)
            overflow = torch.zeros((), dtype=torch.bool)
            if scaling:
                inverse = scaling[0].double().reciprocal().float()
                gradients = [g if g is None else g * inverse.to(g.dtype) for g in gradients]
                finite = [g.isfinite().all() for g in gradients if g is not None]
                overflow = torch.stack(finite).all().logical_not()
            for leaf, gradient in zip(trained, gradients):
                leaf.grad = gradient
            after = _update(of.optimizer, own, before, rates)
            self.structure = after
            new = [*(leaf.detach() for leaf in leaves.values()), *_tensors(after)]
            if scaling and not self.is_first:
                new = [torch.where(overflow, a, b.to(a.dtype)) for a, b in zip(old, new)]
            elif scaling:
                new[: len(names)] = [torch.where(overflow, a, b) for a, b in zip(old, new)]
            moved = _rescaled(of.scaler, *scaling, overflow) if scaling else []
            state_from = len(names)
            ordered = [*new[:state_from], *(b.detach() for b in buffers.values()), *moved, *new[state_from:]]
            return [value.detach().clone(), overflow, *ordered]

        flagged = torch.compiler._is_compiling_flag
        torch.compiler._is_compiling_flag = True
        try:
            tracer = make_fx(
                dispatch_functionalize(traced),
                decomposition_table=of.decompositions,
                tracing_mode="fake",
                record_module_stack=True,
                record_stack_traces=True,
            )
            graph = tracer(*values)
        finally:
            torch.compiler._is_compiling_flag = flagged
        _keep_factors(graph.graph)
        graph.graph.eliminate_dead_code()
        graph.recompile()
        self.run = compile_graph(graph, "step", of.options)
        self.kept = _count(of.model.parameters()) + _count(of.model.buffers()) + len(of._scaling())

    def __call__(self, of: Step, old: Tensors, values: Tensors) -> torch.Tensor:
        loss, overflow, *new = self.run([v.detach() for v in values])
        state_new = new[self.kept :]
        with torch.no_grad():
            if not self.is_first:
                # The state of `old` stands before the scale.
                state_old = old[self.kept - len(of._scaling()) :][: len(state_new)]
                rest = [*old[: self.kept - len(of._scaling())], *of._scaling()]
                torch._foreach_copy_([*rest, *state_old], [*new[: self.kept], *state_new])
                return loss
            torch._foreach_copy_([*old], new[: self.kept])
            if not overflow:
                left = iter(state_new)
                for p, one in zip(of.trained, self.structure):
                    if one:
                        of.optimizer.state[p] = {k: next(left) if torch.is_tensor(v) else v for k, v in one.items()}
        return loss


def _keep_factors(graph: torch.fx.Graph) -> None:
    """Computes with learning rates as tensors where the optimizer took their numbers, which a graph cannot know."""
    aten = torch.ops.aten
    for node in list(graph.nodes):
        name = "alpha" if node.target is aten.add.Tensor else "value"
        number = node.kwargs.get(name)
        if not isinstance(number, torch.fx.Node) or number.target is not aten._local_scalar_dense.default:
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


def _count(values: Iterator[Any]) -> int:
    return sum(1 for _ in values)


def _tensors(state: list[dict[str, Any]]) -> Tensors:
    return [v for one in state for v in one.values() if torch.is_tensor(v)]


def _update(
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
