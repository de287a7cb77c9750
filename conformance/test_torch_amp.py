"""Tests of the runner: it passes PyTorch's CPU whole, and names what is wrong where something is.

    conformance/check
"""

import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from contextlib import redirect_stderr, redirect_stdout

import torch

import calls
import facts
import torch_amp

HERE = pathlib.Path(__file__).resolve().parent
TABLES = HERE.parent / "ir" / "src" / "policy" / "tables"


def report(*given):
    """What the runner returns, and its report."""
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        path = pathlib.Path(folder) / "report.json"
        code = torch_amp.main([*given, "--json", str(path)])
        return code, json.loads(path.read_text())


def of_python_device(without=""):
    """The report on the device in Python, which lives in a process of its own: a device cannot be taken back."""
    command = [sys.executable, HERE / "torch_amp.py", "--device", "npu", "--table", "cuda", "--import", "python_device", "--json", "-"]
    ran = subprocess.run(command, env={**os.environ, "WITHOUT": without}, capture_output=True, text=True)
    assert ran.stdout, ran.stderr
    return ran.returncode, json.loads(ran.stdout)


def ids(found, status):
    return {f"{case['section']}/{case['id']}" for case in found["cases"] if case["status"] == status}


class Patched:
    """PyTorch's autocast on the CPU with another kernel for one op."""

    def __init__(self, op, kernel=torch.library.fallthrough_kernel):
        self.op, self.kernel = op, kernel

    def __enter__(self):
        self.library = torch.library.Library("aten", "IMPL")
        self.library.impl(self.op, self.kernel, "AutocastCPU")

    def __exit__(self, *_):
        self.library._destroy()


class Facts(unittest.TestCase):
    def test_the_set_is_the_version_that_it_says(self):
        found = facts.Facts()
        self.assertEqual(found.digest, facts.DIGEST, "facts changed: raise VERSION and set DIGEST")

    def test_policies_decide_every_recorded_call_as_recorded(self):
        recorded = facts.Facts().autocast
        cases = [case for case in recorded["aten_op_cases"] + recorded["single_probes"] if case["policy"][0] != "("]
        self.assertEqual(len(cases), 3928)
        for case in cases:
            expect, found = case["expect"], calls.Call(case).decision(case["policy"], False)
            self.assertEqual(found.error, expect.get("error"), case["id"])
            if not found.error:
                self.assertEqual(calls.compare_casts(expect["casts"], found.casts, []), [], case["id"])
                self.assertEqual(found.dtype_argument, expect.get("dtype_argument"), case["id"])

    def test_a_field_that_no_reader_knows_fails_its_case(self):
        recorded = facts.Facts()
        recorded.autocast["aten_op_cases"][0]["expect"]["mood"] = 1
        recorded.autocast["behaviour_programs"][0]["program"][0]["do"] = "dance"
        recorded.scaler["scenarios"][0]["weather"] = "fine"
        table = recorded.table("cpu")
        found = list(torch_amp.results(recorded, table, "cpu", ["lists", "regions", "scaler"]))
        found = {one.id: one.found for one in found if one.status == "fail"}
        wanted = {
            recorded.autocast["aten_op_cases"][0]["id"]: "an unknown field `mood` of `expect`",
            recorded.autocast["behaviour_programs"][0]["id"]: "an unknown step `dance`",
            "scenarios/0/defaults": "an unknown field `weather` of a scenario",
        }
        self.assertEqual(found, wanted)


class Cpu(unittest.TestCase):
    def test_it_passes_whole(self):
        code, found = report("--device", "cpu")
        self.assertEqual(ids(found, "fail") | ids(found, "unsupported"), set())
        self.assertEqual((code, found["failed"], len(found["cases"])), (0, {}, 2153))

    def test_its_kernels_refuse_nothing_by_autocast(self):
        code, found = report("--device", "cpu", "--sections", "kernels")
        self.assertEqual((code, ids(found, "fail")), (0, set()))
        self.assertLess(len(ids(found, "unsupported")), 10)

    def test_an_entry_that_is_missing_is_named_alone(self):
        for op in ("mm", "prod", "cat", "linear", "mkldnn_rnn_layer"):
            with Patched(op):
                code, found = report("--device", "cpu", "--sections", "lists,regions")
            self.assertEqual((code, list(found["failed"])), (1, [op]))
            if op != "mkldnn_rnn_layer":  # no call of it was recorded
                self.assertIn("fallthrough", found["failed"][op]["does_as"])

    def test_an_entry_too_many_is_named_alone(self):
        def fp32(x):
            with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
                return torch.exp(x.float())

        with Patched("exp", fp32):
            code, found = report("--device", "cpu", "--sections", "lists,regions")
        self.assertEqual((code, list(found["failed"])), (1, ["exp"]))
        self.assertEqual(found["failed"]["exp"]["expected"], "fallthrough")

    def test_a_table_in_a_file_is_followed(self):
        given = ("--device", "cpu", "--sections", "lists,regions", "--table")
        code, found = report(*given, str(TABLES / "torch-cpu.toml"))
        self.assertEqual((code, found["failed"]), (0, {}))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "mine.toml"
            text = (TABLES / "torch-cpu.toml").read_text()
            path.write_text(text.replace('\navg_pool3d = "fp32"', '\navg_pool3d = "lower_precision_fp"'))
            code, found = report(*given, str(path))
        self.assertEqual((code, list(found["failed"])), (1, ["avg_pool3d"]))
        self.assertEqual(found["failed"]["avg_pool3d"]["does_as"], ["fp32"])

    def test_bad_arguments_are_refused(self):
        for given, says in (
            (["--device", "privateuseone"], "say with --table"),
            (["--device", "cpu", "--table", "gpu"], "there is no table `gpu`"),
            (["--device", "cpu", "--sections", "moods"], "unknown section `moods`"),
            (["--device", "no such device"], "no such device"),
        ):
            with redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit) as left:
                torch_amp.main(given)
            self.assertEqual(left.exception.code, 2, given)
            self.assertIn(says, said.getvalue())


class WithoutData(unittest.TestCase):
    def test_the_lists_of_devices_that_are_not_here(self):
        for device in ("cuda", "mps", "xpu", "mtia"):
            code, found = report("--device", device, "--sections", "lists")
            self.assertEqual((code, ids(found, "fail")), (0, set()), device)


class PythonDevice(unittest.TestCase):
    # Python cannot reach PyTorch's cast cache.
    CACHE = {
        "regions/cache/exit_of_disabled_outermost_clears",
        "regions/cache/grad_input",
        "regions/cache/key_has_no_dtype",
        "regions/cache/stale_after_in_place",
    }

    def test_all_but_the_cache_passes(self):
        _, found = of_python_device()
        self.assertEqual(ids(found, "fail"), self.CACHE)
        self.assertLess(len(ids(found, "unsupported")), 5)

    def test_an_entry_that_is_missing_is_named_alone(self):
        _, found = of_python_device(without="softmax.int")
        failed = {op for op, about in found["failed"].items() if about["expected"]}
        self.assertEqual(failed, {"softmax.int"})


if __name__ == "__main__":
    unittest.main()
