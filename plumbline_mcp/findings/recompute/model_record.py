"""The model as every rank recorded it at its moments: names, shapes, digests, boxes, and whole values."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from plumbline_mcp.findings.recompute.decoding import TORCH, Floats
from plumbline_mcp.findings.recompute.reading import Cannot, Record, TensorFile, lengths, number

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Offset and local shape of a part."""


@dataclass(frozen=True)
class Entry:
    """One parameter or buffer on one rank. ``dtype`` as safetensors names it."""

    name: str
    rank: int
    line: dict[str, Any] = field(repr=False)
    shape: tuple[int, ...]
    box: Box | None
    dtype: str
    file: TensorFile | None = field(default=None, repr=False)
    stored: str = ""

    @property
    def sha256(self) -> str | None:
        """Digest of the local bytes."""
        found = self.line.get("sha256")
        return found if isinstance(found, str) else None

    @property
    def same_as(self) -> str | None:
        """The earlier tensor whose memory it shares."""
        found = self.line.get("same_as")
        return found if isinstance(found, str) else None

    @property
    def loadable(self) -> bool:
        """Whether a release can hold it: a parameter, or a buffer that is saved."""
        return self.line.get("kind") == "parameter" or bool(self.line.get("persistent", True))

    @property
    def elements(self) -> int:
        """Local elements."""
        return int(np.prod(self.box[1])) if self.box else int(self.line.get("elements") or 0)

    @property
    def nonfinite(self) -> int:
        """Local elements that are NaN or infinite, as recorded."""
        found = self.line.get("nonfinite")
        return found if type(found) is int else 0

    def values(self) -> Floats | None:
        """float64 of the local part where it was written whole."""
        return self.file.array(self.stored) if self.file is not None and self.stored else None

    def sample(self) -> tuple[int, Floats] | None:
        """(stride, every stride-th local element) where a sample was written."""
        about = self.line.get("sample")
        if not isinstance(about, dict) or type(about.get("stride")) is not int or about["stride"] < 1:
            return None
        found = [number(value) for value in about.get("values") or []]
        return about["stride"], np.array([np.nan if value is None else value for value in found])


Moments = dict[str, dict[str, list[Entry]]]
"""By moment and name: what each rank holds, by rank."""


def read_moments(record: Record) -> Moments:
    """Every moment of every rank that ended well and whose recorder finished. Raises `Cannot`."""
    found: Moments = {}
    for rank, folder in sorted(record.rank_folders.items()):
        if record.recorder_failed(rank) or not record.ended_well(rank):
            continue
        own: dict[str, dict[str, dict[str, Any]]] = {}
        for line in record.lines(f"{folder}/model.jsonl"):
            names = own.setdefault(str(line.get("when")), {})
            if str(line.get("name")) in names:
                raise Cannot(f"rank {rank} recorded {str(line.get('name'))[:200]} twice at one moment")
            names[str(line.get("name"))] = line
        for when, lines in own.items():
            files = _files(record, folder, when)
            for name, line in lines.items():
                found.setdefault(when, {}).setdefault(name, []).append(_entry(rank, line, files, lines))
    return found


def _files(record: Record, folder: str, when: str) -> dict[str, TensorFile]:
    found: dict[str, TensorFile] = {}
    for name in record.names(f"{folder}/{when}-"):
        if name.endswith(".safetensors"):
            file = TensorFile.open(record.file(name))
            found |= dict.fromkeys(file.entries, file)
    return found


def _entry(
    rank: int, line: dict[str, Any], files: dict[str, TensorFile], lines: dict[str, dict[str, Any]]
) -> Entry:
    name = str(line.get("name"))
    shape = lengths(line.get("shape"), f"{name[:200]}, shape")
    place = line.get("placement")
    box: Box | None = ((0,) * len(shape), shape)
    if isinstance(place, dict):
        local = lengths(place.get("local_shape"), f"{name[:200]}, local shape")
        offset = place.get("offset")
        box = None if offset is None else (lengths(offset, f"{name[:200]}, offset"), local)
    if box is not None:
        ends = zip(*box, shape, strict=False)
        if not len(box[0]) == len(box[1]) == len(shape) or any(a + n > w and n for a, n, w in ends):
            raise Cannot(f"{name[:200]} on rank {rank} lies outside of its tensor")
    dtype = TORCH.get(str(line.get("dtype")), str(line.get("dtype")))
    first = str(line.get("same_as"))
    stored = name if name in files else first if first in files and _alike(line, lines.get(first)) else ""
    file = files.get(stored)
    if file is not None and (file.dtype(stored), box and file.shape(stored)) != (dtype, box and box[1]):
        raise Cannot(f"{name[:200]} on rank {rank} was written with another dtype or shape than is listed")
    return Entry(name, rank, line, shape, box, dtype, file, stored)


def _alike(line: dict[str, Any], other: dict[str, Any] | None) -> bool:
    keys = ("shape", "dtype", "placement")
    return other is not None and all(line.get(key) == other.get(key) for key in keys)


def part_of(values: Floats, box: Box) -> Floats:
    """The elements of a box of a whole tensor."""
    return values[tuple(slice(at, at + size) for at, size in zip(*box, strict=True))]


def whole_of(entries: list[Entry]) -> Floats | None:
    """float64 of the whole tensor put together from what ranks wrote; None where a part is missing."""
    if not entries or any(entry.box is None for entry in entries):
        return None
    found = np.full(entries[0].shape, np.nan)
    known = np.zeros(entries[0].shape, bool)
    for entry in reversed(entries):
        values = entry.values()
        if values is not None and entry.box is not None:
            part_of(found, entry.box)[...] = values
            part_of(known, entry.box)[...] = True
    return found if known.all() else None


def distributions(record: Record) -> dict[str, str]:
    """Versions by distribution, as the job's environment lists them."""
    name = next((n for n in record.names("records/") if n.endswith("/environment.json")), None)
    about = record.json(name) if name else {}
    listed = about.get("distributions") if isinstance(about, dict) else None
    entries = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    return {str(each.get("name")): str(each.get("version", "")) for each in entries}
