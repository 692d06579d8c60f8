"""Runs a check for whoever asks (command line, MCP tool, scan): one path, one stored verdict."""

import difflib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import checks
from checks.check import Check, Inputs, Progress
from checks.errors import CheckError, NotEvaluated
from checks.records.runs import RunFolder, is_run_folder
from checks.verdict import Outcome, Verdict
from plumbline_mcp import workers
from plumbline_mcp.arguments import refusal
from plumbline_mcp.errors import UsageError, WorkerCrashed, WorkerTimedOut
from plumbline_mcp.scan.labels import NONE, approval_label
from plumbline_mcp.scan.seals import broken_seal, run_of
from plumbline_mcp.version import system_version
from plumbline_mcp.workspace import Workspace

TIME_LIMIT_S = 4 * 3600.0
"""A check that takes longer is stopped and comes out ``inconclusive``."""


def find_check(name: str) -> Check[Any, Any]:
    """The check of that name. Raises `UsageError` with the nearest one."""
    known = checks.discover()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known checks: {', '.join(known)}"
    raise UsageError(f"there is no check {name!r}", hint)


async def run_check(
    workspace: Workspace,
    name: str,
    inputs: dict[str, Any],
    *,
    progress: Progress | None = None,
    timeout_s: float = TIME_LIMIT_S,
) -> Verdict:
    """Run one check in a worker and store its verdict.

    A path input may also be a run id of this workspace. Raises `UsageError` and `BadInput` when the
    inputs cannot be used; a worker that died or ran out of time is an ``inconclusive`` verdict, one that
    a chat template took with it is ``not_evaluated``.
    """
    check = find_check(name)
    arguments = parse_inputs(workspace, check, inputs)
    verdict = _unsealed(workspace, check, arguments)
    if verdict is None:
        verdict = _vouched(workspace, arguments, await _judged(check, arguments, progress, timeout_s))
    verdict = verdict.model_copy(update={"approval": _approval(workspace, arguments)})
    return workspace.add_verdict(verdict, arguments.model_dump(mode="json", exclude_none=True))


def parse_inputs(workspace: Workspace, check: Check[Any, Any], inputs: dict[str, Any]) -> Inputs:
    """Validate a check's arguments, with paths made absolute and run ids replaced by their folders."""
    try:
        arguments: Inputs = check.inputs.model_validate({k: v for k, v in inputs.items() if v is not None})
    except ValidationError as error:
        raise UsageError(
            refusal(error, check.inputs.model_json_schema(), f"check {check.name}"),
            f"see what it takes: plumbline check {check.name} --help, or the schema of check_{check.name}",
        ) from error
    paths = {field: value for field, value in arguments if isinstance(value, Path)}
    return arguments.model_copy(update={field: _resolved(workspace, path) for field, path in paths.items()})


def _resolved(workspace: Workspace, path: Path) -> Path:
    """A run id of this workspace before a file of that name: `./name` names the file."""
    if str(path) == path.name and is_run_folder(workspace.runs / path):
        return workspace.runs / path
    found = path.expanduser().absolute()
    if str(path) == path.name and not found.exists():
        _refuse_verdict(workspace, path.name)
    return found


def _refuse_verdict(workspace: Workspace, name: str) -> None:
    """Raise `UsageError` when a verdict's id stands where a run's has to: both look alike."""
    try:
        run_id = workspace.verdict(name).verdict.run_id
    except UsageError:
        return
    step = f"its run is {run_id}" if run_id else f"plumbline show {name} names the files it judged"
    raise UsageError(f"{name} is a verdict, neither a run nor a file here", step)


def _run_folders(arguments: Inputs) -> list[Path]:
    return [value for _, value in arguments if isinstance(value, Path) and is_run_folder(value)]


def _unsealed(workspace: Workspace, check: Check[Any, Any], arguments: Inputs) -> Verdict | None:
    """An inconclusive verdict when a run's manifest is not the one whose digest was logged at sealing."""
    for path in _run_folders(arguments):
        if reason := broken_seal(workspace, path):
            return _stopped(check, arguments, reason, "rerun the procedure; a changed record is never judged")
        if reason := _other_inputs(path):
            return _stopped(check, arguments, reason, "restore what was approved, then run the job again")
    return None


def _other_inputs(path: Path) -> str:
    """Why an approved job's inputs are not those that were approved; the check says what else is wrong."""
    try:
        return RunFolder.open(path).changed_inputs()
    except CheckError:
        return ""


def _approval(workspace: Workspace, arguments: Inputs) -> str:
    """The approvals that the judged runs were started under, as this workspace stored them."""
    runs = [run_of(workspace, path) for path in _run_folders(arguments)]
    named = {run.job.approval if run else NONE for run in runs} or {NONE}
    return ", ".join(sorted(approval_label(workspace, one) for one in named))


def _vouched(workspace: Workspace, arguments: Inputs, verdict: Verdict) -> Verdict:
    """Say so when a run folder was sealed elsewhere: nothing here vouches for its manifest."""
    foreign = [path for path in _run_folders(arguments) if run_of(workspace, path) is None]
    if not foreign:
        return verdict
    notes = tuple(
        f"{path} is no run of this workspace: only its own manifest vouches for it" for path in foreign
    )
    return verdict.model_copy(update={"run_id": None, "stand_ins": (*verdict.stand_ins, *notes)})


async def _judged(
    check: Check[Any, Any], arguments: Inputs, progress: Progress | None, timeout_s: float
) -> Verdict:
    payload = {"check": check.name, "inputs": arguments.model_dump(mode="json", exclude_none=True)}
    try:
        answer = await workers.call(
            "plumbline_mcp.scan.judging:evaluate_check", payload, progress=progress, timeout_s=timeout_s
        )
    except (WorkerCrashed, WorkerTimedOut) as error:
        return _stopped(check, arguments, error.message, error.next_step)
    except NotEvaluated as error:
        verdict = _stopped(check, arguments, error.message, error.next_step)
        return verdict.model_copy(update={"outcome": Outcome.NOT_EVALUATED})
    return Verdict.model_validate(answer)


def _stopped(check: Check[Any, Any], arguments: Inputs, reason: str, next_step: str) -> Verdict:
    return Verdict(
        check=check.name,
        outcome=Outcome.INCONCLUSIVE,
        reason=reason,
        next_step=next_step,
        settings=arguments.model_dump(mode="json", exclude_none=True),
        reference=check.reference,
        system_version=str(system_version()),
    )
