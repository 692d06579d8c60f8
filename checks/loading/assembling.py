"""Local shards and the whole tensor: which rows a shard holds, its digest, and the tensor put together."""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from checks.loading.expected import Expected
from checks.records.model_records import Recorded
from checks.references.checkpoints.formats import FORMATS, Codes, Floats, decode
from checks.references.checkpoints.layouts import Values, grid
from checks.references.checkpoints.tensors import Tensor

_BLOCK = 2**18
"""Elements read at a time."""

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Box:
    """A part of a whole tensor: ``shape`` the whole's, ``offset`` and ``local`` what the part holds."""

    shape: tuple[int, ...]
    offset: tuple[int, ...]
    local: tuple[int, ...]

    @classmethod
    def of(cls, entry: Recorded) -> "Box | None":
        """The box that a rank holds, None where the record does not tell where it lies."""
        return None if entry.offset is None else cls(entry.line.shape, entry.offset, entry.local_shape)

    @property
    def size(self) -> int:
        """Elements in the box."""
        return math.prod(self.local)

    @property
    def columns(self) -> tuple[int, int]:
        """First and last column of the whole's grid; a vector has one."""
        if len(self.shape) < 2:
            return 0, 1
        return self.offset[-1], self.offset[-1] + self.local[-1]

    def rows(self) -> Rows:
        """Rows of the whole's grid in the order in which the box holds them: they ascend."""
        if not self.shape:
            return np.zeros(1, np.int64)
        lead = len(self.shape) if len(self.shape) == 1 else len(self.shape) - 1
        rows = np.zeros(1, np.int64)
        for whole, start, length in zip(
            self.shape[:lead], self.offset[:lead], self.local[:lead], strict=True
        ):
            rows = (rows[:, None] * whole + np.arange(start, start + length)).ravel()
        return rows

    def runs(self) -> Iterator[tuple[int, int]]:
        """First and last row of the stretches of neighbouring rows, cut to a bounded size."""
        rows, width = self.rows(), max(1, grid(self.shape)[1])
        breaks = np.flatnonzero(np.diff(rows) != 1) + 1
        step = max(1, _BLOCK // width)
        for stretch in np.split(rows, breaks) if rows.size else []:
            for first in range(int(stretch[0]), int(stretch[-1]) + 1, step):
                yield first, min(first + step, int(stretch[-1]) + 1)


def distinct_boxes(entries: list[Recorded]) -> dict[Box, list[Recorded]]:
    """Entries by the box they hold; empty boxes hold nothing to judge."""
    found: dict[Box, list[Recorded]] = {}
    for entry in entries:
        box = Box.of(entry)
        if box is not None and box.size:
            found.setdefault(box, []).append(entry)
    return found


def byte_digest(pieces: Iterator[Codes]) -> str:
    """SHA-256 of the bytes of pieces in their order: the digest that a recorder gives a local tensor."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(np.ascontiguousarray(piece).data)
    return digest.hexdigest()


def expected_pieces(
    expected: Expected, dtype: str, box: Box, values: Values | None = None
) -> Iterator[Codes]:
    """What a box of a parameter has to hold, as codes of ``dtype``, piece by piece."""
    start, stop = box.columns
    for first, last in box.runs():
        yield expected.codes(dtype, first, last, values)[:, start:stop]


def expected_digest(expected: Expected, dtype: str, box: Box, values: Values | None = None) -> str:
    """The digest that a rank holding the box has to record."""
    return byte_digest(expected_pieces(expected, dtype, box, values))


@dataclass(frozen=True)
class _Shard:
    rows: Rows
    columns: tuple[int, int]
    tensor: Tensor


@dataclass(frozen=True)
class Assembled:
    """A whole tensor read from the local tensors of the ranks; zero where no rank has a value."""

    shape: tuple[int, ...]
    dtype: str
    shards: tuple[_Shard, ...]

    @classmethod
    def of(cls, entries: list[Recorded]) -> "Assembled | None":
        """Put together what the ranks wrote whole; None where a box was not written."""
        shards = []
        for box, holders in distinct_boxes(entries).items():
            tensor = next((holder.values for holder in holders if holder.values is not None), None)
            if tensor is None:
                return None
            shards.append(_Shard(box.rows(), box.columns, tensor))
        first = entries[0]
        return cls(first.line.shape, first.dtype, tuple(shards)) if shards else None

    def codes(self, first: int, last: int) -> Codes:
        """Codes of rows of the grid, [last - first, columns]."""
        codes = np.zeros((last - first, grid(self.shape)[1]), FORMATS[self.dtype].code)
        for shard in self.shards:
            low, high = (int(index) for index in np.searchsorted(shard.rows, [first, last]))
            if low < high:
                start, stop = shard.columns
                width = stop - start
                local = shard.tensor.codes(low * width, high * width).reshape(high - low, width)
                codes[shard.rows[low:high] - first, start:stop] = local
        return codes

    def rows(self, first: int, last: int) -> Floats:
        """Numbers of rows of the grid."""
        return decode(self.codes(first, last), FORMATS[self.dtype])
