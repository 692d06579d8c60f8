"""Token ids: content, order, truncation and coverage of one epoch."""

import numpy as np

from checks.conversations.alignment import Fit
from checks.conversations.attention import attention_problems
from checks.conversations.labels import place_of
from checks.conversations.pairing import Pair, Pairing
from checks.conversations.rows_case import Epochs, Rows, comparable, not_here
from checks.conversations.wrapped_part import repeated_problems
from checks.records.documents import Document
from checks.references.expected import MUST, STOP, ExpectedRow, describe
from checks.verdict import Coverage, Measurement, Outcome, Part, Place, Problem, part_of

_ROWS_LOOKED_THROUGH = 64
"""Rows searched for a piece without the others; it changes only what the problem says."""


def content_part(case: Rows, epochs: Epochs) -> Part:
    """Whether each recorded row is a row of the workload, token by token, and each of those is recorded."""
    limit = case.recipe.terms.max_length
    left_out = [row for row in epochs.never if not row.problem and _is_empty_when_cut(row, limit)]
    lost = _missing_anywhere(epochs) if case.recorded else []
    problems = [_piece(document, lost) or _unexpected(document) for document in epochs.unexpected]
    problems += [_missing(row) for row in epochs.never if row not in left_out]
    problems += [problem for each in epochs.first if (problem := _content_problem(case, each))]
    problems += attention_problems(case, epochs)
    rows = [each.row for each in epochs.first] + list(epochs.never)
    judged = sum(not row.problem for row in rows) + len(epochs.unexpected)
    notes = [f"{len(left_out)} rows left out whose supervised tokens are all cut"] if left_out else []
    if padded := sum(_is_padding_attended(each) for each in epochs.first):
        notes.append(f"{padded} rows end in unlabelled padding that the attention mask covers")
    return part_of(
        "ids/content",
        problems,
        coverage=Coverage(judged=judged, total=len(rows) + len(epochs.unexpected), unit="rows"),
        notes=tuple(notes),
    )


def _is_padding_attended(each: Pair) -> bool:
    return comparable(each) and not each.document.unmasked and each.body[1] < each.document.end


def _missing(row: ExpectedRow) -> Problem:
    if row.problem:
        return _not_rendered(row, Place(row=row.index))
    return Problem(
        code="row-missing",
        message="a row of the workload is in no recorded epoch",
        place=Place(row=row.index),
        next_step="if the rows are a sample, give the same sample of the workload",
    )


def _not_rendered(row: ExpectedRow, place: Place) -> Problem:
    return Problem(
        code="not-rendered",
        outcome=Outcome.INCONCLUSIVE,
        message=f"the release's template gives no text for this row: {row.problem}",
        place=place,
    )


def _unexpected(document: Document) -> Problem:
    named = f" (it names row {document.row})" if document.row is not None else ""
    return Problem(
        code="row-unexpected",
        message=f"a recorded row is no row of the workload{named}",
        place=place_of(document, None),
        next_step="give the workload these rows were made from; a row_id in each makes the pairing exact",
    )


def _missing_anywhere(epochs: Epochs) -> list[ExpectedRow]:
    """The rows that some epoch lacks, as many as are looked through for pieces."""
    rows = {row.index: row for pairing in epochs.pairings for row in pairing.missing if not row.problem}
    return list(rows.values())[:_ROWS_LOOKED_THROUGH]


def _piece(document: Document, rows: list[ExpectedRow]) -> Problem | None:
    """Of a recipe that splits rows: a document that is a piece of one, the rest of which is lost."""
    for row in rows:
        at = _place_in(row, document)
        if at is not None:
            end = at + len(document.ids)
            return Problem(
                code="row-unexpected",
                message=f"a piece of the row (its tokens {at} to {end}) lacks the others that make it whole",
                place=place_of(document, row, at),
                expected=f"pieces that hold all {len(row.ids)} tokens of the row, each once",
                next_step="look at how the packing splits rows, and at what becomes of each piece",
            )
    return None


def _place_in(row: ExpectedRow, document: Document) -> int | None:
    """The token of a row from which on a document follows it."""
    text, piece = row.ids.tobytes(), document.ids.tobytes()
    at = text.find(piece) if piece else -1
    while at % row.ids.itemsize and at >= 0:
        at = text.find(piece, at + 1)
    return at // row.ids.itemsize if at >= 0 else None


def _content_problem(case: Rows, each: Pair) -> Problem | None:
    fit, document, row = each.alignment.fit, each.document, each.row
    if row.problem:
        return _not_rendered(row, place_of(document, row))
    if fit is Fit.EMPTY:
        return Problem(
            code="row-missing", message="the recorded row holds no token", place=place_of(document, row)
        )
    if fit is Fit.DOUBLE_BOS:
        return Problem(
            code="double-bos",
            message="the row's first control token is there twice",
            place=place_of(document, row, 1),
            expected=describe(case.tokenizer, row.ids[:2]),
            found=describe(case.tokenizer, document.ids[:2]),
        )
    return _difference(case, each) if fit is Fit.DIFFERS else None


def _difference(case: Rows, each: Pair) -> Problem:
    at = each.alignment.differs_at or 0
    wanted = each.row.ids[: case.recipe.terms.max_length][at : at + 4]
    return Problem(
        code="content-differs",
        message="the row's tokens are not those of the release's template and tokenizer",
        place=place_of(each.document, each.row, at, each.row.message_at(at)),
        expected=describe(case.tokenizer, wanted) or "the row ends here",
        found=describe(case.tokenizer, each.document.ids[at : at + 4]) or "the row ends here",
        next_step="compare the template, its arguments and the date with those of inference",
    )


def order_part(case: Rows, epochs: Epochs) -> Part:
    """Whether each rank sees its rows in the workload's order, in every epoch."""
    if case.recipe.shuffle or case.recipe.packing != "none":
        why = "the recipe shuffles rows" if case.recipe.shuffle else "packing may reorder rows"
        return not_here("ids/order", f"{why}: every order is right")
    problems = [problem for pairing in epochs.pairings for problem in _order_problems(pairing)]
    return part_of("ids/order", problems, coverage=_rows_coverage(epochs))


def _order_problems(pairing: Pairing) -> list[Problem]:
    problems, last = [], dict[int, int]()
    for each in sorted(pairing.pairs, key=lambda each: each.document.sequence.index):
        rank = each.document.sequence.rank
        before = last.get(rank, -1)
        if each.row.index < before:
            problems.append(
                Problem(
                    code="order-differs",
                    message=f"row {each.row.index} comes after row {before}",
                    place=place_of(each.document, each.row),
                    next_step="if the recipe shuffles the rows, say so with --shuffle",
                )
            )
        last[rank] = max(each.row.index, before)
    return problems


def _rows_coverage(epochs: Epochs) -> Coverage:
    """A document that fits no row and names none was paired by its place alone: that shows no order."""
    known = {e.row.index for e in epochs.first if comparable(e) or e.document.row is not None}
    total = len({each.row.index for each in epochs.first}) + len(epochs.never)
    return Coverage(judged=len(known), total=total, unit="rows")


def truncation_part(case: Rows, epochs: Epochs) -> Part:
    """Whether rows are cut at the maximum length and nowhere else."""
    limit, problems, cut, judged = case.recipe.terms.max_length, [], 0, 0
    for each in epochs.first:
        judged += comparable(each)
        cut += each.alignment.fit is Fit.CUT
        if each.alignment.fit is Fit.WRONGLY_CUT:
            problems.append(_wrongly_cut(each, limit))
    return part_of(
        "ids/truncation",
        problems,
        coverage=Coverage(judged=judged, total=len(epochs.first), unit="rows"),
        measurements=(Measurement(name="rows cut at the maximum length", value=cut, unit="rows"),),
    )


def _wrongly_cut(each: Pair, limit: int | None) -> Problem:
    length, kept = len(each.row.ids), each.alignment.kept
    return Problem(
        code="truncation-differs",
        message=f"the row has {kept} of its {length} tokens"
        + (", cut on the left" if each.alignment.skipped else ""),
        place=place_of(each.document, each.row, kept),
        expected=f"{length if limit is None else min(limit, length)} tokens",
        found=f"{kept} tokens",
        next_step="if the recipe cuts rows, give its length with --max-length",
    )


def coverage_part(case: Rows, epochs: Epochs) -> Part:
    """Whether each row is there once in every epoch, over all ranks (rows in no epoch: see content)."""
    never = {row.index for row in epochs.never}
    problems = repeated_problems(case)
    for number, pairing in zip(epochs.numbers, epochs.pairings, strict=True):
        problems += [
            Problem(
                code="row-dropped",
                message="a row that another epoch holds is not in this one",
                place=Place(row=row.index, epoch=number),
                next_step="look at the sampler, and at whether the last incomplete batch is dropped",
            )
            for row in pairing.missing
            if row.index not in never
        ]
        problems += [
            Problem(
                code="row-repeated",
                message="a row of the workload is there more than once in one epoch",
                place=place_of(each.document, each.row),
                next_step="if the rows hold several epochs, give each row its `epoch` (a key); a sampler "
                "that fills its ranks (torch's DistributedSampler with drop_last off) repeats the first rows",
            )
            for each in pairing.repeated
        ]
    return part_of("ids/coverage", problems, coverage=_rows_coverage(epochs))


def _is_empty_when_cut(row: ExpectedRow, limit: int | None) -> bool:
    if limit is None or len(row.ids) <= limit:
        return False
    return not np.isin(row.mask[:limit], (MUST, STOP)).any()
