"""Labels and stop tokens of all rows."""

from collections import defaultdict

from checks.conversations.labels import LabelledRow, label_problems, stop_problems, undecided_problems
from checks.conversations.rows_case import Epochs, Rows, not_here
from checks.references.expected import EITHER, Turn
from checks.references.spans import Stop
from checks.verdict import Coverage, Measurement, Outcome, Part, Problem, part_of


def labels_part(case: Rows, rows: list[LabelledRow], epochs: Epochs) -> Part:
    """Whether the loss covers what the model generates and nothing else."""
    total = len(epochs.first) + len(epochs.unexpected)
    if not case.recipe.labelled:
        return Part(
            name="labels",
            outcome=Outcome.NOT_EVALUATED,
            reason="the rows hold no labels",
            coverage=Coverage(judged=0, total=total, unit="rows"),
        )
    problems: list[Problem] = []
    for row in rows:
        problems += label_problems(row)
        problems += undecided_problems(row)
    turns = [
        turn for row in rows for turn in row.pair.row.turns if turn.supervised and turn.tokens[0] < row.kept
    ]
    decided = sum(turn.decided for turn in turns)
    notes = (
        [f"{len(turns) - decided} of {len(turns)} supervised turns are undecided"]
        if len(turns) > decided
        else []
    )
    if len(rows) < total:
        notes.append(f"{total - len(rows)} rows are not judged here: their ids differ or are not known")
    return part_of(
        "labels",
        problems,
        coverage=Coverage(judged=decided, total=len(turns), unit="turns"),
        measurements=_label_measurements(rows, turns),
        notes=tuple(notes),
    )


def _label_measurements(rows: list[LabelledRow], turns: list[Turn]) -> tuple[Measurement, ...]:
    reasons: dict[str, int] = defaultdict(int)
    for turn in turns:
        if not turn.decided:
            reasons[turn.reason] += 1
    supervised = sum(int(row.supervised.sum()) for row in rows)
    open_tokens = sum(int((row.supervised & (row.mask == EITHER)).sum()) for row in rows)
    conversations = sum(any(t.supervised and not t.decided for t in row.pair.row.turns) for row in rows)
    return (
        Measurement(name="rows", value=len(rows), unit="rows"),
        Measurement(name="supervised tokens", value=supervised, unit="tokens"),
        Measurement(name="supervised tokens accepted either way", value=open_tokens, unit="tokens"),
        Measurement(
            name="turns confirmed by the second reference",
            value=sum(t.confirmed for t in turns),
            unit="turns",
        ),
        Measurement(name="rows with an undecided turn", value=conversations, unit="rows"),
        *(
            Measurement(name="undecided turns", value=count, unit="turns", where=reason[:200])
            for reason, count in sorted(reasons.items(), key=lambda item: -item[1])[:10]
        ),
    )


def stop_part(case: Rows, rows: list[LabelledRow], epochs: Epochs) -> Part:
    """Whether every supervised turn teaches the model to stop."""
    if not case.recipe.stop_has_a_part:
        return not_here(
            "stop", "the release's generation_config.json names no stop ids; the labels part covers eos"
        )
    total = len(epochs.first) + len(epochs.unexpected)
    if not case.recipe.labelled:
        return Part(
            name="stop",
            outcome=Outcome.NOT_EVALUATED,
            reason="the rows hold no labels",
            coverage=Coverage(judged=0, total=total, unit="rows"),
        )
    problems, judged = [], 0
    for row in rows:
        found = stop_problems(row)
        if found is not None:
            judged += 1
            problems += found
    replaced = sum(
        turn.stop is Stop.REPLACED for row in rows for turn in row.pair.row.turns if turn.supervised
    )
    notes = (
        (f"{replaced} turns whose stop token the template replaces in the history are not judged",)
        if replaced
        else ()
    )
    return part_of("stop", problems, coverage=Coverage(judged=judged, total=total, unit="rows"), notes=notes)
