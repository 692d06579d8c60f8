"""Bubblewrap: the job sees a file system of its own, its own processes and its own loopback network."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from plumbline_mcp.engines import temporary_folder
from plumbline_mcp.engines.confinement.reach import DEVICES, Reach

NOT_HELD = "the size of /tmp and /dev/shm, the user's name"

_ALONE = (
    *("--die-with-parent", "--new-session", "--unshare-pid", "--unshare-ipc", "--unshare-uts"),
    *("--unshare-net", "--cap-drop", "ALL"),
)
_TRIAL_S = 20


def unavailable() -> str | None:
    """Why it cannot be used here; None when it can."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    trial = [*_program(), "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"]
    try:
        ended = subprocess.run(trial, capture_output=True, text=True, timeout=_TRIAL_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return f"bubblewrap does not run: {error}"
    said = "".join(ended.stderr.strip().splitlines()[-1:])
    return None if ended.returncode == 0 else f"bubblewrap does not work here: {said[:200]}"


def wrapped(reach: Reach, command: list[str], memory_files: bool = True) -> list[str]:
    """The command inside; deeper paths are mounted after those above them.

    ``memory_files``: its own /tmp and /dev/shm, whose size nothing holds, can be written.
    """
    reads = [text for path in sorted(reach.reads, key=lambda one: len(one.parts)) for text in _read(path)]
    writes = [text for path in reach.writes for text in ("--bind", str(path), str(path))]
    own = {f"/dev/{name}" for name in DEVICES}
    devices = [path for path in map(str, reach.devices) if path not in own]
    mounted = [text for path in devices for text in ("--dev-bind-try", path, path)]
    links = [text for path in reach.writes if path.name == "scratch" for text in _temporary(path.parent)]
    base = ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]  # noqa: S108 - inside, and private
    read_only = ["/", *([] if memory_files else ["/tmp", "/dev"])]  # noqa: S108 - the private one
    fixed = [text for path in read_only for text in ("--remount-ro", path)]
    return [*_program(), *base, *links, *reads, *writes, *mounted, *fixed, "--", *command]


def _program() -> list[str]:
    return [shutil.which("bwrap") or "bwrap", *_ALONE]


def _temporary(run: Path) -> Iterator[str]:
    """The short name of the job's temporary folder, in the private /tmp."""
    name = temporary_folder.temporary_folder(run)
    if name != temporary_folder.own_folder(run):
        yield from ("--symlink", str(temporary_folder.own_folder(run)), str(name))


def _read(path: Path) -> Iterator[str]:
    """A link of the system's root stays a link, so that both of its names work."""
    if path.is_symlink() and path.parent == Path("/"):
        yield from ("--symlink", str(path.readlink()), str(path))
    else:
        yield from ("--ro-bind", str(path), str(path))
