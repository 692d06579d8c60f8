"""The faults that the export check injects: overlays of a small slice, nothing is copied on disk."""

import json
import math
from dataclasses import replace

import numpy as np

from checks.check import NotApplicable
from checks.references.checkpoints.differences import is_closer
from checks.references.checkpoints.expectation import Expectation, Wanted
from checks.references.checkpoints.folder import VOCABULARIES, Checkpoint
from checks.references.checkpoints.formats import FORMATS, Floats, encoded
from checks.references.checkpoints.layouts import grid
from checks.references.checkpoints.tensors import MemorySource, Tensor
from checks.references.checkpoints.values import shows_its_merge

SMALL = 2**20
LARGE = 2**26
"""Bytes of a tensor that may be in the slice, and of the one square matrix or adapted weight it may hold."""


def slice_of(expected: Expectation, export: Checkpoint) -> tuple[Expectation, Checkpoint]:
    """A few tensors with what they have to be. Raises `NotApplicable` when none is small enough."""
    pairs = {
        name: entry
        for name, entry in expected.wanted.items()
        if name in export.tensors and not entry.no_reference and _alike(entry, export.tensors[name])
    }
    by_size = sorted(pairs.values(), key=lambda entry: (entry.nbytes, entry.name))
    plain = [e for e in by_size if e.raw is not None and e.can_round and 0 < e.nbytes <= SMALL][:3]
    chosen = [*plain, *_first_square(by_size), *_first_adapted(by_size)]
    if not chosen:
        raise NotApplicable(f"no tensor of at most {SMALL} bytes is in both")
    names = {entry.name for entry in chosen}
    documents = {name: raw for name, raw in export.documents.items() if name not in VOCABULARIES}
    return (
        replace(expected, wanted={name: expected.wanted[name] for name in sorted(names)}, whole=False),
        replace(
            export,
            tensors={name: export.tensors[name] for name in sorted(names)},
            documents=documents,
            shards=(),
        ),
    )


def _alike(entry: Wanted, tensor: Tensor) -> bool:
    return (entry.dtype, entry.shape) == (tensor.dtype, tensor.shape)


def _first_square(entries: list[Wanted]) -> list[Wanted]:
    squares = (e for e in entries if e.can_round and e.update is None and e.nbytes <= LARGE and _is_square(e))
    return next(([entry] for entry in squares if _matrix_turns(entry)), [])


def _is_square(entry: Wanted) -> bool:
    return len(entry.shape) >= 2 and entry.shape[-1] == entry.shape[-2] > 1


def _matrix_turns(entry: Wanted) -> bool:
    matrix = _whole(entry)[: entry.shape[-1]]
    return bool(np.isfinite(matrix).all()) and is_closer(matrix.T, matrix, matrix.T)


def _first_adapted(entries: list[Wanted]) -> list[Wanted]:
    adapted = (e for e in entries if e.update is not None and e.nbytes <= LARGE and shows_its_merge(e))
    return next(([entry] for entry in adapted), [])


def _whole(entry: Wanted) -> Floats:
    return entry.values.rows(0, grid(entry.shape)[0])


def _in_memory(name: str, dtype: str, shape: tuple[int, ...], data: bytes) -> Tensor:
    return Tensor(name, dtype, shape, MemorySource(data), "injected")


def _with(export: Checkpoint, tensor: Tensor) -> Checkpoint:
    return replace(export, tensors={**export.tensors, tensor.name: tensor})


def _without(export: Checkpoint, name: str) -> Checkpoint:
    return replace(export, tensors={n: tensor for n, tensor in export.tensors.items() if n != name})


def _any(expected: Expectation) -> Wanted:
    entry = next((e for e in expected.wanted.values() if e.raw is not None and e.can_round), None)
    if entry is None:
        raise NotApplicable("the slice holds no floating-point tensor that is compared bit for bit")
    return entry


def dropped(expected: Expectation, export: Checkpoint) -> Checkpoint:
    """Without one tensor."""
    return _without(export, _any(expected).name)


def renamed(expected: Expectation, export: Checkpoint) -> Checkpoint:
    """One tensor, as it has to be, under another name."""
    entry = _any(expected)
    name = f"model.{entry.name}"
    tensor = _in_memory(name, entry.dtype, entry.shape, encoded(_whole(entry), FORMATS[entry.dtype]))
    return _with(_without(export, entry.name), tensor)


def cast(expected: Expectation, export: Checkpoint) -> Checkpoint:
    """One tensor stored in another dtype."""
    entry = _any(expected)
    dtype = "F32" if entry.dtype != "F32" else "BF16"
    return _with(export, _in_memory(entry.name, dtype, entry.shape, encoded(_whole(entry), FORMATS[dtype])))


def transposed(expected: Expectation, export: Checkpoint) -> Checkpoint:
    """One square matrix (every expert's) transposed: shape, dtype, norm and sorted values stay."""
    entry = next(
        (e for e in expected.wanted.values() if e.update is None and e.can_round and _is_square(e)), None
    )
    if entry is None:
        raise NotApplicable("no square matrix of this release is small enough and unequal to its transpose")
    side = entry.shape[-1]
    matrices = _whole(entry).reshape(math.prod(entry.shape[:-2]), side, side)
    data = encoded(matrices.transpose(0, 2, 1), FORMATS[entry.dtype])
    return _with(export, _in_memory(entry.name, entry.dtype, entry.shape, data))


def unmerged(expected: Expectation, export: Checkpoint) -> Checkpoint:
    """One adapted weight left at its base."""
    entry = next((e for e in expected.wanted.values() if shows_its_merge(e)), None)
    if entry is None or entry.unmerged is None:
        raise NotApplicable("no adapter with an effect was given, or no adapted tensor is small enough")
    base = entry.unmerged.rows(0, grid(entry.shape)[0])
    return _with(
        export, _in_memory(entry.name, entry.dtype, entry.shape, encoded(base, FORMATS[entry.dtype]))
    )


def without_generation_config(export: Checkpoint) -> Checkpoint:
    """Without generation_config.json."""
    documents = {name: raw for name, raw in export.documents.items() if name != "generation_config.json"}
    return replace(export, documents=documents)


def without_chat_template(export: Checkpoint) -> Checkpoint:
    """Without a chat template anywhere."""
    documents = {name: raw for name, raw in export.documents.items() if "chat_template" not in name}
    settings = export.json("tokenizer_config.json")
    if settings is not None:
        settings.pop("chat_template", None)
        documents["tokenizer_config.json"] = json.dumps(settings).encode()
    return replace(export, documents=documents)
