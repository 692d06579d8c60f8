"""Epochs: each later one holds the rows of the first, unchanged."""

from typing import Any

import numpy as np
import numpy.typing as npt

from checks.conversations.labels import place_of
from checks.conversations.pairing import Pair
from checks.conversations.rows_case import Epochs, Rows, not_here
from checks.verdict import Coverage, Part, Problem, part_of

Array = npt.NDArray[Any]


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
                message="the row's tokens, labels or loss weights are not those of the epoch before",
                place=place_of(each.document, each.row),
            )
            for each in (*pairing.pairs, *pairing.repeated)
            if not _alike(first[each.row.index], each)
        ]
    return part_of("ids/epochs", problems, coverage=Coverage(judged=recorded, total=recorded, unit="epochs"))


def _alike(first: Pair, second: Pair) -> bool:
    return all(map(_equal, _body(first), _body(second)))


def _equal(left: Array | None, right: Array | None) -> bool:
    if left is None or right is None:
        return left is right
    return np.array_equal(left, right, equal_nan=left.dtype.kind == "f")


def _body(each: Pair) -> tuple[Array | None, ...]:
    """Ids, labels and loss weights of the row (its attention and positions are judged in every epoch)."""
    start, end = each.body
    sequence = each.document.sequence
    arrays = (sequence.ids, sequence.labels, sequence.weights)
    return tuple(None if array is None else array[start:end] for array in arrays)
