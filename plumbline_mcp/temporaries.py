"""Names for what is written beside its place and renamed: those that killed processes left are swept."""

import contextlib
import os
import re
import secrets
import shutil
from pathlib import Path

_NAME = re.compile(r"\..+\.(?P<pid>\d+)\.[0-9a-f]{8}\.part")


def temporary_beside(path: Path) -> Path:
    """A new hidden name in the folder of ``path``, on the same file system; nothing is made."""
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.part")


def sweep_temporaries(folder: Path) -> None:
    """Remove what processes that no longer run left in ``folder`` under such names."""
    for path in folder.iterdir() if folder.is_dir() else ():
        named = _NAME.fullmatch(path.name)
        if named is None or Path("/proc", named["pid"]).exists():
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
