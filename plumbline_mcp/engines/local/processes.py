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
_PIDFD_SIGNAL_PROCESS_GROUP = 1 << 2
"""<linux/pidfd.h>, since Linux 6.9."""


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


def marked(run: Path) -> Iterator[Process]:
    """Living processes of the run, whatever session they moved to and whoever adopted them, as they are met.

    One is known by the mark in its environment, or by its working folder below the run. Only processes that
    we may look into are seen: those of our own user, and all of them as root.
    """
    mark = _mark(run)
    for known in _living():
        if known.pid != os.getpid() and (_has(known.pid, mark) or _works_below(known.pid, run)):
            yield Process(known.pid, known.started)


def end_all(run: Path, known: Iterable[Process], seconds: float) -> bool:
    """Kill the known processes, what they started and every marked one; true when none is left in time."""
    remembered, until = set(known), time.monotonic() + seconds
    while True:
        left = {one for one in remembered if one.alive()}
        left |= {below for one in left for below in descendants(one.pid)}
        for one in left:
            kill_group(one)
        for one in marked(run):  # killed as it is met: one that forks and exits is gone a moment later
            if _has(one.pid, _mark(run)):
                kill_group(one)
            else:  # known by its folder alone: its group may be a person's
                send(one, signal.SIGKILL)
            left |= {one, *descendants(one.pid)}
        if not left:
            return True
        if time.monotonic() > until:
            return False
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


def kill_group(of: Process) -> None:
    """SIGKILL to that very process and to its process group, unless that is our own.

    The kernel starts no child of a process that has a signal pending, so nothing forks its way out of a
    group: this ends what forks and exits faster than anybody can look at it.
    """
    with contextlib.suppress(OSError):
        descriptor = os.pidfd_open(of.pid)
        try:
            if not of.alive():
                return
            if (group := os.getpgid(of.pid)) == os.getpgrp():
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                return
            try:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL, None, _PIDFD_SIGNAL_PROCESS_GROUP)
            except OSError:  # a kernel before 6.9, or gone; its number stays the group's while a member lives
                os.killpg(group, signal.SIGKILL)
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


def _mark(run: Path) -> bytes:
    return f"{MARK}={run}".encode()


def _works_below(pid: int, run: Path) -> bool:
    try:
        return (_PROC / str(pid) / "cwd").readlink().is_relative_to(run)
    except OSError:
        return False
