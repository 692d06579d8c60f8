"""Which processes belong to a point: found by what they inherited, and by who their parents were."""

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Living:
    """A process; pid and start time together are unique."""

    pid: int
    parent: int
    started: int
    command: str


def living() -> list[Living]:
    """Every process that still runs; one that ended and waits for its parent is not one of them."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                if fields[0] not in "ZX":
                    found.append(Living(int(entry.name), int(fields[1]), int(fields[19]), command.strip()))
    return found


def wait_dead(victims: Iterable[Living], limit_s: float = 30) -> None:
    """Wait until processes that were killed are dead: one that dies shows no arguments, and has its locks."""
    known, until = {(one.pid, one.started) for one in victims}, time.monotonic() + limit_s
    while known & {(one.pid, one.started) for one in living()} and time.monotonic() < until:
        time.sleep(0.02)


def descendants(ancestor: int) -> set[Living]:
    """What a process started, and what that started."""
    everyone, found = living(), set[Living]()
    frontier = {ancestor}
    while level := {process for process in everyone if process.parent in frontier} - found:
        found |= level
        frontier = {process.pid for process in level}
    return found


def belonging(folder: Path, known: set[Living], but: int) -> list[Living]:
    """Living processes that were started below a point's folder, or were known as its descendants.

    Workers have an allow-listed environment, supervisors nearly none, and jobs their own: the folder of the
    point is in the environment, the arguments or the working folder of each of them.
    """
    mark = str(folder)
    before = {(process.pid, process.started) for process in known}
    return [
        process
        for process in living()
        if process.pid not in (os.getpid(), but)
        and ((process.pid, process.started) in before or mark in process.command or _inherited(process, mark))
    ]


def _inherited(process: Living, mark: str) -> bool:
    entry = Path("/proc", str(process.pid))
    with contextlib.suppress(OSError):
        if str((entry / "cwd").readlink()).startswith(mark):
            return True
        return mark.encode() in (entry / "environ").read_bytes()
    return False


def wait_until_gone(folder: Path, known: set[Living], but: int, grace_s: float) -> tuple[float, list[Living]]:
    """Seconds until nothing of a point was left, and what is left after the grace (it is ended then)."""
    started = time.monotonic()
    while left := belonging(folder, known, but):
        if time.monotonic() - started > grace_s:
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            break
        time.sleep(0.05)
    return time.monotonic() - started, left


def deliver_signals() -> None:
    """Signals that a background shell or nohup made us ignore are inherited: give programs the usual ones."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
