"""The worker process: one function call in an isolated interpreter (``python -I -m plumbline_mcp.worker``).

Protocol: one JSON request line on standard input; JSON lines on what was standard output: any number of
``{"progress": [done, total, message]}``, then one ``{"result": ...}`` or ``{"error": {...}}``. Whatever the
called code prints goes to standard error. End of input means that the parent is gone: the worker
ends at once.
"""

import contextlib
import importlib
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from checks.errors import CheckError
from plumbline_mcp.descendants import kill_descendants
from plumbline_mcp.errors import PlumblineError

_ALLOWED = ("plumbline_mcp.", "checks.")
_PROGRESS_INTERVAL_S = 0.1


def scratch_of(pid: int) -> Path:
    """The folder for temporary files of the worker with that process id: it goes with the worker."""
    return Path(tempfile.gettempdir()) / f"plumbline-worker-{pid}"


def main() -> None:
    """Answer the one request on standard input."""
    scratch = scratch_of(os.getpid())
    with contextlib.suppress(OSError):  # no space, or taken: the system's own folder serves
        scratch.mkdir(mode=0o700)
        os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
    try:
        _serve(scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _serve(scratch: Path) -> None:
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        request = json.loads(sys.stdin.buffer.readline())
        threading.Thread(target=_end_with_parent, args=(scratch,), daemon=True).start()
        answer = _answer(request["function"], request["payload"], _Reporter(answers))
        answers.write(json.dumps(answer) + "\n")


def _end_with_parent(scratch: Path) -> None:
    while os.read(0, 4096):  # not through sys.stdin: its lock would abort the interpreter at exit
        pass
    kill_descendants(os.getpid())
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(70)


def _answer(function: str, payload: dict[str, Any], report: "_Reporter") -> dict[str, Any]:
    try:
        return {"result": _resolve(function)(payload, report)}
    except (CheckError, PlumblineError) as error:
        return {
            "error": {"type": type(error).__name__, "message": error.message, "next_step": error.next_step}
        }


def _resolve(function: str) -> Callable[[dict[str, Any], "_Reporter"], Any]:
    module, _, name = function.partition(":")
    if not module.startswith(_ALLOWED):
        raise PlumblineError(f"a worker runs functions of this package only, not {function!r}")
    found: Callable[[dict[str, Any], _Reporter], Any] = getattr(importlib.import_module(module), name)
    return found


class _Reporter:
    """Passes progress on, at most ten times a second."""

    def __init__(self, answers: IO[str]) -> None:
        self._answers = answers
        self._last = 0.0
        self._message = ""

    def __call__(self, done: float, total: float | None, message: str) -> None:
        now = time.monotonic()
        if message == self._message and now - self._last < _PROGRESS_INTERVAL_S and done != total:
            return
        self._last, self._message = now, message
        self._answers.write(json.dumps({"progress": [done, total, message]}) + "\n")
        self._answers.flush()


if __name__ == "__main__":
    main()
