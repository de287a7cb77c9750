"""The convolutional network of `tracecast train --model cnn` in PyTorch: same layers, data, batches and optimizer, five seeds, three precisions.

    python digits.py            # one JSON line for each precision

Row i tests if i % 5 == 4 (359 rows), else trains (1,438); pixels / 16 as images of 8 x 8; AdamW lr 1e-3, decay 0.01; batch 32, the last partial batch kept;
30 epochs, shuffled each epoch; parameters start as PyTorch's layers do, which is how ours start.
"""
import gzip, json, os, time

import numpy as np, torch, torch.nn as nn, torch.nn.functional as F

here = os.path.dirname(os.path.abspath(__file__))
table = np.loadtxt(gzip.open(os.path.join(here, "../../cli/data/digits.csv.gz")), delimiter=",", dtype=np.float32)
x, y = torch.from_numpy(table[:, :64] / 16).reshape(-1, 1, 8, 8), torch.from_numpy(table[:, 64].astype(np.int64))
held = torch.arange(len(y)) % 5 == 4
xt, yt, x, y = x[held], y[held], x[~held], y[~held]


def network():
    block = lambda a, b: [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*block(1, 32), *block(32, 64), nn.Flatten(), nn.Linear(64 * 2 * 2, 10))


for mode, low in (("f32", None), ("bf16", torch.bfloat16), ("f16", torch.float16)):
    accuracies, times = [], []
    for seed in range(5):
        torch.manual_seed(seed)
        order, model = torch.Generator().manual_seed(seed), network()
        optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=1e-3), torch.amp.GradScaler("cpu", enabled=mode == "f16")
        for _ in range(30):
            for rows in torch.randperm(len(y), generator=order).split(32):
                start = time.perf_counter()
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=low or torch.bfloat16, enabled=low is not None):
                    loss = F.cross_entropy(model(x[rows]), y[rows])
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                times.append(time.perf_counter() - start)
        model.eval()
        with torch.no_grad():
            accuracies.append(float((model(xt).argmax(1) == yt).float().mean()) * 100)
    step = sorted(times)[len(times) // 2] * 1e3
    print(json.dumps(dict(mode=mode, accuracy=[round(a, 2) for a in accuracies], mean=round(sum(accuracies) / 5, 2), median_step_ms=round(step, 2))), flush=True)
