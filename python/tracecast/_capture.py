"""FX graphs of ATen ops as programs of Tracecast: which calls, which inputs, and where results come from.

No op is known here. Each node goes to the native table by its name.
"""

from __future__ import annotations

import json
import operator
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from . import _strides
from ._loaded import native

Sizes = Callable[[Any], Any]
"""Gives the number of a size: an `int`, or a `SymInt` of the graph."""

Order = tuple[tuple[int, ...], tuple[int, ...]] | None
"""The axes of a tensor in the order in which elements follow each other in memory, and the axes that repeat an element."""

_INNER = tuple(os.path.dirname(path) + os.sep for path in (torch.__file__, __file__))
_SYMBOLS = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
_NUMBERS = (int, float, *_SYMBOLS)
_LARGE = 2**31
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def number(dtype: torch.dtype) -> str:
    """The name of a dtype in `torch`."""
    return str(dtype).removeprefix("torch.")


def overload(node: Node) -> str:
    """The name of an overload as the table has it, such as `add.Tensor`."""
    return str(node.target).removeprefix("aten.") if node.op == "call_function" else node.op


def line(node: Node) -> str:
    """The innermost line of the user's program, or PyTorch's where there is none of the user's."""
    return innermost(_FRAME.findall(node.meta.get("stack_trace") or ""))


def innermost(frames: list[tuple[str, str]]) -> str:
    """The file and line of the innermost frame outside of PyTorch and of this package, or of theirs where all are."""
    own = [frame for frame in frames if not frame[0].startswith(_INNER)]
    return ":".join((own or frames)[-1]) if frames else ""


def scope(node: Node) -> str:
    """The path of the innermost module, such as `layers.0.fc`."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    path = next(reversed(stack.values()))[0] if stack else ""
    return re.sub(r"\[['\"]?([^'\"\]]*)['\"]?\]", r".\1", path).removeprefix("L.self").strip(".")


def is_view(node: Any) -> bool:
    """Whether a node is a view of its first argument, or one of several."""
    if not isinstance(node, Node) or node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return is_view(node.args[0])
    others = tree_leaves([node.args[1:], node.kwargs])
    tensors = [n for n in others if isinstance(n, Node) and torch.is_tensor(n.meta.get("val"))]
    return getattr(node.target, "is_view", False) and not tensors


def dense(size: tuple[int, ...], stride: tuple[int, ...]) -> Order:
    """The order of a tensor in memory; `None` if elements do not follow each other.

    Axes of one element, and those that repeat one (stride 0), come first.
    """
    repeated = tuple(axis for axis, n in enumerate(size) if n != 1 and stride[axis] == 0)
    many = [axis for axis, n in enumerate(size) if n != 1 and stride[axis] != 0]
    order = sorted(many, key=lambda axis: -stride[axis])
    step = 1
    for axis in reversed(order):
        if stride[axis] != step:
            return None
        step *= size[axis]
    if order == many:
        return tuple(range(len(size))), repeated
    return (*(axis for axis in range(len(size)) if axis not in many), *order), repeated


def port(name: str, order: Order) -> str:
    """The name of the input that is the memory of a tensor."""
    is_plain = order is None or (list(order[0]) == sorted(order[0]) and not order[1])
    return name if is_plain else f"{name}.memory"


def memory(name: str, tensor: torch.Tensor, order: Order) -> tuple[str, torch.Tensor]:
    """The input that is the memory of a tensor, and the tensor as it is there."""
    axes, repeated = order or (tuple(range(tensor.dim())), ())
    for axis in repeated:
        tensor = tensor.narrow(axis, 0, 1)
    return port(name, order), tensor.permute(axes)


def _pairs(values: dict[Node, Any]) -> Iterable[tuple[torch.SymInt, int]]:
    """The sizes, strides and numbers of inputs that are not fixed, and their values."""
    for node, value in values.items():
        stated = node.meta.get("val")
        pairs: Iterable[tuple[Any, Any]] = [(stated, value)]
        if torch.is_tensor(stated):
            pairs = [*zip(stated.shape, value.shape), *zip(stated.stride(), value.stride())]
        yield from ((size, int(found)) for size, found in pairs if isinstance(size, torch.SymInt))


def symbols_of(values: dict[Node, Any]) -> dict[sympy.Expr, int]:
    """The symbols of the sizes of a graph, with the numbers that its inputs give them."""
    return {size.node.expr: found for size, found in _pairs(values)}


def numbers_of(known: dict[sympy.Symbol, int]) -> Sizes:
    """Numbers for sizes, from those of the symbols. A size that depends on data stays a text."""

    def size(value: Any) -> Any:
        plain = _SYMBOLS.get(type(value))
        if plain is None:
            return value
        found = value.node.expr.xreplace(known)
        depends = isinstance(found, sympy.Basic) and found.free_symbols
        return str(value) if depends else plain(found)

    return size


def named(value: Any) -> Any:
    """A size as an expression of the symbols. Other numbers that depend on them are texts, which nothing takes."""
    if type(value) not in _SYMBOLS:
        return value
    if not isinstance(value, torch.SymInt):
        return str(value)
    return int(value.node.expr) if value.node.expr.is_Integer else {"size": str(value.node.expr)}


def ranges(values: dict[Node, Any]) -> list[tuple[str, int, int | None, int]]:
    """The symbols of a graph with their bounds, and the numbers that the inputs give them."""
    found = {}
    for size, number in _pairs(values):
        symbol = size.node.expr
        if symbol.is_Symbol:
            bounds = size.node.shape_env.var_to_range.get(symbol)
            least = max(int(bounds.lower), 0) if bounds is not None else 0
            most = int(bounds.upper) if bounds is not None and bounds.upper < _LARGE else None
            found[str(symbol)] = (str(symbol), least, most, number)
    return list(found.values())


@dataclass(frozen=True)
class Layout:
    """Sizes and strides of a tensor."""

    size: tuple[int, ...]
    stride: tuple[int, ...]

    @staticmethod
    def of(tensor: torch.Tensor, sizes: Sizes) -> Layout:
        return Layout(tuple(map(sizes, tensor.shape)), tuple(map(sizes, tensor.stride())))

    @staticmethod
    def row_major(size: tuple[int, ...]) -> Layout:
        stride, step = [0] * len(size), 1
        for axis in reversed(range(len(size))):
            stride[axis], step = step, step * max(size[axis], 1)
        return Layout(size, tuple(stride))

    def order(self) -> Order:
        return dense(self.size, self.stride)

    def computed(self, node: Node) -> Layout:
        """The layout of a result, which repeats no element and leaves none out."""
        order = self.order()
        is_dense = order is not None and not order[1]
        is_row_major = order is not None and list(order[0]) == sorted(order[0])
        return Layout.row_major(self.size) if not is_dense or (is_row_major and _strides.is_row_major(node)) else self


class Calls:
    """The calls of a program as the native part takes them."""

    def __init__(self, sizes: Sizes, prefixes: dict[torch.fx.Graph, str] | None = None) -> None:
        self.sizes = sizes
        self.prefixes = prefixes or {}
        """What the names of the nodes of further graphs begin with."""
        self.places: dict[Node, tuple[str, int]] = {}
        """Nodes whose values are those of others."""
        self.inputs: list[tuple[str, str, list[Any]]] = []
        self.calls: list[tuple[str, str, list[Any], list[Any], str, str]] = []

    def add_input(self, node: Node, dtype: torch.dtype, shape: Sequence[Any], order: Order) -> None:
        """An input. Its memory is the input where it is dense, and the rest a view."""
        whole = [self.sizes(size) for size in shape]
        sizes = list(map(_plain, whole))
        own = self.name(node)
        name = port(own, order)
        axes, repeated = order or (tuple(range(len(sizes))), ())
        once = [1 if axis in repeated else size for axis, size in enumerate(sizes)]
        self.inputs.append((name, number(dtype), [once[axis] for axis in axes]))
        if name != own:
            back = [axes.index(axis) for axis in range(len(axes))]
            self.add(f"{own}.permuted", "permute.default", [_tensor(name), back])
            self.add(own, "expand.default", [_tensor(f"{own}.permuted"), whole])

    def add(self, name: str, overload: str, arguments: list[Any]) -> None:
        """A call that is no node."""
        self.calls.append((name, overload, [(None, value) for value in arguments], [], "", ""))

    def add_node(self, node: Node) -> None:
        """A node of the graph."""
        arguments = [(None, self.argument(value)) for value in node.args]
        arguments += [(name, self.argument(value)) for name, value in node.kwargs.items()]
        results = [self.stated(value) for value in tree_leaves(node.meta.get("val"))]
        self.calls.append((self.name(node), overload(node), arguments, results, line(node), scope(node)))

    def add_gradients(self, name: str, loss: tuple[str, int], of: list[tuple[str, int]]) -> None:
        """The gradients of a number with respect to tensors."""
        self.add(name, "gradients", [_tensor(*loss), [_tensor(*one) for one in of]])

    def name(self, node: Node) -> str:
        return self.prefixes.get(node.graph, "") + node.name

    def place(self, node: Node) -> tuple[str, int]:
        """The call that gives a value, and which of its results the value is."""
        found = self.places.get(node)
        if found is not None:
            return found
        if node.op == "call_function" and node.target is operator.getitem:
            return self.place(node.args[0])[0], node.args[1]  # type: ignore[arg-type,return-value]
        return self.name(node), 0

    def add_output(self, node: Node, order: Order) -> tuple[str, int]:
        """The output whose elements follow each other in this order."""
        out, axes = self.place(node), order[0] if order else ()
        if list(axes) == sorted(axes):
            return out
        name = f"{self.name(node)}.memory"
        self.add(name, "permute.default", [_tensor(*out), list(axes)])
        return name, 0

    def stated(self, value: Any) -> tuple[str, list[Any]]:
        if not torch.is_tensor(value) or value.layout is not torch.strided:
            return "", []
        sizes = [self.sizes(size) for size in value.shape]
        if any(isinstance(size, str) for size in sizes):
            return "", []
        return number(value.dtype), list(map(_plain, sizes))

    def argument(self, value: Any) -> Any:
        if isinstance(value, Node):
            stated = value.meta.get("val")
            return self.argument(stated) if isinstance(stated, _NUMBERS) else _tensor(*self.place(value))
        if isinstance(value, (list, tuple)):
            return [self.argument(one) for one in value]
        if isinstance(value, torch.dtype):
            return {"dtype": number(value)}
        if isinstance(value, (torch.device, torch.layout, torch.memory_format)):
            return {"place": None}
        plain = self.sizes(value)
        if isinstance(plain, float):
            return {"float": repr(plain)}
        return plain if plain is None or isinstance(plain, (bool, int, str, dict)) else str(plain)

    def program(
        self, name: str, outputs: list[tuple[str, int]], sizes: Sequence[tuple[str, int, int | None, int]] = (), **more: Any
    ) -> str:
        """The JSON of `Program`."""
        found = {"name": name, "sizes": sizes, "inputs": self.inputs, "calls": self.calls, "outputs": outputs, **more}
        return json.dumps(found)


def _tensor(name: str, result: int = 0) -> dict[str, Any]:
    return {"tensor": [name, result]}


def _plain(size: Any) -> Any:
    """A size of a type: a number, or the text of an expression."""
    return size["size"] if isinstance(size, dict) else size


def is_call(node: Node) -> bool:
    """Whether a node is a call of an op on tensors, and no part of a result or arithmetic of sizes."""
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    return not isinstance(node.meta.get("val"), _NUMBERS)


def refused(gm: GraphModule, values: dict[Node, Any], sizes: Sizes) -> dict[str, str]:
    """The nodes of a graph that cannot be recorded on these inputs, by name, and why.

    The types that AOTAutograd states are not asked: under autocast it has saved statistics of norms in 16 bits, which are f32.
    """
    calls = Calls(sizes)
    for node, value in values.items():
        if torch.is_tensor(value):
            calls.inputs.append((node.name, *calls.stated(value)))
    parts = {}
    for node in gm.graph.nodes:
        if is_call(node):
            calls.add_node(node)
        elif node.target is operator.getitem and torch.is_tensor(node.meta.get("val")):
            # A result that an op here does not give is a fault of the op.
            calls.add(node.name, "alias.default", [_tensor(*calls.place(node))])
            parts[node.name] = node.args[0].name
    faults = native.Program(calls.program("graph", [])).check()
    return {parts.get(name, name): why for name, why in reversed(faults)}
