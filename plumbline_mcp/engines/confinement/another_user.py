"""Another user: root starts the job under an id that owns nothing here but the run's own folders."""

import ctypes
import os
import pwd
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

from plumbline_mcp.engines.confinement import capabilities
from plumbline_mcp.engines.confinement.reach import WRITTEN, import_paths

NOT_HELD = "network, what any user may read or write, shared /dev/shm, the list of processes"

_FIRST, _COUNT = 61_184, 4_000
"""The range that systemd keeps for short-lived users; below 65,534, which is nobody's."""
_PR_SET_PDEATHSIG = 1
_TRIAL_S = 60
_LIBC = ctypes.CDLL(None, use_errno=True)


def unavailable(runs: Path, interpreter: Path, inputs: list[Path]) -> str | None:
    """Why it cannot be used for such a job; None when it can."""
    if os.geteuid() != 0:
        return "only root can start a job as another user"
    user = free_user()
    for folder in (runs.parent, runs):
        folder.chmod(stat.S_IMODE(folder.stat().st_mode) | stat.S_IXOTH)  # to be passed through, not listed
    for path in (runs, *inputs):
        if not _may(user, ["/usr/bin/test", "-x" if path.is_dir() else "-r", str(path)]):
            return f"another user cannot reach {path}"
    if not _may(user, [str(interpreter), "-I", "-c", ""]):
        return f"another user cannot start {interpreter}"
    blocked = [
        path for path in import_paths(interpreter) if not _may(user, ["/usr/bin/test", "-r", str(path)])
    ]
    return f"another user cannot read {blocked[0]}" if blocked else None


def free_user() -> int:
    """An id without a name and without a process."""
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and process.exists():
            taken.add(process.stat().st_uid)
    return next(user for user in range(_FIRST, _FIRST + _COUNT) if user not in taken)


def prepared(run: Path, user: int) -> Callable[[], None]:
    """Give the run's folders to the user; returns what the child calls before it executes the job."""
    for place, folders, files in os.walk(run):
        for name in (".", *folders, *files):
            path = Path(place, name)
            os.chown(path, -1, user, follow_symlinks=False)
            if not path.is_symlink():
                mode = stat.S_IMODE(path.stat().st_mode)
                path.chmod(mode | (0o050 if path.is_dir() else 0o040))
    for name in WRITTEN:
        for place, folders, files in os.walk(run / name):
            for each in (".", *folders, *files):
                os.chown(Path(place, each), user, user, follow_symlinks=False)

    def apply() -> None:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        capabilities.give_up()
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # a change of the user clears it

    return apply


def taken_back(run: Path) -> None:
    """Give everything of the run to us again, once no process of it is left; no link is followed."""
    for _, folders, files, descriptor in os.fwalk(run, follow_symlinks=False):
        for name in (".", *folders, *files):
            os.chown(name, os.geteuid(), os.getegid(), dir_fd=descriptor, follow_symlinks=False)


def _may(user: int, command: list[str]) -> bool:
    try:
        ended = subprocess.run(
            command,
            user=user,
            group=user,
            extra_groups=[],
            cwd="/",
            env={"PATH": os.defpath},
            capture_output=True,
            timeout=_TRIAL_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return ended.returncode == 0
