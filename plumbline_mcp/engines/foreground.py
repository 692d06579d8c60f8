"""Runs a job in the foreground: it is submitted to the local engine and followed until it is over.

Ctrl-C, SIGTERM and a closed terminal cancel the job and remove its run. When we are killed the job goes on
under its supervisor; ``plumbline job`` finds it.
"""

import contextlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from checks.check import Progress, silent
from checks.records.runs import RunFolder
from plumbline_mcp.engines.engine import State, Status
from plumbline_mcp.engines.launching import Launch
from plumbline_mcp.engines.local.ending import DISK_FULL
from plumbline_mcp.engines.local.engine import LocalEngine
from plumbline_mcp.engines.local.files import RunFiles
from plumbline_mcp.engines.local.space import NO_SPACE
from plumbline_mcp.errors import BuildError
from plumbline_mcp.workspace import RunState, Workspace

_POLL_S = 0.1
_SUBMITTED_S = 0.02
_RELEASED_S = 3.0
_MAX_PROGRESS = 64 * 1024
_MAX_MESSAGE = 200


async def run(workspace: Workspace, launch: Launch, progress: Progress = silent) -> RunFolder:
    """Run the launch to its end and return its sealed folder.

    A job that crashes or exceeds its time still ends in a sealed folder: its exit files say so. Raises
    `UsageError` and `BadInput` (an unusable launch), `BuildError` (not started, or not sealed).
    """
    engine = LocalEngine(workspace)
    with ThreadPoolExecutor(1) as pool:
        submitted = pool.submit(engine.submit, launch)
        try:
            while not submitted.done():
                await anyio.sleep(_SUBMITTED_S)
            run_id = submitted.result()
            progress(0, None, f"run {run_id}: {launch.procedure} on {launch.framework}")
            await follow(engine, workspace, run_id, progress)
        except BaseException:
            # Ctrl-C cancels the task itself, which no shield of anyio holds off: a submission on its way is
            # waited for (half a second), since what is not known cannot be cancelled.
            if submitted.exception() is None:
                with anyio.CancelScope(shield=True):
                    await _undone(engine, workspace, submitted.result())
            raise
    return sealed_folder(workspace, run_id)


async def follow(
    engine: LocalEngine, workspace: Workspace, run_id: str, progress: Progress = silent
) -> Status:
    """Wait until a job is over, telling its progress; the job is not touched. Raises `UsageError`."""
    told = _Told(workspace.runs / run_id / "logs" / "progress.jsonl", progress)
    while True:
        status = await anyio.to_thread.run_sync(engine.status, run_id)
        if status.state.over:
            await _released(workspace.runs / run_id)
            return status
        if status.state is State.QUEUED:
            progress(0, None, status.reason)
        told.read()
        await anyio.sleep(_POLL_S)


async def _released(run: Path) -> None:
    """Wait until the supervisor, which stores the end first, has taken its own files away."""
    with anyio.move_on_after(_RELEASED_S):
        while RunFiles(run).lock.exists():
            await anyio.sleep(_SUBMITTED_S)


def sealed_folder(workspace: Workspace, run_id: str) -> RunFolder:
    """The folder of a run that is over. Raises `BuildError` when it was not sealed."""
    stored = workspace.run(run_id)
    if stored.state is RunState.SEALED:
        return RunFolder.open(workspace.runs / run_id)
    raise BuildError(f"run {run_id} was removed: {stored.reason or stored.state}", _next_step(stored.reason))


def _next_step(reason: str) -> str:
    if reason == DISK_FULL or NO_SPACE in reason:
        return "free space there, or set PLUMBLINE_HOME to a folder with more, then run it again"
    if "could not be ended" in reason:
        return "look for a process in uninterruptible sleep (D), then run it again"
    return "run it again; report it as a bug if it stays"


async def _undone(engine: LocalEngine, workspace: Workspace, run_id: str) -> None:
    """Cancel the job and wait until nothing of it is left."""
    undo = partial(engine.cancel, run_id, remove=True, why="cancelled by the program that ran it")
    await anyio.to_thread.run_sync(undo)
    await follow(engine, workspace, run_id)


class _Told:
    """Passes on what the job appends to its progress file; what it writes is untrusted."""

    def __init__(self, path: Path, progress: Progress) -> None:
        self._path, self._progress = path, progress
        self._offset, self._rest = 0, b""

    def read(self) -> None:
        """Tell the last line that came since."""
        with contextlib.suppress(OSError):
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                file.seek(self._offset)
                chunk = file.read(_MAX_PROGRESS)
            self._offset += len(chunk)
            *lines, rest = (self._rest + chunk).split(b"\n")
            self._rest = rest[-_MAX_PROGRESS:]
            for line in lines[-1:]:
                _report(line, self._progress)


def _report(line: bytes, progress: Progress) -> None:
    try:
        done, total, message = json.loads(line)
        step = float(done), None if total is None else float(total)
    except (ValueError, TypeError, RecursionError):
        return
    text = "".join(letter if letter.isprintable() else "?" for letter in str(message)[:_MAX_MESSAGE])
    progress(*step, text)
