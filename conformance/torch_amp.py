#!/usr/bin/env python3
"""Holds a PyTorch device to the recorded facts of mixed precision: autocast lists, regions, casts and the gradient scaler.

    conformance/torch_amp.py --device cpu
    conformance/torch_amp.py --device npu --table my-lists.toml --import my_backend --json report.json

`README.md` beside this file says what comes out. Exit code: 0 all passed, 1 something failed, 2 wrong arguments, 3 no PyTorch.
"""

import argparse
import importlib
import json
import sys
import time
import warnings
from collections import Counter

try:
    import torch
except ImportError:
    print("NOT RUN: PyTorch is not here", file=sys.stderr)
    sys.exit(3)

import calls
import facts
import programs
import scaler

SECTIONS = ("lists", "kernels", "regions", "casts", "scaler")


def arguments(given):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", required=True, help="a device of PyTorch: cpu, cuda, npu:0")
    parser.add_argument("--table", help="its lists: those of cpu, cuda, xpu, mps, mtia, or a TOML file; by default its own")
    parser.add_argument("--import", dest="module", action="append", default=[], help="a module that registers the device")
    parser.add_argument("--sections", default="lists,regions,casts,scaler", help=f"some of {','.join(SECTIONS)}")
    parser.add_argument("--data", default=facts.DATA, help="the folder of the facts")
    parser.add_argument("--json", metavar="FILE", help="every case, to a file; - for the standard output")
    return parser, parser.parse_args(given)


def table_of(recorded, device, name):
    """The table that `--table` names, or that of the type of device."""
    kind = torch.device(device).type
    ours = kind == torch._C._get_privateuse1_backend_name()
    if name is None and (ours or not recorded.policies["devices"].get(kind, {}).get("policies", {}).get("fp32")):
        raise ValueError(f"PyTorch has no lists for `{kind}`: say with --table which it is to have: cpu, cuda or a file")
    return recorded.table(name or kind)


def results(recorded, table, device, sections):
    if "lists" in sections or "kernels" in sections:
        cases = calls.cases_for(recorded, table)
    for section in (one for one in ("lists", "kernels") if one in sections):
        caller = calls.Caller(device, table, real=section == "kernels")
        for case in cases:
            yield caller.check(section, case)
        if section == "lists":
            yield from without_case(table, device, {calls.Call(case).key for case in cases})
    if "regions" in sections:
        cpu = recorded.table("cpu")
        ran = (programs.check(program, table, cpu, device) for program in recorded.autocast["behaviour_programs"])
        yield from (one for one in ran if one)
    if "casts" in sections:
        yield from scaler.casts(recorded, device)
    if "scaler" in sections:
        yield from scaler.check(recorded, device)


def without_case(table, device, covered):
    """Entries that no call was recorded for: whether they have a kernel in the autocast key at all."""
    key = calls.autocast_key(device)
    for op, policy in table.ops.items():
        if op in covered or policy == "fallthrough" or op.endswith(".*"):
            continue
        name = f"aten::{op}"
        if not torch._C._dispatch_has_kernel(name):
            yield facts.Result("lists", f"entry/{op}", op, "unsupported", found="this PyTorch has no such op")
            continue
        registered = torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
        if registered and not torch._C._dispatch_kernel_for_dispatch_key_is_fallthrough(name, key):
            yield facts.Result("lists", f"entry/{op}", op, "pass", found="registered; no call of it was recorded")
        else:
            yield facts.Result("lists", f"entry/{op}", op, "fail", policy, f"nothing is registered for {key}")


def failed_ops(all_results):
    """The ops that fail by themselves, with their results; and the failures that these explain."""
    failed = [one for one in all_results if one.status == "fail"]
    by_op, behind = {}, []
    for one in failed:
        if not one.behind:
            by_op.setdefault(one.op, []).append(one)
    names = {op.partition(".")[0] for op in by_op}
    for one in failed:
        if not one.behind:
            continue
        explained = sorted({op.partition(".")[0] for op in one.behind} & names)
        if explained:
            behind.append((one, explained))
        else:
            by_op.setdefault(one.op, []).append(one)
    return by_op, behind


def policies_that_fit(recorded, table, device, by_op):
    """For each listed op that fails: the policies that explain all of its calls."""
    caller = calls.Caller(device, table)
    cases = calls.cases_for(recorded, table)
    of_op = {op: [case for case in cases if calls.Call(case).key == op] for op in by_op}
    return {op: caller.behaves_as(of_op[op]) for op, failed in by_op.items() if failed[0].section in ("lists", "kernels")}


def write(out, all_results, table, by_op, behind, fitting):
    counts = Counter((one.section, one.status) for one in all_results)
    for op, failed in by_op.items():
        kind = f"`{op}`"
        if op in fitting:
            kind += f": {table.policy(op)} is expected"
            kind += f", it does as {' or '.join(fitting[op])}" if fitting[op] else ""
        print(f"FAIL {kind}: {len(failed)} {'case' if len(failed) == 1 else 'cases'}", file=out)
        for one in failed[:2]:
            print(f"     {one.id}\n       expected {one.expected}\n       found    {one.found}", file=out)
    for one, explained in behind:
        print(f"     {one.section}/{one.id} fails too, behind {', '.join(f'`{op}`' for op in explained)}", file=out)
    unsupported = Counter((one.section, one.op, one.found) for one in all_results if one.status == "unsupported")
    for (section, op, why), count in unsupported.items():
        print(f"unsupported {section}: `{op}`: {why} ({count})", file=out)
    for section in dict.fromkeys(one.section for one in all_results):
        line = ", ".join(f"{counts[section, status]} {status}" for status in ("pass", "fail", "unsupported"))
        print(f"{section}: {line}", file=out)


def main(given=None):
    parser, args = arguments(given)
    sections = args.sections.split(",")
    unknown = [one for one in sections if one not in SECTIONS]
    if unknown:
        parser.error(f"unknown section `{unknown[0]}`: expected some of {', '.join(SECTIONS)}")
    started = time.monotonic()
    try:
        for module in args.module:
            importlib.import_module(module)
        recorded = facts.Facts(args.data)
        table = table_of(recorded, args.device, args.table)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        parser.error(str(error))
    warnings.simplefilter("ignore")
    all_results = list(results(recorded, table, args.device, sections))
    by_op, behind = failed_ops(all_results)
    fitting = policies_that_fit(recorded, table, args.device, by_op)
    head = {
        "set": recorded.version,
        "recorded_from": "PyTorch 2.15.0",
        "pytorch": torch.__version__,
        "device": args.device,
        "table": table.name,
        "seconds": round(time.monotonic() - started, 1),
    }
    out = sys.stderr if args.json == "-" else sys.stdout
    print(f"set {head['set']}, recorded from {head['recorded_from']}; `{args.device}` of PyTorch {head['pytorch']}, ", end="", file=out)
    print(f"table `{table.name}`", file=out)
    write(out, all_results, table, by_op, behind, fitting)
    print(f"{len(by_op)} {'op fails' if len(by_op) == 1 else 'ops fail'}, {head['seconds']} s", file=out)
    if args.json:
        ops = {
            op: {"expected": table.policy(op) if op in fitting else None, "does_as": fitting.get(op, [])} for op in by_op
        }
        explained = {f"{one.section}/{one.id}": names for one, names in behind}
        report = {**head, "failed": ops, "behind": explained, "cases": [one.as_json() for one in all_results]}
        text = json.dumps(report, indent=1)
        if args.json == "-":
            print(text)
        else:
            with open(args.json, "w") as file:
                file.write(text + "\n")
    return 1 if by_op else 0


if __name__ == "__main__":
    sys.exit(main())
