"""Position ids, and packing: documents in one sequence are kept apart."""

from collections import Counter
from itertools import pairwise

import numpy as np

from checks.conversations.labels import place_of
from checks.conversations.rows_case import Epochs, Rows, not_here
from checks.conversations.splitting import Split
from checks.conversations.wrapped_part import wrapped_part
from checks.records.documents import Document
from checks.verdict import Coverage, Measurement, Outcome, Part, Problem, part_of


def positions_part(case: Rows, epochs: Epochs) -> Part:
    """Whether position ids count the tokens of each row that has its sequence to itself.

    Of packed rows, see `packing_part`.
    """
    packed = _packed(case)
    alone = [document for document in case.laid if document.sequence.index not in packed]
    recorded = [document for document in alone if document.sequence.positions is not None]
    if not recorded:
        return not_here("ids/positions", "no position ids are recorded outside packs")
    bodies = _bodies(epochs)
    problems = [problem for document in recorded if (problem := _miscounted(document, bodies, packed=False))]
    coverage = Coverage(judged=len(recorded), total=len(alone), unit="rows")
    return part_of("ids/positions", problems, coverage=coverage)


def _packed(case: Rows) -> set[int]:
    """Indices of the sequences that hold several documents."""
    counts = Counter(document.sequence.index for document in case.laid)
    return {index for index, count in counts.items() if count > 1}


def _bodies(epochs: Epochs) -> dict[tuple[int, int], tuple[int, int]]:
    return {(each.document.sequence.index, each.document.number): each.body for each in epochs.pairs}


def packing_part(case: Rows, epochs: Epochs) -> Part:
    """Whether position ids start again at each document; with wrapped packing see `wrapped_part`."""
    if case.recipe.packing == "wrapped":
        return wrapped_part(case)
    packed = _packed(case)
    if case.recipe.packing == "none":
        return _unpacked_part(case, packed)
    bodies = _bodies(epochs)
    inside = [document for document in case.laid if document.sequence.index in packed]
    seen = [document for document in inside if document.sequence.positions is not None]
    problems = [problem for document in seen if (problem := _miscounted(document, bodies, packed=True))]
    coverage = Coverage(judged=len(seen), total=len(inside), unit="documents")
    if len(seen) < len(inside) and not problems:
        reason = "no position ids are recorded, so nothing shows that attention stops at a document's edge"
        return Part(name="ids/packing", outcome=Outcome.NOT_EVALUATED, reason=reason, coverage=coverage)
    if not inside:
        held = len({document.sequence.index for document in case.laid})
        coverage = Coverage(judged=held, total=held, unit="sequences")
    measurements, notes = _split(case)
    return part_of("ids/packing", problems, coverage=coverage, measurements=measurements, notes=notes)


def _unpacked_part(case: Rows, packed: set[int]) -> Part:
    """Of a recipe that packs nothing: no sequence holds several documents."""
    if not packed:
        return not_here("ids/packing", "the rows are not packed")
    inside = [document for document in case.laid if document.sequence.index in packed]
    problems = [_packed_unasked(document) for document in inside if document.number == 0]
    return part_of(
        "ids/packing", problems, coverage=Coverage(judged=len(inside), total=len(inside), unit="documents")
    )


def _split(case: Rows) -> tuple[tuple[Measurement, ...], tuple[str, ...]]:
    """How many rows the packing split, and what that means for training."""
    rows = [each.sequence for each in case.documents if isinstance(each.sequence, Split)]
    if not rows:
        return (), ()
    pieces = sum(len(row.pieces) for row in rows)
    longest = max(high - low for row in rows for low, high in pairwise([*row.starts, len(row.ids)]))
    measured = (
        Measurement(name="rows split into pieces", value=len(rows), unit="rows"),
        Measurement(name="longest piece", value=longest, unit="tokens"),
    )
    note = (
        f"{len(rows):,} rows are split into {pieces:,} pieces, each with its own positions: no token of "
        "them is lost, but a later piece does not see what its conversation said before"
    )
    return measured, (note,)


def _packed_unasked(document: Document) -> Problem:
    return Problem(
        code="packing-differs",
        message="several documents share a sequence though the recipe packs none",
        place=place_of(document, None),
        next_step="if the recipe packs documents, say so with --packing documents (or wrapped)",
    )


def _miscounted(
    document: Document, bodies: dict[tuple[int, int], tuple[int, int]], packed: bool
) -> Problem | None:
    """Positions that do not count a document's tokens from 0, its padding aside."""
    positions = document.sequence.positions
    if positions is None:
        return None
    start, end = bodies.get((document.sequence.index, document.number), (document.start, document.end))
    seen = positions[start:end]
    wanted = np.arange(len(seen), dtype=np.int32)
    wrong = np.flatnonzero(seen != wanted)
    if len(wrong) == 0:
        return None
    at = int(wrong[0])
    return Problem(
        code="boundary-ignored" if packed else "positions-differ",
        message="position ids do not start again at the document's first token"
        if packed
        else "position ids do not count the row's tokens from 0",
        place=place_of(document, None, at),
        expected=f"position {at}",
        found=f"position {int(seen[at])}",
        next_step="train with positions (or a mask) that keep packed documents apart"
        if packed
        else "count positions over the attended tokens, from 0",
    )
