"""The job tools over a real job: its state and log while it runs, its end, and that no tool starts one."""

import signal
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from plumbline_mcp.engines.local.engine import LocalEngine
from plumbline_mcp.engines.local.files import RunFiles
from plumbline_mcp.engines.local.processes import send
from plumbline_mcp.server import build_server
from plumbline_mcp.workspace import RunState, Workspace
from tests.plumbline_mcp.engines.small_pack import launch
from tests.plumbline_mcp.engines.waiting import WAITING, gone, said_pid, until

pytestmark = pytest.mark.anyio

SAYS = (
    "import sys\nprint('\\x1b[2J caf\\u00e9 ' * 4000, flush=True)\nprint('oh', file=sys.stderr, flush=True)\n"
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[tuple[LocalEngine, Path]]:
    """A running job that printed 48,000 characters and waits."""
    workspace = Workspace.open(tmp_path / "home")
    engine = LocalEngine(workspace)
    body = textwrap.dedent(SAYS + WAITING)
    run = workspace.runs / engine.submit(launch(tmp_path, sys.executable, body))
    said_pid(run)
    yield engine, run
    engine.cancel(run.name, remove=True)
    until(lambda: engine.status(run.name).state.over)


async def answer(home: Path, tool: str, **arguments: Any) -> dict[str, Any]:
    async with Client(build_server(home)) as client:
        result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert result.structured_content is not None
    return result.structured_content


async def test_a_running_job_is_seen_and_its_log_is_paged(
    job: tuple[LocalEngine, Path], tmp_path: Path
) -> None:
    home, run = tmp_path / "home", job[1]
    seen = await answer(home, "job_status", run_id=run.name)
    assert (seen["state"], seen["approval"], seen["ranks"]) == ("running", "none", 1)
    assert seen["confinement"].startswith(("landlock", "bubblewrap", "uid", "none"))
    (row,) = (await answer(home, "job_list"))["jobs"]
    assert (row["run_id"], row["state"]) == (run.name, "running")
    assert (await answer(home, "job_logs", run_id=run.name))["untrusted_text"] == "oh\n"
    text, offset, size = "", 0, 1
    while offset < size:
        page = await answer(home, "job_logs", run_id=run.name, stream="out", offset=offset)
        text, offset, size = text + page["untrusted_text"], page["next_offset"], page["size"]
        assert "\x1b" not in page["untrusted_text"]
    assert text == "\\x1b[2J café " * 4000 + "\n"


async def test_an_agent_can_end_a_job_and_its_records_are_sealed(
    job: tuple[LocalEngine, Path], tmp_path: Path
) -> None:
    engine, run = job
    pid = said_pid(run)
    await answer(tmp_path / "home", "job_cancel", run_id=run.name)
    until(lambda: engine.status(run.name).state.over)
    assert gone(pid)
    seen = await answer(tmp_path / "home", "job_status", run_id=run.name)
    assert (seen["state"], seen["untrusted_reason"]) == ("cancelled", "cancelled over MCP")
    assert (await answer(tmp_path / "home", "job_cancel", run_id=run.name))["state"] == "cancelled"
    assert (await answer(tmp_path / "home", "job_logs", run_id=run.name))["untrusted_text"] == "oh\n"


async def test_a_log_that_was_changed_after_sealing_is_refused(
    job: tuple[LocalEngine, Path], tmp_path: Path
) -> None:
    engine, run = job
    engine.cancel(run.name)
    until(lambda: engine.status(run.name).state.over)
    (run / "logs/rank-00000.err").write_text("all is well")
    async with Client(build_server(tmp_path / "home")) as client:
        result = await client.call_tool("job_logs", {"run_id": run.name})
    assert result.is_error
    assert "changed after sealing" in str(result.content)


async def test_a_reader_sees_a_lost_job_and_changes_nothing(
    job: tuple[LocalEngine, Path], tmp_path: Path
) -> None:
    run = job[1]
    known = RunFiles(run).supervision()
    assert known is not None
    send(known.supervisor, signal.SIGKILL)
    until(lambda: not RunFiles(run).held())
    seen = await answer(tmp_path / "home", "job_status", run_id=run.name)
    assert seen["state"] == "lost"
    assert run.is_dir()
    assert Workspace.open(tmp_path / "home").run(run.name).state is RunState.RUNNING


async def test_a_job_that_was_removed_has_no_log_and_says_so(
    job: tuple[LocalEngine, Path], tmp_path: Path
) -> None:
    engine, run = job
    engine.cancel(run.name, remove=True)
    until(lambda: engine.status(run.name).state.over)
    async with Client(build_server(tmp_path / "home")) as client:
        result = await client.call_tool("job_logs", {"run_id": run.name})
    assert result.is_error
    assert "has no log logs/rank-00000.err" in str(result.content)
    assert "its folder is gone" in str(result.content)
