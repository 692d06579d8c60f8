"""What the loss covers in one recorded row, against what the release's template says the model generates."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from checks.conversations.pairing import Pair
from checks.conversations.splitting import Split
from checks.conversations.wrapping import Unwrapped
from checks.records.documents import Document
from checks.records.rows import IGNORED, Sequence
from checks.references.expected import EITHER, MUST, MUST_NOT, STOP, ExpectedRow, Turn
from checks.references.spans import Stop
from checks.references.tokenization import ReleaseTokenizer
from checks.verdict import Outcome, Place, Problem

Bools = npt.NDArray[np.bool_]
_MAX_RUNS = 4


@dataclass(frozen=True, slots=True)
class LabelledRow:
    """A row's labels over its document and the padding around it: what is supervised, and what should be.

    ``mask``: int8, the codes of `checks.references.expected`; ``origin``: where the row's token 0 lies in it.
    ``kept``: how many of the row's tokens are there. ``cuts``: places at which packing split the row, where
    no token of it precedes.
    """

    pair: Pair
    labels: npt.NDArray[np.int32]
    ids: npt.NDArray[np.int32]
    mask: npt.NDArray[np.int8]
    supervised: Bools
    origin: int
    kept: int
    cuts: frozenset[int] = frozenset()

    def place(self, position: int | None = None, turn: int | None = None) -> Place:
        """Where in the row: ``position`` counts from the start of the document's padding."""
        return place_of(
            self.pair.document, self.pair.row, None if position is None else position - self.origin, turn
        )


def place_of(
    document: Document, row: ExpectedRow | None, token: int | None = None, turn: int | None = None
) -> Place:
    """The place of a token of a row in a recorded document."""
    sequence = document.sequence
    inside = document.start + max(token or 0, 0)
    return Place(
        row=row.index if row else document.row,
        sequence=sequence.recorded(inside) if isinstance(sequence, Unwrapped) else sequence.index,
        turn=turn,
        token=None if token is None else max(token, 0),
        epoch=document.sequence.epoch,
        rank=document.sequence.rank or None,
    )


def labelled(pair: Pair) -> LabelledRow | None:
    """The labels of an aligned row; None when its sequence has none."""
    document, alignment = pair.document, pair.alignment
    sequence = document.sequence
    if sequence.labels is None:
        return None
    low, high = document.low, document.high
    mask = np.zeros(high - low, dtype=np.int8)
    origin, kept, skipped = alignment.first - low, alignment.kept, alignment.skipped
    mask[origin : origin + kept] = pair.row.mask[skipped : skipped + kept]
    if alignment.appended:
        mask[origin + kept] = EITHER
    labels = sequence.labels[low:high]
    supervised = sequence.supervised[low:high]
    mask[mask == STOP] = MUST
    cuts = _mask_cuts(sequence, mask)
    return LabelledRow(
        pair, labels, sequence.ids[low:high], mask, supervised, origin - skipped, kept + skipped, cuts
    )


def _mask_cuts(sequence: Sequence, mask: npt.NDArray[np.int8]) -> frozenset[int]:
    """Where packing split the row; the mask is changed there.

    Nothing of the row precedes the first token of a later piece. A label there is without effect at the
    start of a sequence; elsewhere the last token of another document would be taught to predict it.
    """
    if not isinstance(sequence, Split):
        return frozenset()
    for token, is_first in sequence.cuts:
        mask[token] = EITHER if is_first else MUST_NOT
    return frozenset(token for token, _ in sequence.cuts)


def label_problems(row: LabelledRow, tokenizer: ReleaseTokenizer) -> list[Problem]:
    """What is wrong with the labels of one row."""
    must, may = row.mask == MUST, row.mask != MUST_NOT
    if not must.any() and not row.supervised.any():
        return _nothing_to_supervise(row)
    if must.any() and not row.supervised.any():
        return [_none_supervised(row, must)]
    shifted = _shifted(row, must)
    if shifted:
        return [shifted]
    problems = _value_problems(row, tokenizer)
    for start, end in runs((row.mask == MUST) & ~row.supervised)[:_MAX_RUNS]:
        problems.append(_missing(row, start, end))
    for start, end in runs(row.supervised & ~may)[:_MAX_RUNS]:
        problems.append(_unwanted(row, start, end))
    return problems


def _nothing_to_supervise(row: LabelledRow) -> list[Problem]:
    whole = row.pair.row.mask
    if row.kept >= len(whole) or not ((whole == MUST) | (whole == STOP)).any():
        return []
    return [
        Problem(
            code="no-supervised-token",
            message="the maximum length cuts every token that the loss should cover "
            f"({row.kept} of {len(whole)} kept)",
            place=row.place(),
            next_step="raise the maximum length or take such rows out of the workload",
        )
    ]


def _none_supervised(row: LabelledRow, must: Bools) -> Problem:
    return Problem(
        code="no-supervised-token",
        message="no token of the row is supervised",
        place=row.place(int(np.flatnonzero(must)[0])),
        expected=f"{int(must.sum())} supervised tokens",
        found="0",
        next_step="see where the mask comes from: frameworks that take it from the chat template need "
        "{% generation %} markers in it",
    )


def _shifted(row: LabelledRow, must: Bools) -> Problem | None:
    """Labels that fit the row exactly when moved by one token."""
    own = bool((row.labels[row.supervised] == row.ids[row.supervised]).all())
    for step, words in () if own else ((1, "one ahead of"), (-1, "one behind")):
        values = _moved(row.labels, step)
        on = values >= 0
        if on.any() and (values[on] == row.ids[on]).all():
            return _shift_problem(row, must, f"labels are {words} their tokens", words)
    if not must.any() or _fits(row, must):
        return None
    either = row.mask == EITHER
    for step, words in ((1, "one token early"), (-1, "one token late")):
        on = _moved(row.supervised.astype(np.int32), step, 0) == 1
        if (on | either)[must].all() and not (on & ~must & ~either).any():
            return _shift_problem(row, must, f"the supervised tokens lie {words}", words)
    return None


def _fits(row: LabelledRow, must: Bools) -> bool:
    either = row.mask == EITHER
    return bool(row.supervised[must].all()) and not bool((row.supervised & ~must & ~either).any())


def _moved(values: npt.NDArray[np.int32], step: int, fill: int = IGNORED) -> npt.NDArray[np.int32]:
    moved = np.full_like(values, fill)
    if step > 0:
        moved[step:] = values[:-step]
    else:
        moved[:step] = values[-step:]
    return moved


def _shift_problem(row: LabelledRow, must: Bools, message: str, words: str) -> Problem:
    first = int(np.flatnonzero(must)[0]) if must.any() else 0
    return Problem(
        code="labels-shifted",
        message=message,
        place=row.place(first, _turn_at(row, first)),
        expected="labels aligned with their tokens",
        found=message,
        next_step="if the framework feeds labels that are already shifted, say so with --labels shifted",
    )


def _value_problems(row: LabelledRow, tokenizer: ReleaseTokenizer) -> list[Problem]:
    wrong = row.supervised & (row.labels != row.ids)
    return [
        Problem(
            code="token-wrongly-supervised",
            message=f"the label is another token than the one at its place ({end - start} such labels)",
            place=row.place(start, _turn_at(row, start)),
            expected=tokenizer.words(int(row.ids[start])),
            found=tokenizer.words(int(row.labels[start])),
            next_step="labels are the row's own tokens, or -100: look at what fills them",
        )
        for start, end in runs(wrong)[:1]
    ]


def _missing(row: LabelledRow, start: int, end: int) -> Problem:
    return Problem(
        code="token-not-supervised",
        message=f"{end - start} generated token(s) of the turn are not supervised",
        place=row.place(start, _turn_at(row, start)),
        expected="supervised",
        found="not supervised",
        next_step="look at where the framework's mask of this turn begins and ends",
    )


def _unwanted(row: LabelledRow, start: int, end: int) -> Problem:
    token = start - row.origin
    message = _message_in(row, token, end - row.origin)
    inside = 0 <= token < row.kept
    if row.cuts.issuperset(range(start, end)):
        what = "the start of a later piece, which the document before it in the sequence would predict,"
    elif not inside:
        what = "padding (or of text beyond the conversation)"
    elif message is None:
        what = "text that the template writes (a header or a separator)"
    else:
        role = row.pair.row.roles[message]
        what = f"{'an' if role[:1] in tuple('aeiou') else 'a'} {role} turn"
    return Problem(
        code="token-wrongly-supervised",
        message=f"{end - start} token(s) of {what} are supervised",
        place=row.place(start, message),
        expected="not supervised",
        found="supervised",
        next_step="the loss covers what the model generates: leave this out of the framework's mask",
    )


def _message_in(row: LabelledRow, start: int, end: int) -> int | None:
    """The first message that has a token in [start, end); None in the text between messages."""
    return next(
        (at for token in range(start, end) if (at := row.pair.row.message_at(token)) is not None), None
    )


def _turn_at(row: LabelledRow, position: int) -> int | None:
    return row.pair.row.message_at(position - row.origin)


def runs(flags: Bools) -> list[tuple[int, int]]:
    """[start, end) of each run of true values."""
    if not flags.any():
        return []
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return [(int(start), int(end)) for start, end in zip(edges[0::2], edges[1::2], strict=True)]


def undecided_problems(row: LabelledRow) -> list[Problem]:
    """One for each turn to be supervised that the references do not decide."""
    return [
        Problem(
            code="undecided-turn",
            outcome=Outcome.INCONCLUSIVE,
            message=turn.reason,
            place=row.place(turn.tokens[0] + row.origin, turn.message),
            next_step="train such a turn as the last one of its own row, or supervise the last turn only",
        )
        for turn in row.pair.row.turns
        if turn.supervised and not turn.decided and turn.tokens[0] < row.kept
    ]


def stop_problems(row: LabelledRow, stops_named: bool) -> list[Problem] | None:
    """Turns that never teach the model to stop; None when the row has no turn whose stop can be judged.

    Where the release's generation_config.json names no stop ids, only eos is known to stop: a turn without
    any is then inconclusive.
    """
    turns = [turn for turn in row.pair.row.turns if turn.supervised and turn.decided]
    judged = [
        turn
        for turn in turns
        if (at := _stop_position(row, turn)) not in row.cuts and (at is not None or _lacks_stop(row, turn))
    ]
    if not judged:
        return None
    problems = []
    for turn in judged:
        position = _stop_position(row, turn)
        if position is None or not row.supervised[position]:
            problem = _never_stops(row, turn, position)
            unsure = position is None and not stops_named
            problems.append(_unsure_of_stops(problem) if unsure else problem)
    return problems


def _stop_position(row: LabelledRow, turn: Turn) -> int | None:
    """Where the turn's stop token lies in the labels; None when it has none here or it was cut off."""
    if (
        turn.stop in (Stop.IN_TURN, Stop.NEXT_HEADER)
        and turn.stop_token is not None
        and turn.stop_token < row.kept
    ):
        return turn.stop_token + row.origin
    if turn.stop is Stop.NONE and row.pair.alignment.appended and turn is row.pair.row.turns[-1]:
        return row.kept + row.origin
    return None


def _lacks_stop(row: LabelledRow, turn: Turn) -> bool:
    """Whether the whole turn is there and nothing after it stops it."""
    return turn.stop is Stop.NONE and turn.tokens[1] <= row.kept and len(row.pair.row.ids) <= row.kept


def _never_stops(row: LabelledRow, turn: Turn, position: int | None) -> Problem:
    return Problem(
        code="stop-unlabelled",
        message="the turn never teaches the model to stop: "
        + ("its stop token is not supervised" if position is not None else "no stop token follows it"),
        place=row.place(turn.tokens[1] - 1 + row.origin if position is None else position, turn.message),
        expected="a supervised stop token",
        found="not supervised" if position is not None else "none",
        next_step="let the mask of each reply cover the token that ends it; a pad token that is also the "
        "stop token is often masked with the padding",
    )


def _unsure_of_stops(problem: Problem) -> Problem:
    changes = {
        "outcome": Outcome.INCONCLUSIVE,
        "message": "the release's generation_config.json names no stop ids, and its eos token does not "
        "follow the turn",
        "next_step": "give the release a generation_config.json whose eos_token_id names what ends a reply",
    }
    return problem.model_copy(update=changes)
