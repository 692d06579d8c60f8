"""What kind of difference a loaded tensor shows: from its values, else from digests and samples."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from checks.loading.assembling import Assembled, Box, byte_digest, expected_digest
from checks.loading.expected import Expected
from checks.records.model_records import Recorded
from checks.references.checkpoints.comparing import blocks, compare_values
from checks.references.checkpoints.differences import classify
from checks.references.checkpoints.formats import FORMATS, Floats, decode
from checks.references.checkpoints.layouts import Plain, Rounded, Transposed, Values, grid
from checks.rules import LARGEST_MATRIX_TRANSPOSED, SAME_DIRECTION_RESIDUAL, SCALED_BY

_HYPOTHESIS_ELEMENTS = 2**26
"""Elements of a tensor up to which digests of wrong loads are tried: it names a fault, and never judges."""
_STACK, _HYPOTHESES = 32, 2**30
"""Slices of a stack, and elements hashed for them, up to which every swap is tried; then neighbours' only."""
_SHOWN = 4
_FEW = 8
"""Elements below which a common factor is no sign of a scale: the smallest block of a format has 32."""


@dataclass(frozen=True)
class Difference:
    """A named difference; ``code`` as in the problem that reports it."""

    code: str
    message: str


@dataclass
class Digests:
    """Digests of the release's tensors, by dtype and shape of the box: whose values a tensor holds."""

    names: dict[tuple[str, tuple[int, ...], str], str] = field(default_factory=dict)

    def add(self, dtype: str, box: Box, digest: str, name: str) -> None:
        """Remember whose digest it is."""
        self.names.setdefault((dtype, box.local, digest), name)

    def holder(self, dtype: str, box: Box, digest: str | None) -> str | None:
        """The tensor whose values have this digest."""
        return self.names.get((dtype, box.local, digest or ""))


def cast(expected: Expected, dtype: str) -> Values:
    """The expected values as numbers of a dtype."""
    if expected.raw is not None and expected.raw.dtype == dtype:
        return Plain(expected.raw)
    return Rounded(expected.values, FORMATS[dtype])


def named_from_values(expected: Expected, found: Assembled) -> Difference | None:
    """Name the difference of whole values; None where the values are equal after all."""
    wanted = cast(expected, found.dtype)
    compared = compare_values(wanted, found)
    if compared.equal:
        return None if not compared.zero_signs else _signs(compared.zero_signs)
    if expected.exact is not None and _equals_either(expected, found):
        return None
    ended = _truncated(wanted, found)
    if ended:
        return ended
    kind = classify(wanted, found, compared)
    if kind.code == "values-differ":
        scaled = _wrong_scale(wanted, found)
        if scaled is not None:
            return scaled
    return Difference(_code(kind.code, kind.message), kind.message)


def _signs(count: int) -> Difference:
    return Difference("values-differ", f"the signs of {count} zeros differ")


def _equals_either(expected: Expected, found: Assembled) -> bool:
    """Whether each element is one of the two right ways to round a product of block FP8."""
    fmt = FORMATS[found.dtype]
    one, other = Rounded(expected.values, fmt), Rounded(expected.exact or expected.values, fmt)
    for first, last in blocks(expected.shape):
        got = found.rows(first, last)
        if not np.all((got == one.rows(first, last)) | (got == other.rows(first, last))):
            return False
    return True


_CODES = (
    ("re-initialised", "re-initialised"),
    ("was rounded to", "rounded-on-its-way"),
    ("every value is zero", "zeroed"),
    ("times the original", "wrong-scale"),
)
"""What the message of a difference says, and the code of the problem that reports it."""


def _code(code: str, message: str) -> str:
    if code != "values-differ":
        return code
    return next((named for words, named in _CODES if words in message), code)


def _truncated(wanted: Values, found: Values) -> Difference | None:
    """Equal up to one element and constant from there on: a copy that ended early."""
    rows, columns = grid(wanted.shape)
    tail: float | None = None
    start = None
    for first, last in blocks(wanted.shape):
        left, right = wanted.rows(first, last).ravel(), found.rows(first, last).ravel()
        if start is None:
            unequal = (left != right) & ~(np.isnan(left) & np.isnan(right))
            if not unequal.any():
                continue
            begin = int(np.argmax(unequal))
            start, tail = first * columns + begin, float(right[begin])
            right = right[begin:]
        if not np.all((right == tail) | (np.isnan(right) & np.isnan(tail or 0.0))):
            return None
    if not start or tail is None or rows * columns - start < 2:
        return None
    total = rows * columns
    return Difference(
        "truncated", f"equal up to element {start} of {total}, and {tail:.6g} from there on: copied in part"
    )


def _wrong_scale(wanted: Values, found: Values) -> Difference | None:
    """A few positive factors on all that differs: scales of blocks that are wrong, or another block's."""
    ratios = _ratios(wanted, found)
    if ratios is None or ratios.differing < _FEW or ratios.low <= 0:
        return None
    place = (
        f"{ratios.differing} elements (rows {ratios.rows[0]} to {ratios.rows[1]}, columns"
        f" {ratios.columns[0]} to {ratios.columns[1]})"
    )
    if len(ratios.steps) <= 2 and ratios.high - ratios.low <= 2 * SAME_DIRECTION_RESIDUAL * ratios.low:
        factor = (ratios.low + ratios.high) / 2
        if abs(factor - 1) >= SCALED_BY:
            return Difference("wrong-scale", f"{place} are {factor:.6g} times the release's")
        return None
    if len(ratios.steps) <= min(_FACTORS, ratios.differing // _SMALLEST_BLOCK):
        factors = f"{ratios.low:.6g} to {ratios.high:.6g}"
        return Difference("wrong-scale", f"{place} are the release's times a few factors, {factors}")
    return None


_FACTORS, _SMALLEST_BLOCK, _STEP = 64, 32, 2.0**-6
"""Distinct factors at most, at most one for a format's smallest block; within 1.1 percent they are one."""


@dataclass
class _Ratios:
    """Found over wanted, where they differ: how many, in which rows and columns, as steps of a logarithm."""

    differing: int = 0
    rows: tuple[int, int] = (1 << 62, -1)
    columns: tuple[int, int] = (1 << 62, -1)
    low: float = float("inf")
    high: float = float("-inf")
    steps: set[int] = field(default_factory=set)

    def add(self, ratios: Floats, rows: Floats, columns: Floats) -> None:
        """Take in what differs in a block of rows."""
        self.differing += ratios.size
        self.rows = (min(self.rows[0], int(rows.min())), max(self.rows[1], int(rows.max())))
        self.columns = (min(self.columns[0], int(columns.min())), max(self.columns[1], int(columns.max())))
        self.low, self.high = min(self.low, float(ratios.min())), max(self.high, float(ratios.max()))
        if self.low > 0:
            self.steps |= set(np.unique(np.rint(np.log2(ratios) / _STEP)).astype(int).tolist())


def _ratios(wanted: Values, found: Values) -> _Ratios | None:
    """None where an element that differs has no ratio: a zero became a number, or one is not finite."""
    result = _Ratios()
    for first, last in blocks(wanted.shape):
        left = wanted.rows(first, last).astype(np.float64)
        right = found.rows(first, last).astype(np.float64)
        unequal = left != right
        if not unequal.any():
            continue
        if np.any(unequal & ((left == 0) | ~np.isfinite(left) | ~np.isfinite(right))):
            return None
        at = np.nonzero(unequal)
        result.add(right[unequal] / left[unequal], first + at[0], at[1])
    return result if result.differing else None


def named_from_digests(expected: Expected, box: Box, entry: Recorded) -> Difference:
    """Name the difference from hypotheses' digests, which is exact, else from a sample."""
    if expected.size <= _HYPOTHESIS_ELEMENTS and expected.can_be(entry.dtype):
        for code, message, values in _hypotheses(expected, entry.dtype):
            if expected_digest(expected, entry.dtype, box, values) == entry.line.sha256:
                return Difference(code, f"{message} (from its digest)")
    return _named_from_sample(expected, box, entry)


def _hypotheses(expected: Expected, dtype: str) -> Iterator[tuple[str, str, Values]]:
    shape, values = expected.shape, expected.values
    if len(shape) >= 2 and shape[-1] == shape[-2] and 1 < shape[-1] <= LARGEST_MATRIX_TRANSPOSED:
        yield "transposed", "the last two axes are swapped", Transposed(values)
    for name in ("BF16", "F16"):
        if name != dtype:
            yield (
                "rounded-on-its-way",
                f"every value was rounded to {name} on its way",
                Rounded(values, FORMATS[name]),
            )
    yield "zeroed", "every value is zero", _Constant(shape, 0.0)
    yield "re-initialised", "every value is 1: re-initialised?", _Constant(shape, 1.0)
    if len(shape) == 3:
        every = shape[0] <= _STACK and shape[0] ** 2 * expected.size <= _HYPOTHESES
        for one in range(shape[0]):
            for other in range(one + 1, shape[0] if every else min(one + 2, shape[0])):
                message = f"2 of {shape[0]} experts moved: {one} holds {other}, {other} holds {one}"
                yield "permuted", message, _SwappedSlices(values, one, other)


@dataclass(frozen=True)
class _Constant:
    shape: tuple[int, ...]
    value: float

    def rows(self, first: int, last: int) -> Floats:
        return np.full((last - first, grid(self.shape)[1]), self.value, np.float32)


@dataclass(frozen=True)
class _SwappedSlices:
    values: Values
    one: int
    other: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def rows(self, first: int, last: int) -> Floats:
        height = grid(self.shape[1:])[0]
        pieces = []
        while first < last:
            index, start = divmod(first, height)
            stop = min(height, start + last - first)
            source = {self.one: self.other, self.other: self.one}.get(index, index)
            pieces.append(self.values.rows(source * height + start, source * height + stop))
            first += stop - start
        return np.concatenate(pieces)


def swapped_slices(values: Values, one: int, other: int) -> Values:
    """A stack with two slices of its first axis in each other's place."""
    return _SwappedSlices(values, one, other)


def _named_from_sample(expected: Expected, box: Box, entry: Recorded) -> Difference:
    """What a sample says; that the tensor differs is known from its digest, whatever the sample shows."""
    sample = entry.line.sample
    differs = "its digest differs from that of the release's values"
    if sample is None or not sample.values or not expected.can_be(entry.dtype):
        return Difference("values-differ", f"{differs}, and no values were recorded that would say how")
    wanted = _sampled(expected, entry.dtype, box, sample.stride)
    found = np.array([np.nan if value is None else value for value in sample.values], np.float64)
    if wanted.size != found.size:
        return Difference(
            "values-differ", f"{differs}; its sample has {found.size} elements, not {wanted.size}"
        )
    unequal = wanted != found
    if not unequal.any():
        return Difference("values-differ", f"{differs}; none of {found.size} sampled elements does")
    among = f"{int(unequal.sum())} of {found.size} sampled elements"
    usable = unequal & (wanted != 0) & np.isfinite(found)
    if usable.sum() >= _FEW and usable.sum() == unequal.sum():
        ratios = found[usable] / wanted[usable]
        if abs(float(ratios.max() - ratios.min())) <= 2 * SAME_DIRECTION_RESIDUAL * abs(float(ratios.min())):
            return Difference(
                "wrong-scale",
                f"{among} are {float(np.median(ratios)):.6g} times the release's (from a sample)",
            )
    return Difference("values-differ", f"{differs}; {among} do (from a sample)")


def _sampled(expected: Expected, dtype: str, box: Box, stride: int) -> Floats:
    """Every ``stride``-th element of the box, flattened, as float64."""
    start, stop = box.columns
    width, seen, kept = stop - start, 0, []
    for first, last in box.runs():
        numbers = decode(
            np.ascontiguousarray(expected.codes(dtype, first, last)[:, start:stop]), FORMATS[dtype]
        )
        flat = numbers.ravel()
        kept.append(flat[(-seen) % stride :: stride])
        seen += (last - first) * width
    return np.concatenate(kept).astype(np.float64) if kept else np.empty(0)


def same_elsewhere(digests: Digests, expected: Expected, box: Box, entry: Recorded) -> Difference | None:
    """Another tensor's values under this name."""
    other = digests.holder(entry.dtype, box, entry.line.sha256)
    if other is None or other == expected.name:
        return None
    return Difference("permuted", f"holds what {other} has to hold")


def pattern_digest(dtype: str, count: int, code: int) -> str:
    """The digest of ``count`` elements of one code."""
    return byte_digest(iter([np.full(count, code, FORMATS[dtype].code)]))


def listed(names: Mapping[str, object] | list[str]) -> str:
    """The first few of some names."""
    every = list(names)
    shown = ", ".join(str(name)[:120] for name in every[:_SHOWN])
    return shown + (f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else "")
