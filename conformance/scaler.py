"""Runs the recorded scenarios of `GradScaler` and the ops under it on a device, and compares the whole state after each call.

Besides the numbers, the scale and the found-inf flag must live where the gradients do: PyTorch's rule, and a common fault of new devices.
"""

import math
import pickle

import torch

from calls import brief
from facts import DTYPES, Result, dtype_name, number, unknown_fields

OPTIMIZERS = {name: getattr(torch.optim, name) for name in ("SGD", "Adam", "AdamW", "Adagrad")}

SCENARIO = {"about", "config", "construct_error", "initial", "name", "ops", "optimizers"}
OP = {
    "after", "dtype", "error", "indices", "max_norm", "name", "new_scale", "op", "opt", "param",
    "positional_closure", "closure_kwarg", "result", "sparse", "value", "inv_scale",
}  # fmt: skip
AFTER = {"scale", "growth_tracker", "optimizers", "params", "grads"}
RESULT = {"attrs_removed", "inner_step_called", "params_changed", "step_counters"}
PARAM = {"value", "shape", "dtype", "shared"}


class Differs(Exception):
    def __init__(self, expected, found):
        super().__init__()
        self.expected, self.found = expected, found


def equal(what, wanted, found, close=False):
    """Raises `Differs` unless both are the same numbers; all NaNs are one."""

    def same(one, other):
        if math.isnan(one) and math.isnan(other):
            return True
        return one == other or close and abs(one - other) <= 1e-6 * abs(other)

    if len(wanted) != len(found) or not all(map(same, found, wanted)):
        raise Differs(f"{what} {wanted}", f"{found}")


def numbers(value):
    if isinstance(value, list):
        return [one for part in value for one in numbers(part)]
    return [] if value is None else [number(value)]


def read(tensor):
    tensor = tensor.to_dense() if tensor.is_sparse else tensor
    return tensor.detach().cpu().double().flatten().tolist()


class Scenario:
    def __init__(self, device, case):
        self.device, self.case = device, case
        self.kind = torch.device(device).type
        self.params, self.optimizers, self.steps = [], [], []
        self.scaler = torch.amp.GradScaler(self.kind, **{k: self.setting(v) for k, v in case.get("config", {}).items()})
        for optimizer in case.get("optimizers", []):
            self.add(optimizer)
        kinds = [optimizer.get("kind", "SGD") for optimizer in case.get("optimizers", [])]
        # A root, a power and a norm have other last bits in each of PyTorch's implementations.
        self.close = any(kind != "SGD" for kind in kinds) or any(op["op"] == "clip" for op in case["ops"])

    @staticmethod
    def setting(value):
        return value if isinstance(value, (bool, int)) else number(value)

    def tensor(self, values, dtype="f32", shape=None):
        shape = [len(values)] if shape is None else shape
        return torch.tensor(values, dtype=torch.float64).to(DTYPES[dtype]).reshape(shape).to(self.device)

    def described(self, value):
        tensor = self.tensor(numbers(value["v"]), value.get("dtype", "f32"), value.get("shape"))
        return tensor.requires_grad_() if value.get("requires_grad") else tensor

    def add(self, case):
        own = []
        for param in case["params"]:
            if "shared" in param:
                own.append(self.params[param["shared"]])
                continue
            tensor = self.tensor(numbers(param["value"]), param.get("dtype", "f32"), param.get("shape"))
            own.append(torch.nn.Parameter(tensor))
            self.params.append(own[-1])
        optimizer = OPTIMIZERS[case.get("kind", "SGD")](own, **{"lr": 1.0, **case.get("kwargs", {})})
        index = len(self.optimizers)
        self.optimizers.append(optimizer)
        self.steps.append(0)
        optimizer.register_step_pre_hook(lambda *_: self.count(index))

    def count(self, index):
        self.steps[index] += 1

    def run(self):
        self.compare("at first", self.case.get("initial"))
        for at, op in enumerate(self.case.get("ops", [])):
            place = f"after op {at} `{op['op']}`"
            self.outcome(place, op)
            self.compare(place, op.get("after"))

    def outcome(self, place, op):
        wanted = op.get("error")
        try:
            getattr(self, op["op"])(op)
        except (Differs, NotImplementedError) as error:
            if wanted is None or isinstance(error, Differs):
                raise
            found = error
        except Exception as error:  # the class of an error is recorded
            found = error
        else:
            found = None
        if (wanted and wanted["class"]) != (found and type(found).__name__):
            raise Differs(f"{place}: {wanted['class'] if wanted else 'no error'}", brief(found) if found else "no error")

    def nested(self, value):
        if isinstance(value, list):
            return [self.nested(one) for one in value]
        return self.described(value) if isinstance(value, dict) else value

    def scale(self, op):
        found = self.scaler.scale(self.nested(op["value"]))
        if "result" in op:
            self.same_nest(op["result"], found)

    def same_nest(self, wanted, found):
        if isinstance(wanted, list):
            for one, other in zip(wanted, found, strict=True):
                self.same_nest(one, other)
            return
        equal("shape", wanted["shape"], list(found.shape))
        if wanted["dtype"] != dtype_name(found.dtype):
            raise Differs(f"dtype {wanted['dtype']}", dtype_name(found.dtype))
        equal("scaled", numbers(wanted["v"]), read(found))

    def gradient(self, op):
        param = self.params[op["param"]]
        dtype = op.get("dtype", dtype_name(param.dtype))
        values = numbers(op["value"])
        if op.get("sparse"):
            values = self.tensor(values, dtype)
            indices = torch.tensor(op["indices"]).to(self.device)
            return torch.sparse_coo_tensor(indices, values, param.shape, check_invariants=False)
        return self.tensor(values, dtype, param.shape)

    def set_grad(self, op):
        param = self.params[op["param"]]
        if op["value"] is None:
            param.grad = None
            return
        gradient = self.gradient(op)
        param.grad = None
        param.grad_dtype = gradient.dtype
        param.grad = gradient

    def add_grad(self, op):
        param = self.params[op["param"]]
        param.grad = self.gradient(op) if param.grad is None else param.grad + self.gradient(op)

    def unscale(self, op):
        self.scaler.unscale_(self.optimizers[op["opt"]])

    def step(self, op):
        optimizer, before = self.optimizers[op["opt"]], [read(param) for param in self.params]
        called = self.steps[op["opt"]]
        loss = lambda: torch.ones((), device=self.device)  # noqa: E731
        args = [loss] if op.get("positional_closure") else []
        self.scaler.step(optimizer, *args, **({"closure": loss} if op.get("closure_kwarg") else {}))
        result = op.get("result") or {}
        found = {
            "inner_step_called": self.steps[op["opt"]] > called,
            "attrs_removed": not (hasattr(optimizer, "grad_scale") or hasattr(optimizer, "found_inf")),
            "params_changed": before != [read(param) for param in self.params],
        }
        for name in set(result) & set(found):
            if result[name] != found[name]:
                raise Differs(f"{name} {result[name]}", f"{found[name]}")
        if "step_counters" in result:
            states = [optimizer.state[param] for group in optimizer.param_groups for param in group["params"]]
            equal("step counters", numbers(result["step_counters"]), [float(one["step"]) for one in states if "step" in one])

    def update(self, op):
        if "new_scale" not in op:
            return self.scaler.update()
        value = op["new_scale"]
        # A new scale has the shape of the scale where none is recorded.
        given = self.described({"shape": [], **value}) if isinstance(value, dict) else self.setting(value)
        return self.scaler.update(given)

    def clip(self, op):
        params = [param for group in self.optimizers[op["opt"]].param_groups for param in group["params"]]
        norm = torch.nn.utils.clip_grad_norm_(params, number(op["max_norm"]))
        if op.get("result", {}).get("total_norm") is not None:
            equal("total_norm", numbers(op["result"]["total_norm"]), read(norm), True)

    def get_scale(self, op):
        equal("scale", numbers(op["result"]), [float(self.scaler.get_scale())])

    def get(self, op):
        found = getattr(self.scaler, f"get_{op['name'].lstrip('_')}", self.scaler._get_growth_tracker)()
        equal(op["name"], numbers(op.get("result")), [float(found)])

    def set(self, op):
        getattr(self.scaler, f"set_{op['name']}")(self.setting(op["value"]))

    def state_dict(self, op):
        state = self.scaler.state_dict()
        if set(state) != set(op["result"]):
            raise Differs(f"the keys {sorted(op['result'])}", f"{sorted(state)}")
        for name, value in op["result"].items():
            equal(name, numbers(value), [float(state[name])])

    def load_state_dict(self, op):
        self.scaler.load_state_dict({name: self.setting(value) for name, value in op["value"].items()})

    def pickle(self, op):
        self.scaler = pickle.loads(pickle.dumps(self.scaler))

    def compare(self, place, after):
        if after is None:
            raise Differs(f"{place}: a recorded state", "none")
        try:
            self.compared(after)
        except Differs as differs:
            raise Differs(f"{place}: {differs.expected}", differs.found) from None

    def compared(self, after):
        equal("scale", numbers(after["scale"]), [self.scaler.get_scale()])
        if after.get("growth_tracker") is not None:
            equal("growth tracker", numbers(after["growth_tracker"]), [float(self.scaler._get_growth_tracker())])
        scale = getattr(self.scaler, "_scale", None)
        if scale is not None:
            self.at_home("the scale", scale)
        for optimizer, wanted in zip(self.optimizers, after.get("optimizers", [])):
            # Reading the table by its key would make an entry.
            state = self.scaler._per_optimizer_states.get(id(optimizer))
            stage = state["stage"].name if state else "READY"
            if wanted["stage"] != stage:
                raise Differs(f"stage {wanted['stage']}", stage)
            flags = state["found_inf_per_device"] if state else {}
            equal("found_inf", numbers(wanted["found_inf"]), [one for flag in flags.values() for one in read(flag)])
            for flag in flags.values():
                self.at_home("found_inf", flag)
        for at, (param, value, grad) in enumerate(zip(self.params, after["params"], after["grads"])):
            equal(f"parameter {at}", numbers(value), read(param), self.close)
            if (param.grad is None) != (grad is None):
                raise Differs(f"gradient {at} {grad}", f"{param.grad}")
            if grad is not None:
                equal(f"gradient {at}", numbers(grad), read(param.grad), self.close)

    def at_home(self, what, tensor):
        if tensor.device.type != self.kind:
            raise Differs(f"{what} on {self.kind}", f"{tensor.device}")


def unknown_of_scenario(case):
    found = unknown_fields("a scenario", case, SCENARIO)
    for optimizer in case.get("optimizers", []):
        found += unknown_fields("an optimizer", optimizer, {"kind", "kwargs", "params"})
        found += [text for param in optimizer["params"] for text in unknown_fields("a parameter", param, PARAM)]
    for op in case.get("ops", []):
        found += unknown_fields("an op", op, OP) + unknown_fields("a state", op.get("after", {}), AFTER)
        found += [] if hasattr(Scenario, op["op"]) else [f"an unknown op `{op['op']}`"]
        if op["op"] == "step":
            found += unknown_fields("a step's result", op.get("result", {}), RESULT)
    return found


def scenario(device, case):
    if "construct_error" in case:
        try:
            Scenario(device, {"ops": [], **case})
        except Exception as error:
            if type(error).__name__ != case["construct_error"]["class"]:
                raise Differs(case["construct_error"]["class"], brief(error)) from None
            return
        raise Differs(case["construct_error"]["class"], "no error")
    Scenario(device, case).run()


def of_class(case, call):
    """Runs what is recorded to fail; true if it did."""
    wanted = case["error"]["class"] if isinstance(case["error"], dict) else case["error"].partition(":")[0]
    try:
        call()
    except Exception as error:
        if type(error).__name__ != wanted:
            raise Differs(wanted, brief(error)) from None
        return
    raise Differs(wanted, "no error")


def on(device, value, dtype="f32", shape=()):
    return torch.full(shape, number(value), dtype=DTYPES[dtype]).to(device)


def raw_unscale(device, case):
    grads = [torch.tensor(numbers(one["v"]), dtype=torch.float64).to(DTYPES[one["dtype"]]).to(device) for one in case["grads"]]
    found = on(device, case["found_inf_before"], case.get("found_dtype", "f32"), case.get("found_shape", ()))
    inverse = on(device, case["inv_scale"], case.get("inv_dtype", "f32"), case.get("inv_shape", ()))
    call = lambda: torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)  # noqa: E731
    if "error" in case:
        return of_class(case, call)
    call()
    equal("found_inf", numbers(case["found_inf_after"]), read(found))
    for wanted, grad in zip(case["grads_after"], grads, strict=True):
        equal("gradients", numbers(wanted), read(grad))


def raw_update(device, case):
    scale, tracker = on(device, case["scale"]), torch.full((), case["growth_tracker"], dtype=torch.int32).to(device)
    factors = number(case["growth_factor"]), number(case["backoff_factor"]), case["growth_interval"]
    torch._amp_update_scale_(scale, tracker, on(device, case["found_inf"]), *factors)
    equal("scale", numbers(case["scale_after"]), read(scale))
    equal("growth tracker", numbers(case["growth_tracker_after"]), read(tracker))


# What is wrong in each recorded refusal of the update: dtypes of scale, tracker and flag, and the elements of each.
WRONG = {
    "growth_tracker i64": [("f32", "i64", "f32"), ((), (), ())],
    "scale f64": [("f64", "i32", "f32"), ((), (), ())],
    "found_inf not f32": [("f32", "i32", "f64"), ((), (), ())],
    "more than one element in any of the three": [("f32", "i32", "f32"), ((2,), (2,), (2,))],
}


def raw_update_error(device, case):
    dtypes, shapes = WRONG[case["what"]]
    operands = [on(device, 1, *each) for each in zip(dtypes, shapes)]
    of_class(case, lambda: torch._amp_update_scale_(*operands, 2.0, 0.5, 2))


def fused_kernel(device, case):
    params = [torch.tensor(numbers(case["params"])).to(device).requires_grad_()]
    params[0].grad = torch.tensor(numbers(case["grads"])).to(device)
    optimizer = OPTIMIZERS[case["kind"]](params, fused=True, **case["kwargs"])
    optimizer.grad_scale, optimizer.found_inf = on(device, case["grad_scale"]), on(device, case["found_inf"])
    optimizer.step()
    equal("parameters", numbers(case["params_after"]), read(params[0]), case["updated"] and case["kind"] != "SGD")
    equal("gradients", numbers(case["grads_after"]), read(params[0].grad))
    if case["step_counter_after"] is not None:
        equal("step counter", numbers(case["step_counter_after"]), [float(optimizer.state[params[0]]["step"])])


def inverse(device, case):
    """The reciprocal is taken in f64 and rounded once."""
    equal("1 / scale", numbers(case["inv_scale"]), read(on(device, case["scale"]).double().reciprocal().float()))


SECTIONS = (
    ("scenarios", "name", scenario),
    ("raw_unscale_cases", "name", raw_unscale),
    ("raw_update_cases", "note", raw_update),
    ("raw_update_errors", "what", raw_update_error),
    ("fused_kernel_cases", "kind", fused_kernel),
    ("inv_scale_cases", "scale", inverse),
)
# The op by which a section is called in a report.
OPS = {
    "scenarios": "GradScaler",
    "raw_unscale_cases": "_amp_foreach_non_finite_check_and_unscale_",
    "raw_update_cases": "_amp_update_scale_",
    "raw_update_errors": "_amp_update_scale_",
    "inv_scale_cases": "reciprocal",
}


def check(facts, device):
    for section, name, run in SECTIONS:
        for at, case in enumerate(facts.scaler[section]):
            op = OPS.get(section) or f"fused {case['kind']}"
            label = f"{section}/{at}/{case.get(name, '')}"
            unknown = unknown_of_scenario(case) if run is scenario else []
            try:
                if unknown:
                    raise Differs("fields that a reader knows", "; ".join(unknown))
                run(device, case)
            except Differs as differs:
                yield Result("scaler", label, op, "fail", differs.expected, differs.found)
            except NotImplementedError as error:
                yield Result("scaler", label, op, "unsupported", found=brief(error))
            except Exception as error:
                refuses = "fused" in str(error) and "supported" in str(error).lower()
                status = "unsupported" if refuses else "fail"
                yield Result("scaler", label, op, status, None if refuses else "no error", brief(error))
            else:
                yield Result("scaler", label, op, "pass")


def casts(facts, device):
    """Casts of single numbers from f32, by their bits."""
    for case in facts.autocast["f32_cast_values"]:
        bits = int(case["f32_bits"], 16)
        x = torch.tensor([bits], dtype=torch.uint32).view(torch.float32).to(device)
        for name in ("f16", "bf16"):
            label = f"{case['f32_bits']}/{name}"
            try:
                low = x.to(DTYPES[name]).cpu()
            except (NotImplementedError, RuntimeError) as error:
                yield Result("casts", label, f"f32 to {name}", "unsupported", found=brief(error))
                continue
            found, wanted = low.view(torch.uint16).item(), case[f"{name}_bits"]
            is_nan = not wanted.startswith("0x")
            right = bool(low.isnan()) if is_nan else found == int(wanted, 16)
            status = "pass" if right else "fail"
            yield Result("casts", label, f"f32 to {name}", status, *([] if right else [wanted, f"{found:#06x}"]))
