"""Verifies what a worker reads of a run: the manifest is the logged one, each file is the sealed one."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from checks.errors import Inconclusive
from checks.records.runs import RunFolder, sha256_file

_NEXT = "rerun the procedure; a changed record is never judged"


def sealed_run_of(payload: dict[str, Any]) -> RunFolder | None:
    """The run that what is asked for lies in; None for a plain file or folder.

    ``payload``: ``run`` (folder or None) and ``manifest_sha256`` (what was logged when it was sealed; None: a
    run that this workspace does not know). Raises `NotEvaluated` and `Inconclusive`.
    """
    if payload.get("run") is None:
        return None
    run = RunFolder.open(Path(payload["run"]))
    if payload["manifest_sha256"] is not None:
        verify_manifest(run, payload["manifest_sha256"])
    return run


def verify_manifest(run: RunFolder, logged: str | None) -> None:
    """Raise `Inconclusive` unless a run's manifest is the one whose digest was logged at sealing."""
    if logged is None:
        raise Inconclusive(
            f"run {run.path.name}: no manifest was logged: it was stopped while sealing", "run it again"
        )
    if sha256_file(run.path / "manifest.json")[0] != logged:
        raise Inconclusive(
            f"run {run.path.name}: manifest.json was changed after sealing: not the one that was sealed",
            _NEXT,
        )


def verify_files(run: RunFolder | None, files: Iterable[Path]) -> None:
    """Raise `Inconclusive` when one of these files of a run is not as it was sealed."""
    if run is None:
        return
    root = run.path.resolve()
    for file in files:
        real = file.resolve()
        if not real.is_relative_to(root):
            raise Inconclusive(f"run {run.path.name}: {file.name} is a link that leaves the run", _NEXT)
        run.verified(real.relative_to(root).as_posix())


def files_below(path: Path, pattern: str = "*") -> list[Path]:
    """A file itself, or the files of a folder whose names match."""
    return sorted(one for one in path.rglob(pattern) if one.is_file()) if path.is_dir() else [path]
