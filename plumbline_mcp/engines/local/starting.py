"""Starts a supervisor, and the first process of its job; says why where there is none. Standard library."""

import ctypes
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence

from plumbline_mcp.engines.confinement.choosing import Confined

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def in_background(
    command: Sequence[str], env: Mapping[str, str], pass_fds: Sequence[int], limit_s: float
) -> None:
    """Start a program that leaves a child in the background and ends with 0.

    The child stays in the program's process group: where the program ends otherwise, or not in time, the
    group is killed whole, and nothing of it runs on. Raises `OSError` that says how it ended.
    """
    process = subprocess.Popen(
        command,
        env=env,
        pass_fds=pass_fds,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    how = "it was stopped"
    try:
        how = _how_ended(process.pid, limit_s)
    finally:
        if how:  # it was not waited for yet, so its number is still the group's
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if how:
        raise OSError(how)


def _how_ended(pid: int, limit_s: float) -> str:
    """How a child ended that is not waited for yet; empty for exit code 0."""
    descriptor = os.pidfd_open(pid)
    try:
        if not select.select([descriptor], [], [], limit_s)[0]:
            return f"it did not come up within {limit_s:g} s"
    finally:
        os.close(descriptor)
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    if found is None:  # with WNOHANG alone
        return "it is still running"
    if found.si_code != os.CLD_EXITED:
        return f"signal {signal.Signals(found.si_status).name} ended it"
    return f"it ended with exit code {found.si_status}" if found.si_status else ""


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
