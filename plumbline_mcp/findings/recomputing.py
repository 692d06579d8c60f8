"""Runs the recomputation in a fresh process: isolated, with a time limit, its answer read as untrusted."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from approvals.visible import visible_line
from plumbline_mcp.errors import UsageError, WorkerCrashed, WorkerTimedOut
from plumbline_mcp.findings.questions import MAX_SUBMISSION_BYTES, QUESTION_FILE, Submission
from plumbline_mcp.workers import clean_environment

MODULE = "plumbline_mcp.findings.recompute"
TIME_LIMIT_S = 3600.0
_SHOWN_BYTES = 4000
_SHOWN_LINES = 10
"""Of what a verifier wrote to its standard error before it failed."""


def recomputed_checks() -> frozenset[str]:
    """Names of the checks that have a recomputation."""
    from plumbline_mcp.findings.recompute import known  # numpy is imported when somebody asks

    return frozenset(known())


def recompute(folder: Path, timeout_s: float = TIME_LIMIT_S) -> Submission:
    """The recomputation's answer to the question in a folder. Raises `WorkerCrashed`, `WorkerTimedOut`."""
    command = [sys.executable, "-I", "-m", MODULE, str(folder), str(folder / QUESTION_FILE)]
    return run_verifier(command, folder, {}, timeout_s)


def run_verifier(
    command: list[str], folder: Path, environment: dict[str, str], timeout_s: float
) -> Submission:
    """Run a program in the question's folder; the JSON on its standard output is the submission.

    Its output goes to a file, so that neither a flood nor a child that holds a pipe open stops us. Raises
    `UsageError` for an answer that is none.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=clean_environment(os.environ) | environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=error,
                start_new_session=True,
            )
        except OSError as problem:
            raise UsageError(
                f"the verifier {command[0]!r} cannot be started: {problem.strerror}", "name a program"
            ) from problem
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired as late:
            raise WorkerTimedOut(f"the verifier took longer than {timeout_s:g} s", "repeat it") from late
        finally:
            _end(process)
        if code != 0:
            raise WorkerCrashed(_death(code, error), "see its message, and repeat")
        out.seek(0)
        return submission_of(out.read(MAX_SUBMISSION_BYTES + 1))


def submission_of(raw: bytes) -> Submission:
    """A submission from its JSON. Raises `UsageError` saying what does not fit."""
    if len(raw) > MAX_SUBMISSION_BYTES:
        raise UsageError(f"the submission is larger than {MAX_SUBMISSION_BYTES} bytes", "list fewer problems")
    try:
        return Submission.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"]) or "the answer"
        fields = ", ".join(Submission.model_fields)
        raise UsageError(
            f"{visible_line(name, 120)}: {visible_line(first['msg'], 200)}",
            f"answer with one JSON object: {fields}",
        ) from error


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what it left behind in its session, also when it ended well."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _death(code: int, error: IO[bytes]) -> str:
    error.seek(max(error.seek(0, os.SEEK_END) - _SHOWN_BYTES, 0))
    lines = error.read(_SHOWN_BYTES).decode("utf-8", "replace").strip().splitlines()[-_SHOWN_LINES:]
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    said = " | ".join(visible_line(line.strip(), 300) for line in lines if line.strip())
    return f"the verifier ended with {how}" + (f": {said}" if said else "")
