"""A device of PyTorch's `PrivateUse1` key in Python alone: `npu`, whose memory is tensors of the CPU.

It shows what a device owes autocast, and what the runner finds if it does not: see `test_torch_amp.py`. Its policies are Python functions,
and PyTorch's cast cache cannot be reached from Python, so each use of a weight is cast anew.
"""

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend as set_up

from facts import DTYPES, Facts, dtype_name
from policies import Operand, decide

NAME = "npu"


class Module:
    """What `torch.npu` is."""

    @staticmethod
    def get_amp_supported_dtype():
        return [torch.float16, torch.bfloat16]

    @staticmethod
    def is_available():
        return True

    @staticmethod
    def is_initialized():
        return True

    @staticmethod
    def current_device():
        return 0

    @staticmethod
    def device_count():
        return 1

    @staticmethod
    def _is_in_bad_fork():
        return False

    @staticmethod
    def manual_seed_all(seed):
        pass


# The numbers of each tensor by its storage, which copies of the handle made in C++ share. Grows for as long as the process lives.
DATA = {}


def is_ours(value):
    return isinstance(value, torch.Tensor) and value.device.type == NAME


def data_of(value):
    return DATA[value.untyped_storage()._cdata] if is_ours(value) else value


def tensor_of(data):
    tensor = torch._C._acc.create_empty_tensor(data.shape, data.dtype)
    DATA[tensor.untyped_storage()._cdata] = data
    return tensor


def kernel(op, *args, **kwargs):
    """Every kernel of the device: the CPU's, on the data."""
    given = {}

    def unwrap(value):
        if is_ours(value):
            given[id(data_of(value))] = value
            return data_of(value)
        return torch.device("cpu") if isinstance(value, torch.device) and value.type == NAME else value

    def wrap(value):
        if not isinstance(value, torch.Tensor):
            return value
        return given[id(value)] if id(value) in given else tensor_of(value)  # an op in place returns its operand

    args, kwargs = torch.utils._pytree.tree_map(unwrap, (args, kwargs))
    return torch.utils._pytree.tree_map(wrap, op(*args, **kwargs))


def copy_from(source, target, non_blocking=False):
    """The one op that the device owes besides kernels: copies from and to the CPU."""
    data_of(target).copy_(data_of(source))
    return target


def autocast(op, policy):
    """What runs in a region in place of a listed op."""
    parameters = op._schema.arguments
    at_dtype = next((at for at, one in enumerate(parameters) if one.name == "dtype"), len(parameters))

    def operands_of(args, kwargs):
        for at, value in [*enumerate(args), *((one.name, kwargs.get(one.name)) for one in parameters)]:
            kind = str(parameters[at].type if isinstance(at, int) else "")
            for number, one in enumerate(value) if isinstance(value, (list, tuple)) else [(None, value)]:
                if isinstance(one, torch.Tensor):
                    what = "optional" if "Optional[Tensor]" in kind else "tensor"
                    what = "ignored" if number is not None and what == "optional" else what
                    yield Operand((at, number), dtype_name(one.dtype), one.device.type == NAME, what)

    def run(*args, **kwargs):
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)):
            low = dtype_name(torch.get_autocast_dtype(NAME))
            has_dtype = kwargs.get("dtype") is not None or args[at_dtype : at_dtype + 1] not in ((), (None,))
            decision = decide(policy, list(operands_of(args, kwargs)), low, has_dtype)
            if decision.error:
                raise RuntimeError(f"{op}: {decision.error}")
            to = {path: DTYPES[dtype] for path, _, dtype in decision.casts}

            def cast(at, value):
                if isinstance(value, (list, tuple)):
                    return [one.to(to[at, number]) if (at, number) in to else one for number, one in enumerate(value)]
                return value.to(to[at, None]) if (at, None) in to else value

            args = [cast(at, value) for at, value in enumerate(args)]
            kwargs = {name: cast(name, value) for name, value in kwargs.items()}
            called = op
            if decision.dtype_argument:
                kwargs["dtype"] = DTYPES[decision.dtype_argument]
                if policy == "fp32_append_dtype":
                    called, args = with_dtype(op, args)
            return called(*args, **kwargs)

    return run


def with_dtype(op, args):
    """The overload of an op that takes a dtype, and its positional arguments."""
    overload = {"Scalar": "ScalarOpt_dtype", "ScalarOpt_dim": "ScalarOpt_dim_dtype"}[op._overloadname]
    op = getattr(op.overloadpacket, overload)
    return op, args + [False] * (len([one for one in op._schema.arguments if not one.kwarg_only]) - len(args))


def register(without=()):
    """Registers the device with the lists of PyTorch's cuda, but for some ops. Keeps what is returned alive."""
    set_up(NAME, backend_module=Module())
    everywhere, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    everywhere.fallback(kernel, "PrivateUse1")
    everywhere.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    aten.impl("_copy_from", copy_from, "PrivateUse1")
    for name, policy in Facts().table("cuda").ops.items():
        if name not in without and torch._C._dispatch_has_kernel(f"aten::{name}"):
            base, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.aten, base), overload or "default")
            aten.impl(name, autocast(op, policy), "AutocastPrivateUse1")
    return everywhere, aten


if __name__ != "__main__":
    import os

    LIBRARIES = register(os.environ.get("WITHOUT", "").split(","))
