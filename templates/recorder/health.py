"""Whether the recorder still records. A failure stops the recorder, never the training.

``recorder.json`` says ``recording`` from the start and ``complete`` only when the recorder was closed in good
health; ``recorder-failed.json`` says what failed. A check that finds no ``complete`` is inconclusive.
"""

import json
import os
import platform
import sys
from pathlib import Path

RESERVED_BYTES = 4096
"""Taken at the start, so that a failure can be written down on a full disk."""


class Health:
    """State of one rank's recorder."""

    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        """Nothing is written before `begin`."""
        self.folder = folder
        self.active = False
        self._pid = os.getpid()
        self._head = {
            "format": 1,
            "rank": rank,
            "world_size": world_size,
            "python": platform.python_version(),
        }
        self._on_failure: "list[object]" = []
        self._reserve = folder / "recorder-failed.json.part"

    def begin(self) -> None:
        """Say that recording began, and reserve the room for a failure."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._reserve.write_bytes(b" " * RESERVED_BYTES)
        self._write("recording", {})
        self.active = True
        os.register_at_fork(after_in_child=self._forked)

    def complete(self, facts: "dict[str, object]") -> None:
        """Say that everything asked for was recorded; says nothing after a failure."""
        if self.active:
            self._write("complete", facts)
            self._reserve.unlink(missing_ok=True)
        self.active = False

    def guard(self, what: str) -> "Guard":
        """A context in which a failure marks the recorder as failed and goes no further."""
        return Guard(self, what)

    def on_failure(self, action: object) -> None:
        """Call ``action()`` when the recorder fails, to let go of files."""
        self._on_failure.append(action)

    def fail(self, what: str, error: BaseException) -> None:
        """Stop recording and write why, by best effort: the disk may be full."""
        was_active, self.active = self.active, False
        why = "%s: %s" % (type(error).__name__, error)
        with Guard(self, "saying so", quiet=True):
            print(
                "plumbline: the recorder stopped (%s: %s); the training goes on" % (what, why),
                file=sys.stderr,
            )
        for action in self._on_failure if was_active else ():
            with Guard(self, "letting go of files", quiet=True):
                action()
        with Guard(self, "writing the failure down", quiet=True):
            self._mark(json.dumps({"format": 1, "what": what, "why": why[:2000]}))

    def _mark(self, text: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        raw = text.encode("ascii")
        with self._reserve.open("r+b" if self._reserve.exists() else "wb") as file:
            file.write(raw.ljust(RESERVED_BYTES))
        self._reserve.replace(self.folder / "recorder-failed.json")

    def _write(self, state: str, facts: "dict[str, object]") -> None:
        temporary = self.folder / "recorder.json.part"
        temporary.write_text(json.dumps({**self._head, "state": state, **facts}), encoding="utf-8")
        temporary.replace(self.folder / "recorder.json")

    def _forked(self) -> None:
        """A forked child (a data loader's worker) records nothing."""
        self.active = False


class Guard:
    """Swallows an exception of the recorder's own code; lets KeyboardInterrupt and SystemExit through."""

    def __init__(self, health: Health, what: str, quiet: bool = False) -> None:
        """``quiet``: the failure itself is being handled."""
        self._health, self._what, self._quiet = health, what, quiet

    def __enter__(self) -> "Guard":
        return self

    def __exit__(self, kind: object, error: "BaseException | None", trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        if not self._quiet:
            self._health.fail(self._what, error)
        return True
