"""What the attention mask lets a row's tokens see: the whole row, its padding not, no other document."""

from itertools import groupby, pairwise

import numpy as np

from checks.conversations.alignment import Fit
from checks.conversations.labels import place_of
from checks.conversations.pairing import Pair
from checks.conversations.rows_case import Epochs, Rows
from checks.records.documents import Document
from checks.references.expected import ExpectedRow
from checks.verdict import Outcome, Problem


def attention_problems(case: Rows, epochs: Epochs) -> list[Problem]:
    """Of every epoch: tokens that attention leaves out, padding that it may not, numbers that part a row."""
    return [*_hole_problems(case, epochs), *_padding_problems(epochs), *_number_problems(case)]


def _hole_problems(case: Rows, epochs: Epochs) -> list[Problem]:
    """Tokens inside a row that the attention mask hides from the others, in any epoch."""
    rows = {(each.document.sequence.index, each.document.number): each.row for each in epochs.pairs}
    return [
        _hole(case, document, rows.get((document.sequence.index, document.number)), at)
        for document in case.documents
        if (at := document.hole) is not None
    ]


def _hole(case: Rows, document: Document, row: ExpectedRow | None, at: int) -> Problem:
    token = at - document.start
    return Problem(
        code="attention-masked",
        message="the attention mask leaves out a token inside the row",
        place=place_of(document, row, token, row.message_at(token) if row else None),
        expected="attention 1 from the row's first token to its last",
        found=f"attention 0 at {case.tokenizer.words(int(document.sequence.ids[at]))}",
        next_step="mask padding by its place, not by its id: a pad token that is also the stop token hides "
        "every real one",
    )


def _padding_problems(epochs: Epochs) -> list[Problem]:
    """Padding before a row, where the mask covers it, or where none shows that the row does not see it."""
    padded = [each for each in epochs.pairs if _is_padded_left(each)]
    return [
        _unmasked(each) if each.document.unmasked else _attended(each)
        for each in padded
        if not _is_numbered_apart(each)
    ]


def _is_numbered_apart(each: Pair) -> bool:
    """Whether the mask gives padding another number than the row, which `_number_problems` tells."""
    attention = each.document.sequence.attention
    return attention is not None and bool(attention[each.document.start] != attention[each.body[0]])


def _is_padded_left(each: Pair) -> bool:
    return each.alignment.fit not in (Fit.DIFFERS, Fit.EMPTY) and each.body[0] > each.document.start


def _unmasked(each: Pair) -> Problem:
    return Problem(
        code="padding-unmasked",
        outcome=Outcome.NOT_EVALUATED,
        message="padding lies before the row, and no attention mask is recorded: nothing shows that its "
        "tokens do not see it",
        place=place_of(each.document, each.row),
        expected="an attention mask that is 0 there",
        found="no attention mask",
        next_step="record attention_mask with the rows; a trainer that gives the model none has to pad on "
        "the right",
    )


def _attended(each: Pair) -> Problem:
    padding = each.body[0] - each.document.start
    return Problem(
        code="padding-attended",
        message=f"{padding} token(s) of padding lie before the row under an attention mask that is not "
        "0: every token of the row sees them",
        place=place_of(each.document, each.row),
        expected="an attention mask that is 0 there",
        found=f"attention {_number(each.document)}",
        next_step="let the mask be 0 where the row is padded, or pad on the right",
    )


def _number_problems(case: Rows) -> list[Problem]:
    """Masks that number documents (1, 2, 3, ...), as kernels for packed rows read them.

    Others read every number but 0 as attended; which of the two read it is not recorded, so what is numbered
    wrongly decides nothing. Slices of wrapped packing are numbered by themselves.
    """
    if case.recipe.packing == "wrapped":
        return []
    problems = []
    for _, group in groupby(case.laid, key=lambda document: document.sequence.index):
        documents = list(group)
        attention = documents[0].sequence.attention
        if attention is None or not ((attention != 0) & (attention != 1)).any():
            continue
        problems += [problem for each in documents if (problem := _parted(each))]
        problems += [
            _together(right) for left, right in pairwise(documents) if _number(left) == _number(right)
        ]
    return problems


def _number(document: Document) -> int:
    attention = document.sequence.attention
    return 1 if attention is None else int(attention[document.start])


def _parted(document: Document) -> Problem | None:
    attention = document.sequence.attention
    if attention is None:
        return None
    seen = attention[document.start : document.end]
    other = np.flatnonzero((seen != 0) & (seen != _number(document)))
    if len(other) == 0:
        return None
    at = int(other[0])
    return _numbered(
        document,
        at,
        "the attention mask numbers one row's tokens as two documents",
        f"{_number(document)} from the row's first token to its last",
        str(int(seen[at])),
    )


def _together(document: Document) -> Problem:
    return _numbered(
        document,
        0,
        "the attention mask gives this document the number of the one before it",
        "a number of its own",
        str(_number(document)),
    )


def _numbered(document: Document, token: int, message: str, expected: str, found: str) -> Problem:
    return Problem(
        code="attention-misnumbered",
        outcome=Outcome.INCONCLUSIVE,
        message=f"{message}: kernels for packed rows part what is numbered otherwise, others read every "
        "number but 0 as attended",
        place=place_of(document, None, token),
        expected=expected,
        found=found,
        next_step="number each packed document by itself, from first token to last, or write 0 and 1",
    )
