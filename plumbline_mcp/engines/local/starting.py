"""Starts the first process of a job, confined, and says why when there is none. Standard library only."""

import ctypes
import os
import signal
import subprocess

from plumbline_mcp.engines.confinement.choosing import Confined

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def started(command: Confined, out: int, err: int) -> "subprocess.Popen[bytes]":
    """The job's first process. Raises `OSError` that says why there is none."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as said, os.fdopen(writing, "wb", buffering=0) as trouble:
        try:
            return subprocess.Popen(
                command.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=lambda: _before_execution(command, trouble.fileno()),
            )
        except subprocess.SubprocessError as error:  # says no more than that something was raised
            trouble.close()
            raise OSError(said.read().decode(errors="replace")) from error


def _before_execution(command: Confined, trouble: int) -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    try:
        if command.apply is not None:
            command.apply()
    except BaseException as error:
        os.write(trouble, f"the job could not be confined: {error}".encode()[:500])
        raise
