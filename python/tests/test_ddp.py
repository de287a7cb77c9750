"""Two ranks of `DistributedDataParallel` over gloo train as one process with the whole batch."""

import os

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

import tracecast

RANKS = 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, x):
        return self.last(self.norm(nn.functional.gelu(self.first(x))))


def model():
    torch.manual_seed(0)
    return Model()


def train(module, f, x, y):
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    for _ in range(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(f(x), y).backward()
        optimizer.step()
    return [p.detach().clone() for p in module.parameters()]


def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)


def rank_of(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    torch.set_num_threads(1)
    module = DistributedDataParallel(model())
    x, y = data()
    # Ranks take rows in turn, so each has as many.
    found = train(module, torch.compile(module, backend="tracecast"), x[rank::RANKS], y[rank::RANKS])
    torch.save((found, tracecast.stats()), os.path.join(folder, f"{rank}.pt"))
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="PyTorch was built without gloo")
def test_two_ranks_train_as_one(tmp_path):
    torch.multiprocessing.spawn(rank_of, (str(tmp_path),), nprocs=RANKS)
    whole = model()
    expected = train(whole, whole, *data())
    for rank in range(RANKS):
        found, stats = torch.load(tmp_path / f"{rank}.pt")
        assert stats["fallback"] == 0 and stats["graphs"] > 0, stats
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
