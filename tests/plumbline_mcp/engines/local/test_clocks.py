"""The wall clock is set forward and back while a job runs: no limit, order or process depends on it."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checks.records.runs import RunFolder
from plumbline_mcp.engines.confinement.choosing import Chosen
from plumbline_mcp.engines.engine import State
from plumbline_mcp.engines.local import exits
from plumbline_mcp.engines.local.engine import LocalEngine
from plumbline_mcp.engines.local.exits import JobEnd
from plumbline_mcp.engines.local.files import RunFiles
from plumbline_mcp.engines.local.processes import process
from plumbline_mcp.workspace import RunState, Workspace
from tests.plumbline_mcp.engines.small_pack import launch
from tests.plumbline_mcp.engines.waiting import WAITING, gone, said_pid, until

STEPPED = """
import datetime, itertools, sys, time
days = itertools.cycle([0, 400, -400, 9, -9])
real = time.time
time.time = lambda: real() + 86_400 * next(days)
class Stepped(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return super().fromtimestamp(time.time(), tz)
from approvals import audit
from plumbline_mcp.engines.local import supervisor
from plumbline_mcp.workspace import store
for module in (audit, supervisor, store):
    assert module.datetime is datetime.datetime
    module.datetime = Stepped
supervisor.main()
"""
"""A supervisor whose wall clock is another day, for years around today, at each look."""


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    def supervise(self: LocalEngine, folder: Path, chosen: Chosen, lock: int) -> None:
        command = [sys.executable, "-c", STEPPED, str(folder), chosen.kind, str(self._slots)]
        subprocess.run(
            command, stdin=subprocess.DEVNULL, pass_fds=(lock,), start_new_session=True, check=True
        )

    monkeypatch.setattr(LocalEngine, "_supervise", supervise)
    return Workspace.open(tmp_path / "home")


@pytest.fixture
def submitted(workspace: Workspace, tmp_path: Path) -> Callable[..., Path]:
    def submit(body: str, **options: Any) -> Path:
        wanted = launch(tmp_path, sys.executable, textwrap.dedent(body), **options)
        return workspace.runs / LocalEngine(workspace).submit(wanted)

    return submit


def ended(workspace: Workspace, run: Path) -> State:
    engine = LocalEngine(workspace)
    state: State = until(lambda: (known := engine.status(run.name)).state.over and known.state, 60)
    return state


def test_a_job_within_its_limit_ends_by_itself_whatever_the_clock_says(
    submitted: Callable[..., Path], workspace: Workspace
) -> None:
    run = submitted("import time\ntime.sleep(2)\nprint('done')", time_limit_s=45)
    assert ended(workspace, run) is State.SUCCEEDED
    ending = RunFolder.open(run).ending()
    assert ending is not None
    assert ending.ended[:10] != ending.started[:10], "the clock was not set: the test is none"
    assert workspace.run(run.name).state is RunState.SEALED
    assert workspace.verify() == []


def test_a_time_limit_is_that_of_a_stopwatch(submitted: Callable[..., Path], workspace: Workspace) -> None:
    run = submitted(WAITING, time_limit_s=3)
    pid = said_pid(run)
    assert ended(workspace, run) is State.TIMED_OUT
    assert gone(pid)


def test_a_supervisor_is_known_and_a_job_is_cancelled_whatever_the_clock_says(
    submitted: Callable[..., Path], workspace: Workspace
) -> None:
    run = submitted(WAITING)
    pid, engine = said_pid(run), LocalEngine(workspace)
    known = RunFiles(run).supervision()
    assert known is not None
    assert known.alive()
    assert known.supervisor == process(known.supervisor.pid)
    assert engine.status(run.name).state is State.RUNNING, "nobody took it for dead"
    engine.cancel(run.name, grace_s=0.2)
    assert ended(workspace, run) is State.CANCELLED
    assert gone(pid)
    until(lambda: not list(workspace.runs.glob(".*")))  # removed right after the end was stored


def test_a_process_is_known_by_the_boots_clock_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    us = process(os.getpid())
    assert us is not None
    for day in (-400, 400):
        monkeypatch.setattr("time.time", lambda day=day: 1.8e9 + 86_400 * day)
        assert us.alive()
        assert process(os.getpid()) == us


@pytest.mark.parametrize("first", [0, 1])
def test_which_rank_failed_first_is_told_without_the_wall_clock(tmp_path: Path, first: int) -> None:
    """Rank 1's stamp is older each time: the clock was set back, or not."""
    (tmp_path / "exit").mkdir()
    end = JobEnd(started="", status=1 << 8)
    for moment, rank in enumerate((first, 1 - first)):
        stamp = "2026-11-30T10:00:00" if rank else "2026-11-30T12:00:00"
        record = {"rank": rank, "code": 5 + rank, "signal": None, "timed_out": False, "host": "h"}
        record |= {"started": "", "ended": stamp, "stopped": False, "reason": "ended by itself"}
        exits.exit_path(tmp_path, rank).write_text(json.dumps(record))
        exits.look(tmp_path, 2, end, float(moment))
    assert exits.complete(tmp_path, 2, end)["failed_rank"] == first
