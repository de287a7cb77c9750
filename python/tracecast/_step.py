"""Training steps as one program, which updates parameters, buffers and the states of optimizer and scaler in place."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_flatten

from ._capture import Calls, Layout, is_call, memory, numbers_of, port, refused
from ._compiled import Options, compile_graph
from ._loaded import Error, native
from ._save import save
from ._stats import counts, say_on_cpu
from ._traced import Subject, Tensors, Traced, needed, trace, without_gradient

_ALIGNMENT = 64
"""Bytes that memory of a state is aligned to, as all that PyTorch allocates is."""

_MOST = 8
"""The most sets of objects and layouts for which a step keeps a compiled program."""

_ALIASES = {"clone.default", "detach.default", "alias.default", "lift_fresh_copy.default"}


class Step:
    """What `train_step` returns."""

    def __init__(self, of: Subject, options: Options, decompositions: dict[Any, Any]) -> None:
        self.of, self.options, self.decompositions = of, options, decompositions
        known = {id(p) for p in of.model.parameters()}
        if any(id(p) not in known for p in of.trained()):
            raise ValueError("train_step: the optimizer has a parameter that the model does not have")
        for group in of.optimizer.param_groups:
            if group.get("differentiable") or group.get("fused"):
                raise ValueError("train_step: the optimizer is differentiable or fused, expected neither")
        self.programs: dict[Any, _Program] = {}
        self.ready: list[_Ready] = []
        self.last: _Program | None = None

    def __call__(self, *inputs: Any) -> torch.Tensor:
        """Makes a step; gives the loss."""
        for at, ready in enumerate(self.ready):
            loss = ready(inputs)
            if loss is not None:
                if at:
                    self.ready.insert(0, self.ready.pop(at))
                return loss
        return self._prepared(inputs)

    def explain(self, node: str | None = None, *, as_json: bool = False) -> Any:
        """Why each op of the last step has its dtype: the rule of the policy and the line of the program; what has become of each
        cast; what is odd about the numbers. `node` limits it to one, such as `mm#0`; as JSON it is a dict.

        Raises `RuntimeError` before the first step, and if PyTorch runs a part of it.
        """
        if self.last is None or self.last.compiled is None:
            why = "no step was made yet" if self.last is None else "PyTorch runs a part of the step"
            raise RuntimeError(f"there is nothing to explain: {why}")
        text = self.last.compiled.explain(node, as_json)
        return json.loads(text) if as_json else text

    def _prepared(self, inputs: tuple[Any, ...]) -> torch.Tensor:
        of = self.of
        given, structure = flat(inputs)
        slots = of.slots()
        places = lendable(slots, self.options.device)
        rates = [torch.as_tensor(group["lr"], dtype=torch.float32) for group in of.optimizer.param_groups]
        values = [*slots, *rates, *filter(torch.is_tensor, given)]
        key = self._key(slots, places, [*given, str(structure)])
        program = self.programs.get(key)
        is_new = program is None
        if program is None:
            traced = trace(of, given, structure, values, self.decompositions)
            program = _Program(self, traced, places, values)
            self.programs[key] = program
        self.last = program
        if program.compiled is None:
            return program.run_in_parts(of, slots, values)
        ready = _Ready(of, program, inputs)
        if is_new:
            say_on_cpu(self.options.device, ready.native.on_cpu)
        loss = ready(inputs)
        if loss is None:
            raise Error("train_step: a tensor has another layout than it says")
        if not program.made:
            self.ready.insert(0, ready)
            del self.ready[_MOST:]
        return loss

    def _key(self, slots: Tensors, places: list[bool], given: list[Any]) -> str:
        """What a program depends on: constants of optimizer and scaler, the state there is, modes of modules, types."""
        of = self.of
        state = [[(k, torch.is_tensor(v) or v) for k, v in one.items()] for one in of.state()]
        constants = [
            [(k, v) for k, v in group.items() if k not in ("params", "lr", "initial_lr")]
            for group in of.optimizer.param_groups
        ]
        sizes = [len(group["params"]) for group in of.optimizer.param_groups]
        modes = [module.training for module in of.model.modules()]
        trained = [p.requires_grad for p in of.model.parameters()]
        types = [(x.dtype, x.shape, x.layout, strides(x)) if torch.is_tensor(x) else x for x in (*slots, *given)]
        scaler = [str(value) for _, value in scaler_numbers(of.scaler)]
        return repr((state, constants, sizes, modes, trained, types, places, scaler, torch.get_num_threads()))


class _Program:
    """A step, compiled for one kind of state and inputs; without `compiled` PyTorch runs a part of it."""

    def __init__(self, step: Step, traced: Traced, places: list[bool], values: Tensors) -> None:
        start = time.perf_counter()
        of, self.structure = step.of, traced.structure
        state = of.state()
        self.made = [
            (at, key) for at, one in enumerate(traced.structure) for key in one if key not in state[at]
        ]
        self.name, self.count = f"step_{counts.graphs}", len(places)
        self.compiled: native.Compiled | None = None
        faults = {} if traced.update else _faults(traced.whole, values)
        if faults:
            self.parts = compile_graph(traced.whole, "step", step.options)
            return
        counts.graphs += 1
        counts.recompilations += step.last is not None and not step.last.made
        record = _Record(of, traced, places, values, self.name, bool(self.made))
        self.slots, self.inputs, self.results = record.slots, record.inputs, record.results
        self.copied, self.states, self.constants = record.copied, record.states, record.constants
        counts.nodes += record.nodes
        program = native.Program(record.text)
        if traced.update and (wrong := program.check()):
            raise Error("\n".join(["a policy takes whole steps, and these ops cannot be compiled:", *(w for _, w in wrong)]))
        low = str(of.autocast).removeprefix("torch.") if of.autocast is not None else None
        policy = (of.policy, low) if of.policy is not None else (None, None)
        self.compiled = program.compile(torch.get_num_threads(), step.options.device, *policy)
        if step.options.save is not None:
            save(step.options.save / self.name, self.compiled.text, record.arrays)
        counts.compile_s += time.perf_counter() - start

    def run_in_parts(self, of: Subject, slots: Tensors, values: Tensors) -> torch.Tensor:
        """Makes a step whose graph PyTorch runs, with programs for parts of it; copies all results."""
        loss, overflow, *new = self.parts([v.detach() for v in values])
        with torch.no_grad():
            torch._foreach_copy_(slots, new[: self.count])
        self.keep(of, overflow, new[self.count :])
        return loss

    def keep(self, of: Subject, overflow: torch.Tensor | None, made: Tensors) -> None:
        """Gives the optimizer the states that it did not have before."""
        if self.made and (overflow is None or not overflow):
            left, trained = iter(made), of.trained()
            for at, key in self.made:
                value = self.structure[at][key]
                of.optimizer.state[trained[at]][key] = next(left) if torch.is_tensor(value) else value


class _Record:
    """The calls of a step, and where its inputs and results lie."""

    def __init__(
        self, of: Subject, traced: Traced, places: list[bool], values: Tensors, name: str, makes_state: bool
    ) -> None:
        graph, update = traced.whole.graph, traced.update
        calls = Calls(numbers_of({}), {} if update is None else {update.graph: "update."})
        nodes = [node for node in graph.nodes if node.op == "placeholder"]
        outputs = list(graph.output_node().args[0])
        old = nodes[: len(places)]
        behind = [] if update is None else list(update.graph.output_node().args[0])
        if update is not None:
            loss, new = outputs[0], dict(enumerate(behind[1 : 1 + len(places)]))
            parameters = sum(1 for _ in of.model.parameters())
            new |= {parameters + at: node for at, node in enumerate(outputs[1:])}
            overflow, made = behind[0], behind[1 + len(places) :]
        else:
            loss, overflow, new, made = outputs[0], outputs[1], dict(enumerate(outputs[2 : 2 + len(places)])), outputs[2 + len(places) :]
        inputs_of_update = [] if update is None else [n for n in update.graph.nodes if n.op == "placeholder"]
        unchanged = lambda at: source(new[at]) in (old[at], *inputs_of_update[at : at + 1])
        changed = [at for at in range(len(places)) if not unchanged(at)]
        self.states = [at for at in changed if places[at]]
        copied = [at for at in changed if not places[at]]
        self.slots, self.copied = len(places), copied

        held = [(node, _attribute(traced.whole, node)) for node in graph.nodes if node.op == "get_attr"]
        if update is not None:
            held += [(node, _attribute(update, node)) for node in update.graph.nodes if node.op == "get_attr"]
        self.constants = [value for _, value in held]
        nodes, values = [*nodes, *(node for node, _ in held)], [*values, *self.constants]
        layouts = [Layout(tuple(value.shape), tuple(value.stride())) for value in values]
        kept = [loss, *([overflow] if of.scaling() and makes_state else []), *made, *(new[at] for at in copied)]
        wanted = needed([*kept, *(new[at] for at in self.states)])
        if update is not None:
            wanted |= needed([loss])
        second = dict(zip(inputs_of_update, [*nodes[: len(places) + len(of.optimizer.param_groups)], *traced.reached]))
        backwards = {first: node for node, first in second.items() if isinstance(first, Node)}
        self.inputs = []
        for at, (node, value, layout) in enumerate(zip(nodes, values, layouts)):
            is_state = at in self.states
            if is_state or node in wanted or backwards.get(node) in wanted or at in traced.reached:
                calls.add_input(node, value.dtype, value.shape, layout.order())
                if not is_state:
                    self.inputs.append(at)
        constant = set() if update is None else without_gradient(graph)
        for node in graph.nodes:
            if node in wanted and is_call(node):
                calls.add_node(node)
            if node in wanted and node in constant and torch.is_tensor(node.meta.get("val")):
                calls.add(f"{node.name}.constant", "detach.default", [calls.argument(node)])
                calls.places[node] = f"{node.name}.constant", 0
        in_region = len(calls.calls) if update is not None else 0
        if update is not None:
            for node, first in second.items():
                calls.places[node] = (first.name, 0) if isinstance(first, Node) else ("gradients", traced.reached.index(first))
            scaled = calls.place(loss)
            if of.scaling():
                calls.add("scaled", "mul.Tensor", [calls.argument(loss), calls.argument(nodes[len(places) - 2])])
                scaled = ("scaled", 0)
            calls.add_gradients("gradients", scaled, [calls.place(nodes[at]) for at in traced.reached])
            for node in update.graph.nodes:
                if node in wanted and is_call(node):
                    calls.add_node(node)
        self.nodes = len(calls.calls)

        sizes = numbers_of({})
        found = [Layout.of(node.meta["val"], sizes).computed(node) for node in kept]
        self.results = [(layout.size, layout.stride) for layout in found]
        given = [calls.add_output(node, layout.order()) for node, layout in zip(kept, found)]
        updates = [(port(nodes[at].name, layouts[at].order()), calls.add_output(new[at], layouts[at].order())) for at in self.states]
        trained = sum(1 for _ in of.model.parameters())
        floats = [at for at in self.states if at < trained]
        self.text = calls.program(
            name,
            given,
            updates=updates,
            parameters=[port(nodes[at].name, layouts[at].order()) for at in floats],
            in_region=in_region,
        )
        of_port = [(nodes[at].name, values[at], layouts[at].order()) for at in sorted([*self.states, *self.inputs])]
        self.arrays = dict(memory(*one) for one in of_port)


class _Ready:
    """A program with the objects of PyTorch that it runs on. It holds while they are the same."""

    def __init__(self, of: Subject, program: _Program, inputs: tuple[Any, ...]) -> None:
        self.of, self.program = of, program
        given, self.structure = flat(inputs)
        self.is_flat = all(map(torch.is_tensor, inputs))
        self.constants = [x for x in given if not torch.is_tensor(x)]
        tensors = [x for x in given if torch.is_tensor(x)]
        self.count = len(inputs)
        slots, groups = of.slots(), of.optimizer.param_groups
        sources = [*slots, *groups, *range(len(tensors)), *program.constants]
        values = [*slots, *(torch.zeros(()) for _ in groups), *tensors, *program.constants]
        strided = lambda x: (tuple(x.shape), tuple(x.stride()))
        self.native = program.compiled.step(
            native.Guard(guarded(of)),
            (
                [(slots[at], strided(slots[at])) for at in program.states],
                [(sources[at], strided(values[at])) for at in program.inputs],
                program.results,
                [slots[at] for at in program.copied],
            ),
        )
        self.draws, self.makes = self.native.draws, bool(program.made)

    def __call__(self, inputs: tuple[Any, ...]) -> torch.Tensor | None:
        """The loss; `None` if the objects or the inputs are others."""
        if not self.is_flat:
            given, structure = flat(inputs)
            constants = [x for x in given if not torch.is_tensor(x)]
            if structure != self.structure or constants != self.constants:
                return None
            inputs = tuple(x for x in given if torch.is_tensor(x))
        elif len(inputs) != self.count:
            return None
        seed = int(torch.empty((), dtype=torch.int64).random_()) if self.draws else 0
        results = self.native.run(inputs, seed)
        if results is None:
            return None
        if self.makes:
            has_flag = bool(self.of.scaling())
            self.program.keep(self.of, results[1] if has_flag else None, results[1 + has_flag :])
        return results[0]


def flat(inputs: Any) -> tuple[list[Any], Any]:
    """The leaves of the inputs, and how they are nested. What lends its memory by DLPack, such as an array of numpy, is a tensor."""
    leaves, structure = tree_flatten(inputs)
    is_lent = lambda x: hasattr(x, "__dlpack__") and not torch.is_tensor(x)
    return [torch.from_dlpack(x) if is_lent(x) else x for x in leaves], structure


def guarded(of: Subject) -> list[tuple[Any, Any, Any]]:
    """What a program depends on in the objects of PyTorch: `(object, key, value)`."""
    parts: list[tuple[Any, Any, Any]] = []
    for module in of.model.modules():
        parts.append((module.__dict__, "training", module.training))
        for held in (module._parameters, module._buffers, module._modules):
            parts.append((held, None, len(held)))
            parts += [(held, key, value) for key, value in held.items()]
    parts += [(p, "requires_grad", p.requires_grad) for p in of.model.parameters()]
    optimizer = of.optimizer
    parts.append((optimizer.__dict__, "param_groups", optimizer.param_groups))
    parts.append((optimizer.__dict__, "state", optimizer.state))
    parts.append((optimizer.param_groups, None, len(optimizer.param_groups)))
    parts.append((optimizer.state, None, len(optimizer.state)))
    for at, group in enumerate(optimizer.param_groups):
        parts.append((optimizer.param_groups, at, group))
        parts += [(group, key, value) for key, value in group.items() if key not in ("lr", "initial_lr")]
        parts.append((group["params"], None, len(group["params"])))
        parts += [(group["params"], number, p) for number, p in enumerate(group["params"])]
    for p, one in optimizer.state.items():
        parts.append((optimizer.state, p, one))
        parts.append((one, None, len(one)))
        parts += [(one, key, value) for key, value in one.items()]
    if of.scaler is not None:
        parts += [(of.scaler.__dict__, key, value) for key, value in scaler_numbers(of.scaler)]
        parts += [(of.scaler.__dict__, key, of.scaler.__dict__.get(key)) for key in ("_scale", "_growth_tracker")]
    return parts


def scaler_numbers(scaler: torch.amp.GradScaler | None) -> list[tuple[str, Any]]:
    """What is constant about a scaler."""
    names = ("_enabled", "_growth_factor", "_backoff_factor", "_growth_interval")
    return [] if scaler is None else [(name, scaler.__dict__.get(name)) for name in names]


def lendable(tensors: Tensors, device: str) -> list[bool]:
    """Which tensors a program can update in place: each element lies once in aligned memory that no other tensor shares, and
    nothing lies between the elements."""
    strided = [tensor for tensor in tensors if tensor.layout is torch.strided and tensor.is_cpu]
    shared = Counter(tensor.untyped_storage().data_ptr() for tensor in strided)

    def is_lendable(tensor: torch.Tensor) -> bool:
        if device != "cpu" or tensor.layout is not torch.strided or not tensor.is_cpu or tensor.numel() == 0:
            return False
        order = Layout(tuple(tensor.shape), tuple(tensor.stride())).order()
        is_alone = shared[tensor.untyped_storage().data_ptr()] == 1
        return is_alone and order is not None and not order[1] and tensor.data_ptr() % _ALIGNMENT == 0 and not tensor.is_neg()

    return [is_lendable(tensor) for tensor in tensors]


def strides(tensor: torch.Tensor) -> tuple[int, ...]:
    return tensor.stride() if tensor.layout is torch.strided else ()


def source(node: Any) -> Any:
    """The node that this one is a copy of."""
    while isinstance(node, Node) and node.op == "call_function" and str(node.target).removeprefix("aten.") in _ALIASES:
        node = node.args[0]
    return node


def _attribute(graph: GraphModule, node: Node) -> Any:
    value: Any = graph
    for name in str(node.target).split("."):
        value = getattr(value, name)
    return value


def _faults(graph: GraphModule, values: Tensors) -> dict[str, str]:
    nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
    constants = [node for node in graph.graph.nodes if node.op == "get_attr"]
    found = dict(zip(nodes, values))
    found |= {node: _attribute(graph, node) for node in constants}
    return refused(graph, found, numbers_of({}))
