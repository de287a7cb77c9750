"""PyTorch's times for the convolutions of benches/support/convolutions.txt, on one thread or more, in the faster of its two memory formats.

python benches/peers/convolutions.py [PART [ROUNDS [THREADS]]] > FILE; each line is a name, a direction, a dtype and seconds, as benches/convolutions.rs reads them.
"""

import sys
import time
from pathlib import Path

import torch

torch.set_num_threads(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
part = sys.argv[1] if len(sys.argv) > 1 else ""
rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
lines = (Path(__file__).parent.parent / "support" / "convolutions.txt").read_text().splitlines()

# Runs before the first round, as in benches/convolutions.rs.
BEFORE = 5


def best(run, operations):
    times = min(1000, max(1, round(1e8 / operations)))
    for _ in range(BEFORE):
        run()
    least = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(times):
            run()
        least = min(least, (time.perf_counter() - start) / times)
    return least


for line in lines:
    if not line or line.startswith("#"):
        continue
    network, *numbers = line.split()
    c, size, o, k, stride, padding, groups, _ = map(int, numbers)
    out = (size + 2 * padding - k) // stride + 1
    for batch in [1, 16]:
        name = f"{network} {batch}x{c}x{size}x{size}->{o} {k}x{k}/{stride} g{groups}"
        if part not in name:
            continue
        operations = 2 * batch * o * out * out * c // groups * k * k
        for dtype, word in [(torch.float32, "f32"), (torch.bfloat16, "bf16")]:
            found = {"forward": [], "input": [], "weight": []}
            for layout in [torch.contiguous_format, torch.channels_last]:
                x = torch.randn(batch, c, size, size).to(dtype).contiguous(memory_format=layout)
                w = torch.randn(o, c // groups, k, k).to(dtype).contiguous(memory_format=layout)
                dy = torch.randn(batch, o, out, out).to(dtype).contiguous(memory_format=layout)
                moves = ([stride, stride], [padding, padding], [1, 1], False, [0, 0], groups)

                def backward(mask):
                    return torch.ops.aten.convolution_backward(dy, x, w, None, *moves, mask)

                with torch.no_grad():
                    found["forward"].append(best(lambda: torch.conv2d(x, w, None, stride, padding, 1, groups), operations))
                    found["input"].append(best(lambda: backward([True, False, False]), operations))
                    found["weight"].append(best(lambda: backward([False, True, False]), operations))
            for direction, seconds in found.items():
                print(f"{name}\t{direction}\t{word}\t{min(seconds):.9f}", flush=True)
