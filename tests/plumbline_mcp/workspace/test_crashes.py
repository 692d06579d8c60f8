"""What is left when a process is killed, the disk is full, or several open the workspace first."""

import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from plumbline_mcp.errors import WorkspaceError
from plumbline_mcp.workspace import RunState, Workspace
from tests.plumbline_mcp.stored_examples import verdict

WRITER = """
import sys
import threading
from pathlib import Path
from plumbline_mcp.workspace import Workspace
from tests.plumbline_mcp.stored_examples import job, verdict

workspace = Workspace.open(Path(sys.argv[1]))
print("open", flush=True)
while True:
    run = workspace.new_id("rows")
    workspace.add_run(job(run))
    print("run", run, flush=True)
    workspace.seal_run(run, "ab" * 32)
    print("sealed", run, flush=True)
    print("verdict", workspace.add_verdict(verdict(), {"rows": run}).id, flush=True)
"""

OPENER = """
import sys, time
from pathlib import Path
from plumbline_mcp.workspace import Workspace
from tests.plumbline_mcp.stored_examples import verdict

while time.time() < float(sys.argv[2]):
    pass
print(Workspace.open(Path(sys.argv[1])).add_verdict(verdict(), {}).id)
"""

ROOT = Path(__file__).parents[3]


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_writer_killed_at_any_moment_leaves_a_whole_workspace(tmp_path: Path) -> None:
    home, moments = tmp_path / "home", random.Random(20261130)
    told: list[str] = []
    for _ in range(10):
        process = start(WRITER, str(home))
        assert process.stdout
        assert process.stdout.readline() == "open\n"
        time.sleep(moments.uniform(0.0, 0.12))
        process.send_signal(signal.SIGKILL)
        told += process.communicate()[0].splitlines()
        workspace = Workspace.open(home)
        assert workspace.verify() == []
        workspace.close()
    workspace = Workspace.open(home)
    finished = [line.split() for line in told if len(line.split()) == 2]
    verdicts = {stored.verdict.id for stored in workspace.verdicts(limit=100_000)}
    runs = {run.run_id: run.state for run in workspace.runs_list(limit=100_000)}
    assert {name for event, name in finished if event == "verdict"} <= verdicts
    assert {name for event, name in finished if event == "run"} <= set(runs)
    assert all(runs[name] is RunState.SEALED for event, name in finished if event == "sealed")
    assert sum(entry.event == "verdict_stored" for entry in workspace.audit.entries()) == len(verdicts)
    assert len(verdicts) >= 10  # the kills fell among writes, not before the first


def test_several_processes_open_a_new_workspace_at_once(tmp_path: Path) -> None:
    for attempt in range(2):
        home, at = tmp_path / str(attempt), time.time() + 2.5
        processes = [start(OPENER, str(home), str(at)) for _ in range(4)]
        answers = [process.communicate(timeout=60) for process in processes]
        assert sorted(out.strip() for out, _ in answers) == [f"data-{n:04d}" for n in range(1, 5)], answers
        assert Workspace.open(home).verify() == []


def write_until_refused(workspace: Workspace) -> WorkspaceError:
    for _ in range(10_000):
        try:
            workspace.add_verdict(verdict(), {"padding": "x" * 20_000})
        except WorkspaceError as error:
            return error
    raise AssertionError("200 MB fitted where at most 1 MB should")


def test_a_file_size_limit_is_a_clear_error_and_nothing_is_half_written(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path / "home")
    workspace.add_verdict(verdict(), {})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))
    try:
        error = write_until_refused(workspace)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "cannot be used" in error.message
    assert error.next_step
    stored = workspace.verdict_count()
    assert stored > 1
    assert workspace.verify() == []
    assert workspace.add_verdict(verdict(), {}).id == f"data-{stored + 1:04d}"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("making a small file system needs the right to mount")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_a_clear_error_and_nothing_is_half_written(small_disk: Path) -> None:
    workspace = Workspace.open(small_disk / "home")
    padding = small_disk / "padding"
    padding.write_bytes(b"x" * 300_000)
    error = write_until_refused(workspace)
    assert "no space left" in error.message or "cannot be written" in error.message
    stored = workspace.verdict_count()
    assert workspace.verify() == []
    padding.unlink()
    assert workspace.add_verdict(verdict(), {}).id == f"data-{stored + 1:04d}"
    workspace.close()
    subprocess.run(
        ["dd", "if=/dev/zero", f"of={small_disk}/filler", "bs=4k"], capture_output=True, check=False
    )
    with pytest.raises(WorkspaceError) as raised:
        Workspace.open(small_disk / "another" / "home")
    assert raised.value.next_step


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(WorkspaceError, match="cannot make the workspace"):
        Workspace.open(tmp_path / "home")


def test_opening_waits_for_another_first_opener_that_holds_the_write_lock(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    path = tmp_path / "home" / "plumbline.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("begin immediate")  # the switch to write-ahead logging fails at once, whatever the time-out
    release = threading.Timer(0.3, lambda: other.execute("commit"))
    release.start()
    assert Workspace.open(tmp_path / "home").new_id("data") == "data-0001"
    release.join()
    other.close()
