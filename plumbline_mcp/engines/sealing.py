"""Seals a run folder: every file by digest, read through descriptors that follow no link."""

import hashlib
import json
import os
import shutil
import stat
from pathlib import Path, PurePosixPath
from typing import Any

from checks.records.runs import RECORD_FORMAT

MANIFEST = "manifest.json"
_UNSEALED = "scratch"


def seal(run: Path) -> str:
    """Write ``manifest.json`` by rename and return its SHA-256 (hex).

    Call it only once no process of the run is left. Scratch is removed. Links and special files are listed
    by name as not sealed: no reader may use them.
    """
    shutil.rmtree(run / _UNSEALED, ignore_errors=True)
    files: dict[str, Any] = {}
    not_sealed: list[str] = []
    for place, folders, names, descriptor in os.fwalk(run, follow_symlinks=False):
        folder = PurePosixPath(Path(place).relative_to(run).as_posix())
        if folder == PurePosixPath("."):
            folders[:] = [name for name in folders if name != _UNSEALED]
            names = [name for name in names if name not in (MANIFEST, f"{MANIFEST}.part")]
        not_sealed += [str(folder / name) for name in folders if _is_link(name, descriptor)]
        for name in names:
            entry = _entry(name, descriptor)
            if entry is None:
                not_sealed.append(str(folder / name))
            else:
                files[str(folder / name)] = entry
    content: dict[str, Any] = {"format": RECORD_FORMAT, "files": dict(sorted(files.items()))}
    if not_sealed:
        content["not_sealed"] = sorted(not_sealed)
    return _write(run / MANIFEST, json.dumps(content, indent=1).encode())


def _is_link(name: str, descriptor: int) -> bool:
    return stat.S_ISLNK(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode)


def _entry(name: str, descriptor: int) -> dict[str, Any] | None:
    """Digest and size of a regular file; None for anything else."""
    if not stat.S_ISREG(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode):
        return None
    opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=descriptor)
    with os.fdopen(opened, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"sha256": digest, "size": os.fstat(file.fileno()).st_size}


def _write(path: Path, content: bytes) -> str:
    temporary = path.with_name(f"{path.name}.part")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    return hashlib.sha256(content).hexdigest()
