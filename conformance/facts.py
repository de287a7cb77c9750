"""Reads the recorded facts of PyTorch's mixed precision, and the autocast table that a device is held to.

The facts are the files that the Rust tests read, `tests/data/*.json`. A field that no reader knows is a failure of its case.
"""

import hashlib
import json
import pathlib
import tomllib

import torch

HERE = pathlib.Path(__file__).resolve().parent
DATA = HERE.parent / "tests" / "data"
FILES = ("autocast-cases.json", "autocast-policies.json", "gradscaler-cases.json")
# Raised by one whenever a fact changes, together with `DIGEST`: two reports with one version speak of the same cases.
VERSION = 1
DIGEST = "7908938183bc3057"

POLICIES = (
    "lower_precision_fp",
    "fp32",
    "fp32_set_opt_dtype",
    "fp32_append_dtype",
    "promote",
    "banned",
    "fallthrough",
)

DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8e4m3fn": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
    "c32": torch.complex32,
    "c64": torch.complex64,
    "c128": torch.complex128,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

CALL = {
    "about", "args", "call", "device", "expect", "id", "in_upstream_suite", "kwargs", "list", "note", "op", "policy",
    "region", "region_device", "region_dtype",
}  # fmt: skip
EXPECT = {"casts", "casts_inside_the_op", "dtype_argument", "error", "kernel_refuses", "out", "run_dtype"}
ARGUMENT = {"dtype", "on", "shape", "tensor"}
PROGRAM = {"about", "device", "id", "program", "tensors"}
TENSOR = {"dtype", "fill", "kind", "shape"}
STEPS = {
    "backward": {"casts_in_backward", "do", "from", "grad_dtypes", "kernels"},
    "call": {
        "args", "as", "casts", "do", "error", "op", "out", "requires_grad", "show_requires_grad", "state", "value",
        "value_of",
    },
    "enter": {"cache_enabled", "device", "do", "dtype", "enabled", "reuse", "state", "warns"},
    "exit": {"do", "state"},
    "inference_mode": {"do", "state"},
    "other_thread": {"args", "do", "enabled_there", "op", "out"},
    "scale_in_place": {"by", "do", "tensor"},
}  # fmt: skip


def dtype_name(dtype):
    return NAMES.get(dtype, str(dtype))


def number(value):
    """A number, or one of the words for those that JSON lacks."""
    return float(value)


def unknown_fields(at, found, known):
    return [f"an unknown field `{name}` of {at}" for name in found if name not in known]


def unknown_of_call(case):
    arguments = [*case["args"], *case.get("kwargs", {}).values()]
    arguments = [one for value in arguments for one in (value if isinstance(value, list) else [value])]
    found = unknown_fields("a call", case, CALL) + unknown_fields("`expect`", case["expect"], EXPECT)
    for value in arguments:
        found += unknown_fields("an argument", value, ARGUMENT) if isinstance(value, dict) else []
    return found


def unknown_of_program(program):
    found = unknown_fields("a program", program, PROGRAM)
    for tensor in program["tensors"].values():
        found += unknown_fields("a tensor", tensor, TENSOR)
    for step in program["program"]:
        name = step.get("do", "?")
        known = STEPS.get(name)
        found += [f"an unknown step `{name}`"] if known is None else unknown_fields(f"the step `{name}`", step, known)
    return found


class Facts:
    """The recorded facts, and what they are called in a report."""

    def __init__(self, folder=DATA):
        texts = {name: (pathlib.Path(folder) / name).read_bytes() for name in FILES}
        whole = hashlib.sha256(b"".join(hashlib.sha256(texts[name]).digest() for name in FILES))
        self.digest = whole.hexdigest()[:16]
        self.version = f"{VERSION}" if self.digest == DIGEST else f"{VERSION}, changed ({self.digest})"
        self.autocast, self.policies, self.scaler = (json.loads(texts[name]) for name in FILES)

    def table(self, name):
        """The table of a device that PyTorch has, or that of a TOML file.

        Raises `ValueError` if there is neither, or if the file is not a table.
        """
        device = self.policies["devices"].get(name)
        if device is not None:
            policies = device["policies"].items()
            return Table(name, {op: policy for policy, ops in policies for op in ops}, recorded_as=name)
        path = pathlib.Path(name)
        if path.suffix != ".toml":
            known = ", ".join(self.policies["devices"])
            raise ValueError(f"there is no table `{name}`: expected one of {known}, or a file that ends in .toml")
        return table_file(path)


class Table:
    """The policy of each op; `recorded_as` is the device whose calls were recorded under exactly this table."""

    def __init__(self, name, ops, recorded_as=None, casts_f64=False):
        self.name, self.ops, self.recorded_as, self.casts_f64 = name, ops, recorded_as, casts_f64

    def policy(self, op):
        """The policy of `op` or `op.overload`; an op that is not listed falls through."""
        base = op.partition(".")[0]
        return self.ops.get(op, self.ops.get(f"{base}.*", "fallthrough"))


def table_file(path):
    try:
        given = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path}: {error}") from None
    unknown = sorted(set(given) - {"name", "device", "version", "casts_f64", "ops", "base"})
    if unknown:
        raise ValueError(f"{path}: unknown key `{unknown[0]}`: expected name, device, version, casts_f64 and [ops]")
    ops = {}
    for op, entry in given.get("ops", {}).items():
        policy = entry.get("policy") if isinstance(entry, dict) else entry
        if policy not in POLICIES:
            raise ValueError(f"{path}: `{op}` has the policy `{policy}`: expected one of {', '.join(POLICIES)}")
        ops[op] = policy
    return Table(given.get("name", path.stem), ops, casts_f64=given.get("casts_f64", False))


class Result:
    """How one case went: `pass`, `fail` or `unsupported`."""

    def __init__(self, section, id, op, status, expected=None, found=None, behind=None):
        self.section, self.id, self.op, self.status = section, id, op, status
        # `behind` holds listed ops that ran inside; if one of them fails by itself, so must this case.
        self.expected, self.found, self.behind = expected, found, behind or []

    def as_json(self):
        fields = ("section", "id", "op", "status", "expected", "found")
        return {name: getattr(self, name) for name in fields if getattr(self, name) is not None}
