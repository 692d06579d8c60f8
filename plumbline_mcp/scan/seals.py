"""Whether a run folder is still the one that this workspace sealed, however the path to it is spelled."""

from pathlib import Path

from checks.errors import CheckError
from checks.records.runs import RunFolder, is_run_folder, sha256_file
from plumbline_mcp.errors import UsageError
from plumbline_mcp.workspace import StoredRun, Workspace


def run_of(workspace: Workspace, path: Path) -> StoredRun | None:
    """The run of this workspace that a folder claims to be; None when the workspace knows no such run."""
    try:
        return workspace.run(RunFolder.open(path).job.run_id)
    except (CheckError, UsageError):
        return _by_place(workspace, path)


def _by_place(workspace: Workspace, path: Path) -> StoredRun | None:
    """A folder whose job.json cannot be read may still lie where a run was sealed."""
    place = path.resolve()
    if place.parent != workspace.runs.resolve():
        return None
    try:
        return workspace.run(place.name)
    except UsageError:
        return None


def broken_seal(workspace: Workspace, path: Path) -> str | None:
    """Why a run folder is not the sealed one; None when it is, or when this workspace never sealed it.

    A program that is killed after it wrote the manifest and before it logged the digest leaves a folder that
    looks sealed; nothing vouches for it.
    """
    manifest = path / "manifest.json"
    stored = run_of(workspace, path) if is_run_folder(path) else None
    if stored is None or not manifest.is_file():
        return None
    logged = stored.manifest_sha256
    if logged and sha256_file(manifest)[0] == logged:
        return None
    known = f"{logged[:12]} was logged" if logged else "none was logged: it was stopped while sealing"
    return f"run {stored.run_id}: manifest.json is not the sealed one ({known})"
