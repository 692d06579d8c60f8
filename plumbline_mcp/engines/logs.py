"""Reads the logs of a run by pages of bytes, the same under every engine and while the job still writes."""

import os
import stat
from pathlib import Path
from typing import Literal

from pydantic import Field

from checks.errors import NotEvaluated
from checks.verdict import Frozen

Stream = Literal["out", "err"]
PAGE_BYTES = 64 * 1024
MOST_BYTES = 1024 * 1024
"""No page is larger, whatever is asked for."""


class LogPage(Frozen):
    """A piece of a log. A page that begins at ``next_offset`` goes on where this one ends."""

    log: str = Field(description="name of the file below the run folder")
    offset: int
    next_offset: int
    size: int = Field(description="bytes in the log now; more may come while the job runs")
    data: bytes


def log_name(rank: int | None, stream: Stream) -> str:
    """The log of a rank, or of the launcher that started the ranks."""
    return f"logs/launcher.{stream}" if rank is None else f"logs/rank-{rank:05d}.{stream}"


def read_log(
    run: Path, rank: int | None, stream: Stream = "out", offset: int = 0, limit: int = PAGE_BYTES
) -> LogPage:
    """A page of a log; a negative offset counts from the end. Raises `NotEvaluated` when there is none.

    It is read through a descriptor that follows no link: the job may have put anything in its place.
    """
    name = log_name(rank, stream)
    try:
        descriptor = os.open(run / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise NotEvaluated(f"run {run.name} has no log {name}: {error.strerror}", _next_step(run)) from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise NotEvaluated(f"run {run.name}: {name} is no file", _next_step(run))
        start = max(0, found.st_size + offset) if offset < 0 else min(offset, found.st_size)
        data = os.pread(descriptor, max(0, min(limit, MOST_BYTES)), start)
    finally:
        os.close(descriptor)
    return LogPage(log=name, offset=start, next_offset=start + len(data), size=found.st_size, data=data)


def _next_step(run: Path) -> str:
    known = sorted(path.name for path in (run / "logs").glob("*.*")) if (run / "logs").is_dir() else []
    return f"its logs are: {', '.join(known[:20])}" if known else "it has not started, or its folder is gone"
