"""Where a job keeps its temporary files: in its run, under a name that is short enough for sockets.

Python's multiprocessing, and with it every data loader with workers, binds sockets below ``TMPDIR``; the path
of a socket holds 107 bytes (unix(7)). Of a run that lies deeper, the folder is reached by a link below /tmp.
"""

import hashlib
import os
from pathlib import Path

_SOCKET_PATH = 107
_ADDED = len("/pymp-12345678/listener-12345678")
"""What multiprocessing puts behind the folder's name."""


def own_folder(run: Path) -> Path:
    """The folder itself."""
    return run / "scratch" / "tmp"


def temporary_folder(run: Path) -> Path:
    """The name that a job is given: the folder's own, or that of its link."""
    own = own_folder(run)
    if len(os.fsencode(own)) + _ADDED <= _SOCKET_PATH:
        return own
    return Path("/tmp") / f"plumbline-run-{hashlib.sha256(os.fsencode(run)).hexdigest()[:16]}"  # noqa: S108 - a link of ours


def link(run: Path, name: Path) -> None:
    """Make the link, where the job is given one. Raises `OSError` when something else has its name."""
    if name != own_folder(run):
        unlink(run)
        name.symlink_to(own_folder(run))


def unlink(run: Path) -> None:
    """Remove the link; what is none of ours stays."""
    name = temporary_folder(run)
    if name != own_folder(run) and name.is_symlink() and name.readlink() == own_folder(run):
        name.unlink(missing_ok=True)
