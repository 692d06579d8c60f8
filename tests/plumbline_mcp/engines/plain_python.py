"""An interpreter without packages: its digest is computed in milliseconds."""

import subprocess
import sys
from pathlib import Path


def plain_python(folder: Path) -> Path:
    """A virtual environment's Python; nothing is installed in it."""
    command = [sys.executable, "-I", "-m", "venv", "--without-pip", "--symlinks", str(folder / "venv")]
    subprocess.run(command, check=True)
    return folder / "venv" / "bin" / "python"
