"""Calls single ops in a region and compares the casts, the dtype argument and the result's dtype with what was recorded.

A dispatch mode below autocast sees every cast of an operand. What an op converts by itself shows in a second call: the region is
off, the operands are cast by hand and the dtype argument is given. Both calls must then see the same.
"""

import contextlib
import logging
import re
from collections import Counter

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from facts import DTYPES, Result, dtype_name, unknown_of_call
from policies import Decision, Operand, decide

# Overloads that have the dtype argument which `fp32_append_dtype` gives.
APPENDED = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}


class Recorder(TorchDispatchMode):
    """Notes every op below autocast, and the casts of named tensors."""

    def __init__(self, named):
        super().__init__()
        self.named, self.casts, self.ops = named, [], []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = op._schema.name.removeprefix("aten::")
        dtypes = [dtype_name(one.dtype) for one in args if isinstance(one, torch.Tensor)]
        self.ops.append((name, dtypes))
        out = op(*args, **kwargs)
        # `to` comes whole in inference mode, and as `_to_copy` otherwise.
        if name in ("to", "_to_copy") and out.dtype != args[0].dtype:
            path = next((path for path, tensor in self.named if tensor is args[0]), None)
            self.casts.append([path, dtype_name(args[0].dtype), dtype_name(out.dtype)])
            self.named.append((path, out))  # a cast of a cast is one of the same operand
        return out

    def named_casts(self):
        return [cast for cast in self.casts if cast[0] is not None]


@contextlib.contextmanager
def region(device, dtype):
    """Autocast by its switches: they ask for no driver, so operands without data do."""
    was = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, DTYPES[dtype])
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, was[0])
        torch.set_autocast_dtype(device, was[1])
        torch.clear_autocast_cache()


def python_overload(case):
    """The overload that a call by its Python name ends in."""
    op, args, kwargs = case["op"], case["args"], case.get("kwargs", {})
    is_tensor = [isinstance(one, dict) and "tensor" in one for one in args]
    has_dim = len(args) > 1 or "dim" in kwargs
    match op:
        case "pow":
            return "Scalar" if not is_tensor[0] else "Tensor_Tensor" if is_tensor[1] else "Tensor_Scalar"
        case "conv_transpose2d" | "conv_transpose3d":
            return "input"
        case "norm":
            return "ScalarOpt_dim" if "dim" in kwargs else "Scalar"
        case "softmax" | "log_softmax":
            return "int"
        case "sum" if has_dim:
            return "dim_IntList"
        case "prod" if has_dim:
            return "dim_int"
        case "frobenius_norm":
            return "dim"
        case "nuclear_norm" if has_dim:
            return "dim"
    return ""


class Call:
    """A recorded call. `key` is its name in the tables."""

    def __init__(self, case):
        self.case, self.expect = case, case["expect"]
        self.is_python = "call" in case
        if self.is_python:
            name = case["op"].strip("_") if case["op"].endswith("__") else case["op"]
            overload = python_overload(case)
            self.key = f"{name}.{overload}" if overload else name
        else:
            self.key = case["op"]
        self.low = case.get("region") or case["region_dtype"]

    def overload(self, key=None):
        """The op in the dispatcher; `None` if this PyTorch lacks it."""
        key = key or self.key
        if not torch._C._dispatch_has_kernel(f"aten::{key}"):
            return None
        name, _, overload = key.partition(".")
        return getattr(getattr(torch.ops.aten, name), overload or "default")

    def function(self):
        """What is called; `None` if this PyTorch lacks it."""
        if not self.is_python:
            return self.overload()
        name = self.case["op"]
        match self.case["call"]:
            case "torch":
                return getattr(torch, name, None)
            case "nn":
                return getattr(torch._C._nn, name, None)
            case "linalg":
                return getattr(torch.linalg, name.removeprefix("linalg_"), None)
            case _:
                return getattr(torch.Tensor, name, None)

    def arguments(self):
        """Pairs of path and recorded value."""
        yield from ((str(at), value) for at, value in enumerate(self.case["args"]))
        yield from self.case.get("kwargs", {}).items()

    def operands(self):
        """The tensors as a policy sees them: which are optional is in the schema of the op."""
        schema = self.overload()._schema.arguments
        types = {str(at): str(one.type) for at, one in enumerate(schema)} | {one.name: str(one.type) for one in schema}
        found = []
        for path, value in self.arguments():
            kind = types.get(path, "Tensor")
            listed = isinstance(value, list)
            for at, one in enumerate(value if listed else [value]):
                if not (isinstance(one, dict) and "tensor" in one):
                    continue
                optional = "Optional[Tensor]" in kind
                what = ("ignored" if listed else "optional") if optional else ("item" if listed else "tensor")
                full = f"{path}[{at}]" if listed else path
                found.append(Operand(full, one["tensor"], "on" not in one, what))
        return found

    def decision(self, policy, casts_f64):
        """What a policy means for this call."""
        has_dtype = any(isinstance(value, dict) and "dtype" in value for _, value in self.arguments())
        return decide(policy, self.operands(), self.low, has_dtype, casts_f64)

    def recorded_dtype_argument(self):
        """The upstream lists leave it out for softmax, where only an f32 result without any cast shows that it was there."""
        expect = self.expect
        silent = self.is_python and self.case["op"] in ("softmax", "log_softmax") and expect.get("casts") == []
        silent = silent and expect["out"] != self.case["args"][0]["tensor"]
        return expect["out"] if silent else expect.get("dtype_argument")

    def is_composite(self):
        op = self.overload()
        return op is not None and torch._C._dispatch_has_kernel_for_dispatch_key(
            op.name(), "CompositeImplicitAutograd"
        )


class Ran:
    """What came of one call."""

    def __init__(self, recorder, out, error):
        self.casts, self.out, self.error = recorder.named_casts(), out, error
        self.ops = [name for name, _ in recorder.ops]


def result_dtypes(out):
    if isinstance(out, torch.Tensor):
        return dtype_name(out.dtype)
    if isinstance(out, (list, tuple)):
        return [result_dtypes(one) for one in out]
    return {"python": type(out).__name__}


class Caller:
    """Runs calls on a device, with fake operands (dispatch and dtypes alone) or with real ones."""

    def __init__(self, device, table, real=False):
        self.device, self.table, self.real = device, table, real
        self.type = torch.device(device).type
        # A mode that meets an op without a meta kernel says so in the log; here it is one of the answers.
        logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
        self.fakes = contextlib.nullcontext() if real else FakeTensorMode()

    def is_own(self, call):
        """True if the call was recorded under the table, and not under another that has the same entry."""
        return call.is_python or call.case["id"].startswith(f"{self.table.recorded_as}/")

    def place(self, call, recorded):
        """The device for what was recorded on one: ours for that of the table, others as they are."""
        return recorded if self.is_own(call) and recorded != self.table.recorded_as else self.device

    def tensor(self, value, device):
        dtype = DTYPES[value["tensor"]]
        if not self.real:
            return torch.empty(value["shape"], dtype=dtype, device=device)
        # One is valid for a float of every op, zero for an index.
        fill = float(dtype.is_floating_point or dtype.is_complex)
        return torch.full(value["shape"], fill, dtype=torch.float64).to(dtype).to(device)

    def value(self, path, value, home, casts, named):
        if isinstance(value, list):
            return [self.value(f"{path}[{at}]", one, home, casts, named) for at, one in enumerate(value)]
        if not isinstance(value, dict):
            return value
        if "tensor" not in value:
            return DTYPES[value["dtype"]]
        tensor = self.tensor(value, value.get("on", home))
        if path in casts:
            tensor = tensor.to(DTYPES[casts[path]])
        named.append((path, tensor))
        return tensor

    def run(self, call, by_hand=None):
        """The call in its region, or outside of any with the casts of a decision made by hand."""
        casts = {path: to for path, _, to in by_hand.casts or ()} if by_hand else {}
        function, named = call.function(), []
        with self.fakes:
            home = self.place(call, call.case["device"])
            values = {path: self.value(path, value, home, casts, named) for path, value in call.arguments()}
            args = [values.pop(str(at)) for at in range(len(call.case["args"]))]
            if by_hand and by_hand.dtype_argument:
                if call.key in APPENDED and not call.is_python:
                    function = call.overload(APPENDED[call.key])
                    args += [False] * (len([one for one in function._schema.arguments if not one.kwarg_only]) - len(args))
                values["dtype"] = DTYPES[by_hand.dtype_argument]
            within = contextlib.nullcontext()
            if not by_hand:
                on = self.place(call, call.case.get("region_device", call.case["device"]))
                within = region(torch.device(on).type, call.low)
            with within, Recorder(named) as recorder:
                try:
                    return Ran(recorder, result_dtypes(function(*args, **values)), None)
                except Exception as error:  # whatever the op raises is its answer
                    return Ran(recorder, None, error)

    def expected(self, call):
        """What the table means for the call: recorded, or worked out where the record is of a table with another entry."""
        policy, expect = self.table.policy(call.key), call.expect
        if self.is_own(call) or policy == call.case["policy"]:
            return Decision(expect.get("casts"), call.recorded_dtype_argument(), expect.get("error"))
        return call.decision(policy, self.table.casts_f64)

    def differences(self, call, decision, ran, guess=None):
        """How a call differs from a decision: pairs of what was expected and found, and why less could be compared.

        A decision may be that of a policy which is a guess: then the recorded result says nothing.
        """
        if decision.error:
            found = dtype_or_error(ran)
            return [] if isinstance(ran.error, RuntimeError) else [(f"a RuntimeError ({decision.error})", found)], None
        if decision.casts is None and ran.error:  # of this call only the result was recorded
            return [], f"the op did not run: {brief(ran.error)}"
        by_hand, differing = self.run(call, decision), []
        # The listed ops inside an unlisted one make casts of their own, so only its result is compared.
        casts_inside = self.ends_in_others(call, guess)
        if not casts_inside and decision.casts is not None:
            differing += compare_casts(decision.casts, ran.casts, by_hand.casts)
        if ran.error:
            if by_hand.error is None and not casts_inside:
                differing.append(("a result", dtype_or_error(ran)))
            refused = not differing and not call.expect.get("kernel_refuses")
            return differing, f"the op refuses these operands by itself: {brief(ran.error)}" if refused else None
        wanted = [] if casts_inside or decision.casts is None or by_hand.error else [by_hand.out]
        if not guess and self.is_own(call) and (self.type == self.table.recorded_as or not wanted):
            wanted.append(call.expect.get("out"))
        differing += [(f"a result of {out}", f"{ran.out}") for out in wanted if out not in (None, ran.out)][:1]
        return differing, None

    def ends_in_others(self, call, policy=None):
        return call.is_composite() and (policy or self.table.policy(call.key)) == "fallthrough"

    def check(self, section, case):
        call = Call(case)
        unknown = unknown_of_call(case)
        if unknown:
            return Result(section, case["id"], call.key, "fail", "fields that a reader knows", "; ".join(unknown))
        if call.function() is None or (not call.is_python and call.overload() is None):
            return Result(section, case["id"], call.key, "unsupported", found="this PyTorch has no such op")
        homes = {self.place(call, call.case[one]) for one in ("device", "region_device") if one in call.case}
        if "region_device" in call.case and len(homes) < 2:
            return Result(section, case["id"], call.key, "unsupported", found="it takes a second type of device")
        try:
            ran = self.run(call)
        except RuntimeError as error:  # operands on a device that is not there
            return Result(section, case["id"], call.key, "unsupported", found=brief(error))
        if isinstance(ran.error, NotImplementedError) and re.search("from the 'Autocast", str(ran.error)):
            found = f"no fallback for the autocast key: {brief(ran.error)}"
            return Result(section, case["id"], call.key, "fail", "the op runs", found)
        differing, why = self.differences(call, self.expected(call), ran)
        if differing:
            inner = ran.ops if self.ends_in_others(call) else []
            wanted, found = ("; ".join(texts) for texts in zip(*differing))
            return Result(section, case["id"], call.key, "fail", wanted, found, inner)
        # With real operands a kernel is missing; without, the op is not made for these dtypes and its casts are right.
        status = "unsupported" if why and self.real and isinstance(ran.error, NotImplementedError) else "pass"
        return Result(section, case["id"], call.key, status, found=why)

    def behaves_as(self, cases):
        """The policies that would explain all of these calls of one op."""
        calls = [call for call in map(Call, cases) if not call.is_python]
        policies = ["fallthrough", "lower_precision_fp", "fp32", "promote"]
        if any(one.name == "dtype" for call in calls[:1] for one in call.overload()._schema.arguments):
            policies.append("fp32_set_opt_dtype")

        def fits(policy):
            decided = ((call, call.decision(policy, self.table.casts_f64)) for call in calls)
            return bool(calls) and not any(self.differences(*each, self.run(each[0]), policy)[0] for each in decided)

        return [policy for policy in policies if fits(policy)]


def compare_casts(wanted, found, inside):
    """Compares multisets of casts. `inside`: those that the op makes by itself."""
    paths = [path for path, _, _ in wanted]
    # One tensor passed twice was recorded under one of its paths.
    aliased = len(set(paths)) < len(paths)

    def counted(casts):
        return Counter(f"{'' if aliased else path}: {of} to {to}" for path, of, to in casts)

    wanted = counted(wanted) + counted(inside)
    found = counted(found)
    if wanted == found:
        return []
    words = lambda casts: ", ".join(sorted(casts.elements())) or "none"  # noqa: E731
    return [(f"casts {words(wanted)}", words(found))]


def dtype_or_error(ran):
    return f"a result of {ran.out}" if ran.error is None else brief(ran.error)


def brief(error):
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:160] if text else ''}"


def made(case, policy):
    """A call whose float operands the policy has to cast. It was not recorded: the policy says what must come of it."""
    dtype = "f32" if policy == "lower_precision_fp" else case["region"]

    def of_dtype(value):
        if isinstance(value, list):
            return [of_dtype(one) for one in value]
        if isinstance(value, dict) and DTYPES[value.get("tensor", "bool")].is_floating_point:
            return {**value, "tensor": dtype}
        return value

    kwargs = {name: of_dtype(value) for name, value in case.get("kwargs", {}).items()}
    args = of_dtype(case["args"])
    return {**case, "id": f"made/{case['id']}", "policy": "made", "args": args, "kwargs": kwargs, "expect": {}}


def cases_for(facts, table):
    """The calls by which a device is held to a table: those recorded under it, and others' calls of ops that these leave out.

    Where no call of a listed op shows whether the entry is there, one is made.
    """
    recorded = facts.autocast["aten_op_cases"] + facts.autocast["single_probes"]
    own = [case for case in recorded if table.recorded_as and case["id"].startswith(f"{table.recorded_as}/")]
    covered = {case["op"] for case in own}
    others, seen = [], set()
    for case in recorded:
        same = (case["op"], repr(case["args"]), repr(case.get("kwargs")), case["region"])
        if case["op"] not in covered and same not in seen and "region_device" not in case:
            seen.add(same)
            others.append(case)
    if own:
        others = [case for case in others if table.policy(case["op"]) != "fallthrough"]
    python = [case for case in facts.autocast["upstream_list_cases"] if case["device"] == table.recorded_as]
    shown, first = set(), {}
    for case in own + others:
        policy = table.policy(case["op"])
        call = Call(case)
        if policy == "fallthrough" or call.overload() is None:
            continue
        first.setdefault(case["op"], case)
        decision = call.decision(policy, table.casts_f64)
        if decision.casts or decision.dtype_argument or decision.error:
            shown.add(case["op"])
    new = [made(case, table.policy(op)) for op, case in first.items() if op not in shown]
    return own + others + new + python


def autocast_key(device):
    """The dispatch key of autocast for a type of device."""
    kind = torch.device(device).type
    if kind == torch._C._get_privateuse1_backend_name():
        return "AutocastPrivateUse1"
    return f"Autocast{kind.upper()}"
