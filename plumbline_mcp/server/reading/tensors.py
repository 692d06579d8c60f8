"""Reads names, shapes, dtypes, values and digests of safetensors in a worker."""

import difflib
import math
from pathlib import Path
from typing import Any

import numpy as np

from approvals.visible import visible_line
from checks.check import Progress
from checks.errors import BadInput
from checks.records.runs import RunFolder, is_run_folder
from checks.references.checkpoints.folder import INDEX, open_checkpoint
from checks.references.checkpoints.formats import decode
from checks.references.checkpoints.header import Unreadable, read_header
from checks.references.checkpoints.tensors import FileSource, Tensor
from plumbline_mcp.server.reading.sealed import files_below, sealed_run_of, verify_files

_NAME_LIMIT = 300
_WEIGHTS = "*.safetensors*"
_NORM_BYTES = 2**28
"""Of the tensors of one page: the norms of those beyond are left out."""
_NORM_CHUNK = 2**22


def list_tensors(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """``payload``: path, run, manifest_sha256, contains, norms, skip, limit.

    Returns ``total`` and the ``tensors`` from ``skip`` on; of a run every file that is read was verified.
    """
    path, run = _place(payload)
    if run is not None:  # any folder may be named: no other is walked
        progress(0, None, "verifying what was sealed")
        verify_files(run, files_below(path, _WEIGHTS))
    tensors = _open(path)
    wanted = payload["contains"].lower()
    found = sorted(name for name in tensors if wanted in name.lower())
    chosen = found[payload["skip"] : payload["skip"] + payload["limit"]]
    return {
        "total": len(found),
        "bytes": sum(tensors[name].nbytes for name in found),
        "tensors": [
            _described(tensors[name]) | norm
            for name, norm in zip(chosen, _norms(tensors, chosen, payload["norms"], progress), strict=True)
        ],
    }


def _norms(
    tensors: dict[str, Tensor], names: list[str], wanted: bool, progress: Progress
) -> list[dict[str, float | str | None]]:
    """The norm of each float tensor, as long as their bytes together stay within the limit."""
    left = _NORM_BYTES if wanted else 0
    found: list[dict[str, float | str | None]] = []
    for number, name in enumerate(names):
        tensor = tensors[name]
        left -= tensor.nbytes
        told = wanted and left >= 0 and tensor.format.is_float and not tensor.format.bits % 8
        if told:
            progress(number, len(names), "summing squares")
        found.append({"norm": _number(_norm(tensor))} if told else {})
    return found


def _norm(tensor: Tensor) -> float:
    """The 2-norm in float64."""
    squares = 0.0
    for first in range(0, tensor.size, _NORM_CHUNK):
        codes = tensor.codes(first, min(tensor.size, first + _NORM_CHUNK))
        squares += float(np.square(decode(codes, tensor.format).astype(np.float64)).sum())
    return math.sqrt(squares)


def read_tensor(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """``payload``: path, run, manifest_sha256, tensor, first, count.

    Returns the tensor's digest and values in row-major order; of a run its file was verified.
    """
    path, run = _place(payload)
    tensors = _open(path)
    tensor = tensors.get(payload["tensor"])
    if tensor is None:
        raise _unknown(payload["tensor"], tensors)
    if run is not None:
        progress(0, None, "verifying what was sealed")
        files = (path / tensor.file, path / INDEX) if path.is_dir() else (path,)
        verify_files(run, (file for file in files if file.exists()))
    first = payload["first"]
    if first and first >= tensor.size:
        raise BadInput(
            f"the tensor has {tensor.size} elements, none at {first}", f"use first below {tensor.size}"
        )
    progress(0, 1, f"hashing {tensor.nbytes} bytes")
    try:
        digest = tensor.digest()
        values = _values(tensor, first, min(tensor.size, first + payload["count"]))
    except Unreadable as error:
        raise BadInput(str(error)) from error
    return {"tensor": _described(tensor), "digest": digest, "first": first, "values": values}


def _place(payload: dict[str, Any]) -> tuple[Path, RunFolder | None]:
    """What is read (of a run what it exported) and the run that it lies in."""
    path, run = Path(payload["path"]), sealed_run_of(payload)
    return (run.output if run is not None and is_run_folder(path) else path), run


def _open(path: Path) -> dict[str, Tensor]:
    """Tensors by name of a checkpoint folder or of one file. Raises `BadInput`."""
    try:
        if path.is_dir():
            return open_checkpoint(path).tensors
        header = read_header(path)
    except FileNotFoundError as error:
        raise BadInput(str(error), "name a checkpoint folder or a safetensors file") from error
    except Unreadable as error:
        raise BadInput(
            f"cannot read {path}: {error}", "name a checkpoint folder or a safetensors file"
        ) from error
    return {
        entry.name: Tensor(entry.name, entry.dtype, entry.shape, FileSource(path, entry.begin), path.name)
        for entry in header.entries.values()
    }


def _described(tensor: Tensor) -> dict[str, Any]:
    return {
        "untrusted_name": visible_line(tensor.name, _NAME_LIMIT),
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "bytes": tensor.nbytes,
        "untrusted_file": visible_line(tensor.file, _NAME_LIMIT),
    }


def _values(tensor: Tensor, first: int, last: int) -> list[float | str]:
    if tensor.format.bits % 8:
        raise BadInput(f"elements of {tensor.dtype} are smaller than a byte", "read the raw file instead")
    codes = tensor.codes(first, last)
    if tensor.format.is_float:
        return [_number(value) for value in decode(codes, tensor.format).tolist()]
    signed = tensor.dtype.startswith("I")
    integers: list[float | str] = codes.view(
        codes.dtype.str.replace("u", "i") if signed else codes.dtype
    ).tolist()
    return integers


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _unknown(name: str, tensors: dict[str, Tensor]) -> BadInput:
    near = difflib.get_close_matches(name, tensors, n=3, cutoff=0.0)
    shown = ", ".join(visible_line(one, 100) for one in near)
    return BadInput(
        f"there is no tensor {name[:200]!r}", f"the nearest are {shown}" if near else "the file is empty"
    )
