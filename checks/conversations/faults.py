"""The faults that the data check injects into a copy of its smallest slice (design: the data check)."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from checks.check import InjectedFault, NotApplicable
from checks.conversations.alignment import align
from checks.conversations.labels import LabelledRow, labelled
from checks.conversations.pairing import Pair, pair
from checks.conversations.rows_case import Rows
from checks.conversations.wrapping import Unwrapped
from checks.records.documents import Document
from checks.records.rows import IGNORED, Sequence
from checks.references.expected import MUST, MUST_NOT
from checks.references.spans import Stop


def _pairs(case: Rows) -> list[Pair]:
    first = min((d.sequence.epoch for d in case.documents if d.sequence.epoch is not None), default=None)
    documents = [d for d in case.documents if d.sequence.epoch == first]
    return list(pair(documents, list(case.rows), case.recipe.terms).pairs)


def _with_sequence(case: Rows, old: Sequence, new: Sequence, change: Callable[[Document], Document]) -> Rows:
    """The case with one sequence exchanged in every document of it."""

    def exchanged(documents: tuple[Document, ...]) -> tuple[Document, ...]:
        return tuple(
            change(replace(document, sequence=new)) if document.sequence is old else document
            for document in documents
        )

    return replace(case, documents=exchanged(case.documents), recorded=exchanged(case.recorded))


def _with_labels(case: Rows, row: LabelledRow, on: np.ndarray, value: bool) -> Rows:
    """The case with labels switched on or off at places of a row (from the start of its padding)."""
    document = row.pair.document
    sequence = document.sequence
    if sequence.labels is None:
        raise NotApplicable("the rows hold no labels")
    labels = sequence.labels.copy()
    places = np.flatnonzero(on) + document.low
    labels[places] = sequence.ids[places] if value else IGNORED
    weights = None
    if sequence.weights is not None:
        weights = sequence.weights.copy()
        weights[places] = 1.0 if value else weights[places]
    return _with_sequence(case, sequence, replace(sequence, labels=labels, weights=weights), lambda d: d)


def _labelled_rows(case: Rows) -> list[LabelledRow]:
    if not case.recipe.labelled:
        raise NotApplicable("the rows hold no labels")
    return [row for each in _pairs(case) if (row := labelled(each)) is not None]


def _stop_unlabelled(case: Rows) -> Rows:
    if not case.recipe.terms.stops:
        raise NotApplicable("the release names no stop token")
    for row in _labelled_rows(case):
        for turn in row.pair.row.turns:
            position = turn.stop_token
            if turn.stop in (Stop.IN_TURN, Stop.NEXT_HEADER) and position is not None and position < row.kept:
                on = np.zeros(len(row.labels), dtype=bool)
                on[position + row.origin] = True
                if turn.supervised and turn.decided and row.supervised[on].all():
                    return _with_labels(case, row, on, value=False)
    raise NotApplicable("no row of the slice has a supervised stop token")


def _user_turn_supervised(case: Rows) -> Rows:
    for row in _labelled_rows(case):
        for message, start, end in row.pair.row.bodies:
            if row.pair.row.roles[message] != "user" or end > row.kept:
                continue
            on = np.zeros(len(row.labels), dtype=bool)
            on[start + row.origin : end + row.origin] = True
            if (row.mask[on] == MUST_NOT).all() and not row.supervised[on].any():
                return _with_labels(case, row, on, value=True)
    raise NotApplicable("no row of the slice has an unsupervised user turn that the sentinels place")


def _labels_off_by_one(case: Rows) -> Rows:
    for row in _labelled_rows(case):
        sequence = row.pair.document.sequence
        if sequence.labels is None or not ((row.mask == MUST) & row.supervised).any():
            continue
        labels = sequence.labels.copy()
        low, high = row.pair.document.low, row.pair.document.high
        labels[low : high - 1], labels[high - 1] = sequence.labels[low + 1 : high], IGNORED
        weights = None if sequence.weights is None else np.ones_like(sequence.weights)
        moved = replace(sequence, labels=labels, weights=weights)
        found = labelled(replace(row.pair, document=replace(row.pair.document, sequence=moved)))
        if found is not None and (found.labels[found.supervised] != found.ids[found.supervised]).any():
            return _with_sequence(case, sequence, moved, lambda document: document)
    raise NotApplicable("no row of the slice has supervised tokens that differ from their neighbours")


def _doubled_bos(case: Rows) -> Rows:
    for each in _pairs(case):
        ids = each.row.ids
        if len(ids) < 2 or int(ids[0]) not in case.tokenizer.added:
            continue
        sequence = _doubled(each)
        document = replace(
            each.document, sequence=sequence, end=each.document.end + 1, high=each.document.high + 1
        )
        if align(document, each.row, case.recipe.terms).fit is not each.alignment.fit:
            return _with_sequence(case, each.document.sequence, sequence, _moved_from(each.document))
    raise NotApplicable("no row of the slice begins with a control token")


def _moved_from(doubled: Document) -> Callable[[Document], Document]:
    """Documents behind the doubled token move by one."""

    def move(document: Document) -> Document:
        if document.number < doubled.number:
            return document
        inside = 0 if document.number == doubled.number else 1
        return replace(
            document,
            low=document.low + inside,
            start=document.start + inside,
            end=document.end + 1,
            high=document.high + 1,
        )

    return move


def _doubled(each: Pair) -> Sequence:
    sequence, at = each.document.sequence, each.alignment.first

    def doubled(values: np.ndarray | None, new: int | None = None) -> np.ndarray | None:
        return None if values is None else np.insert(values, at, values[at] if new is None else new)

    lengths, number = sequence.lengths, each.document.number
    if lengths is not None and number < len(lengths):  # the last document may be left without a length
        lengths = (*lengths[:number], lengths[number] + 1, *lengths[number + 1 :])
    ids = np.insert(sequence.ids, at, sequence.ids[at])
    return replace(
        sequence,
        ids=ids,
        labels=doubled(sequence.labels, IGNORED),
        attention=doubled(sequence.attention),
        positions=doubled(sequence.positions),
        weights=doubled(sequence.weights),
        lengths=lengths,
    )


def _dropped_row(case: Rows) -> Rows:
    pairs = _pairs(case)
    if not pairs:
        raise NotApplicable("the slice has no row")
    document = pairs[-1].document
    kept = tuple(each for each in case.documents if each is not document)
    return replace(case, documents=kept)


def _boundary_ignored(case: Rows) -> Rows:
    for document in case.laid:
        sequence = document.sequence
        if document.number == 0 or sequence.positions is None or case.recipe.packing == "none":
            continue
        positions = np.arange(len(sequence.ids), dtype=np.int32)
        return _with_sequence(case, sequence, replace(sequence, positions=positions), lambda each: each)
    raise NotApplicable("the slice has no packed sequence with position ids")


def _one_shorter(document: Document) -> Document:
    return replace(document, end=document.end - 1, high=document.high - 1)


def _token_lost_at_the_cut(case: Rows) -> Rows:
    for document in case.documents:
        sequence = document.sequence
        if not isinstance(sequence, Unwrapped) or len(sequence.pieces) < 2:
            continue
        cut = sequence.pieces[1][0]
        shorter = replace(
            sequence,
            ids=np.delete(sequence.ids, cut),
            labels=None if sequence.labels is None else np.delete(sequence.labels, cut),
            attention=None if sequence.attention is None else np.delete(sequence.attention, cut),
            weights=None if sequence.weights is None else np.delete(sequence.weights, cut),
        )
        return _with_sequence(case, sequence, shorter, _one_shorter)
    raise NotApplicable("the slice has no row that packing cut across sequences")


def _attention_hole(case: Rows) -> Rows:
    for each in _pairs(case):
        sequence, (start, end) = each.document.sequence, each.body
        if end - start < 3:
            continue
        attention = np.ones(len(sequence.ids), dtype=np.int32)
        attention = attention if sequence.attention is None else sequence.attention.copy()
        attention[start + 1] = 0
        return _with_sequence(case, sequence, replace(sequence, attention=attention), lambda each: each)
    raise NotApplicable("the slice has no row of three tokens")


FAULTS = (
    InjectedFault("stop token unlabelled", "stop", "stop-unlabelled", _stop_unlabelled),
    InjectedFault("user turn supervised", "labels", "token-wrongly-supervised", _user_turn_supervised),
    InjectedFault("labels off by one", "labels", "labels-shifted", _labels_off_by_one),
    InjectedFault("doubled BOS", "ids/content", "double-bos", _doubled_bos),
    InjectedFault("row dropped", "ids/content", "row-missing", _dropped_row),
    InjectedFault("token left out of attention", "ids/content", "attention-masked", _attention_hole),
    InjectedFault("packed boundary ignored", "ids/packing", "boundary-ignored", _boundary_ignored),
    InjectedFault("token lost where a row is cut", "ids/content", "content-differs", _token_lost_at_the_cut),
)
