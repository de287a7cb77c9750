"""The model of examples/transformer.rs in PyTorch, from the same start on the same batches: prints the loss on what it has not seen.

python examples/transformer.py [STEPS]
"""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

SYMBOLS, WIDTH, HEADS, SEQUENCES, LENGTH = 128, 64, 4, 16, 64
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
text = np.frombuffer((Path(__file__).parent / "tale.txt").read_bytes(), np.uint8).astype(np.int64)
seen, held_out = np.split(text, [len(text) // 10 * 9])

shapes = {"embed.weight": (SYMBOLS, WIDTH), "norm.weight": (WIDTH,), "head.weight": (SYMBOLS, WIDTH)}
for block in ["block0", "block1"]:
    for name, rows, columns in [("qkv", 3 * WIDTH, WIDTH), ("mix", WIDTH, WIDTH), ("up", 3 * WIDTH, WIDTH), ("gate", 3 * WIDTH, WIDTH), ("down", WIDTH, 3 * WIDTH)]:
        shapes[f"{block}.{name}.weight"] = (rows, columns)
    shapes[f"{block}.norm0.weight"] = shapes[f"{block}.norm1.weight"] = (WIDTH,)


def hashed(count, seed):
    u = np.uint64
    low = u(0xFFFFFFFF)
    x = ((np.arange(1, count + 1, dtype=np.uint64) * u(2654435761)) & low) ^ u(seed * 40503 & 0xFFFFFFFF)
    x = ((x ^ (x >> u(16))) * u(2246822519)) & low
    x = ((x ^ (x >> u(13))) * u(3266489917)) & low
    return x ^ (x >> u(16))


P = {}
for seed, name in enumerate(sorted(shapes, key=lambda name: name.encode())):
    shape = shapes[name]
    start = np.ones(shape)
    if len(shape) == 2:
        numbers = ((hashed(shape[0] * shape[1], seed) + 0.5) / 2.0**31 - 1.0) / np.sqrt(shape[1])
        start = numbers.reshape(shape)
    P[name] = torch.nn.Parameter(torch.tensor(start.astype(np.float32)))


def rotary(x):
    half = x.shape[-1] // 2
    powers = torch.tensor([10000.0 ** (-2.0 * i / x.shape[-1]) for i in range(half)])
    angles = torch.arange(x.shape[-2], dtype=torch.float32)[:, None] * powers
    a, b = x.float()[..., :half], x.float()[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1).to(x.dtype)


def norm(x, name):
    return F.rms_norm(x, (WIDTH,), P[name + ".weight"], 1e-5)


def model(codes):
    x = F.embedding(codes, P["embed.weight"])
    for block in ["block0", "block1"]:
        q, k, v = F.linear(norm(x, block + ".norm0"), P[block + ".qkv.weight"]).view(*codes.shape, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(rotary(q), rotary(k), v, is_causal=True)
        x = x + F.linear(y.transpose(1, 2).flatten(2), P[block + ".mix.weight"])
        y = norm(x, block + ".norm1")
        up, gate = F.linear(y, P[block + ".up.weight"]), F.linear(y, P[block + ".gate.weight"])
        x = x + F.linear((F.silu(gate.float()) * up.float()).to(up.dtype), P[block + ".down.weight"])
    return F.linear(norm(x, "norm"), P["head.weight"])


def batch(of, step):
    firsts = [(step * SEQUENCES + i) * 37 % (len(of) - LENGTH) for i in range(SEQUENCES)]
    return [torch.tensor(np.stack([of[first + more :][:LENGTH] for first in firsts])) for more in (0, 1)]


def loss(x, y):
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


optimizer = torch.optim.AdamW(P.values(), 0.003)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
for step in range(steps):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        of_step = loss(*batch(seen, step))
    of_step.backward()
    optimizer.step()
    schedule.step()
with torch.no_grad():
    print(f"loss {loss(*batch(held_out, 0)).item():.4f} after {steps} steps")
