"""The foreground engine: one process, followed until it ends; the run folder is sealed or removed.

A supervisor of its own runs the job (`plumbline_mcp.engines.supervisor`); it ends the job when we are
cancelled or killed. A run that was in progress when we were killed is swept by the next one.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
from anyio.abc import Process

from checks.check import Progress, silent
from checks.records.runs import Exit, Job, RunFolder, read_json
from plumbline_mcp.engines.launching import Launch, Prepared, prepare, write_run
from plumbline_mcp.engines.sealing import MANIFEST, seal
from plumbline_mcp.engines.supervisor import NOT_GONE
from plumbline_mcp.errors import BuildError, UsageError
from plumbline_mcp.workspace import RunState, Workspace
from plumbline_mcp.workspace.records import ID_PATTERN

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_POLL_S = 0.2
_END_S = 30
"""How long a cancelled supervisor has: it needs at most two graces of its own."""
_MAX_PROGRESS = 64 * 1024
_MAX_MESSAGE = 200
_LAST_SAID = 2000
_NO_SPACE = os.strerror(errno.ENOSPC).encode()


async def run(workspace: Workspace, launch: Launch, progress: Progress = silent) -> RunFolder:
    """Run the launch in the foreground (see `plumbline_mcp.engines.engine.Engine`).

    When cancelled, the whole job is ended, its folder removed and the run noted as removed.
    """
    prepare(launch, "unnamed")  # every mistake in the launch is met before an id is taken
    await anyio.to_thread.run_sync(sweep, workspace, progress)
    run_id = workspace.new_id(launch.procedure)
    folder = workspace.runs / run_id
    with _locked(workspace, run_id) as lock:
        job = _registered(workspace, prepare(launch, run_id), folder)
        try:
            await _supervised(folder, job, lock, progress)
            progress(0, None, "sealing the run folder")
            digest = await anyio.to_thread.run_sync(seal, folder)
        except BaseException as error:
            _removed(workspace, run_id, error)
            if isinstance(error, OSError):
                raise _no_disk(folder, error) from error
            raise
        workspace.seal_run(run_id, digest)
    return RunFolder.open(folder)


def _registered(workspace: Workspace, prepared: Prepared, folder: Path) -> Job:
    try:
        folder.mkdir(mode=0o700)
        job = write_run(prepared, folder)
        workspace.add_run(job, RunState.RUNNING)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise _no_disk(folder, error) from error
        raise
    return job


async def _supervised(folder: Path, job: Job, lock: int, progress: Progress) -> None:
    """Start the supervisor and wait for its end. Raises `BuildError` when it left no exit file."""
    process = await anyio.open_process(
        [sys.executable, "-I", str(_SUPERVISOR), str(folder), str(job.time_limit_s)],
        start_new_session=True,
        env={"PATH": os.defpath, "LANG": "C.UTF-8"},
        pass_fds=(lock,),
    )
    progress(0, None, f"run {job.run_id}: {job.procedure} on {job.framework}")
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_follow, folder / "logs" / "progress.jsonl", progress)
            await process.wait()
            group.cancel_scope.cancel()
        said = await process.stderr.receive() if process.returncode and process.stderr else b""
    except anyio.EndOfStream:
        said = b""
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)
    if process.returncode or not (folder / "exit" / "rank-00000.json").is_file():
        raise _lost(job, process.returncode, said)
    if _ran_out_of_space(folder):  # not the framework's fault: a check would blame it for what the disk did
        raise _disk_full(job)


def _ran_out_of_space(folder: Path) -> bool:
    """Whether the job failed and the last that it said was that the disk is full."""
    if Exit.model_validate(read_json(folder / "exit" / "rank-00000.json")).clean:
        return False
    with contextlib.suppress(OSError):  # the job may have put anything in its place
        descriptor = os.open(folder / "logs" / "rank-00000.err", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            file.seek(max(0, os.fstat(descriptor).st_size - _LAST_SAID))
            return _NO_SPACE in (file.read(_LAST_SAID) or b"")
    return False


async def _end(process: Process) -> None:
    """Tell the supervisor to stop, and wait until it has ended the job."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with anyio.move_on_after(_END_S):
            await process.wait()
        if process.returncode is None:
            process.kill()
    await process.aclose()


async def _follow(path: Path, progress: Progress) -> None:
    """Pass on the lines that the job appends to its progress file; what it writes is untrusted."""
    offset, rest = 0, b""
    while True:
        await anyio.sleep(_POLL_S)
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                file.seek(offset)
                chunk = file.read(_MAX_PROGRESS)
            offset += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-_MAX_PROGRESS:]
            for line in lines[-1:]:
                _report(line, progress)


def _report(line: bytes, progress: Progress) -> None:
    try:
        done, total, message = json.loads(line)
        step = float(done), None if total is None else float(total)
    except (ValueError, TypeError, RecursionError):
        return
    text = "".join(letter if letter.isprintable() else "?" for letter in str(message)[:_MAX_MESSAGE])
    progress(*step, text)


@contextlib.contextmanager
def _locked(workspace: Workspace, run_id: str) -> Iterator[int]:
    """Hold the run's lock. The supervisor inherits it: it is held until the job is over, even without us."""
    path = workspace.runs / f".{run_id}.lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _no_disk(path, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def sweep(workspace: Workspace, progress: Progress = silent) -> list[str]:
    """Remove what killed runs left, and say so: folders that are not sealed and that nobody runs now."""
    running = {stored.run_id for stored in workspace.runs_list(RunState.RUNNING, limit=10_000)}
    unsealed = {
        path.name
        for path in workspace.runs.iterdir()
        if re.fullmatch(ID_PATTERN, path.name) and path.is_dir() and not (path / MANIFEST).is_file()
    }
    dead = [run_id for run_id in sorted(running | unsealed) if _is_dead(workspace, run_id)]
    for run_id in dead:
        shutil.rmtree(workspace.runs / run_id, ignore_errors=True)
        if run_id in running:
            workspace.end_run(run_id, RunState.LOST, "the program was killed while it ran")
        (workspace.runs / f".{run_id}.lock").unlink(missing_ok=True)
        progress(0, None, f"removed run {run_id}: it was killed before it was sealed")
    return dead


def _is_dead(workspace: Workspace, run_id: str) -> bool:
    """Whether nobody runs it any more. The row is read after the lock: it is ended before the lock goes."""
    if _is_locked(workspace.runs / f".{run_id}.lock"):
        return False
    try:
        return workspace.run(run_id).state is RunState.RUNNING
    except UsageError:
        return True  # no row: killed between making the folder and registering it


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _removed(workspace: Workspace, run_id: str, error: BaseException) -> None:
    shutil.rmtree(workspace.runs / run_id, ignore_errors=True)
    state = RunState.LOST if isinstance(error, BuildError) else RunState.REMOVED
    workspace.end_run(run_id, state, f"{type(error).__name__}: {error}"[:200])


def _lost(job: Job, code: int | None, said: bytes) -> BuildError:
    text = said.decode("utf-8", "replace")
    if _NO_SPACE in said:
        return _disk_full(job)
    if code == NOT_GONE:
        return BuildError(
            f"run {job.run_id} was removed: a process of the job could not be ended, so nothing was sealed",
            "look for a process in uninterruptible sleep (D), then run it again",
        )
    last = "".join(text.strip().splitlines()[-1:])[:200]
    return BuildError(
        f"run {job.run_id} left no exit file: its supervisor ended with {code}{': ' if last else ''}{last}",
        "run it again; report it as a bug if it stays",
    )


def _disk_full(job: Job) -> BuildError:
    return BuildError(
        f"run {job.run_id} was removed: the disk was full before it ended",
        "free space there, or set PLUMBLINE_HOME to a folder with more, then run it again",
    )


def _no_disk(path: Path, error: OSError) -> BuildError:
    return BuildError(
        f"the run folder {path} cannot be written: {error.strerror or error}",
        "free space there, or set PLUMBLINE_HOME to a folder that you can write",
    )
