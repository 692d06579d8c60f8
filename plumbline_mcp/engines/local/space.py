"""How much a run takes on disk, whether the disk was full, and the tails of logs. Standard library only."""

import contextlib
import errno
import os
from pathlib import Path

from plumbline_mcp.engines.local import writing

NO_SPACE = os.strerror(errno.ENOSPC)

_LAST_SAID = 2000
_MOST_DIGITS = 18
_FULL_BELOW = 64 * 1024
"""Free bytes below which nothing can be written that matters: the job failed for that."""


def taken(folder: Path) -> int:
    """Bytes that the files of a folder take on disk; what vanishes meanwhile does not count."""
    total = 0
    with contextlib.suppress(OSError):
        for _, _, files, descriptor in os.fwalk(folder, follow_symlinks=False):
            for name in files:
                with contextlib.suppress(OSError):
                    total += os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_blocks * 512
    return total


def ran_out(run: Path, ranks: int) -> bool:
    """Whether the last that a rank of a failed job said was that the disk is full, or it is full now."""
    free = os.statvfs(run)
    if free.f_bavail * free.f_frsize < _FULL_BELOW:
        return True
    names = [f"rank-{rank:05d}.err" for rank in range(ranks)]
    return any(NO_SPACE.encode() in _end_of(run / "logs" / name) for name in (*names, "launcher.err"))


def join_tails(run: Path, limit: int) -> None:
    """Append what a killed rank left of the ends of its logs, and remove the pieces. At most ``limit`` bytes
    of a piece are read: the job may have put anything in its place."""
    for log in sorted((run / "logs").glob("rank-*.*")):
        if log.suffix not in (".out", ".err"):
            continue
        old, tail, place = (log.with_name(log.name + end) for end in (".tail.old", ".tail", ".tail.from"))
        found = [data for piece in (old, tail) if (data := _end_of(piece, limit))]
        if found:
            line = _between(old, tail, place)
            with contextlib.suppress(OSError):  # it is no file any more: the seal says so
                writing.append(log, line + b"".join(found))
        for piece in (old, tail, place, place.with_name(f"{place.name}.part")):
            writing.remove(piece)


def _between(old: Path, tail: Path, place: Path) -> bytes:
    """The line between the head of a log and its tail: how many bytes a killed rank dropped, where known."""
    said = _end_of(place, _MOST_DIGITS) if old.is_file() and tail.is_file() else b"0" * tail.is_file()
    if not said.isdigit():
        return b"\n[bytes of this log may have been dropped here: its rank was killed]\n"
    return b"\n[%d bytes of this log were dropped here: its rank was killed]\n" % int(said)


def _end_of(path: Path, most: int = _LAST_SAID) -> bytes:
    with contextlib.suppress(OSError):  # the job may have put anything in its place
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            file.seek(max(0, os.fstat(descriptor).st_size - most))
            return file.read(most) or b""
    return b""
