"""Problems grouped by their kind: what all of a kind share is said once (report and terminal)."""

from collections.abc import Iterator
from dataclasses import dataclass

from checks.verdict import Outcome, Part, Problem

FACTS = ("message", "expected", "found", "citation", "next_step")
"""The texts of a problem, in the order in which they are told."""


@dataclass(frozen=True)
class ProblemGroup:
    """The listed problems of one code in one part, and how many there are in all."""

    part: str
    code: str
    outcome: Outcome
    problems: tuple[Problem, ...]
    count: int

    @property
    def amount(self) -> str:
        """How many, e.g. ``× 7,473, 50 listed``; empty for a single one."""
        listed = len(self.problems)
        if self.count > listed:
            return f"× {self.count:,}, {listed:,} listed"
        return f"× {self.count:,}" if self.count > 1 else ""

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
    by_kind: dict[tuple[str, Outcome], list[Problem]] = {}
    for problem in part.problems:
        by_kind.setdefault((problem.code, problem.outcome), []).append(problem)
    counts = {(kind.code, kind.outcome): kind.count for kind in part.kinds()}
    for kind, problems in by_kind.items():
        count = max(len(problems), counts.get(kind, 0))
        yield ProblemGroup(part.name, *kind, tuple(problems), count)
