"""What of a data verdict a user should mend first: the cause before what follows from it."""

from checks.verdict import Outcome, Part, Problem

_ORDER = (
    "run/rank-died",
    "ids/packing/packing-differs",
    "ids/content/double-bos",
    "ids/content/content-differs",
    "ids/content/row-unexpected",
    "ids/content/row-missing",
    "ids/content/attention-masked",
    "ids/truncation/truncation-differs",
    "labels/labels-shifted",
    "labels/no-supervised-token",
    "labels/token-wrongly-supervised",
    "labels/token-not-supervised",
    "stop/stop-unlabelled",
)
"""Rows that are other rows give other labels; labels that miss a whole reply miss its stop token too."""
_TOKENS_MISSED, _NEVER_STOPS = _ORDER[-2:]


def first_cause(parts: list[Part]) -> tuple[Part, Problem] | None:
    """The failure to mend first, with its part; None where nothing fails."""
    met: dict[str, tuple[Part, Problem]] = {}
    for part in parts:
        for problem in part.problems if part.applicable else ():
            if problem.outcome is Outcome.FAIL:
                met.setdefault(f"{part.name}/{problem.code}", (part, problem))
    order = [name for name in _ORDER if name in met] + [name for name in met if name not in _ORDER]
    if order[:2] == [_TOKENS_MISSED, _NEVER_STOPS] and _only_stops_missed(parts):
        return met[_NEVER_STOPS]
    return met[order[0]] if order else None


def _only_stops_missed(parts: list[Part]) -> bool:
    """Whether each listed token that the loss misses is a stop token that nothing teaches.

    Both parts put such a token at the same place; a reply that is missed as a whole begins before its stop.
    """
    missed = _places(parts, "labels", "token-not-supervised")
    stops = _places(parts, "stop", "stop-unlabelled")
    return bool(missed) and missed <= stops


def _places(parts: list[Part], name: str, code: str) -> set[str]:
    return {
        str(problem.place)
        for part in parts
        if part.name == name
        for problem in part.problems
        if problem.code == code
    }
