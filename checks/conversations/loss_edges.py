"""The loss beside the rows' own labels: weights, tokens outside every row, rows without labels."""

import numpy as np

from checks.conversations.labels import LabelledRow, place_of, runs
from checks.conversations.pairing import Pair
from checks.conversations.rows_case import Epochs, Rows, comparable
from checks.records.documents import Document
from checks.records.rows import IGNORED, Sequence
from checks.verdict import Outcome, Place, Problem


def _sequences(documents: tuple[Document, ...]) -> dict[int, tuple[Sequence, list[Document]]]:
    found: dict[int, tuple[Sequence, list[Document]]] = {}
    for document in documents:
        found.setdefault(document.sequence.index, (document.sequence, []))[1].append(document)
    return found


def weight_problems(case: Rows) -> list[Problem]:
    """Weights that no loss can use, in any sequence of any epoch: not finite, or below 0."""
    problems = []
    for sequence, documents in _sequences(case.documents).values():
        if sequence.weights is None:
            continue
        wrong = np.flatnonzero(~(np.isfinite(sequence.weights) & (sequence.weights >= 0)))
        if len(wrong):
            at = int(wrong[0])
            problems.append(
                Problem(
                    code="weight-invalid",
                    message=f"{len(wrong)} loss weight(s) are not finite or below 0",
                    place=_sequence_place(sequence, documents, at),
                    expected="a finite weight, 0 or more",
                    found=str(float(sequence.weights[at])),
                )
            )
    return problems


def negative_problems(case: Rows) -> list[Problem]:
    """Labels below 0 that are not the ignored one, in any sequence of any epoch; read as not supervised."""
    problems = []
    for sequence, documents in _sequences(case.laid).values():
        labels = sequence.labels
        if labels is not None and len(wrong := np.flatnonzero((labels < 0) & (labels != IGNORED))):
            at = int(wrong[0])
            problems.append(_negative(len(wrong), int(labels[at]), _sequence_place(sequence, documents, at)))
    return problems


def _negative(count: int, value: int, place: Place) -> Problem:
    return Problem(
        code="label-negative",
        message=f"{count} label(s) below 0 are {value}, where {IGNORED} is what the loss leaves out: it "
        f"takes {value} for a token, which no vocabulary has, and stops or reads what lies elsewhere",
        place=place,
        expected=f"a token id, or {IGNORED} (ignore_index)",
        found=str(value),
        next_step=f"let what fills the labels write {IGNORED}; of a loss with another ignore_index, write "
        f"{IGNORED} in its place into the rows",
    )


def weight_notes(rows: list[LabelledRow]) -> list[str]:
    """Whether supervised tokens weigh differently, and how much."""
    low, high, rows_apart = np.inf, -np.inf, 0
    for row in rows:
        document = row.pair.document
        weights = document.sequence.weights
        used = np.ones(1) if weights is None else weights[document.low : document.high][row.supervised]
        if len(used):
            low, high = min(low, float(used.min())), max(high, float(used.max()))
            rows_apart += bool(used.min() != used.max())
    if not low < high:
        return []
    return [
        f"supervised tokens have loss weights from {low:g} to {high:g} (unequal inside {rows_apart} rows)"
    ]


def outside_problems(case: Rows, epochs: Epochs) -> list[Problem]:
    """Supervised tokens outside every row: around packed rows, and in the padding of later epochs.

    The first epoch's rows have their own look.
    """
    judged = {(each.document.sequence.index, each.document.number) for each in epochs.first}
    bodies = {(each.document.sequence.index, each.document.number): each.body for each in epochs.pairs}
    problems = []
    for sequence, documents in _sequences(case.laid).values():
        outside = sequence.supervised
        for document in documents:
            key = (sequence.index, document.number)
            start, end = bodies.get(key, (document.low, document.high))
            if key in judged:
                start, end = document.low, document.high
            outside[start:end] = False
        problems += [_outside(sequence, documents, *run) for run in runs(outside)[:1]]
    return problems


def _outside(sequence: Sequence, documents: list[Document], start: int, end: int) -> Problem:
    return Problem(
        code="token-wrongly-supervised",
        message=f"{end - start} token(s) of padding (or of text outside every row) are supervised",
        place=_sequence_place(sequence, documents, start),
        expected="not supervised",
        found="supervised",
    )


def _sequence_place(sequence: Sequence, documents: list[Document], token: int) -> Place:
    """The place of a token of a sequence, in the document before it (row where the record names it)."""
    owner = max((d for d in documents if d.low <= token), key=lambda d: d.low, default=documents[0])
    return place_of(owner, None, token - owner.start)


def unlabelled(epochs: Epochs) -> list[Pair]:
    """Rows without labels."""
    return [each for each in epochs.first if comparable(each) and each.document.sequence.labels is None]


def unlabelled_problems(epochs: Epochs) -> list[Problem]:
    """Rows without labels beside rows with them: nothing shows what the loss covers there."""
    return [
        Problem(
            code="labels-missing",
            outcome=Outcome.NOT_EVALUATED,
            message="the row holds no labels, though other rows do",
            place=place_of(each.document, each.row),
            next_step="dump the labels of every row",
        )
        for each in unlabelled(epochs)
    ]
