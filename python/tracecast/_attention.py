"""Attention whose heads are strided: PyTorch refuses flash attention for them, and would store all scores."""

from __future__ import annotations

from typing import Any

from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode


class DenseHeads(TorchFunctionMode):
    """Traces attention with contiguous operands where PyTorch refuses flash attention for the stride of a last axis.

    The result is contiguous, as that of the refused path is. Within a program these copies are no ops.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not scaled_dot_product_attention:
            return func(*args, **kwargs)
        heads = [*args[:3], *(kwargs[name] for name in ("query", "key", "value")[len(args) :])]
        if all(head.stride(-1) == 1 for head in heads):
            return func(*args, **kwargs)
        rest = {name: value for name, value in kwargs.items() if name not in ("query", "key", "value")}
        return func(*(head.contiguous() for head in heads), *args[3:], **rest).contiguous()
