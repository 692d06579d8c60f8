"""``scan_status``: what has been judged so far, and the one next call."""

import json
from collections.abc import Collection, Iterable
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from pydantic import Field

import checks
from checks.check import Check
from checks.errors import CheckError
from checks.records.runs import Exit, RunFolder
from checks.verdict import Outcome
from plumbline_mcp.scan.steps import DRY_RUN, STEPS
from plumbline_mcp.server.located import sealed_run
from plumbline_mcp.server.roles import caller
from plumbline_mcp.server.toolset import Toolset
from plumbline_mcp.server.views import View, line

if TYPE_CHECKING:
    from plumbline_mcp.report.history import Standing
    from plumbline_mcp.workspace import StoredRun, StoredVerdict

_PROCEDURES = {step.name: step.procedure for step in STEPS if step.procedure}
_RECENT = 200
"""The newest runs, among which those that wait for a verdict are looked for."""
_WORST_FIRST = (Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.NOT_EVALUATED, Outcome.PASS)
_TRUST = (
    "A job is started by job_start alone, once a reviewer signed its task or plan at a terminal; what the "
    "person starts (`plumbline run`, `plumbline onboard TARGET.toml --unsigned`) says approval none. "
)
_AGAIN = ": judge it again with the same arguments, and the new verdict takes its place"


class CheckStatus(View):
    """Where one check stands."""

    check: str
    verdicts: int
    latest: str | None = Field(description="the worst verdict that stands, the newest of equal ones")
    outcome: Outcome | None
    system_version: str | None
    procedure: str | None = Field(None, description="the job whose records it judges; null: files alone")
    run: str | None = Field(None, description="the run that ``latest`` judged")
    failing: tuple[str, ...] = Field((), description="every verdict that stands and fails, newest first")
    waiting: tuple[str, ...] = Field((), description="finished runs without a verdict, newest first")


class DryRunStatus(View):
    """The newest dry run: whether the framework takes the recipe at all."""

    run: str
    failed: bool = Field(description="the framework did not start: no later job would")
    ended: str = Field(description="by itself, with an exit code, or how far it is")
    untrusted_said: str | None = Field(None, description="its last sentence, where it failed")


class Status(View):
    """What has been done, and the one next call."""

    dry_run: DryRunStatus | None = None
    workspace: str
    checks: tuple[CheckStatus, ...]
    older: int = Field(description="verdicts before the newest 500: not looked at here")
    runs: int
    running: tuple[str, ...] = Field((), description="checks that run now")
    next: str
    trust: str


def add_tools(toolset: Toolset) -> None:
    """Add ``scan_status``."""

    def scan_status() -> Status:
        """Say what has been judged in this workspace and the one next call. Call it first."""
        return _status(toolset)

    toolset.add(scan_status, Status, title="Status of the scan")


def _status(toolset: Toolset) -> Status:
    from plumbline_mcp.report.history import CONSIDERED, standing_in
    from plumbline_mcp.scan.separation import separation

    workspace, known = toolset.workspace, checks.discover()
    counting = standing_in(workspace)[::-1]
    sealed = [run for run in workspace.runs_list(limit=_RECENT) if run.state == "sealed"]
    runs = [run for run in sealed if (workspace.runs / run.run_id).is_dir()]  # a pruned one waits for nothing
    standing = tuple(
        _standing(
            name,
            workspace.verdict_count(check=name),
            [one for one in counting if one.stored.verdict.check == name],
            [run for run in runs if run.job.procedure == _PROCEDURES.get(name)],
            workspace.runs,
        )
        for name in known
    )
    dry_run, who = _dry_run(toolset), caller()
    return Status(
        dry_run=dry_run,
        workspace=str(workspace.home),
        checks=standing,
        older=max(0, workspace.verdict_count() - CONSIDERED),
        runs=workspace.run_count(),
        running=tuple(toolset.running.names()),
        next=_refused(dry_run)
        or _next(standing, known, toolset.shown, {one.stored.verdict.id: one.since for one in counting}),
        trust=f"You are {who.name} (role {who.role}). {_TRUST}Trust: {separation(workspace)}.",
    )


def _dry_run(toolset: Toolset) -> DryRunStatus | None:
    """The newest dry run that is finished; where none is, how far the newest is."""
    found = [run for run in toolset.workspace.runs_list(limit=_RECENT) if run.job.procedure == DRY_RUN]
    run = next((run for run in found if run.state == "sealed"), next(iter(found), None))
    if run is None:
        return None
    if run.state != "sealed":
        return DryRunStatus(run=run.run_id, failed=False, ended=run.state.value)
    try:
        return _ended(sealed_run(toolset, run.run_id))
    except CheckError as error:
        return DryRunStatus(run=run.run_id, failed=False, ended=line(error.message))


def _ended(run: RunFolder) -> DryRunStatus:
    from plumbline_mcp.scan.scanning import last_said

    name, exits = run.path.name, run.exits()
    broken = next((one for one in exits if not one.clean), None)
    if broken is not None:
        said = last_said(run, broken.rank) or None
        return DryRunStatus(run=name, failed=True, ended=_ending(broken), untrusted_said=said)
    return DryRunStatus(run=name, failed=False, ended="by itself" if exits else "without an exit record")


def _ending(broken: Exit) -> str:
    if broken.timed_out:
        return "at its time limit"
    if broken.signal:
        return f"by signal {broken.signal}"
    return f"with exit code {'unknown' if broken.code is None else broken.code}"


def _standing(
    name: str, count: int, newest_first: "list[Standing]", runs: "list[StoredRun]", folder: Path
) -> CheckStatus:
    """A check: what stands of it, and which of the finished ``runs`` of its procedure it has not judged."""
    verdicts = [one.stored for one in newest_first]
    worst = min(verdicts, key=lambda one: _WORST_FIRST.index(one.verdict.outcome), default=None)
    failing = [one.verdict.id for one in verdicts if one.verdict.outcome is Outcome.FAIL]
    judged = {_run_of(each, folder) for one in newest_first for each in (one.stored, *one.earlier)}
    return CheckStatus(
        check=name,
        verdicts=count,
        latest=worst.verdict.id if worst else None,
        outcome=worst.verdict.outcome if worst else None,
        system_version=worst.verdict.system_version if worst else None,
        procedure=_PROCEDURES.get(name),
        run=_run_of(worst, folder) if worst else None,
        failing=tuple(failing),
        waiting=tuple(run for run in _of_each_configuration(runs) if run not in judged),
    )


def _run_of(stored: "StoredVerdict", runs: Path) -> str | None:
    """The run that a verdict is on; one that stopped before it judged names none, but its inputs do."""
    from plumbline_mcp.report.subjects import JUDGED

    given = (stored.inputs.get(name) for name in JUDGED)
    paths = [PurePath(one) for one in given if isinstance(one, str)]
    below = (path.relative_to(runs).parts for path in paths if path.is_relative_to(runs))
    return stored.verdict.run_id or next((parts[0] for parts in below if parts), None)


def _of_each_configuration(newest_first: "Iterable[StoredRun]") -> list[str]:
    """The newest run of each framework, inputs and settings that nobody cancelled."""
    found: dict[str, str] = {}
    for run in newest_first:
        if run.outcome != "cancelled":
            known = json.dumps([run.job.framework, run.job.inputs, run.job.settings], sort_keys=True)
            found.setdefault(known, run.run_id)
    return list(found.values())


def _refused(dry_run: DryRunStatus | None) -> str:
    """The call that shows why the framework does not start; empty where it does."""
    if dry_run is None or not dry_run.failed:
        return ""
    return (
        f'run_show(run_id="{dry_run.run}") shows why the dry run failed (it ended {dry_run.ended}); '
        "the person mends that and runs it again"
    )


def _next(
    standing: tuple[CheckStatus, ...],
    known: dict[str, Check[Any, Any]],
    shown: Collection[str | None],
    since: dict[str, str],
) -> str:
    """A fail is looked at first, then what was not judged yet, then what could not be judged."""
    if not any(one.verdicts or one.waiting for one in standing):
        return "check_list(), then the first check whose files you have"
    failed = next((name for one in standing for name in one.failing if name not in shown), None)
    if failed:
        newer = since.get(failed)
        other = f"; what it judged has other content since {newer}{_AGAIN}" if newer else ""
        return f'verdict_show(verdict_id="{failed}"){other}'
    missing = next((one for one in standing if one.waiting or one.latest is None), None)
    if missing:
        return _judge(missing, known[missing.check])
    undecided = next((one for one in standing if one.outcome is not Outcome.PASS), None)
    if undecided and undecided.latest not in shown:
        return f'verdict_show(verdict_id="{undecided.latest}")'
    if undecided:
        return f"mend what {undecided.latest} says, then check_{undecided.check} with the same arguments"
    return "nothing is open: report the verdicts (verdict_list; the person can run `plumbline report`)"


def _judge(missing: CheckStatus, check: Check[Any, Any]) -> str:
    """The call of a check that lacks a verdict: with the run that waits, or after the person made one."""
    required = [name for name, field in check.inputs.model_fields.items() if field.is_required()]
    from_run = {step.name: step.arguments for step in STEPS}.get(missing.check, {})
    run = next(iter(missing.waiting), None)
    filled = {name: run for name, what in from_run.items() if what == "run" and run}
    call = ", ".join(f'{name}="{filled[name]}"' if name in filled else f"{name}=..." for name in required)
    if "run" in required and run is None:
        return (
            f"job_start(ticket, job) of procedure {missing.procedure} (task_draft, plan_draft), or "
            f"the person runs `plumbline run {missing.procedure}`; then check_{missing.check}({call})"
        )
    return f"check_{missing.check}({call})"
