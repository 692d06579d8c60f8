"""Writes into folders that the job may write too: whatever it put in the way, nothing outside is touched.

We are not confined and the job is: a link that it leaves must not lead us where it may not go, and a pipe
must not make us wait. Standard library only.
"""

import contextlib
import os
import secrets
import shutil
import stat
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_APPENDED = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def replace(path: Path, content: bytes) -> None:
    """Write a file by rename in place of whatever has its name. Raises `OSError`."""
    folder = _folder(path.parent)
    part = f".{secrets.token_hex(8)}.part"
    try:
        with os.fdopen(os.open(part, _NEW, 0o644, dir_fd=folder), "wb") as file:
            file.write(content)
        _remove_folder(path.name, folder)
        os.rename(part, path.name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(part, dir_fd=folder)
        raise
    finally:
        os.close(folder)


def append(path: Path, content: bytes) -> None:
    """Append to a regular file, made when there is none. Raises `OSError` for anything else."""
    folder = _folder(path.parent)
    try:
        with os.fdopen(os.open(path.name, _APPENDED | os.O_CREAT, 0o644, dir_fd=folder), "ab") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(f"{path} is no file")
            file.write(content)
    finally:
        os.close(folder)


def remove(path: Path) -> None:
    """Remove whatever has that name, a folder with all that is in it."""
    with contextlib.suppress(OSError):
        folder = os.open(path.parent, _FOLDER)
        try:
            _remove_folder(path.name, folder)
            os.unlink(path.name, dir_fd=folder)
        finally:
            os.close(folder)


def own_folder(path: Path) -> None:
    """Make sure that it is a folder and no link to one. Raises `OSError`."""
    os.close(_folder(path))


def _folder(path: Path) -> int:
    """The folder itself; one that is a link, a file or not there is made anew."""
    with contextlib.suppress(OSError):
        return os.open(path, _FOLDER)
    path.unlink(missing_ok=True)
    path.mkdir()
    return os.open(path, _FOLDER)


def _remove_folder(name: str, folder: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            shutil.rmtree(name, dir_fd=folder)
