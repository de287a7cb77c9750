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


def test_states_are_updated_in_place():
    ours = model()
    optimizer = torch.optim.Adam(ours.parameters(), 0.01)
    step = tracecast.train_step(ours, loss, optimizer)
    batches = list(data(4))
    step(*batches[0])
    state = [v for one in optimizer.state.values() for v in one.values()]
    held = [*ours.parameters(), *ours.buffers(), *state]
    before = [(t.data_ptr(), t.clone(), t._version) for t in held]
    step(*batches[1])
    state = [v for one in optimizer.state.values() for v in one.values()]
    assert all(a is b for a, b in zip(held, [*ours.parameters(), *ours.buffers(), *state], strict=True))
    for tensor, (address, value, version) in zip(held, before):
        assert tensor.data_ptr() == address and not torch.equal(tensor, value) and tensor._version > version
    assert step.ready[0].native.in_place == len(held)
    # What autograd saved is out of date, and it says so.
    y = ours(batches[2][0]).sum()
    step(*batches[3])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_other_memory_is_found():
    ours, theirs = model(), model()
    fast, slow = [torch.optim.SGD(one.parameters(), 0.1, momentum=0.9) for one in (ours, theirs)]
    step = tracecast.train_step(ours, loss, fast)

    def move(one, number):
        with torch.no_grad():
            if number == 2:  # Other memory for the same parameter.
                one[0].weight.data = one[0].weight.data.clone() * 0.5
            if number == 3:  # The same elements in another order.
                one[3].weight.data = one[3].weight.data.t().contiguous().t()
            if number == 4:  # Elements with others between them.
                one[3].bias.data = torch.stack([one[3].bias.data, one[3].bias.data], 1)[:, 0]
            if number == 5:  # Memory that is not aligned, and shared.
                flat = torch.zeros(1 + one[0].weight.numel())
                flat[1:] = one[0].weight.data.flatten()
                one[0].weight.data = flat[1:].view_as(one[0].weight)
            if number == 6:  # Other values in the same memory.
                one[1].bias.fill_(0.25)
            if number == 7:
                one[1].eval()
            if number == 8:
                one[0].weight.requires_grad_(False)
            if number == 9:
                one[0].weight.requires_grad_(True)

    for number, (x, y) in enumerate(data(11)):
        move(ours, number)
        move(theirs, number)
        slow.zero_grad()
        expected = loss(theirs, x, y)
        expected.backward()
        slow.step()
        same(step(x, y), expected.detach())
        states_agree(ours, theirs)
    states_agree(fast, slow)


def test_an_input_may_be_a_parameter():
    ours, theirs = nn.Linear(4, 4), nn.Linear(4, 4)
    theirs.load_state_dict(ours.state_dict())
    fast, slow = [torch.optim.SGD(one.parameters(), 0.1) for one in (ours, theirs)]
    square = lambda model, x: (model(x) * x).sum()
    step = tracecast.train_step(ours, square, fast)
    for _ in range(3):
        slow.zero_grad()
        expected = square(theirs, theirs.weight.detach().clone())
        expected.backward()
        slow.step()
        same(step(ours.weight.detach()), expected.detach())
    states_agree(ours, theirs)


def test_parameters_freed_between_steps_are_not_written():
    ours = model()
    step = tracecast.train_step(ours, loss, torch.optim.SGD(ours.parameters(), 0.1))
    for x, y in data(20):
        step(x, y)
        for p in ours.parameters():
            p.data = p.data.clone()
        torch.zeros(4096).sum()
    assert all(p.isfinite().all() for p in ours.parameters())


def test_a_buffer_that_is_replaced_keeps_its_value():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls = self.calls + 1
            return self.layer(x)

    ours = Counts()
    step = tracecast.train_step(ours, loss, torch.optim.SGD(ours.parameters(), 0.1))
    for x, y in data(3):
        step(x, y)
    assert float(ours.calls) == 3


def test_a_failed_step_changes_nothing():
    ours = model()
    optimizer = torch.optim.Adam(ours.parameters(), 0.01)
    step = tracecast.train_step(ours, loss, optimizer)
    batches = list(data(3))
    step(*batches[0])
    before = copy.deepcopy((ours.state_dict(), optimizer.state_dict()))
    with pytest.raises(tracecast.Error, match="index"):
        step(batches[1][0], torch.full((5,), 9))
    same((ours.state_dict(), optimizer.state_dict()), before, atol=0, rtol=0)
    step(*batches[1])


def test_explain_names_every_dtype():
    ours = model()
    step = tracecast.train_step(ours, loss, torch.optim.SGD(ours.parameters(), 0.1), autocast=torch.bfloat16)
    with pytest.raises(RuntimeError, match="no step was made"):
        step.explain()
    step(*next(data(1)))
    found = step.explain(as_json=True)
    assert found["casts"] and "test_step.py" in step.explain()


POLICIES = {
    "strict-bf16": {"linear": "bf16", "batch_norm": "f32"},
    "bold-bf16": {"linear": "bf16", "batch_norm": "bf16"},
    '[[rule]]\nop = "linear"\ndevice = "cpu"\npolicy = "fp32"\n': {"linear": "f32"},
}


@pytest.mark.parametrize("policy", POLICIES)
def test_policies_decide_dtypes(policy):
    ours, theirs = model(), model()
    fast, slow = [torch.optim.Adam(one.parameters(), 0.01) for one in (ours, theirs)]
    mine, scaler = [torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2) for _ in range(2)]
    step = tracecast.train_step(ours, loss, fast, autocast=torch.bfloat16, policy=policy, scaler=mine)
    for x, y in data(4):
        slow.zero_grad()
        expected = loss(theirs, x, y)
        scaler.scale(expected).backward()
        scaler.step(slow)
        scaler.update()
        same(step(x, y).float(), expected.detach(), atol=2e-2, rtol=2e-2)
    states_agree(ours, theirs, atol=5e-2, rtol=5e-2)
    assert mine.state_dict() == scaler.state_dict()
    found = step.explain(as_json=True)
    widths = {op["op"]: op["results"][0].split("[")[0] for op in found["ops"] if op["autocast"]}
    for op, dtype in POLICIES[policy].items():
        assert widths[op] == dtype, (op, widths)


def test_inputs_nest_and_lend_their_memory():
    numpy = pytest.importorskip("numpy")
    ours, theirs = model(), model()
    fast, slow = [torch.optim.SGD(one.parameters(), 0.1) for one in (ours, theirs)]
    scaled = lambda model, batch, factor: loss(model, batch["x"], batch["y"]) * factor
    step = tracecast.train_step(ours, scaled, fast)
    for number, (x, y) in enumerate(data(4)):
        factor = 1.0 + number // 2
        slow.zero_grad()
        expected = scaled(theirs, {"x": x, "y": y}, factor)
        expected.backward()
        slow.step()
        same(step({"x": x.numpy(), "y": numpy.asarray(y)}, factor), expected.detach())
    states_agree(ours, theirs)


def test_policies_know_where_gradients_are_off():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(6, 4)

        def forward(self, x):
            with torch.no_grad():
                scale = self.b(x).sigmoid()
                top, _ = self.c(x).max(1, keepdim=True)
            return self.a(x) * scale + self.a(x).detach() * top

    torch.manual_seed(0)
    ours = Half()
    theirs = copy.deepcopy(ours)
    fast, slow = [torch.optim.AdamW(one.parameters(), 0.01, weight_decay=0.5) for one in (ours, theirs)]
    square = lambda model, x: model(x).square().mean()
    step = tracecast.train_step(ours, square, fast, autocast=torch.bfloat16, policy="torch-cpu")
    for x, _ in data(4):
        slow.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            expected = square(theirs, x)
        expected.backward()
        slow.step()
        same(step(x).float(), expected.detach().float(), atol=1e-2, rtol=1e-2)
    states_agree(ours, theirs, atol=2e-2, rtol=2e-2)
    assert torch.equal(ours.b.weight, theirs.b.weight) and torch.equal(ours.c.bias, theirs.c.bias)


def test_wrong_policies_are_refused():
    ours = model()
    step = tracecast.train_step(ours, loss, torch.optim.SGD(ours.parameters(), 0.1), policy="boldest")
    with pytest.raises(ValueError, match="no policy `boldest`"):
        step(*next(data(1)))


def test_wrong_steps_are_refused():
    ours = model()
    with pytest.raises(ValueError, match="does not have"):
        tracecast.train_step(ours, loss, torch.optim.SGD(model().parameters(), 0.1))
    step = tracecast.train_step(ours, lambda model, x: model(x), torch.optim.SGD(ours.parameters(), 0.1))
    with pytest.raises(ValueError, match="expected a single number"):
        step(torch.randn(5, 6))
