"""A stopped program takes everything with it, also while pip waits for an index that never answers."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from plumbline_mcp.cli.stopping import Stopping
from plumbline_mcp.workspace import RunState, Workspace
from tests.plumbline_mcp.engines.small_pack import write_pack
from tests.soak.processes import belonging, deliver_signals, descendants, wait_until_gone
from tests.soak.programs import Inputs, Place, Program


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Program]:
    """A run whose environment comes from an index that accepts connections and says nothing."""
    deliver_signals()
    with socket.create_server(("127.0.0.1", 0)) as index:
        offline = Inputs(tmp_path / "inputs").program("environment")
        variables = {
            "PIP_INDEX_URL": f"http://127.0.0.1:{index.getsockname()[1]}/simple",
            "PIP_CONFIG_FILE": os.devnull,
        }
        yield replace(offline, variables=variables)


def wait_for_pip(process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if any("__pip-runner__" in started.command for started in descendants(process.pid)):
            return
        time.sleep(0.05)
    raise AssertionError("pip was not started")


@pytest.mark.parametrize(("number", "code"), [("INT", 130), ("TERM", 143), ("HUP", 129), ("KILL", -9)])
def test_pip_ends_with_the_program(hanging: Program, tmp_path: Path, number: str, code: int) -> None:
    place = Place(tmp_path / "place")
    hanging.prepare(place)
    process = hanging.start(place)
    try:
        wait_for_pip(process)
        known = descendants(process.pid)
        assert len(known) >= 3  # worker, pip, and pip inside the environment
        process.send_signal(signal.Signals[f"SIG{number}"])
        assert process.wait(30) == code
    finally:
        process.kill()
    took, left = wait_until_gone(place.folder, known, process.pid, 5.0)
    assert left == [], took
    if number != "KILL":
        said = json.loads((place.folder / "out").read_text())
        assert said["exit_code"] == code
        assert said["error"] == "stopped; nothing half-written"
        assert not list(place.cache.glob("plumbline/environments/*/complete.json"))


WAITING = """
import os, pathlib, time
pathlib.Path(output, "pid").write_text(str(os.getpid()))
time.sleep(600)
"""


@pytest.mark.parametrize(("number", "code"), [("INT", 130), ("TERM", 143), ("HUP", 129)])
def test_a_job_ends_with_the_program_and_its_run_is_removed(tmp_path: Path, number: str, code: int) -> None:
    deliver_signals()
    (tmp_path / "model").mkdir()
    pack, model = write_pack(tmp_path / "pack", WAITING), tmp_path / "model"
    options = ("--framework", str(pack), "--python", sys.executable, "--model", str(model))
    program, place = Program("run", ("run", "export", *options)), Place(tmp_path / "place")
    program.prepare(place)
    process = program.start(place)
    until = time.monotonic() + 60
    while not (place.home / "runs/export-0001/output/pid").is_file() and time.monotonic() < until:
        time.sleep(0.05)
    known = set(belonging(place.folder, set(), process.pid))
    assert len(known) >= 3  # supervisor, the rank's wrapper, the rank
    process.send_signal(signal.Signals[f"SIG{number}"])
    assert process.wait(30) == code
    assert wait_until_gone(place.folder, known, process.pid, 0.5)[1] == []
    workspace = Workspace.open(place.home)
    assert [run.state for run in workspace.runs_list()] == [RunState.REMOVED]
    assert list(workspace.runs.iterdir()) == []


@pytest.mark.parametrize("number", ["INT", "TERM", "HUP"])
def test_a_server_ends_at_once_while_its_client_keeps_the_pipe_open(tmp_path: Path, number: str) -> None:
    deliver_signals()
    program, place = Inputs(tmp_path / "inputs").program("serve"), Place(tmp_path / "place")
    program.prepare(place)
    process = program.start(place)
    until = time.monotonic() + 60
    while not any("plumbline_mcp.worker" in one.command for one in descendants(process.pid)):
        assert time.monotonic() < until
    known = descendants(process.pid)
    process.send_signal(signal.Signals[f"SIG{number}"])
    try:
        assert process.wait(10) == -signal.Signals[f"SIG{number}"]
    finally:
        process.kill()
    assert wait_until_gone(place.folder, known, process.pid, 5.0)[1] == []
    assert "Traceback" not in (place.folder / "err").read_text()


def test_a_signal_that_was_ignored_at_the_start_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN), signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        Stopping().install()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_IGN, signal.SIG_DFL)
    finally:
        signal.signal(signal.SIGHUP, before[0])
        signal.signal(signal.SIGTERM, before[1])


def test_only_the_first_of_several_signals_interrupts() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.SIG_DFL) for number in numbers]
    try:
        stopping = Stopping()
        stopping.install()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGHUP)
        for number in numbers[1:]:
            signal.raise_signal(number)
        assert stopping.code == 129
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _catches_interrupts(pid: int) -> bool:
    """Whether the process has a handler of its own for SIGINT (proc(5), SigCgt)."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGINT - 1) & 1)


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.1, 0.2])
def test_ctrl_c_while_libraries_load_shows_no_traceback(tmp_path: Path, after_s: float) -> None:
    arguments = [sys.executable, "-I", "-m", "plumbline_mcp", "report", "--home", str(tmp_path / "home")]
    with (tmp_path / "err").open("wb") as errors, subprocess.Popen(arguments, stderr=errors) as process:
        while not _catches_interrupts(process.pid):  # the interpreter starts
            time.sleep(0.001)
        while _catches_interrupts(process.pid) and process.poll() is None:  # until our first line
            time.sleep(0.001)
        time.sleep(after_s)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in (-signal.SIGINT, 130, 3)
    assert "Traceback" not in (tmp_path / "err").read_text()
