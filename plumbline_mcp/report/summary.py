"""What a report says, worked out from stored verdicts before any page is rendered."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import checks
from checks.check import Check
from checks.verdict import Caught, Measurement, Outcome, Verdict, combine
from plumbline_mcp.errors import UsageError
from plumbline_mcp.findings.finding import Finding
from plumbline_mcp.report.problems import ProblemGroup, grouped
from plumbline_mcp.report.subjects import Facts, inputs_of, subject
from plumbline_mcp.version import OUTSIDE
from plumbline_mcp.workspace import StoredVerdict

_WORST_FIRST = (Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.NOT_EVALUATED, Outcome.PASS)


@dataclass(frozen=True)
class Earlier:
    """An earlier verdict on the same subject: it does not count any more."""

    verdict: Verdict
    created: str
    changed: str
    """What was other then: the run, and names of settings with the value of then and of now."""


@dataclass(frozen=True)
class Section:
    """One verdict of the report."""

    verdict: Verdict
    created: str
    sha256: str
    title: str
    question: str
    rule: str
    judged: str
    inputs: Facts
    target: Facts
    groups: tuple[ProblemGroup, ...]
    measurements: tuple[tuple[str, Measurement], ...]
    limits: tuple[str, ...]
    earlier: tuple[Earlier, ...] = ()

    def measured_by(self, field: str) -> bool:
        """Whether any measurement fills this field (else its column is left out)."""
        return any(getattr(measurement, field) for _, measurement in self.measurements)

    @property
    def listed(self) -> int:
        """How many problems are listed."""
        return sum(len(group.problems) for group in self.groups)

    @property
    def counted(self) -> int:
        """How many problems there are, also those not listed."""
        return self.verdict.problem_count


@dataclass(frozen=True)
class Report:
    """The whole report."""

    outcome: Outcome
    sections: tuple[Section, ...]
    target: Facts
    as_of: str
    system_versions: tuple[str, ...]
    approvals: tuple[str, ...]
    confinements: tuple[str, ...]
    stand_ins: tuple[str, ...]
    not_run: tuple[str, ...]
    planted: str
    left_out: str
    trust: str = ""
    """What approvals are worth in this workspace."""
    findings: tuple[Finding, ...] = ()
    """The findings that rest on a verdict of this report, whatever their state."""

    @property
    def superseded(self) -> str:
        """How many earlier verdicts do not count, and which of them failed; empty when there is none."""
        earlier = [one.verdict for section in self.sections for one in section.earlier]
        failed = [verdict.id for verdict in earlier if verdict.outcome is Outcome.FAIL]
        if not earlier:
            return ""
        are = "verdict does" if len(earlier) == 1 else "verdicts do"
        what = f"{len(earlier)} earlier {are} not count: a newer one judged the same subject."
        return f"{what} Failed were {_listed(failed)}." if failed else f"{what} None of them failed."

    @property
    def headline(self) -> str:
        """The outcome as one sentence."""
        counted = _counted([section.verdict for section in self.sections])
        names = dict.fromkeys(one.check for one in counted if one.outcome is self.outcome)
        checks_named = f"the {_listed(names)} check{'s' if len(names) > 1 else ''}"
        return {
            Outcome.PASS: f"Everything that {checks_named} judged holds.",
            Outcome.FAIL: f"Something is wrong: {checks_named} failed.",
            Outcome.INCONCLUSIVE: f"No fault was found, but {checks_named} could not decide.",
            Outcome.NOT_EVALUATED: f"No fault was found, but {checks_named} lacked what is needed to judge.",
        }[self.outcome]


def summarize(
    stored: Sequence[StoredVerdict],
    planted: str = "",
    left_out: str = "",
    earlier: Mapping[str, Sequence[StoredVerdict]] = MappingProxyType({}),
    trust: str = "",
    findings: Iterable[Finding] = (),
    since: Mapping[str, str] = MappingProxyType({}),
) -> Report:
    """Work out a report: the worst outcome first, then in the order of the training lifecycle.

    ``planted`` says which fault was planted on purpose, ``left_out`` which verdicts are not in the report.
    ``earlier`` are, by the id of a verdict, the ones on its subject that it took the place of.
    ``trust`` says what approvals are worth where these verdicts are kept; of ``findings`` those are told that
    rest on a verdict here. ``since`` names, by the id of a failure, a newer verdict that found other content
    where that one judged. Raises `UsageError` for no verdict.
    """
    if not stored:
        raise UsageError("a report needs at least one verdict", "plumbline check --help")
    known = checks.discover()
    order = list(known)
    ranked = sorted(stored, key=lambda s: _rank(s, order))
    verdicts = [s.verdict for s in ranked]
    shared = _shared_target(verdicts)
    return Report(
        outcome=combine(verdict.outcome for verdict in _counted(verdicts)),
        sections=tuple(_section(s, known.get(s.verdict.check), shared, earlier, since) for s in ranked),
        target=shared,
        as_of=max(s.created for s in stored),
        system_versions=_distinct(verdict.system_version for verdict in verdicts),
        approvals=tuple(_approvals(verdicts)),
        confinements=tuple(_confinements(verdicts)),
        stand_ins=_distinct(text for verdict in verdicts for text in verdict.stand_ins),
        not_run=tuple(name for name in order if name not in {verdict.check for verdict in verdicts}),
        planted=planted,
        left_out=left_out,
        trust=trust,
        findings=_resting_on([*stored, *(one for many in earlier.values() for one in many)], findings),
    )


def _counted(verdicts: Sequence[Verdict]) -> Sequence[Verdict]:
    """Those of the version's own checks; a proposed check is told and decides nothing, unless it is alone."""
    return [verdict for verdict in verdicts if not verdict.check.startswith(OUTSIDE)] or verdicts


def _rank(stored: StoredVerdict, order: list[str]) -> tuple[int, int, str]:
    verdict = stored.verdict
    place = order.index(verdict.check) if verdict.check in order else len(order)
    return _WORST_FIRST.index(verdict.outcome), place, stored.created


def _section(
    stored: StoredVerdict,
    check: Check[Any, Any] | None,
    shared: Facts,
    earlier: Mapping[str, Sequence[StoredVerdict]],
    since: Mapping[str, str],
) -> Section:
    verdict = stored.verdict
    return Section(
        verdict=verdict,
        created=stored.created,
        sha256=stored.sha256,
        title=check.title if check else verdict.check,
        question=check.question if check else "",
        rule=check.rule if check else "",
        judged=", ".join(subject(stored)),
        inputs=inputs_of(stored),
        target=tuple(item for item in verdict.target.items() if item not in shared),
        groups=tuple(group for part in verdict.parts for group in grouped(part)),
        measurements=tuple((part.name, m) for part in verdict.parts for m in part.measurements),
        limits=(*_rewritten(since.get(verdict.id)), *_limits(verdict)),
        earlier=tuple(
            Earlier(one.verdict, one.created, ", ".join(_changes(one.verdict, verdict)))
            for one in earlier.get(verdict.id, ())
        ),
    )


def _changes(then: Verdict, now: Verdict) -> Iterable[str]:
    """What was other: the run, then each setting by name."""
    if then.run_id != now.run_id:
        yield f"run {then.run_id or 'none'}, now {now.run_id or 'none'}"
    for name in dict.fromkeys((*then.settings, *now.settings)):
        before, after = (json.dumps(one.settings.get(name), ensure_ascii=False) for one in (then, now))
        if before != after and name not in now.target and not before.startswith('"/'):
            yield f"{name} {before}, now {after}"


def _rewritten(newer: str | None) -> Iterable[str]:
    """How a failure on a file that is another one by now comes to count no longer."""
    if newer:
        yield (
            f"What it judged has other content since, as {newer} found it. It stays until the same inputs are"
            " judged again under the same settings; plumbline report ID ... leaves it out."
        )


def _limits(verdict: Verdict) -> Iterable[str]:
    """What this verdict did not judge, or judged only in part."""
    if not verdict.parts and verdict.outcome is not Outcome.FAIL:
        yield f"Nothing was judged: {verdict.reason}."
    yield from _not_judged(verdict)
    for part in verdict.parts:
        if part.applicable and part.coverage and 0 < part.coverage.judged < part.coverage.total:
            yield f"{part.name} judged {part.coverage}, not all of them."
        if part.problem_count > len(part.problems):
            yield f"{part.name} lists {len(part.problems):,} of its {part.problem_count:,} problems."
    for injection in verdict.injected:
        if injection.result is not Caught.CAUGHT:
            result = injection.result.value.replace("_", " ")
            yield f"The injected fault “{injection.fault}” was {result}{_because(injection.detail)}."
    if verdict.reference_shares_code:
        yield "The reference shares code with the target: a fault in that code shows in neither."


def _not_judged(verdict: Verdict) -> Iterable[str]:
    """The parts that decided nothing, by reason: a crash keeps all of them from being judged, for one."""
    alike: dict[tuple[bool, Outcome, str], list[str]] = {}
    for part in verdict.parts:
        alike.setdefault((part.applicable, part.outcome, part.reason), []).append(part.name)
    for (applicable, outcome, reason), names in alike.items():
        one = len(names) == 1
        if not applicable:
            yield f"{_listed(names)} {'does' if one else 'do'} not apply here{_because(reason)}."
        elif outcome in (Outcome.NOT_EVALUATED, Outcome.INCONCLUSIVE):
            told = outcome.value.replace("_", " ")
            yield f"{_listed(names)} {'is' if one else 'are'} {told}{_because(reason)}."


def _because(reason: str) -> str:
    return f": {reason.rstrip('.')}" if reason else ""


def _shared_target(verdicts: Sequence[Verdict]) -> Facts:
    """The facts of the target that verdicts have in common; what only one of several states stays with it."""
    values: dict[str, list[str]] = {}
    for verdict in verdicts:
        for name, value in verdict.target.items():
            values.setdefault(name, []).append(value)
    fewest = min(2, len(verdicts))
    return tuple((name, met[0]) for name, met in values.items() if len(met) >= fewest and len(set(met)) == 1)


def _resting_on(stored: Iterable[StoredVerdict], findings: Iterable[Finding]) -> tuple[Finding, ...]:
    names = {one.verdict.id for one in stored}
    return tuple(finding for finding in findings if names & set(finding.verdicts))


def _approvals(verdicts: Sequence[Verdict]) -> Iterable[str]:
    """The approval of all; where it is not one, which verdicts each is of."""
    names: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.approval:
            names.setdefault(verdict.approval, []).append(verdict.id or verdict.check)
    for approval, named in names.items():
        yield approval if len(names) == 1 else f"{approval}: {_listed(dict.fromkeys(named))}"


def _confinements(verdicts: Sequence[Verdict]) -> Iterable[str]:
    """What held the jobs, and which run each; then the verdicts for which none ran."""
    runs: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.run_id:
            runs.setdefault(verdict.confinement, []).append(verdict.run_id)
    for held, names in runs.items():
        yield f"{held}: run {_listed(dict.fromkeys(names))}"
    if own := [verdict.id for verdict in verdicts if not verdict.run_id]:
        yield f"no job: verdict {_listed(own)} judged files as given"


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in texts if text))


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
