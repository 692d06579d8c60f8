"""Task and plan as they are drafted: what they cover, by digest, at which cost, how they are asked for."""

import hashlib
from pathlib import Path
from typing import Any

import anyio
import pytest

from approvals.canonical import digest
from approvals.errors import Refused
from approvals.statement import MAX_CONTENT
from plumbline_mcp.engines.local.engine import LocalEngine
from plumbline_mcp.errors import UsageError
from plumbline_mcp.scan.plan import Plan, draft_plan, jobs_of, request_plan
from plumbline_mcp.scan.starting import build_environment, start_job
from plumbline_mcp.scan.task import Task, draft_task, request_task
from tests.plumbline_mcp.engines.waiting import until
from tests.plumbline_mcp.scan.planned_target import Planned, planned_target
from tests.wheels import only_from, pinned, write_wheel


@pytest.fixture
def planned(tmp_path: Path) -> Planned:
    return planned_target(tmp_path)


def asked(planned: Planned, task: Task | None = None) -> str:
    return request_task(planned.workspace, task or draft_task(planned.workspace, planned.target), "agent").id


def signed(planned: Planned) -> str:
    ticket = asked(planned)
    planned.approve(ticket)
    return ticket


def test_a_task_names_everything_by_content(planned: Planned) -> None:
    ticket = planned.workspace.approvals.ticket(asked(planned))
    request, task = ticket.request, jobs_of(ticket)
    assert isinstance(task, Task)
    assert request.content_sha256 == digest(task.model_dump(mode="json"))
    assert request.uses == task.uses
    assert (request.attempts, request.node_millihours, task.cap_node_millihours) == (2, 1000, 1000)
    assert request.subjects["target file"] == hashlib.sha256(planned.target.read_bytes()).hexdigest()
    assert {"model", "workload", "connection pack", "interpreter", "installed packages"} < set(
        request.subjects
    )
    assert task.fields["recipe"] == {"learning_rate": 1e-5}
    (text,) = {task.texts[job.content.digests["job text"]] for job in task.jobs if job.name == "dry_run"}
    assert text.startswith("#!/bin/bash\n# Plumbline job: procedure dry_run on framework small, run RUN.")
    assert str(planned.home) not in text
    assert digest(text) == task.job("dry_run").content.digests["job text"]
    assert task.job("dry_run").content.settings == {"learning_rate": 1e-5}


def test_the_cap_is_what_the_whole_scan_can_take_or_what_is_asked(planned: Planned) -> None:
    planned.target.write_text(planned.target.read_text().replace("time_limit_s = 36", "time_limit_s = 1800"))
    task = draft_task(planned.workspace, planned.target)
    assert [job.cost.most_node_millihours for job in task.jobs] == [500, 500]
    assert task.cap_node_millihours == 3000  # three procedures, two attempts, half an hour each
    assert draft_task(planned.workspace, planned.target, 0.0015).cap_node_millihours == 2
    assert draft_task(planned.workspace, planned.target, attempts=3).cap_node_millihours == 5000


def test_the_same_draft_is_the_same_ticket_and_another_target_is_another(planned: Planned) -> None:
    first = asked(planned)
    assert asked(planned) == first
    planned.target.write_text(planned.target.read_text() + "steps = 3\n")
    assert asked(planned) != first


@pytest.mark.parametrize(
    ("checks", "grid", "says"),
    [
        (["optimizer"], {}, "did you mean optimizer_step?"),
        ([], {"ranks": [1, 2]}, "no job of this plan has a setting 'ranks'"),
        ([], {"steps": []}, "the grid names no value of steps"),
        ([], {"steps": ["two"]}, "setting steps is 'two'"),
        ([], {"steps": list(range(1, 202))}, "the grid has more than 200 jobs"),
    ],
)
def test_what_cannot_be_planned_says_why(
    checks: list[str], grid: dict[str, list[Any]], says: str, planned: Planned
) -> None:
    with pytest.raises(UsageError) as caught:
        draft_plan(planned.workspace, signed(planned), checks, grid)
    assert says in f"{caught.value.message}; {caught.value.next_step}"


def test_jobs_that_come_out_alike_are_one(planned: Planned) -> None:
    plan = draft_plan(planned.workspace, signed(planned), grid={"steps": [2, 2, None, 3]})
    assert [(job.name, job.content.settings["steps"]) for job in plan.jobs] == [
        ("train_step-001", 2),
        ("train_step-004", 3),
    ]


def test_a_plan_may_cost_what_its_task_leaves(planned: Planned) -> None:
    ticket = asked(planned, draft_task(planned.workspace, planned.target, node_hours=0.025))
    planned.approve(ticket)
    plan = draft_plan(planned.workspace, ticket, grid={"steps": [1, 2, 3]})
    assert plan.cost.node_millihours == 30
    with pytest.raises(Refused, match=r"this costs 0.03 node-hours; the task .* leaves 0.025 of 0.025"):
        request_plan(planned.workspace, plan, "agent")


def test_200_jobs_fit_a_request(planned: Planned) -> None:
    task = asked(planned, draft_task(planned.workspace, planned.target, node_hours=9))
    planned.approve(task)
    grid: dict[str, list[Any]] = {"steps": list(range(1, 101)), "learning_rate": [1e-5, 1e-4]}
    ticket = request_plan(planned.workspace, draft_plan(planned.workspace, task, grid=grid), "agent")
    plan = jobs_of(planned.workspace.approvals.ticket(ticket.id))
    assert isinstance(plan, Plan)
    assert (len(plan.jobs), len(plan.texts)) == (200, 1)
    assert len(ticket.request.model_dump_json()) < MAX_CONTENT
    assert plan.job("train_step-200").changed == {"steps": 100, "learning_rate": 1e-4}
    assert plan.job(plan.jobs[7].digest[:16]) == plan.jobs[7]


@pytest.mark.environment
def test_an_environment_is_built_under_its_task_and_its_jobs_need_no_second_signature(
    planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin = pinned(write_wheel(tmp_path, "leaf", "2.0"))
    (tmp_path / "pins.txt").write_text(pin)
    for name, value in only_from(tmp_path).items():
        monkeypatch.setenv(name, value)
    text = planned.target.read_text().replace('python = "venv/bin/python"', 'requirements = "pins.txt"')
    planned.target.write_text(text)
    task = draft_task(planned.workspace, planned.target)
    assert (task.covers[0], task.environment.built) == ("environment", False)
    assert not Path(task.environment.python).exists()
    ticket = asked(planned, task)
    with pytest.raises(Refused, match="pending is not approved"):
        anyio.run(build_environment, planned.workspace, ticket)
    planned.approve(ticket)
    with pytest.raises(UsageError, match="is no interpreter that can be started"):
        start_job(planned.workspace, ticket, "dry_run")
    (tmp_path / "pins.txt").write_text(pinned(write_wheel(tmp_path, "leaf", "3.0")))
    with pytest.raises(Refused, match=r"would be built, and .* the requirements, torch or Python are others"):
        anyio.run(build_environment, planned.workspace, ticket)
    assert planned.workspace.query("select count(*) as n from uses", {}) == [{"n": 0}]
    assert not (tmp_path / "cache").exists()  # pip was given nothing
    (tmp_path / "pins.txt").write_text(pin)
    assert anyio.run(build_environment, planned.workspace, ticket) == Path(task.environment.python)
    assert anyio.run(build_environment, planned.workspace, ticket) == Path(task.environment.python)
    assert planned.workspace.query("select count(*) as n from uses", {}) == [{"n": 1}]
    started = start_job(planned.workspace, ticket, "dry_run")
    engine = LocalEngine(planned.workspace)
    until(lambda: engine.status(started.run_id).state.over)
    assert engine.status(started.run_id).state == "succeeded"
    site = next(Path(task.environment.python).parent.parent.glob("lib/python3*/site-packages"))
    (site / "leaf" / "__init__.py").write_text("changed = True\n")
    with pytest.raises(Refused, match="the environment was changed since it was first used here"):
        start_job(planned.workspace, ticket, "export")
