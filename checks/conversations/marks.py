"""Messages of the workload that say what they weigh in the loss, against what the rows' loss covers."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from checks.conversations.labels import LabelledRow
from checks.conversations.rows_case import Recipe, Rows
from checks.references.expected import MUST, MarkedTurn
from checks.rules import LOSS_WEIGHT_ROUNDING
from checks.verdict import Outcome, Problem

Floats = npt.NDArray[np.float64]
_WHICH = (
    "say with --supervise marked that the framework reads such fields, or with --supervise all that the "
    "recipe supervises every reply whatever they say"
)


def mark_problems(row: LabelledRow, recipe: Recipe) -> list[Problem]:
    """What the rows do with a message's own weight, where neither the recipe nor the release decides it."""
    if recipe.supervise in ("all", "last"):
        return []
    return [problem for turn in _marked(row) if (problem := _mark_problem(row, turn, recipe))]


def _marked(row: LabelledRow) -> Iterator[MarkedTurn]:
    return (turn for turn in row.pair.row.marked if turn.tokens[0] < row.kept)


def _mark_problem(row: LabelledRow, turn: MarkedTurn, recipe: Recipe) -> Problem | None:
    start, end = (max(each + row.origin, 0) for each in turn.tokens)
    on = int(row.supervised[start:end].sum())
    if turn.is_unclear:
        what = "which of its tokens the loss then covers, the release does not say"
    elif turn.mark.weight == 0 and on and recipe.supervise is None:
        what = "its tokens are supervised, as if the framework did not read it"
    else:
        return None
    return Problem(
        code="mark-undecided",
        outcome=Outcome.INCONCLUSIVE,
        message=f"the workload's message says {turn.mark}: {what}",
        place=row.place(start, turn.message),
        expected=str(turn.mark),
        found=f"{on} of {end - start} tokens supervised",
        next_step=_WHICH,
    )


def mark_notes(case: Rows) -> list[str]:
    """How messages with a weight of their own were taken."""
    kinds = Counter(str(turn.mark) for row in case.rows for turn in row.marked)
    if not kinds:
        return []
    said = ", ".join(f"{count} x {kind}" for kind, count in kinds.most_common(5))
    taken = {
        None: "left out of the loss is taken as right, and so is no other weight than theirs",
        "marked": "followed, as the recipe says",
    }.get(case.recipe.supervise, "not read, as the recipe says")
    return [f"messages of the workload say what they weigh in the loss ({said}): {taken}"]


def uneven_problems(rows: list[LabelledRow], recipe: Recipe) -> list[Problem]:
    """Supervised tokens that weigh otherwise than the others, beyond what their messages say."""
    followed = recipe.supervise in (None, "marked")
    if not any(row.pair.document.sequence.weights is not None or row.pair.row.marked for row in rows):
        return []
    shares = [_shares(row, followed) for row in rows]
    seen = Counter[float]()
    for share in shares:
        values, counts = np.unique(share[~np.isnan(share)], return_counts=True)
        seen.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
    if len(seen) < 2:
        return []
    usual = seen.most_common(1)[0][0]
    says = followed and any(turn.mark.weight for row in rows for turn in _marked(row) if turn.is_reply)
    fails = says and recipe.supervise == "marked"
    return [
        _uneven(row, int(apart[0]), len(apart), usual, says=says, fails=fails)
        for row, share in zip(rows, shares, strict=True)
        if len(apart := np.flatnonzero(np.abs(share - usual) > LOSS_WEIGHT_ROUNDING * usual))
    ]


def _expected(row: LabelledRow, followed: bool) -> Floats:
    """float64[T]: what each token weighs where the usual one weighs 1."""
    expected = np.ones(len(row.ids), dtype=np.float64)
    for turn in _marked(row) if followed else ():
        if turn.is_reply and turn.mark.weight:
            start, end = (max(each + row.origin, 0) for each in turn.tokens)
            expected[start:end] = turn.mark.weight
    return expected


def _recorded(row: LabelledRow) -> Floats:
    document = row.pair.document
    weights = document.sequence.weights
    if weights is None:
        return np.ones(len(row.ids), dtype=np.float64)
    return weights[document.low : document.high].astype(np.float64)


def _shares(row: LabelledRow, followed: bool) -> Floats:
    """float64[T]: recorded weight by expected one of the tokens to be supervised that are; NaN elsewhere."""
    judged = (row.mask == MUST) & row.supervised & np.isfinite(_recorded(row))
    return np.where(judged, _recorded(row) / _expected(row, followed), np.nan)


def _uneven(row: LabelledRow, at: int, count: int, usual: float, *, says: bool, fails: bool) -> Problem:
    expected = usual * float(_expected(row, says)[at])
    return Problem(
        code="weight-differs",
        outcome=Outcome.FAIL if fails else Outcome.INCONCLUSIVE,
        message=f"{count} supervised token(s) of the row weigh otherwise in the loss than "
        + ("their messages say" if says else "the others, and no message of the workload says so"),
        place=row.place(at, row.pair.row.message_at(at - row.origin)),
        expected=f"a weight of {expected:g}",
        found=f"{_recorded(row)[at]:g}",
        next_step="let every supervised token weigh the same; weights that the recipe means stand in the "
        "messages of the workload (weight: ...), read with --supervise marked",
    )
