"""A cancel at the very moment of sealing: the run is sealed with one outcome, complete or cancelled.

The supervisor is this process's fork, so that its moments can be held and each race costs a blink.
"""

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checks.records.runs import RunFolder
from plumbline_mcp.engines.confinement.choosing import Chosen
from plumbline_mcp.engines.engine import State, Status
from plumbline_mcp.engines.local import ending, supervisor
from plumbline_mcp.engines.local.engine import LocalEngine
from plumbline_mcp.engines.local.files import RunFiles
from plumbline_mcp.workspace import RunState, Workspace
from tests.plumbline_mcp.engines.small_pack import launch
from tests.plumbline_mcp.engines.waiting import until

RACES, SEED = 50, 20261130
BODY = """
import pathlib
for number in range(100):
    pathlib.Path(output, str(number)).write_bytes(bytes(1000))
"""
MOMENTS: dict[str, tuple[object, str]] = {
    "before the exit files": (ending.exits, "complete"),
    "before the manifest": (ending, "seal"),
    "before the end is stored": (Workspace, "seal_run"),
    "before the engine's files go": (RunFiles, "remove"),
    "before the lock goes": (Path, "unlink"),
}


class Races:
    """A workspace whose supervisors are forks of this process, and a job that ends by itself."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.workspace, self.folder = Workspace.open(folder / "home"), folder
        self.engine = LocalEngine(self.workspace)
        self.supervisors: list[int] = []
        self.before: Callable[[], None] = lambda: None
        monkeypatch.setattr(LocalEngine, "_supervise", self._supervise)
        monkeypatch.setattr(supervisor, "LEFT_BEHIND_S", 0.0)

    def _supervise(self, folder: Path, chosen: Chosen, lock: int) -> None:
        if pid := os.fork():
            self.supervisors.append(pid)
            return
        try:
            os.setsid()
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            supervisor._LIBC.prctl(36, 1, 0, 0, 0)
            self.before()
            supervisor.supervise(folder, chosen.kind, 4)
        except BaseException:  # noqa: BLE001 - a fork of the test must not go on as the test
            traceback.print_exc()
        finally:
            os._exit(0)

    def submit(self) -> Path:
        wanted = launch(self.folder, sys.executable, BODY, confinement="none")
        return self.workspace.runs / self.engine.submit(wanted)

    def judged(self, run: Path) -> State:
        """The one end of a run: stored once, sealed whole, told alike everywhere."""
        until(lambda: self.engine.status(run.name).state.over, 60)
        until(lambda: not RunFiles(run).held(), 60)
        os.waitpid(self.supervisors.pop(), 0)
        state, stored = self.engine.status(run.name).state, self.workspace.run(run.name)
        assert state in (State.SUCCEEDED, State.CANCELLED)
        assert stored.state is RunState.SEALED
        told = RunFolder.open(run).ending()
        assert told is not None
        assert told.outcome == state.value
        assert stored.outcome is not None
        assert stored.outcome.value == state.value
        events = [entry.event for entry in self.workspace.audit.entries() if entry.subject == run.name]
        assert events == ["run_submitted", "run_started", "run_sealed"]
        return state


@pytest.fixture
def races(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Races:
    return Races(tmp_path, monkeypatch)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_cancel_that_comes_at_a_moment_of_the_seal_changes_no_end(
    races: Races, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The supervisor is held there until the request is written: the job had ended by itself."""
    owner, name = MOMENTS[moment]
    there, go = races.folder / "there", races.folder / "go"

    def hold() -> None:
        real: Callable[..., Any] = getattr(owner, name)

        def held(*arguments: Any, **named: Any) -> Any:
            if name != "unlink" or arguments[0].suffix == ".lock":
                there.touch()
                until(go.exists, 60)
            return real(*arguments, **named)

        setattr(owner, name, held)

    races.before = hold  # in the fork alone
    run = races.submit()
    until(there.exists, 60)
    asked = RunFiles(run)
    with monkeypatch.context() as patched:  # it looked just before the end was stored
        patched.setattr(LocalEngine, "status", lambda *_: Status(run_id=run.name, state=State.RUNNING))
        races.engine.cancel(run.name)
    assert asked.cancel.exists()
    go.touch()
    assert races.judged(run) is State.SUCCEEDED
    assert list(races.workspace.runs.glob(".*")) == []


def test_fifty_seeded_races_end_sealed_and_in_one_state(races: Races) -> None:
    moments, states = random.Random(SEED), []
    for _ in range(RACES):
        run = races.submit()
        until(lambda run=run: (run / "exit/rank-00000.json").exists() or not RunFiles(run).held(), 60)
        time.sleep(moments.uniform(0, 0.12))
        races.engine.cancel(run.name)
        states.append(races.judged(run))
    assert list(races.workspace.runs.glob(".*")) == []
    assert races.workspace.verify() == []
    assert len(states) == RACES
    sys.stdout.write(f"{states.count(State.CANCELLED)} of {RACES} cancelled, the others complete\n")
