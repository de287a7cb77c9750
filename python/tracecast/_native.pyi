"""The native part: programs of ATen calls, compiled and run on the memory of PyTorch's tensors."""

import torch

Strided = tuple[tuple[int, ...], tuple[int, ...]]
"""Sizes and strides."""

class Error(RuntimeError):
    """What Tracecast refuses: the op, its types, and the line of the Python program."""

def knows(overload: str) -> bool:
    """Whether the table has an overload, such as `add.Tensor`."""

class Program:
    """Calls of ATen overloads in order, with inputs and outputs."""

    def __init__(self, json: str) -> None: ...
    def check(self) -> list[tuple[str, str]]:
        """The calls that cannot be recorded, by their names, and why."""

    def compile(self, threads: int) -> Compiled:
        """Compiles the program."""

class Compiled:
    """A compiled program, for all values of the sizes that are names."""

    text: str
    """The program as text, as it was recorded."""

    def at(
        self, sizes: list[tuple[str, int]], inputs: list[Strided], results: list[Strided]
    ) -> Executable:
        """The program with numbers for its sizes, for inputs and results of these sizes and strides."""

class Executable:
    """A compiled program for tensors of given layouts."""

    draws: bool
    """Whether it draws random numbers."""
    copies: int
    """How many inputs every run copies, as their elements are not dense."""
    kernels: int
    """How many kernels a run launches."""

    def run(self, tensors: list[torch.Tensor], seed: int = 0) -> list[torch.Tensor] | None:
        """Runs the program: its results, or `None` if a tensor has another layout than the program takes."""
