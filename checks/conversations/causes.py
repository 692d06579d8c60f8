"""What of a data verdict a user should mend first: the cause before what follows from it."""

import shlex

from checks.verdict import Outcome, Part, Problem, ProblemKind

_ORDER = (
    "run/rank-died",
    "ids/packing/packing-differs",
    "ids/content/other-template",
    "ids/content/double-bos",
    "ids/content/padding-attended",
    "ids/content/content-differs",
    "ids/content/row-unexpected",
    "ids/content/row-missing",
    "ids/content/attention-masked",
    "ids/truncation/truncation-differs",
    "labels/label-negative",
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


_RENDERED_OTHERWISE = {"content-differs", "row-unexpected", "double-bos"}
"""What rows that another template rendered look like."""


def template_named(parts: list[Part], other: str) -> list[Part]:
    """The parts, with the run's own template as the first cause where rows are rendered otherwise.

    ``other``: the template that the run rendered with, where it is not the reference's; else empty. A
    template that adds marks alone renders the same rows, so rows that are right stay so.
    """
    return [_with_template(part, other) if other and part.name == "ids/content" else part for part in parts]


def _with_template(part: Part, other: str) -> Part:
    kinds = part.kinds()
    if not any(kind.outcome is Outcome.FAIL and kind.code in _RENDERED_OTHERWISE for kind in kinds):
        return part
    problem = Problem(
        code="other-template",
        message=f"the run rendered with another template: {other}",
        expected="the template that inference uses",
        found=other,
        next_step=f"judge with --template {shlex.quote(other)} if inference uses it, else train without it",
    )
    return part.model_copy(
        update={
            "reason": problem.message,
            "problems": (problem, *part.problems),
            "problem_count": part.problem_count + 1,
            "problem_kinds": (ProblemKind(code=problem.code, outcome=problem.outcome, count=1), *kinds),
        }
    )
