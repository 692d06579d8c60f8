"""Ends what killed supervisors left: processes of the job first, then the folder; the run is marked lost."""

import contextlib
import os
import re
import shutil

from checks.check import Progress, silent
from plumbline_mcp.engines.local.files import RunFiles
from plumbline_mcp.engines.local.processes import end_all
from plumbline_mcp.engines.sealing import MANIFEST
from plumbline_mcp.errors import UsageError
from plumbline_mcp.workspace import RunState, StoredRun, Workspace
from plumbline_mcp.workspace.records import ID_PATTERN

_END_S = 10.0
_ALL = 100_000
_OURS = re.compile(r"\.(?P<run>[a-z][a-z0-9_]{0,39}-[0-9]{4,12})\.(lock|state|cancel)(\.[0-9a-f]{8}\.part)?")


def sweep(workspace: Workspace, progress: Progress = silent, *, but: str | None = None) -> list[str]:
    """Sweep every run that nobody supervises; returns their ids. ``but`` is about to be started again."""
    swept = [run_id for run_id in _candidates(workspace) if run_id != but and sweep_run(workspace, run_id)]
    for run_id in swept:
        progress(0, None, f"removed run {run_id}: it was stopped before it was sealed")
    return swept


def sweep_run(workspace: Workspace, run_id: str) -> bool:
    """Sweep one run unless somebody supervises it; true when it was lost, or never registered."""
    files = RunFiles(workspace.runs / run_id)
    if files.held():
        return False
    lock = files.take_lock()
    if lock is None:
        return False
    try:  # read under the lock: it is ended before its lock goes
        run = _stored(workspace, run_id)
        if run is not None and run.state is RunState.SUBMITTING and run.job.approval != "none":
            shutil.rmtree(files.run, ignore_errors=True)
            return False  # its attempt was consumed: the same submission made again starts it
        if run is None or not run.state.over:
            return _lost(workspace, files, None if run is None else run.state)
        files.remove()  # what a supervisor left that was killed after it had stored the end
        return False
    finally:
        os.close(lock)


def _lost(workspace: Workspace, files: RunFiles, state: RunState | None) -> bool:
    known = files.supervision()
    if not end_all(files.run, known.left() if known else (), _END_S):
        return False  # a process that cannot be ended writes on: the next sweep tries again
    shutil.rmtree(files.run, ignore_errors=True)
    if state is not None:
        started = state is RunState.RUNNING
        reason = "its supervisor was killed while it ran" if started else "it was stopped before it started"
        with contextlib.suppress(UsageError):  # ended by somebody else meanwhile
            workspace.end_run(files.run.name, RunState.LOST, reason)
    files.remove()
    return True


def _candidates(workspace: Workspace) -> list[str]:
    """Runs that count as in progress, folders without a manifest, and files of the engine."""
    active = {
        run.run_id
        for state in (RunState.SUBMITTING, RunState.RUNNING)
        for run in workspace.runs_list(state, limit=_ALL)
    }
    found = set(active)
    for path in workspace.runs.iterdir():
        if named := _OURS.fullmatch(path.name):
            found.add(named["run"])
        elif re.fullmatch(ID_PATTERN, path.name) and path.is_dir() and not (path / MANIFEST).is_file():
            found.add(path.name)
    return sorted(found)


def _stored(workspace: Workspace, run_id: str) -> StoredRun | None:
    """The stored run; None without a row: killed between making the folder and registering it."""
    try:
        return workspace.run(run_id)
    except UsageError:
        return None
