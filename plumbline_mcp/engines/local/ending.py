"""The end of a run: sealed with the digest in the audit log, or gone with a reason. Never both or twice."""

import shutil
from pathlib import Path
from typing import Any

from plumbline_mcp.engines.confinement import another_user
from plumbline_mcp.engines.confinement.choosing import USER
from plumbline_mcp.engines.local import exits, space
from plumbline_mcp.engines.local.input_digests import InputDigests
from plumbline_mcp.engines.sealing import seal
from plumbline_mcp.errors import PlumblineError, WorkspaceError
from plumbline_mcp.workspace import RunOutcome, RunState, Workspace

DISK_FULL = "the disk was full before it ended"


def seal_or_lose(
    run: Path, job: dict[str, Any], end: exits.JobEnd, confinement: str, inputs: InputDigests
) -> None:
    """Complete the exit files, seal the run and log its digest. A full disk leaves no record of a job."""
    ranks, log_bytes = int(job["world_size"]), int(job["log_bytes"])
    try:
        if confinement == USER:
            another_user.taken_back(run)
        record = exits.complete(run, ranks, end)
        if record["outcome"] == "failed" and space.ran_out(run, ranks):
            lose(run, DISK_FULL)  # not the framework's fault: a check would blame it for what the disk did
            return
        inputs.note(run)
        space.join_tails(run, log_bytes)
        digest = seal(run)
    except Exception as error:  # noqa: BLE001 - whatever the job left, its end is stored now and not by a sweep
        full = space.NO_SPACE in str(error)
        lose(run, DISK_FULL if full else f"its records could not be sealed: {error!r}")
        return
    try:
        workspace = Workspace.open(run.parent.parent, create=False)
        workspace.seal_run(run.name, digest, RunOutcome(record["outcome"]), record["reason"])
    except WorkspaceError as error:
        lose(
            run, DISK_FULL if "no space" in error.message else error.message
        )  # the folder's space is free now


def lose(run: Path, reason: str) -> None:
    """Remove the folder and note the run as lost."""
    _end(run, RunState.LOST, reason)


def remove(run: Path, reason: str) -> None:
    """Remove the folder and note the run as removed."""
    _end(run, RunState.REMOVED, reason)


def _end(run: Path, state: RunState, reason: str) -> None:
    shutil.rmtree(run, ignore_errors=True)
    workspace = Workspace.open(run.parent.parent, create=False)
    try:
        if not workspace.run(run.name).state.over:
            workspace.end_run(run.name, state, reason[:500])
    except PlumblineError:
        if not workspace.run(run.name).state.over:  # not ended by somebody else meanwhile
            raise
