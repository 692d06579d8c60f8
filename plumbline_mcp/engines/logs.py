"""Reads the logs of a run by pages of bytes, the same under every engine and while the job still writes.

Offsets count what the job wrote. Of a log above its limit the head and the tail are kept: while the job runs
the tail lies in pieces beside it (``templates/recorder/rank.py``), afterwards behind a line in the log.
"""

import contextlib
import os
import re
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from checks.errors import CheckError, NotEvaluated
from checks.records.runs import read_json
from checks.verdict import Frozen

Stream = Literal["out", "err"]
PAGE_BYTES = 64 * 1024
MOST_BYTES = 1024 * 1024
"""No page is larger, whatever is asked for."""

_OPENED = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_GAP = re.compile(
    rb"\n\[(?P<dropped>\d{1,18}) bytes of this log were dropped here(: its rank was killed)?\]\n"
)
_MOST_OF_A_LINE, _MOST_DIGITS = 100, 18
_LOOKS, _BETWEEN_LOOKS_S = 20, 0.005


class NotBegun(NotEvaluated):
    """Raised when no rank of a job has started yet, so that no log is there."""


class LogPage(Frozen):
    """A piece of a log. A page that begins at ``next_offset`` goes on where this one ends.

    None crosses a gap: the one behind it begins with what was kept again, and counts what was not.
    """

    log: str = Field(description="name of the file below the run folder")
    offset: int
    next_offset: int
    size: int = Field(description="bytes that the job wrote so far; more may come while it runs")
    dropped: int = Field(0, description="bytes right before this page that were not kept")
    data: bytes


def log_name(rank: int | None, stream: Stream) -> str:
    """The log of a rank, or of the launcher that started the ranks."""
    return f"logs/launcher.{stream}" if rank is None else f"logs/rank-{rank:05d}.{stream}"


def read_log(
    run: Path, rank: int | None, stream: Stream = "out", offset: int = 0, limit: int = PAGE_BYTES
) -> LogPage:
    """A page of a log; a negative offset counts from the end. Raises `NotEvaluated` when there is none,
    `NotBegun` when there is none yet.

    It is read through a descriptor that follows no link: the job may have put anything in its place.
    """
    name = log_name(rank, stream)
    try:
        descriptor = os.open(run / name, _OPENED)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and _begins_later(run):
            raise NotBegun(
                f"run {run.name} has no log yet: its ranks have not started",
                "ask how the job stands, and for the log again in a moment",
            ) from error
        raise NotEvaluated(f"run {run.name} has no log {name}: {error.strerror}", _next_step(run)) from error
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, descriptor)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotEvaluated(f"run {run.name}: {name} is no file", _next_step(run))
        kept = _kept(run, name, descriptor, stack)
        return _page(name, kept, offset, max(0, min(limit, MOST_BYTES)))


@dataclass(frozen=True)
class _Piece:
    """Bytes ``begin`` to ``end`` of what the job wrote lie in an open file, from its byte ``at`` on."""

    begin: int
    end: int
    descriptor: int
    at: int = 0


def _page(name: str, kept: list[_Piece], offset: int, limit: int) -> LogPage:
    size = kept[-1].end
    start = max(0, size + offset) if offset < 0 else min(offset, size)
    later = [piece for piece in kept if piece.end > start]
    ends = [0, *(piece.end for piece in kept)]
    dropped, data = 0, b""
    if later:
        gap = later[0].begin - ends[kept.index(later[0])]
        start = max(start, later[0].begin)
        dropped = gap if start == later[0].begin else 0
    for piece in later:
        at = start + len(data)
        if piece.begin > at:
            break  # a gap: the next page begins behind it
        data += os.pread(
            piece.descriptor, min(limit - len(data), piece.end - at), piece.at + at - piece.begin
        )
    return LogPage(
        log=name, offset=start, next_offset=start + len(data), size=size, dropped=dropped, data=data
    )


def _kept(run: Path, name: str, head: int, stack: contextlib.ExitStack) -> list[_Piece]:
    """Where the bytes of a log lie, in order."""
    half = _half(run)
    for _ in range(_LOOKS):
        growing = _growing(run / name, head, half, stack)
        if growing is not None:
            return growing
        time.sleep(_BETWEEN_LOOKS_S)  # its pieces took turns while we looked
    return _whole(head, half)


def _half(run: Path) -> int:
    """Bytes of a log's head: half of the job's limit."""
    try:
        return max(int(read_json(run / "job.json").get("log_bytes") or 0) // 2, 1)
    except (CheckError, OSError, ValueError, TypeError, AttributeError):
        return MOST_BYTES * MOST_BYTES  # no job: the log is all there is


def _whole(log: int, half: int) -> list[_Piece]:
    """A log that is not cut, or that was put together: a line behind its head counts what was dropped."""
    size = os.fstat(log).st_size
    line = _GAP.match(os.pread(log, _MOST_OF_A_LINE, half)) if size > half else None
    if line is None:
        return [_Piece(0, size, log)]
    begin, at = half + int(line["dropped"]), half + line.end()
    return [_Piece(0, half, log), _Piece(begin, begin + size - at, log, at)]


def _growing(log: Path, head: int, half: int, stack: contextlib.ExitStack) -> list[_Piece] | None:
    """A log whose tail lies beside it, or the whole one; None when its pieces took turns meanwhile."""
    before = _begun(log)
    old, tail = (_piece(log.with_name(log.name + end), stack) for end in (".tail.old", ".tail"))
    if old is None and tail is None:
        return _whole(head, half)
    if tail is None or _begun(log) != before or (old is None and before):
        return None
    begin, pieces = half + before, [_Piece(0, half, head)]
    for descriptor in (old, tail):
        if descriptor is not None:
            end = begin + os.fstat(descriptor).st_size
            pieces.append(_Piece(begin, end, descriptor))
            begin = end
    return pieces


def _begun(log: Path) -> int:
    """How many bytes behind the head the pieces of the tail begin."""
    with contextlib.ExitStack() as stack:
        descriptor = _piece(log.with_name(f"{log.name}.tail.from"), stack)
        said = b"" if descriptor is None else os.pread(descriptor, _MOST_DIGITS, 0)
    return int(said) if said.isdigit() else 0


def _piece(path: Path, stack: contextlib.ExitStack) -> int | None:
    """An open regular file that lies there; the job may have put anything in its place."""
    try:
        descriptor = os.open(path, _OPENED)
    except OSError:
        return None
    stack.callback(os.close, descriptor)
    return descriptor if stat.S_ISREG(os.fstat(descriptor).st_mode) else None


def _begins_later(run: Path) -> bool:
    """Whether the run is there, is not over, and none of its ranks has written a log."""
    logs = run / "logs"
    return logs.is_dir() and not (run / "manifest.json").exists() and not any(logs.glob("rank-*"))


def _next_step(run: Path) -> str:
    known = sorted(path.name for path in (run / "logs").glob("*.*")) if (run / "logs").is_dir() else []
    return f"its logs are: {', '.join(known[:20])}" if known else "it has not started, or its folder is gone"
