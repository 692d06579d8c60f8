"""Epochs: each later one holds the rows of the first, unchanged."""

import numpy as np
import numpy.typing as npt

from checks.conversations.alignment import Fit
from checks.conversations.labels import place_of
from checks.conversations.pairing import Pair, Pairing
from checks.conversations.rows_case import Rows, not_here
from checks.verdict import Coverage, Part, Place, Problem, part_of


def epochs_part(case: Rows, numbers: list[int | None], pairings: list[Pairing]) -> Part:
    """Whether later epochs hold the same rows as the first."""
    asked = case.recipe.epochs
    if len(numbers) < 2:
        if asked is not None and asked > 1 and numbers:
            problem = Problem(code="epoch-differs", message=f"one epoch is recorded, the recipe has {asked}")
            return part_of("ids/epochs", [problem])
        return not_here("ids/epochs", "the rows hold one pass over the workload")
    problems = []
    first = {each.row.index: each for each in pairings[0].pairs}
    for number, pairing in zip(numbers[1:], pairings[1:], strict=True):
        problems += _epoch_problems(first, pairing, number)
    if asked is not None and len(numbers) != asked:
        message = f"{len(numbers)} epochs are recorded, the recipe has {asked}"
        problems.append(Problem(code="epoch-differs", message=message))
    return part_of(
        "ids/epochs", problems, coverage=Coverage(judged=len(numbers), total=len(numbers), unit="epochs")
    )


def _epoch_problems(first: dict[int, Pair], pairing: Pairing, epoch: int | None) -> list[Problem]:
    def problem(message: str, place: Place) -> Problem:
        return Problem(code="epoch-differs", message=message, place=place)

    found = {each.row.index for each in pairing.pairs}
    problems = [
        problem("a row of the first epoch is missing in this one", Place(row=row, epoch=epoch))
        for row in first
        if row not in found
    ]
    for each in pairing.pairs:
        before = first.get(each.row.index)
        if before is None:
            problems.append(
                problem("a row is in this epoch and not in the first", place_of(each.document, each.row))
            )
        elif not _alike(before, each):
            problems.append(
                problem("a row differs from the first epoch's", place_of(each.document, each.row))
            )
    problems += [
        problem("a row is there more than once", place_of(e.document, e.row)) for e in pairing.repeated
    ]
    problems += [problem("a row is no row of the workload", place_of(d, None)) for d in pairing.unexpected]
    return problems


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
