"""The first scan, for real: clean it passes, planted it finds that fault alone, stopped it leaves nothing."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import anyio
import pytest

from approvals.statement import Action
from approvals.ticket import Ticket
from checks.check import Progress
from checks.verdict import Outcome
from plumbline_mcp.cli.reviewing import example_reviewer
from plumbline_mcp.errors import PlumblineError, UsageError
from plumbline_mcp.findings.comparison import Result
from plumbline_mcp.findings.states import State
from plumbline_mcp.findings.store import Findings
from plumbline_mcp.scan.fault_scoring import Score
from plumbline_mcp.scan.onboarding import OnboardResult, onboard
from plumbline_mcp.scan.served import Reviewer
from plumbline_mcp.scan.steps import StepProgress
from plumbline_mcp.workspace import RunState, Workspace


def example(tmp_path: Path) -> Workspace:
    return Workspace.open(tmp_path / "home", kind="example")


def scanned(
    workspace: Workspace,
    plant: str | None = None,
    reviewer: Reviewer | None = None,
    progress: Progress | None = None,
    corpus: Path | None = None,
) -> OnboardResult:
    """The example scan; by default the throwaway key signs whatever is asked."""
    signs = partial(example_reviewer, workspace, signs=True, quiet=True, to_stderr=True)
    return anyio.run(
        onboard, workspace, signs if reviewer is None else lambda: reviewer, plant, progress, corpus
    )


def test_an_unknown_plant_is_refused_with_the_nearest_ones(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path / "home")
    with pytest.raises(UsageError, match="no fault entry 'transposed'") as refused:
        scanned(workspace, "transposed")
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
    workspace = example(tmp_path)
    told: list[tuple[float, float | None, str]] = []
    result = scanned(workspace, progress=lambda *step: told.append(step))
    assert result.outcome is Outcome.PASS, [verdict.reason for verdict in result.verdicts]
    judged = ["image", "data", "build", "load", "optimizer_step", "export"]
    assert [verdict.check for verdict in result.verdicts] == judged
    assert result.dry_run is not None
    assert result.dry_run.started
    assert {stored.verdict.id for stored in workspace.verdicts()} == {v.id for v in result.verdicts}
    task, plan = sorted(workspace.approvals.tickets(), key=lambda ticket: ticket.created)
    assert [task.request.action, plan.request.action] == [Action.TASK, Action.PLAN]
    assert [ticket.decisions[0].signer for ticket in (task, plan)] == ["example", "example"]
    signed = {v.check: v.approval for v in result.verdicts}
    assert signed == {
        "image": "none",
        **dict.fromkeys(("data", "build", "load", "export"), task.id),
        "optimizer_step": plan.id,
    }
    procedures = [run.job.procedure for run in workspace.runs_list()][::-1]
    assert procedures == ["dry_run", "rows", "build", "load", "export", "first_run", "train_step"]
    assert result.findings == ()
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
    workspace = example(tmp_path)
    result = scanned(workspace, "stop-token-unlabelled")
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
        assert "the throwaway key 'example' signs" in text.replace("&#39;", "'")
        assert result.findings[0] in text
    (name,) = result.findings
    stored = Findings(workspace).get(name)
    assert stored.state is State.CONFIRMED
    assert stored.finding.pattern == 1
    failed = next(verdict for verdict in result.verdicts if verdict.outcome is Outcome.FAIL)
    stop = next(part for part in failed.parts if part.name == "stop")
    assert stored.finding.place in [problem.place for problem in stop.problems]
    assert [one.comparison.result for one in stored.verifications if one.comparison] == [Result.AGREE]
    assert not [run for run in workspace.runs_list() if run.job.plants]


@pytest.mark.environment
def test_an_interrupted_scan_leaves_no_process_and_no_half_run(tmp_path: Path) -> None:
    home = tmp_path / "home"
    command = [sys.executable, "-I", "-m", "plumbline_mcp", "onboard", "--sign", "example"]
    process = subprocess.Popen(
        [*command, "--home", str(home)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    workspace = Workspace.open(home, kind="example")
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
    assert not [path for path in Path("/proc").glob("[0-9]*") if str(home) in _command(path)]


def _command(process: Path) -> str:
    with contextlib.suppress(OSError):
        return (process / "cmdline").read_text(encoding="utf-8", errors="replace")
    return ""


def test_nobody_to_ask_is_said_before_anything_starts(tmp_path: Path) -> None:
    workspace = example(tmp_path)
    with pytest.raises(UsageError, match="no terminal to ask on") as refused:
        anyio.run(onboard, workspace, partial(example_reviewer, workspace, False, True, True))
    assert "SIGN=example" in refused.value.next_step
    assert not list(workspace.runs.iterdir())
    assert not (workspace.home / "example").exists()


@pytest.mark.environment
def test_a_no_ends_the_scan_with_nothing_started(tmp_path: Path) -> None:
    workspace, asked = example(tmp_path), []

    async def no(ticket: Ticket) -> bool:
        asked.append(ticket)
        workspace.approvals.decide(ticket.id, "reject", "example", "the answer on the terminal was no")
        return True

    result = scanned(workspace, reviewer=no)
    assert result.outcome is Outcome.NOT_EVALUATED
    assert result.not_reached == ("image", "data", "build", "load", "optimizer_step", "export")
    assert result.stopped.startswith(f"task {asked[0].id} is rejected: the answer on the terminal was no")
    assert len(asked) == 1
    assert not workspace.runs_list()


REFUSING = """
id = "refuses"
title = "The framework does not start"
mechanism = "it ends where it is imported"
pattern = 7
silent = false
source = "built by plumbline"
checks = ["image", "dry_run", "data"]
rows = 4
refused = "this framework takes no recipe"
[release]
family = "llama"
quantized = false
[plant]
hook = "refuses.py"
"""


@pytest.mark.environment
def test_a_dry_run_that_fails_ends_the_agents_scan_with_its_sentence(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    for name, text in (
        ("entries/refuses.toml", REFUSING),
        ("plants/refuses.py", 'raise RuntimeError("this framework takes no recipe")\n'),
    ):
        (corpus / name).parent.mkdir(parents=True)
        (corpus / name).write_text(text)
    workspace = example(tmp_path)
    result = scanned(workspace, "refuses", corpus=corpus)
    assert result.outcome is Outcome.NOT_EVALUATED
    assert result.not_reached == ("data",)
    assert "ended with exit code 1: RuntimeError: this framework takes no recipe" in result.stopped
    assert result.result is not None
    assert result.result.score is Score.FOUND, (result.result.seen, result.result.extra)
    assert [verdict.check for verdict in result.verdicts] == ["image"]
    assert [run.job.procedure for run in workspace.runs_list()] == ["dry_run"]


@pytest.mark.environment
def test_a_server_that_ends_is_one_sentence(tmp_path: Path) -> None:
    workspace = example(tmp_path)

    async def ends_the_server(ticket: Ticket) -> bool:
        (server,) = [path for path in Path("/proc").glob("[0-9]*") if _is_server(path, workspace.home)]
        os.kill(int(server.name), signal.SIGKILL)
        await anyio.sleep_forever()
        return False

    with pytest.raises(PlumblineError, match="the MCP server ended, or stopped answering"):
        scanned(workspace, reviewer=ends_the_server)


def _is_server(process: Path, home: Path) -> bool:
    words = _command(process).split("\0")
    return "serve" in words and str(home) in words
