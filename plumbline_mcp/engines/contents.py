"""Digests of files and folders: names, sizes and SHA-256 of every file. Standard library only.

A digest that was computed is kept by path, size, times and inode, so that a plan of 200 jobs on one model
reads the model once. Whoever can write that cache could lie to it; so the supervisor of a job reads the
inputs anew, without it, before the job starts and after it ended.
"""

import contextlib
import hashlib
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from approvals.canonical import digest

CACHE = "digests.db"
"""The cache's file in a workspace; it may be removed at any time."""

_DATABASES = ("plumbline.db", "plumbline.db-wal", "plumbline.db-shm")
"""Never opened: to close a descriptor of a database drops the locks that this process has on it."""
_MOST_FILES = 1_000_000
_LARGE = 256 * 2**20
_SETTLED_NS = 2 * 10**9
"""A file that changed so shortly before it was read may change again with equal times: it is not kept."""

Stop = Callable[[], bool]


class Stopped(Exception):
    """Raised when the caller no longer wants the digest."""


def never() -> bool:
    """The `Stop` of a caller that waits."""
    return False


class Contents:
    """Digests of what lies outside a workspace.

    One of these answers for one moment: the same path gets the same answer.
    """

    def __init__(self, home: Path | None = None, stop: Stop = never, *, cached: bool = True) -> None:
        """``home`` is the workspace's; ``cached=False`` neither asks nor keeps what was read before."""
        self._stop = stop
        self._answered: dict[tuple[Path, tuple[str, ...]], str] = {}
        self._known: dict[str, tuple[str, str]] = {}
        self._new: dict[str, tuple[str, str]] = {}
        self._home = None if home is None else home.resolve()
        self._cache = home / CACHE if home is not None and cached else None
        self._load()

    def of(self, path: Path, *, but: tuple[str, ...] = ()) -> str:
        """Digest of a file's bytes, or of the manifest of a folder; links are followed.

        ``but``: names of folders, at any depth, that are left out, as the workspace itself is. Raises
        `OSError` for what cannot be read, `Stopped`.
        """
        if (path, but) in self._answered:
            return self._answered[path, but]
        if path.is_dir():
            entries = [self._entry(path, name, where) for name, where in _files(path, but, self._home)]
            answer = digest(entries)
        else:
            answer = self._file(path.resolve())[0]
        self._store()
        self._answered[path, but] = answer
        return answer

    def _entry(self, root: Path, name: str, path: Path) -> list[object]:
        if path.name in _DATABASES:
            return [name, "database"]
        try:
            found, size = self._file(path.resolve())
        except FileNotFoundError:
            return [name, "missing", str((root / name).readlink())]
        return [name, size, found]

    def _file(self, path: Path) -> tuple[str, int]:
        if self._stop():
            raise Stopped
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                return f"special {stat.S_IFMT(found.st_mode):o}", 0
            key, seen = str(path), _seen(found)
            kept = self._known.get(key)
            if kept is not None and kept[0] == seen:
                return kept[1], found.st_size
            read = hashlib.file_digest(file, "sha256").hexdigest()
            settled = time.time_ns() - max(found.st_mtime_ns, found.st_ctime_ns) > _SETTLED_NS
            if settled and _seen(os.fstat(descriptor)) == seen:
                self._known[key] = self._new[key] = (seen, read)
                if found.st_size > _LARGE:
                    self._store()  # who stops waiting and asks again does not begin anew
            return read, found.st_size

    def _load(self) -> None:
        if self._cache is None or not self._cache.is_file():
            return
        with contextlib.suppress(sqlite3.Error), contextlib.closing(self._open()) as cache:
            self._known = {path: (seen, read) for path, seen, read in cache.execute("select * from digests")}

    def _store(self) -> None:
        """Keep what was read. A cache that cannot be written costs time, nothing else."""
        if self._cache is None or not self._new:
            return
        rows = [(path, *kept) for path, kept in self._new.items()]
        with contextlib.suppress(sqlite3.Error), contextlib.closing(self._open()) as cache, cache:
            cache.executemany("insert or replace into digests values (?, ?, ?)", rows)
            self._new = {}

    def _open(self) -> sqlite3.Connection:
        cache = sqlite3.connect(str(self._cache), timeout=10)
        cache.execute("pragma synchronous=off")
        cache.execute("create table if not exists digests (path text primary key, seen text, sha256 text)")
        return cache


def _seen(found: os.stat_result) -> str:
    """What changes with a file: the change time cannot be set back, unlike the modification time."""
    parts = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return ":".join(map(str, parts))


def _files(root: Path, but: tuple[str, ...], home: Path | None) -> Iterator[tuple[str, Path]]:
    """Relative name and path of every file below a folder, in one order; a folder is entered once a way down.

    Raises `OSError` for a folder that cannot be listed and for too many files.
    """
    count = 0
    for place, folders, files in os.walk(root, followlinks=True, onerror=_raised):
        folders[:] = sorted(name for name in folders if name not in but)
        folders[:] = [name for name in folders if not _leads_back(Path(place, name))]
        folders[:] = [name for name in folders if Path(place, name).resolve() != home]
        for name in sorted(files):
            count += 1
            if count > _MOST_FILES:
                raise OSError(f"{root} holds more than {_MOST_FILES} files")
            path = Path(place, name)
            yield path.relative_to(root).as_posix(), path


def _leads_back(path: Path) -> bool:
    """Whether a link leads to a folder that it lies in."""
    return path.is_symlink() and path.parent.resolve().is_relative_to(path.resolve())


def _raised(error: OSError) -> None:
    raise error
