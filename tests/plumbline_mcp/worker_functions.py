"""What the workers of `test_workers` run."""

import itertools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from checks.check import Progress
from checks.errors import BadInput


def echo(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    print("noise on standard output")
    progress(1, 2, "half")
    return payload


def bad(payload: dict[str, Any], progress: Progress) -> None:
    raise BadInput("no such thing", "look elsewhere")


def die(payload: dict[str, Any], progress: Progress) -> None:
    os.kill(os.getpid(), 9)


def endless_step(payload: dict[str, Any], progress: Progress) -> None:
    """A template that calls what never returns to Python."""
    from checks.references import rendering  # the other workers start without it

    rendering.RENDER_SECONDS = rendering.RENDER_KILL_SECONDS = 0.2
    template = rendering.ChatTemplate("{{ step() }}", "t", {"step": lambda: sum(itertools.repeat(1))})
    with rendering.limits():
        template.render([])


def crash(payload: dict[str, Any], progress: Progress) -> float:
    return 1 / payload.get("zero", 0)


def pid_then_sleep(payload: dict[str, Any], progress: Progress) -> None:
    Path(payload["file"]).write_text(str(os.getpid()))
    time.sleep(60)


def child_in_own_session(payload: dict[str, Any], progress: Progress) -> None:
    child = subprocess.Popen(["/bin/sleep", "60"], start_new_session=True)
    Path(payload["file"]).write_text(str(child.pid))
    time.sleep(60)


def seen(payload: dict[str, Any], progress: Progress) -> list[Any]:
    return [sys.flags.isolated, sys.path, dict(os.environ)]


def temporary_then_sleep(payload: dict[str, Any], progress: Progress) -> None:
    folder = tempfile.mkdtemp()
    Path(payload["folder"]).write_text(folder)
    Path(payload["file"]).write_text(str(os.getpid()))
    time.sleep(60)
