"""What a recomputation finds, and the answer that it becomes."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from plumbline_mcp.findings.questions import RebuiltProblem, Submission

Level = Literal["fail", "inconclusive"]
_MAX_PROBLEMS = 1000
_MAX_VALUES = 1000
_MAX_TEXT = 1000


@dataclass(frozen=True)
class Flaw:
    """One thing that does not hold (``fail``), or that could not be recomputed (``inconclusive``).

    ``part``: as the check calls it; ``where``: rank, step, tensor, ...; None values are left out.
    """

    part: str
    code: str
    where: dict[str, Any] = field(default_factory=dict)
    value: float | str | None = None
    bound: float | str | None = None
    level: Level = "fail"
    why: str = ""


def unknown(part: str, code: str, why: str, **where: Any) -> Flaw:
    """What was not recomputed, with the reason."""
    return Flaw(part, code, where, level="inconclusive", why=why)


class Answer:
    """Gathers flaws and values. ``parts``: the order in which causes come before what follows from them."""

    def __init__(self, parts: tuple[str, ...]) -> None:
        self._parts, self.flaws, self.values = parts, list[Flaw](), dict[str, float]()

    def add(self, flaws: Iterable[Flaw]) -> None:
        """Take in flaws."""
        self.flaws += flaws

    def first(self, part: str) -> None:
        """Name a part as the cause of what the others show."""
        self._parts = (part, *(each for each in self._parts if each != part))

    def measured(self, part: str, name: str, value: float) -> None:
        """Take in a value under the name that a question asks for; what is not finite has none."""
        if math.isfinite(value) and len(self.values) < _MAX_VALUES:
            self.values[f"{part}: {name}"[:300]] = float(value)

    def submission(self, judged: str) -> Submission:
        """The answer. ``judged``: what was recomputed, in words; nothing at all is never ``pass``."""
        ordered = sorted(self.flaws, key=lambda each: (each.level != "fail", self._at(each.part)))
        if not ordered and judged:
            return Submission(outcome="pass", reason=f"recomputed: {judged}"[:4000], values=self.values)
        if not ordered:
            return Submission(outcome="inconclusive", reason="nothing could be recomputed")
        first = ordered[0]
        same = [each for each in ordered if each.level == first.level]
        reason = f"{first.part}: {first.why or first.code}"
        if len(same) > 1:
            reason += f" (and {len(same) - 1} more)"
        return Submission(
            outcome=first.level,
            reason=reason[:4000],
            values=self.values,
            place=_place(first.where) if first.level == "fail" else {},
            problems=tuple(_problem(each) for each in _kinds_first(ordered)[:_MAX_PROBLEMS]),
        )

    def _at(self, part: str) -> int:
        return self._parts.index(part) if part in self._parts else len(self._parts)


def _kinds_first(flaws: list[Flaw]) -> list[Flaw]:
    seen: set[tuple[str, str]] = set()
    first, rest = list[Flaw](), list[Flaw]()
    for each in flaws:
        key = (each.part, each.code)
        (rest if key in seen else first).append(each)
        seen.add(key)
    return first + rest


def _place(where: dict[str, Any]) -> dict[str, int | str]:
    kept = {name: value for name, value in where.items() if value is not None}
    return {name: value if type(value) is int else str(value)[:_MAX_TEXT] for name, value in kept.items()}


def _problem(flaw: Flaw) -> RebuiltProblem:
    said = flaw.why if flaw.level == "inconclusive" and flaw.value is None else flaw.value
    return RebuiltProblem(
        code=flaw.code, where=_place(flaw.where), value=_number(said), bound=_number(flaw.bound)
    )


def _number(value: float | str | None) -> float | str | None:
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return value[:_MAX_TEXT]
    return float(value) if math.isfinite(value) else str(value)
