"""Where a workspace lies: ``PLUMBLINE_HOME``, else ``.plumbline`` in the current folder (no upward search).

No upward search, so that what a command reads is what stands in front of the reader, and a repository
further up cannot slip its own workspace in.
"""

import os
import re
import stat
from pathlib import Path

from plumbline_mcp.errors import WorkspaceError

HOME_VARIABLE = "PLUMBLINE_HOME"
DATABASE = "plumbline.db"

_MOUNTS = Path("/proc/self/mountinfo")
_SHARED_MEMORY_FAILS = frozenset(
    {
        "9p",
        "acfs",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "prl_fs",
        "pvfs2",
        "smb3",
        "smbfs",
        "vboxsf",
        "vmhgfs",
        "wekafs",
    }
)
"""File systems on which SQLite's write-ahead log, which needs shared memory and locks, does not work."""
_LOCAL_FUSE = frozenset(
    f"fuse.{name}"
    for name in (
        "fuse-overlayfs",
        "overlayfs",
        "mergerfs",
        "gocryptfs",
        "encfs",
        "cryfs",
        "bindfs",
        "ntfs-3g",
    )
)


def default_home() -> Path:
    """``PLUMBLINE_HOME`` when it is set and not empty, else ``.plumbline`` in the current folder."""
    named = os.environ.get(HOME_VARIABLE)
    return Path(named).expanduser().absolute() if named else Path.cwd() / ".plumbline"


def refuse_network(home: Path, mounts: str | None = None) -> None:
    """Raise `WorkspaceError` when ``home`` lies on a network file system.

    ``mounts`` is text in the format of ``/proc/self/mountinfo`` (default: that file; where there is none,
    nothing can be told and nothing is refused).
    """
    if mounts is None:
        mounts = _MOUNTS.read_text(errors="surrogateescape") if _MOUNTS.exists() else ""
    kind = file_system(_existing(home), mounts)
    if kind in _SHARED_MEMORY_FAILS or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE):
        raise WorkspaceError(
            f"{home} lies on a network file system ({kind}), where the database could be damaged",
            f"set {HOME_VARIABLE} to a folder on a local disk",
        )


def file_system(path: Path, mounts: str) -> str:
    """Type of the file system that holds a path, by the longest mount point above it; '' when unknown."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        fields, _, source = line.partition(" - ")
        columns = fields.split(" ")
        if len(columns) < 5 or not source:
            continue
        point = Path(_unescaped(columns[4]))
        if len(point.parts) >= best and path.is_relative_to(point):
            best, kind = len(point.parts), source.split(" ")[0]
    return kind


def make_private(home: Path) -> None:
    """Make the home, its ``runs`` folder and an empty database file, readable by the owner alone.

    A home that exists keeps its permissions (the user may share it knowingly); what is made inside is
    private all the same. Raises `WorkspaceError`.
    """
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        (home / "runs").mkdir(mode=0o700, exist_ok=True)
        _make_database(home / DATABASE)
        ignore = home / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")
    except OSError as error:
        raise WorkspaceError(
            f"cannot make the workspace {home}: {error.strerror}",
            f"free space there, or set {HOME_VARIABLE} to a folder that you can write",
        ) from error


def _make_database(path: Path) -> None:
    """Make an empty file, unless one is there, which is never opened here: to close any descriptor of a file
    drops every lock that this process has on it (fcntl(2)), those of SQLite's open connections too. Another
    process then takes itself for the last one and removes the log that those still write. Raises `OSError`.
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise


def _existing(path: Path) -> Path:
    resolved = Path(os.path.realpath(path))
    return next(parent for parent in (resolved, *resolved.parents) if parent.exists())


def _unescaped(point: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point)
