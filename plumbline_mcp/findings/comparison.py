"""Holds a claim against what a verifier found without knowing it: outcome, values and place.

Tolerances, the same for everybody and no argument of anything:

* outcome: equal.
* value: within `RELATIVE` of the claimed number (two float64 computations of one value in another order of
  summation differ by far less; a claim that is 1% off is far outside), or within `ABSOLUTE` of a claimed 0.
* place: every field that says which rank, step, row, token, tensor, layer group, field or package is exactly
  equal. A field that only says the same again (the file of a tensor, the turn of a token) may be missing from
  the submission, but not differ.

Any difference disputes. What the verifier did not give is never agreement: it leaves the claim undecided.
"""

import math
from collections.abc import Iterator
from enum import StrEnum

from checks.verdict import Frozen
from plumbline_mcp.findings.finding import Claim
from plumbline_mcp.findings.questions import Submission, Where

RELATIVE = 1e-6
ABSOLUTE = 1e-12

_FINER = {
    "file": frozenset({"tensor", "row", "sequence", "rank"}),
    "layer_group": frozenset({"tensor"}),
    "sequence": frozenset({"row"}),
    "turn": frozenset({"row", "token"}),
    "epoch": frozenset({"row"}),
}
"""A field that says nothing new where one of these is given too."""


_NAMES = frozenset({"tensor", "row", "sequence", "field", "package", "layer_group", "file"})
"""Fields that name a thing: a rank, a step or a token alone is none."""


class Result(StrEnum):
    """Whether a verifier's answer is the claim."""

    AGREE = "agree"
    DISPUTE = "dispute"
    UNDECIDED = "undecided"


class Compared(Frozen):
    """One compared thing."""

    name: str
    result: Result
    claimed: str
    found: str
    tolerance: str = ""


class Comparison(Frozen):
    """Every compared thing, and what follows."""

    result: Result
    fields: tuple[Compared, ...]

    def why(self) -> str:
        """What does not agree, in one line; empty where all does."""
        wrong = [one for one in self.fields if one.result is self.result is not Result.AGREE]
        said = [f"{one.name}: claimed {one.claimed}, found {one.found}" for one in wrong[:3]]
        more = len(wrong) - len(said)
        return "; ".join(said) + (f"; and {more} more" if more > 0 else "")


def compare(claim: Claim, submission: Submission) -> Comparison:
    """Compare field by field. One dispute disputes the whole; else what is open leaves it undecided."""
    fields = [_outcome(claim, submission)]
    if submission.outcome == claim.outcome:
        if claim.place:
            fields.append(_place(claim.place, submission))
        fields += _values(claim, submission)
    met = {field.result for field in fields}
    worst = next(result for result in (Result.DISPUTE, Result.UNDECIDED, Result.AGREE) if result in met)
    return Comparison(result=worst, fields=tuple(fields))


def _outcome(claim: Claim, submission: Submission) -> Compared:
    if submission.outcome == "inconclusive":
        result = Result.UNDECIDED
    else:
        result = Result.AGREE if submission.outcome == claim.outcome else Result.DISPUTE
    found = submission.outcome + (f" ({submission.reason})" if result is not Result.AGREE else "")
    return Compared(
        name="outcome", result=result, claimed=claim.outcome, found=found[:500], tolerance="equal"
    )


def _place(claimed: Where, submission: Submission) -> Compared:
    """The claim's place is that of the submission or of any problem it lists: a fault may show at many."""
    places = [place for place in (submission.place, *(p.where for p in submission.problems)) if place]
    results = {_same_place(claimed, place) for place in places} or {Result.UNDECIDED}
    best = next(each for each in (Result.AGREE, Result.UNDECIDED, Result.DISPUTE) if each in results)
    nearest: Where = min(places, key=lambda place: _distance(claimed, place), default={})
    return Compared(
        name="place", result=best, claimed=_spelled(claimed), found=_spelled(nearest), tolerance="exact"
    )


def _same_place(claimed: Where, found: Where) -> Result:
    """Equal in every field that both give; undecided where it names the same thing less exactly."""
    if any(name in found and found[name] != value for name, value in claimed.items()):
        return Result.DISPUTE
    missing = {name for name in claimed if name not in found}
    if not {name for name in missing if not _FINER.get(name, frozenset()) & claimed.keys() & found.keys()}:
        return Result.AGREE
    return Result.UNDECIDED if _NAMES & claimed.keys() & found.keys() else Result.DISPUTE


def _distance(claimed: Where, found: Where) -> tuple[int, str]:
    return sum(found.get(name) != value for name, value in claimed.items()), _spelled(found)


def _values(claim: Claim, submission: Submission) -> Iterator[Compared]:
    for name, value in sorted(claim.values.items()):
        yield _value(name, value, submission.values.get(name))
    for name, value in sorted(claim.measured.items()):
        if name in submission.values and name not in claim.values:
            yield _value(name, value, submission.values[name])


def _value(name: str, claimed: float, found: float | None) -> Compared:
    tolerance = f"relative {RELATIVE:g}" if claimed else f"absolute {ABSOLUTE:g}"
    if found is None:
        result, told = Result.UNDECIDED, "not given"
    else:
        result, told = (Result.AGREE if close(claimed, found) else Result.DISPUTE), repr(found)
    return Compared(name=name, result=result, claimed=repr(claimed), found=told, tolerance=tolerance)


def close(claimed: float, found: float) -> bool:
    """Whether two values are the same within the stated tolerance."""
    if claimed == 0:
        return math.fabs(found) <= ABSOLUTE
    return math.fabs(found - claimed) <= RELATIVE * math.fabs(claimed)


def _spelled(place: Where) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(place.items())) or "no place"
