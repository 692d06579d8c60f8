"""Isolated workers: answers, errors by type, time limit, cancellation, and no orphan."""

import os
import sys
import time
from functools import partial
from pathlib import Path

import anyio
import pytest

from checks.errors import BadInput, NotEvaluated
from plumbline_mcp import workers
from plumbline_mcp.errors import PlumblineError, WorkerCrashed, WorkerTimedOut

ROOT = Path(__file__).resolve().parents[2]


def run(function: str, payload: dict, **options):
    return anyio.run(lambda: workers.call(function, payload, **options))


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> str:
    """Let workers run the functions made for these tests, otherwise started as always."""
    program = (
        f"import sys; sys.path.append({str(ROOT)!r}); import plumbline_mcp.worker as worker; "
        f"worker._ALLOWED = ('tests.',); worker.main()"
    )
    monkeypatch.setattr(workers, "_COMMAND", [sys.executable, "-I", "-c", program])
    return "tests.plumbline_mcp.worker_functions"


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def test_a_worker_answers_and_reports_progress(probe: str) -> None:
    seen: list[tuple] = []
    answer = run(f"{probe}:echo", {"a": [1, "ü"]}, progress=lambda *step: seen.append(step))
    assert answer == {"a": [1, "ü"]}
    assert seen == [(1, 2, "half")]


def test_a_foreseen_error_keeps_its_type_and_next_step(probe: str) -> None:
    with pytest.raises(BadInput, match="no such thing") as caught:
        run(f"{probe}:bad", {})
    assert caught.value.next_step == "look elsewhere"


@pytest.mark.parametrize(("function", "said"), [("die", "SIGKILL"), ("crash", "ZeroDivisionError")])
def test_a_dead_worker_says_how_it_died(probe: str, function: str, said: str) -> None:
    with pytest.raises(WorkerCrashed, match=said):
        run(f"{probe}:{function}", {})


def test_a_template_that_takes_its_worker_with_it_is_not_evaluated(probe: str) -> None:
    started = time.monotonic()
    with pytest.raises(NotEvaluated, match="one step of a chat template"):
        run(f"{probe}:endless_step", {})
    assert time.monotonic() - started < 20


def test_a_worker_runs_functions_of_this_package_only() -> None:
    with pytest.raises(PlumblineError, match="os:getcwd"):
        run("os:getcwd", {})


def test_a_worker_is_isolated_and_sees_an_allow_listed_environment(
    probe: str, monkeypatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    isolated, path, environ = run(f"{probe}:seen", {})
    assert isolated == 1
    assert str(tmp_path) not in path
    assert "AWS_SECRET_ACCESS_KEY" not in environ
    assert environ["HF_HUB_OFFLINE"] == "1"


def test_a_worker_is_stopped_at_its_time_limit(probe: str, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with pytest.raises(WorkerTimedOut):
        run(f"{probe}:pid_then_sleep", {"file": str(file)}, timeout_s=2)
    assert not alive(int(file.read_text()))


@pytest.mark.parametrize("function", ["pid_then_sleep", "child_in_own_session"])
def test_a_cancelled_call_leaves_nothing_behind(probe: str, function: str, tmp_path: Path) -> None:
    file = tmp_path / "pid"

    async def cancelled() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(partial(workers.call, f"{probe}:{function}", {"file": str(file)}))
            while not (file.exists() and file.read_text()):
                await anyio.sleep(0.05)
            group.cancel_scope.cancel()

    anyio.run(cancelled)
    assert not alive(int(file.read_text()))


@pytest.mark.parametrize("function", ["pid_then_sleep", "child_in_own_session"])
def test_what_a_worker_runs_ends_when_its_parent_is_killed(probe: str, function: str, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    parent = os.fork()
    if parent == 0:
        os.setsid()
        anyio.run(lambda: workers.call(f"{probe}:{function}", {"file": str(file)}))
    deadline = time.monotonic() + 20
    while not (file.exists() and file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(parent, 9)
    os.waitpid(parent, 0)
    while alive(int(file.read_text())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(int(file.read_text()))


def test_a_worker_sees_the_proxies_that_pip_needs_and_no_secrets() -> None:
    given = {
        "https_proxy": "http://proxy:1",
        "NO_PROXY": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "PYTHONPATH": ".",
    }
    passed = workers.clean_environment(given)
    assert {name for name in passed if name in given} == {"https_proxy", "NO_PROXY"}


def test_temporary_files_go_with_the_worker(probe: str, tmp_path: Path) -> None:
    payload = {"file": str(tmp_path / "pid"), "folder": str(tmp_path / "folder")}

    async def cancelled() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(partial(workers.call, f"{probe}:temporary_then_sleep", payload))
            while not (tmp_path / "pid").exists():
                await anyio.sleep(0.05)
            group.cancel_scope.cancel()

    anyio.run(cancelled)
    folder = Path((tmp_path / "folder").read_text())
    assert folder.parent.name.startswith("plumbline-worker-")
    assert not folder.parent.exists()


def test_temporary_files_go_when_the_parent_is_killed(probe: str, tmp_path: Path) -> None:
    payload = {"file": str(tmp_path / "pid"), "folder": str(tmp_path / "folder")}
    parent = os.fork()
    if parent == 0:
        os.setsid()
        anyio.run(lambda: workers.call(f"{probe}:temporary_then_sleep", payload))
    deadline = time.monotonic() + 20
    while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(parent, 9)
    os.waitpid(parent, 0)
    folder = Path((tmp_path / "folder").read_text())
    while folder.parent.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not folder.parent.exists()
