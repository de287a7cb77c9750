"""Where kernels of PyTorch for the CPU give other strides than PyTorch states when it traces."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import make_channels_last_strides_for, make_contiguous_strides_for, suggest_memory_format
from torch.fx import Node

_Format = Callable[[torch.Tensor], torch.memory_format]


def _contiguous(_x: torch.Tensor) -> torch.memory_format:
    return torch.contiguous_format


_FORMATS: dict[str, _Format] = {
    "_native_batch_norm_legit.default": suggest_memory_format,
    "_native_batch_norm_legit.no_stats": suggest_memory_format,
    "_native_batch_norm_legit_functional.default": suggest_memory_format,
    "_native_batch_norm_legit_no_training.default": suggest_memory_format,
    "log_sigmoid_forward.default": _contiguous,
    "native_batch_norm.default": suggest_memory_format,
    "roll.default": suggest_memory_format,
}
"""The memory format in which the kernel of an op gives its first result, from the first argument."""

_ROW_MAJOR = {"_log_softmax", "_softmax", "linalg_vector_norm", "native_layer_norm"}
"""Ops that are not pointwise and whose kernels make a row-major result when its elements lie so."""

_within = threading.local()


def is_row_major(node: Node) -> bool:
    """Whether a kernel gives the strides of a row-major tensor to a result whose elements lie so.

    What is stated may have others for axes of one element.
    """
    while node.target is operator.getitem and isinstance(node.args[0], Node):
        node = node.args[0]
    op = node.target
    if not isinstance(op, torch._ops.OpOverload):
        return False
    return torch.Tag.pointwise in op.tags or op.overloadpacket.__name__ in _ROW_MAJOR


def restrided(table: dict[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Decompositions that have a copy behind an op, which states the strides of its kernel. In a program the copy is no op.

    `table` has those of ops that are taken apart.
    """
    found = {}
    for name, chosen in _FORMATS.items():
        packet, overload = name.split(".")
        op = getattr(getattr(torch.ops.aten, packet), overload)
        found[op] = _with_copy(op, table.get(op), chosen)
    return found


def _with_copy(op: Any, parts: Callable[..., Any] | None, chosen: _Format) -> Callable[..., Any]:
    def decomposed(x: torch.Tensor, *rest: Any, **keywords: Any) -> Any:
        before = getattr(_within, "op", None)
        if before is op:
            return NotImplemented
        _within.op = op
        try:
            found = (parts or op)(x, *rest, **keywords)
        finally:
            _within.op = before
        many = found if isinstance(found, tuple) else (found,)
        layout, first = chosen(x), many[0]
        is_plain = layout is torch.contiguous_format
        strides = make_contiguous_strides_for(first.shape) if is_plain else make_channels_last_strides_for(first.shape)
        if first.stride() == tuple(strides):
            return found
        first = first.clone(memory_format=layout)
        return (first, *many[1:]) if isinstance(found, tuple) else first

    return decomposed
