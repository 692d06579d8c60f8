"""Packing: documents in one sequence are kept apart."""

from collections import defaultdict

import numpy as np

from checks.conversations.labels import place_of
from checks.conversations.rows_case import Rows, not_here
from checks.records.documents import Document
from checks.verdict import Coverage, Outcome, Part, Problem, part_of


def packing_part(case: Rows) -> Part:
    """Whether position ids start again at each document."""
    sequences = {document.sequence.index: document.sequence for document in case.documents}
    counts: dict[int, int] = defaultdict(int)
    for document in case.documents:
        counts[document.sequence.index] += 1
    packed = {index: sequences[index] for index, count in counts.items() if count > 1}
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
            problem = _boundary(document)
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
        next_step="if the recipe packs documents, say so with --packing documents",
    )


def _boundary(document: Document) -> Problem | None:
    positions = document.sequence.positions
    if positions is None:
        return None
    seen = positions[document.start : document.end]
    wanted = np.arange(len(seen), dtype=np.int32)
    wrong = np.flatnonzero(seen != wanted)
    if len(wrong) == 0:
        return None
    at = int(wrong[0])
    return Problem(
        code="boundary-ignored",
        message="position ids do not start again at the document's first token",
        place=place_of(document, None, at),
        expected=f"position {at}",
        found=f"position {int(seen[at])}",
        next_step="train with positions (or a mask) that keep packed documents apart",
    )
