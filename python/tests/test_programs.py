"""Random programs beside eager PyTorch, forward and backward.

`TRACECAST_PROGRAMS=1000 pytest tests/test_programs.py` tries as many as that; 40 are tried without it.
"""

import contextlib
import copy
import os
import statistics

import pytest
import torch
from torch._prims_common import check_significant_strides

import programs
import tracecast

COUNT = int(os.environ.get("TRACECAST_PROGRAMS", "40"))

DRAWS = 8
"""The inputs that decide about a result which looks too far off. Rounding is chance, and on the mean over inputs a mistake is left."""


def run(f, module, state, x, cast):
    """What a step gives: result, loss, gradients, buffers."""
    before, x = x, x.clone(memory_format=torch.preserve_format).requires_grad_(x.is_floating_point())
    module.load_state_dict(state)
    module.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16) if cast else contextlib.nullcontext():
        y, loss = f(x)
    if loss.requires_grad:
        loss.backward()
    found = {"result": y.detach(), "loss": loss.detach()}
    if x.grad is not None:
        found["gradient of the input"] = x.grad
    assert torch.equal(x.detach().nan_to_num(), before.nan_to_num()), "the input changed"
    found |= {f"gradient {name}": p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    return found | {f"buffer {name}": b.clone() for name, b in module.named_buffers()}


def distances(found, exact):
    """For each tensor its distance from the exact one in L2, relative to it. Of what nearly cancels, to a thousandth of the largest of its
    kind; of what is zero but for rounding in f64, such as the gradient of a bias in front of a norm, to the largest."""
    norms = {name: float(x.double().nan_to_num().norm()) for name, x in exact.items() if x.is_floating_point()}
    kind = lambda name: name.split()[0]
    distance = {}
    for name in norms.keys() & found.keys():
        largest = max(norm for other, norm in norms.items() if kind(other) == kind(name))
        off = float((found[name].double().nan_to_num() - exact[name].nan_to_num()).norm())
        is_zero = norms[name] < 1e-12 * largest
        distance[name] = off / max(norms[name], largest if is_zero else 1e-3 * largest, 1e-12)
    return distance


def differences(found, eager, wrapped, plain):
    """How results differ from those of eager PyTorch beyond rounding.

    `wrapped` gives the result where PyTorch runs the graphs of AOTAutograd, which may state other strides for a view of a result. Strides of
    axes of one element say nothing. `plain` gives what PyTorch computes without oneDNN, whose convolutions skip padding beside NaN."""
    wrong = [f"{name}: only one has it" for name in found.keys() ^ eager.keys()]
    for name in found.keys() & eager.keys():
        a, b = found[name], eager[name]
        has_strides = lambda of: check_significant_strides(a, of, only_cuda=False)[0]
        if (a.dtype, a.shape) != (b.dtype, b.shape) or (name == "result" and not has_strides(b) and not has_strides(wrapped())):
            wrong.append(f"{name}: {a.dtype} {tuple(a.shape)} {a.stride()}, eager {b.dtype} {tuple(b.shape)} {b.stride()}")
        elif not a.is_floating_point():
            wrong += [] if torch.equal(a, b) else [f"{name}: integers differ"]
        elif not any(torch.equal(a.isnan(), of().isnan()) and torch.equal(a.isinf(), of().isinf()) for of in (lambda: b, lambda: plain()[name])):
            wrong.append(f"{name}: NaN or infinity elsewhere")
    return wrong


def farther(pairs, cast):
    """What is too far from f64, on the mean over inputs: farther than a multiple of what eager PyTorch is, and a slack.

    Each pair has our distances and those of eager PyTorch."""
    mean = lambda at, name: statistics.fmean(pair[at].get(name, 0) for pair in pairs)
    ours, theirs = [{name: mean(at, name) for name in pairs[0][at]} for at in (0, 1)]
    middle = statistics.median(theirs.values())
    # As `zoo/check.py`. What eager PyTorch itself has lost, such as a norm of equal numbers, says nothing.
    factor, slack = (1.5, 4e-3) if cast else (4, 1e-4)
    is_far = lambda name: theirs.get(name, 0) < 0.05 and ours[name] > factor * max(theirs.get(name, 0), middle) + slack
    return [f"{name}: {ours[name]:.2g} from f64, eager {theirs.get(name, 0):.2g}" for name in ours if is_far(name)]


@pytest.mark.parametrize("seed", range(COUNT))
def test_a_random_program(seed):
    torch._dynamo.reset()
    tracecast.reset_stats()
    cast = seed % 4 == 3
    module, make = programs.program(seed)
    state = copy.deepcopy(module.state_dict())
    wide = copy.deepcopy(module).double()
    wide_state = copy.deepcopy(wide.state_dict())
    fast = torch.compile(module, backend="tracecast")
    aot = torch.compile(module, backend="aot_eager")

    def step(batch, draw):
        """What Tracecast gives, and eager PyTorch, and this in f64; and the input."""
        x = make(batch, draw)
        eager = run(module, module, state, x, cast)
        exact = run(wide, wide, wide_state, x.double() if x.is_floating_point() else x, False)
        return run(fast, module, state, x, cast), eager, exact, x

    def apart(batch, draw):
        found, eager, exact, _ = step(batch, draw)
        return distances(found, exact), distances(eager, exact)

    for batch in (3, 3, 5):
        found, eager, exact, x = step(batch, 0)
        wrapped = lambda: run(aot, module, state, x, cast)["result"]

        def plain():
            with torch.backends.mkldnn.flags(enabled=False):
                return run(module, module, state, x, cast)

        wrong = differences(found, eager, wrapped, plain)
        if not wrong and farther([(distances(found, exact), distances(eager, exact))], cast):
            wrong = farther([apart(batch, draw) for draw in range(DRAWS)], cast)
        assert not wrong, f"batch {batch}: {module}\n" + "\n".join(wrong)
    stats = tracecast.stats()
    assert stats["fallback"] == 0 and not stats["breaks"], f"{module}\n{stats}"
