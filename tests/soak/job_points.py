"""Kill points of jobs: whoever starts, supervises or ends a job is killed at a seeded moment.

The client (`plumbline run`), the supervisor, or a server that was asked to end the job gets SIGKILL. Then
nobody helps but the next ordinary command, ``plumbline job list``; after it every job has to be sealed or
marked, none twice, no process of any may be left, and the same job has to run again.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plumbline_mcp.workspace import RunState
from tests.plumbline_mcp.cli.launching import LAUNCHER, environment
from tests.plumbline_mcp.engines.small_pack import write_pack
from tests.soak import left_behind
from tests.soak.processes import Living, belonging, living, wait_dead
from tests.soak.programs import Place

VICTIMS = ("client", "supervisor", "server")
SUPERVISOR = "plumbline_mcp.engines.local.supervisor"
SETTLE_S = 90.0
"""How long a job may go on without its client, on a busy machine: it takes a few seconds."""
COMMAND_S = 120
SHORT, LONG = 4, 900
"""Steps of a job, of a tenth of a second. A server is given a long one, so that it asks for the end of a job
that runs; once the server is dead the job is let go, and ends by itself unless it was asked for before.
"""
ASKED_S = 0.5
"""A supervisor looks for a request every 50 ms."""
LEAVES_LONG, LEAVES_SHORT = "up", "down"
"""What the process that the job leaves behind does: it has to be ended, or ends within its own grace."""

BODY = """
import os, pathlib, sys, time
if os.fork() == 0:
    os.setsid()
    os.execv("/bin/sleep", ["sleep", "0.3" if job["settings"].get("order") == "down" else "600"])
for step in range(job["settings"]["size"]):
    progress(step, job["settings"]["size"], "working")
    time.sleep(0.1)
    if pathlib.Path(output, "go").exists():
        break
pathlib.Path(output, "result").write_text("whole")
"""
"""A short job that leaves a process in a session of its own."""


@dataclass(frozen=True)
class JobPoint:
    """Who is killed, and when: ``fraction`` of the seconds that it lives in a clean run."""

    victim: str
    fraction: float


@dataclass
class JobPlayed:
    """What came of a point: the states of all its runs, and everything that should not have been."""

    point: JobPoint
    states: list[str] = field(default_factory=list)
    late: bool = False
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True)
class Lives:
    """Seconds that each victim lives in a clean run."""

    client: float
    supervisor: float
    server: float


class Inputs:
    """The pack and the model of the job, made once."""

    def __init__(self, folder: Path) -> None:
        self.pack, self.model = write_pack(folder / "pack", BODY), folder / "model"
        self.model.mkdir(exist_ok=True)

    def command(self, steps: int = SHORT, leaves: str = LEAVES_LONG) -> list[str]:
        """The command that runs the job and follows it."""
        sides = ["--framework", str(self.pack), "--model", str(self.model)]
        sides += ["--set", f"size={steps}", "--set", f"order={leaves}"]
        return [str(LAUNCHER), "run", "export", *sides, "--python", sys.executable, "--json", "--quiet"]


def choose(count: int, seed: int) -> Iterator[JobPoint]:
    """Points over the victims in turn, each at a seeded moment."""
    moments = random.Random(seed)
    for index in range(count):
        yield JobPoint(VICTIMS[index % len(VICTIMS)], moments.uniform(0.0, 1.0))


def rehearse(inputs: Inputs, folder: Path) -> Lives:
    """Run it clean and measure."""
    place = Place(folder).make()
    started = time.monotonic()
    client = _start(inputs.command(), place)
    appeared = _when(lambda: _supervisor(place), client)
    client.wait(COMMAND_S)
    ended = time.monotonic()
    _settle(place)
    asked = time.monotonic()
    server = _serve(place, "export-0001")
    _answered(place, server)
    lives = Lives(ended - started, ended - appeared, time.monotonic() - asked)
    _kill(server)
    shutil.rmtree(folder)
    return lives


def play(inputs: Inputs, lives: Lives, point: JobPoint, folder: Path) -> JobPlayed:
    """Play one point in a fresh place and judge what it left."""
    began = time.monotonic()
    played, place = JobPlayed(point), Place(folder).make()
    client = _start(inputs.command(LONG if point.victim == "server" else SHORT), place)
    wait_s = point.fraction * getattr(lives, point.victim)
    if point.victim == "client":
        time.sleep(wait_s)
        played.late = client.poll() is not None
        _kill(client)
    elif point.victim == "supervisor":
        _when(lambda: _supervisor(place), client)
        time.sleep(wait_s)
        victims = _supervisor(place)
        played.late = not victims
        for one in victims:
            _signal(one.pid)
        client.wait(COMMAND_S)
        wait_dead(victims)
    else:
        _when(lambda: _supervisor(place), client)
        server = _serve(place, "export-0001")
        time.sleep(wait_s)
        _kill(server)
        _let_go(place)
        client.wait(COMMAND_S)
    played.violations = _settle(place, escaped=point.victim == "supervisor")
    played.violations += _listed(place) + _judge(place)
    played.states = _states(place)
    played.violations += _again(inputs, place)
    if not played.violations:
        shutil.rmtree(folder)
    played.seconds = time.monotonic() - began
    return played


def _let_go(place: Place) -> None:
    """Tell the jobs of a place that they may end; one that was asked to end is noticed before."""
    time.sleep(ASKED_S)
    for output in place.home.glob("runs/*/output"):
        with contextlib.suppress(FileNotFoundError):  # it was ended meanwhile
            (output / "go").touch()


def _listed(place: Place) -> list[str]:
    """The next ordinary command, which sweeps; 3 where there is no workspace yet."""
    listed = _run([str(LAUNCHER), "job", "list", "--json"], place)
    return [] if listed.returncode in (0, 3) else [f"job list: {listed.stderr[-300:]}"]


def _judge(place: Place) -> list[str]:
    """What a command leaves: every run over, ended once, whole; no folder, file or process besides."""
    found = []
    left = belonging(place.folder, set(), 0)
    found += [f"process {one.pid} survived: {one.command[:150]}" for one in left]
    found += left_behind.half_written(place, {}) + left_behind.unfinished_runs(place)
    workspace = left_behind.open_workspace(place)
    if workspace is None:
        return found
    events = [(entry.subject, entry.event) for entry in workspace.audit.entries()]
    for run in workspace.runs_list(limit=left_behind.MANY):
        own = [event for subject, event in events if subject == run.run_id]
        ends = [event for event in own if event in ("run_sealed", "run_lost", "run_removed")]
        if not run.state.over or len(ends) != 1 or own.count("run_started") > 1:
            found.append(f"{run.run_id} is {run.state}: {own}")
    found += [f"{path.name} was left" for path in workspace.runs.iterdir() if path.name.startswith(".")]
    workspace.close()
    return found


def _again(inputs: Inputs, place: Place) -> list[str]:
    """The same job, undisturbed: a new run, sealed, whole. Nothing is swept after it but by itself."""
    before = left_behind.ids(place)
    ended = _run(inputs.command(1, LEAVES_SHORT), place)
    if ended.returncode != 0:
        return [f"the rerun ended with {ended.returncode}: {ended.stdout[-200:]}{ended.stderr[-200:]}"]
    run_id = json.loads(ended.stdout)["run_id"]
    reused = [f"{run_id} was given twice"] if run_id in before else []
    return reused + _judge(place)


def _states(place: Place) -> list[str]:
    workspace = left_behind.open_workspace(place)
    if workspace is None:
        return ["no workspace yet"]
    states = [
        f"{run.state.value}{f' {run.outcome.value}' if run.state is RunState.SEALED and run.outcome else ''}"
        for run in workspace.runs_list(limit=left_behind.MANY)
    ]
    workspace.close()
    return states or ["no run yet"]


def _settle(place: Place, *, escaped: bool = False) -> list[str]:
    """Wait until no supervisor of the place runs, and no process of its job that one could end."""
    until = time.monotonic() + SETTLE_S
    while left := _supervisor(place) if escaped else belonging(place.folder, set(), 0):
        if time.monotonic() > until:
            return [f"process {one.pid} went on: {one.command[:150]}" for one in left]
        time.sleep(0.05)
    return []


def _supervisor(place: Place) -> list[Living]:
    mark = str(place.folder)
    return [one for one in living() if SUPERVISOR in one.command and mark in one.command]


def _when(condition: Callable[[], object], client: "subprocess.Popen[bytes]") -> float:
    """The moment at which a condition held, or the client ended."""
    while not condition() and client.poll() is None:
        time.sleep(0.01)
    return time.monotonic()


def _start(command: Sequence[str], place: Place) -> "subprocess.Popen[bytes]":
    with (place.folder / "out").open("wb") as out, (place.folder / "err").open("wb") as err:
        return subprocess.Popen(
            command,
            cwd=place.folder,
            env=environment(place.home),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )


def _run(command: Sequence[str], place: Place) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        cwd=place.folder,
        env=environment(place.home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )


def _serve(place: Place, run_id: str) -> "subprocess.Popen[bytes]":
    """A server that is asked to end the job."""
    about = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "soak", "version": "1"},
    }
    call = {"name": "job_cancel", "arguments": {"run_id": run_id}}
    sent = (
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call},
    )
    with (place.folder / "answers").open("wb") as out:
        server = subprocess.Popen(
            [LAUNCHER, "serve"],
            cwd=place.folder,
            env=environment(place.home),
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.DEVNULL,
        )
    if server.stdin is not None:
        server.stdin.write("".join(json.dumps(one) + "\n" for one in sent).encode())
        server.stdin.flush()
    return server


def _answered(place: Place, server: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + COMMAND_S
    while b'"id":2' not in (place.folder / "answers").read_bytes() and server.poll() is None:
        if time.monotonic() > until:
            raise RuntimeError("the server did not answer")
        time.sleep(0.02)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _signal(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
