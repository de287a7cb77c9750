"""FX graphs of ATen ops as programs of Tracecast: which calls, which inputs, and where results come from.

No op is known here. Each node goes to the native table by its name.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from ._native import Program

Sizes = Callable[[Any], Any]
"""Gives the number of a size: an `int`, or a `SymInt` of the graph."""

_TORCH = os.path.dirname(torch.__file__) + os.sep
_SYMBOLS = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
_NUMBERS = (int, float, *_SYMBOLS)
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def number(dtype: torch.dtype) -> str:
    """The name of a dtype in `torch`."""
    return str(dtype).removeprefix("torch.")


def overload(node: Node) -> str:
    """The name of an overload as the table has it, such as `add.Tensor`."""
    return str(node.target).removeprefix("aten.") if node.op == "call_function" else node.op


def line(node: Node) -> str:
    """The innermost line of the user's program, or PyTorch's where there is none of the user's."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if not frame[0].startswith(_TORCH)]
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


def dense(size: tuple[int, ...], stride: tuple[int, ...]) -> list[int] | None:
    """The axes in the order in which elements follow each other in memory; `None` if they do not.

    Axes of one element, and those that repeat one (stride 0), come first.
    """
    many = [axis for axis, n in enumerate(size) if n != 1 and stride[axis] != 0]
    order = sorted(many, key=lambda axis: -stride[axis])
    step = 1
    for axis in reversed(order):
        if stride[axis] != step:
            return None
        step *= size[axis]
    if order == many:
        return list(range(len(size)))
    return [axis for axis in range(len(size)) if axis not in many] + order


def numbers_of(values: dict[Node, Any]) -> Sizes:
    """Numbers for the symbols of a graph, from the values of its inputs. A size that depends on data stays a text."""
    known: dict[sympy.Expr, int] = {}
    for node, value in values.items():
        stated = node.meta.get("val")
        pairs: Iterable[tuple[Any, Any]] = [(stated, value)]
        if torch.is_tensor(stated):
            pairs = [*zip(stated.shape, value.shape), *zip(stated.stride(), value.stride())]
        for symbol, found in pairs:
            if isinstance(symbol, torch.SymInt):
                known[symbol.node.expr] = int(found)

    def size(value: Any) -> Any:
        plain = _SYMBOLS.get(type(value))
        if plain is None:
            return value
        found = value.node.expr.xreplace(known)
        depends = isinstance(found, sympy.Basic) and found.free_symbols
        return str(value) if depends else plain(found)

    return size


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


class Calls:
    """The calls of a program as the native part takes them."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.inputs: list[tuple[str, str, list[int]]] = []
        self.calls: list[tuple[str, str, list[Any], list[Any], str, str]] = []

    def add_input(self, node: Node, dtype: torch.dtype, layout: Layout) -> Layout:
        """An input that is a tensor of this layout. Its memory is the input where it is dense, and the rest a view."""
        order = dense(layout.size, layout.stride)
        if order is None:
            self.inputs.append((node.name, number(dtype), list(layout.size)))
            return layout
        once = [1 if layout.stride[axis] == 0 else layout.size[axis] for axis in range(len(order))]
        axes = [order.index(axis) for axis in range(len(order))]
        is_plain = axes == sorted(axes) and once == list(layout.size)
        name = node.name if is_plain else f"{node.name}.memory"
        self.inputs.append((name, number(dtype), [once[axis] for axis in order]))
        if not is_plain:
            self.add(f"{node.name}.permuted", "permute.default", [("tensor", name, 0), axes])
            arguments = [("tensor", f"{node.name}.permuted", 0), list(layout.size)]
            self.add(node.name, "expand.default", arguments)
        return layout

    def add(self, name: str, overload: str, arguments: list[Any]) -> None:
        """A call that is no node."""
        self.calls.append((name, overload, [(None, value) for value in arguments], [], "", ""))

    def add_node(self, node: Node) -> None:
        """A node of the graph."""
        arguments = [(None, self.argument(value)) for value in node.args]
        arguments += [(name, self.argument(value)) for name, value in node.kwargs.items()]
        results = [self.stated(value) for value in tree_leaves(node.meta.get("val"))]
        self.calls.append((node.name, overload(node), arguments, results, line(node), scope(node)))

    def stated(self, value: Any) -> tuple[str, list[int]]:
        if not torch.is_tensor(value):
            return "", []
        sizes = list(map(self.sizes, value.shape))
        known = value.layout is torch.strided and all(isinstance(n, int) for n in sizes)
        return (number(value.dtype), sizes) if known else ("", [])

    def argument(self, value: Any) -> Any:
        if isinstance(value, Node):
            stated = value.meta.get("val")
            if isinstance(stated, _NUMBERS):
                return self.sizes(stated)
            return ("tensor", *place(value))
        if isinstance(value, (list, tuple)):
            return [self.argument(one) for one in value]
        if isinstance(value, torch.dtype):
            return ("dtype", number(value))
        if isinstance(value, (torch.device, torch.layout, torch.memory_format)):
            return ("place",)
        return self.sizes(value)

    def program(self, name: str, outputs: list[tuple[str, int]]) -> Program:
        return Program(name, self.inputs, self.calls, outputs)


def place(node: Node) -> tuple[str, int]:
    """The call that gives a value, and which of its results the value is."""
    if node.op == "call_function" and node.target is operator.getitem:
        return node.args[0].name, node.args[1]  # type: ignore[union-attr,return-value]
    return node.name, 0


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
            calls.add(node.name, "alias.default", [("tensor", *place(node))])
            parts[node.name] = node.args[0].name
    faults = calls.program("graph", []).check()
    return {parts.get(name, name): why for name, why in reversed(faults)}
