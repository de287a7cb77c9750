"""What programs are not made for: an error or a fallback that names it, and never another value than eager PyTorch's."""

import contextlib
import gc
import os
import signal
import threading
import time
import warnings

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import tracecast


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    tracecast.reset_stats()
    torch.manual_seed(0)


def compiled(f, **options):
    return torch.compile(f, backend="tracecast", options=options)


@contextlib.contextmanager
def heard():
    """The warnings of a block as one text."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        text = []
        yield text
    text += [str(one.message) for one in found]


def same(a, b):
    torch.testing.assert_close(a, b, atol=2e-5, rtol=2e-5, equal_nan=True)


def test_complex_numbers_are_left_to_pytorch():
    f = lambda x: torch.fft.rfft(x).abs().sum(-1) * 2
    x = torch.randn(3, 8)
    with heard() as said:
        same(compiled(f)(x), f(x))
    assert any("PyTorch runs" in one and "rfft" in one or "fft" in one for one in said), said
    assert tracecast.stats()["fallback"] > 0
    torch._dynamo.reset()
    with pytest.raises(Exception, match="PyTorch runs"):
        compiled(f, fullgraph=True)(x)


def test_inputs_without_kernels_are_left_to_pytorch():
    z = torch.randn(4, dtype=torch.complex64)
    with heard() as said:
        same(compiled(lambda z: z * 2 + 1)(z), z * 2 + 1)
    assert tracecast.stats()["fallback"] > 0 and any("PyTorch runs" in one for one in said), said
    torch._dynamo.reset()
    quantised = torch.arange(8).to(torch.uint16)
    with heard():
        same(compiled(lambda x: x.to(torch.int32) + 1)(quantised), quantised.to(torch.int32) + 1)


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_sparse_tensors(layout):
    dense = torch.eye(4) * 3
    sparse = dense.to_sparse() if layout == "coo" else dense.to_sparse_csr()
    x = torch.randn(4, 2)
    with heard():
        same(compiled(lambda a, x: torch.sparse.mm(a, x).relu())(sparse, x), torch.sparse.mm(sparse, x).relu())


def test_sparse_gradients():
    def run(wrap):
        torch.manual_seed(0)
        table = nn.Embedding(7, 3, sparse=True)
        wrap(lambda i: table(i).square().sum())(torch.tensor([1, 2, 2])).backward()
        return table.weight.grad.to_dense()

    with heard():
        same(run(compiled), run(lambda f: f))


def test_shapes_that_depend_on_data():
    def f(x):
        kept = x[x > 0]
        return (kept * 2).sum() + torch.nonzero(x).shape[0]

    fast = compiled(f)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(20)
        with heard():
            same(fast(x), f(x))


def test_hooks_that_write():
    def hooked(_module, given):
        given[0].add_(1)

    def run(wrap):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        model[0].register_forward_hook(lambda module, given, out: out.mul_(2))
        model[1].register_forward_pre_hook(hooked)
        model[2].weight.register_hook(lambda gradient: gradient * 3)
        x = torch.randn(5, 4)
        y = wrap(model)(x)
        y.square().sum().backward()
        return y.detach(), [p.grad for p in model.parameters()], x

    with heard():
        same(run(compiled), run(lambda f: f))


def test_inputs_that_are_written():
    def f(x, y):
        x.add_(1)
        y[0].mul_(x[1])
        return x * y

    pairs = [[torch.randn(3, 4), torch.randn(3, 4)] for _ in range(2)]
    pairs[1] = [t.clone() for t in pairs[0]]
    same(compiled(f)(*pairs[0]), f(*pairs[1]))
    same(pairs[0], pairs[1])


def test_memory_that_is_freed_meanwhile():
    fast = compiled(lambda x: (x.t(), x * 2, x.view(-1)[3:]))
    results = []
    for number in range(50):
        x = torch.full((64, 65), float(number))
        results.append(fast(x))
        del x
        gc.collect(0)
    for number, (view, twice, part) in enumerate(results):
        assert float(view.min()) == float(view.max()) == number
        assert float(twice.min()) == float(twice.max()) == 2 * number
        assert float(part.min()) == float(part.max()) == number


def test_a_tensor_that_is_resized():
    fast = compiled(lambda x: x * 2)
    x = torch.arange(8.0)
    same(fast(x), x * 2)
    x.untyped_storage().resize_(4 * 4)
    x.set_(x.untyped_storage(), 0, (4,), (1,))
    same(fast(x), x * 2)
    empty = torch.empty(0, 3)
    same(fast(empty), empty * 2)


def test_a_tensor_without_memory_is_an_error():
    fast = compiled(lambda x: x * 2)
    x = torch.arange(8.0)
    same(fast(x), x * 2)
    x.untyped_storage().resize_(0)
    with pytest.raises(Exception):
        fast(x)


def small():
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    return model, torch.randn(128, 64), torch.randint(0, 8, (128,))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_fork_runs_programs(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        model, x, y = small()
        fast = compiled(model)
        expected = fast(x).sum().item()
        step = tracecast.train_step(model, lambda m, x, y: F.cross_entropy(m(x), y), torch.optim.SGD(model.parameters(), 0.0))
        loss = step(x, y).item()
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            ok = abs(fast(x).sum().item() - expected) < 1e-3 and abs(step(x, y).item() - loss) < 1e-5
            os._exit(0 if ok else 1)
        assert ended(child) == 0
        assert abs(fast(x).sum().item() - expected) < 1e-3
    finally:
        torch.set_num_threads(before)


def ended(child, seconds=90):
    """How a process ended: 0, its exit code, or minus the signal."""
    for _ in range(seconds * 10):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGKILL


def test_threads_share_a_program():
    model, x, _ = small()
    fast, wrong = compiled(model), []
    inputs = [x * number for number in range(8)]
    with torch.no_grad():
        expected = [model(x) for x in inputs]
        fast(x)

    def work(number):
        try:
            with torch.no_grad():
                for _ in range(50):
                    same(fast(inputs[number]), expected[number])
        except BaseException as error:
            wrong.append(error)

    run_all(work, 8)
    assert not wrong, wrong[0]


def test_threads_share_a_step():
    model, x, y = small()
    step = tracecast.train_step(model, lambda m, x, y: F.cross_entropy(m(x), y), torch.optim.SGD(model.parameters(), 0.01))
    first, wrong = step(x, y).item(), []

    def work(number):
        try:
            for _ in range(20):
                step(x, y)
        except BaseException as error:
            wrong.append(error)

    run_all(work, 4)
    assert not wrong, wrong[0]
    assert step(x, y).item() < first and all(p.isfinite().all() for p in model.parameters())


def run_all(work, count):
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    [thread.start() for thread in threads]
    [thread.join(120) for thread in threads]
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"


def test_steps_say_what_they_do_not_take():
    model, x, y = small()
    sgd = lambda m: torch.optim.SGD(m.parameters(), 0.1)
    with pytest.raises(ValueError, match="a single number"):
        tracecast.train_step(model, lambda m, x: [m(x)], sgd(model))(x)
    with pytest.raises(ValueError, match="devices cpu, reference"):
        tracecast.train_step(model, lambda m, x: m(x).sum(), sgd(model), options={"device": "gpu"})
    with pytest.raises(ValueError, match="fullgraph, save and device"):
        tracecast.train_step(model, lambda m, x: m(x).sum(), sgd(model), options={"fast": True})
    bags = nn.Embedding(7, 3, sparse=True)
    step = tracecast.train_step(bags, lambda m, i: m(i).sum(), torch.optim.SparseAdam(list(bags.parameters())))
    with pytest.raises(ValueError, match="a gradient is sparse"):
        step(torch.tensor([1, 2]))
    with heard() as said:
        step = tracecast.train_step(model, lambda m, x: m(x)[m(x) > 0].sum(), sgd(model))
        expected = model(x)[model(x) > 0].sum().detach()
        try:
            same(step(x), expected)
        except Exception as error:
            said.append(str(error))
    assert said
    wide = nn.Linear(3, 2, dtype=torch.complex64)
    step = tracecast.train_step(wide, lambda m, x: m(x).abs().sum(), torch.optim.SGD(wide.parameters(), 0.1))
    with heard() as said:
        try:
            loss = step(torch.randn(2, 3, dtype=torch.complex64))
            assert loss.isfinite()
        except Exception as error:
            said.append(str(error))
    assert said


def test_a_step_with_an_op_of_ones_own():
    """PyTorch runs the op, and says so; the rest of the step is programs."""

    @torch.library.custom_op("tracecast_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(lambda x: torch.empty_like(x))
    twice.register_autograd(lambda ctx, gradient: gradient * 2)
    models = [nn.Linear(4, 3), nn.Linear(4, 3)]
    models[1].load_state_dict(models[0].state_dict())
    fast, slow = [torch.optim.Adam(m.parameters(), 0.01) for m in models]
    loss = lambda model, x: twice(model(x)).square().mean()
    step = tracecast.train_step(models[0], loss, fast)
    for _ in range(3):
        x = torch.randn(5, 4)
        slow.zero_grad()
        expected = loss(models[1], x)
        expected.backward()
        slow.step()
        with heard():
            same(step(x), expected.detach())
    same(models[0].state_dict(), models[1].state_dict())
    assert tracecast.stats()["fallback"] > 0
    with pytest.raises(RuntimeError, match="PyTorch runs a part"):
        step.explain()
