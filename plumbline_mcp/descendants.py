"""Finds and ends the processes that a process started, whatever session or group they moved to (Linux)."""

import contextlib
import os
import signal
from pathlib import Path


def kill_descendants(ancestor: int) -> None:
    """Send SIGKILL to every living descendant of a process, children of its children included.

    A descendant whose parents are gone was adopted by init and is not found; so call this while the
    ancestor lives.
    """
    parents = _parents()
    found, frontier = set[int](), {ancestor}
    while frontier := {pid for pid, parent in parents.items() if parent in frontier} - found:
        found |= frontier
    for pid in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _parents() -> dict[int, int]:
    """Parent of every process; one that ends meanwhile is left out."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
    return parents
