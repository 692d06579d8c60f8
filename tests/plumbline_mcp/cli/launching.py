"""Starts the installed program as a user does."""

import os
import subprocess
import sys
from pathlib import Path

LAUNCHER = Path(sys.executable).parent / "plumbline"


def environment(home: Path, **more: str) -> dict[str, str]:
    """A small environment with a workspace of its own."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
    return kept | {"PLUMBLINE_HOME": str(home), "OMP_NUM_THREADS": "1"} | more


def plumbline(
    *arguments: str, home: Path, cwd: Path | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run the launcher from another folder than the checkout, without a terminal."""
    return subprocess.run(
        [str(LAUNCHER), *arguments],
        cwd=cwd or home.parent,
        env=environment(home, **more),
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
        check=False,
    )
