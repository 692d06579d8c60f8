"""Epochs: each later one holds the rows of the first, unchanged."""

import numpy as np
import numpy.typing as npt

from checks.conversations.alignment import Fit
from checks.conversations.labels import place_of
from checks.conversations.pairing import Pair
from checks.conversations.rows_case import Epochs, Rows, not_here
from checks.verdict import Coverage, Part, Problem, part_of


def epochs_part(case: Rows, epochs: Epochs) -> Part:
    """Whether a row is the same in every epoch, and whether as many are there as the recipe has."""
    asked, recorded = case.recipe.epochs, len(epochs.numbers)
    problems = []
    if asked is not None and recorded != asked:
        message = f"{recorded} epoch(s) are recorded, the recipe has {asked}"
        problems.append(Problem(code="epoch-differs", message=message))
    elif recorded < 2:
        return not_here("ids/epochs", "the rows hold one pass over the workload")
    first = {each.row.index: each for each in reversed(epochs.first)}
    for pairing in epochs.pairings[1:]:
        problems += [
            Problem(
                code="epoch-differs",
                message="the row's tokens or labels are not those of the epoch before",
                place=place_of(each.document, each.row),
            )
            for each in (*pairing.pairs, *pairing.repeated)
            if not _alike(first[each.row.index], each)
        ]
    return part_of("ids/epochs", problems, coverage=Coverage(judged=recorded, total=recorded, unit="epochs"))


def _alike(first: Pair, second: Pair) -> bool:
    return all(
        (left is None) == (right is None) and (left is None or right is None or np.array_equal(left, right))
        for left, right in zip(_body(first), _body(second), strict=True)
    )


def _body(each: Pair) -> tuple[npt.NDArray[np.int32] | None, ...]:
    document, alignment = each.document, each.alignment
    start, end = document.start, document.end
    if alignment.fit not in (Fit.DIFFERS, Fit.EMPTY):
        start, end = alignment.first, alignment.first + alignment.kept + alignment.appended
    labels = document.sequence.labels
    return document.sequence.ids[start:end], None if labels is None else labels[start:end]
