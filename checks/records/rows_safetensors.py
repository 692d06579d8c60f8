"""The run record's row files: ``rows-<epoch>-<nnn>.safetensors``, one entry for each sequence, packed
with offsets.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from checks.errors import BadInput
from checks.records.rows import PER_TOKEN, Dump, Limits, Sequence
from checks.rules import MAX_ROWS, MAX_TOKENS

ROWS_FORMAT, ROWS_VERSION = "plumbline-rows", "1"
_TOKEN_DTYPES = {"input_ids": "I32", "labels": "I32", "attention_mask": "U8", "position_ids": "I32"}
_DTYPES = {
    **_TOKEN_DTYPES,
    "loss_weights": "F32",
    "offsets": "I64",
    "document_offsets": "I64",
    "row_ids": "I32",
    "epochs": "I32",
    "batches": "I32",
}
Tensors = dict[str, npt.NDArray[Any]]


def read_safetensors(path: Path) -> Dump:
    """One row file. Raises `BadInput` when it does not have the record's layout."""
    tensors, metadata = _tensors(path)
    limits = Limits(path)
    offsets = _offsets(tensors, "offsets", len(tensors["input_ids"]), path)
    documents = _offsets(tensors, "document_offsets", len(tensors["input_ids"]), path, offsets)
    _check_lengths(tensors, len(offsets) - 1, len(documents) - 1, path)
    first = np.searchsorted(documents, offsets, side="left")
    rank = _rank(metadata, path)
    sequences = []
    for number in range(len(offsets) - 1):
        limits.add(int(offsets[number + 1] - offsets[number]))
        sequences.append(
            _sequence(number, tensors, offsets, documents, (first[number], first[number + 1]), rank)
        )
    return Dump(tuple(sequences), "safetensors")


def rows_metadata(path: Path) -> dict[str, str]:
    """The file's own words about itself: format, version, rank, world_size, labels. Raises `BadInput`."""
    return _tensors(path, frozenset())[1]


def _tensors(path: Path, wanted: frozenset[str] = frozenset(_DTYPES)) -> tuple[Tensors, dict[str, str]]:
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            names = set(file.keys())
            if (metadata.get("format"), metadata.get("version")) != (ROWS_FORMAT, ROWS_VERSION):
                raise BadInput(
                    f"{path} is no row file: its metadata says format {metadata.get('format')!r}, version "
                    f"{metadata.get('version')!r} (this version reads {ROWS_FORMAT} {ROWS_VERSION})"
                )
            missing = {"input_ids", "offsets"} - names
            if missing:
                raise BadInput(f"{path} has no tensor {min(missing)!r}")
            return {name: _tensor(file, name, path) for name in sorted(names & wanted)}, metadata
    except (SafetensorError, OSError) as error:
        raise BadInput(f"{path} cannot be read as safetensors: {str(error)[:200]}") from error


def _tensor(file: Any, name: str, path: Path) -> npt.NDArray[Any]:
    view = file.get_slice(name)
    shape, dtype = view.get_shape(), view.get_dtype()
    if dtype != _DTYPES[name] or len(shape) != 1:
        raise BadInput(f"{path}: {name} is {dtype}{shape}, the record's is {_DTYPES[name]}[n]")
    if shape[0] > (MAX_TOKENS if name in {*_TOKEN_DTYPES, "loss_weights"} else 64 * MAX_ROWS):
        raise BadInput(f"{path}: {name} has {shape[0]} entries, more than the limit", "check it in parts")
    array: npt.NDArray[Any] = file.get_tensor(name)
    return array


def _offsets(
    tensors: Tensors, name: str, total: int, path: Path, default: npt.NDArray[Any] | None = None
) -> npt.NDArray[Any]:
    offsets = tensors.get(name, default)
    if (
        offsets is None
        or len(offsets) < 1
        or offsets[0] != 0
        or offsets[-1] != total
        or (np.diff(offsets) < 0).any()
    ):
        raise BadInput(f"{path}: {name} do not rise from 0 to {total}, the number of tokens")
    if default is not None and not np.isin(default, offsets).all():
        raise BadInput(f"{path}: a document crosses a sequence ({name} miss an offset)")
    return offsets


def _check_lengths(tensors: Tensors, sequences: int, documents: int, path: Path) -> None:
    tokens = len(tensors["input_ids"])
    wanted = {
        **dict.fromkeys((*PER_TOKEN, "loss_weights"), tokens),
        "row_ids": documents,
        "epochs": sequences,
        "batches": sequences,
    }
    for name, length in wanted.items():
        if name in tensors and len(tensors[name]) != length:
            raise BadInput(f"{path}: {name} has {len(tensors[name])} entries, expected {length}")


def _rank(metadata: dict[str, str], path: Path) -> int:
    text = metadata.get("rank", "0")
    if not text.isdecimal():
        raise BadInput(f"{path}: rank {text!r} is no number")
    return int(text)


def _sequence(
    number: int,
    tensors: Tensors,
    offsets: npt.NDArray[Any],
    documents: npt.NDArray[Any],
    inside: tuple[Any, Any],
    rank: int,
) -> Sequence:
    start, end = int(offsets[number]), int(offsets[number + 1])
    first, last = int(inside[0]), int(inside[1])

    def part(name: str) -> Any:
        return tensors[name][start:end] if name in tensors else None

    def entry(name: str) -> int | None:
        return int(tensors[name][number]) if name in tensors else None

    attention = part("attention_mask")
    return Sequence(
        number,
        part("input_ids"),
        part("labels"),
        None if attention is None else attention.astype(np.int32),
        part("position_ids"),
        part("loss_weights"),
        tuple(np.diff(documents[first : last + 1]).tolist()) if "document_offsets" in tensors else None,
        tuple(tensors["row_ids"][first:last].tolist()) if "row_ids" in tensors else (),
        entry("epochs"),
        rank,
        entry("batches"),
    )
