"""Paths in arguments: absolute, relative to the server's folder, or the id of a run."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checks.errors import BadInput
from checks.records.runs import RunFolder, is_run_folder
from plumbline_mcp.errors import UsageError
from plumbline_mcp.server.reading.sealed import verify_manifest
from plumbline_mcp.server.toolset import Toolset

if TYPE_CHECKING:
    from plumbline_mcp.workspace import StoredRun, StoredVerdict

_RUNS = 100_000


def located(toolset: Toolset, named: str) -> Path:
    """The path an argument names; a run id stands for its folder. Raises `BadInput`, `UsageError`."""
    if "\0" in named or not named:
        raise BadInput("an empty path or one with a null character names nothing", "name a file or folder")
    path = Path(named).expanduser()
    if path.exists():
        return path.absolute()
    if len(path.parts) == 1 and path.name not in {".", ".."}:
        known_run(toolset, named)
        return toolset.workspace.runs / named
    raise BadInput(
        f"{named[:200]} does not exist", "name an absolute path, or one relative to the server's folder"
    )


def readable(toolset: Toolset, named: str) -> dict[str, Any]:
    """The path an argument names, for a worker: ``path``, and what vouches for it where it is of a run.

    ``run`` is the run's folder, ``manifest_sha256`` the digest that was logged when it was sealed: of a run
    below this workspace by its folder, also when only a file of it is named; of a run folder elsewhere (a
    copy) by the id that it says, None for one that this workspace does not know. Raises `BadInput`,
    `UsageError`, `NotEvaluated`, `Inconclusive`.
    """
    path = located(toolset, named)
    real, runs = path.resolve(), toolset.runs.resolve()
    if real != runs and real.is_relative_to(runs):
        run = sealed_run(toolset, real.relative_to(runs).parts[0])
        logged = toolset.workspace.run(run.path.name).manifest_sha256
        return {"path": str(path), "run": str(run.path), "manifest_sha256": logged}
    if not is_run_folder(path):
        return {"path": str(path), "run": None, "manifest_sha256": None}
    said = RunFolder.open(path).job.run_id
    known = [one.manifest_sha256 for one in toolset.workspace.runs_list(limit=_RUNS) if one.run_id == said]
    return {"path": str(path), "run": str(path), "manifest_sha256": known[0] if known else None}


def sealed_run(toolset: Toolset, run_id: str) -> RunFolder:
    """A run with the manifest that was sealed. Raises `UsageError`, `NotEvaluated`, `Inconclusive`."""
    stored = known_run(toolset, run_id)
    run = RunFolder.open(toolset.workspace.runs / run_id)
    verify_manifest(run, stored.manifest_sha256)
    return run


def known_run(toolset: Toolset, run_id: str) -> "StoredRun":
    """A registered run. Raises `UsageError` with the nearest ids and the next call."""
    try:
        return toolset.workspace.run(run_id)
    except UsageError as error:
        raise UsageError(error.message, f"{error.next_step}; call run_list()") from error


def known_verdict(toolset: Toolset, verdict_id: str) -> "StoredVerdict":
    """A stored verdict. Raises `UsageError` with the nearest ids and the next call."""
    try:
        return toolset.workspace.verdict(verdict_id)
    except UsageError as error:
        raise UsageError(error.message, f"{error.next_step}; call verdict_list()") from error


@contextmanager
def open_inside(root: Path, name: str) -> Iterator[int]:
    """A descriptor of a regular file inside a folder, opened step by step without following any link."""
    parts = name.split("/")
    if {"", ".", ".."} & set(parts) or "\0" in name:
        raise BadInput(f"{name[:200]!r} is no path inside the run", "use a name from manifest_read")
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for index, part in enumerate(parts):
            last = index == len(parts) - 1
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_NONBLOCK if last else os.O_DIRECTORY)
            inner = os.open(part, flags, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    except OSError as error:
        raise BadInput(f"{name[:200]!r} cannot be opened inside the run: {error.strerror}") from error
    finally:
        os.close(descriptor)
