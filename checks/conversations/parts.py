"""The parts of a data verdict, in their order."""

from collections import defaultdict

from checks.check import Progress
from checks.conversations.epochs_part import epochs_part
from checks.conversations.ids_parts import content_part, coverage_part, order_part, truncation_part
from checks.conversations.label_parts import labels_part, stop_part
from checks.conversations.labels import labelled
from checks.conversations.packing_part import packing_part, positions_part
from checks.conversations.pairing import Pair, Pairing, pair
from checks.conversations.rows_case import Epochs, Rows, comparable
from checks.records.documents import Document
from checks.verdict import Part

PARTS = (
    "ids/content",
    "ids/order",
    "ids/truncation",
    "ids/positions",
    "ids/packing",
    "ids/coverage",
    "ids/epochs",
    "labels",
    "stop",
)


def judge_rows(case: Rows, progress: Progress) -> list[Part]:
    """Every part, in a fixed order. The first epoch is judged in full, later ones against the first."""
    epochs = _epochs(case, progress)
    rows = [row for each in epochs.first if comparable(each) and (row := labelled(each)) is not None]
    return [
        content_part(case, epochs),
        order_part(case, epochs),
        truncation_part(case, epochs),
        positions_part(case, epochs),
        packing_part(case, epochs),
        coverage_part(case, epochs),
        epochs_part(case, epochs),
        labels_part(case, rows, epochs),
        stop_part(case, rows, epochs),
    ]


def _epochs(case: Rows, progress: Progress) -> Epochs:
    documents: dict[int | None, list[Document]] = defaultdict(list)
    for document in case.documents:
        documents[document.sequence.epoch].append(document)
    numbers = sorted(documents, key=lambda number: -1 if number is None else number)
    pairings: list[Pairing] = []
    first, seen = list[Pair](), set[int]()
    for number in numbers:
        pairing = pair(documents[number], list(case.rows), case.recipe.terms)
        new = {each.row.index for each in pairing.pairs} - seen
        first += [each for each in (*pairing.pairs, *pairing.repeated) if each.row.index in new]
        seen |= new
        pairings.append(pairing)
        progress(len(pairings), len(numbers), "comparing recorded rows with the reference")
    never = tuple(row for row in case.rows if row.index not in seen)
    return Epochs(tuple(numbers), tuple(pairings), tuple(first), never)
