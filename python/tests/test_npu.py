"""Graphs on a simulated accelerator, with the wheel of `examples/sim-npu-wheel`.

Skipped where that wheel is not installed. It is the native part of every process that imports `tracecast` then.
"""

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

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


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Softmax(-1), nn.Linear(8, 3))


def trained(device, policy, low, steps=12):
    """The step, its losses, and what the parameters are then."""
    torch._dynamo.reset()
    model, generator = network(), torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    loss = lambda model, x, y: F.cross_entropy(model(x), y)
    options = {"device": device}
    step = tracecast.train_step(model, loss, optimizer, autocast=low, policy=policy, options=options)
    x, y = torch.randn(16, 6, generator=generator), torch.randint(0, 3, (16,), generator=generator)
    losses = torch.stack([step(x, y).float() for _ in range(steps)])
    return step, losses, [p.detach() for p in model.parameters()]


def test_a_model_trains_there_under_its_own_table():
    tracecast.reset_stats()
    with pytest.warns(UserWarning, match=r"(?s)the CPU runs \d+ kernels that npu:0 refuses.*f64"):
        step, losses, parameters = trained("npu:0", "device", torch.bfloat16)
    found = step.explain(as_json=True)
    widths = {op["op"]: op["results"][0].split("[")[0] for op in found["ops"] if op["autocast"]}
    # PyTorch's table for CUDA keeps softmax in f32; the rule of the chip does not.
    assert (widths["linear"], widths["softmax"], widths["layer_norm"]) == ("bf16", "bf16", "f32"), widths
    # Adam counts its corrections in f64, which the chip lacks.
    assert found["fallback_device"] == "cpu" and any("f64" in one["reason"] for one in found["fallback"])
    assert "on cpu: " in step.explain()
    stats = tracecast.stats()
    assert stats["fallback"] == 0 and stats["on_cpu"] > 0, stats
    _, expected, others = trained("cpu", None, None)
    torch.testing.assert_close(losses, expected, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(parameters, others, atol=5e-2, rtol=5e-2)
    assert losses[-1] < losses[0] - 0.1


def test_steps_in_f32_are_those_of_the_cpu():
    (_, losses, parameters), (_, expected, others) = trained("npu:0", None, None), trained("cpu", None, None)
    torch.testing.assert_close(losses, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(parameters, others, atol=1e-4, rtol=1e-4)
