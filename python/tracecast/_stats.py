"""What was compiled, and what PyTorch runs instead."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch._dynamo.utils as dynamo

from ._capture import innermost


@dataclass
class Counts:
    """Counts since the start of the process, or since `reset_stats`."""

    graphs: int = 0
    nodes: int = 0
    missing: Counter[str] = field(default_factory=Counter)
    copies: int = 0
    on_cpu: int = 0
    compile_s: float = 0.0
    recompilations: int = 0


counts = Counts()


def stats() -> dict[str, Any]:
    """What was compiled so far, as a dict.

    * `graphs`, `nodes`: graphs of AOTAutograd, and the ops in them;
    * `fallback`: how many of these ops PyTorch runs; `missing` has them by name;
    * `breaks`: the graph breaks of Dynamo by reason and line of the program, with how often each occurred. Recurrent
      layers, which PyTorch runs, are among them;
    * `copies`: inputs that each run of a program copies, because their elements are not dense in memory;
    * `on_cpu`: kernels of programs for another device that the CPU runs, because the device refuses them;
    * `compile_s`: seconds in Tracecast's compiler;
    * `recompilations`: programs compiled for further sizes, strides or numbers of threads of a graph.
    """
    return {
        "graphs": counts.graphs,
        "nodes": counts.nodes,
        "fallback": sum(counts.missing.values()),
        "missing": dict(counts.missing),
        "breaks": dict(Counter(map(_shown, dynamo.graph_break_reasons))),
        "copies": counts.copies,
        "on_cpu": counts.on_cpu,
        "compile_s": counts.compile_s,
        "recompilations": counts.recompilations,
    }


def say_on_cpu(device: str, kernels: list[tuple[str, str]]) -> None:
    """Warns of the kernels of a program that the CPU runs instead of the device, and counts them."""
    if kernels:
        counts.on_cpu += len(kernels)
        rows = [f"  {count} × {why}" for why, count in sorted(Counter(why for _, why in kernels).items())]
        text = f"the CPU runs {len(kernels)} kernels that {device} refuses, and copies what they read and write:"
        warnings.warn("\n".join([text, *rows]), stacklevel=2)


def _shown(reason: Any) -> str:
    """What Dynamo says first and why, and the line: `Call to print: Dynamo does not trace it (model.py:12)`."""
    what, _, rest = reason.reason.partition("\n")
    why = rest.strip().removeprefix("Explanation: ").split("\n")[0]
    line = innermost([(frame.filename, str(frame.lineno)) for frame in reason.user_stack])
    return f"{what}: {why} ({line})" if why else f"{what} ({line})"


def reset_stats() -> None:
    """Starts counting again."""
    counts.__init__()  # type: ignore[misc]
    dynamo.counters["graph_break"].clear()
    dynamo.graph_break_reasons.clear()
