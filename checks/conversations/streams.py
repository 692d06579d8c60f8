"""The stream of a workload's rows, and where recorded sequences lie in it."""

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
_WINDOW = 32
"""Tokens by which a sequence is looked up."""
_BLOCK = 2**20
"""Places of the stream looked at together (8 MiB of 64-bit sums)."""
_WEIGHTS = np.random.default_rng(0).integers(0, 2**63, _WINDOW, dtype=np.uint64) * np.uint64(2) + np.uint64(1)


@dataclass(frozen=True)
class Stream:
    """Rows one after the other.

    ``ids`` int32[T]; ``starts`` int64[R]: where each row begins in it; ``firsts``: the ids that begin a row.
    """

    rows: list[Ints]
    ids: Ints
    starts: npt.NDArray[np.int64]
    firsts: Ints
    longest: int
    _head: int
    _numbers: dict[bytes, int] = field(repr=False)
    _lengths: dict[bytes, list[int]] = field(repr=False)

    @classmethod
    def of(cls, rows: list[Ints]) -> "Stream":
        """The stream of these rows, none of them empty."""
        head = min((len(row) for row in rows), default=0)
        numbers = {row.tobytes(): number for number, row in reversed(list(enumerate(rows)))}
        lengths: dict[bytes, set[int]] = defaultdict(set)
        for row in rows:
            lengths[row[:head].tobytes()].add(len(row))
        ordered = {text: sorted(found, reverse=True) for text, found in lengths.items()}
        empty = np.zeros(0, dtype=np.int32)
        firsts = np.unique([row[0] for row in rows]).astype(np.int32)
        longest = max(map(len, rows), default=0)
        starts = np.cumsum([0, *map(len, rows)])[:-1]
        return cls(rows, np.concatenate([empty, *rows]), starts, firsts, longest, head, numbers, ordered)

    def continues_elsewhere(self, ids: Ints, at: int) -> bool:
        """Whether tokens that begin at a place of the stream go on, at a row's end, with another row."""
        there = self.ids[at : at + len(ids)]
        different = np.flatnonzero(ids[: len(there)] != there)
        same = int(different[0]) if len(different) else len(there)
        low, high = np.searchsorted(self.starts, [at, at + same], side="right")
        if low == high:
            return False
        rest = ids[self.starts[high - 1] - at :]
        return any(len(rest) > 0 and np.array_equal(row[: len(rest)], rest[: len(row)]) for row in self.rows)

    def row_at(self, ids: Ints, at: int, following: int) -> int | None:
        """The row that stands whole at a place of other ids: the following one, else the longest fitting."""
        if following < len(self.rows):
            row = self.rows[following]
            if np.array_equal(ids[at : at + len(row)], row):
                return following
        for length in self._lengths.get(ids[at : at + self._head].tobytes(), ()):
            number = self._numbers.get(ids[at : at + length].tobytes())
            if number is not None:
                return number
        return None


@dataclass(frozen=True)
class Located:
    """Sequences in the order of a stream.

    ``places``: where those lie that lie in it; ``near``: where the others begin as it does; ``repeated``:
    those that lie where others do; ``ambiguous``: all lie somewhere in it and are as long as it is together,
    yet as placed they do not fill it.
    """

    stream: Stream
    order: tuple[int, ...]
    repeated: tuple[int, ...]
    places: dict[int, int]
    ambiguous: bool
    near: dict[int, list[int]]

    def __len__(self) -> int:
        return len(self.places)


class _Places:
    """Where sequences were placed so far: none overlaps another."""

    def __init__(self, chunks: list[Ints]) -> None:
        self.of: dict[int, int] = {}
        self._chunks = chunks
        self._starts, self._ends = list[int](), list[int]()

    def add(self, number: int, at: int) -> bool:
        """Place a sequence; False where another one lies there."""
        end = at + len(self._chunks[number])
        index = bisect_right(self._starts, at)
        if (index and self._ends[index - 1] > at) or (
            index < len(self._starts) and self._starts[index] < end
        ):
            return False
        self._starts.insert(index, at)
        self._ends.insert(index, end)
        self.of[number] = at
        return True

    def end_of(self, number: int) -> int:
        """The place behind a sequence."""
        return self.of[number] + len(self._chunks[number])

    def gaps(self, length: int) -> list[list[int]]:
        """[start, end] of what no sequence covers."""
        bounds = zip([0, *self._ends], [*self._starts, length], strict=True)
        return [[start, end] for start, end in bounds if start < end]


def locate(chunks: list[Ints], stream: Stream) -> Located:
    """Where each sequence lies in the stream; one that lies nowhere fills a gap, in the recorded order."""
    exact, near = _candidates(chunks, stream.ids)
    places = _Places(chunks)
    left = [n for n, found in exact.items() if len(found) > 1 or not places.add(n, found[0])]
    _fill_with_ambiguous({n: exact[n] for n in left}, places, len(stream.ids))
    for number, found in [*((n, exact[n]) for n in left if n not in places.of), *near.items()]:
        ids = chunks[number]
        any(places.add(number, at) for at in found if 2 * _equal_tokens(ids, stream.ids[at:]) > len(ids))
    placed = {chunks[number].tobytes() for number in places.of}
    repeated = [n for n in left if n not in places.of and chunks[n].tobytes() in placed]
    known = all(n in exact or len(ids) < _WINDOW for n, ids in enumerate(chunks))
    whole = known and sum(map(len, chunks)) == len(stream.ids)
    ambiguous = whole and bool(places.gaps(len(stream.ids)))
    of = _fill_gaps(chunks, places, set(repeated), stream.ids)
    order = sorted(of, key=lambda number: (of[number], number))
    return Located(stream, tuple(order), tuple(repeated), places.of, ambiguous, near)


def _fill_with_ambiguous(exact: dict[int, list[int]], places: _Places, length: int) -> None:
    """Place sequences that could lie in several places where they continue what lies before them."""
    beginning: dict[int, list[int]] = defaultdict(list)
    for number, found in exact.items():
        for at in found:
            beginning[at].append(number)
    for start, end in places.gaps(length):
        place = start
        while place < end:
            held = beginning.get(place, ())
            added = next((n for n in held if n not in places.of and places.add(n, place)), None)
            place = end if added is None else places.end_of(added)


def _fill_gaps(chunks: list[Ints], places: _Places, repeated: set[int], stream: Ints) -> dict[int, int]:
    """Place what was not found: where its own tokens are missing, else where as many are, else anywhere."""
    gaps = [*places.gaps(len(stream)), [len(stream), len(stream)]]
    of = dict(places.of)
    for number, ids in enumerate(chunks):
        if number in of or number in repeated:
            continue
        gap = _gap_for(ids, gaps, stream)
        of[number] = gap[0]
        gap[0] = min(gap[0] + len(ids), gap[1])
    return of


def _gap_for(ids: Ints, gaps: list[list[int]], stream: Ints) -> list[int]:
    open_ = [gap for gap in gaps if gap[0] < gap[1]]
    own = [gap for gap in open_ if np.array_equal(stream[gap[0] : gap[0] + len(ids)], ids)]
    long = [gap for gap in open_ if gap[1] - gap[0] == len(ids)]
    return next(iter([*own, *long, *open_]), gaps[-1])


def _candidates(chunks: list[Ints], stream: Ints) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Places of the stream where each sequence lies whole, and where each other one begins, likest first.

    A sequence shorter than the window lies in too many places to tell; it ends a stream, and fills a gap.
    """
    heads: dict[int, list[int]] = defaultdict(list)
    for number, ids in enumerate(chunks):
        if len(ids) >= _WINDOW:
            heads[int(_sums(ids[:_WINDOW])[0])].append(number)
    equal: dict[int, dict[int, int]] = defaultdict(dict)
    wanted = np.array(sorted(heads), dtype=np.uint64)
    for start in range(0, len(stream) - _WINDOW + 1, _BLOCK):
        sums = _sums(stream[start : start + _BLOCK + _WINDOW - 1])
        for place in np.flatnonzero(np.isin(sums, wanted)):
            at = start + int(place)
            for number in heads[int(sums[place])]:
                equal[number][at] = _equal_tokens(chunks[number], stream[at:])
    exact = {n: [at for at, same in found.items() if same == len(chunks[n])] for n, found in equal.items()}
    near = {n: sorted(found, key=lambda at: -found[at]) for n, found in equal.items() if not exact[n]}
    return {n: found for n, found in exact.items() if found}, near


def _equal_tokens(ids: Ints, there: Ints) -> int:
    there = there[: len(ids)]
    return int(np.count_nonzero(ids[: len(there)] == there))


def _sums(ids: Ints) -> npt.NDArray[np.uint64]:
    """uint64: a weighted sum of each window of tokens, modulo 2^64 (equal windows have equal sums)."""
    count = len(ids) - _WINDOW + 1
    values = ids.astype(np.int64).view(np.uint64)
    total = np.zeros(count, dtype=np.uint64)
    for offset, weight in enumerate(_WEIGHTS):
        total += values[offset : offset + count] * weight
    return total
