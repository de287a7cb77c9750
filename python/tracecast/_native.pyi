"""The native part: programs of ATen calls, compiled and run on the memory of PyTorch's tensors."""

from typing import Any

import torch

__version__: str

Strided = tuple[tuple[int, ...], tuple[int, ...]]
"""Sizes and strides."""

class Error(RuntimeError):
    """What Tracecast refuses: the op, its types, and the line of the Python program."""

def knows(overload: str) -> bool:
    """Whether the table has an overload, such as `add.Tensor`."""

def devices() -> list[str]:
    """The names of the devices that programs can run on."""

class Program:
    """Calls of ATen overloads in order, with inputs and outputs."""

    def __init__(self, json: str) -> None: ...
    def check(self) -> list[tuple[str, str]]:
        """The calls that cannot be recorded, by their names, and why."""

    def compile(
        self, threads: int, device: str = "cpu", policy: str | None = None, low: str | None = None
    ) -> Compiled:
        """Compiles the program. The calls in its region are recorded under a policy, in a low dtype."""

class Compiled:
    """A compiled program, for all values of the sizes that are names."""

    text: str
    """The program as text, as it was recorded."""

    def at(
        self, sizes: list[tuple[str, int]], inputs: list[Strided], results: list[Strided]
    ) -> Executable:
        """The program with numbers for its sizes, for inputs and results of these sizes and strides."""

    def step(
        self,
        guard: Guard,
        parts: tuple[
            list[tuple[torch.Tensor, Strided]],
            list[tuple[torch.Tensor | int | dict[str, Any], Strided]],
            list[Strided],
            list[torch.Tensor],
        ],
    ) -> Step:
        """The program as a step of objects of PyTorch: each state and its memory; for each input the tensor, the number of an
        argument or a group of the optimizer, and its memory; the memory of results; tensors that are given the last results."""

    def explain(self, node: str | None = None, as_json: bool = False) -> str:
        """Why each op has its dtype, and what has become of each cast."""

class Guard:
    """Parts of Python's objects, and what they were."""

    def __init__(self, parts: list[tuple[Any, Any, Any]]) -> None:
        """From `(object, key, value)`: an entry of a dict, an element of a list, an attribute; without a key the length."""

class Step:
    """A compiled training step, which updates PyTorch's tensors in place."""

    draws: bool
    """Whether it draws random numbers."""
    in_place: int
    """How many tensors a run updates in place."""
    on_cpu: list[tuple[str, str]]
    """The kernels that the CPU runs because the device refuses them, and why it does."""

    def run(self, arguments: tuple[torch.Tensor, ...], seed: int) -> list[torch.Tensor] | None:
        """Makes a step: its results, or `None` if it holds for other objects or arguments."""

class Executable:
    """A compiled program for tensors of given layouts."""

    draws: bool
    """Whether it draws random numbers."""
    copies: int
    """How many inputs every run copies, as their elements are not dense."""
    kernels: int
    """How many kernels a run launches."""
    on_cpu: list[tuple[str, str]]
    """The kernels that the CPU runs because the device refuses them, and why it does."""

    def run(self, tensors: list[torch.Tensor], seed: int = 0) -> list[torch.Tensor] | None:
        """Runs the program: its results, or `None` if a tensor has another layout than the program takes."""
