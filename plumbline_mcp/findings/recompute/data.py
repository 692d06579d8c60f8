"""The question of the check *data*, answered anew: does training see what inference sees, and what is learnt?

Rows that packing cuts into pieces (``wrapped``, or splits of documents) are not put together here: such a
question is answered with what is missing.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from plumbline_mcp.findings.questions import Question, Submission
from plumbline_mcp.findings.recompute.answer import Answer, Flaw, unknown
from plumbline_mcp.findings.recompute.conversations import read_conversations
from plumbline_mcp.findings.recompute.expected_rows import EITHER, MUST, ExpectedRow, Release
from plumbline_mcp.findings.recompute.export_files import read_text
from plumbline_mcp.findings.recompute.laid import Laid, Pairs, Terms, attended, pair
from plumbline_mcp.findings.recompute.reading import Cannot, Record, place_in
from plumbline_mcp.findings.recompute.row_labels import Labelled, place
from plumbline_mcp.findings.recompute.row_record import IGNORED, Document, read_rows, read_run_rows

PARTS = (
    "run", "ids/packing", "ids/content", "ids/order", "ids/truncation", "ids/positions", "ids/coverage",
    "ids/epochs", "labels", "stop",
)  # fmt: skip
"""Rows that are other rows have other labels, and labels that miss a reply miss its stop token too."""


@dataclass(frozen=True)
class _Rows:
    """Recorded documents beside the workload's rows; ``epochs``: pairs of each epoch in order."""

    release: Release
    rows: list[ExpectedRow] = field(repr=False)
    documents: list[Document] = field(repr=False)
    terms: Terms
    settings: dict[str, Any]
    epochs: list[Pairs] = field(repr=False)

    @property
    def first(self) -> list[Laid]:
        """Each row where it is met first, with its repetitions there."""
        seen, found = set[int](), list[Laid]()
        for pairs in self.epochs:
            new = {laid.row.index for laid in pairs.pairs} - seen
            found += [laid for laid in (*pairs.pairs, *pairs.repeated) if laid.row.index in new]
            seen |= new
        return found

    @property
    def never(self) -> list[ExpectedRow]:
        """Rows of the workload that no epoch holds."""
        seen = {laid.row.index for pairs in self.epochs for laid in pairs.pairs}
        return [row for row in self.rows if row.index not in seen]


def recompute(folder: Path, question: Question) -> Submission:
    """Answer the question. Raises `Cannot`."""
    given = question.inputs.get("rows", question.records[0] if question.records else None)
    if not isinstance(given, str):
        raise Cannot("the question names no rows")
    path = place_in(folder, given)
    record = Record.open(path) if (path / "job.json").exists() else None
    answer = Answer(PARTS)
    if record is not None:
        record.refuse_cancelled()
        documents, shifted, ranks = read_run_rows(record)
        answer.add(_run(record, ranks))
        if answer.flaws:
            return answer.submission("")
    else:
        documents, shifted = read_rows(path), False
    rows = _rows(folder, question, record, documents, shifted)
    _judge(answer, rows)
    return answer.submission(f"{len(rows.first)} rows" if rows.first else "")


def _run(record: Record, ranks: set[int]) -> Iterator[Flaw]:
    stopped = []
    for rank in range(record.world_size):
        if not record.ended_well(rank):
            where = {"rank": rank, "file": f"logs/rank-{rank:05d}.err"}
            if record.was_stopped(rank):
                stopped.append(Flaw("run", "rank-stopped", where))
            else:
                yield Flaw("run", "rank-died", where)
        elif rank not in ranks:
            yield unknown("run", "nothing-recorded", f"rank {rank} recorded no rows", rank=rank)
    yield from stopped


def _settings(question: Question, record: Record | None, shifted: bool) -> dict[str, Any]:
    """What decides the right answer: the question's arguments, else what the run was launched with."""
    job = record.settings if record else {}
    names = ("columns", "template_kwargs", "date", "max_length", "packing", "shuffle", "labels", "supervise")
    found = {}
    for name in names:
        asked = question.inputs.get(name)
        found[name] = job.get(name) if asked is None or asked == {} else asked
    if shifted and question.inputs.get("labels") is None:
        found["labels"] = "shifted"
    found["epochs"] = job.get("epochs")
    if isinstance(found["packing"], bool):
        wrapped = job.get("packing_strategy") == "wrapped"
        found["packing"] = (
            "wrapped" if found["packing"] and wrapped else "documents" if found["packing"] else "none"
        )
    if record is not None and found["date"] is None:
        moments = [about.get(key) for about in _exits(record) for key in ("started", "ended")]
        days = {moment[:10] for moment in moments if isinstance(moment, str) and moment}
        found["date"] = days.pop() if len(days) == 1 else None
    return found


def _exits(record: Record) -> list[dict[str, Any]]:
    found = (record.json(name) for name in record.names("exit/rank-"))
    return [about for about in found if isinstance(about, dict)]


def _rows(
    folder: Path, question: Question, record: Record | None, documents: list[Document], shifted: bool
) -> _Rows:
    settings = _settings(question, record, shifted)
    if settings["packing"] == "wrapped":
        raise Cannot("rows that packing slices (wrapped) are not put together here")
    if "model" not in question.files or "workload" not in question.files:
        raise Cannot("the question names no release and workload (files: model, workload)")
    template = question.inputs.get("template")
    source = read_text(place_in(folder, template)) if isinstance(template, str) else None
    arguments = settings["template_kwargs"] or {}
    release = Release(place_in(folder, question.files["model"]), source, dict(arguments), settings["date"])
    conversations = read_conversations(
        place_in(folder, question.files["workload"]), settings["columns"] or {}
    )
    if settings["supervise"] not in ("all", "last") and any(each.is_weighed for each in conversations):
        raise Cannot("messages say what they weigh in the loss (weight, train, ...): not recomputed here")
    last_only = settings["supervise"] == "last"
    rows = [release.row(conversation, last_only=last_only) for conversation in conversations]
    if settings["labels"] == "shifted":
        documents = [_aligned(document) for document in documents]
    limit = settings["max_length"] if type(settings["max_length"]) is int else None
    terms = Terms(limit, release.padding, release.stops, settings["labels"] == "shifted")
    by_epoch = defaultdict(list)
    for document in documents:
        by_epoch[-1 if document.epoch is None else document.epoch].append(document)
    epochs = [pair(by_epoch[number], rows, terms) for number in sorted(by_epoch)]
    found = _Rows(release, rows, documents, terms, settings, epochs)
    if settings["packing"] == "documents":
        packed = all(laid.fits for laid in found.first) and not any(each.unexpected for each in epochs)
        if not packed or any(
            document.attention is None and document.positions is None for document in documents
        ):
            raise Cannot("packed documents that are no whole rows are not put together here")
    return found


def _aligned(document: Document) -> Document:
    """Labels that stand one ahead, put at their own tokens; a label beyond the last names one token more."""
    if document.labels is None or not len(document.labels):
        return document
    if document.count > 1:
        raise Cannot("shifted labels of packed sequences are not recomputed here")
    if document.labels[-1] < 0:
        weights = None if document.weights is None else np.concatenate([[0.0], document.weights[:-1]])
        return replace(document, labels=np.concatenate([[IGNORED], document.labels[:-1]]), weights=weights)
    positions = document.positions
    return replace(
        document,
        ids=np.concatenate([document.ids, document.labels[-1:]]),
        labels=np.concatenate([[IGNORED], document.labels]),
        attention=None
        if document.attention is None
        else np.append(document.attention, document.attention[-1]),
        positions=None if positions is None else np.append(positions, positions[-1] + 1),
        weights=None if document.weights is None else np.concatenate([[0.0], document.weights]),
    )


def _judge(answer: Answer, rows: _Rows) -> None:
    first = rows.first
    for flaws in (_packing(rows), _content(rows, first), _order(rows), _cuts(answer, rows, first)):
        answer.add(flaws)
    answer.add(_positions(rows))
    answer.add(_coverage(rows))
    answer.add(_epochs(rows, first))
    _labels(answer, rows, first)


def _packing(rows: _Rows) -> Iterator[Flaw]:
    if rows.settings["packing"] not in (None, "none"):
        return
    for document in rows.documents:
        if document.count > 1 and document.number == 0:
            yield Flaw("ids/packing", "packing-differs", place(document, None))


def _content(rows: _Rows, first: list[Laid]) -> Iterator[Flaw]:
    for pairs in rows.epochs:
        for document in pairs.unexpected:
            yield Flaw("ids/content", "row-unexpected", place(document, None))
    limit = rows.terms.limit
    for row in rows.never:
        emptied = limit is not None and len(row.ids) > limit and not (row.mask[:limit] == MUST).any()
        if row.problem:
            yield unknown("ids/content", "not-rendered", row.problem, row=row.index)
        elif not emptied:
            yield Flaw("ids/content", "row-missing", {"row": row.index})
    for laid in first:
        yield from _row_content(laid)
    for document in rows.documents:
        start, end = attended(document)
        if document.attention is not None and not document.attention[start:end].all():
            at = start + int(np.flatnonzero(document.attention[start:end] == 0)[0])
            owner = next((laid for p in rows.epochs for laid in p.pairs if laid.document is document), None)
            index = owner.row.index if owner else None
            turn = owner.row.reply_at(at - start) if owner else None
            yield Flaw("ids/content", "attention-masked", place(document, index, at - start, turn))
    yield from _seen_padding(rows)


def _seen_padding(rows: _Rows) -> Iterator[Flaw]:
    """Padding before a row under the attention number of the row itself."""
    for pairs in rows.epochs:
        for laid in (*pairs.pairs, *pairs.repeated):
            attention, (start, _) = laid.document.attention, attended(laid.document)
            if attention is None or not laid.fits or laid.first - (laid.kind == "double-bos") <= start:
                continue
            if attention[start] == attention[laid.first]:
                yield Flaw("ids/content", "padding-attended", place(laid.document, laid.row.index))


def _row_content(laid: Laid) -> Iterator[Flaw]:
    document, row = laid.document, laid.row
    if row.problem:
        yield unknown("ids/content", "not-rendered", row.problem, row=row.index)
    elif laid.kind == "empty":
        yield Flaw("ids/content", "row-missing", place(document, row.index))
    elif laid.kind == "double-bos":
        yield Flaw("ids/content", "double-bos", place(document, row.index, 1))
    elif laid.kind == "differs":
        where = place(document, row.index, laid.at, row.reply_at(laid.at))
        start, _ = attended(document)
        found, wanted = document.ids[start + laid.at :][:4], row.ids[laid.at :][:4]
        yield Flaw("ids/content", "content-differs", where, str(found.tolist()), str(wanted.tolist()))


def _order(rows: _Rows) -> Iterator[Flaw]:
    """Where nothing shuffles or packs, each rank sees its rows in the workload's order."""
    if rows.settings["shuffle"] or rows.settings["packing"] not in (None, "none"):
        return
    for pairs in rows.epochs:
        last: dict[int, int] = {}
        for laid in sorted(pairs.pairs, key=lambda each: each.document.sequence):
            before = last.get(laid.document.rank, -1)
            if laid.row.index < before:
                yield Flaw(
                    "ids/order", "order-differs", place(laid.document, laid.row.index), laid.row.index, before
                )
            last[laid.document.rank] = max(before, laid.row.index)


def _cuts(answer: Answer, rows: _Rows, first: list[Laid]) -> Iterator[Flaw]:
    answer.measured("ids/truncation", "rows cut at the maximum length", sum(e.kind == "cut" for e in first))
    for laid in first:
        if laid.kind == "wrongly-cut":
            size = len(laid.row.ids)
            wanted = size if rows.terms.limit is None else min(size, rows.terms.limit)
            where = place(laid.document, laid.row.index, laid.kept)
            yield Flaw("ids/truncation", "truncation-differs", where, float(laid.kept), float(wanted))


def _positions(rows: _Rows) -> Iterator[Flaw]:
    """Position ids count each row's tokens from 0."""
    laid_of = {id(laid.document): laid for pairs in rows.epochs for laid in (*pairs.pairs, *pairs.repeated)}
    for document in rows.documents:
        if document.positions is None:
            continue
        start, end = attended(document)
        laid = laid_of.get(id(document))
        if laid is not None and laid.fits:
            start = laid.first - (laid.kind == "double-bos")
            end = laid.first + laid.kept + laid.appended
        wrong = np.flatnonzero(document.positions[start:end] != np.arange(end - start))
        if len(wrong):
            at = int(wrong[0])
            packed = document.count > 1
            part, code = (
                ("ids/packing", "boundary-ignored") if packed else ("ids/positions", "positions-differ")
            )
            yield Flaw(
                part, code, place(document, None, at), float(document.positions[start + at]), float(at)
            )


def _coverage(rows: _Rows) -> Iterator[Flaw]:
    never = {row.index for row in rows.never}
    for pairs in rows.epochs:
        number = next((laid.document.epoch for laid in pairs.pairs), None)
        for row in pairs.missing:
            if row.index not in never:
                yield Flaw("ids/coverage", "row-dropped", {"row": row.index, "epoch": number})
        for laid in pairs.repeated:
            yield Flaw("ids/coverage", "row-repeated", place(laid.document, laid.row.index))


def _epochs(rows: _Rows, first: list[Laid]) -> Iterator[Flaw]:
    """Later epochs hold the first one's rows unchanged, as many epochs as the recipe has."""
    asked = rows.settings["epochs"]
    if type(asked) is int and asked != len(rows.epochs):
        yield Flaw("ids/epochs", "epoch-differs", {}, float(len(rows.epochs)), float(asked))
    known: dict[int, Laid] = {}
    for laid in first:
        known.setdefault(laid.row.index, laid)
    for pairs in rows.epochs[1:]:
        for laid in (*pairs.pairs, *pairs.repeated):
            if not all(map(_equal, _body(known[laid.row.index]), _body(laid))):
                yield Flaw("ids/epochs", "epoch-differs", place(laid.document, laid.row.index))


def _body(laid: Laid) -> list[np.ndarray | None]:
    start, end = attended(laid.document)
    if laid.fits:
        start, end = laid.first - (laid.kind == "double-bos"), laid.first + laid.kept + laid.appended
    arrays = (laid.document.ids, laid.document.labels, laid.document.weights)
    return [None if array is None else array[start:end] for array in arrays]


def _equal(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _labels(answer: Answer, rows: _Rows, first: list[Laid]) -> None:
    """Parts ``labels`` and ``stop`` of every row whose tokens are right."""
    if all(document.labels is None for document in rows.documents):
        answer.add([unknown("labels", "labels-missing", "the rows hold no labels")])
        return
    answer.add(_negative(rows))
    answer.add(_weights(rows))
    known = [laid for laid in first if laid.fits and not laid.row.problem]
    for laid in known:
        if laid.document.labels is None:
            where = place(laid.document, laid.row.index)
            answer.add([unknown("labels", "labels-missing", "a row holds no labels", **where)])
    labelled = [Labelled(laid) for laid in known if laid.document.labels is not None]
    wrong = [flaw for one in labelled for flaw in one.flaws()]
    stops = [flaw for one in labelled for flaw in one.stops(rows.release.named)] if rows.release.stops else []
    missed = [flaw.where for flaw in wrong if flaw.code == "token-not-supervised"]
    if len(missed) == len(wrong) and all(where in [flaw.where for flaw in stops] for where in missed):
        answer.first("stop")  # the loss misses stop tokens alone
    answer.add([*wrong, *stops, *_outside(rows, first)])
    answer.add(flaw for one in labelled for flaw in one.undecided())
    if not rows.release.stops:
        answer.add([unknown("stop", "no-stop-known", "the release names no stop token")])
    elif not labelled:
        answer.add([unknown("labels", "nothing-labelled", "no row's labels could be judged")])
    _measure(answer, labelled)


def _negative(rows: _Rows) -> Iterator[Flaw]:
    """Labels that are neither tokens nor the ignored one: one flaw for each sequence that holds some."""
    told = set()
    for document in rows.documents:
        labels = document.labels
        if labels is None or document.sequence in told:
            continue
        wrong = np.flatnonzero((labels < 0) & (labels != IGNORED))
        if len(wrong):
            told.add(document.sequence)
            at = int(wrong[0])
            yield Flaw("labels", "label-negative", place(document, None, at), str(labels[at]))


def _weights(rows: _Rows) -> Iterator[Flaw]:
    """Weights that no loss can use."""
    for document in rows.documents:
        weights = document.weights
        if weights is not None and not (np.isfinite(weights) & (weights >= 0)).all():
            at = int(np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))[0])
            yield Flaw("labels", "weight-invalid", place(document, None, at), str(weights[at]))
    used = [
        document.weights[document.supervised] for document in rows.documents if document.weights is not None
    ]
    each = np.concatenate(used) if used else np.ones(0)
    if len(each) and not each.max() <= each.min() * (1 + 2**-22):
        why = f"supervised tokens weigh from {each.min():g} to {each.max():g}, and nothing here says why"
        yield unknown("labels", "weight-differs", why)


def _measure(answer: Answer, labelled: list[Labelled]) -> None:
    answer.measured("labels", "rows", len(labelled))
    answer.measured("labels", "supervised tokens", sum(int(one.on.sum()) for one in labelled))
    loose = sum(int((one.on & (one.mask == EITHER)).sum()) for one in labelled)
    answer.measured("labels", "supervised tokens accepted either way", loose)
    undecided = sum(any(r.supervised and r.reason for r in one.laid.row.replies) for one in labelled)
    answer.measured("labels", "rows with an undecided turn", undecided)


def _outside(rows: _Rows, first: list[Laid]) -> Iterator[Flaw]:
    """Supervised padding in the epochs after the first, whose own rows were looked at whole."""
    judged = {id(laid.document) for laid in first}
    for pairs in rows.epochs:
        for laid in (*pairs.pairs, *pairs.repeated):
            document = laid.document
            if id(document) in judged or not laid.fits:
                continue
            on = document.supervised.copy()
            on[laid.first - (laid.kind == "double-bos") : laid.first + laid.kept + laid.appended] = False
            if on.any():
                at = int(np.flatnonzero(on)[0])
                yield Flaw("labels", "token-wrongly-supervised", place(document, None, at))
