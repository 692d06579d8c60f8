"""Labels and stop tokens of all rows."""

from collections import defaultdict

from checks.conversations.labels import LabelledRow, label_problems, stop_problems, undecided_problems
from checks.conversations.loss_edges import (
    negative_problems,
    outside_problems,
    unlabelled,
    unlabelled_problems,
    weight_notes,
    weight_problems,
)
from checks.conversations.marks import mark_notes, mark_problems, uneven_problems
from checks.conversations.rows_case import Epochs, Rows
from checks.conversations.wrapped_part import first_token_notes
from checks.references.expected import EITHER, MUST, STOP, Turn
from checks.references.spans import Stop
from checks.verdict import Coverage, Measurement, Outcome, Part, part_of


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
    problems = [
        *negative_problems(case),
        *weight_problems(case),
        *outside_problems(case, epochs),
        *unlabelled_problems(epochs),
    ]
    for row in rows:
        problems += label_problems(row, case.tokenizer)
        problems += undecided_problems(row)
        problems += mark_problems(row, case.recipe)
    problems += uneven_problems(rows, case.recipe)
    turns = [
        turn for row in rows for turn in row.pair.row.turns if turn.supervised and turn.tokens[0] < row.kept
    ]
    decided = sum(turn.decided for turn in turns)
    unread = sum(turn.supervised for each in unlabelled(epochs) for turn in each.row.turns)
    notes = (
        [f"{len(turns) - decided} of {len(turns)} supervised turns are undecided"]
        if len(turns) > decided
        else []
    )
    if len(rows) < total:
        notes.append(
            f"{total - len(rows)} rows are not judged here: their ids differ or are not known, or they hold "
            "no labels"
        )
    notes += case.recipe.notes
    notes += first_token_notes(case)
    if first := sum(row.pair.row.mask[at] in (MUST, STOP) for row in rows for at in row.cuts):
        notes.append(f"{first:,} tokens to be supervised begin a piece of a split row: nothing predicts them")
    notes += [*weight_notes(rows), *mark_notes(case)]
    if either := sum(int((row.supervised & (row.mask == EITHER)).sum()) for row in rows):
        notes.append(f"{either} supervised tokens may be so or not: text after a stop token, a next header")
    return part_of(
        "labels",
        problems,
        coverage=Coverage(judged=decided, total=len(turns) + unread, unit="turns"),
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


_NO_STOP = (
    "the release names no stop token (no eos_token_id in generation_config.json, no eos_token in "
    "tokenizer_config.json)"
)


def stop_part(case: Rows, rows: list[LabelledRow], epochs: Epochs) -> Part:
    """Whether every supervised turn teaches the model to stop."""
    total = len(epochs.first) + len(epochs.unexpected)
    if not case.recipe.labelled or not case.recipe.terms.stops:
        return Part(
            name="stop",
            outcome=Outcome.NOT_EVALUATED,
            reason=_NO_STOP if case.recipe.labelled else "the rows hold no labels",
            coverage=Coverage(judged=0, total=total, unit="rows"),
        )
    problems, judged = unlabelled_problems(epochs), 0
    for row in rows:
        found = stop_problems(row, case.recipe.stops_named)
        if found is not None:
            judged += 1
            problems += found
    replaced = sum(
        turn.stop is Stop.REPLACED for row in rows for turn in row.pair.row.turns if turn.supervised
    )
    notes = []
    if judged < len(rows):
        notes.append(
            f"{len(rows) - judged} rows keep no turn whose stop token can be judged (cut, or undecided)"
        )
    if replaced:
        notes.append(f"{replaced} turns whose stop token the template replaces in the history are not judged")
    if not case.recipe.stops_named:
        notes.append("judged by eos: the release's generation_config.json names no stop ids")
    coverage = Coverage(judged=judged, total=total, unit="rows")
    return part_of("stop", problems, coverage=coverage, notes=tuple(notes))
