"""Problems grouped by their kind: what all of a kind share is said once (report and terminal)."""

from collections.abc import Iterator
from dataclasses import dataclass

from checks.verdict import Outcome, Part, Problem

FACTS = ("message", "expected", "found", "citation", "next_step")
"""The texts of a problem, in the order in which they are told."""


@dataclass(frozen=True)
class ProblemGroup:
    """The listed problems of one code in one part."""

    part: str
    code: str
    outcome: Outcome
    problems: tuple[Problem, ...]

    @property
    def only_places(self) -> bool:
        """Whether the problems differ in nothing but their place."""
        return not any(self.differing(fact) for fact in FACTS)

    def shared(self, fact: str) -> str | None:
        """The text of a fact that all have in common, None when they differ or have none."""
        met = {getattr(problem, fact) for problem in self.problems}
        return met.pop() if len(met) == 1 else None

    def differing(self, fact: str) -> bool:
        """Whether the problems say different things here, so that each has to be told."""
        return len({getattr(problem, fact) for problem in self.problems}) > 1


def grouped(part: Part) -> Iterator[ProblemGroup]:
    """The listed problems of a part by code and outcome, in the order in which they are listed."""
    by_code: dict[tuple[str, Outcome], list[Problem]] = {}
    for problem in part.problems:
        by_code.setdefault((problem.code, problem.outcome), []).append(problem)
    for (code, outcome), problems in by_code.items():
        yield ProblemGroup(part.name, code, outcome, tuple(problems))
