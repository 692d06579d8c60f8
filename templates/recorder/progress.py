"""Tells the runner how far a job is: one JSON line a step in a file that the runner follows."""

import json
import time
from pathlib import Path

INTERVAL_S = 0.2


class Progress:
    """Appends ``[done, total, message]`` lines, at most five a second and message."""

    def __init__(self, path: Path) -> None:
        """Append to the file at ``path``."""
        self._path = path
        self._last = (0.0, "")

    def __call__(self, done: float, total: "float | None", message: str) -> None:
        """Report a step."""
        now = time.monotonic()
        if message == self._last[1] and now - self._last[0] < INTERVAL_S and done != total:
            return
        self._last = (now, message)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([done, total, message]) + "\n")
