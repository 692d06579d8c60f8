"""A job that works against its supervisor: links, pipes and forged files in its own folders, fork bombs."""

import json
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from checks.records.runs import RunFolder
from plumbline_mcp.engines.engine import State, Status
from plumbline_mcp.engines.local.engine import LocalEngine
from plumbline_mcp.engines.local.exits import JobEnd, complete
from plumbline_mcp.engines.local.files import Cancel, RunFiles
from plumbline_mcp.engines.local.processes import MARK, end_all, marked
from plumbline_mcp.workspace import Workspace
from tests.plumbline_mcp.engines.small_pack import launch
from tests.plumbline_mcp.engines.waiting import until

HEAD = """
import os, pathlib, signal, sys, time
run = pathlib.Path(output).parent
def kill_wrapper():
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
"""


def played(folder: Path, body: str, **options: Any) -> tuple[Status, Path]:
    """The end of a job with this body, and its run folder."""
    workspace = Workspace.open(folder / "home")
    engine = LocalEngine(workspace)
    run_id = engine.submit(launch(folder, sys.executable, HEAD + textwrap.dedent(body), **options))
    status: Status = until(lambda: (known := engine.status(run_id)).state.over and known, 60)
    return status, workspace.runs / run_id


def test_links_that_a_job_leaves_lead_its_supervisor_nowhere(tmp_path: Path) -> None:
    outside = [tmp_path / name for name in ("profile", "keys", "log")]
    for path in outside:
        path.write_text("kept")
    profile, keys, log = map(str, outside)
    status, run = played(
        tmp_path,
        f"""
        for name in ("job.part", "job.json"):
            os.symlink({profile!r}, run / "exit" / name)
        os.symlink({keys!r}, run / "exit/rank-00000.part")
        os.symlink({log!r}, run / "logs/supervisor.log")
        os.symlink("/etc", run / "records/rank-00001")
        if os.fork() == 0:
            os.setsid()
            os.execv("/bin/sleep", ["sleep", "600"])
        kill_wrapper()
        """,
    )
    assert [path.read_text() for path in outside] == ["kept"] * 3
    assert (status.state, status.failed_rank) == (State.FAILED, 0)
    folder = RunFolder.open(run)
    assert folder.exits()[0].reason == "no exit file: the rank was killed"
    ending = folder.ending()
    assert ending is not None
    assert ending.outcome == "failed"
    assert not any(name.startswith("records/rank-00001") for name in folder.manifest)


def test_pipes_and_folders_in_the_way_hold_nobody_up(tmp_path: Path) -> None:
    status, run = played(
        tmp_path,
        """
        os.mkfifo(run / "exit/rank-00000.part")
        os.mkfifo(run / "exit/job.part")
        os.mkfifo(run / "logs/supervisor.log")
        (run / "exit/job.json/deep").mkdir(parents=True)
        (run / "exit/rank-00000.json/deep").mkdir(parents=True)
        (run / "logs/rank-00000.out").unlink()
        os.mkfifo(run / "logs/rank-00000.out")
        (run / "logs/rank-00000.out.tail").write_text("the end")
        kill_wrapper()
        """,
    )
    assert (status.state, status.failed_rank) == (State.FAILED, 0)
    assert [one.reason for one in RunFolder.open(run).exits()] == ["no exit file: the rank was killed"]
    assert "logs/rank-00000.out" not in RunFolder.open(run).manifest


GOOD = {
    "rank": 0,
    "code": 0,
    "signal": None,
    "timed_out": False,
    "host": "here",
    "started": "",
    "ended": "",
    "stopped": False,
    "reason": "",
}


@pytest.mark.parametrize(
    "forged",
    [
        {"code": 0},
        {"code": 1},
        [],
        "clean",
        GOOD | {"rank": 5},
        GOOD | {"code": None},
        GOOD | {"code": 0, "signal": 9},
        GOOD | {"code": False},
        GOOD | {"ended": ["x"]},
        GOOD | {"more": 1},
    ],
    ids=lambda forged: json.dumps(forged)[:60],
)
def test_a_forged_exit_file_counts_as_none(tmp_path: Path, forged: object) -> None:
    (tmp_path / "exit").mkdir()
    (tmp_path / "exit/rank-00000.json").write_text(json.dumps(forged))
    (tmp_path / "exit/rank-00001.json").write_text(json.dumps(GOOD | {"rank": 1}))
    ending = complete(tmp_path, 1, JobEnd(started="", ended="", status=0))
    assert (ending["outcome"], ending["failed_rank"]) == ("failed", 0)
    assert ending["reason"] == "rank 0 failed first: no exit file: it was removed, or is no record"
    assert sorted(path.name for path in (tmp_path / "exit").iterdir()) == ["job.json", "rank-00000.json"]


def test_an_exit_file_of_before_is_kept(tmp_path: Path) -> None:
    (tmp_path / "exit").mkdir()
    (tmp_path / "exit/rank-00000.json").write_text(json.dumps(GOOD | {"code": 3}))
    assert complete(tmp_path, 1, JobEnd(started="", ended="", status=3 << 8))["code"] == 3


BOMB = """
import time
until = time.monotonic() + 60
for _ in range(WIDTH):
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.stdout.flush()
        while time.monotonic() < until:
            if os.fork():
                os._exit(0)
        os._exit(0)
"""
"""Processes that each fork one and end: none lives long enough to be looked up and killed. A minute of it is
more than any end of a job takes, and a bomb that outlived its test would slow every other one."""


@pytest.mark.parametrize("width", [1, 30])
def test_a_fork_bomb_is_ended_before_the_run_is_sealed(tmp_path: Path, width: int) -> None:
    status, run = played(tmp_path, BOMB.replace("WIDTH", str(width)))
    assert (status.state, status.reason) == (State.SUCCEEDED, "")
    assert list(marked(run)) == []


def test_a_fork_bomb_whose_supervisor_is_gone_is_ended_too(tmp_path: Path) -> None:
    """Nobody waits for its processes, and each is gone before a second look."""
    bomb = [sys.executable, "-I", "-c", "import os, signal, sys\n" + BOMB.replace("WIDTH", "1")]
    subprocess.run(bomb, env={MARK: str(tmp_path)}, check=True)
    assert end_all(tmp_path, (), 20)
    assert list(marked(tmp_path)) == []


def test_the_log_of_the_launcher_has_its_bounds(tmp_path: Path) -> None:
    body = """
    with open(f"/proc/{os.getppid()}/fd/1", "wb") as launcher:
        launcher.write(b"begun" + b"." * 3_000_000 + b"ended")
    """
    _, run = played(tmp_path, body, log_bytes=16_000)
    log = RunFolder.open(run).verified("logs/launcher.out").read_bytes()
    head, _, rest = log.partition(b"\n[")
    count, _, tail = rest.partition(b" bytes of this log were dropped here]\n")
    assert (head[:5], tail[-5:]) == (b"begun", b"ended")
    assert (len(head), len(tail), int(count)) == (8000, 8000, 3_000_010 - 16_000)


def test_a_job_that_closes_its_output_and_removes_its_logs_still_ends(tmp_path: Path) -> None:
    status, run = played(
        tmp_path,
        """
        import shutil
        print("begun", flush=True)
        os.close(1)
        os.close(2)
        shutil.rmtree(run / "exit", ignore_errors=True)
        shutil.rmtree(run / "logs", ignore_errors=True)
        os._exit(5)
        """,
    )
    assert (status.state, status.exit_code, status.failed_rank) == (State.FAILED, 5, 0)
    assert RunFolder.open(run).exits()[0].code == 5


def test_folders_that_an_unheld_job_replaced_by_links_are_neither_read_nor_written(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/kept").write_text("kept")
    status, run = played(
        tmp_path,
        f"""
        import shutil
        for name in ("records", "logs", "exit"):
            shutil.rmtree(run / name)
            os.symlink({str(tmp_path / "outside")!r}, run / name)
        """,
        confinement="none",
    )
    written = {path.name for path in (tmp_path / "outside").iterdir()}
    assert written <= {"kept", "rank-00000", "rank-00000.json"}, "the job's own doing"
    assert (status.state, status.failed_rank) == (State.FAILED, 0)
    (lost,) = RunFolder.open(run).exits()
    assert lost.reason == "no exit file: it was removed, or is no record"


def test_requests_at_the_same_moment_are_one(tmp_path: Path) -> None:
    files, began, troubles = RunFiles(tmp_path / "load-0001"), threading.Barrier(8), []

    def ask(number: int) -> None:
        began.wait()
        try:
            for _ in range(50):
                files.request_cancel(Cancel(f"asked by {number}"))
        except OSError as error:
            troubles.append(error)

    asking = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for each in asking:
        each.start()
    for each in asking:
        each.join()
    assert troubles == []
    wanted = files.cancelled()
    assert wanted is not None
    assert wanted.reason.startswith("asked by ")
    assert [path.name for path in tmp_path.iterdir()] == [".load-0001.cancel"]
