"""The status of the scan: no failure is hidden, each run has its own verdict, a refusal comes first."""

import json
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from checks.records.runs import Job
from checks.verdict import Outcome, Verdict
from plumbline_mcp.server import build_server
from plumbline_mcp.workspace import Workspace
from tests.plumbline_mcp.sample_workspace import HOSTILE, seal

pytestmark = pytest.mark.anyio
FAIL, PASS = Outcome.FAIL, Outcome.PASS


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.open(tmp_path / "home")


def ran(workspace: Workspace, procedure: str, code: int = 0, said: str = "", **settings: Any) -> str:
    """A sealed run of one rank that ended with this exit code."""
    run_id = workspace.new_id(procedure)
    job = Job(run_id=run_id, procedure=procedure, framework="transformers", settings=settings)
    workspace.add_run(job)
    files = {
        "job.json": job.model_dump_json(),
        "exit/rank-00000.json": json.dumps({"rank": 0, "code": code}),
        "logs/rank-00000.err": said,
    }
    for name, text in files.items():
        path = workspace.runs / run_id / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    workspace.seal_run(run_id, seal(workspace.runs / run_id))
    return run_id


def judged(workspace: Workspace, run: str, outcome: Outcome, named: bool = True) -> str:
    """A verdict on the optimizer steps of a run; ``named``: it says itself which run it is on."""
    verdict = Verdict(check="optimizer_step", outcome=outcome, reason="", run_id=run if named else None)
    return workspace.add_verdict(verdict, {"run": str(workspace.runs / run)}).id


async def status_of(workspace: Workspace) -> dict[str, Any]:
    async with Client(build_server(workspace.home)) as client:
        return (await client.call_tool("scan_status", {})).structured_content or {}


async def steps_of(workspace: Workspace) -> dict[str, Any]:
    checks = (await status_of(workspace))["checks"]
    return next(one for one in checks if one["check"] == "optimizer_step")


async def test_an_old_run_judged_once_more_does_not_hide_that_the_newest_fails(workspace: Workspace) -> None:
    old, new = ran(workspace, "train_step"), ran(workspace, "train_step")
    judged(workspace, old, PASS), judged(workspace, new, FAIL)
    again = judged(workspace, new, FAIL)
    judged(workspace, old, PASS)
    found = await steps_of(workspace)
    assert (found["latest"], found["outcome"], found["run"]) == (again, "fail", new)
    assert (found["failing"], found["waiting"], found["verdicts"]) == ([again], [], 4)
    assert (await status_of(workspace))["next"] == f'verdict_show(verdict_id="{again}")'


async def test_a_failure_under_other_settings_stands_beside_a_newer_pass(workspace: Workspace) -> None:
    first, second = ran(workspace, "train_step", rank=1), ran(workspace, "train_step", rank=2)
    failed, _ = judged(workspace, first, FAIL), judged(workspace, second, PASS)
    found = await steps_of(workspace)
    assert (found["latest"], found["outcome"], found["run"]) == (failed, "fail", first)
    mended = ran(workspace, "train_step", rank=1)
    passed = judged(workspace, mended, PASS)
    found = await steps_of(workspace)
    assert (found["latest"], found["outcome"], found["run"]) == (passed, "pass", mended)
    assert found["failing"] == []


async def test_a_run_without_a_verdict_waits_and_is_the_next_to_be_judged(workspace: Workspace) -> None:
    passed = judged(workspace, old := ran(workspace, "train_step"), PASS)
    new = ran(workspace, "train_step")
    found = await steps_of(workspace)
    assert (found["latest"], found["run"], found["waiting"]) == (passed, old, [new])
    for name in ("image", "data", "build", "load", "export"):
        workspace.add_verdict(Verdict(check=name, outcome=PASS, reason=""), {})
    assert (await status_of(workspace))["next"] == f'check_optimizer_step(run="{new}")'
    judged(workspace, new, Outcome.NOT_EVALUATED, named=False)
    assert (await steps_of(workspace))["waiting"] == []


async def test_a_refused_dry_run_comes_first_with_its_sentence(workspace: Workspace) -> None:
    sentence = "refused: layout fsdp2 does not fit 1 ranks"
    run = ran(workspace, "dry_run", 3, f"a warning\n{sentence} {HOSTILE}\n")
    judged(workspace, ran(workspace, "train_step"), FAIL)
    status = await status_of(workspace)
    assert next(iter(status)) == "dry_run"
    assert (status["dry_run"]["run"], status["dry_run"]["failed"]) == (run, True)
    assert status["dry_run"]["ended"] == "with exit code 3"
    assert status["dry_run"]["untrusted_said"].startswith(sentence)
    assert "\x1b" not in status["dry_run"]["untrusted_said"]
    assert status["next"].startswith(f'run_show(run_id="{run}")')
    mended = ran(workspace, "dry_run")
    status = await status_of(workspace)
    expected = {"run": mended, "failed": False, "ended": "by itself", "untrusted_said": None}
    assert status["dry_run"] == expected
    assert status["next"].startswith("verdict_show(")
