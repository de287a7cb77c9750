"""The native part: programs of ATen calls."""

from typing import Any

import torch

class Error(RuntimeError):
    """What Tracecast refuses: the op, its types, and the line of the Python program."""

def knows(overload: str) -> bool:
    """Whether the table has an overload, such as `add.Tensor`."""

class Program:
    """Calls of ATen overloads in order, with inputs and outputs."""

    def __init__(
        self,
        name: str,
        inputs: list[tuple[str, str, list[int]]],
        calls: list[tuple[str, str, list[tuple[str | None, Any]], list[tuple[str, list[int]]], str, str]],
        outputs: list[tuple[str, int]],
    ) -> None: ...
    def __len__(self) -> int: ...
    def check(self) -> list[tuple[str, str]]:
        """The calls that cannot be recorded, by their names, and why."""

    def compile(
        self,
        inputs: list[tuple[tuple[int, ...], tuple[int, ...]]],
        results: list[tuple[tuple[int, ...], tuple[int, ...]]],
        threads: int,
    ) -> Executable:
        """Compiles the program for tensors of these sizes and strides and a number of threads."""

class Executable:
    """A compiled program."""

    copies: int
    """How many inputs every run copies, as their elements are not dense."""
    draws: bool
    """Whether it draws random numbers."""
    kernels: int
    """How many kernels a run launches."""
    text: str
    """The program as text, as it was recorded."""

    def run(self, tensors: list[torch.Tensor], seed: int = 0) -> list[torch.Tensor] | None:
        """Runs the program: its results, or None if a tensor has another layout than the program takes."""
