"""Where the trust roots lie. Standard library only: a job's supervisor asks too, to keep the job out."""

import os
from pathlib import Path

TRUST_VARIABLE = "PLUMBLINE_TRUST"


def default_folder() -> Path:
    """``PLUMBLINE_TRUST``, else ``$XDG_CONFIG_HOME/plumbline``, else ``~/.config/plumbline``."""
    if named := os.environ.get(TRUST_VARIABLE):
        return Path(named)
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / ".config") / "plumbline"
