"""Two tensors held against each other: bit for bit on disk, or number for number after decoding."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from checks.references.checkpoints.formats import Codes, Floats, Format
from checks.references.checkpoints.layouts import Values, grid
from checks.references.checkpoints.tensors import PIECE, Tensor

_BLOCK = 2**17
"""Elements decoded at a time (1 MiB in float64)."""

Read = Callable[[int], None]
"""Told how many bytes of the expected side were read."""


@dataclass
class Comparison:
    """What two tensors have in common, where -0.0 equals +0.0.

    ``zero_signs`` counts elements where only the sign of zero differs, ``non_finite`` NaN and infinity in the
    expected tensor, ``introduced`` those of the other tensor where the expected one is finite. The sums run
    over elements where both are finite; only `compare_values` fills them.
    """

    elements: int = 0
    differing: int = 0
    zero_signs: int = 0
    non_finite: int = 0
    introduced: int = 0
    first: int | None = None
    largest: float = 0.0
    sum_difference: float = 0.0
    difference2: float = 0.0
    expected2: float = 0.0
    found2: float = 0.0
    product: float = 0.0

    @property
    def equal(self) -> bool:
        """Whether every element is equal."""
        return self.differing == 0

    @property
    def change(self) -> float | None:
        """||found - expected|| / ||expected||, None where the expected tensor is all zero."""
        return math.sqrt(self.difference2 / self.expected2) if self.expected2 > 0 else None

    @property
    def cosine(self) -> float | None:
        """Cosine of the angle between the two, None where one is all zero."""
        if self.expected2 <= 0 or self.found2 <= 0:
            return None
        return self.product / math.sqrt(self.expected2 * self.found2)

    def note_first(self, unequal: Codes, offset: int) -> None:
        """Remember the first differing element of a piece that starts at ``offset``."""
        if self.first is None:
            self.first = offset + int(np.argmax(unequal))


def compare_codes(expected: Tensor, found: Tensor, read: Read = lambda _: None) -> Comparison:
    """Compare two tensors of one dtype and shape bit for bit, except that -0.0 equals +0.0. Streams."""
    result = Comparison(elements=expected.size)
    total, fmt = expected.nbytes, expected.format
    left, right, scratch = (np.empty(PIECE, np.uint8) for _ in range(3))
    with expected.source.reading() as read_left, found.source.reading() as read_right:
        for offset in range(0, total, PIECE):
            size = min(PIECE, total - offset)
            read_left(left[:size], offset)
            read_right(right[:size], offset)
            _compare_piece(result, left[:size], right[:size], scratch[:size], fmt, offset * 8 // fmt.bits)
            read(size)
    return result


def _compare_piece(
    result: Comparison, left: Codes, right: Codes, scratch: Codes, fmt: Format, start: int
) -> None:
    same = _same_bytes(left, right)
    if fmt.is_float:
        codes = left.view(fmt.code)
        magnitude = np.bitwise_and(codes, _mask(fmt), out=scratch.view(fmt.code))
        if magnitude.size and magnitude.max() >= fmt.infinity:
            result.non_finite += int(np.count_nonzero(magnitude >= fmt.infinity))
    if not same:
        _count_unequal(result, left.view(fmt.code), right.view(fmt.code), fmt, start)


def _same_bytes(left: Codes, right: Codes) -> bool:
    whole = left.size // 8 * 8
    return np.array_equal(left[:whole].view(np.uint64), right[:whole].view(np.uint64)) and np.array_equal(
        left[whole:], right[whole:]
    )


def _mask(fmt: Format) -> Codes:
    return np.array((1 << fmt.bits) - 1 - fmt.sign).astype(fmt.code)


def _count_unequal(result: Comparison, left: Codes, right: Codes, fmt: Format, start: int) -> None:
    unequal = left != right
    if fmt.is_float:
        mask = _mask(fmt)
        if fmt.sign:
            only_sign = unequal & ((left & mask) == 0) & ((right & mask) == 0)
            result.zero_signs += int(np.count_nonzero(only_sign))
            unequal &= ~only_sign
        introduced = ((right & mask) >= fmt.infinity) & ((left & mask) < fmt.infinity)
        result.introduced += int(np.count_nonzero(introduced))
    differing = int(np.count_nonzero(unequal))
    if differing:
        result.differing += differing
        result.note_first(unequal, start)


def blocks(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """First and last row of blocks of bounded size that cover a shape's grid."""
    rows, columns = grid(shape)
    step = max(1, _BLOCK // max(1, columns))
    for first in range(0, rows if columns else 0, step):
        yield first, min(rows, first + step)


def compare_values(expected: Values, found: Values, read: Read = lambda _: None) -> Comparison:
    """Compare decoded numbers exactly (NaN equals NaN), with sums that tell how far apart they are."""
    result = Comparison()
    for first, last in blocks(expected.shape):
        left, right = expected.rows(first, last).ravel(), found.rows(first, last).ravel()
        _compare_numbers(result, left, right)
        read(left.nbytes)
    return result


def _compare_numbers(result: Comparison, left: Floats, right: Floats) -> None:
    a, b = left.astype(np.float64, copy=False), right.astype(np.float64, copy=False)
    with np.errstate(invalid="ignore", over="ignore"):
        difference = b - a
        all_finite = bool(np.isfinite(difference.sum()))
    if not all_finite:
        _compare_with_infinities(result, a, b)
        return
    differing = int(np.count_nonzero(difference))
    if differing:
        result.note_first(difference != 0, result.elements)
    zero = a == 0
    if zero.any():
        signs = np.signbit(a[zero]) != np.signbit(b[zero])
        result.zero_signs += int(np.count_nonzero(signs & (b[zero] == 0)))
    result.differing += differing
    result.elements += a.size
    _add_sums(result, a, b, difference)


def _compare_with_infinities(result: Comparison, a: Floats, b: Floats) -> None:
    """As above where NaN or infinity is among the numbers: NaN equals NaN, sums go over what is finite."""
    finite_a, finite_b = np.isfinite(a), np.isfinite(b)
    unequal = (a != b) & ~(np.isnan(a) & np.isnan(b))
    result.zero_signs += int(np.count_nonzero((a == 0) & (b == 0) & (np.signbit(a) != np.signbit(b))))
    result.non_finite += int(np.count_nonzero(~finite_a))
    result.introduced += int(np.count_nonzero(finite_a & ~finite_b))
    if unequal.any():
        result.note_first(unequal, result.elements)
    result.differing += int(np.count_nonzero(unequal))
    result.elements += a.size
    a, b = (np.where(finite_a & finite_b, side, 0) for side in (a, b))
    _add_sums(result, a, b, b - a)


def _add_sums(result: Comparison, a: Floats, b: Floats, difference: Floats) -> None:
    if difference.size:
        result.largest = max(result.largest, float(difference.max()), -float(difference.min()))
    result.sum_difference += float(difference.sum())
    result.difference2 += _inner(difference, difference)
    result.expected2 += _inner(a, a)
    result.found2 += _inner(b, b)
    result.product += _inner(a, b)


def _inner(a: Floats, b: Floats) -> float:
    """Inner product on one thread: BLAS threads waiting for a shared core were 20 times slower."""
    return float(np.einsum("i,i->", a, b))


def compare_bounded(expected: Values, found: Values, allowed: Values) -> tuple[Comparison, float]:
    """As `compare_values`, but an element counts as differing only beyond its own ``allowed`` distance.

    Also returns the largest distance in units of what is allowed.
    """
    result, worst = Comparison(), 0.0
    for first, last in blocks(expected.shape):
        left, right = expected.rows(first, last).ravel(), found.rows(first, last).ravel()
        bound = allowed.rows(first, last).ravel()
        distance = np.abs(right.astype(np.float64) - left)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(distance == 0, 0.0, distance / bound)
        unequal = ~(distance <= bound) & ~(np.isnan(left) & np.isnan(right))
        if ratio.size and np.isfinite(ratio).any():
            worst = max(worst, float(np.max(ratio, where=np.isfinite(ratio), initial=0.0)))
        result.introduced += int(np.count_nonzero(np.isfinite(left) & ~np.isfinite(right)))
        if unequal.any():
            result.note_first(unequal, result.elements)
            result.differing += int(np.count_nonzero(unequal))
        result.elements += left.size
        both = np.isfinite(left) & np.isfinite(right)
        a, b = (np.where(both, side, 0).astype(np.float64) for side in (left, right))
        _add_sums(result, a, b, b - a)
    return result, worst
