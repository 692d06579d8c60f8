"""The faults that the load check injects: records of a few tensors as a faulty load would have left them.

Values are changed first and hashed then, with the digest that the recorder uses; the smallest slice holds
tensors that are as the release says, so that their values are known even where only digests were recorded.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from checks.check import NotApplicable
from checks.loading.assembling import Box, byte_digest, distinct_boxes, expected_digest, expected_pieces
from checks.loading.buffers import unlike_reference
from checks.loading.case import LoadCase
from checks.loading.expected import Expected
from checks.loading.kinds import swapped_slices
from checks.records.model_records import Recorded
from checks.references.checkpoints.formats import FORMATS, Floats, decode, encoded
from checks.references.checkpoints.layouts import Transposed, Values
from checks.references.checkpoints.tensors import MemorySource, Tensor

SMALL = 2**20
LARGE = 2**24
"""Elements of a tensor that is in the slice, and of the one matrix, stack or low-precision tensor in it."""
_TRIES = 64


def slice_of(case: LoadCase) -> LoadCase:
    """Clean tensors to plant faults into. Raises `NotApplicable` where none is small enough."""
    pairs = sorted(case.pairs(), key=lambda pair: (pair[0].size, pair[0].name))
    chosen = [
        *_first(pairs, _is_plain, SMALL, 2),
        *_first(pairs, _turns, LARGE, 1),
        *_first(pairs, _is_stack, LARGE, 1),
        *_first(pairs, _is_scaled, LARGE, 1),
    ]
    names = {expected.name for expected, _ in chosen} | _tied(case) | set(_buffers(case)[:1])
    if not names:
        raise NotApplicable("no tensor is as the release says and small enough to plant a fault into")
    return case.only(names)


Pair = tuple[Expected, list[Recorded]]


def _first(pairs: list[Pair], fits: Callable[[Pair], bool], limit: int, count: int) -> list[Pair]:
    found: list[Pair] = []
    candidates = (pair for pair in pairs if 0 < pair[0].size <= limit and fits(pair))
    for number, pair in enumerate(candidates):
        if len(found) == count or number == _TRIES:
            break
        if _is_clean(pair):
            found.append(pair)
    return found


def _is_clean(pair: Pair) -> bool:
    expected, held = pair
    return all(
        entry.dtype in expected.dtypes
        and expected.can_be(entry.dtype)
        and entry.line.sha256 == expected_digest(expected, entry.dtype, box)
        for box, holders in distinct_boxes(held).items()
        for entry in holders
    )


def _is_float(pair: Pair) -> bool:
    fmt = FORMATS.get(pair[1][0].dtype)
    return fmt is not None and fmt.is_float and fmt.bits >= 16


def _is_plain(pair: Pair) -> bool:
    return _is_float(pair) and pair[0].size > 1 and not pair[0].low_precision


def _turns(pair: Pair) -> bool:
    shape = pair[0].shape
    if not (_is_float(pair) and len(shape) >= 2 and shape[-1] == shape[-2] > 1):
        return False
    matrix = pair[0].values.rows(0, shape[-1])
    return not np.array_equal(matrix, matrix.T)


def _is_stack(pair: Pair) -> bool:
    expected = pair[0]
    if not (_is_float(pair) and len(expected.shape) == 3 and expected.shape[0] > 1):
        return False
    height = expected.shape[1]
    one, other = expected.values.rows(0, height), expected.values.rows(height, 2 * height)
    return not np.array_equal(one, other)


def _is_scaled(pair: Pair) -> bool:
    return _is_float(pair) and pair[0].low_precision


def _tied(case: LoadCase) -> set[str]:
    """The tied pair where it is small and tied: a broken tie can be planted into it."""
    tied = case.release.tied
    if tied is None or tied[0] not in case.release.expected:
        return set()
    small = case.release.expected[tied[0]].size <= LARGE
    held = {name: held for name, held in case.loadable().items() if name in tied}
    return set(tied) if small and len(held) == 2 else set()


def _pairs(case: LoadCase) -> list[Pair]:
    return sorted(case.pairs(), key=lambda pair: (pair[0].size, pair[0].name))


def _replaced(case: LoadCase, pair: Pair, values: Values, ranks: set[int] | None = None) -> LoadCase:
    """A copy in which every rank's part of a tensor holds other values, after each load."""
    expected, held = pair
    changed: dict[tuple[int, str, str], Recorded | None] = {}
    for entry in held:
        box = Box.of(entry)
        if box is None or not box.size or (ranks is not None and entry.rank not in ranks):
            continue
        data = b"".join(
            np.ascontiguousarray(p).tobytes() for p in expected_pieces(expected, entry.dtype, box, values)
        )
        for when in ("loaded-1", "loaded-2"):
            was = next((r.at(when).get(expected.name) for r in case.ranks if r.rank == entry.rank), None)
            if was is not None:
                changed[entry.rank, when, expected.name] = recorded(was, data)
    return case.with_recorded(changed)


def recorded(entry: Recorded, data: bytes) -> Recorded:
    """A record of other bytes of the same dtype and shape: digest, counts, sample and values follow."""
    fmt = FORMATS[entry.dtype]
    codes = np.frombuffer(data, fmt.code)
    numbers = decode(codes, fmt)
    bad = int(np.count_nonzero(~np.isfinite(numbers))) if fmt.is_float else 0
    sample = entry.line.sample
    if sample is not None:
        taken = tuple(float(value) if np.isfinite(value) else None for value in numbers[:: sample.stride])
        sample = sample.model_copy(update={"values": taken})
    update = {"sha256": hashlib.sha256(data).hexdigest(), "nonfinite": bad, "sample": sample}
    values = entry.values
    if values is not None:
        values = Tensor(values.name, values.dtype, values.shape, MemorySource(data), "injected")
    return replace(entry, line=entry.line.model_copy(update=update), values=values)


def skipped(case: LoadCase) -> LoadCase:
    """A tensor that the load left out: the fill is still there."""
    pair = next((pair for pair in _pairs(case) if _is_plain(pair)), None)
    if pair is None:
        raise NotApplicable("the slice holds no floating-point tensor")
    return _replaced(case, pair, _Changed(pair[0].values, lambda rows, _: np.full_like(rows, np.nan)))


def transposed(case: LoadCase) -> LoadCase:
    """A square matrix (every expert's) transposed: shape, dtype, norm and sorted values stay."""
    pair = next((pair for pair in _pairs(case) if _turns(pair)), None)
    if pair is None:
        raise NotApplicable("no square matrix is as the release says, small enough and unlike its transpose")
    return _replaced(case, pair, Transposed(pair[0].values))


def experts_swapped(case: LoadCase) -> LoadCase:
    """Two experts of a stack in each other's place."""
    pair = next((pair for pair in _pairs(case) if _is_stack(pair)), None)
    if pair is None:
        raise NotApplicable("the model has no stack of experts")
    return _replaced(case, pair, swapped_slices(pair[0].values, 0, 1))


def wrong_scale(case: LoadCase) -> LoadCase:
    """A scale of a low-precision tensor twice as large: 32 values of one row are doubled.

    Where only samples were recorded every scale is: one block would fall between the sampled elements.
    """
    pair = next((pair for pair in _pairs(case) if _is_scaled(pair)), None)
    if pair is None:
        raise NotApplicable("the release stores no tensor in a low-precision format that was decoded")

    whole = all(entry.values is not None for entry in pair[1])

    def doubled(rows: Floats, first: int) -> Floats:
        rows = rows.copy()
        if not whole:
            rows *= 2
        elif first == 0:
            rows[:1, :32] *= 2
        return rows

    changed = _Changed(pair[0].values, doubled)
    if not np.any(pair[0].values.rows(0, 1)[:, :32]):
        raise NotApplicable("the first block of the low-precision tensor is all zero")
    return _replaced(case, pair, changed)


def cast(case: LoadCase) -> LoadCase:
    """A tensor in another dtype than the others."""
    pair = next((pair for pair in _pairs(case) if _is_plain(pair)), None)
    if pair is None:
        raise NotApplicable("the slice holds no floating-point tensor")
    expected, held = pair
    dtype = next(name for name in ("BF16", "F32", "F16") if name not in expected.dtypes)
    torch_name = {"BF16": "bfloat16", "F32": "float32", "F16": "float16"}[dtype]
    changed: dict[tuple[int, str, str], Recorded | None] = {}
    for entry in held:
        box = Box.of(entry)
        if box is None or not box.size:
            continue
        data = byte_digest(expected_pieces(expected, dtype, box))
        line = entry.line.model_copy(update={"dtype": torch_name, "sha256": data, "sample": None})
        changed[entry.rank, case.moment, expected.name] = replace(entry, line=line, values=None)
    return case.with_recorded(changed)


def dropped(case: LoadCase) -> LoadCase:
    """A tensor of the release that the model does not have."""
    pair = next((pair for pair in _pairs(case) if pair[0].name not in _tied(case)), None)
    if pair is None:
        raise NotApplicable("the slice holds the tied pair alone")
    return case.with_recorded({(e.rank, case.moment, pair[0].name): None for e in pair[1]})


def untied(case: LoadCase) -> LoadCase:
    """A tied head with memory of its own."""
    tied = case.release.tied
    if tied is None or not _tied(case):
        raise NotApplicable("the configuration ties no output head, or the pair is too large")
    changed: dict[tuple[int, str, str], Recorded | None] = {}
    for name in tied:
        for entry in case.loadable()[name]:
            line = entry.line.model_copy(update={"same_as": None})
            changed[entry.rank, case.moment, name] = replace(entry, line=line)
    return case.with_recorded(changed)


def _buffers(case: LoadCase) -> list[str]:
    """Computed buffers whose values are recorded and known."""
    held = case.holders(case.moment)
    return sorted(
        name
        for name, reference in case.computed.items()
        if name in held and _has_values(held[name][0]) and not unlike_reference(reference, held[name][0])
    )


def _has_values(entry: Recorded) -> bool:
    return (
        entry.dtype in FORMATS
        and bool(entry.line.elements)
        and (entry.values or entry.line.sample) is not None
    )


def buffer_overwritten(case: LoadCase) -> LoadCase:
    """A computed buffer one and a half times as large: the load wrote into it."""
    name = next(iter(_buffers(case)), None)
    if name is None:
        raise NotApplicable("the model computes no buffer, or the reference does not know it")
    changed: dict[tuple[int, str, str], Recorded | None] = {}
    for entry in case.holders(case.moment)[name]:
        data = encoded(np.atleast_1d(case.computed[name][1]) * 1.5, FORMATS[entry.dtype])
        changed[entry.rank, case.moment, name] = recorded(entry, data)
    return case.with_recorded(changed)


def replica_changed(case: LoadCase) -> LoadCase:
    """One rank with other values than the rank that holds the same part."""
    for pair in _pairs(case):
        copies = next((held for held in distinct_boxes(pair[1]).values() if len(held) > 1), None)
        if copies is not None and _is_plain(pair):
            negated = _Changed(pair[0].values, lambda rows, _: -rows)
            return _replaced(case, pair, negated, {copies[-1].rank})
    raise NotApplicable("no two ranks hold the same part of a tensor")


class _Changed:
    """A view with its rows changed by a function of the rows and the first one's number."""

    def __init__(self, values: Values, change: Callable[[Floats, int], Floats]) -> None:
        self._values, self._change = values, change

    @property
    def shape(self) -> tuple[int, ...]:
        return self._values.shape

    def rows(self, first: int, last: int) -> Floats:
        return self._change(self._values.rows(first, last), first)
