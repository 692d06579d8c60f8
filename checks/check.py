"""What a check is, and the one place where its result becomes a verdict.

A check opens a *case* (records beside their reference), judges it, and on every run injects its own
faults into the smallest slice of the case that its judge accepts (paper section 3.2.5): a judge that
misses one cannot pass anything.
"""

import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from pydantic import JsonValue

from checks.errors import CheckError, Inconclusive, NotEvaluated
from checks.verdict import Caught, Evidence, Frozen, Injection, Outcome, Part, Problem, Verdict, combine

CaseT = TypeVar("CaseT")
_KINDS_IN_HEADLINE = 3


class Progress(Protocol):
    """Told how far a check is: ``done`` of ``total`` (None when unknown) and what it does now."""

    def __call__(self, done: float, total: float | None, message: str) -> None: ...  # noqa: D102 - the class says it


def silent(done: float, total: float | None, message: str) -> None:
    """Say nothing: the progress of whoever does not ask."""


class NotApplicable(Exception):
    """Raised by an injection when the fault is identical by construction on this input."""


@dataclass(frozen=True)
class InjectedFault(Generic[CaseT]):
    """A fault that the check has to catch.

    ``plant`` returns a faulty copy of the slice (never changes its argument) or raises `NotApplicable`.
    It is caught when judging the copy gives a ``fail`` with ``code`` in ``part`` that the untouched
    slice does not have.
    """

    name: str
    part: str
    code: str
    plant: Callable[[CaseT], CaseT]


class Context(Frozen):
    """What a check says about a case beside its parts."""

    target: dict[str, str] = {}
    settings: dict[str, JsonValue] = {}
    evidence: tuple[Evidence, ...] = ()
    reference: str = ""
    reference_shares_code: bool = False
    stand_ins: tuple[str, ...] = ()
    run_id: str | None = None
    confinement: str = "none"


class Inputs(Frozen):
    """Base of a check's arguments: descriptions become ``--help`` and the tool's schema.

    No field may be a bound, a tolerance or a skip list: the agent chooses what
    to run, never how it is judged.
    """


InputsT = TypeVar("InputsT", bound=Inputs)


class Check(ABC, Generic[InputsT, CaseT]):
    """One question with one reference and one rule; the docstring of a subclass is its documentation page."""

    name: ClassVar[str]
    title: ClassVar[str]
    question: ClassVar[str]
    reference: ClassVar[str]
    rule: ClassVar[str]
    training: ClassVar[Literal["none", "one step", "run"]]
    records: ClassVar[tuple[str, ...]]
    pattern: ClassVar[int]
    """Of the paper's seven, the one that a failure most often belongs to."""
    example: ClassVar[str]
    order: ClassVar[int]
    inputs: type[InputsT]
    faults: tuple[InjectedFault[CaseT], ...]

    @abstractmethod
    def open(self, inputs: InputsT, progress: Progress) -> CaseT:
        """Read the records and the reference. Raises `BadInput`, `NotEvaluated`, `Inconclusive`."""

    @abstractmethod
    def context(self, inputs: InputsT, case: CaseT) -> Context:
        """Target, settings and evidence of the case; called after `judge`."""

    @abstractmethod
    def judge(self, case: CaseT, progress: Progress) -> list[Part]:
        """Judge the whole case. Pure: it changes nothing and reads only the case."""

    @abstractmethod
    def smallest(self, case: CaseT) -> CaseT:
        """The smallest slice that `judge` accepts, in memory. Raises `NotApplicable` when there is none."""

    def to_mend_first(self, parts: list[Part], outcome: Outcome) -> tuple[Part, Problem] | None:
        """What the verdict's headline names: by default the first problem of the first part of this outcome.

        A check whose parts follow from each other names the cause. None where that part lists no problem.
        """
        worst = next((part for part in parts if part.applicable and part.outcome is outcome), None)
        problem = next((each for each in worst.problems if each.outcome is outcome), None) if worst else None
        return (worst, problem) if worst and problem else None


def inject(check: Check[Any, CaseT], case: CaseT, progress: Progress = silent) -> tuple[Injection, ...]:
    """Plant each of the check's faults into the smallest slice and judge it with the check's own judge."""
    count = len(check.faults)
    progress(0, count, "choosing the slice that faults are planted into")
    try:
        piece = check.smallest(case)
    except NotApplicable as reason:
        return tuple(
            Injection(fault=fault.name, result=Caught.NOT_APPLICABLE, detail=str(reason))
            for fault in check.faults
        )
    before = _failures(check.judge(piece, silent))
    injected = []
    for number, fault in enumerate(check.faults):
        progress(number, count, f"planting fault {number + 1} of {count}: {fault.name}")
        injected.append(_inject_one(check, piece, fault, before))
    return tuple(injected)


def _inject_one(
    check: Check[Any, CaseT], piece: CaseT, fault: InjectedFault[CaseT], before: set[tuple[str, Problem]]
) -> Injection:
    try:
        faulty = fault.plant(piece)
    except NotApplicable as reason:
        return Injection(fault=fault.name, result=Caught.NOT_APPLICABLE, detail=str(reason))
    try:
        new = _failures(check.judge(faulty, silent)) - before
    except CheckError as error:
        return Injection(fault=fault.name, result=Caught.MISSED, detail=f"the judge refused it: {error}")
    for part, problem in sorted(new, key=str):
        if part == fault.part and problem.code == fault.code:
            return Injection(fault=fault.name, result=Caught.CAUGHT, detail=str(problem.place))
    if any(part == fault.part and problem.code == fault.code for part, problem in before):
        detail = f"the input has {fault.part}/{fault.code} already"
        return Injection(fault=fault.name, result=Caught.NOT_APPLICABLE, detail=detail)
    seen = ", ".join(sorted({f"{part}/{problem.code}" for part, problem in new})) or "nothing"
    return Injection(
        fault=fault.name,
        result=Caught.MISSED,
        detail=f"wanted {fault.part}/{fault.code}, the judge saw {seen}",
    )


def _failures(parts: list[Part]) -> set[tuple[str, Problem]]:
    return {(part.name, p) for part in parts for p in part.problems if p.outcome is Outcome.FAIL}


def evaluate(
    check: Check[InputsT, CaseT], inputs: InputsT, progress: Progress = silent, system_version: str = ""
) -> Verdict:
    """Run a check and state its verdict. Only `BadInput` leaves this function as an error."""
    started, clock = datetime.now(UTC), time.monotonic()
    verdict = _verdict(check, inputs, progress)
    return verdict.model_copy(
        update={
            "system_version": system_version,
            "started": started.isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - clock, 3),
        }
    )


def _verdict(check: Check[InputsT, CaseT], inputs: InputsT, progress: Progress) -> Verdict:
    context = Context(settings=inputs.model_dump(mode="json", exclude_none=True))
    try:
        case = check.open(inputs, progress)
        context = check.context(inputs, case)
        parts = check.judge(case, progress)
        context = check.context(inputs, case)
        injected = inject(check, case, progress)
    except NotEvaluated as error:
        return _stated(check, context, Outcome.NOT_EVALUATED, error.message, error.next_step)
    except Inconclusive as error:
        return _stated(check, context, Outcome.INCONCLUSIVE, error.message, error.next_step)
    except CheckError:
        raise
    except Exception as error:  # noqa: BLE001 - the one place where a crash becomes an honest non-answer
        where = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"the check crashed: {type(error).__name__}: {error} ({where.name}, line {where.lineno})"
        return _stated(
            check, context, Outcome.INCONCLUSIVE, reason[:500], "report this with the input as a bug"
        )
    return _judged(check, context, parts, injected)


def _judged(
    check: Check[InputsT, CaseT], context: Context, parts: list[Part], injected: tuple[Injection, ...]
) -> Verdict:
    outcome = combine(part.outcome for part in parts if part.applicable)
    unproven = _unproven(outcome, injected)
    if unproven:
        verdict = _stated(check, context, Outcome.INCONCLUSIVE, *unproven)
    else:
        first = None if outcome is Outcome.PASS else check.to_mend_first(parts, outcome)
        reason = _headline(*first, parts) if first else _reason(outcome, parts)
        verdict = _stated(check, context, outcome, reason, _next_step(first))
    return verdict.model_copy(update={"parts": tuple(parts), "injected": injected})


def _unproven(outcome: Outcome, injected: tuple[Injection, ...]) -> tuple[str, str] | None:
    """Reason and next step when the injected faults do not show that the judge would have seen a fault."""
    missed = [injection.fault for injection in injected if injection.result is Caught.MISSED]
    if missed and outcome in (Outcome.PASS, Outcome.NOT_EVALUATED):
        reason = f"the judge did not catch the injected fault(s): {', '.join(missed)}"
        return reason, "report this with the input as a bug"
    if outcome is Outcome.PASS and all(injection.result is Caught.NOT_APPLICABLE for injection in injected):
        return "no injected fault applies to this input, so nothing shows that a fault would be seen", (
            "judge a larger input"
        )
    return None


def _reason(outcome: Outcome, parts: list[Part]) -> str:
    """Why, where no problem is named: what was judged, or what the first part with this outcome says."""
    worst = next((part for part in parts if part.applicable and part.outcome is outcome), None)
    if worst is None:
        return "no part applies to this input"
    if outcome is Outcome.PASS:
        return ", ".join(_judged_amounts(parts)) or "all parts hold"
    return f"{worst.name}: {worst.reason}"


def _headline(part: Part, problem: Problem, parts: list[Part]) -> str:
    """The problem with its place, how many more are like it, and which other kinds there are."""
    message = part.reason if problem is part.problems[0] and part.reason else problem.message
    place = f" at {problem.place}" if str(problem.place) else ""
    others = "; ".join(_others(part, problem, parts))
    return f"{part.name}: {message}{place}" + (f" ({others})" if others else "")


def _others(part: Part, problem: Problem, parts: list[Part]) -> Iterator[str]:
    counts = {
        (each.name, kind.code): kind.count
        for each in parts
        if each.applicable
        for kind in each.kinds()
        if kind.outcome is problem.outcome
    }
    more = counts.pop((part.name, problem.code), 1) - 1
    if more:
        yield f"and {more:,} more like it"
    if counts:
        named = [f"{count:,} × {name}/{code}" for (name, code), count in counts.items()]
        if beyond := len(named[_KINDS_IN_HEADLINE:]):
            named[_KINDS_IN_HEADLINE:] = [f"{beyond} more kind{'s' if beyond > 1 else ''}"]
        yield f"also {', '.join(named)}"


def _judged_amounts(parts: list[Part]) -> Iterator[str]:
    """Each amount once; with its part's name where another part has another amount of the same unit."""
    parts_of: dict[str, list[str]] = {}
    noun = {}
    for part in parts:
        if part.coverage and part.applicable:
            parts_of.setdefault(str(part.coverage), []).append(part.name)
            noun[str(part.coverage)] = part.coverage.unit.split(" ")[-1]
    for amount, names in parts_of.items():
        unclear = list(noun.values()).count(noun[amount]) > 1 and len(names) == 1
        yield f"{names[0]} {amount}" if unclear else amount


def _next_step(first: tuple[Part, Problem] | None) -> str:
    """What to do about the problem that is named, else about the next one of its part that says it."""
    if first is None:
        return ""
    part, problem = first
    return next((p.next_step for p in (problem, *part.problems) if p.next_step), "")


def _stated(
    check: Check[Any, Any], context: Context, outcome: Outcome, reason: str, next_step: str
) -> Verdict:
    return Verdict(
        check=check.name,
        outcome=outcome,
        reason=reason,
        next_step=next_step,
        **context.model_dump(exclude={"reference", "evidence"}),
        evidence=context.evidence,
        reference=context.reference or check.reference,
    )
