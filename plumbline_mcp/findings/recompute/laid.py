"""Lays a recorded document over the row it is: where that begins, how much is there, what differs."""

from dataclasses import dataclass

import numpy as np

from plumbline_mcp.findings.recompute.expected_rows import ExpectedRow
from plumbline_mcp.findings.recompute.row_record import Document


@dataclass(frozen=True)
class Terms:
    """What decides how a row may lie: the recipe's length, ids that pad, ids that stop, shifted labels."""

    limit: int | None
    padding: frozenset[int]
    stops: frozenset[int]
    shifted: bool


@dataclass(frozen=True)
class Laid:
    """``kind``: equal, cut, wrongly-cut, double-bos, empty or differs.

    ``first``: where the row's token ``skipped`` lies in the document; ``kept`` tokens follow it.
    ``appended``: one stop token more, which the template leaves out. ``at``: first differing token.
    """

    document: Document
    row: ExpectedRow
    kind: str
    first: int = 0
    kept: int = 0
    skipped: int = 0
    appended: bool = False
    at: int = 0

    @property
    def fits(self) -> bool:
        """Whether the document's tokens are the row's, so that its labels can be judged."""
        return self.kind not in ("differs", "empty")

    @property
    def last(self) -> int:
        """How many of the row's tokens are there, counted from its start."""
        return self.skipped + self.kept


def attended(document: Document) -> tuple[int, int]:
    """[start, end) of what the attention mask covers; the whole document without one."""
    if document.attention is None:
        return 0, len(document.ids)
    seen = np.flatnonzero(document.attention)
    return (int(seen[0]), int(seen[-1]) + 1) if len(seen) else (0, 0)


def lay(document: Document, row: ExpectedRow, terms: Terms) -> Laid:
    """How a document lies over a row."""
    start, end = attended(document)
    ids = document.ids[start:end]
    if not len(ids):
        return Laid(document, row, "empty")
    wanted = row.ids if terms.limit is None else row.ids[: terms.limit]
    kind = "cut" if len(wanted) < len(row.ids) else "equal"
    found = _whole(document, row, (start, end), wanted, terms)
    if found:
        return Laid(document, row, kind, *found[:2], appended=found[2])
    doubled = _doubled(document, (start, end), wanted, terms)
    if doubled is not None:
        text = wanted[:-1] if kind == "cut" else wanted
        found = _whole(document, row, (doubled, end), text, terms)
        if found:
            return Laid(document, row, "double-bos", *found[:2], appended=found[2])
    return _cut(document, row, (start, end), terms) or Laid(
        document, row, "differs", start, at=_first_difference(ids, wanted)
    )


def _first_difference(ids: np.ndarray, wanted: np.ndarray) -> int:
    size = min(len(ids), len(wanted))
    different = np.flatnonzero(ids[:size] != wanted[:size])
    return int(different[0]) if len(different) else size


def _whole(
    document: Document, row: ExpectedRow, span: tuple[int, int], wanted: np.ndarray, terms: Terms
) -> tuple[int, int, bool] | None:
    start, end = span
    ids, size = document.ids[start:end], len(wanted)
    if np.array_equal(ids[:size], wanted):
        if _pads(document, start + size, end, terms):
            return start, size, False
        open_end = row.replies and row.replies[-1].never_stops
        if open_end and int(ids[size]) in terms.stops and _pads(document, start + size + 1, end, terms):
            return start, size, True
    if size == len(row.ids):
        least = min(row.end, size - 1 if terms.shifted and size and row.mask[-1] == 0 else size)
        same = _first_difference(ids, wanted)
        if least < size and same >= least and _pads(document, start + same, end, terms):
            return start, same, False
    before = len(ids) - size
    if before > 0 and np.array_equal(ids[before:], wanted):
        lead = ids[:before]
        twice = document.attention is not None and before == 1 and ids[0] == ids[1]
        if int(lead[0]) in terms.padding and (lead == lead[0]).all() and not twice:
            return start + before, size, False
    return None


def _pads(document: Document, at: int, end: int, terms: Terms) -> bool:
    """Whether what follows a place is padding: nothing, or one id that no label covers or that may pad."""
    rest = document.ids[at:end]
    if not len(rest):
        return True
    if (rest != rest[0]).any():
        return False
    known = int(rest[0]) in terms.padding
    unlabelled = document.labels is not None and not document.supervised[at:end].any()
    return known and unlabelled if document.attention is not None else known or unlabelled


def _doubled(document: Document, span: tuple[int, int], wanted: np.ndarray, terms: Terms) -> int | None:
    """Where the row begins when its first token stands twice; None where it does not."""
    start, end = span
    ids, at = document.ids[start:end], 0
    if not len(wanted):
        return None
    if document.attention is None and ids[0] != wanted[0] and int(ids[0]) in terms.padding:
        other = np.flatnonzero(ids != ids[0])
        at = int(other[0]) if len(other) else 0
    twice = at + 1 < len(ids) and ids[at] == ids[at + 1] == wanted[0]
    return start + at + 1 if twice else None


def _cut(document: Document, row: ExpectedRow, span: tuple[int, int], terms: Terms) -> Laid | None:
    """Cut at another place than the recipe says, or on the left."""
    start, end = span
    ids, whole = document.ids[start:end], row.ids
    size = len(whole)
    if size and np.array_equal(ids[:size], whole) and _pads(document, start + size, end, terms):
        return Laid(document, row, "wrongly-cut", start, size)
    if not size or len(ids) > size:
        return None
    kept = len(ids)
    tail = np.flatnonzero(ids[::-1] != ids[-1])
    lengths = [kept]
    if document.attention is None and int(ids[-1]) in terms.padding and len(tail):
        lengths.append(kept - int(tail[0]))
    for length in lengths:
        if length and np.array_equal(ids[:length], whole[:length]):
            return Laid(document, row, "wrongly-cut", start, length)
    if np.array_equal(ids, whole[-kept:]):
        return Laid(document, row, "wrongly-cut", start, kept, skipped=size - kept)
    return None


@dataclass(frozen=True)
class Pairs:
    """The documents of one epoch beside the rows they are."""

    pairs: tuple[Laid, ...]
    repeated: tuple[Laid, ...]
    unexpected: tuple[Document, ...]
    missing: tuple[ExpectedRow, ...]


def pair(documents: list[Document], rows: list[ExpectedRow], terms: Terms) -> Pairs:
    """By row id where one is recorded; else by ids, in order; what is left takes the free row behind."""
    by_index = {row.index: row for row in rows}
    texts: dict[bytes, list[ExpectedRow]] = {}
    for each in rows:
        for size in {len(each.ids), each.end, len(each.ids) - terms.shifted}:
            texts.setdefault(each.ids[: _least(size, terms.limit)].tobytes(), []).append(each)
    chosen: list[ExpectedRow | None] = []
    taken: set[int] = set()
    follow = 0
    for document in documents:
        row: ExpectedRow | None = by_index.get(document.row) if document.row is not None else None
        if document.row is None:
            row = _by_ids(document, rows, texts, taken, follow, terms)
        chosen.append(row)
        if row is not None:
            taken.add(row.index)
            follow = row.index + 1
    after = -1
    for number, document in enumerate(documents):
        if chosen[number] is None and document.row is None:
            free = by_index.get(after + 1)
            if free is not None and free.index not in taken:
                chosen[number] = free
                taken.add(free.index)
        found = chosen[number]
        after = after if found is None else found.index
    return _sorted_out(documents, chosen, rows, terms)


def _least(size: int, limit: int | None) -> int:
    return size if limit is None else min(size, limit)


def _by_ids(
    document: Document,
    rows: list[ExpectedRow],
    texts: dict[bytes, list[ExpectedRow]],
    taken: set[int],
    follow: int,
    terms: Terms,
) -> ExpectedRow | None:
    if follow < len(rows) and rows[follow].index not in taken and lay(document, rows[follow], terms).fits:
        return rows[follow]
    start, end = attended(document)
    ids = document.ids[start:end]
    candidates = [ids, ids[1:], ids[:-1]]
    for pad in {int(ids[-1]), int(ids[0])} if len(ids) else ():
        real = np.flatnonzero(ids != pad)
        if len(real):
            low, high = int(real[0]), int(real[-1]) + 1
            candidates += [ids[:high], ids[: high + 1], ids[low:], ids[low:high], ids[1:high]]
    found = [row for text in candidates for row in texts.get(text.tobytes(), [])]
    free = [row for row in found if row.index not in taken]
    return next(iter(free or found), None)


def _sorted_out(
    documents: list[Document], chosen: list[ExpectedRow | None], rows: list[ExpectedRow], terms: Terms
) -> Pairs:
    pairs, repeated, unexpected, seen = list[Laid](), list[Laid](), list[Document](), set[int]()
    for document, row in zip(documents, chosen, strict=True):
        if row is None:
            unexpected.append(document)
            continue
        (repeated if row.index in seen else pairs).append(lay(document, row, terms))
        seen.add(row.index)
    missing = tuple(row for row in rows if row.index not in seen)
    return Pairs(tuple(pairs), tuple(repeated), tuple(unexpected), missing)
