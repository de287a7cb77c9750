"""PyTorch's times for the functions of benches/support/functions.txt over 64 x 1024 numbers, eager, on one thread.

python benches/peers/functions.py [PART [ROUNDS]] > FILE; each line is a function, a dtype and seconds, as benches/functions.rs reads them.
"""

import sys
import time
from functools import partial
from pathlib import Path

import torch

torch.set_num_threads(1)
part = sys.argv[1] if len(sys.argv) > 1 else ""
rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 40
count = 64 * 1024


def function(name):
    """That of a dotted name behind `torch.`; what follows a colon is the first argument."""
    name, _, order = name.partition(":")
    found = torch
    for word in name.split("."):
        found = getattr(found, word)
    return partial(found, int(order)) if order else found


for line in (Path(__file__).parent.parent / "support" / "functions.txt").read_text().splitlines():
    if line.startswith("#"):
        continue
    name, _, peer, low, high = line.split()
    if part not in name:
        continue
    step = (float(high) - float(low)) / count
    numbers = float(low) + step * (torch.arange(count, dtype=torch.int64) * 40503 % count).double()
    for dtype, word in [(torch.float32, "f32"), (torch.float64, "f64")]:
        x, f, best = numbers.float().to(dtype).reshape(64, 1024), function(peer), float("inf")
        with torch.inference_mode():
            f(x)
            for _ in range(rounds):
                start = time.perf_counter()
                for _ in range(10):
                    f(x)
                best = min(best, (time.perf_counter() - start) / 10)
        print(f"{name}\t{word}\t{best:.9f}", flush=True)
