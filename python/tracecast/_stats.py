"""What was compiled, and what PyTorch runs instead."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from torch._dynamo.utils import counters


@dataclass
class Counts:
    """Counts since the start of the process, or since `reset_stats`."""

    graphs: int = 0
    nodes: int = 0
    missing: Counter[str] = field(default_factory=Counter)
    copies: int = 0
    compile_s: float = 0.0
    recompilations: int = 0


counts = Counts()


def stats() -> dict[str, Any]:
    """What was compiled so far, as a dict.

    * `graphs`, `nodes`: graphs of AOTAutograd, and the ops in them;
    * `fallback`: how many of these ops PyTorch runs; `missing` has them by name;
    * `breaks`: the graph breaks of Dynamo by reason, with how often each occurred;
    * `copies`: inputs that each run of a program copies, because their elements are not dense in memory;
    * `compile_s`: seconds in Tracecast's compiler;
    * `recompilations`: programs compiled for further sizes, strides or numbers of threads of a graph.
    """
    return {
        "graphs": counts.graphs,
        "nodes": counts.nodes,
        "fallback": sum(counts.missing.values()),
        "missing": dict(counts.missing),
        "breaks": dict(counters["graph_break"]),
        "copies": counts.copies,
        "compile_s": counts.compile_s,
        "recompilations": counts.recompilations,
    }


def reset_stats() -> None:
    """Starts counting again."""
    counts.__init__()  # type: ignore[misc]
    counters["graph_break"].clear()
