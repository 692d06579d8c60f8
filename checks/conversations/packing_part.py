"""Position ids, and packing: documents in one sequence are kept apart."""

from collections import Counter

import numpy as np

from checks.conversations.labels import place_of
from checks.conversations.rows_case import Epochs, Rows, not_here
from checks.conversations.wrapped_part import wrapped_part
from checks.records.documents import Document
from checks.verdict import Coverage, Outcome, Part, Problem, part_of


def positions_part(case: Rows, epochs: Epochs) -> Part:
    """Whether position ids count the tokens of each row that has its sequence to itself.

    Of packed rows, see `packing_part`.
    """
    packed = _packed(case)
    alone = [document for document in case.documents if document.sequence.index not in packed]
    recorded = [document for document in alone if document.sequence.positions is not None]
    if not recorded:
        return not_here("ids/positions", "no position ids are recorded outside packs")
    bodies = _bodies(epochs)
    problems = [problem for document in recorded if (problem := _miscounted(document, bodies, packed=False))]
    coverage = Coverage(judged=len(recorded), total=len(alone), unit="rows")
    return part_of("ids/positions", problems, coverage=coverage)


def _packed(case: Rows) -> set[int]:
    """Indices of the sequences that hold several documents."""
    counts = Counter(document.sequence.index for document in case.documents)
    return {index for index, count in counts.items() if count > 1}


def _bodies(epochs: Epochs) -> dict[tuple[int, int], tuple[int, int]]:
    return {(each.document.sequence.index, each.document.number): each.body for each in epochs.pairs}


def packing_part(case: Rows, epochs: Epochs) -> Part:
    """Whether position ids start again at each document; with wrapped packing see `wrapped_part`."""
    if case.recipe.packing == "wrapped":
        return wrapped_part(case)
    sequences = {document.sequence.index for document in case.documents}
    packed, bodies = _packed(case), _bodies(epochs)
    if case.recipe.packing == "none" and not packed:
        return not_here("ids/packing", "the rows are not packed")
    problems, judged, unseen = [], 0, 0
    for document in case.documents:
        if document.sequence.index not in packed:
            continue
        if case.recipe.packing == "none":
            problems.append(_packed_unasked(document)) if document.number == 0 else None
            judged += 1
        elif document.sequence.positions is None:
            unseen += 1
        else:
            judged += 1
            problem = _miscounted(document, bodies, packed=True)
            problems += [problem] if problem else []
    total = judged + unseen
    reason = "no position ids are recorded, so nothing shows that attention stops at a document's edge"
    if total == 0:
        return part_of(
            "ids/packing",
            [],
            coverage=Coverage(judged=len(sequences), total=len(sequences), unit="sequences"),
        )
    if unseen and not problems:
        return Part(
            name="ids/packing",
            outcome=Outcome.NOT_EVALUATED,
            reason=reason,
            coverage=Coverage(judged=judged, total=total, unit="documents"),
        )
    return part_of("ids/packing", problems, coverage=Coverage(judged=judged, total=total, unit="documents"))


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
