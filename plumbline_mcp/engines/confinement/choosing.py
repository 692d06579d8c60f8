"""Which confinement holds a job: the first of the order that works here, or the one that was asked for."""

import contextlib
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from plumbline_mcp.engines.confinement import another_user, bubblewrap, capabilities, landlock
from plumbline_mcp.engines.confinement.reach import Reach, import_paths

LANDLOCK, BUBBLEWRAP, USER, NONE = "landlock", "bubblewrap", "uid", "none"
ORDER = (LANDLOCK, BUBBLEWRAP, USER, NONE)
AUTOMATIC = "auto"


@dataclass(frozen=True)
class Chosen:
    """What will hold a job, and what it cannot hold. As text: what stands in job.json and in each verdict."""

    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind} ({self.detail})" if self.detail else self.kind


class Unavailable(Exception):
    """Raised when the confinement that was asked for cannot be used for this job."""


def choose(wanted: str, runs: Path, interpreter: Path, inputs: list[Path]) -> Chosen:
    """What will hold a job of those inputs. Raises `Unavailable` when the wanted one cannot."""
    reasons: list[str] = []
    for kind in ORDER if wanted == AUTOMATIC else (wanted,):
        why = _unavailable(kind, runs, interpreter, inputs)
        if why is None:
            return Chosen(kind, _detail(kind, reasons))
        reasons.append(f"{kind}: {why}")
    raise Unavailable("; ".join(reasons))


def _unavailable(kind: str, runs: Path, interpreter: Path, inputs: list[Path]) -> str | None:
    if kind in (LANDLOCK, BUBBLEWRAP):
        why = landlock.unavailable() if kind == LANDLOCK else bubblewrap.unavailable()
        return why or _out_of_reach(runs, interpreter, inputs)
    return another_user.unavailable(runs, interpreter, inputs) if kind == USER else None


def _out_of_reach(runs: Path, interpreter: Path, inputs: list[Path]) -> str | None:
    """What a job of root cannot read once it has no capabilities. An interpreter that does not answer is the
    supervisor's to report."""
    imported: list[Path] = []
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
        imported = import_paths(interpreter) if os.geteuid() == 0 else []
    return capabilities.out_of_reach(inputs, [interpreter, *imported, runs])


def _detail(kind: str, reasons: list[str]) -> str:
    """What is not held; of none, why nothing else holds."""
    if kind == NONE:
        return "; ".join(reasons)
    held = {LANDLOCK: landlock.not_held(), BUBBLEWRAP: bubblewrap.NOT_HELD, USER: another_user.NOT_HELD}
    return f"not held: {held[kind]}"


@dataclass(frozen=True)
class Confined:
    """How the supervisor starts the job: the command, and what its child calls before it executes it."""

    command: list[str]
    apply: Callable[[], None] | None = None


def confined(
    kind: str, run: Path, reach: Callable[[], Reach], command: list[str], memory_files: bool = True
) -> Confined:
    """The job's command under a confinement. Raises `OSError` and `subprocess.SubprocessError`.

    ``memory_files``: whether it may keep files in memory: /dev/shm, and the private /tmp of bubblewrap.
    """
    if kind == LANDLOCK:
        return Confined(command, landlock.prepared(reach(), memory_files))
    if kind == BUBBLEWRAP:
        return Confined(bubblewrap.wrapped(reach(), command, memory_files))
    if kind == USER:
        return Confined(command, another_user.prepared(run, another_user.free_user()))
    return Confined(command)
