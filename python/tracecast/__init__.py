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

from ._attention import DenseHeads
from ._compiled import Options, compile_graph
from ._loaded import Error, native
from ._stats import reset_stats, stats
from ._step import Step
from ._strides import restrided
from ._traced import Subject

__all__ = ["Error", "Step", "backend", "devices", "reset_stats", "stats", "train_step"]


def devices() -> list[str]:
    """The names of the devices that programs can run on."""
    return native.devices()


@functools.cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions of the ops that Tracecast lacks. What is one op here stays whole."""
    table = torch._decomp.core_aten_decompositions()
    whole = lambda op: isinstance(op, torch._ops.OpOverload) and native.knows(str(op).removeprefix("aten."))
    left = {op: decomposition for op, decomposition in table.items() if not whole(op)}
    return left | restrided(left)


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
    * `"save": "FOLDER"` writes each program as text, for the tool `tracecast`;
    * `"device": "NAME"` runs programs on a device of `devices()`; tensors stay PyTorch's, on the CPU.

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
    with DenseHeads():
        return compile_all(gm, example_inputs)


def train_step(
    model: torch.nn.Module,
    loss: Callable[..., torch.Tensor],
    optimizer: torch.optim.Optimizer,
    *,
    autocast: torch.dtype | None = None,
    policy: str | None = None,
    scaler: torch.amp.GradScaler | None = None,
    options: dict[str, Any] | None = None,
) -> Step:
    """Compiles forward, backward and the update of the optimizer as one program.

        step = tracecast.train_step(model, lambda model, x, y: F.cross_entropy(model(x), y), optimizer)
        for x, y in batches:
            loss = step(x, y)

    `loss` gives a single number from the model and the inputs of the step. A call makes a step and gives the loss. Parameters,
    buffers, and the states of optimizer and scaler are updated in place: they are those of PyTorch's objects, before and after
    each step. `autocast` is the low dtype of a region around `loss`. With a `scaler`, a step whose gradients overflow changes the
    scale alone.

    With a `policy` the region is Tracecast's own, in the dtype `autocast`: the name of a strategy, such as `"strict-bf16"`, or of
    a table; the text of a policy file; or `"device"` for what the device of the program says. Then Tracecast differentiates, and
    `Step.explain` names the rule for each op.

    Raises `ValueError` if the optimizer has parameters of another model, is differentiable or fused, keeps its state in numbers,
    or if the loss is no single number. What the optimizer does to gradients beyond its `step`, such as hooks, is not seen.
    """
    subject = Subject(model, loss, optimizer, autocast, scaler, policy)
    return Step(subject, Options.of(options or {}), _decompositions())
