"""What kind of difference two unequal tensors show: named faults are told apart from ordinary training."""

import math
from dataclasses import dataclass

import numpy as np

from checks.references.checkpoints.comparing import Comparison, blocks
from checks.references.checkpoints.formats import FORMATS, Floats, rounded
from checks.references.checkpoints.layouts import Values, grid
from checks.rules import LARGEST_MATRIX_TRANSPOSED, SAME_DIRECTION_RESIDUAL, SCALED_BY, TRAINED_CHANGE


@dataclass(frozen=True)
class Kind:
    """A named difference: its code, what happened, and whether it is one that training cannot explain."""

    code: str
    message: str
    structured: bool


def classify(expected: Values, found: Values, compared: Comparison) -> Kind:
    """Name the difference between two tensors of one shape that are not equal."""
    if compared.introduced:
        return Kind("not-finite", f"{compared.introduced} elements became NaN or infinite", structured=True)
    return (
        _transposed(expected, found)
        or _permuted(expected, found)
        or _changed_as_a_whole(expected, found, compared)
        or Kind("values-differ", _how_far(compared), structured=_too_far(compared))
    )


def _how_far(compared: Comparison) -> str:
    change = (
        "the original is all zero" if compared.change is None else f"relative change {compared.change:.3g}"
    )
    cosine = "" if compared.cosine is None else f", cosine {compared.cosine:.4g}"
    return (
        f"{compared.differing} of {compared.elements} elements differ, by at most {compared.largest:.6g}"
        f" ({change}{cosine})"
    )


def _too_far(compared: Comparison) -> bool:
    return compared.change is not None and compared.change > TRAINED_CHANGE


def _transposed(expected: Values, found: Values) -> Kind | None:
    """Square matrices (each expert's own) that are closer to the transpose of the original than to it."""
    shape = expected.shape
    if len(shape) < 2 or shape[-1] != shape[-2] or not 1 < shape[-1] <= LARGEST_MATRIX_TRANSPOSED:
        return None
    side, turned = shape[-1], []
    count = math.prod(shape[:-2])
    for index in range(count):
        left = expected.rows(index * side, (index + 1) * side)
        right = found.rows(index * side, (index + 1) * side)
        if is_closer(left.T, left, right):
            turned.append(index)
    if not turned:
        return None
    which = "" if count == 1 else f" in {len(turned)} of {count} matrices ({_listed(turned)})"
    return Kind("transposed", f"the last two axes are swapped{which}", structured=True)


def is_closer(candidate: Floats, original: Floats, found: Floats) -> bool:
    """Whether ``found`` is near the candidate and at most half as far from it as from the original."""
    norm = _distance(original, np.broadcast_to(np.float32(0), original.shape))
    near = _distance(found, candidate)
    return norm > 0 and near <= TRAINED_CHANGE * norm and near < _distance(found, original) / 2


def _distance(one: Floats, other: Floats) -> float:
    """Euclidean distance, a few rows at a time."""
    step = max(1, 2**20 // max(1, one.shape[1]))
    squares = (
        float(np.square(one[first : first + step] - other[first : first + step], dtype=np.float64).sum())
        for first in range(0, one.shape[0], step)
    )
    return math.sqrt(sum(squares))


def _listed(indices: list[int]) -> str:
    shown = ", ".join(map(str, indices[:6]))
    return shown + (", ..." if len(indices) > 6 else "")


def _permuted(expected: Values, found: Values) -> Kind | None:
    """The same slices along one axis in another order: experts, rows, columns, gate and up interleaved."""
    if len(expected.shape) < 1 or math.prod(expected.shape) < 2:
        return None
    left, right = _slice_sums(expected), _slice_sums(found)
    for axis, (wanted, got) in enumerate(zip(left, right, strict=True)):
        if np.array_equal(wanted, got) or not np.array_equal(np.sort(wanted), np.sort(got)):
            continue
        return Kind("permuted", _order(axis, expected.shape, wanted, got), structured=True)
    return None


def _order(axis: int, shape: tuple[int, ...], wanted: Floats, got: Floats) -> str:
    first_of: dict[int, int] = {}
    for index, value in enumerate(wanted.tolist()):
        first_of.setdefault(value, index)
    source = [first_of[value] for value in got.tolist()]
    moved = [index for index in range(len(source)) if wanted[index] != got[index]]
    name = "experts" if axis == 0 and len(shape) == 3 else f"slices along axis {axis}"
    pattern = _pattern(source)
    where = ", ".join(f"{index} holds {source[index]}" for index in moved[:3])
    return f"{len(moved)} of {len(source)} {name} moved{pattern}: {where}"


def _pattern(source: list[int]) -> str:
    n = len(source)
    half = n // 2
    known = {
        "shifted by one": [(index + 1) % n for index in range(n)],
        "shifted back by one": [(index - 1) % n for index in range(n)],
        "halves swapped": [(index + half) % n for index in range(n)],
        "neighbours swapped": [index ^ 1 for index in range(n)] if n % 2 == 0 else [],
        "interleaved pairs taken apart": [*range(0, n, 2), *range(1, n, 2)],
        "halves interleaved": [index // 2 + (index % 2) * half for index in range(n)] if n % 2 == 0 else [],
        "reversed": [n - 1 - index for index in range(n)],
    }
    match = next((name for name, order in known.items() if order == source), None)
    return f" ({match})" if match and n > 2 else ""


def _slice_sums(values: Values) -> list[Floats]:
    """A 64-bit sum of every slice, for each axis.

    A sum is linear modulo 2^64 in the elements' mixed float64 bits, with fixed odd random weights for the
    other axes: equal slices have equal sums, and unequal ones share a sum by a chance of 2^-64 only.
    """
    shape = values.shape
    weights = [_weights(length, axis) for axis, length in enumerate(shape)]
    sums = [np.zeros(length, np.uint64) for length in shape]
    columns = grid(shape)[1]
    for first, last in blocks(shape):
        bits = _mixed((values.rows(first, last).astype(np.float64) + 0.0).view(np.uint64))
        if len(shape) == 1:
            sums[0][first:last] = bits[:, 0]
            continue
        lead = np.unravel_index(np.arange(first, last), shape[:-1])
        row = bits @ weights[-1]
        lead_weights = [weights[axis][index] for axis, index in enumerate(lead)]
        whole = np.ones(last - first, np.uint64)
        for weight in lead_weights:
            whole = whole * weight
        sums[-1] += (whole[:, None] * bits.reshape(-1, columns)).sum(axis=0, dtype=np.uint64)
        for axis, index in enumerate(lead):
            others = np.ones(last - first, np.uint64)
            for other, weight in enumerate(lead_weights):
                others = others * weight if other != axis else others
            np.add.at(sums[axis], index, row * others)
    return sums


def _mixed(bits: Floats) -> Floats:
    """Bits spread over all 64: a narrow format leaves the lower ones zero, and slices of one would collide.

    Source: the finalizer of MurmurHash3 (Appleby, public domain), a bijection.
    """
    mixed: Floats = (bits ^ (bits >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    mixed ^= mixed >> np.uint64(33)
    return mixed


def _weights(length: int, axis: int) -> Floats:
    generator = np.random.default_rng(axis + 1)
    return generator.integers(0, 2**63, length, dtype=np.uint64) * np.uint64(2) + np.uint64(1)


def _changed_as_a_whole(expected: Values, found: Values, compared: Comparison) -> Kind | None:
    """One operation on every element: a factor, an added constant, a narrower format, a constant tensor."""
    if compared.elements < 8:
        return None
    for name in ("BF16", "F16"):
        if _equals_rounded(expected, found, name):
            return Kind("values-differ", f"every value was rounded to {name} on its way", structured=True)
    spread = compared.difference2 - compared.sum_difference**2 / compared.elements
    if spread <= SAME_DIRECTION_RESIDUAL**2 * compared.difference2:
        shift = compared.sum_difference / compared.elements
        return Kind("values-differ", f"{shift:.6g} was added to every value", structured=True)
    if compared.found2 <= 0:
        return Kind("values-differ", "every value is zero", structured=True)
    return _scaled(compared) or _constant(found) or _unrelated(compared)


def _equals_rounded(expected: Values, found: Values, name: str) -> bool:
    for first, last in blocks(expected.shape):
        left, right = expected.rows(first, last), found.rows(first, last)
        if not np.array_equal(rounded(left, FORMATS[name]), right.astype(np.float32), equal_nan=True):
            return False
    return True


def _scaled(compared: Comparison) -> Kind | None:
    if compared.expected2 <= 0:
        return None
    factor = compared.product / compared.expected2
    residual = max(compared.found2 - factor * compared.product, 0.0)
    if residual > SAME_DIRECTION_RESIDUAL**2 * compared.found2 or abs(factor - 1) < SCALED_BY:
        return None
    return Kind("values-differ", f"every value is {factor:.6g} times the original's", structured=True)


def _constant(found: Values) -> Kind | None:
    value = None
    for first, last in blocks(found.shape):
        rows = found.rows(first, last)
        value = rows.flat[0] if value is None else value
        if not np.all(rows == value):
            return None
    return Kind("values-differ", f"every value is {value:.6g}: re-initialised?", structured=True)


def _unrelated(compared: Comparison) -> Kind | None:
    if compared.cosine is None or compared.elements < 64 or abs(compared.cosine) > 0.25:
        return None
    return Kind(
        "values-differ", f"unrelated to the original: re-initialised? ({_how_far(compared)})", structured=True
    )
