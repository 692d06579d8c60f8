"""The first scan, for real: clean it passes, planted it finds that fault alone, stopped it leaves nothing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from checks.verdict import Outcome
from plumbline_mcp.errors import UsageError
from plumbline_mcp.scan.fault_scoring import Score
from plumbline_mcp.scan.onboarding import onboard
from plumbline_mcp.scan.steps import StepProgress
from plumbline_mcp.workspace import RunState, Workspace


def test_an_unknown_plant_is_refused_with_the_nearest_ones(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path / "home")
    with pytest.raises(UsageError, match="no fault entry 'transposed'") as refused:
        anyio.run(onboard, workspace, "transposed")
    assert "transposed-experts" in refused.value.next_step
    assert not list(workspace.runs.iterdir())


def test_a_step_that_has_counted_everything_is_finishing() -> None:
    told: list[tuple[float, str]] = []
    steps = StepProgress(2, lambda done, _, message: told.append((done, message)))
    report = steps.begin("check export")
    report(1, 4, "comparing a")
    report(4, 4, "comparing d")
    report(0, None, "reading on")
    assert told == [
        (0, "check export"),
        (0.25, "check export: comparing a"),
        (1.0, "check export: finishing"),
        (1.0, "check export: reading on"),
    ]


@pytest.mark.environment
def test_the_embedded_release_passes_every_check_and_is_reported(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path / "home")
    told: list[tuple[float, float | None, str]] = []
    result = anyio.run(onboard, workspace, None, lambda *step: told.append(step))
    assert result.outcome is Outcome.PASS, [verdict.reason for verdict in result.verdicts]
    judged = ["image", "data", "load", "optimizer_step", "export"]
    assert [verdict.check for verdict in result.verdicts] == judged
    assert result.dry_run is not None
    assert result.dry_run.started
    assert [stored.verdict.id for stored in workspace.verdicts()] == [v.id for v in result.verdicts][::-1]
    labels = next(part for part in result.verdicts[1].parts if part.name == "labels")
    assert labels.coverage is not None
    assert labels.coverage.judged == labels.coverage.total > 400
    assert result.report is not None
    assert all(verdict.id in result.report.read_text() for verdict in result.verdicts)
    assert result.result is not None
    assert result.result.score is Score.QUIET
    steps = [done for done, _, _ in told]
    assert steps == sorted(steps)
    assert len({message for _, _, message in told}) > 12


@pytest.mark.environment
def test_a_planted_fault_is_found_at_its_place_and_alone(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path / "home")
    result = anyio.run(onboard, workspace, "stop-token-unlabelled")
    assert result.outcome is Outcome.FAIL
    assert result.result is not None
    assert result.result.score is Score.FOUND, (result.result.seen, result.result.extra)
    outcomes = {verdict.check: verdict.outcome for verdict in result.verdicts}
    assert outcomes == {"image": Outcome.PASS, "data": Outcome.FAIL, "export": Outcome.PASS}
    assert result.report is not None
    assert result.markdown is not None
    for page in (result.report, result.markdown):
        text = page.read_text(encoding="utf-8")
        assert "Planted on purpose:" in text
        assert "stop-token-unlabelled" in text


@pytest.mark.environment
def test_an_interrupted_scan_leaves_no_process_and_no_half_run(tmp_path: Path) -> None:
    home = tmp_path / "home"
    command = [sys.executable, "-I", "-m", "plumbline_mcp", "onboard", "--home", str(home)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    workspace = Workspace.open(home)
    deadline = time.monotonic() + 120
    while not workspace.runs_list() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1)
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert [run.state for run in workspace.runs_list()] == [RunState.REMOVED]
    assert not [path for path in workspace.runs.iterdir() if path.is_dir()]
    assert not workspace.verify()
