"""Scores a scan against its fault entry: found at its place, missed, elsewhere, or a false alarm."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase

from checks.verdict import Frozen, Outcome, Part, Verdict
from plumbline_mcp.scan.fault_entries import Expected, FaultEntry
from plumbline_mcp.scan.scanning import Scanned


class Score(StrEnum):
    """What became of an entry."""

    FOUND = "found"
    QUIET = "quiet"
    MISSED = "missed"
    WRONG_PLACE = "wrong place"
    EXTRA = "found, and more"
    FALSE_ALARM = "false alarm"
    UNDECIDED = "undecided"
    NOT_PLAYED = "not played"


GOOD = (Score.FOUND, Score.QUIET)
"""Scores of an entry that came out as it should."""


class EntryResult(Frozen):
    """One played entry."""

    id: str
    clean: bool
    pattern: int
    score: Score
    expected: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    reason: str = ""
    outcomes: dict[str, Outcome] = {}
    verdicts: tuple[str, ...] = ()
    seconds: float = 0.0


def score(entry: FaultEntry, scanned: Scanned, seconds: float = 0.0) -> EntryResult:
    """Compare what a scan found with what its entry expects."""
    verdicts = scanned.verdicts
    seen = (*_refusal(scanned), *_failures(verdicts))
    extra = tuple(text for text in _unexpected(entry, scanned))
    return EntryResult(
        id=entry.id,
        clean=entry.clean,
        pattern=entry.pattern,
        score=_clean_score(scanned) if entry.clean else _fault_score(entry, scanned, extra),
        expected=(
            *((f"dry_run: {entry.refused}",) if entry.refused else ()),
            *(str(expected) for expected in entry.expect),
        ),
        seen=seen,
        extra=extra,
        reason=_reason(scanned),
        outcomes={verdict.check: verdict.outcome for verdict in verdicts},
        verdicts=tuple(verdict.id for verdict in verdicts),
        seconds=round(seconds, 1),
    )


def _clean_score(scanned: Scanned) -> Score:
    outcomes = {verdict.outcome for verdict in scanned.verdicts}
    if Outcome.FAIL in outcomes or _refusal(scanned):
        return Score.FALSE_ALARM
    judged = bool(outcomes) or scanned.dry_run is not None
    return Score.QUIET if judged and outcomes <= {Outcome.PASS} else Score.UNDECIDED


def _fault_score(entry: FaultEntry, scanned: Scanned, extra: tuple[str, ...]) -> Score:
    met = [_met(expected, scanned.verdicts) for expected in entry.expect]
    if entry.refused:
        met.append(_met_refusal(entry.refused, scanned))
    if Score.MISSED in met:
        return Score.MISSED
    if Score.WRONG_PLACE in met:
        return Score.WRONG_PLACE
    return Score.EXTRA if extra else Score.FOUND


def _met_refusal(wanted: str, scanned: Scanned) -> Score:
    said = _refusal(scanned)
    if not said:
        return Score.MISSED
    return Score.FOUND if fnmatchcase(said[0], f"*{wanted}*") else Score.WRONG_PLACE


def _refusal(scanned: Scanned) -> tuple[str, ...]:
    """The sentence of a dry run that failed."""
    failed = scanned.dry_run is not None and not scanned.dry_run.started
    return (f"dry_run: {scanned.dry_run.sentence}",) if failed and scanned.dry_run else ()


def _met(expected: Expected, verdicts: Sequence[Verdict]) -> Score:
    """`FOUND`, `WRONG_PLACE` (the code elsewhere) or `MISSED`."""
    places = [
        problem.place
        for verdict in verdicts
        if verdict.check == expected.check
        for part, problem in verdict.problems()
        if (part, problem.code, problem.outcome) == (expected.part, expected.code, expected.outcome)
    ]
    if any(expected.holds_at(place) for place in places):
        return Score.FOUND
    return Score.WRONG_PLACE if places else Score.MISSED


def _unexpected(entry: FaultEntry, scanned: Scanned) -> Iterator[str]:
    """Problems that the entry neither expects nor allows, and parts that could not be judged.

    In a check that has to fail, a part whose evidence is missing follows from the fault (no export, no rows).
    """
    allowed: set[tuple[str, str, str]] = {
        (expected.check, expected.part, expected.code) for expected in (*entry.expect, *entry.also)
    }
    parts = {(check, part) for check, part, _ in allowed}
    if not entry.refused:
        yield from _refusal(scanned)
    for verdict in scanned.verdicts:
        if not verdict.parts and verdict.outcome is not Outcome.PASS:
            yield f"{verdict.check}: {verdict.outcome}: {verdict.reason}"
        for part in verdict.parts:
            yield from _unexpected_in(verdict.check, part, allowed, parts)


def _unexpected_in(
    check: str, part: Part, allowed: set[tuple[str, str, str]], parts: set[tuple[str, str]]
) -> Iterator[str]:
    if not part.applicable or part.outcome is Outcome.PASS:
        return
    follows = part.outcome is Outcome.NOT_EVALUATED and check in {name for name, _ in parts}
    if part.outcome is not Outcome.FAIL and (check, part.name) not in parts and not follows:
        yield f"{check}: {part.name} {part.outcome}: {part.reason}"
    codes = {problem.code for problem in part.problems if problem.outcome is Outcome.FAIL}
    yield from (
        f"{check}: {part.name}/{code}" for code in sorted(codes) if (check, part.name, code) not in allowed
    )


def _failures(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Each kind of failure once, with its first place."""
    told: set[tuple[str, str, str]] = set()
    for verdict in verdicts:
        for part, problem in verdict.problems():
            key = (verdict.check, part, problem.code)
            if problem.outcome is Outcome.FAIL and key not in told:
                told.add(key)
                place = f" at {problem.place}" if str(problem.place) else ""
                yield f"{verdict.check}: {part}/{problem.code}{place}"


def _reason(scanned: Scanned) -> str:
    worst = next((v for v in scanned.verdicts if v.outcome is not Outcome.PASS), None)
    return f"{worst.check}: {worst.reason}" if worst else "".join(_refusal(scanned))
