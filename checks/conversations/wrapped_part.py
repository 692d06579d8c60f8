"""Sequences that packing sliced from the stream of all rows: their lengths and their positions."""

from collections import defaultdict
from itertools import pairwise

import numpy as np

from checks.conversations.rows_case import Rows
from checks.conversations.wrapping import Unwrapped
from checks.records.documents import Document
from checks.records.rows import Sequence
from checks.verdict import Coverage, Measurement, Part, Place, Problem, part_of

_CONTEXT = "attention runs across the documents of a sequence: wrapped packing does not keep them apart"


def wrapped_part(case: Rows) -> Part:
    """Whether sequences are slices of the maximum length, and positions count each slice or its documents.

    A slice may be shorter: the stream ends, and frameworks end one stream every so many rows.
    """
    limit = case.recipe.sequence_length
    starts = _document_starts(case.documents)
    problems = [
        _too_long(each, limit) for each in case.wrapped if limit is not None and _length(each) > limit
    ]
    problems += _never_packed(case, limit)
    problems += [
        problem for each in case.wrapped if (problem := _miscounted(each, starts[each.index])) is not None
    ]
    filled = sum(_length(each) == limit for each in case.wrapped)
    unjudged = () if limit is not None else ("no --max-length is given, so lengths are not judged",)
    return part_of(
        "ids/packing",
        problems,
        coverage=Coverage(judged=len(case.wrapped), total=len(case.wrapped), unit="sequences"),
        measurements=(
            Measurement(name="sequences filled to the maximum length", value=filled, unit="sequences"),
        ),
        notes=(*unjudged, _CONTEXT),
    )


def first_token_notes(case: Rows) -> list[str]:
    """How many supervised tokens stand first in a slice: what precedes them is in another sequence."""
    if case.recipe.terms.shifted:  # a label there is the next token's
        return []
    first = sum(bool(len(each.ids)) and bool(each.supervised[0]) for each in case.wrapped)
    why = "nothing predicts them, because packing cut there"
    return [f"{first:,} supervised tokens stand first in a sequence: {why}"] if first else []


def repeated_problems(case: Rows) -> list[Problem]:
    """Sequences that hold what another sequence of their epoch holds."""
    return [
        Problem(
            code="row-repeated",
            message="a sequence is there more than once in one epoch, with all rows in it",
            place=_place(each),
            next_step="look at the sampler: one that fills its ranks (torch's DistributedSampler with "
            "drop_last off) repeats the first sequences",
        )
        for each in case.repeated
    ]


def _length(sequence: Sequence) -> int:
    """Tokens without what attention leaves out."""
    attention = sequence.attention
    return len(sequence.ids) if attention is None else int(np.count_nonzero(attention))


def _place(sequence: Sequence, token: int | None = None) -> Place:
    return Place(sequence=sequence.index, token=token, epoch=sequence.epoch, rank=sequence.rank or None)


def _document_starts(documents: tuple[Document, ...]) -> dict[int, set[int]]:
    """The tokens at which documents begin, for each recorded sequence."""
    starts: dict[int, set[int]] = defaultdict(set)
    for document in documents:
        if isinstance(document.sequence, Unwrapped):
            for _, sequence, token in document.sequence.pieces[:1]:
                starts[sequence].add(token)
    return starts


def _too_long(sequence: Sequence, limit: int) -> Problem:
    return Problem(
        code="packing-differs",
        message="the sequence is longer than the recipe's slices",
        place=_place(sequence, limit),
        expected=f"at most {limit} tokens",
        found=f"{_length(sequence)} tokens",
        next_step="give the length at which the recipe packs with --max-length",
    )


def _never_packed(case: Rows, limit: int | None) -> list[Problem]:
    """Each row alone in its sequence, though two that follow each other would fit into one."""
    holders = [
        [sequence for _, sequence, _ in document.sequence.pieces]
        for document in case.documents
        if isinstance(document.sequence, Unwrapped)
    ]
    alone = len({index for held in holders for index in held}) == sum(map(len, holders)) == len(holders)
    lengths = [len(document.ids) for document in case.documents]
    if not alone or limit is None or not any(a + b <= limit for a, b in pairwise(lengths)):
        return []
    return [
        Problem(
            code="packing-differs",
            message="each row has a sequence to itself though the recipe packs them into slices",
            place=_place(case.wrapped[0]),
            next_step="if the recipe packs no rows, say so with --packing none; else look at why it does not",
        )
    ]


def _miscounted(sequence: Sequence, starts: set[int]) -> Problem | None:
    """Positions that count neither the slice from 0 nor each of its documents."""
    if sequence.positions is None or len(sequence.ids) == 0:
        return None
    length = _length(sequence)
    seen, whole = sequence.positions[:length], np.arange(length, dtype=np.int32)
    begins = np.zeros(length, dtype=np.int32)
    begins[[start for start in starts if start < length]] = [start for start in starts if start < length]
    wrong = np.flatnonzero(seen != whole)
    apart = np.flatnonzero(seen != whole - np.maximum.accumulate(begins))
    if not len(wrong) or not len(apart):
        return None
    at = int(max(wrong[0], apart[0]))
    return Problem(
        code="positions-differ",
        message="position ids count neither the sequence from 0 nor each of its documents",
        place=_place(sequence, at),
        found=f"position {int(seen[at])}",
        next_step="count positions over the sequence, or from 0 at the first token of each document",
    )
