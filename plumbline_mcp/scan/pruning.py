"""Run folders that nothing rests on any more, and their removal. Verdicts, findings and the audit log stay.

A folder is needed by each verdict that counts (`report.history`), by each finding whatever its state, and by
each run whose job read from it. A run that no verdict is on still waits for its check, unless the same job
ran again since.
"""

import json
import os
import shutil
from collections.abc import Iterable, Sequence, Set
from pathlib import Path, PurePath

from pydantic import Field, JsonValue

from approvals.audit import AuditLog
from checks.verdict import Frozen
from plumbline_mcp.errors import PlumblineError, UsageError
from plumbline_mcp.findings.store import Findings
from plumbline_mcp.report.history import jobs_in, standing
from plumbline_mcp.temporaries import sweep_temporaries, temporary_beside
from plumbline_mcp.workspace import RunOutcome, RunState, StoredRun, StoredVerdict, Workspace

REMOVED = "run_folder_removed"
"""Of the audit log: the folder of a sealed run is gone; the run and its manifest's digest stay."""


class Unneeded(Frozen):
    """A run folder that may go."""

    run_id: str
    bytes: int = Field(description="of its files")
    why: str
    verdicts: tuple[str, ...] = Field((), description="replaced verdicts whose evidence goes with it")


def unneeded(workspace: Workspace, wanted: Sequence[str] = ()) -> list[Unneeded]:
    """The run folders that may go, newest first; of ``wanted`` alone where runs are named.

    Raises `UsageError` for a named run that is not there, or that something rests on.
    """
    known = {run.run_id: run for run in workspace.runs_list(limit=-1)}  # to SQLite no limit
    for run_id in wanted:
        workspace.run(run_id)
    verdicts = workspace.verdicts(limit=-1)
    resting = {one.verdict.id: _runs_of(one, known.keys()) for one in verdicts}
    needed = _needed(workspace, verdicts, resting, known)
    found: list[Unneeded] = []
    newest: dict[str, str] = {}
    for run in known.values():
        folder = workspace.runs / run.run_id
        if run.state is not RunState.SEALED or folder.is_symlink() or not folder.is_dir():
            _refuse(run.run_id, wanted, "its folder is not that of a finished run")
            continue
        newer = newest.get(_configuration(run), "")
        if run.outcome in (None, RunOutcome.SUCCEEDED):  # one that failed is in the place of no other
            newest.setdefault(_configuration(run), run.run_id)
        if run.run_id in needed:
            _refuse(run.run_id, wanted, f"{needed[run.run_id]} rests on it")
            continue
        replaced = tuple(name for name, runs in resting.items() if run.run_id in runs)
        why = _why(newer, replaced, named=run.run_id in wanted)
        if why and (not wanted or run.run_id in wanted):
            found.append(Unneeded(run_id=run.run_id, bytes=_size(folder), why=why, verdicts=replaced))
    return found


def remove(workspace: Workspace, chosen: Iterable[Unneeded]) -> None:
    """Remove the folders, each with an entry in the audit log.

    Raises `UsageError` where one is needed by now, `PlumblineError` where one does not go whole. The entry is
    stored before the folder goes: what is killed between leaves a folder, never a silent loss.
    """
    sweep_temporaries(workspace.runs)
    for one in chosen:
        folder = workspace.runs / one.run_id
        gone = temporary_beside(folder)
        try:
            with workspace.write_tx() as database:
                _still(workspace, one)
                detail: dict[str, JsonValue] = {
                    "manifest_sha256": workspace.run(one.run_id).manifest_sha256,
                    "verdicts": list(one.verdicts),
                }
                AuditLog(database.conn).append(REMOVED, one.run_id, detail)
                folder.rename(gone)
        except BaseException:
            if gone.is_dir() and not folder.exists():  # the entry was not stored
                gone.rename(folder)
            raise
        shutil.rmtree(gone, ignore_errors=True)
        if gone.exists():
            raise PlumblineError(f"{gone} could not be removed whole", "remove it by hand")


def _still(workspace: Workspace, one: Unneeded) -> None:
    if unneeded(workspace, [one.run_id])[0].verdicts != one.verdicts:
        raise UsageError(f"{one.run_id} was judged meanwhile", "list what may go again")


def _refuse(run_id: str, wanted: Sequence[str], why: str) -> None:
    if run_id in wanted:
        raise UsageError(f"the folder of {run_id} stays: {why}", "plumbline prune lists what may go")


def _why(newer: str, replaced: tuple[str, ...], *, named: bool) -> str:
    """Why nothing needs it; empty for a run that waits for its check."""
    if replaced:
        return "newer verdicts took the place of those on it"
    if newer:
        return f"no verdict is on it, and {newer} is the same job again"
    return "no verdict is on it" if named else ""


def _needed(
    workspace: Workspace,
    verdicts: list[StoredVerdict],
    resting: dict[str, set[str]],
    known: dict[str, StoredRun],
) -> dict[str, str]:
    """Runs that something rests on, and what does."""
    needed: dict[str, str] = {}
    for finding in Findings(workspace).every():
        named = {*finding.run_sha256, *(handle.source for handle in finding.evidence)}
        for name in finding.verdicts:
            named |= resting.get(name, set())
        needed |= dict.fromkeys(named, finding.id)
    for one in standing(verdicts, jobs_in(workspace)):
        needed |= dict.fromkeys(resting[one.stored.verdict.id], one.stored.verdict.id)
    for run in known.values():
        read = set[str]().union(*(_named(str(value), known.keys()) for value in run.job.inputs.values()))
        needed |= dict.fromkeys(read - {run.run_id}, run.run_id)
    return needed


def _runs_of(stored: StoredVerdict, known: Set[str]) -> set[str]:
    """Every run that a verdict names, in its inputs or its evidence."""
    texts = [one for one in stored.inputs.values() if isinstance(one, str)]
    texts += [evidence.path for evidence in stored.verdict.evidence]
    return set[str]().union(*(_named(text, known) for text in [stored.verdict.run_id or "", *texts]))


def _named(path: str, known: Set[str]) -> set[str]:
    """The runs whose id is a part of a path: rather one too many than one too few."""
    return {part for part in PurePath(path).parts if part in known}


def _configuration(run: StoredRun) -> str:
    return json.dumps(
        [run.job.procedure, run.job.framework, run.job.inputs, run.job.settings], sort_keys=True, default=str
    )


def _size(folder: Path) -> int:
    """Bytes of the files below a folder; links are not followed."""
    return sum(Path(place, name).lstat().st_size for place, _, names in os.walk(folder) for name in names)
