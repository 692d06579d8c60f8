"""The header of a safetensors file, parsed by hand and held against every bound the format states.

Layout (safetensors format, "Format" section of its README): 8 bytes little-endian header length N, N bytes of
a JSON object, then the data; each entry has ``dtype``, ``shape`` and ``data_offsets`` relative to the data;
the data has no holes and nothing overlaps; no duplicate keys; N is at most 100 MB.
"""

import hashlib
import io
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks.references.checkpoints.formats import FORMATS

MAX_HEADER = 100_000_000
"""Bytes; the format's own limit."""


class Unreadable(Exception):
    """A file is not what its format demands; ``file`` names it, the message says why."""

    def __init__(self, file: str, message: str) -> None:
        super().__init__(f"{file}: {message}")
        self.file = file
        self.message = message


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: ``begin`` and ``end`` are byte offsets in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """What a file says about itself. ``sha256`` covers the length and the header, not the data."""

    entries: dict[str, Entry]
    metadata: dict[str, str]
    sha256: str
    size: int


def open_regular(path: Path) -> io.FileIO:
    """Open a regular file without following a final link. Raises `Unreadable` for anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise Unreadable(path.name, f"cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Unreadable(path.name, "is no regular file")
    return io.FileIO(descriptor, "rb")


def read_header(path: Path) -> Header:
    """Parse and check the header of one file. Raises `Unreadable` with the value met."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        prefix = file.read(8)
        if len(prefix) < 8:
            raise Unreadable(path.name, f"is {size} bytes long, too short for a safetensors header")
        length = int.from_bytes(prefix, "little")
        if length > MAX_HEADER:
            raise Unreadable(path.name, f"claims a header of {length} bytes; the format allows {MAX_HEADER}")
        if 8 + length > size:
            raise Unreadable(path.name, f"claims a header of {length} bytes but is {size} bytes long")
        raw = b"".join(iter(lambda: file.read(8 + length - file.tell()), b""))
    return parse_header(path.name, prefix + raw, size)


def parse_header(file: str, raw: bytes, size: int) -> Header:
    """Check a header (length prefix included) of a file of ``size`` bytes. Raises `Unreadable`."""
    table = _json_object(file, raw[8:])
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise Unreadable(file, "__metadata__ is no mapping of strings")
    entries = {name: _entry(file, name, entry, len(raw), size) for name, entry in table.items()}
    _refuse_overlaps(file, entries, len(raw), size)
    return Header(entries, metadata, hashlib.sha256(raw).hexdigest(), size)


def _json_object(file: str, raw: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise Unreadable(file, f"the header names {twice[:200]!r} twice")
        return table

    try:
        table = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise Unreadable(file, f"the header is no JSON: {str(error)[:200]}") from error
    if not isinstance(table, dict):
        raise Unreadable(file, f"the header is a JSON {type(table).__name__}, not an object")
    return table


def _entry(file: str, name: str, entry: Any, data: int, size: int) -> Entry:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise Unreadable(file, f"tensor {name[:200]!r} does not have dtype, shape and data_offsets alone")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in FORMATS:
        raise Unreadable(file, f"tensor {name[:200]!r} has the unknown dtype {str(dtype)[:40]!r}")
    if not (_naturals(shape) and len(shape) <= 32):
        raise Unreadable(file, f"tensor {name[:200]!r} has the shape {str(shape)[:80]}")
    if not (_naturals(offsets) and len(offsets) == 2 and offsets[0] <= offsets[1] <= size - data):
        raise Unreadable(
            file,
            f"tensor {name[:200]!r} has the offsets {str(offsets)[:80]}; the data has {size - data} bytes",
        )
    bits = FORMATS[dtype].bits
    for length in shape:
        bits = min(bits * length, 1 << 80)
    if bits != 8 * (offsets[1] - offsets[0]):
        raise Unreadable(
            file,
            f"tensor {name[:200]!r}: {dtype} {str(shape)[:80]} does not fill {offsets[1] - offsets[0]} bytes",
        )
    return Entry(name, dtype, tuple(shape), data + offsets[0], data + offsets[1])


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 63 for item in value)


def _refuse_overlaps(file: str, entries: dict[str, Entry], data: int, size: int) -> None:
    position = data
    for entry in sorted(entries.values(), key=lambda entry: (entry.begin, entry.end)):
        if entry.begin < position:
            raise Unreadable(file, f"tensor {entry.name[:200]!r} overlaps another one")
        if entry.begin > position:
            raise Unreadable(
                file, f"{entry.begin - position} bytes before {entry.name[:200]!r} belong to no tensor"
            )
        position = entry.end
    if position != size:
        raise Unreadable(file, f"{size - position} bytes after the last tensor belong to no tensor")
