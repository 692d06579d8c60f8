"""Lays one recorded document over its row: where that begins, how much of it is there, what differs."""

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from checks.records.documents import Document
from checks.references.expected import ExpectedRow
from checks.references.spans import Stop

Ints = npt.NDArray[np.int32]


class Fit(StrEnum):
    """How the ids of a document compare with its row's."""

    EQUAL = "equal"
    CUT = "cut at the maximum length"
    WRONGLY_CUT = "cut elsewhere"
    DOUBLE_BOS = "first token doubled"
    EMPTY = "empty"
    DIFFERS = "differs"


@dataclass(frozen=True, slots=True)
class Alignment:
    """``first``: token of the sequence where the row begins; ``kept``: how many of its tokens are there.

    ``skipped``: tokens missing at the row's start (cut on the left). ``appended``: one stop token follows
    the row that the template leaves to the next header. ``differs_at``: first differing token of the row.
    """

    fit: Fit
    first: int
    kept: int
    skipped: int = 0
    appended: bool = False
    differs_at: int | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """What decides how a row may lie in a document.

    ``padding`` are the ids that may pad where no mask says so.
    """

    max_length: int | None = None
    padding: frozenset[int] = frozenset()
    stops: frozenset[int] = frozenset()
    shifted: bool = False


def align(document: Document, row: ExpectedRow, terms: Terms) -> Alignment:
    """The alignment of a document with a row."""
    ids, wanted = document.ids, row.ids[: terms.max_length]
    if len(ids) == 0:
        return Alignment(Fit.EMPTY, document.start, 0)
    cut = len(wanted) < len(row.ids)
    found = _whole(document, row, wanted, terms)
    if found is not None:
        first, kept, appended = found
        return Alignment(Fit.CUT if cut else Fit.EQUAL, first, kept, appended=appended)
    doubled = _doubled(document, row, wanted[:-1] if cut else wanted, terms)
    if doubled is not None:
        return Alignment(Fit.DOUBLE_BOS, doubled[0], doubled[1], appended=doubled[2])
    return _cut_elsewhere(document, row.ids, terms) or _difference(document, wanted)


def _starts_with(ids: Ints, wanted: Ints) -> bool:
    return len(ids) >= len(wanted) and bool(np.array_equal(ids[: len(wanted)], wanted))


def _whole(document: Document, row: ExpectedRow, wanted: Ints, terms: Terms) -> tuple[int, int, bool] | None:
    """(first, kept, appended) where the document is the row, between paddings."""
    ids, length = document.ids, len(wanted)
    if _starts_with(ids, wanted):
        if _is_padding(document, length, terms):
            return document.start, length, False
        last = row.turns[-1].stop if row.turns else None
        if last is Stop.NONE and int(ids[length]) in terms.stops and _is_padding(document, length + 1, terms):
            return document.start, length, True
    if length == len(row.ids):
        shortest = min(row.padding, length - 1 if terms.shifted and length and row.mask[-1] == 0 else length)
        # Nothing after the last stop token is generated, so a row may end there (and, with shifted labels,
        # lacks a last token that no label names).
        if shortest < length and _starts_with(ids, wanted[:shortest]):
            same = shortest + int(np.sum(_same(ids[shortest:length], wanted[shortest:])))
            if _is_padding(document, same, terms):
                return document.start, same, False
    before = len(ids) - length
    if before > 0 and np.array_equal(ids[before:], wanted) and _is_left_padding(document, before, terms):
        return document.start + before, length, False
    return None


def _is_left_padding(document: Document, before: int, terms: Terms) -> bool:
    """Whether the tokens before a row are one padding id, repeated.

    Where an attention mask covers them, one that is the row's own first token is a token doubled.
    """
    ids = document.ids
    doubled = not document.unmasked and before == 1 and ids[0] == ids[1]
    return int(ids[0]) in terms.padding and bool((ids[:before] == ids[0]).all()) and not doubled


def _doubled(
    document: Document, row: ExpectedRow, wanted: Ints, terms: Terms
) -> tuple[int, int, bool] | None:
    """(first, kept, appended) where the row's first token stands twice, behind padding or not."""
    ids = document.ids
    if len(wanted) == 0:
        return None
    padded = document.unmasked and ids[0] != wanted[0] and int(ids[0]) in terms.padding
    other = np.flatnonzero(ids != ids[0])
    at = int(other[0]) if padded and len(other) else 0
    if at + 1 >= len(ids) or not ids[at] == ids[at + 1] == wanted[0]:
        return None
    return _whole(replace(document, start=document.start + at + 1), row, wanted, terms)


def _same(left: Ints, right: Ints) -> npt.NDArray[np.bool_]:
    equal = left == right[: len(left)]
    return np.logical_and.accumulate(equal) if len(equal) else equal


def _is_padding(document: Document, offset: int, terms: Terms) -> bool:
    """Whether everything from an offset on is padding: nothing, or one id repeated.

    An id that is no known padding id counts when no label covers it: behind the row, it then changes nothing.
    What an attention mask covers is padding only where both hold.
    """
    rest = document.ids[offset:]
    if len(rest) == 0:
        return True
    if (rest != rest[0]).any():
        return False
    sequence = document.sequence
    supervised = sequence.supervised[document.start + offset : document.end]
    unlabelled = sequence.labels is not None and not bool(supervised.any())
    known = int(rest[0]) in terms.padding
    return known or unlabelled if document.unmasked else known and unlabelled


def _cut_elsewhere(document: Document, whole: Ints, terms: Terms) -> Alignment | None:
    ids = document.ids
    if len(whole) and _starts_with(ids, whole) and _is_padding(document, len(whole), terms):
        return Alignment(Fit.WRONGLY_CUT, document.start, len(whole))
    if len(ids) > len(whole) or len(whole) == 0:
        return None
    kept = len(ids)
    if document.unmasked and kept:
        different = np.flatnonzero(ids[::-1] != ids[-1])
        if int(ids[-1]) in terms.padding and len(different):
            kept = len(ids) - int(different[0])
    for length in {len(ids), kept}:
        if length > 0 and bool(np.array_equal(ids[:length], whole[:length])):
            return Alignment(Fit.WRONGLY_CUT, document.start, length)
    if bool(np.array_equal(ids, whole[-len(ids) :])):
        return Alignment(Fit.WRONGLY_CUT, document.start, len(ids), skipped=len(whole) - len(ids))
    return None


def _difference(document: Document, wanted: Ints) -> Alignment:
    ids = document.ids
    common = min(len(ids), len(wanted))
    different = np.flatnonzero(ids[:common] != wanted[:common])
    return Alignment(
        Fit.DIFFERS, document.start, 0, differs_at=int(different[0]) if len(different) else common
    )
