"""Compiled programs as files for the tool `tracecast`: the text, and the arrays that it was first run on."""

from __future__ import annotations

import ctypes
import io
import zipfile
from pathlib import Path

import torch

_NUMPY = {
    torch.bool: "|b1",
    torch.uint8: "|u1",
    torch.int8: "|i1",
    torch.int16: "<i2",
    torch.int32: "<i4",
    torch.int64: "<i8",
    torch.float16: "<f2",
    torch.float32: "<f4",
    torch.float64: "<f8",
}


def save(path: Path, text: str, arrays: dict[str, torch.Tensor]) -> None:
    """Writes `PATH.tc`, and `PATH.npz` for `--inputs` of the tool."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(f"{path.name}.tc").write_text(text)
    with zipfile.ZipFile(path.with_name(f"{path.name}.npz"), "w") as archive:
        for name, tensor in arrays.items():
            archive.writestr(f"{name}.npy", npy(tensor))


def npy(tensor: torch.Tensor) -> bytes:
    """A tensor in the format of numpy, version 1.0. A dtype that numpy lacks becomes f32."""
    descr = _NUMPY.get(tensor.dtype)
    if descr is None:
        return npy(tensor.float())
    tensor = tensor.detach().contiguous()
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {tuple(tensor.shape)!r}, }}"
    padded = header + " " * (-(len(header) + 11) % 64) + "\n"
    file = io.BytesIO()
    file.write(b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded.encode())
    file.write(ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.nbytes else b"")
    return file.getvalue()
