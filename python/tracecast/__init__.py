"""Tracecast as a backend of `torch.compile`.

    step = torch.compile(model, backend="tracecast")

AOTAutograd captures forward, backward and inference graphs. Each becomes one native program of
fused kernels for the CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Callable

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

from ._compiled import Options, compile_graph
from ._native import Error, knows
from ._stats import reset_stats, stats

__all__ = ["Error", "backend", "reset_stats", "stats"]


@functools.cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions of the ops that Tracecast lacks. What is one op here stays whole."""
    table = torch._decomp.core_aten_decompositions()
    whole = lambda op: isinstance(op, torch._ops.OpOverload) and knows(str(op).removeprefix("aten."))
    return {op: decomposition for op, decomposition in table.items() if not whole(op)}


def backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: dict[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compiles a graph of Dynamo: what `torch.compile(model, backend="tracecast")` calls.

    Options, as `torch.compile(..., options={...})`:

    * `"fullgraph": True` makes ops that have to run in PyTorch an error, which lists them all;
    * `"save": "FOLDER"` writes each program as text, for the tool `tracecast`.

    Raises `ValueError` for another option, and for a `mode`.
    """
    if mode not in (None, "default"):
        raise ValueError(f"tracecast has no mode {mode!r}")
    chosen = Options.of(options or {})

    def compiler(kind: str) -> Callable[..., Any]:
        return lambda graph, _inputs: compile_graph(graph, kind, chosen)

    compile_all = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        decompositions=_decompositions(),
        partition_fn=min_cut_rematerialization_partition,
    )
    return compile_all(gm, example_inputs)
