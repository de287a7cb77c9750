#!/usr/bin/env python3
"""Writes files as PyTorch writes them, and has PyTorch load files of ours. Needs `torch` and `safetensors`; says so and does nothing without.

  pytorch.py make     writes pytorch-model, pytorch-answers and pytorch-dtypes.safetensors: once, tests/checkpoint reads them
  pytorch.py check    loads ours.safetensors strictly and writes what PyTorch answers; loads training-1.safetensors as it is

Both work in the folder of this script. `ours.safetensors` is written by
  TRACECAST_BLESS=1 cargo test --test checkpoint
if it is not there.
"""

import sys
from collections import OrderedDict
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOKENS = [3, 0, 15, 7, 7, 9, 1]

try:
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file
except ImportError as missing:
    print(f"SKIPPED: {missing}. Nothing was written and nothing was checked.")
    sys.exit(0)


def model():
    """What tests/checkpoint/pytorch.rs builds."""
    nn = torch.nn
    return nn.Sequential(OrderedDict([
        ("embed", nn.Embedding(16, 8)),
        ("hidden", nn.Linear(8, 12)),
        ("act", nn.GELU()),
        ("norm", nn.LayerNorm(12)),
        ("out", nn.Linear(12, 5, bias=False)),
    ]))


def answers(of):
    tokens = torch.tensor(TOKENS)
    with torch.no_grad():
        return {"x": tokens, "y": of(tokens).contiguous()}


def make():
    torch.manual_seed(0)
    made = model()
    with torch.no_grad():
        # Not the ones and zeros it starts with.
        made.norm.weight.uniform_(0.5, 1.5)
        made.norm.bias.uniform_(-0.5, 0.5)
    save_file(made.state_dict(), HERE / "pytorch-model.safetensors", metadata={"format": "pt"})
    save_file(answers(made), HERE / "pytorch-answers.safetensors")
    smallest = torch.tensor([1, -128, 0x3DCD], dtype=torch.int16).view(torch.bfloat16)
    dtypes = {
        "bf16": smallest,
        "f16": torch.tensor([2.0**-24, float("-inf"), 0.1], dtype=torch.float16),
        "f32": torch.tensor([[0.1]]),
        "f64": torch.tensor(0.1, dtype=torch.float64),
        "i16": torch.tensor([-2], dtype=torch.int16),
        "i32": torch.tensor([-2**31], dtype=torch.int32),
        "i64": torch.tensor([2**63 - 1]),
        "u8": torch.tensor([0, 255], dtype=torch.uint8),
        "bool": torch.tensor([True, False, True]),
        "empty": torch.zeros(0, 4),
    }
    save_file(dtypes, HERE / "pytorch-dtypes.safetensors")
    print(f"made by PyTorch {torch.__version__}")


def check():
    ours = model()
    result = ours.load_state_dict(load_file(HERE / "ours.safetensors"), strict=True)
    print(f"PyTorch {torch.__version__}, ours.safetensors, strict: {result}")
    save_file(answers(ours), HERE / "pytorch-answers-to-ours.safetensors")
    with safe_open(HERE / "training-1.safetensors", framework="pt") as training:
        print(f"training-1.safetensors: {training.metadata()}")
        for name in sorted(training.keys()):
            tensor = training.get_tensor(name)
            print(f"  {name}: {tensor.dtype} {list(tensor.shape)}")


if __name__ == "__main__":
    commands = {"make": make, "check": check}
    if len(sys.argv) != 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]]()
