"""PyTorch's times for the rows of benches/attention.rs: scaled_dot_product_attention on two threads.

python benches/peers/attention.py [PART [ROUNDS]] > FILE; each line is a name and seconds.
"""

import sys
import time

import torch
from torch.nn.functional import scaled_dot_product_attention

torch.set_num_threads(2)
part = sys.argv[1] if len(sys.argv) > 1 else ""
rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5

for length in [128, 512, 2048, 4096]:
    for causal in [False, True]:
        for backward in [False, True]:
            for dtype, word in [(torch.float32, "f32"), (torch.bfloat16, "bf16")]:
                name = f"{length} {'causal' if causal else 'whole'} {'backward' if backward else 'forward'} {word}"
                if part not in name:
                    continue
                q, k, v = (torch.randn(4, 8, length, 64).to(dtype).requires_grad_(backward) for _ in range(3))
                dy = torch.randn(4, 8, length, 64).to(dtype)

                def run():
                    y = scaled_dot_product_attention(q, k, v, is_causal=causal)
                    if backward:
                        torch.autograd.grad(y, [q, k, v], dy)

                run()
                least = float("inf")
                for _ in range(rounds):
                    start = time.perf_counter()
                    run()
                    least = min(least, time.perf_counter() - start)
                print(f"{name}\t{least:.9f}", flush=True)
