"""Graphs on a simulated accelerator, with the wheel of `examples/sim-npu-wheel`.

Skipped where that wheel is not installed. It is the native part of every process that imports `tracecast` then.
"""

import pytest
import torch
import torch.nn as nn

import tracecast

if "npu:1" not in tracecast.devices():
    pytest.skip("NOT RUN: the wheel of examples/sim-npu-wheel is not installed", allow_module_level=True)


def test_graphs_of_torch_compile_run_there():
    torch._dynamo.reset()
    tracecast.reset_stats()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    x = torch.randn(4, 6)
    fast = torch.compile(model, backend="tracecast", options={"device": "npu:0"})
    expected, found = model(x), fast(x)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    gradients = [torch.autograd.grad(y.square().sum(), model.parameters()) for y in (expected, found)]
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-5)
    assert tracecast.stats()["fallback"] == 0
