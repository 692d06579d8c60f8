"""Launches settings that the framework documents as unsupported, each in a process of its own.

Such a launch is a dry run: the framework's own parser and trainer, and a model without memory. What it says
last and how it ended goes into ``refusals.jsonl``.
"""

import os
import subprocess
import sys
from pathlib import Path

from plumbline_recorder.journal import Journal
from plumbline_recorder.procedure import Procedure

LIMIT_S = 300.0
"""For one launch; it holds no weights."""
SAID = 1000
RANKED = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_")
"""Variables that make a process one of several ranks."""


def launch_all(procedure: Procedure, script: str) -> None:
    """Launch every refusal of the job with ``script --refusal NUMBER``, one after another."""
    journal = Journal(procedure.records)
    for number, refusal in enumerate(procedure.job.get("refusals") or []):
        journal.write("refusals", {"name": refusal["name"], **launched(script, number)})
    journal.close()


def launched(script: str, number: int) -> "dict[str, object]":
    """How one launch ended."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(RANKED)}
    command = [sys.executable, "-I", "-u", script, "--refusal", str(number)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return {"code": None, "timed_out": True, "said": last_line(error.stderr or b"")}
    return {"code": done.returncode, "timed_out": False, "said": last_line(done.stderr)}


def last_line(stream: bytes) -> str:
    """The last line that is not empty, cut."""
    lines = [line.strip() for line in stream.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1][:SAID] if lines else ""


def attempt(run: Path, number: int) -> None:
    """Be one launch: the binding's dry run under the refused settings. It returns where they are accepted."""
    procedure = Procedure(run)
    refusal = procedure.job["refusals"][number]
    procedure.job.update(settings=refusal["settings"], binding=refusal["binding"], world_size=1)
    procedure.binding().dry_run(procedure.job, Unrecorded(), lambda done, total, message: None)


class Unrecorded:
    """Stands in for the recorder: of a launch that has to fail only its end is recorded."""

    def model(self, module: object, when: str) -> None:
        """Record nothing."""
