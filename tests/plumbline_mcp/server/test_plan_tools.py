"""Task, plan and job through a real client: an agent asks, a reviewer signs, and what was signed runs."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import jsonschema
import pytest
from mcp import Client

from checks.records.runs import RunFolder
from plumbline_mcp.engines.local.engine import LocalEngine
from plumbline_mcp.scan.example_release import write_release
from plumbline_mcp.scan.example_workload import write_workload
from plumbline_mcp.server import build_server
from plumbline_mcp.workspace import Workspace
from tests.frameworks.pack_jobs import pack_environment
from tests.plumbline_mcp.engines.waiting import until
from tests.plumbline_mcp.scan.planned_target import Planned, planned_target
from tests.plumbline_mcp.scan.test_fixing import MENDED, confirmed

pytestmark = pytest.mark.anyio
LIMIT = 32_000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def planned(tmp_path: Path) -> Planned:
    return planned_target(tmp_path)


class Agent:
    """A client that branches on structured answers alone; each is held against the tool's schema."""

    def __init__(self, client: Client, schemas: dict[str, Any]) -> None:
        self.client, self.schemas = client, schemas

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, result.content
        assert result.structured_content is not None
        jsonschema.validate(result.structured_content, self.schemas[tool])
        assert len(json.dumps(result.structured_content).encode()) < LIMIT
        return result.structured_content

    async def refused(self, tool: str, **arguments: Any) -> str:
        result = await self.client.call_tool(tool, arguments)
        assert result.is_error
        return str(getattr(result.content[0], "text", ""))


async def as_agent(planned: Planned, play: Callable[[Agent], Any], mode: str = "auto") -> None:
    async with Client(build_server(planned.home), mode=mode) as client:
        tools = (await client.list_tools()).tools
        await play(Agent(client, {tool.name: tool.output_schema or {} for tool in tools}))


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_from_a_target_to_jobs_that_ran(planned: Planned, mode: str) -> None:
    async def play(agent: Agent) -> None:
        task = await agent.call("task_draft", target=str(planned.target))
        assert task["covers"] == ["dry run", "no-training checks", "check image", "check export"]
        assert [job["name"] for job in task["jobs"]] == ["dry_run", "export"]
        image, steps, export = task["calls"]
        assert (image["tool"], image["jobs"], image["run_argument"]) == ("check_image", [], None)
        assert image["arguments"]["python"] == str(planned.folder / "venv" / "bin" / "python")
        assert (export["tool"], export["under"], export["jobs"]) == ("check_export", "task", ["export"])
        assert (export["run_argument"], export["arguments"]["original"]) == (
            "export",
            str(planned.folder / "release"),
        )
        assert (steps["tool"], steps["under"], steps["jobs"]) == ("check_optimizer_step", "plan", [])
        assert (task["state"], task["node_hours"], task["most_node_hours"]) == ("pending", 1.0, 0.02)
        assert (await agent.call("task_draft", target=str(planned.target)))["ticket"] == task["ticket"]
        first = await agent.call("job_start", ticket=task["ticket"], job="dry_run")
        assert (first["status"], first["run_id"], first["digest"]) == (
            "approval_required",
            None,
            task["jobs"][0]["digest"],
        )
        assert first["next"].startswith(f'approval_wait(ticket="{task["ticket"]}")')
        assert planned.workspace.run_count() == 0
        seen = await agent.call("approval_wait", ticket=task["ticket"], max_s=0)
        assert (seen["state"], seen["action"], seen["requester"]) == ("pending", "task", "agent")

        planned.approve(task["ticket"])
        assert (await agent.call("approval_wait", ticket=task["ticket"]))["state"] == "approved"
        started = await agent.call("job_start", ticket=task["ticket"], job="dry_run")
        assert (started["status"], started["attempt"]) == ("started", 1)
        await ended(planned, started["run_id"])
        status = await agent.call("job_status", run_id=started["run_id"])
        assert (status["state"], status["approval"]) == ("succeeded", task["ticket"])
        again = await agent.call("job_start", ticket=task["ticket"], job="dry_run")
        assert (again["status"], again["run_id"]) == ("already_started", started["run_id"])

        plan = await agent.call("plan_draft", task=task["ticket"], grid={"learning_rate": [1e-5, 1e-4]})
        assert [job["name"] for job in plan["jobs"]] == ["train_step-001", "train_step-002"]
        (call,) = plan["calls"]
        assert (call["tool"], call["run_argument"]) == ("check_optimizer_step", "run")
        assert call["jobs"] == ["train_step-001", "train_step-002"]
        assert plan["jobs"][1]["untrusted_changed"] == {"learning_rate": "0.0001"}
        planned.approve(plan["ticket"])
        trained = await agent.call("job_start", ticket=plan["ticket"], job="train_step-002")
        await ended(planned, trained["run_id"])
        job = planned.workspace.run(trained["run_id"]).job
        assert (job.settings["learning_rate"], job.approval) == (1e-4, plan["ticket"])
        again = await agent.call("plan_draft", task=plan["ticket"], rerun="train_step-002")
        assert again["jobs"][0]["digest"] == plan["jobs"][1]["digest"]
        assert planned.workspace.approvals.ticket(again["ticket"]).request.action == "rerun"
        await agent.call("approval_withdraw", ticket=again["ticket"])
        said = await agent.refused("plan_draft", task=plan["ticket"], rerun="x", checks=["optimizer_step"])
        assert "a rerun takes neither checks nor a grid" in said
        listed = (await agent.call("approval_list", state="approved"))["approvals"]
        assert [one["ticket"] for one in listed] == [plan["ticket"], task["ticket"]]

    await as_agent(planned, play, mode)


async def test_a_change_for_a_confirmed_finding_runs_under_a_fix(planned: Planned) -> None:
    async def play(agent: Agent) -> None:
        task = (await agent.call("task_draft", target=str(planned.target)))["ticket"]
        planned.approve(task)
        finding = await anyio.to_thread.run_sync(confirmed, planned)
        export = planned.pack / "export.py"
        export.write_text(MENDED)
        assert "is not what" in await agent.refused("job_start", ticket=task, job="export")
        said = await agent.refused("plan_draft", task=task, fix="finding-0099")
        assert "there is no finding 'finding-0099'" in said
        said = await agent.refused("plan_draft", task=task, fix=finding, checks=["export"])
        assert "a fix takes neither checks nor a grid" in said
        fix = await agent.call("plan_draft", task=task, fix=finding, rerun="export", attempts=1)
        assert (fix["action"], fix["attempts"], fix["jobs_total"]) == ("fix", 1, 1)
        assert fix["covers"][:2] == [f"fix for {finding}", "check export"]
        assert fix["covers"][2].startswith("connection pack: ")
        waiting = await agent.call("job_start", ticket=fix["ticket"], job="export")
        assert waiting["status"] == "approval_required"
        planned.approve(fix["ticket"])
        seen = await agent.call("approval_wait", ticket=fix["ticket"])
        assert seen["next"] == f'job_start(ticket="{fix["ticket"]}", job=...)'
        started = await agent.call("job_start", ticket=fix["ticket"], job="export")
        await ended(planned, started["run_id"])
        built = await agent.refused("job_start", ticket=fix["ticket"], job="environment")
        assert "covers no building" in built

    await as_agent(planned, play)


async def ended(planned: Planned, run_id: str) -> None:
    engine = LocalEngine(planned.workspace)
    await anyio.to_thread.run_sync(lambda: until(lambda: engine.status(run_id).state.over))
    assert engine.status(run_id).state == "succeeded"


async def test_a_wait_ends_when_it_is_decided_and_tells_the_reason(planned: Planned) -> None:
    async def play(agent: Agent) -> None:
        ticket = (await agent.call("task_draft", target=str(planned.target)))["ticket"]
        answers: list[dict[str, Any]] = []

        async def wait() -> None:
            answers.append(await agent.call("approval_wait", ticket=ticket, max_s=60))

        began = time.monotonic()
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.sleep(0.5)
            planned.reject(ticket, "name the commit")
        assert time.monotonic() - began < 30
        (seen,) = answers
        assert (seen["state"], seen["untrusted_reason"]) == ("rejected", "name the commit")
        assert seen["next"] == "change what the reason says, then draft it again"
        said = await agent.refused("job_start", ticket=ticket, job="dry_run")
        assert f"{ticket} is rejected: name the commit. Next: change what was rejected" in said
        again = await agent.call("task_draft", target=str(planned.target))
        assert again["ticket"] == ticket.removesuffix("-1") + "-2"

    await as_agent(planned, play)


async def test_a_wait_tells_every_five_seconds_that_it_waits(planned: Planned) -> None:
    told: list[tuple[float, str | None]] = []

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))

    async with Client(build_server(planned.home)) as client:
        drafted = await client.call_tool("task_draft", {"target": str(planned.target)})
        assert drafted.structured_content is not None
        ticket = drafted.structured_content["ticket"]
        arguments = {"ticket": ticket, "max_s": 7}
        result = await client.call_tool("approval_wait", arguments, progress_callback=heard)
    assert result.structured_content is not None
    assert result.structured_content["state"] == "pending"
    assert len(told) == 1
    assert 5 <= told[0][0] < 7
    assert told[0][1] == f"{ticket} is pending"


async def test_a_withdrawn_request_is_over_and_only_its_requester_can_withdraw(planned: Planned) -> None:
    async def play(agent: Agent) -> None:
        ticket = (await agent.call("task_draft", target=str(planned.target)))["ticket"]
        assert (await agent.call("approval_withdraw", ticket=ticket))["state"] == "withdrawn"
        assert f"{ticket} is withdrawn" in await agent.refused("job_start", ticket=ticket, job="dry_run")
        assert "nothing to withdraw" in await agent.refused("approval_withdraw", ticket=ticket)

    await as_agent(planned, play)


async def test_errors_say_what_would_be_accepted(planned: Planned) -> None:
    async def play(agent: Agent) -> None:
        ticket = (await agent.call("task_draft", target=str(planned.target)))["ticket"]
        said = await agent.refused("job_start", ticket=ticket, job="train_step")
        assert "covers no job 'train_step'. Next: its jobs are: dry_run, export" in said
        said = await agent.refused("job_start", ticket=ticket, job="environment")
        assert f"{ticket} covers no building: {planned.folder}/venv/bin/python was there" in said
        assert "approval_wait" in (await agent.call("job_start", ticket=ticket, job="export"))["next"]
        said = await agent.refused("plan_draft", task=ticket)
        assert f"the task {ticket} is pending: a plan comes under a signed task" in said
        assert "there is no approval 'A-0000000000-1'" in await agent.refused(
            "approval_wait", ticket="A-0000000000-1"
        )
        planned.approve(ticket)
        said = await agent.refused("plan_draft", task=ticket, grid={"learning_rat": [1]})
        assert "no job of this plan has a setting 'learning_rat'. Next: did you mean learning_rate?" in said
        said = await agent.refused("plan_draft", task=ticket, checks=["export"])
        assert (
            "no job of this target trains for check 'export'. Next: those that train: optimizer_step" in said
        )
        grid = {"learning_rate": [n / 1000 for n in range(1, 16)], "steps": list(range(1, 16))}
        said = await agent.refused("plan_draft", task=ticket, grid=grid)
        assert "the grid has more than 200 jobs" in said
        planned.target.write_text(planned.target.read_text() + "\n# changed\n")
        said = await agent.refused("plan_draft", task=ticket)
        assert f"is not the file that {ticket} names" in said

    await as_agent(planned, play)


async def test_a_plan_of_200_jobs_fits_an_answer_and_a_request(planned: Planned) -> None:
    async def play(agent: Agent) -> None:
        ticket = (await agent.call("task_draft", target=str(planned.target), node_hours=10))["ticket"]
        planned.approve(ticket)
        grid = {"learning_rate": [n / 1000 for n in range(1, 21)], "steps": list(range(1, 11))}
        plan = await agent.call("plan_draft", task=ticket, grid=grid)
        assert (plan["jobs_total"], plan["node_hours"]) == (200, 2.0)
        request = planned.workspace.approvals.ticket(plan["ticket"]).request
        assert len(set(request.uses)) == 200
        assert len(request.content["texts"]) == 1  # type: ignore[call-overload,arg-type,index]

    await as_agent(planned, play)


REAL_TARGET = """format = 1
framework = "transformers"
model = "release"
workload = "workload.jsonl"
time_limit_s = 900

[environment]
pack = true
"""


@pytest.mark.environment
async def test_the_dry_run_of_transformers_runs_as_it_was_signed(tmp_path: Path) -> None:
    pack_environment("transformers")
    write_release(tmp_path / "release")
    write_workload(tmp_path / "workload.jsonl", 40)
    (tmp_path / "target.toml").write_text(REAL_TARGET)
    real = Planned(tmp_path, Workspace.open(tmp_path / "home", kind="example"), tmp_path / "target.toml")

    async def play(agent: Agent) -> None:
        task = await agent.call("task_draft", target=str(real.target))
        assert task["covers"][:3] == ["dry run", "no-training checks", "first run"]
        jobs = ["dry_run", "rows", "build", "load", "export", "first_run"]
        assert [job["name"] for job in task["jobs"]] == jobs
        real.approve(task["ticket"])
        started = await agent.call("job_start", ticket=task["ticket"], job="dry_run")
        await ended(real, started["run_id"])
        folder = RunFolder.open(real.workspace.runs / started["run_id"])
        assert (folder.job.approval, folder.changed_inputs()) == (task["ticket"], "")
        with (tmp_path / "release" / "config.json").open("a") as file:
            file.write(" ")
        said = await agent.refused("job_start", ticket=task["ticket"], job="rows")
        assert f"the job is not what {task['ticket']} was asked for: model " in said

    await as_agent(real, play)
