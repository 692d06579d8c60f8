"""``scan_status``: what has been judged so far, and the one next call."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from pydantic import Field

import checks
from checks.check import Check
from checks.errors import CheckError
from checks.records.runs import RunFolder
from checks.verdict import Outcome
from plumbline_mcp.scan.steps import DRY_RUN, STEPS
from plumbline_mcp.server.toolset import Toolset
from plumbline_mcp.server.views import View

if TYPE_CHECKING:
    from plumbline_mcp.workspace import StoredRun, Workspace

_PROCEDURES = {step.name: step.procedure for step in STEPS if step.procedure}
_RECENT = 200
"""Runs that are looked through for the newest of each procedure."""
_TRUST = (
    "No tool starts a job: the person runs `plumbline onboard TARGET.toml`, or `plumbline run PROCEDURE`. "
    "Approvals do not exist in this version: every verdict says approval none. Over standard input and "
    "output the agent is the same user as this server and could change its files: records are advisory."
)


class CheckStatus(View):
    """Where one check stands."""

    check: str
    verdicts: int
    latest: str | None = Field(description="id of the newest verdict")
    outcome: Outcome | None
    system_version: str | None
    procedure: str | None = Field(None, description="the job whose records it judges; null: files alone")
    run: str | None = Field(None, description="newest finished run of that procedure")


class DryRunStatus(View):
    """The newest dry run: whether the framework takes the recipe at all."""

    run: str
    ended: str = Field(description="by itself, with an exit code, or how far it is")


class Status(View):
    """What has been done, and the one next call."""

    workspace: str
    checks: tuple[CheckStatus, ...]
    dry_run: DryRunStatus | None = None
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
    workspace, known = toolset.workspace, checks.discover()
    newest = _newest(workspace)
    standing = tuple(_standing(workspace, name, newest) for name in known)
    return Status(
        workspace=str(workspace.home),
        checks=standing,
        dry_run=_dry_run(workspace, newest.get(DRY_RUN)),
        runs=workspace.run_count(),
        running=tuple(toolset.running.names()),
        next=_next(standing, known, toolset.shown),
        trust=_TRUST,
    )


def _newest(workspace: "Workspace") -> "dict[str, StoredRun]":
    """The newest run of each procedure among the recent ones; a finished one before one that is not."""
    found: dict[str, StoredRun] = {}
    for run in workspace.runs_list(limit=_RECENT):
        held = found.get(run.job.procedure)
        if held is None or (held.state != "sealed" and run.state == "sealed"):
            found[run.job.procedure] = run
    return found


def _dry_run(workspace: "Workspace", run: "StoredRun | None") -> DryRunStatus | None:
    if run is None:
        return None
    try:
        exits = RunFolder.open(workspace.runs / run.run_id).exits() if run.state == "sealed" else []
    except CheckError as error:
        return DryRunStatus(run=run.run_id, ended=error.message)
    if not exits:
        return DryRunStatus(run=run.run_id, ended=run.state.value)
    code = exits[0].code
    return DryRunStatus(
        run=run.run_id, ended="by itself" if exits[0].clean else f"with exit code {code}: see its log"
    )


def _standing(workspace: "Workspace", name: str, runs: "dict[str, StoredRun]") -> CheckStatus:
    procedure = _PROCEDURES.get(name)
    run = runs.get(procedure or "")
    newest = next(iter(workspace.verdicts(check=name, limit=1)), None)
    return CheckStatus(
        check=name,
        verdicts=workspace.verdict_count(check=name),
        latest=newest.verdict.id if newest else None,
        outcome=newest.verdict.outcome if newest else None,
        system_version=newest.verdict.system_version if newest else None,
        procedure=procedure,
        run=run.run_id if run is not None and run.state == "sealed" else None,
    )


def _next(
    standing: tuple[CheckStatus, ...], known: dict[str, Check[Any, Any]], shown: Collection[str | None]
) -> str:
    """A fail is looked at first, then what was not judged yet, then what could not be judged."""
    if not any(one.verdicts for one in standing):
        return "check_list(), then the first check whose files you have"
    failed = next((one for one in standing if one.outcome is Outcome.FAIL and one.latest not in shown), None)
    if failed:
        return f'verdict_show(verdict_id="{failed.latest}")'
    missing = next((one for one in standing if one.latest is None), None)
    if missing:
        return _judge(missing, known[missing.check])
    undecided = next((one for one in standing if one.outcome is not Outcome.PASS), None)
    if undecided and undecided.latest not in shown:
        return f'verdict_show(verdict_id="{undecided.latest}")'
    if undecided:
        return f"mend what {undecided.latest} says, then check_{undecided.check} with the same arguments"
    return "nothing is open: report the verdicts (verdict_list; the person can run `plumbline report`)"


def _judge(missing: CheckStatus, check: Check[Any, Any]) -> str:
    """The call of a check that has no verdict: a run that is there is named, one that is not is asked for."""
    required = [name for name, field in check.inputs.model_fields.items() if field.is_required()]
    from_run = {step.name: step.arguments for step in STEPS}.get(missing.check, {})
    filled = {name: missing.run for name, what in from_run.items() if what == "run" and missing.run}
    call = ", ".join(f'{name}="{filled[name]}"' if name in filled else f"{name}=..." for name in required)
    if "run" in required and missing.run is None:
        return (
            f"ask the person to run `plumbline run {missing.procedure}`, then check_{missing.check}({call})"
        )
    return f"check_{missing.check}({call})"
