"""Runs programs of regions on a device: nesting, defaults, the cast cache, threads and backward, step by step as recorded.

Every program was recorded on PyTorch's CPU in its dtype, bf16. It holds for another table if that has the same policy for every op of it.
"""

import threading
import warnings
from collections import Counter

import torch

from calls import Recorder, brief
from facts import DTYPES, Result, dtype_name, unknown_of_program

# Names in the tables of what programs call otherwise, and of what it ends in.
KEYS = {"bce": ["binary_cross_entropy"], "softmax": ["softmax.int"], "einsum": ["einsum", "bmm"]}


def index_copy(a, b):
    return torch.index_copy(a, 0, torch.arange(b.shape[0], device=b.device), b.clone())


def bce(a, b):
    return torch.ops.aten.binary_cross_entropy(a.sigmoid(), b.sigmoid())


FUNCTIONS = {
    "cat": lambda *tensors: torch.cat(tensors),
    "softmax": lambda a: torch.softmax(a, -1),
    "layer_norm": lambda a: torch.layer_norm(a, a.shape[-1:]),
    "linear": torch.nn.functional.linear,
    "einsum": lambda a, b: torch.einsum("ij,jk->ik", a, b),
    "mv": lambda a, b: torch.mv(a, b[0]),
    "mse_loss": torch.nn.functional.mse_loss,
    "index_copy": index_copy,
    "bce": bce,
}


def made(value, device):
    """A tensor of a program, and what it is kept alive by."""
    fill = value.get("fill", 1.0)
    base = torch.full(value["shape"], fill, dtype=torch.float64).to(DTYPES[value["dtype"]]).to(device)
    match value.get("kind", "plain"):
        case "plain":
            return base
        case "param" | "grad_input":
            return base.requires_grad_()
        case "nonleaf":
            return base.requires_grad_() * 1
        case "view_of_param":
            return base.requires_grad_().view(value["shape"])
        case "leaf_view":
            return base.view(value["shape"]).requires_grad_()
        case kind:
            raise ValueError(f"an unknown kind of tensor: `{kind}`")


class Program:
    def __init__(self, device, program):
        self.device, self.type = device, torch.device(device).type
        self.tensors = {name: made(value, device) for name, value in program["tensors"].items()}
        self.open, self.object, self.found = [], None, []

    def expect(self, what, wanted, found):
        if wanted != found:
            self.found.append((f"{what} {wanted}", f"{found}"))

    def state(self):
        return {
            "enabled": torch.is_autocast_enabled(self.type),
            "dtype": dtype_name(torch.get_autocast_dtype(self.type)),
            "cache": torch.is_autocast_cache_enabled(),
        }

    def step(self, step):
        getattr(self, step["do"])(step)
        if "state" in step:
            self.expect(f"after `{step['do']}` the state", step["state"], self.state())

    def enter(self, step):
        if not step.get("reuse"):
            dtype = DTYPES[step["dtype"]] if "dtype" in step else None
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                self.object = torch.autocast(
                    step.get("device", self.type), dtype, step.get("enabled", True), step.get("cache_enabled")
                )
            self.expect("a warning:", step.get("warns", False), bool(warned))
        self.object.__enter__()
        self.open.append(self.object)

    def exit(self, step):
        self.open.pop().__exit__(None, None, None)

    def inference_mode(self, step):
        mode = torch.inference_mode()
        mode.__enter__()
        self.open.append(mode)

    def scale_in_place(self, step):
        with torch.no_grad():
            self.tensors[step["tensor"]].mul_(step["by"])

    def function(self, name):
        return FUNCTIONS.get(name) or getattr(torch, name)

    def call(self, step):
        named = [(name, self.tensors[name]) for name in step["args"]]
        with Recorder(list(dict(named).items())) as recorder:
            try:
                out = self.function(step["op"])(*(tensor for _, tensor in named))
            except Exception as error:  # the class of an error is recorded, its words are the device's
                wanted = step["error"]["class"] if "error" in step else "a result"
                found = type(error).__name__
                return self.expect(f"of `{step['op']}`", wanted, found if "error" in step else brief(error))
        if "error" in step:
            return self.expect(f"of `{step['op']}`", step["error"]["class"], f"a result of {dtype_name(out.dtype)}")
        self.expect(f"of `{step['op']}` a result of", step["out"], dtype_name(out.dtype))
        self.expect(f"of `{step['op']}` the casts", sorted(step["casts"]), sorted(recorder.named_casts()))
        if "requires_grad" in step:
            self.expect(f"of `{step['op']}` requires_grad", step["requires_grad"], out.requires_grad)
        if "value" in step:
            self.expect(f"of `{step['op']}` the value", step["value"], out.flatten()[0].item())
        if "as" in step:
            self.tensors[step["as"]] = out

    def other_thread(self, step):
        seen = {}

        def body():
            seen["enabled"] = torch.is_autocast_enabled(self.type)
            seen["out"] = self.function(step["op"])(*(self.tensors[name] for name in step["args"])).dtype

        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
        self.expect("in another thread enabled is", step["enabled_there"], seen.get("enabled"))
        self.expect("in another thread a result of", step["out"], dtype_name(seen.get("out")))

    def backward(self, step):
        start = self.tensors[step["from"]].to(torch.float32).sum()
        with Recorder([]) as recorder:
            start.backward()
        kernels = [[name, *dtypes] for name, dtypes in recorder.ops if name == step["kernels"][0][0]]
        self.expect("backward kernels", step["kernels"], kernels)
        casts = Counter((of, to) for _, of, to in recorder.casts)
        self.expect("casts in backward", Counter(map(tuple, step["casts_in_backward"])), casts)
        for name, dtype in step["grad_dtypes"].items():
            grad = self.tensors[name].grad
            self.expect(f"the gradient of `{name}` in", dtype, grad if grad is None else dtype_name(grad.dtype))

    def close(self):
        while self.open:
            self.exit(None)


def ops_of(program):
    """The names in the tables of the ops that a program calls."""
    called = [step["op"] for step in program["program"] if "op" in step]
    return list(dict.fromkeys(key for op in called for key in KEYS.get(op, [op])))


def accepts(device, dtype):
    """True if a region of the device takes the dtype without asking: what the CPU refuses with a warning, other types need not."""
    kind = torch.device(device).type
    if kind == "cuda":
        return True
    if kind == torch._C._get_privateuse1_backend_name():
        return dtype in torch.get_device_module(kind).get_amp_supported_dtype()
    return dtype in (torch.bfloat16, torch.float16)


def why_not(program, table, cpu, device):
    """Why a program says nothing about a table or a device."""
    for op in ops_of(program):
        if table.policy(op) != cpu.policy(op):
            return f"`{op}` is {table.policy(op)} in the table, {cpu.policy(op)} where it was recorded"
    for step in program["program"]:
        dtype = DTYPES[step["dtype"]] if "dtype" in step else None
        enters = step["do"] == "enter" and step.get("enabled", True) and dtype
        if enters and step.get("warns", False) == accepts(device, dtype):
            return f"regions of this device {'take' if step.get('warns') else 'refuse'} {step['dtype']}"
    return None


def check(program, table, cpu, device):
    section, ops = "regions", ops_of(program)
    named = ", ".join(ops)
    unknown = unknown_of_program(program)
    if unknown:
        return Result(section, program["id"], named, "fail", "fields that a reader knows", "; ".join(unknown))
    why = why_not(program, table, cpu, device)
    if why:
        return None
    kind = torch.device(device).type
    was, cache = torch.get_autocast_dtype(kind), torch.is_autocast_cache_enabled()
    run = None
    try:
        torch.set_autocast_dtype(kind, torch.bfloat16)  # as where it was recorded
        run = Program(device, program)
        for step in program["program"]:
            run.step(step)
    except NotImplementedError as error:
        return Result(section, program["id"], named, "unsupported", found=brief(error))
    finally:
        if run:
            run.close()
        torch.set_autocast_enabled(kind, False)
        torch.set_autocast_dtype(kind, was)
        torch.set_autocast_cache_enabled(cache)
        torch.clear_autocast_cache()
    if run.found:
        wanted, found = ("; ".join(texts) for texts in zip(*run.found))
        return Result(section, program["id"], named, "fail", wanted, found, ops)
    return Result(section, program["id"], named, "pass")
