"""Which verdicts stand and which a newer one on the same subject took the place of.

A subject is a check on inputs of the same roles: the same paths with the same content, as far as both
verdicts hold digests of it, and the same options of the check. What is judged may change: a run stands for
its procedure, its framework, its job's inputs and its settings, so a job that was run again with other code
or in another environment replaces the earlier one. Another setting is another configuration: its failure
stays until it is judged again under that very setting. The newer run counts before the newer verdict: an old
run that is judged once more says nothing of the run that came after it. Rows, an export or a run that the
workspace does not know are known by their path alone. A newer verdict that decided nothing replaces no
failure. A failure on a file that has other content since stays too; it says so, and how to be rid of it.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from checks.records.runs import Job
from checks.verdict import Outcome
from plumbline_mcp.report.subjects import JUDGED
from plumbline_mcp.workspace import StoredVerdict

if TYPE_CHECKING:
    from plumbline_mcp.workspace import Workspace

Content = dict[tuple[str, str], str]
"""By input and path below it: the digest of a file, as the verdict's evidence has it."""
_DECIDED = (Outcome.PASS, Outcome.FAIL)

CONSIDERED = 500
"""The newest verdicts of a workspace among which those that count are looked for."""
_RUNS = 10_000


@dataclass(frozen=True)
class Standing:
    """A verdict that counts, and the earlier ones on its subject, newest first."""

    stored: StoredVerdict
    earlier: tuple[StoredVerdict, ...] = ()
    since: str = ""
    """Of a failure: the newest verdict that found other content where this one judged; else empty."""


@dataclass
class _Subject:
    """The verdicts on one subject, newest first, and what is known of its inputs' content."""

    verdicts: list[StoredVerdict] = field(default_factory=list)
    content: Content = field(default_factory=dict)

    def holds(self, content: Content) -> bool:
        """Whether no input is known to have had other content."""
        return all(self.content.get(place, digest) == digest for place, digest in content.items())

    def add(self, stored: StoredVerdict, content: Content) -> None:
        self.verdicts.append(stored)
        self.content = content | self.content


def standing(newest_first: Iterable[StoredVerdict], jobs: Mapping[str, Job]) -> list[Standing]:
    """The verdicts that count, oldest first.

    ``jobs`` are the known runs by the path of their folder, newest first.
    """
    given = list(newest_first)
    subjects: dict[str, list[_Subject]] = {}
    for stored in _newest_run_first(given, jobs):
        alike, content = subjects.setdefault(_key(stored, jobs), []), _content(stored, jobs)
        found = next((subject for subject in alike if subject.holds(content)), None)
        if found is None:
            alike.append(found := _Subject())
        found.add(stored, content)
    kept = [one for alike in subjects.values() for subject in alike for one in _counting(subject.verdicts)]
    age = {stored.verdict.id: number for number, stored in enumerate(given)}  # no clock: it may have been set
    told = (replace(one, since=_since(one.stored, given[: age[one.stored.verdict.id]], jobs)) for one in kept)
    return sorted(told, key=lambda one: -age[one.stored.verdict.id])


def _since(failed: StoredVerdict, newer: Iterable[StoredVerdict], jobs: Mapping[str, Job]) -> str:
    """The newest verdict by whose evidence a file that ``failed`` judged is another one by now."""
    if failed.verdict.outcome is not Outcome.FAIL:
        return ""
    judged = _judged(failed, jobs)
    seen = (
        (judged[evidence.path] == evidence.sha256, one.verdict.id)
        for one in newer
        for evidence in one.verdict.evidence
        if evidence.path in judged
    )
    same, newest = next(seen, (True, ""))
    return "" if same else newest


def _judged(stored: StoredVerdict, jobs: Mapping[str, Job]) -> dict[str, str]:
    """The digests of the files that were judged, by path; a run's are sealed and never others."""
    given = [stored.inputs.get(name) for name in JUDGED]
    paths = [PurePath(one) for one in given if isinstance(one, str) and one not in jobs]
    return {
        evidence.path: evidence.sha256
        for evidence in stored.verdict.evidence
        if any(path.is_absolute() and PurePath(evidence.path).is_relative_to(path) for path in paths)
    }


def standing_in(workspace: "Workspace") -> list[Standing]:
    """The verdicts that count among the newest of a workspace, oldest first."""
    return standing(workspace.verdicts(limit=CONSIDERED), jobs_in(workspace))


def jobs_in(workspace: "Workspace") -> dict[str, Job]:
    """The runs of a workspace by the path of their folder, newest first."""
    return {str(workspace.runs / run.run_id): run.job for run in workspace.runs_list(limit=_RUNS)}


def _newest_run_first(newest_first: Iterable[StoredVerdict], jobs: Mapping[str, Job]) -> list[StoredVerdict]:
    """Ordered by the run that was judged, then as given: verdicts follow the order in which they are made."""
    age = {path: number for number, path in enumerate(jobs)}

    def judged(stored: StoredVerdict) -> int:
        given = (one for one in stored.inputs.values() if isinstance(one, str))
        return min((age[one] for one in given if one in age), default=0)

    return sorted(newest_first, key=judged)


def _counting(verdicts: list[StoredVerdict]) -> list[Standing]:
    """The newest; also the newest failure where nothing newer decided whether it is mended."""
    newest, *earlier = verdicts
    if newest.verdict.outcome in _DECIDED:
        return [Standing(newest, tuple(earlier))]
    decided = next((one for one in earlier if one.verdict.outcome in _DECIDED), None)
    if decided is None or decided.verdict.outcome is not Outcome.FAIL:
        return [Standing(newest, tuple(earlier))]
    place = earlier.index(decided)
    return [Standing(newest, tuple(earlier[:place])), Standing(decided, tuple(earlier[place + 1 :]))]


def _key(stored: StoredVerdict, jobs: Mapping[str, Job]) -> str:
    inputs = {name: _identity(value, jobs) for name, value in stored.inputs.items()}
    return json.dumps([stored.verdict.check, inputs], sort_keys=True, default=str)


def _identity(value: object, jobs: Mapping[str, Job]) -> object:
    """An input; of a run what its job did, to what and under which settings."""
    job = jobs.get(value) if isinstance(value, str) else None
    return value if job is None else {"run": [job.procedure, job.framework, job.inputs, job.settings]}


def _content(stored: StoredVerdict, jobs: Mapping[str, Job]) -> Content:
    """The digests of what was given, not of what was judged."""
    given = {
        name: PurePath(value)
        for name, value in stored.inputs.items()
        if isinstance(value, str) and name not in JUDGED and value not in jobs
    }
    return {
        (name, str(PurePath(evidence.path).relative_to(path))): evidence.sha256
        for evidence in stored.verdict.evidence
        for name, path in given.items()
        if path.is_absolute() and PurePath(evidence.path).is_relative_to(path)
    }
