"""The parts of a data verdict, in their order."""

from collections import defaultdict

from checks.check import Progress
from checks.conversations.epochs_part import epochs_part
from checks.conversations.ids_parts import content_part, coverage_part, order_part, truncation_part
from checks.conversations.label_parts import labels_part, stop_part
from checks.conversations.labels import labelled
from checks.conversations.packing_part import packing_part
from checks.conversations.pairing import Pairing, pair
from checks.conversations.rows_case import Rows, comparable
from checks.records.documents import Document
from checks.verdict import Part

PARTS = (
    "ids/content",
    "ids/order",
    "ids/truncation",
    "ids/packing",
    "ids/coverage",
    "ids/epochs",
    "labels",
    "stop",
)


def judge_rows(case: Rows, progress: Progress) -> list[Part]:
    """Every part, in a fixed order. The first epoch is judged in full, later ones against the first."""
    epochs: dict[int | None, list[Document]] = defaultdict(list)
    for document in case.documents:
        epochs[document.sequence.epoch].append(document)
    numbers = sorted(epochs, key=lambda number: -1 if number is None else number)
    pairings = []
    for number in numbers:
        pairings.append(pair(epochs[number], list(case.rows), case.recipe.terms))
        progress(len(pairings), len(numbers), "comparing recorded rows with the reference")
    first = pairings[0] if pairings else Pairing((), (), (), case.rows)
    rows = [
        row
        for each in (*first.pairs, *first.repeated)
        if comparable(each) and (row := labelled(each, case.recipe.stop_has_a_part)) is not None
    ]
    return [
        content_part(case, first),
        order_part(case, first),
        truncation_part(case, first),
        packing_part(case),
        coverage_part(case, first),
        epochs_part(case, numbers, pairings),
        labels_part(case, rows, first),
        stop_part(case, rows, first),
    ]
