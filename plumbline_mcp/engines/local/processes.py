"""Processes by what cannot be taken over: a pid with its start time and the boot it belongs to (Linux).

Standard library only: the supervisor of a job uses it.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

MARK = "PLUMBLINE_RUN"
"""The variable that every process of a job inherits: its run folder."""

_PROC = Path("/proc")
_GONE = "ZX"
_POLL_S = 0.05


@dataclass(frozen=True)
class Process:
    """A process that ran at ``started`` (clock ticks since boot); another one may have its pid later."""

    pid: int
    started: int

    def alive(self) -> bool:
        """Whether this very process still runs."""
        known = _stat(self.pid)
        return known is not None and known.started == self.started and known.state not in _GONE


@dataclass(frozen=True)
class _Stat:
    pid: int
    state: str
    parent: int
    started: int


def boot_id() -> str:
    """What tells this boot of the machine from others."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def process(pid: int) -> Process | None:
    """The process that has that pid now."""
    known = _stat(pid)
    return None if known is None else Process(pid, known.started)


def descendants(ancestor: int) -> list[Process]:
    """Every living process below one, parents first."""
    children: dict[int, list[_Stat]] = {}
    for known in _living():
        children.setdefault(known.parent, []).append(known)
    found, level = [], [ancestor]
    while level:
        below = [child for pid in level for child in children.get(pid, ())]
        found += [Process(child.pid, child.started) for child in below]
        level = [child.pid for child in below]
    return found


def marked(run: Path) -> list[Process]:
    """Living processes of the run, whatever session they moved to and whoever adopted them.

    One is known by the mark in its environment, or by its working folder below the run. Only processes that
    we may look into are seen: those of our own user, and all of them as root.
    """
    mark = f"{MARK}={run}".encode()
    return [
        Process(known.pid, known.started)
        for known in _living()
        if known.pid != os.getpid() and (_has(known.pid, mark) or _works_below(known.pid, run))
    ]


def end_all(run: Path, known: Iterable[Process], seconds: float) -> bool:
    """Kill the known processes, what they started and every marked one; true when none is left in time."""
    remembered, until = set(known), time.monotonic() + seconds
    while True:
        left = {one for one in remembered if one.alive()} | set(marked(run))
        left |= {below for one in left for below in descendants(one.pid)}
        if not left:
            return True
        if time.monotonic() > until:
            return False
        for one in left:
            send(one, signal.SIGKILL)
        remembered |= left
        time.sleep(_POLL_S)


def send(to: Process, number: signal.Signals) -> None:
    """Send a signal to that very process: through a descriptor, so that a reused pid is never hit."""
    with contextlib.suppress(OSError):
        descriptor = os.pidfd_open(to.pid)
        try:
            if to.alive():
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def _living() -> Iterator[_Stat]:
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            known = _stat(int(entry.name))
            if known is not None and known.state not in _GONE:
                yield known


def _stat(pid: int) -> _Stat | None:
    try:
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return _Stat(pid, fields[0], int(fields[1]), int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None


def _has(pid: int, mark: bytes) -> bool:
    try:
        return mark in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _works_below(pid: int, run: Path) -> bool:
    try:
        return (_PROC / str(pid) / "cwd").readlink().is_relative_to(run)
    except OSError:
        return False
