"""Values of parameters made of the release's tensors: stacked, joined, interleaved, cut; read by rows.

Every view reads the rows of its grid (see `checks.references.checkpoints.layouts`) from the rows of what it
is made of, so that a fused tensor of all experts never comes into memory whole. A swap of the last two axes
is `layouts.Transposed`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from checks.references.checkpoints.formats import Floats
from checks.references.checkpoints.layouts import Values, grid


class Unfit(Exception):
    """Raised when tensors cannot be arranged as a name map says: the message names the shapes met."""


@dataclass(frozen=True)
class Stacked:
    """Tensors of one shape beside each other on a new first axis: [n, ...]."""

    parts: tuple[Values, ...]

    def __post_init__(self) -> None:
        shapes = {part.shape for part in self.parts}
        if len(shapes) != 1 or () in shapes:
            raise Unfit(f"a stack needs tensors of one shape, not {_listed(shapes)}")

    @property
    def shape(self) -> tuple[int, ...]:
        """[n, ...]."""
        return (len(self.parts), *self.parts[0].shape)

    def rows(self, first: int, last: int) -> Floats:
        """Rows of the parts one after another; a vector is one row."""
        inner = self.parts[0].shape
        if len(inner) == 1:
            return np.concatenate([part.rows(0, inner[0]).T for part in self.parts[first:last]])
        height = grid(inner)[0]
        return np.concatenate(
            [self.parts[part].rows(start, stop) for part, start, stop in _segments(first, last, height)]
        )


@dataclass(frozen=True)
class Joined:
    """Tensors one after another along an axis they have."""

    parts: tuple[Values, ...]
    axis: int

    def __post_init__(self) -> None:
        _same_but_for(self.parts, self.axis)

    @property
    def shape(self) -> tuple[int, ...]:
        """The common shape with the lengths along the axis added."""
        return _with_length(self.parts[0].shape, self.axis, sum(p.shape[self.axis] for p in self.parts))

    def rows(self, first: int, last: int) -> Floats:
        """Columns side by side, or rows of the parts in turn for every index before the axis."""
        if _is_columns(self.shape, self.axis):
            return np.concatenate([part.rows(first, last) for part in self.parts], axis=1)
        heights = [part.shape[self.axis] * _inner(part.shape, self.axis) for part in self.parts]
        starts = np.cumsum([0, *heights])
        pieces = []
        for outer, start, stop in _segments(first, last, int(starts[-1])):
            for part, height, begin in zip(self.parts, heights, starts, strict=False):
                low, high = max(start - int(begin), 0), min(stop - int(begin), height)
                if low < high:
                    pieces.append(part.rows(outer * height + low, outer * height + high))
        return _together(pieces, self.shape)


@dataclass(frozen=True)
class Interleaved:
    """Tensors of one shape taking turns along an axis: index a holds index a // n of part a % n."""

    parts: tuple[Values, ...]
    axis: int

    def __post_init__(self) -> None:
        _same_but_for(self.parts, self.axis)
        if len({part.shape for part in self.parts}) != 1:
            raise Unfit(
                f"interleaving needs tensors of one shape, not {_listed({p.shape for p in self.parts})}"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """The common shape with the axis n times as long."""
        length = self.parts[0].shape[self.axis] * len(self.parts)
        return _with_length(self.parts[0].shape, self.axis, length)

    def rows(self, first: int, last: int) -> Floats:
        """Every n-th column or row from each part."""
        n, columns = len(self.parts), grid(self.shape)[1]
        if _is_columns(self.shape, self.axis):
            pieces = [part.rows(first, last) for part in self.parts]
            return np.stack(pieces, axis=2).reshape(last - first, columns)
        inner = _inner(self.shape, self.axis)
        height = self.shape[self.axis] * inner
        blocks = [
            self._block(outer, start, stop, inner, n) for outer, start, stop in _segments(first, last, height)
        ]
        return _together(blocks, self.shape)

    def _block(self, outer: int, start: int, stop: int, inner: int, n: int) -> Floats:
        """Rows ``start`` to ``stop`` below one index before the axis; whole indices are read and cut."""
        low, high = start // inner // n, -(-stop // (inner * n))
        length = self.parts[0].shape[self.axis]
        pieces = [
            part.rows((outer * length + low) * inner, (outer * length + high) * inner).reshape(
                high - low, inner, -1
            )
            for part in self.parts
        ]
        rows = np.stack(pieces, axis=1).reshape((high - low) * n * inner, -1)
        skipped = low * n * inner
        return rows[start - skipped : stop - skipped]


@dataclass(frozen=True)
class Cut:
    """Indices ``start`` to ``stop`` of a tensor along an axis."""

    values: Values
    axis: int
    start: int
    stop: int

    def __post_init__(self) -> None:
        shape = self.values.shape
        if not (0 <= self.axis < len(shape) and 0 <= self.start < self.stop <= shape[self.axis]):
            raise Unfit(f"indices {self.start} to {self.stop} of axis {self.axis} are not in {list(shape)}")

    @property
    def shape(self) -> tuple[int, ...]:
        """The inner shape with the axis cut."""
        return _with_length(self.values.shape, self.axis, self.stop - self.start)

    def rows(self, first: int, last: int) -> Floats:
        """Some columns, or some rows below every index before the axis."""
        if _is_columns(self.shape, self.axis):
            return self.values.rows(first, last)[:, self.start : self.stop]
        inner = _inner(self.shape, self.axis)
        whole, before = self.values.shape[self.axis] * inner, self.start * inner
        pieces = [
            self.values.rows(outer * whole + before + start, outer * whole + before + stop)
            for outer, start, stop in _segments(first, last, (self.stop - self.start) * inner)
        ]
        return _together(pieces, self.shape)


def _segments(first: int, last: int, height: int) -> Iterator[tuple[int, int, int]]:
    """Rows ``first`` to ``last`` as (block of ``height`` rows, first row in it, last row in it)."""
    while first < last:
        block, start = divmod(first, height)
        stop = min(height, start + last - first)
        yield block, start, stop
        first += stop - start


def _is_columns(shape: tuple[int, ...], axis: int) -> bool:
    return len(shape) > 1 and axis == len(shape) - 1


def _inner(shape: tuple[int, ...], axis: int) -> int:
    """Rows of the grid below one index of an axis that is not the columns."""
    return math.prod(shape[axis + 1 : -1]) if len(shape) > 1 else 1


def _with_length(shape: tuple[int, ...], axis: int, length: int) -> tuple[int, ...]:
    return (*shape[:axis], length, *shape[axis + 1 :])


def _same_but_for(parts: tuple[Values, ...], axis: int) -> None:
    shapes = {part.shape for part in parts}
    if any(not 0 <= axis < len(shape) for shape in shapes) or not shapes:
        raise Unfit(f"there is no axis {axis} in {_listed(shapes)}")
    if len({_with_length(shape, axis, 0) for shape in shapes}) != 1:
        raise Unfit(f"tensors joined along axis {axis} agree elsewhere, unlike {_listed(shapes)}")


def _together(pieces: list[Floats], shape: tuple[int, ...]) -> Floats:
    return np.concatenate(pieces) if pieces else np.empty((0, grid(shape)[1]), np.float32)


def _listed(shapes: set[tuple[int, ...]]) -> str:
    return ", ".join(str(list(shape)) for shape in sorted(shapes)[:4])
