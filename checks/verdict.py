"""The one result type: what was judged, how, where it is wrong, and on which evidence."""

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue


class Frozen(BaseModel):
    """An immutable value; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Outcome(StrEnum):
    """The four outcomes; ``pass`` is given only where something was judged and all of it held."""

    PASS = "pass"  # noqa: S105 - an outcome, no password
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    NOT_EVALUATED = "not_evaluated"


_SEVERITY = (Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.NOT_EVALUATED, Outcome.PASS)


def combine(outcomes: Iterable[Outcome]) -> Outcome:
    """Any fail is fail; else any inconclusive; else any not_evaluated; else pass.

    No outcome at all is not_evaluated.
    """
    met = set(outcomes)
    return next((outcome for outcome in _SEVERITY if outcome in met), Outcome.NOT_EVALUATED)


class Place(Frozen):
    """Where: only the fields that apply are set."""

    file: str | None = None
    tensor: str | None = None
    field: str | None = None
    package: str | None = None
    row: int | None = Field(None, description="index of the conversation in the workload, from 0")
    sequence: int | None = Field(None, description="index of the recorded sequence, from 0")
    turn: int | None = Field(None, description="index of the message in the conversation, from 0")
    token: int | None = Field(None, description="index of the token in the row, from 0")
    epoch: int | None = None
    rank: int | None = None
    step: int | None = None
    layer_group: str | None = None

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.model_dump(exclude_none=True).items())


class Problem(Frozen):
    """One thing that does not hold, or could not be decided, at one place."""

    code: str = Field(description="stable kebab-case name of the kind of problem")
    outcome: Outcome = Outcome.FAIL
    message: str
    place: Place = Place()
    expected: str | None = None
    found: str | None = None
    citation: str | None = Field(None, description="where the framework documents this departure, if it does")
    next_step: str | None = None


class Measurement(Frozen):
    """A measured value beside the bound it was held against."""

    name: str
    value: float | int | str | None
    bound: float | int | str | None = None
    unit: str | None = None
    rule: str | None = Field(None, description="name of the constant in checks/rules.py")
    where: str | None = None


class Coverage(Frozen):
    """How much was judged, e.g. 7473 of 7473 rows."""

    judged: int
    total: int
    unit: str

    def __str__(self) -> str:
        return f"{self.judged:,} of {self.total:,} {self.unit}"


class ProblemKind(Frozen):
    """All problems of one code and outcome in a part, also those that are not listed."""

    code: str
    outcome: Outcome
    count: int


class Part(Frozen):
    """A part of a verdict with an outcome of its own."""

    name: str
    outcome: Outcome
    reason: str = ""
    applicable: bool = Field(True, description="false: listed as not applicable here, does not count")
    coverage: Coverage | None = None
    measurements: tuple[Measurement, ...] = ()
    problems: tuple[Problem, ...] = Field((), description="the first problems of each kind, worst first")
    problem_count: int = Field(0, description="all problems, also those not listed")
    problem_kinds: tuple[ProblemKind, ...] = Field((), description="how many of each kind, worst first")
    notes: tuple[str, ...] = ()

    def kinds(self) -> tuple[ProblemKind, ...]:
        """How many problems of each kind there are; of a part without such counts, how many are listed."""
        return self.problem_kinds or _kinds(self.problems)


class Caught(StrEnum):
    """What became of an injected fault."""

    CAUGHT = "caught"
    MISSED = "missed"
    NOT_APPLICABLE = "not_applicable"


class Injection(Frozen):
    """A fault that was injected into a copy of the input and judged by the same judge (paper 3.2.5)."""

    fault: str
    result: Caught
    detail: str = ""


class DigestOf(StrEnum):
    """Which bytes a digest of evidence covers."""

    FILE = "file"
    HEADER = "header"
    """A safetensors file's length and header: hashing a large file costs more than comparing it."""
    ANSWER = "answer"
    """What the program at that path printed when it was asked."""


class Evidence(Frozen):
    """A raw file the verdict rests on."""

    path: str
    sha256: str
    size: int
    role: str = Field(description="what it is: rows, release, export, manifest, ...")
    digest_of: DigestOf = DigestOf.FILE


class Verdict(Frozen):
    """The result of one check on one target."""

    schema_version: int = 1
    id: str = Field("", description="given when the verdict is stored, e.g. data-0007")
    check: str
    outcome: Outcome
    reason: str
    next_step: str = ""
    target: dict[str, str] = {}
    settings: dict[str, JsonValue] = Field({}, description="what decides the right answer, as used")
    reference: str = ""
    reference_shares_code: bool = False
    stand_ins: Annotated[tuple[str, ...], Field(description="what stood in for what")] = ()
    parts: tuple[Part, ...] = ()
    injected: tuple[Injection, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    system_version: str = ""
    run_id: str | None = None
    approval: str = "none"
    confinement: str = "none"
    started: str = Field("", description="UTC, ISO 8601")
    seconds: float = 0.0

    def problems(self) -> list[tuple[str, Problem]]:
        """Every listed problem with the name of its part."""
        return [(part.name, problem) for part in self.parts for problem in part.problems]

    @property
    def problem_count(self) -> int:
        """All problems of every part, also those that are not listed."""
        return sum(part.problem_count for part in self.parts)


def _kinds(problems: Sequence[Problem]) -> tuple[ProblemKind, ...]:
    counts = Counter((problem.code, problem.outcome) for problem in problems)
    return tuple(
        ProblemKind(code=code, outcome=outcome, count=count) for (code, outcome), count in counts.items()
    )


def _listed(ordered: Sequence[Problem], limit: int) -> tuple[Problem, ...]:
    """At most ``limit`` problems in their order, taken evenly from the kinds.

    A frequent kind must not hide a rare one.
    """
    seen = Counter[tuple[str, Outcome]]()
    turns = []
    for number, problem in enumerate(ordered):
        kind = (problem.code, problem.outcome)
        turns.append((seen[kind], number))
        seen[kind] += 1
    return tuple(ordered[number] for number in sorted(number for _, number in sorted(turns)[:limit]))


def part_of(
    name: str,
    problems: Iterable[Problem],
    *,
    coverage: Coverage | None = None,
    measurements: tuple[Measurement, ...] = (),
    notes: tuple[str, ...] = (),
    reason: str = "",
    limit: int = 50,
) -> Part:
    """Make a part from its problems: the worst outcome met, ``pass`` when there is none.

    A part that judged nothing (``coverage.judged == 0``) is never ``pass``.
    """
    ordered = sorted(problems, key=lambda problem: _SEVERITY.index(problem.outcome))
    outcome = ordered[0].outcome if ordered else Outcome.PASS
    if coverage is not None and coverage.judged == 0 and outcome is Outcome.PASS:
        outcome = Outcome.NOT_EVALUATED
        reason = reason or f"nothing was judged ({coverage})"
    return Part(
        name=name,
        outcome=outcome,
        reason=reason or (ordered[0].message if ordered else ""),
        coverage=coverage,
        measurements=measurements,
        problems=_listed(ordered, limit),
        problem_count=len(ordered),
        problem_kinds=_kinds(ordered),
        notes=notes,
    )
