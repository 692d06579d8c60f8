"""The local engine's own promises: what escapes is ended, a killed supervisor takes its job along, limits."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checks.records.runs import RunFolder
from plumbline_mcp.engines.engine import State, Status
from plumbline_mcp.engines.local.engine import LocalEngine
from plumbline_mcp.engines.local.files import RunFiles
from plumbline_mcp.engines.local.processes import Process, boot_id, marked, process, send
from plumbline_mcp.engines.local.sweeping import sweep
from plumbline_mcp.engines.logs import read_log
from plumbline_mcp.errors import BuildError
from plumbline_mcp.workspace import RunState, Workspace
from tests.plumbline_mcp.cli.launching import LAUNCHER, environment, plumbline
from tests.plumbline_mcp.engines.small_pack import launch
from tests.plumbline_mcp.engines.waiting import WAITING, gone, said_pid, until
from tests.soak.full_disk import small_disk
from tests.soak.programs import Skipped


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.open(tmp_path / "home")


@pytest.fixture
def submitted(workspace: Workspace, tmp_path: Path) -> Callable[..., Path]:
    """Starts a job with a body and gives its run folder."""

    def submit(body: str, key: str | None = None, **options: Any) -> Path:
        wanted = launch(tmp_path, sys.executable, textwrap.dedent(body), **options)
        return workspace.runs / LocalEngine(workspace).submit(wanted, key)

    return submit


def over(workspace: Workspace, run: Path) -> Status:
    engine = LocalEngine(workspace)
    status: Status = until(lambda: (known := engine.status(run.name)).state.over and known, 60)
    return status


ESCAPES = """
import os, pathlib, sys, time
def escape(name, cwd, env):
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.chdir(cwd)
            os.write(writer, b"x")
            code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
            pathlib.Path(output, name).write_text(str(os.getpid()))
            os.execve(sys.executable, [sys.executable, "-S", "-c", code], env)
        os._exit(0)
    os.wait()
    os.read(reader, 1)
escape("hidden", "/", {})
escape("marked", "/", dict(os.environ))
escape("below", os.getcwd(), {})
"""
"""Three processes in sessions of their own, adopted by whoever adopts: one hides environment and folder."""


def test_what_left_its_session_twice_is_ended_before_the_run_is_sealed(
    submitted: Callable[..., Path], workspace: Workspace
) -> None:
    run = submitted(ESCAPES)
    assert over(workspace, run).state is State.SUCCEEDED
    pids = [int((run / "output" / name).read_text()) for name in ("hidden", "marked", "below")]
    assert all(map(gone, pids))
    assert RunFolder.open(run).exits()[0].clean


def test_a_killed_supervisor_takes_the_job_along_and_the_sweep_ends_what_escaped(
    submitted: Callable[..., Path], workspace: Workspace
) -> None:
    run = submitted(ESCAPES + WAITING)
    pid = said_pid(run)
    names = ("hidden", "marked", "below")
    pids = [int((run / "output" / name).read_text()) for name in names]
    until(
        lambda: (known := RunFiles(run).supervision()) and {one.pid for one in known.processes} >= set(pids)
    )
    known = RunFiles(run).supervision()
    assert known is not None
    assert known.alive()
    send(known.supervisor, signal.SIGKILL)
    until(lambda: gone(pid))
    assert not any(map(gone, pids)), "nothing escaped: the test is none"
    assert LocalEngine(workspace).seen(run.name).state is State.LOST
    assert not any(map(gone, pids)), "to look changes nothing"
    assert over(workspace, run).state is State.LOST
    assert all(map(gone, pids))
    stored = workspace.run(run.name)
    assert (stored.state, stored.reason) == (RunState.LOST, "its supervisor was killed while it ran")
    assert list(workspace.runs.iterdir()) == []
    events = [entry.event for entry in workspace.audit.entries() if entry.subject == run.name]
    assert events == ["run_submitted", "run_started", "run_lost"]
    assert sweep(workspace) == []


def test_a_supervisor_of_another_boot_or_with_a_reused_pid_is_dead() -> None:
    us = process(os.getpid())
    assert us is not None
    assert us.alive()
    assert not Process(us.pid, us.started - 1).alive()
    assert boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_a_submission_that_was_stopped_is_lost_by_the_sweep_or_driven_again_by_its_key(
    submitted: Callable[..., Path], workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(LocalEngine, "_start", lambda *_: None)  # killed here
        for key in ("a", "b"):
            submitted("print('ran')", key)
    assert workspace.run("export-0002").state is RunState.SUBMITTING
    again = submitted("print('ran')", "b")
    assert over(workspace, again).state is State.SUCCEEDED
    states = {run.key: (run.run_id, run.state, run.reason) for run in workspace.runs_list()}
    assert states == {
        "a": ("export-0001", RunState.LOST, "it was stopped before it started"),
        "b": ("export-0002", RunState.SEALED, ""),
    }
    assert submitted("print('ran')", "a").name == "export-0001"
    assert workspace.run("export-0001").state is RunState.LOST


def test_a_run_above_its_disk_limit_is_cancelled_with_the_reason(
    submitted: Callable[..., Path], workspace: Workspace
) -> None:
    body = "import os, time\nopen(output + '/big', 'wb').write(os.urandom(3_000_000))\n"
    run = submitted(body + WAITING, disk_bytes=2_000_000)
    status = over(workspace, run)
    assert status.state is State.CANCELLED
    assert "bytes of disk; its limit is 2,000,000" in status.reason
    ending = RunFolder.open(run).ending()
    assert ending is not None
    assert ending.reason == status.reason


def test_a_log_keeps_its_head_and_its_tail_and_counts_what_was_dropped(
    submitted: Callable[..., Path], workspace: Workspace
) -> None:
    body = "import sys\nfor n in range(20_000): sys.stdout.write('%07d\\n' % n)"
    run = submitted(body, log_bytes=16_000)
    assert over(workspace, run).state is State.SUCCEEDED
    log = (run / "logs/rank-00000.out").read_bytes()
    head, _, rest = log.partition(b"\n[")
    count, _, tail = rest.partition(b" bytes of this log were dropped here]\n")
    assert head == b"".join(b"%07d\n" % n for n in range(1000))[: len(head)]
    assert len(head) == 8000
    assert tail.endswith(b"0019999\n")
    assert 4000 <= len(tail) <= 8000
    assert len(head) + int(count) + len(tail) == 160_000
    assert sorted(path.name for path in (run / "logs").iterdir())[-2:] == ["rank-00000.err", "rank-00000.out"]


def test_a_growing_log_above_its_limit_is_shown_with_its_tail_and_followed_to_its_end(
    submitted: Callable[..., Path], workspace: Workspace
) -> None:
    body = """
    import pathlib, sys, time
    for n in range(20_000): sys.stdout.write('%07d\\n' % n)
    sys.stdout.flush()
    pathlib.Path(output, "said").touch()
    while not pathlib.Path(output, "go").exists(): time.sleep(0.05)
    print("the end")
    """
    run = submitted(body, log_bytes=16_000)
    until(lambda: (run / "output/said").exists() and read_log(run, 0).size == 160_000)
    said = b"".join(b"%07d\n" % n for n in range(20_000))
    shown = plumbline("job", "logs", run.name, "--offset", "0", home=workspace.home).stdout.encode()
    head, _, rest = shown.partition(b"\n[")
    count, _, tail = rest.partition(b" bytes of this log were dropped here]\n")
    assert head == said[:8000]
    assert tail == said[-len(tail) :]
    assert len(tail) >= 4000
    assert len(head) + int(count) + len(tail) == len(said)
    shown = plumbline("job", "logs", run.name, "--bytes", "16", home=workspace.home).stdout
    assert shown == "0019998\n0019999\n"
    command = [LAUNCHER, "job", "logs", run.name, "-f", "--bytes", "16"]
    following = subprocess.Popen(command, env=environment(workspace.home), stdout=subprocess.PIPE, text=True)
    assert following.stdout is not None
    assert following.stdout.readline() == "0019998\n"
    (run / "output/go").touch()
    assert following.stdout.read() == "0019999\nthe end\n"
    assert following.wait(60) == 0
    assert over(workspace, run).state is State.SUCCEEDED
    assert read_log(run, 0).size == 160_008


def test_the_tail_of_a_killed_rank_is_kept(submitted: Callable[..., Path], workspace: Workspace) -> None:
    body = """
    import os, signal, sys, time
    sys.stdout.write('x' * 20_000 + 'last words')
    sys.stdout.flush()
    time.sleep(0.5)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
    """
    run = submitted(body, log_bytes=16_000)
    status = over(workspace, run)
    assert (status.state, status.failed_rank) == (State.FAILED, 0)
    log = RunFolder.open(run).verified("logs/rank-00000.out").read_bytes()
    assert b"\n[8000 bytes of this log were dropped here: its rank was killed]\n" in log
    assert read_log(run, 0).size == 20_010
    assert log.endswith(b"last words")


def test_a_disk_that_fills_leaves_no_record_and_says_so(tmp_path: Path) -> None:
    body = """
    import contextlib
    with contextlib.suppress(OSError), open(output + "/padding", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    """
    try:
        with small_disk(tmp_path / "disk", 8 * 2**20) as disk:
            workspace = Workspace.open(disk / "home")
            wanted = launch(tmp_path, sys.executable, textwrap.dedent(body))
            run = workspace.runs / LocalEngine(workspace).submit(wanted)
            status = over(workspace, run)
            assert (status.state, status.reason) == (State.LOST, "the disk was full before it ended")
            assert not run.exists()
            assert workspace.verify() == []
            workspace.close()
    except Skipped as reason:
        pytest.skip(str(reason))


def test_a_supervisor_that_cannot_start_leaves_nothing(
    submitted: Callable[..., Path], workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plumbline_mcp.engines.local.engine._SUPERVISOR", "plumbline_mcp.nowhere")
    with pytest.raises(BuildError, match=r"did not start: it ended with exit code 1$"):
        submitted("print('ran')")
    assert [run.state for run in workspace.runs_list()] == [RunState.REMOVED]
    assert list(workspace.runs.iterdir()) == []


def test_a_supervisor_whose_first_process_is_killed_does_not_run_on(
    submitted: Callable[..., Path], workspace: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Killed after it went into the background and before it could say so: the job may run already."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {tmp_path}/child\nkill -KILL $$\n")
    program.chmod(0o700)
    monkeypatch.setattr("plumbline_mcp.engines.local.engine.sys", SimpleNamespace(executable=str(program)))
    with pytest.raises(BuildError, match=r"did not start: signal SIGKILL ended it$"):
        submitted("print('ran')")
    child = int((tmp_path / "child").read_text())
    until(lambda: process(child) is None or not process(child).alive())
    assert [run.state for run in workspace.runs_list()] == [RunState.REMOVED]
    assert list(workspace.runs.iterdir()) == []


def test_only_processes_with_the_mark_of_that_very_run_are_its(tmp_path: Path) -> None:
    run, other = tmp_path / "rows-0001", tmp_path / "rows-00011"
    for folder in (run, other):
        folder.mkdir()
    started = [
        os.spawnve(os.P_NOWAIT, "/bin/sleep", ["sleep", "60"], {"PLUMBLINE_RUN": str(folder)})  # noqa: S606 - one pid
        for folder in (run, other)
    ]
    try:
        until(lambda: len(list(marked(run))) == 1)
        assert [one.pid for one in marked(run)] == started[:1]
    finally:
        for pid in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
