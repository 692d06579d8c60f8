"""Reads the inputs of an approved job anew, before it starts and after it ended. Standard library only.

The cache of digests is not used: what a job read is not left to a file that somebody may have written. A job
whose inputs are not those that were approved does not start; where they changed meanwhile, its records say
so and no check judges them. A job that was started without an approval is not read again.
"""

import json
from pathlib import Path
from typing import Any

from plumbline_mcp.engines.contents import Contents, Stop, Stopped, never
from plumbline_mcp.engines.local import writing

_PREFIX = "inputs/"
_FILE = "exit/inputs.json"


class InputDigests:
    """The inputs of one job."""

    def __init__(self, home: Path, job: dict[str, Any], stop: Stop) -> None:
        """``home`` is the workspace's. ``stop``: whether the job was cancelled, which also ends the reading
        before it starts.
        """
        self._home = home
        digests = job.get("digests", {})
        self._approved = {
            name: str(digests[f"{_PREFIX}{name}"]) for name in job["inputs"] if f"{_PREFIX}{name}" in digests
        }
        self._paths = {name: Path(job["inputs"][name]) for name in self._approved}
        self._stop = stop
        self._start: dict[str, str] = {}
        self.changed = ""

    def hold(self) -> bool:
        """Whether each input is what was approved; `changed` says what is not. False when cancelled."""
        try:
            self._start = self._measured(self._stop)
        except Stopped:
            return False
        for name, approved in self._approved.items():
            if self._start[name] != approved:
                self.changed = (
                    f"not started: {name} is not what was approved"
                    f" (now {self._start[name][:12]}, approved {approved[:12]})"
                )
                return False
        return True

    def note(self, run: Path) -> None:
        """Write what was read before and after, in place of whatever the job left there. Raises `OSError`."""
        if self._approved:
            seen = {"format": 1, "start": self._start, "end": self._measured(never)}
            writing.replace(run / _FILE, json.dumps(seen, indent=1).encode())

    def _measured(self, stop: Stop) -> dict[str, str]:
        contents = Contents(self._home, stop, cached=False)
        found = {}
        for name, path in self._paths.items():
            try:
                found[name] = contents.of(path)
            except OSError as error:
                found[name] = f"unreadable: {error.strerror or error}"
        return found
