"""What a job may do to a process of its user that is no part of it, tried under each confinement.

`docs/jobs.md` holds the same table. What a confinement does not hold is asserted too: a kernel or a change of
ours that holds more shows here.
"""

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from checks.records.runs import RunFolder
from plumbline_mcp.engines.confinement import capabilities
from plumbline_mcp.engines.engine import State
from plumbline_mcp.engines.local.engine import LocalEngine
from plumbline_mcp.workspace import Workspace
from tests.plumbline_mcp.engines.confinement.test_holding import (
    HELD,
    SYSTEM_PYTHON,
    available,
    place,
)
from tests.plumbline_mcp.engines.small_pack import launch
from tests.plumbline_mcp.engines.waiting import until

__all__ = ["place"]

ATTEMPTS = """
import ctypes, json, os, pathlib, platform, resource, signal
victim, libc = VICTIM, ctypes.CDLL(None, use_errno=True)
def called(answer):
    if answer < 0:
        raise OSError(ctypes.get_errno(), "refused")
def traced():
    called(libc.ptrace(16, victim, None, None))
    os.waitpid(victim, 0)
    called(libc.ptrace(17, victim, None, None))
def read_memory():
    class Piece(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
    room = ctypes.create_string_buffer(8)
    own, other = Piece(ctypes.addressof(room), 8), Piece(START, 8)
    called(libc.process_vm_readv(victim, ctypes.byref(own), 1, ctypes.byref(other), 1, 0))
def taken_descriptor():
    called(libc.syscall(438, os.pidfd_open(victim), 0, 0))
attempts = {
    "signal": lambda: os.kill(victim, signal.SIGCONT),
    "signal through a descriptor": lambda: signal.pidfd_send_signal(os.pidfd_open(victim), signal.SIGCONT),
    "trace": traced,
    "read memory": read_memory,
    "take a descriptor": taken_descriptor,
    "shield from the out-of-memory killer": lambda: pathlib.Path(
        f"/proc/{victim}/oom_score_adj").write_text("900"),
    "renice": lambda: os.setpriority(os.PRIO_PROCESS, victim, 15),
    "change io priority": lambda: called(libc.syscall(
        {"x86_64": 251, "aarch64": 30}[platform.machine()], 1, victim, 2 << 13 | 7)),
    "change limits": lambda: resource.prlimit(victim, resource.RLIMIT_CORE, (0, 0)),
    "change processors": lambda: os.sched_setaffinity(victim, {min(os.sched_getaffinity(0))}),
    "change scheduler": lambda: os.sched_setscheduler(victim, os.SCHED_BATCH, os.sched_param(0)),
}
found = {}
for name, action in attempts.items():
    try:
        action()
        found[name] = "done"
    except OSError as error:
        found[name] = type(error).__name__
pathlib.Path(output, "found.json").write_text(json.dumps(found))
"""
ALWAYS_HELD = {
    "signal",
    "signal through a descriptor",
    "trace",
    "take a descriptor",
    "read memory",
    "shield from the out-of-memory killer",
}
"""Under each confinement that holds anything."""
SCHEDULING = {"renice", "change io priority", "change limits", "change processors", "change scheduler"}
"""Landlock does not mediate these: the kernel asks only for the same user."""


@pytest.fixture
def victim() -> Iterator["subprocess.Popen[bytes]"]:
    """A process of ours as an ordinary user has it: of one with capabilities the kernel refuses more."""
    process = subprocess.Popen(["sleep", "60"], preexec_fn=capabilities.give_up)
    yield process
    process.kill()
    process.wait()


def tried(place: Path, kind: str, pid: int) -> tuple[RunFolder, set[str], set[str]]:
    """What a job under that confinement did to a process, and what it was refused."""
    workspace = Workspace.open(place / "home")
    engine = LocalEngine(workspace)
    python = str(SYSTEM_PYTHON) if kind == "uid" else sys.executable
    start = int(Path(f"/proc/{pid}/maps").read_text().partition("-")[0], 16)
    body = textwrap.dedent(ATTEMPTS).replace("VICTIM", str(pid)).replace("START", str(start))
    run_id = engine.submit(launch(place, python, body, confinement=kind))
    status = until(lambda: (known := engine.status(run_id)).state.over and known)
    folder = RunFolder.open(workspace.runs / run_id)
    assert status.state is State.SUCCEEDED, (folder.path / "logs/rank-00000.err").read_text()
    found = json.loads(folder.verified("output/found.json").read_text())
    done = {name for name, result in found.items() if result == "done"}
    return folder, done, set(found) - done


@pytest.mark.parametrize("kind", HELD)
def test_a_held_job_does_to_other_processes_what_is_documented_and_no_more(
    place: Path, victim: "subprocess.Popen[bytes]", kind: str
) -> None:
    if not available(kind):
        pytest.skip(f"{kind} cannot be used here")
    folder, done, refused = tried(place, kind, victim.pid)
    assert refused >= ALWAYS_HELD
    assert done == (SCHEDULING if kind == "landlock" else set())
    said = "priority, limits and processors of processes of the same user"
    assert (said in folder.job.confinement) == (kind == "landlock")
    assert victim.poll() is None


def test_an_unheld_job_does_all_of_it(place: Path, victim: "subprocess.Popen[bytes]") -> None:
    """So that the attempts above are real ones."""
    _, done, refused = tried(place, "none", victim.pid)
    assert (done, refused) == (ALWAYS_HELD | SCHEDULING, set())
