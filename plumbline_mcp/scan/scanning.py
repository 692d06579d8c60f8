"""Runs the steps of a scan on one subject: jobs, then the checks that judge what they left.

The subject is a user's target or the embedded release; both go through this one path.
"""

import json
import os
import stat
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
from pydantic import JsonValue

from approvals.visible import visible_line
from checks.records.runs import RunFolder
from checks.references.packs import Pack, load_pack
from checks.verdict import Frozen, Outcome, Verdict, combine
from plumbline_mcp.engines.foreground import run
from plumbline_mcp.engines.launching import Launch, checked_settings, setting_hint
from plumbline_mcp.engines.procedures import load_procedure
from plumbline_mcp.errors import UsageError
from plumbline_mcp.scan.service import run_check
from plumbline_mcp.scan.steps import DRY_RUN, FIRST_RUN, ScanStep, StepProgress
from plumbline_mcp.workspace import Workspace

T = TypeVar("T")
CheckInputs = dict[str, JsonValue]

_SAID_BYTES = 16_384
_SENTENCE = 400


class Subject(Frozen):
    """What is scanned: a framework in an environment, with a release, a workload and a recipe."""

    framework: str
    python: Path
    files: dict[str, Path] = {}
    recipe: dict[str, JsonValue] = {}
    settings: dict[str, dict[str, JsonValue]] = {}
    arguments: dict[str, dict[str, JsonValue]] = {}
    plants: tuple[Path, ...] = ()
    target: dict[str, str] = {}
    time_limit_s: float | None = None

    def settings_of(self, pack: Pack, procedure: str) -> dict[str, JsonValue]:
        """What the recipe says that this procedure knows, and what is said for it alone."""
        known = pack.procedure_settings(procedure)
        shared = {name: value for name, value in self.recipe.items() if name in known}
        return shared | self.settings.get(procedure, {})

    def inputs(self, step: ScanStep) -> CheckInputs:
        """What the step's check is given, but for the run that it judges."""
        known = {name: str(path) for name, path in self.files.items()}
        known["python"] = str(self.python)
        given: CheckInputs = {to: known[what] for to, what in step.arguments.items() if what in known}
        return given | {"framework": self.framework} | self.arguments.get(step.name, {})

    def launch(self, pack: Pack, procedure: str) -> Launch:
        """The launch of a procedure with the recipe's settings. Raises `UsageError` for an unknown one."""
        about = load_procedure(procedure)
        takes = {*about.inputs, *about.optional_inputs}
        return Launch(
            framework=self.framework,
            procedure=procedure,
            interpreter=self.python,
            inputs={file: path for file, path in self.files.items() if file in takes},
            settings=self.settings_of(pack, procedure),
            plants=self.plants,
            time_limit_s=self.time_limit_s,
            target=self.target,
        )


class DryRun(Frozen):
    """How the dry run ended: with nothing to say, or with the framework's own sentence."""

    run_id: str
    started: bool
    sentence: str = ""


class Scanned(Frozen):
    """What a scan found."""

    verdicts: tuple[Verdict, ...] = ()
    dry_run: DryRun | None = None
    not_reached: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """The worst outcome; a recipe that could not start leaves the rest not evaluated."""
        stopped = [Outcome.NOT_EVALUATED] if self.not_reached else []
        return combine([*(verdict.outcome for verdict in self.verdicts), *stopped])


@dataclass
class Shared:
    """What scans of one session share: each is made once, by the first scan that needs it."""

    _made: dict[str, Any] = field(default_factory=dict)
    _locks: dict[str, anyio.Lock] = field(default_factory=dict)

    async def once(self, what: str, make: Callable[[], Awaitable[T]]) -> T:
        """The thing of that name, made now when nobody has."""
        async with self._locks.setdefault(what, anyio.Lock()):
            if what not in self._made:
                self._made[what] = await make()
            made: T = self._made[what]
            return made


class Scan:
    """One scan of one subject."""

    def __init__(
        self,
        workspace: Workspace,
        subject: Subject,
        steps: tuple[ScanStep, ...],
        progress: StepProgress,
        shared: Shared | None = None,
        instead: Mapping[str, Callable[["Scan"], Awaitable[CheckInputs]]] | None = None,
    ) -> None:
        """``instead`` makes the arguments of a step's check in another way than by the step's procedure."""
        self._workspace, self._subject, self._steps = workspace, subject, steps
        self._progress, self._shared = progress, shared or Shared()
        self._instead = dict(instead or {})
        self._pack = load_pack(subject.framework)
        check_recipe(self._pack, subject, steps)

    async def run(self) -> Scanned:
        """Take each step. A dry run that fails ends the scan: every later job would fail alike."""
        verdicts: list[Verdict] = []
        dry_run = None
        for number, step in enumerate(self._steps):
            if step.name == DRY_RUN:
                dry_run = await self._dry_run()
                if not dry_run.started:
                    left = tuple(later.name for later in self._steps[number + 1 :])
                    return Scanned(verdicts=tuple(verdicts), dry_run=dry_run, not_reached=left)
                continue
            make = self._instead.get(step.name, partial(Scan.inputs_of, step=step))
            verdicts.append(await self._check(step.name, await make(self)))
        return Scanned(verdicts=tuple(verdicts), dry_run=dry_run)

    async def inputs_of(self, step: ScanStep) -> CheckInputs:
        """Run the step's procedure, where it has one, and point its check at what it left."""
        inputs = self._subject.inputs(step)
        if step.procedure is None or step.run_argument is None:
            return inputs
        return {step.run_argument: str((await self.job(step.procedure)).path)} | inputs

    async def job(self, name: str) -> RunFolder:
        """The sealed run of a procedure; scans that share, share equal runs."""
        report = self._progress.begin(f"running the framework's {name.replace('_', ' ')} procedure")
        launch = self._subject.launch(self._pack, name)
        what = json.dumps(["run", launch.model_dump(mode="json")])
        return await self._shared.once(what, partial(run, self._workspace, launch, report))

    async def _dry_run(self) -> DryRun:
        return dry_run_of(await self.job("dry_run"))

    async def _check(self, name: str, inputs: CheckInputs) -> Verdict:
        report = self._progress.begin(f"check {name}")
        given = inputs | self._subject.arguments.get(name, {})
        return await run_check(self._workspace, name, given, progress=report)


def dry_run_of(done: RunFolder) -> DryRun:
    """How a sealed dry run ended."""
    failed = next((exit_ for exit_ in done.exits() if not exit_.clean), None)
    if failed is None:
        return DryRun(run_id=done.job.run_id, started=True)
    said = last_said(done, failed.rank) or "it said nothing"
    late = " at its time limit" if failed.timed_out else ""
    return DryRun(run_id=done.job.run_id, started=False, sentence=f"the dry run ended{late}: {said}")


def check_recipe(pack: Pack, subject: Subject, steps: tuple[ScanStep, ...]) -> None:
    """Raise `UsageError` for a setting that no job of the scan knows, or whose value a job refuses.

    The first run, which a task covers beside the steps, is one of its jobs.
    """
    jobs = [step.procedure for step in steps if step.procedure]
    jobs += [FIRST_RUN] if FIRST_RUN in pack.about.procedures else []
    known = {name for job in jobs for name in pack.procedure_settings(job)}
    for name in subject.recipe:
        if name not in known:
            raise UsageError(
                f"no procedure of this scan has a setting {name!r}", setting_hint(name, sorted(known))
            )
    for job in subject.settings:
        if job not in jobs:
            raise UsageError(
                f"settings are given for {job!r}, which this scan does not run",
                f"it runs: {_listed(set(jobs))}",
            )
    for job in jobs:
        checked_settings(pack, job, subject.settings_of(pack, job))


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def last_said(done: RunFolder, rank: int) -> str:
    """The last line that a rank wrote to its error log, made safe to show; empty when it wrote none."""
    path = done.path / "logs" / f"rank-{rank:05d}.err"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return ""
        file.seek(max(0, found.st_size - _SAID_BYTES))
        lines = [line.strip() for line in file.read(_SAID_BYTES).decode("utf-8", "replace").splitlines()]
    return visible_line(next((line for line in reversed(lines) if line), ""), _SENTENCE)
