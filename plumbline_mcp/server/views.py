"""What tools answer with: flat models; text from files stands only in fields named ``untrusted_*``."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from approvals.visible import visible_line
from checks.verdict import Measurement, Outcome, Part, Verdict

RESULT_LIMIT = 28_000
"""Bytes of JSON of one tool result: about 8,000 tokens."""
LINE = 240
"""Characters shown of one piece of text."""

_MEASUREMENTS_PER_PART = 6
_NOTES_PER_PART = 4
_LISTED = 20
_CODES = 6
_PARTS_BUDGET = 12_000
_TEXTS_BUDGET = 3_000

Scalar = float | int | str | None

_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]*[a-z])")


class View(BaseModel):
    """Base of the answers; immutable, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


ViewT = TypeVar("ViewT", bound=View)


class Page(View):
    """Base of what comes in pages."""

    total: int
    truncated: bool = False
    cursor: str | None = Field(None, description="pass to the same call for the rest")
    next: str = ""


class ProblemView(View):
    """One problem at one place."""

    part: str
    code: str
    outcome: Outcome
    untrusted_message: str
    untrusted_place: str
    untrusted_expected: str | None = None
    untrusted_found: str | None = None
    citation: str | None = None
    next_step: str | None = None


class MeasurementView(View):
    """A value beside its bound."""

    name: str
    value: Scalar
    bound: Scalar = None
    unit: str | None = None
    rule: str | None = None


class PartView(View):
    """A part of a verdict."""

    name: str
    outcome: Outcome
    applicable: bool
    coverage: str
    problems: int = Field(description="all, also those not listed")
    kinds: dict[str, int] = Field({}, description="how many problems of each code, also those not listed")
    untrusted_reason: str
    untrusted_notes: tuple[str, ...] = ()
    measurements: tuple[MeasurementView, ...] = ()


class VerdictView(Page):
    """A verdict; ``total`` counts all its problems. The whole is the resource ``plumbline://verdicts/<id>``."""

    id: str
    check: str
    outcome: Outcome
    summary: str
    untrusted_reason: str
    next_step: str
    parts: tuple[PartView, ...]
    problems: tuple[ProblemView, ...]
    listed: int = Field(description="how many of the problems are listed one by one, on all pages together")
    injected: tuple[str, ...] = Field(
        description="faults the check injected into a copy, and whether it saw them"
    )
    reference: str
    reference_shares_code: bool
    stand_ins: tuple[str, ...]
    untrusted_target: dict[str, str]
    untrusted_settings: dict[str, str]
    evidence: int = Field(description="raw files it rests on")
    run_id: str | None
    approval: str
    confinement: str
    system_version: str
    started: str
    seconds: float


def line(text: object, limit: int = LINE) -> str:
    """Any value as one visible, clipped line."""
    return visible_line(str(text), limit)


def as_arguments(step: str) -> str:
    """A check's next step, with the options that it names as the tool's arguments; a command stays so."""
    if "plumbline " in step:
        return step
    return _OPTION.sub(lambda found: f"`{found[1].replace('-', '_')}`", step)


def size(view: BaseModel) -> int:
    """Bytes of an answer's JSON."""
    return len(view.model_dump_json().encode())


def take(views: Iterable[ViewT], budget: int) -> list[ViewT]:
    """The first views that fit into ``budget`` bytes of JSON, at least one."""
    taken: list[ViewT] = []
    for view in views:
        budget -= size(view) + 1
        if taken and budget < 0:
            break
        taken.append(view)
    return taken


def texts(values: Mapping[Any, Any], budget: int = _TEXTS_BUDGET) -> dict[str, str]:
    """Names and values as visible lines, as many as fit into ``budget`` bytes; the last counts the others."""
    shown: dict[str, str] = {}
    for name, value in values.items():
        entry = line(name, 80), line(value)
        budget -= len(json.dumps(entry, ensure_ascii=False).encode())
        if budget < 0:
            shown["(more)"] = f"{len(values) - len(shown)} not shown"
            break
        shown[entry[0]] = entry[1]
    return shown


def verdict_view(verdict: Verdict, part: str | None = None, skip: int = 0) -> VerdictView:
    """A verdict with as many problems from number ``skip`` on (of one part, or of all) as fit."""
    parts = [known for known in verdict.parts if part is None or known.name == part]
    problems = [(known.name, problem) for known in parts for problem in known.problems]
    head = _head(verdict, sum(known.problem_count for known in parts), len(problems))
    shown = take((_problem_view(*pair) for pair in problems[skip:]), RESULT_LIMIT - size(head))
    return head.model_copy(update={"problems": tuple(shown), "truncated": skip + len(shown) < len(problems)})


def _head(verdict: Verdict, total: int, listed: int) -> VerdictView:
    return VerdictView(
        total=total,
        listed=listed,
        id=verdict.id,
        check=verdict.check,
        outcome=verdict.outcome,
        summary=summary(verdict),
        untrusted_reason=line(verdict.reason, 600),
        next_step=line(as_arguments(verdict.next_step), 400),
        parts=tuple(_parts(verdict.parts)),
        problems=(),
        injected=tuple(f"{line(one.fault, 80)}: {one.result}" for one in verdict.injected[: 2 * _LISTED]),
        reference=line(verdict.reference, 400),
        reference_shares_code=verdict.reference_shares_code,
        stand_ins=tuple(texts(dict(enumerate(verdict.stand_ins))).values()),
        untrusted_target=texts(verdict.target),
        untrusted_settings=texts(verdict.settings),
        evidence=len(verdict.evidence),
        run_id=verdict.run_id,
        approval=line(verdict.approval),
        confinement=line(verdict.confinement),
        system_version=line(verdict.system_version),
        started=verdict.started,
        seconds=verdict.seconds,
    )


def summary(verdict: Verdict) -> str:
    """One line of our own words: the outcome and what each part that does not pass counts."""
    open_parts = [part for part in verdict.parts if part.applicable and part.outcome is not Outcome.PASS]
    if not open_parts:
        return (
            f"{verdict.outcome}: {len(verdict.parts)} parts judged" if verdict.parts else str(verdict.outcome)
        )
    named = [f"{part.name} {part.outcome}{_codes(part)}" for part in open_parts[:_LISTED]]
    return f"{verdict.outcome}: " + "; ".join(named)


def _codes(part: Part) -> str:
    kinds = [f"{kind.code} {kind.count:,}" for kind in part.kinds()[:_CODES]]
    return f" ({part.problem_count:,} problems: {', '.join(kinds)})" if kinds else ""


def _parts(parts: Iterable[Part]) -> list[PartView]:
    """Every part, with its measurements as far as they fit; very many parts are cut."""
    views = [_part_view(part) for part in parts]
    full = take(views, _PARTS_BUDGET)
    if len(full) == len(views):
        return full
    return take((view.model_copy(update={"measurements": ()}) for view in views), _PARTS_BUDGET)


def _part_view(part: Part) -> PartView:
    return PartView(
        name=line(part.name),
        outcome=part.outcome,
        applicable=part.applicable,
        coverage=str(part.coverage or ""),
        problems=part.problem_count,
        kinds=_kinds(part),
        untrusted_reason=line(part.reason),
        untrusted_notes=tuple(line(note) for note in part.notes[:_NOTES_PER_PART]),
        measurements=tuple(_measurement_view(one) for one in part.measurements[:_MEASUREMENTS_PER_PART]),
    )


def _kinds(part: Part) -> dict[str, int]:
    counts: dict[str, int] = {}
    for kind in part.kinds()[:_LISTED]:
        counts[line(kind.code)] = counts.get(line(kind.code), 0) + kind.count
    return counts


def _measurement_view(measured: Measurement) -> MeasurementView:
    return MeasurementView(
        name=line(measured.name),
        value=_scalar(measured.value),
        bound=_scalar(measured.bound),
        unit=measured.unit,
        rule=measured.rule,
    )


def _problem_view(part: str, problem: Any) -> ProblemView:
    return ProblemView(
        part=line(part),
        code=line(problem.code),
        outcome=problem.outcome,
        untrusted_message=line(problem.message),
        untrusted_place=line(problem.place),
        untrusted_expected=_optional(problem.expected),
        untrusted_found=_optional(problem.found),
        citation=_optional(problem.citation),
        next_step=_optional(problem.next_step and as_arguments(problem.next_step)),
    )


def _scalar(value: Scalar) -> Scalar:
    return line(value) if isinstance(value, str) else value


def _optional(text: str | None) -> str | None:
    return None if text is None else line(text)
