"""plumbline task and plan: what is asked for, shown and as JSON, and what cannot be asked for."""

import json
from pathlib import Path
from typing import Any

import pytest

from plumbline_mcp.cli import following
from tests.plumbline_mcp.cli.launching import plumbline
from tests.plumbline_mcp.scan.planned_target import Planned, planned_target
from tests.plumbline_mcp.scan.test_fixing import confirmed


@pytest.fixture
def planned(tmp_path: Path) -> Planned:
    return planned_target(tmp_path)


def answered(planned: Planned, *words: str) -> dict[str, Any]:
    ended = plumbline(*words, "--json", home=planned.home)
    assert ended.returncode == 0, ended.stdout
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_a_task_is_drafted_approved_and_followed_by_a_plan(
    planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafted = plumbline("task", "draft", str(planned.target), "--as", "ada", home=planned.home)
    assert drafted.returncode == 0, drafted.stderr
    task = answered(planned, "task", "draft", str(planned.target), "--as", "ada")
    ticket = task["ticket"]["id"]
    assert f"plumbline queue approve {ticket}" in drafted.stdout
    assert "dry run, no-training checks" in drafted.stdout
    assert "1 node-hours, its plans included" in drafted.stdout
    assert [job["name"] for job in task["jobs"]] == ["dry_run", "export"]
    assert (task["ticket"]["state"], task["ticket"]["request"]["requester"]) == ("pending", "ada")
    early = plumbline("plan", "draft", ticket, home=planned.home)
    assert early.returncode == 3
    assert f"the task {ticket} is pending: a plan comes under a signed task" in early.stderr

    approved = plumbline("queue", "approve", ticket, "--as", "example", home=planned.home)
    assert approved.returncode == 0, approved.stderr
    started = answered(planned, "job", "start", ticket, "dry_run")
    assert (started["attempt"], started["new"], started["approval"]) == (1, True, ticket)
    waited = plumbline("job", "wait", started["run_id"], home=planned.home)
    assert waited.returncode == 0, waited.stderr
    assert "next: plumbline run load" in waited.stdout  # the task covers no load
    job = planned.workspace.run(started["run_id"]).job
    monkeypatch.setitem(following._JOB_AFTER, "dry_run", "export")
    assert following.next_signed(planned.workspace, job) == f"plumbline job start {ticket} export"
    assert following.next_signed(planned.workspace, job.model_copy(update={"approval": "none"})) == ""
    again = plumbline("job", "start", ticket, "dry_run", home=planned.home)
    assert f"run:    {started['run_id']}" in again.stdout
    assert "attempt: 1 (started before)" in again.stdout
    refused = plumbline("job", "start", ticket, "dry_run", "--attempt", "1", home=planned.home)
    assert (refused.returncode, "attempt 1 of dry_run was used" in refused.stderr) == (3, True)
    covered = plumbline("job", "start", ticket, "environment", home=planned.home)
    assert "covers no building" in covered.stderr

    grid = ("--grid", "learning_rate=[1e-5,1e-4]", "--grid", "steps=3", "--as", "ada")
    plan = answered(planned, "plan", "draft", ticket, *grid)
    assert [job["changed"] for job in plan["jobs"]] == [
        {"learning_rate": 1e-5, "steps": 3},
        {"learning_rate": 1e-4, "steps": 3},
    ]
    assert plan["jobs"][0]["estimated"].startswith(
        "time limit 36 s x 1 node (1 rank on 1 node; never run here)"
    )
    assert (plan["ticket"]["request"]["under"], plan["task"]) == (ticket, ticket)
    shown = plumbline("plan", "show", plan["ticket"]["id"], home=planned.home)
    assert "0.02 node-hours expected, 0.02 node-hours at most" in shown.stdout
    assert "learning_rate=0.0001" in shown.stdout
    wrong = plumbline("plan", "show", ticket, home=planned.home)
    assert (wrong.returncode, f"plumbline task show {ticket}" in wrong.stderr) == (3, True)


def test_a_fix_shows_what_changes_as_a_diff(planned: Planned) -> None:
    task = answered(planned, "task", "draft", str(planned.target), "--as", "ada")["ticket"]["id"]
    planned.approve(task)
    finding = confirmed(planned)
    target = planned.target
    target.write_text(target.read_text().replace("1e-5", "2e-5"))
    options = ("--fix", finding, "--rerun", "dry_run", "--as", "ada")
    fix = answered(planned, "plan", "draft", task, *options)
    assert fix["ticket"]["request"]["action"] == "fix"
    assert (fix["fix"]["finding"], fix["fix"]["of"]) == (finding, task)
    assert fix["fix"]["changes"] == [
        {"name": "learning_rate", "before": "1e-05", "after": "2e-05", "jobs": ["dry_run"]}
    ]
    shown = plumbline("plan", "show", fix["ticket"]["id"], home=planned.home).stdout
    assert f"fix of: {task}, for {finding}: reduce the norm over all shards" in shown
    assert '│ +  "learning_rate": 2e-05' in shown
    both = plumbline("plan", "draft", task, "--fix", finding, "--check", "export", home=planned.home)
    assert "it takes neither --check nor --grid" in both.stderr
    none = plumbline("plan", "draft", task, "--fix", "finding-0099", home=planned.home)
    assert (none.returncode, "there is no finding 'finding-0099'" in none.stderr) == (3, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("task", "draft", "nowhere.toml"), "cannot be read"),
        (("task", "show", "A-0000000000-1"), "there is no approval 'A-0000000000-1'"),
        (("plan", "draft", "A-0000000000-1"), "there is no approval 'A-0000000000-1'"),
        (("plan", "draft", "A-0000000000-1", "--grid", "steps"), "'steps' is not NAME=VALUE"),
        (("task", "draft", "TARGET", "--as", "a b"), "'a b' is no name of a requester"),
    ],
)
def test_what_cannot_be_asked_says_why(words: tuple[str, ...], said: str, planned: Planned) -> None:
    given = [str(planned.target) if word == "TARGET" else word for word in words]
    ended = plumbline(*given, home=planned.home)
    assert (ended.returncode, said in ended.stderr) == (3, True), ended.stderr
