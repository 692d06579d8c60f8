"""A signed job runs as it was signed, once for each attempt, inside its cap; anything else is refused."""

import multiprocessing
import os
import sqlite3
import time
from pathlib import Path

import anyio
import pytest

from approvals.errors import Refused
from approvals.statement import Action
from approvals.ticket import TicketState
from checks.errors import NotEvaluated
from checks.records.run_ends import refuse_cancelled
from checks.records.runs import RunFolder
from plumbline_mcp.engines.contents import CACHE
from plumbline_mcp.engines.engine import Approved, State, Status
from plumbline_mcp.engines.local.engine import UNSTARTED, LocalEngine
from plumbline_mcp.errors import UsageError
from plumbline_mcp.scan.plan import draft_plan, draft_rerun, request_plan
from plumbline_mcp.scan.service import run_check
from plumbline_mcp.scan.starting import covered_job, start_job
from plumbline_mcp.scan.task import ask, draft_task, request_task
from plumbline_mcp.workspace import RunState, Workspace
from tests.plumbline_mcp.engines.waiting import until
from tests.plumbline_mcp.scan.planned_target import DRY_RUN, EXPORT, Planned, planned_target


@pytest.fixture
def planned(tmp_path: Path) -> Planned:
    return planned_target(tmp_path)


def signed_task(planned: Planned, node_hours: float | None = None) -> str:
    ticket = request_task(
        planned.workspace, draft_task(planned.workspace, planned.target, node_hours), "agent"
    )
    planned.approve(ticket.id)
    return ticket.id


def over(planned: Planned, run_id: str) -> Status:
    engine = LocalEngine(planned.workspace)

    def ended() -> Status | None:
        status = engine.status(run_id)
        return status if status.state.over else None

    found: Status = until(ended)
    return found


def runs(planned: Planned) -> int:
    return planned.workspace.run_count()


def uses(planned: Planned) -> int:
    (row,) = planned.workspace.query("select count(*) as n from uses", {})
    return int(row["n"])


def test_a_signed_job_runs_and_its_run_names_the_approval(planned: Planned) -> None:
    ticket = signed_task(planned)
    started = start_job(planned.workspace, ticket, "dry_run")
    assert over(planned, started.run_id).state is State.SUCCEEDED
    folder = RunFolder.open(planned.workspace.runs / started.run_id)
    assert folder.job.approval == ticket
    assert folder.changed_inputs() == ""
    assert (planned.workspace.runs / started.run_id / "logs/rank-00000.out").read_text() == "parsed 1e-05\n"
    again = start_job(planned.workspace, ticket, "dry_run")
    assert (again.run_id, again.new) == (started.run_id, False)
    assert (runs(planned), uses(planned)) == (1, 1)
    assert planned.workspace.verify() == []


def test_what_nobody_signed_does_not_start(planned: Planned) -> None:
    ticket = request_task(planned.workspace, draft_task(planned.workspace, planned.target), "agent")
    with pytest.raises(Refused, match="pending is not approved"):
        start_job(planned.workspace, ticket.id, "dry_run")
    with pytest.raises(
        UsageError, match=r"covers no job 'train_step'.*its jobs are: dry_run, export"
    ) as caught:
        _raised(start_job, planned.workspace, ticket.id, "train_step")
    assert caught.value
    assert (runs(planned), uses(planned)) == (0, 0)


def _raised(function: object, *arguments: object) -> None:
    """The message and the next step of an error in one."""
    try:
        function(*arguments)  # type: ignore[operator]
    except UsageError as error:
        raise UsageError(f"{error.message}; {error.next_step}") from error


def test_an_altered_argument_is_refused(planned: Planned) -> None:
    ticket = signed_task(planned)
    _, job = covered_job(planned.workspace, ticket, "dry_run")
    altered = job.launch.model_copy(update={"settings": {"learning_rate": 1e-4}})
    with pytest.raises(Refused, match="what is to run is not what was approved"):
        LocalEngine(planned.workspace).submit(altered, approved=Approved(ticket))
    assert (runs(planned), uses(planned)) == (0, 0)


ALTERED = {
    "the pack's code": ("pack/dry_run.py", DRY_RUN + "\nimport os\n", "hook files"),
    "a default of the pack": ("pack/settings.toml", None, "connection pack"),
    "the model": ("release/model.safetensors", "WEIGHTS", "model [0-9a-f]{12}…, in A-.* [0-9a-f]{12}…"),
    "the workload": ("rows.jsonl", "{}\n{}\n", "workload"),
    "an installed package": ("venv/lib/SITE/sitecustomize.py", "x = 1\n", "installed packages"),
}


@pytest.mark.parametrize("what", ALTERED)
def test_what_was_altered_between_approval_and_start_is_refused_and_named(
    what: str, planned: Planned
) -> None:
    ticket = signed_task(planned)
    name, text, said = ALTERED[what]
    if "SITE" in name:
        site = next((planned.folder / "venv").glob("lib/python3*/site-packages"))
        path = site / "sitecustomize.py"
    else:
        path = planned.folder / name
    path.write_text(text if text is not None else path.read_text().replace("default = 2", "default = 3"))
    with pytest.raises(Refused, match=said):
        start_job(planned.workspace, ticket, "dry_run")
    assert (runs(planned), uses(planned)) == (0, 0)


def test_an_altered_job_text_is_refused_and_its_line_is_shown(
    planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    ticket = signed_task(planned)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with pytest.raises(Refused, match=r"job text .*line 'OMP_NUM_THREADS=2 .*signed 'OMP_NUM_THREADS=1 "):
        start_job(planned.workspace, ticket, "dry_run")
    assert uses(planned) == 0


def test_a_model_that_was_swapped_behind_the_cache_is_met_by_the_supervisor(planned: Planned) -> None:
    time.sleep(2.1)  # a file that is older than that is kept in the cache
    ticket = signed_task(planned)
    before = planned.weights.stat()
    planned.weights.write_bytes(b"WEIGHTS")
    found, key = planned.weights.stat(), str(planned.weights)
    seen = ":".join(
        map(str, (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))
    )
    assert found.st_size == before.st_size
    with sqlite3.connect(planned.home / CACHE) as cache:  # whoever can write the workspace could do this
        changed = cache.execute("update digests set seen = ? where path = ?", (seen, key)).rowcount
    assert changed == 1
    started = start_job(planned.workspace, ticket, "dry_run")
    status = over(planned, started.run_id)
    assert status.state is State.CANCELLED
    assert "not started: model is not what was approved" in status.reason
    assert not (planned.workspace.runs / started.run_id).exists()


def test_a_model_that_changes_while_the_job_runs_leaves_records_that_are_not_judged(planned: Planned) -> None:
    waits = EXPORT.replace(
        "return []", "import time\n    print('up', flush=True)\n    time.sleep(4)\n    return []"
    )
    (planned.pack / "export.py").write_text(waits)
    ticket = signed_task(planned)
    started = start_job(planned.workspace, ticket, "export")
    out = planned.workspace.runs / started.run_id / "logs" / "rank-00000.out"
    until(lambda: out.is_file() and out.read_text())
    planned.weights.write_bytes(b"WEIGHTS")
    assert over(planned, started.run_id).state is State.SUCCEEDED
    folder = RunFolder.open(planned.workspace.runs / started.run_id)
    assert folder.changed_inputs().endswith("model was not what was approved when the job had ended")
    verdict = anyio.run(
        run_check, planned.workspace, "export", {"original": planned.weights.parent, "export": started.run_id}
    )
    assert (verdict.outcome, "model was not what was approved" in verdict.reason) == ("inconclusive", True)
    assert verdict.approval == ticket


def test_a_verdict_names_the_approval_of_its_run(planned: Planned) -> None:
    ticket = signed_task(planned)
    started = start_job(planned.workspace, ticket, "export")
    over(planned, started.run_id)
    inputs = {"original": planned.weights.parent, "export": started.run_id}
    assert anyio.run(run_check, planned.workspace, "export", inputs).approval == ticket
    _, job = covered_job(planned.workspace, ticket, "export")
    own = LocalEngine(planned.workspace).submit(job.launch)
    over(planned, own)
    inputs = {"original": planned.weights.parent, "export": own}
    assert anyio.run(run_check, planned.workspace, "export", inputs).approval == "none"


def test_a_workspace_inside_the_model_is_no_part_of_it(tmp_path: Path) -> None:
    planned = planned_target(tmp_path, home="release/.plumbline")
    started = start_job(planned.workspace, signed_task(planned), "dry_run")
    status = over(planned, started.run_id)
    assert (status.state, status.reason) == (State.SUCCEEDED, "")
    assert RunFolder.open(planned.workspace.runs / started.run_id).changed_inputs() == ""


def test_each_attempt_is_used_once(planned: Planned) -> None:
    ticket = signed_task(planned)
    first = start_job(planned.workspace, ticket, "dry_run", attempt=1)
    over(planned, first.run_id)
    with pytest.raises(Refused, match=f"attempt 1 of dry_run was used: run {first.run_id}"):
        start_job(planned.workspace, ticket, "dry_run", attempt=1)
    with pytest.raises(Refused, match="allows 2 attempts of dry_run, not 3"):
        start_job(planned.workspace, ticket, "dry_run", attempt=3)
    _, known = covered_job(planned.workspace, ticket, "dry_run")
    with pytest.raises(Refused, match="allows attempts 1 to 2, not 3"):
        LocalEngine(planned.workspace).submit(known.launch, approved=Approved(ticket, 3))
    _, job = covered_job(planned.workspace, ticket, "dry_run")
    assert LocalEngine(planned.workspace).submit(job.launch, approved=Approved(ticket)) == first.run_id
    assert (runs(planned), uses(planned)) == (1, 1)


def test_the_next_attempt_is_taken_after_a_failure_until_none_is_left(planned: Planned) -> None:
    (planned.pack / "dry_run.py").write_text("raise SystemExit('no')\n")
    ticket = signed_task(planned)
    found = [start_job(planned.workspace, ticket, "dry_run") for _ in range(2) if _ended(planned)]
    assert [(one.attempt, one.new) for one in found] == [(1, True), (2, True)]
    assert _ended(planned)
    with pytest.raises(Refused, match=f"{ticket} allows 2 attempts of dry_run, not 3"):
        start_job(planned.workspace, ticket, "dry_run")


def _ended(planned: Planned) -> bool:
    return all(over(planned, run.run_id).state is State.FAILED for run in planned.workspace.runs_list())


def test_a_rerun_is_a_request_of_its_own_and_runs_once(planned: Planned) -> None:
    task = signed_task(planned)
    over(planned, start_job(planned.workspace, task, "dry_run").run_id)
    rerun = draft_rerun(planned.workspace, task, "dry_run")
    ticket = request_plan(planned.workspace, rerun, "agent", action=Action.RERUN)
    assert (ticket.request.action, ticket.request.under, ticket.request.attempts) == ("rerun", task, 1)
    assert ticket.request.title == "1 job of small: dry_run once more"
    with pytest.raises(Refused, match="pending is not approved"):
        start_job(planned.workspace, ticket.id, "dry_run")
    planned.approve(ticket.id)
    started = start_job(planned.workspace, ticket.id, "dry_run")
    assert over(planned, started.run_id).state is State.SUCCEEDED
    assert planned.workspace.run(started.run_id).job.approval == ticket.id
    assert planned.workspace.approvals.ticket(ticket.id).state is TicketState.USED
    assert (runs(planned), uses(planned)) == (2, 2)
    again = request_plan(
        planned.workspace, draft_rerun(planned.workspace, ticket.id, "dry_run"), "agent", action=Action.RERUN
    )
    assert again.id != ticket.id


def test_a_ticket_whose_content_is_no_task_says_so(planned: Planned) -> None:
    ticket = ask(planned.workspace, action=Action.TASK, title="x", content={"jobs": []}, requester="agent")
    planned.approve(ticket.id)
    with pytest.raises(UsageError, match=r"the content of A-.* is no task of this version"):
        start_job(planned.workspace, ticket.id, "dry_run")


def test_a_rejected_ticket_says_why(planned: Planned) -> None:
    ticket = request_task(planned.workspace, draft_task(planned.workspace, planned.target), "agent")
    planned.reject(ticket.id, "name the commit")
    with pytest.raises(Refused, match="is rejected: name the commit"):
        start_job(planned.workspace, ticket.id, "dry_run")


def test_an_expired_ticket_starts_nothing(planned: Planned) -> None:
    policy = planned.workspace.approvals.trust.policy_file
    policy.write_text(policy.read_text().replace("expires_s = 1_209_600", "expires_s = 3"))
    ticket = signed_task(planned)
    until(lambda: planned.workspace.approvals.ticket(ticket).state is TicketState.EXPIRED, 10)
    with pytest.raises(Refused, match="is expired"):
        start_job(planned.workspace, ticket, "dry_run")
    _, job = covered_job(planned.workspace, ticket, "dry_run")
    with pytest.raises(Refused, match="expired"):
        LocalEngine(planned.workspace).submit(job.launch, approved=Approved(ticket))
    assert (runs(planned), uses(planned)) == (0, 0)


def test_what_the_task_leaves_is_held(planned: Planned) -> None:
    ticket = signed_task(planned, node_hours=0.010)
    over(planned, start_job(planned.workspace, ticket, "dry_run").run_id)
    with pytest.raises(Refused, match=r"takes about 0.01 node-hours; its task leaves 0.00\d of 0.01"):
        start_job(planned.workspace, ticket, "export")
    assert (runs(planned), uses(planned)) == (1, 1)


def test_a_measured_job_is_estimated_by_it_and_ended_where_the_cap_is(planned: Planned) -> None:
    over(planned, start_job(planned.workspace, signed_task(planned), "dry_run").run_id)
    task = draft_task(planned.workspace, planned.target, node_hours=0.008)
    cost = task.job("dry_run").cost
    assert (cost.most_node_millihours, cost.node_millihours < 10) == (10, True)
    assert cost.estimated.startswith("the longest of dry_run-0001: ")
    ticket = request_task(planned.workspace, task, "agent")
    planned.approve(ticket.id)
    started = start_job(planned.workspace, ticket.id, "dry_run")
    job = planned.workspace.run(started.run_id).job
    assert (job.time_limit_s, job.cap_s) == (36, pytest.approx(8 * 3.6))
    assert over(planned, started.run_id).state is State.SUCCEEDED


def test_a_job_that_uses_its_tasks_node_hours_up_is_ended_and_not_blamed(planned: Planned) -> None:
    over(planned, start_job(planned.workspace, signed_task(planned), "export").run_id)  # the measure
    waits = EXPORT.replace(
        "return []", "import pathlib, time\n    if pathlib.Path({!r}).exists(): time.sleep(30)\n    return []"
    )
    (planned.pack / "export.py").write_text(waits.format(str(planned.weights.with_name("slow"))))
    planned.weights.with_name("slow").write_text("")
    measured = draft_task(planned.workspace, planned.target).job("export").cost.node_millihours
    ticket = signed_task(planned, node_hours=measured / 1000)
    started = start_job(planned.workspace, ticket, "export")
    status = over(planned, started.run_id)
    assert (status.state, status.reason) == (State.CANCELLED, "the node-hours of its task are used up")
    with pytest.raises(NotEvaluated, match="the job was cancelled: the node-hours of its task are used up"):
        refuse_cancelled(RunFolder.open(planned.workspace.runs / started.run_id))


def test_a_job_of_a_plan_runs_and_counts_against_its_task(planned: Planned) -> None:
    task = signed_task(planned, node_hours=0.010)
    plan = draft_plan(planned.workspace, task, grid={"learning_rate": [1e-5]})
    ticket = request_plan(planned.workspace, plan, "agent")
    planned.approve(ticket.id)
    started = start_job(planned.workspace, ticket.id, "train_step-001")
    assert over(planned, started.run_id).state is State.SUCCEEDED
    assert planned.workspace.run(started.run_id).job.approval == ticket.id
    with pytest.raises(Refused, match=r"its task leaves 0.00\d of 0.01"):
        start_job(planned.workspace, task, "export")


def _start_at_once(home: Path, ticket: str, barrier: object, answers: object) -> None:
    workspace = Workspace.open(home)
    barrier.wait()  # type: ignore[attr-defined]
    try:
        answers.put(start_job(workspace, ticket, "dry_run").run_id)  # type: ignore[attr-defined]
    except Exception as error:  # noqa: BLE001 - whatever it is, the test says it
        answers.put(repr(error))  # type: ignore[attr-defined]


def test_of_eight_executions_at_once_one_runs(planned: Planned) -> None:
    ticket = signed_task(planned)
    planned.workspace.close()
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(8), context.Queue()
    racing = [
        context.Process(target=_start_at_once, args=(planned.home, ticket, barrier, answers))
        for _ in range(8)
    ]
    for one in racing:
        one.start()
    found = {answers.get(timeout=120) for _ in racing}
    for one in racing:
        one.join()
    assert found == {"dry_run-0001"}
    assert over(planned, "dry_run-0001").state is State.SUCCEEDED
    assert (runs(planned), uses(planned)) == (1, 1)


@pytest.fixture
def stopped(planned: Planned) -> tuple[Planned, str]:
    """A submission that was killed after its row was stored and before its job was started."""
    ticket = signed_task(planned)
    planned.workspace.close()
    child = os.fork()
    if child == 0:
        LocalEngine._start = lambda *_: os._exit(0)  # type: ignore[method-assign,assignment]
        start_job(Workspace.open(planned.home), ticket, "dry_run")
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    return planned, ticket


def test_a_submission_that_was_killed_is_driven_again_and_not_doubled(stopped: tuple[Planned, str]) -> None:
    planned, ticket = stopped
    (run,) = planned.workspace.runs_list()
    assert (run.state, uses(planned)) == (RunState.SUBMITTING, 1)
    other = start_job(planned.workspace, ticket, "export")  # whoever starts a job sweeps what was left
    over(planned, other.run_id)
    status = LocalEngine(planned.workspace).status(run.run_id)
    assert (status.state, status.reason) == (State.QUEUED, UNSTARTED)
    started = start_job(planned.workspace, ticket, "dry_run")
    assert (started.run_id, started.attempt) == (run.run_id, 1)
    assert over(planned, run.run_id).state is State.SUCCEEDED
    assert (runs(planned), uses(planned)) == (2, 2)
    assert planned.workspace.run(run.run_id).job.approval == ticket
    assert planned.workspace.verify() == []


def test_a_submission_that_was_killed_can_be_cancelled_and_frees_the_next_attempt(
    stopped: tuple[Planned, str],
) -> None:
    planned, ticket = stopped
    (run,) = planned.workspace.runs_list()
    engine = LocalEngine(planned.workspace)
    engine.cancel(run.run_id)
    assert (engine.status(run.run_id).state, engine.status(run.run_id).reason) == (
        State.CANCELLED,
        "cancelled, before it started",
    )
    started = start_job(planned.workspace, ticket, "dry_run")
    assert (started.attempt, started.run_id != run.run_id) == (2, True)
    assert over(planned, started.run_id).state is State.SUCCEEDED


def test_an_approval_that_somebody_wrote_into_a_run_is_named(planned: Planned) -> None:
    ticket = signed_task(planned)
    _, job = covered_job(planned.workspace, ticket, "dry_run")
    run_id = LocalEngine(planned.workspace).submit(job.launch)
    over(planned, run_id)
    assert planned.workspace.verify() == []
    with planned.workspace.write_tx() as database:
        database.execute("update runs set job = json_set(job, '$.approval', ?)", [ticket])
    assert planned.workspace.verify() == [
        f"run {run_id} has another job than the one that was started",
        f"run {run_id} names the approval {ticket}, which was not used for it",
    ]


def test_a_job_without_an_approval_is_as_before(planned: Planned) -> None:
    _, job = covered_job(planned.workspace, signed_task(planned), "dry_run")
    run_id = LocalEngine(planned.workspace).submit(job.launch)
    assert over(planned, run_id).state is State.SUCCEEDED
    folder = RunFolder.open(planned.workspace.runs / run_id)
    assert (folder.job.approval, folder.changed_inputs(), uses(planned)) == ("none", "", 0)
