"""What tests of engines wait for, and job bodies that they share."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WAITING = """
import os, pathlib, time
pathlib.Path(output, "pid.part").write_text(str(os.getpid()))
pathlib.Path(output, "pid.part").rename(output + "/pid")
time.sleep(600)
"""
"""Says its process id, then waits for ever."""


def until(condition: Callable[[], Any], seconds: float = 90) -> Any:
    """What the condition gives once it is true."""
    limit = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < limit, "did not happen in time"
        time.sleep(0.05)
    return found


def gone(pid: int) -> bool:
    """Whether a process ended; one that waits for its parent has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def said_pid(run: Path) -> int:
    """The process id that a waiting job wrote."""
    path = run / "output" / "pid"
    until(path.exists)
    return int(path.read_text())
