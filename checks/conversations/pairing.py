"""Which workload row each recorded document is: by its row id, else by order, else by its ids."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from checks.conversations.alignment import Alignment, Fit, Terms, align
from checks.records.documents import Document
from checks.references.expected import ExpectedRow

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Pair:
    """A document and the row it is."""

    document: Document
    row: ExpectedRow
    alignment: Alignment

    @property
    def body(self) -> tuple[int, int]:
        """[start, end) in the sequence: the row's tokens without padding; the document where they differ."""
        document, alignment = self.document, self.alignment
        if alignment.fit in (Fit.DIFFERS, Fit.EMPTY):
            return document.start, document.end
        doubled = alignment.fit is Fit.DOUBLE_BOS
        return alignment.first - doubled, alignment.first + alignment.kept + alignment.appended


@dataclass(frozen=True)
class Pairing:
    """``repeated``: pairs beyond a row's first; ``unexpected``: documents that are no row of the workload."""

    pairs: tuple[Pair, ...]
    repeated: tuple[Pair, ...]
    unexpected: tuple[Document, ...]
    missing: tuple[ExpectedRow, ...]


def pair(documents: list[Document], rows: list[ExpectedRow], terms: Terms) -> Pairing:
    """Pair the documents of one epoch with the rows of the workload."""
    matcher = _Matcher(rows, terms)
    found = [matcher.match(document) for document in documents]
    matcher.match_leftovers(documents, found)
    pairs, repeated = list[Pair](), list[Pair]()
    unexpected, seen = list[Document](), set[int]()
    for document, position in zip(documents, found, strict=True):
        if position is None:
            unexpected.append(document)
            continue
        made = Pair(document, rows[position], align(document, rows[position], terms))
        (repeated if position in seen else pairs).append(made)
        seen.add(position)
    missing = tuple(row for position, row in enumerate(rows) if position not in seen)
    return Pairing(tuple(pairs), tuple(repeated), tuple(unexpected), missing)


class _Matcher:
    """Finds a document's position in the list of rows."""

    def __init__(self, rows: list[ExpectedRow], terms: Terms) -> None:
        self.rows, self.terms = rows, terms
        self._by_index = {row.index: position for position, row in enumerate(rows)}
        self._by_ids: dict[bytes, list[int]] | None = None
        self._taken: set[int] = set()
        self._next = 0

    def match(self, document: Document) -> int | None:
        """By row id; else the next row in order; else the first untaken row with these ids."""
        if document.row is not None:
            position = self._by_index.get(document.row)
        elif self._next < len(self.rows) and self._fits(document, self._next):
            position = self._next
        else:
            position = self._lookup(document)
        if position is not None:
            self._taken.add(position)
            self._next = position + 1
        return position

    def match_leftovers(self, documents: list[Document], found: list[int | None]) -> None:
        """A document without a row id that is no row's ids takes the free row after its predecessor's."""
        after = -1
        for number, document in enumerate(documents):
            position = found[number]
            if position is None and document.row is None:
                candidate = after + 1
                if candidate < len(self.rows) and candidate not in self._taken:
                    found[number] = position = candidate
                    self._taken.add(candidate)
            after = after if position is None else position

    def _fits(self, document: Document, position: int) -> bool:
        if position in self._taken:
            return False
        fit = align(document, self.rows[position], self.terms).fit
        return fit not in (Fit.DIFFERS, Fit.EMPTY)

    def _lookup(self, document: Document) -> int | None:
        positions = [
            position for key in self._keys(document) for position in self._index().get(key.tobytes(), ())
        ]
        free = [position for position in positions if position not in self._taken]
        return next(iter(free or positions), None)

    def _index(self) -> dict[bytes, list[int]]:
        if self._by_ids is None:
            self._by_ids = defaultdict(list)
            for position, row in enumerate(self.rows):
                for length in {
                    len(row.ids),
                    row.padding,
                    len(row.ids) - 1 if self.terms.shifted else len(row.ids),
                }:
                    self._by_ids[row.ids[: self._cut(length)].tobytes()].append(position)
        return self._by_ids

    def _cut(self, length: int) -> int:
        return length if self.terms.max_length is None else min(length, self.terms.max_length)

    def _keys(self, document: Document) -> list[Ints]:
        """The ids as they stand, without padding at either end, and without a doubled first token."""
        ids = document.ids
        keys = [ids]
        if len(ids):
            for padding in {int(ids[-1]), int(ids[0])}:
                real = np.flatnonzero(ids != padding)
                if len(real):
                    first, last = int(real[0]), int(real[-1]) + 1
                    keys += [ids[:last], ids[: last + 1], ids[first:], ids[first:last]]
        if len(ids) > 1 and ids[0] == ids[1]:
            keys += [key[1:] for key in keys[:3]]
        return [*keys, ids[:-1]]
