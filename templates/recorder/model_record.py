"""A line a parameter and buffer in ``model.jsonl``: name, shape, dtype, placement, digest of local bytes."""

from collections.abc import Iterator

import torch
from plumbline_recorder.parameter_names import Held, tensors_of, unwrapped
from plumbline_recorder.placements import placement_of
from plumbline_recorder.reading import digest, dtype_name, is_number, local, nonfinite, quiet, strided

SAMPLE_VALUES = 1024
"""Values a tensor that are listed where tensors are not written whole."""


def model_lines(
    module: "torch.nn.Module", when: str, sampled: bool, buffers: bool = False
) -> "Iterator[dict[str, object]]":
    """The lines of a module's tensors; ``sampled`` adds values, ``buffers`` those of buffers alone."""
    places: "dict[object, str]" = {}
    for held in tensors_of(unwrapped(module)):
        with quiet():
            yield _line(held, places, sampled or (buffers and held.kind == "buffer"), when)


def _line(held: Held, places: "dict[object, str]", sampled: bool, when: str) -> "dict[str, object]":
    name, value = held.name, held.tensor
    mine = local(value)
    meta = mine.device.type == "meta"
    first = places.setdefault(_place(value, mine, meta), name)
    return {
        "when": when,
        "name": name,
        "kind": held.kind,
        "persistent": held.persistent,
        "module": held.module,
        "shape": list(value.shape),
        "dtype": dtype_name(value.dtype),
        "requires_grad": value.requires_grad,
        "placement": placement_of(value),
        "sha256": None if meta else digest(value),
        "nonfinite": None if meta else nonfinite(value),
        "elements": mine.numel(),
        "same_as": None if first == name else first,
        "sample": _sample(mine) if sampled and not meta else None,
    }


def _place(value: "torch.Tensor", mine: "torch.Tensor", meta: bool) -> object:
    """The same for two names of one tensor."""
    if meta or mine.numel() == 0:
        return id(value)
    return str(mine.device), mine.data_ptr(), tuple(mine.shape), tuple(mine.stride())


def _sample(mine: "torch.Tensor") -> "dict[str, object] | None":
    if not is_number(mine) and mine.dtype not in (
        torch.int8,
        torch.uint8,
        torch.int32,
        torch.int64,
        torch.bool,
    ):
        return None
    taken, stride = strided(mine, SAMPLE_VALUES)
    return {"stride": stride, "values": [float(entry) for entry in taken.reshape(-1).float().tolist()]}
