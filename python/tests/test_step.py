"""Whole steps beside eager PyTorch: losses, parameters, buffers, and the states of optimizer and scaler."""

import copy

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import tracecast


def model():
    torch.manual_seed(0)
    # A bias in front of the norm would have a gradient of rounding errors alone.
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def loss(model, x, y):
    return F.cross_entropy(model(x), y)


def data(steps, factor=1.0):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        yield torch.randn(5, 6, generator=generator) * factor, torch.randint(0, 3, (5,), generator=generator)


def same(a, b, **bounds):
    torch.testing.assert_close(a, b, **(bounds or dict(atol=2e-5, rtol=2e-5)))


def states_agree(one, other, **bounds):
    pair = [x.state_dict()["state"] if isinstance(x, torch.optim.Optimizer) else x.state_dict() for x in (one, other)]
    same(*pair, **bounds)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, 0.01),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.05),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_pytorch(name):
    torch._dynamo.reset()
    tracecast.reset_stats()
    ours, theirs = model(), model()
    fast, slow = OPTIMIZERS[name](ours.parameters()), OPTIMIZERS[name](theirs.parameters())
    step = tracecast.train_step(ours, loss, fast)
    rates = [torch.optim.lr_scheduler.StepLR(one, 2, 0.5) for one in (fast, slow)]
    for x, y in data(6):
        slow.zero_grad()
        expected = loss(theirs, x, y)
        expected.backward()
        slow.step()
        same(step(x, y), expected.detach())
        fast._opt_called = True
        [rate.step() for rate in rates]
    states_agree(ours, theirs)
    states_agree(fast, slow)
    stats = tracecast.stats()
    assert stats["fallback"] == 0 and stats["graphs"] <= 2 and stats["recompilations"] == 0, stats


def test_states_go_in_and_out():
    ours, theirs = model(), model()
    fast, slow = [torch.optim.AdamW(one.parameters(), 0.01) for one in (ours, theirs)]
    batches = list(data(4))
    step = tracecast.train_step(ours, loss, fast)
    for x, y in batches[:2]:
        step(x, y)
    theirs.load_state_dict(copy.deepcopy(ours.state_dict()))
    slow.load_state_dict(copy.deepcopy(fast.state_dict()))
    for x, y in batches[2:]:
        slow.zero_grad()
        loss(theirs, x, y).backward()
        slow.step()
    again = model()
    other = torch.optim.AdamW(again.parameters(), 0.01)
    again.load_state_dict(copy.deepcopy(ours.state_dict()))
    other.load_state_dict(copy.deepcopy(fast.state_dict()))
    resumed = tracecast.train_step(again, loss, other)
    for x, y in batches[2:]:
        resumed(x, y)
    states_agree(again, theirs)
    states_agree(other, slow)


@pytest.mark.parametrize("first", [False, True])
def test_overflow_skips_a_step_and_halves_the_scale(first):
    ours, theirs = model(), model()
    fast, slow = [torch.optim.Adam(one.parameters(), 0.01) for one in (ours, theirs)]
    mine, scaler = [torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2) for _ in range(2)]
    step = tracecast.train_step(ours, loss, fast, scaler=mine)
    batches = list(data(5))
    batches.insert(0 if first else 2, (torch.full((5, 6), float("inf")), batches[0][1]))
    for x, y in batches:
        slow.zero_grad()
        scaler.scale(loss(theirs, x, y)).backward()
        scaler.step(slow)
        scaler.update()
        step(x, y)
        assert mine.get_scale() == scaler.get_scale()
    assert mine.state_dict() == scaler.state_dict()
    states_agree(fast, slow)
    same(list(ours.parameters()), list(theirs.parameters()))


def test_autocast():
    ours, theirs = model(), model()
    fast, slow = [torch.optim.SGD(one.parameters(), 0.05) for one in (ours, theirs)]
    step = tracecast.train_step(ours, loss, fast, autocast=torch.bfloat16)
    for x, y in data(3):
        slow.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            expected = loss(theirs, x, y)
        expected.backward()
        slow.step()
        same(step(x, y), expected.detach(), atol=1e-2, rtol=1e-2)
    states_agree(ours, theirs, atol=1e-2, rtol=1e-2)


def test_parameters_that_are_not_trained_stay():
    ours = model()
    ours[0].weight.requires_grad_(False)
    before = copy.deepcopy(ours.state_dict())
    step = tracecast.train_step(ours, loss, torch.optim.SGD([p for p in ours.parameters() if p.requires_grad], 0.1))
    x, y = next(data(1))
    step(x, y)
    assert torch.equal(ours[0].weight, before["0.weight"]) and not torch.equal(ours[3].bias, before["3.bias"])


def test_wrong_steps_are_refused():
    ours = model()
    with pytest.raises(ValueError, match="does not have"):
        tracecast.train_step(ours, loss, torch.optim.SGD(model().parameters(), 0.1))
    step = tracecast.train_step(ours, lambda model, x: model(x), torch.optim.SGD(ours.parameters(), 0.1))
    with pytest.raises(ValueError, match="expected a single number"):
        step(torch.randn(5, 6))
