"""Graphs as callables, compiled for each set of layouts that they meet. PyTorch runs what Tracecast lacks."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.utils._pytree import tree_leaves, tree_map

from ._capture import (
    Calls,
    Layout,
    Sizes,
    is_call,
    is_view,
    memory,
    named,
    numbers_of,
    overload,
    ranges,
    refused,
    symbols_of,
)
from ._loaded import Error, native
from ._save import save
from ._stats import counts, say_on_cpu

Give = Callable[[list[Any], list[Any]], Any]
"""Gives an output of a graph from the inputs and the computed results."""


@dataclass(frozen=True)
class Options:
    """What `torch.compile(..., options={...})` chooses."""

    fullgraph: bool = False
    save: Path | None = None
    device: str = "cpu"

    @staticmethod
    def of(given: dict[str, Any]) -> Options:
        unknown = given.keys() - {"fullgraph", "save", "device"}
        if unknown:
            raise ValueError(f"tracecast has the options fullgraph, save and device, found {sorted(unknown)}")
        save, device = given.get("save"), str(given.get("device", "cpu"))
        if device not in native.devices():
            raise ValueError(f"tracecast has the devices {', '.join(native.devices())}, found {device!r}")
        return Options(bool(given.get("fullgraph", False)), Path(save) if save is not None else None, device)


def compile_graph(gm: GraphModule, kind: str, options: Options) -> Callable[[list[Any]], Any]:
    """A graph of AOTAutograd as a function of a list, which it empties."""
    name = f"{kind}_{counts.graphs}"
    counts.graphs += 1
    counts.nodes += sum(map(is_call, gm.graph.nodes))
    run: Callable[..., Any] | None = None

    def boxed(arguments: list[Any]) -> Any:
        nonlocal run
        values = tuple(arguments)
        arguments.clear()
        if run is None:
            run = chosen(gm, name, options, values)
        return run(*values)

    boxed._boxed_call = True  # type: ignore[attr-defined]
    return boxed


def chosen(gm: GraphModule, name: str, options: Options, arguments: tuple[Any, ...]) -> Callable[..., Any]:
    """What runs a graph, as its first arguments show: one program, or PyTorch with programs for parts."""
    start = time.perf_counter()
    _, _, values = inputs_of(gm, arguments)
    faults = refused(gm, values, numbers_of(symbols_of(values)))
    run: Callable[..., Any] = Compiled(gm, name, options)
    if faults:
        say(gm, faults, options)
        run = partitioned(gm, name, faults, options)
    counts.compile_s += time.perf_counter() - start
    return run


def inputs_of(gm: GraphModule, arguments: tuple[Any, ...]) -> tuple[list[Node], list[Any], dict[Node, Any]]:
    """The nodes of arguments and constants, the constants, and the values of the nodes."""
    nodes = [node for node in gm.graph.nodes if node.op == "placeholder"]
    attributes = [node for node in gm.graph.nodes if node.op == "get_attr"]
    constants = [_attribute(gm, str(node.target)) for node in attributes]
    nodes += attributes
    return nodes, constants, dict(zip(nodes, (*arguments, *constants), strict=True))


def say(gm: GraphModule, faults: dict[str, str], options: Options) -> None:
    """Names all ops that PyTorch has to run: a warning, or an error if the whole graph was to be compiled."""
    found = {node.name: overload(node) for node in gm.graph.nodes}
    missing = Counter(found[name] for name in faults)
    shown: dict[str, str] = {}
    for name, why in faults.items():
        shown.setdefault(found[name], why)
    rows = [f"  {missing[op]} × {shown[op]}" for op in sorted(missing)]
    text = "\n".join([f"PyTorch runs {len(faults)} ops that Tracecast cannot compile:", *rows])
    if options.fullgraph:
        raise Error(text)
    counts.missing.update(missing)
    warnings.warn(text, stacklevel=2)


def partitioned(gm: GraphModule, name: str, faults: dict[str, str], options: Options) -> GraphModule:
    """The graph with its largest parts that can be compiled as one call each."""

    class Support(OperatorSupportBase):
        def is_node_supported(self, submodules: Any, node: Node) -> bool:
            source = node
            while source.op == "call_function" and not is_call(source) and isinstance(source.args[0], Node):
                source = source.args[0]
            return node.op == "call_function" and source.name not in faults

    fused = CapabilityBasedPartitioner(gm, Support(), allows_single_node_partition=True).partition_and_fuse()
    for part, module in list(fused.named_children()):
        if part.startswith("fused_"):
            setattr(fused, part, Part(Compiled(module, f"{name}_{part}", options)))
    return fused


class Part(torch.nn.Module):
    """A compiled part of a graph that PyTorch runs."""

    def __init__(self, compiled: Compiled) -> None:
        super().__init__()
        self.forward = compiled  # type: ignore[assignment]


class Compiled:
    """A graph, compiled at the first call; again for layouts, sizes and numbers of threads that its programs do not hold for."""

    def __init__(self, gm: GraphModule, name: str, options: Options) -> None:
        self.gm, self.name, self.options = gm, name, options
        inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
        self.numbers = [at for at, node in enumerate(inputs) if not torch.is_tensor(node.meta.get("val"))]
        self.known: dict[tuple[Any, ...], list[Specialised]] = {}
        self.sized: list[tuple[Any, native.Compiled]] = []
        self.programs = 0
        self.refused = False

    def __call__(self, *arguments: Any) -> Any:
        key = (torch.get_num_threads(), *[arguments[at] for at in self.numbers])
        for one in self.known.get(key, ()):
            result = one(arguments)
            if result is not None:
                return result
        if self.refused:
            return self.gm(*arguments)
        start = time.perf_counter()
        try:
            made = Specialised(self, arguments)
        except Error as error:
            if self.options.fullgraph:
                raise
            self.refused = True
            ops = Counter(overload(node) for node in self.gm.graph.nodes if is_call(node))
            counts.missing.update(ops)
            text = f"PyTorch runs a graph of {ops.total()} ops that Tracecast cannot compile:"
            warnings.warn(f"{text}\n  {error}", stacklevel=2)
            return self.gm(*arguments)
        counts.compile_s += time.perf_counter() - start
        self.known.setdefault(key, []).insert(0, made)
        result = made(arguments)
        if result is None:
            raise Error(f"{self.name}: a tensor has another layout than it says")
        return result

    def program(
        self, record: Record, form: Any, layouts: Layouts, values: dict[Node, Any]
    ) -> tuple[native.Executable, str | None]:
        """The program that `record` gives, for inputs and results of these layouts, and its text if it was compiled now.

        It has names for sizes if it holds for more than these. Such a program serves all layouts of its form.
        """
        named_sizes = ranges(values)
        given = [(name, number) for name, _, _, number in named_sizes]
        for known, program in self.sized:
            if known == form:
                with contextlib.suppress(Error):
                    return program.at(given, *layouts), None
        for is_sized in (True, False) if named_sizes else (False,):
            try:
                text = record(named, named_sizes) if is_sized else record(numbers_of(symbols_of(values)), [])
                program = native.Program(text).compile(torch.get_num_threads(), self.options.device)
                executable = program.at(given if is_sized else [], *layouts)
            except (Error, ValueError):
                if is_sized:
                    continue
                raise
            if is_sized:
                self.sized.insert(0, (form, program))
            break
        say_on_cpu(self.options.device, executable.on_cpu)
        counts.recompilations += self.programs > 0
        self.programs += 1
        return executable, program.text


Record = Callable[[Sizes, list[Any]], str]
"""Gives the JSON of a program from what a size becomes and the sizes that are names."""

Layouts = tuple[list[Any], list[Any]]
"""Sizes and strides of inputs and results, as `native.Strided`."""


class Specialised:
    """A graph for the layouts of some arguments."""

    def __init__(self, of: Compiled, arguments: tuple[Any, ...]) -> None:
        graph = of.gm.graph
        nodes, self.constants, values = inputs_of(of.gm, arguments)
        self.sizes = numbers_of(symbols_of(values))
        returned = graph.output_node().args[0]
        self.is_single = not isinstance(returned, (list, tuple))
        leaves = [returned] if self.is_single else list(returned)
        computed: list[Node] = []
        self.gives = [self._give(leaf, nodes, computed) for leaf in leaves]
        self.executable = self._compile(of, computed, nodes, values) if computed else None

    def _give(self, leaf: Any, nodes: list[Node], computed: list[Node]) -> Give:
        """How an output comes from the inputs and the results. Views are PyTorch's, as in the graph."""
        if not isinstance(leaf, Node) or not torch.is_tensor(leaf.meta.get("val")):
            value = self.sizes(leaf.meta.get("val")) if isinstance(leaf, Node) else leaf
            return lambda inputs, results: value
        steps: list[Callable[[Any], Any]] = []
        while is_view(leaf):
            steps.insert(0, self._step(leaf))
            leaf = leaf.args[0]
        if leaf in nodes:
            at = nodes.index(leaf)
            start: Give = lambda inputs, results: inputs[at]
        else:
            if leaf not in computed:
                computed.append(leaf)
            at = computed.index(leaf)
            start = lambda inputs, results: results[at]
        if not steps:
            return start

        def give(inputs: list[Any], results: list[Any]) -> Any:
            value = start(inputs, results)
            for step in steps:
                value = step(value)
            return value

        return give

    def _step(self, node: Node) -> Callable[[Any], Any]:
        plain = lambda value: self.sizes(value.meta["val"] if isinstance(value, Node) else value)
        rest, keywords = tree_map(plain, (tuple(node.args[1:]), dict(node.kwargs)))
        target: Any = node.target
        return lambda value: target(value, *rest, **keywords)

    def _compile(
        self, of: Compiled, computed: list[Node], nodes: list[Node], values: dict[Node, Any]
    ) -> native.Executable:
        needed = set(computed)
        for node in reversed(of.gm.graph.nodes):
            if node in needed:
                needed.update(node.all_input_nodes)
        self.taken = [at for at, node in enumerate(nodes) if node in needed and torch.is_tensor(values[node])]
        inputs = [values[nodes[at]] for at in self.taken]
        given = [Layout(tuple(value.shape), tuple(value.stride())) for value in inputs]
        results = [Layout.of(node.meta["val"], self.sizes).computed(node) for node in computed]
        orders = [[layout.order() for layout in layouts] for layouts in (given, results)]

        def record(sizes: Sizes, named_sizes: list[Any]) -> str:
            calls = Calls(sizes)
            for at, value, order in zip(self.taken, inputs, orders[0]):
                stated = nodes[at].meta.get("val")
                shape = stated.shape if named_sizes and torch.is_tensor(stated) else value.shape
                calls.add_input(nodes[at], value.dtype, shape, order)
            for node in of.gm.graph.nodes:
                if node in needed and is_call(node):
                    calls.add_node(node)
            outputs = [calls.add_output(node, order) for node, order in zip(computed, orders[1])]
            return calls.program(of.name, outputs, named_sizes)

        pairs = lambda layouts: [(layout.size, layout.stride) for layout in layouts]
        form = (torch.get_num_threads(), [value.dtype for value in inputs], orders)
        executable, text = of.program(record, form, (pairs(given), pairs(results)), values)
        if of.options.save is not None and text is not None:
            names = [nodes[at].name for at in self.taken]
            arrays = dict(memory(*one) for one in zip(names, inputs, orders[0]))
            if executable.draws:
                arrays["rng"] = torch.zeros(2, dtype=torch.int64)
            save(of.options.save / f"{of.name}.{of.programs - 1}", text, arrays)
        counts.copies += executable.copies
        return executable

    def __call__(self, arguments: tuple[Any, ...]) -> Any:
        """The outputs, or `None` if the arguments have other layouts."""
        inputs = [*arguments, *self.constants]
        results: list[Any] | None = []
        if self.executable is not None:
            seed = int(torch.empty((), dtype=torch.int64).random_()) if self.executable.draws else 0
            results = self.executable.run([inputs[at] for at in self.taken], seed)
            if results is None:
                return None
        outputs = [give(inputs, results) for give in self.gives]
        return outputs[0] if self.is_single else outputs


def _attribute(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name)
    return module
