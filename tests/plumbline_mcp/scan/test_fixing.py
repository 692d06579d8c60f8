"""A change that a confirmed finding led to runs under a fix, once; without one it does not run at all."""

import json
from pathlib import Path

import anyio
import pytest

from approvals.errors import Refused
from approvals.statement import Action
from approvals.ticket import Ticket, TicketState
from plumbline_mcp.engines.engine import Approved
from plumbline_mcp.engines.local.engine import LocalEngine
from plumbline_mcp.errors import UsageError
from plumbline_mcp.findings import confirming
from plumbline_mcp.findings.states import State
from plumbline_mcp.findings.store import Findings
from plumbline_mcp.scan.fix_diff import MAX_DIFF, unified
from plumbline_mcp.scan.fixing import draft_fix
from plumbline_mcp.scan.plan import Fix, draft_plan, draft_rerun, jobs_of, request_plan
from plumbline_mcp.scan.service import run_check
from plumbline_mcp.scan.starting import build_environment, start_job
from plumbline_mcp.scan.task import draft_task, request_task
from tests.plumbline_mcp.engines.waiting import until
from tests.plumbline_mcp.findings import made
from tests.plumbline_mcp.findings.reviewing import decided
from tests.plumbline_mcp.scan.planned_target import Planned, planned_target
from tests.wheels import only_from, pinned, write_wheel

MENDED = "def export(job, output, progress):\n    print('mended')\n    return []\n"

BRIEF = """
[[rule]]
name = "brief"
actions = ["fix"]
signers = 1
reviewers = "enrolled"
requester_may_sign = true
expires_s = 2
"""


@pytest.fixture
def planned(tmp_path: Path) -> Planned:
    return planned_target(tmp_path)


def signed_task(planned: Planned) -> str:
    ticket = request_task(planned.workspace, draft_task(planned.workspace, planned.target), "agent")
    planned.approve(ticket.id)
    return ticket.id


def proposed(planned: Planned, framework: str = "small") -> str:
    return made.propose(planned.workspace, framework=framework).finding.id


def confirmed(planned: Planned, framework: str = "small", departure: str = "") -> str:
    finding = proposed(planned, framework)
    Findings(planned.workspace).step(finding, State.REBUILT, "verifier")
    ticket = confirming.ask(planned.workspace, finding, "agent", departure)
    decided(planned.workspace, ticket, "approve", "seen in the raw file")
    confirming.decide(planned.workspace, finding, "agent", departure)
    return finding


def forged(planned: Planned, finding: str, ticket: str | None) -> None:
    """A row that says that a finding was confirmed: whoever owns the file can write one."""
    row = {
        "finding": finding,
        "at": "now",
        "state": "confirmed",
        "actor": "ada",
        "reason": "",
        "ticket": ticket,
    }
    with planned.workspace.write_tx() as database:
        database.table("finding_events").insert(row)


def asked(planned: Planned, ticket: str, finding: str, name: str | None = None, attempts: int = 2) -> Ticket:
    fix = draft_fix(planned.workspace, ticket, finding, name, attempts)
    return request_plan(planned.workspace, fix, "agent")


def ran(planned: Planned, ticket: str, name: str) -> str:
    run = start_job(planned.workspace, ticket, name).run_id
    until(lambda: LocalEngine(planned.workspace).status(run).state.over)
    return run


def test_a_changed_pack_runs_under_a_fix_once_and_its_verdict_says_so(planned: Planned) -> None:
    task, finding = signed_task(planned), confirmed(planned)
    first = ran(planned, task, "export")
    (planned.pack / "export.py").write_text(MENDED)
    with pytest.raises(Refused, match=r"is not what A-.* was asked for: "):
        start_job(planned.workspace, task, "dry_run")  # the pack is its own too

    ticket = asked(planned, task, finding, "export", attempts=1)
    request, fix = ticket.request, jobs_of(ticket)
    assert (request.action, request.under, ticket.rule) == (Action.FIX, task, "run")
    assert request.title == f"fix for {finding}: 1 job of small: export"
    assert request.subjects["finding"] == Findings(planned.workspace).get(finding).finding.sha256
    assert isinstance(fix, Fix)
    assert fix.said == "reduce the norm over all shards"
    assert [(one.name, one.jobs) for one in fix.changes] == [
        ("connection pack", ("export",)),
        ("hook files", ("export",)),
    ]
    assert all(one.before != one.after for one in fix.changes)
    assert fix.checks == ("export",)
    assert "--- hooks/binding/export.py, signed" in fix.diff
    assert "+    print('mended')" in fix.diff
    assert "plumbline_recorder" not in "".join(fix.diff)  # what is equal is not shown
    assert asked(planned, task, finding, "export", attempts=1).id == ticket.id
    with pytest.raises(Refused, match="pending is not approved"):
        start_job(planned.workspace, ticket.id, "export")
    planned.approve(ticket.id)

    run = ran(planned, ticket.id, "export")
    assert run != first
    assert (planned.workspace.runs / run / "logs/rank-00000.out").read_text() == "mended\n"
    again = start_job(planned.workspace, ticket.id, "export")
    assert (again.run_id, again.new) == (run, False)
    with pytest.raises(Refused, match="attempt 1 of export was used"):
        start_job(planned.workspace, ticket.id, "export", attempt=1)
    assert planned.workspace.approvals.ticket(ticket.id).state is TicketState.USED
    model = str(planned.folder / "release")
    verdict = anyio.run(run_check, planned.workspace, "export", {"original": model, "export": run})
    assert verdict.approval == f"{ticket.id} (fix for {finding})"
    verdict = anyio.run(run_check, planned.workspace, "export", {"original": model, "export": first})
    assert verdict.approval == task
    assert planned.workspace.verify() == []


def test_a_changed_target_alters_every_job_and_the_diff_shows_its_keys(planned: Planned) -> None:
    task, finding = signed_task(planned), confirmed(planned)
    plan = request_plan(planned.workspace, draft_plan(planned.workspace, task), "agent")
    planned.approve(plan.id)
    planned.target.write_text(planned.target.read_text().replace("1e-5", "2e-5"))
    (planned.weights).write_bytes(b"other weights")
    fix = draft_fix(planned.workspace, task, finding)
    assert [job.name for job in fix.jobs] == ["dry_run", "export"]
    assert {(one.name, one.before, one.after) for one in fix.changes if one.name == "learning_rate"} == {
        ("learning_rate", "1e-05", "2e-05")
    }
    assert {one.name: one.jobs for one in fix.changes}["model"] == ("dry_run", "export")
    assert '-  "learning_rate": 1e-05' in fix.diff
    assert '+  "learning_rate": 2e-05' in fix.diff
    trained = draft_fix(planned.workspace, plan.id, finding)
    assert [(job.name, job.content.settings["learning_rate"]) for job in trained.jobs] == [
        ("train_step", 2e-5)
    ]
    assert (trained.of, trained.task, trained.attempts) == (plan.id, task, 2)
    with pytest.raises(Refused) as caught:
        draft_plan(planned.workspace, task)
    assert "where a confirmed finding asks for the change, a fix" in caught.value.next_step


def test_a_fix_needs_a_confirmed_finding_on_its_own_framework(planned: Planned) -> None:
    task = signed_task(planned)
    (planned.pack / "export.py").write_text(MENDED)
    unproven, departure = proposed(planned), confirmed(planned, departure="manual 4.2, section 3")
    elsewhere = confirmed(planned, "another")
    for finding, says in (
        ("finding-0099", "there is no finding 'finding-0099'"),
        (unproven, f"{unproven} is proposed: a fix is for a confirmed finding"),
        (departure, f"{departure} is departure: a fix is for a confirmed finding"),
        (elsewhere, f"{elsewhere} is a cause in another, and the task is of small"),
    ):
        with pytest.raises(UsageError) as caught:
            draft_fix(planned.workspace, task, finding)
        assert says in caught.value.message
    forged(planned, unproven, None)
    with pytest.raises(UsageError, match="a fix is for a confirmed finding"):
        draft_fix(planned.workspace, task, unproven)  # a row that says so is no signature


def test_without_a_change_or_a_signature_there_is_no_fix(planned: Planned) -> None:
    unsigned = request_task(planned.workspace, draft_task(planned.workspace, planned.target), "agent")
    finding = confirmed(planned)
    with pytest.raises(UsageError, match=f"the task {unsigned.id} is pending"):
        draft_fix(planned.workspace, unsigned.id, finding)
    planned.approve(unsigned.id)
    with pytest.raises(UsageError, match="runs or reads is other than what was signed"):
        draft_fix(planned.workspace, unsigned.id, finding)
    plan = request_plan(planned.workspace, draft_plan(planned.workspace, unsigned.id), "agent")
    (planned.pack / "training.py").write_text("def train(job, recorder, progress):\n    return [1]\n")
    with pytest.raises(UsageError, match=f"the plan {plan.id} is pending: it has to be signed first"):
        draft_fix(planned.workspace, plan.id, finding)
    of_finding = Findings(planned.workspace).get(finding).ticket
    with pytest.raises(UsageError, match="is a finding: it covers no job"):
        draft_fix(planned.workspace, str(of_finding), finding)


def test_another_framework_is_another_task(planned: Planned) -> None:
    task, finding = signed_task(planned), confirmed(planned)
    pack = planned.pack / "pack.toml"
    pack.write_text(pack.read_text().replace('name = "small"', 'name = "large"'))
    with pytest.raises(UsageError, match="is of large, and the task of small"):
        draft_fix(planned.workspace, task, finding)


def test_a_pack_that_brings_a_bound_is_no_fix(planned: Planned) -> None:
    task, finding = signed_task(planned), confirmed(planned)
    pack = planned.pack / "pack.toml"
    pack.write_text(pack.read_text() + "\n[bounds]\nloss = 1.0\n")
    with pytest.raises(UsageError, match="bounds"):
        draft_fix(planned.workspace, task, finding)


def test_what_changes_after_the_signature_does_not_run(planned: Planned) -> None:
    task, finding = signed_task(planned), confirmed(planned)
    (planned.pack / "export.py").write_text(MENDED)
    ticket = asked(planned, task, finding, "export")
    planned.approve(ticket.id)
    (planned.pack / "export.py").write_text(MENDED.replace("mended", "mended again"))
    with pytest.raises(Refused, match=f"is not what {ticket.id} was asked for: connection pack"):
        start_job(planned.workspace, ticket.id, "export")
    with pytest.raises(UsageError, match="covers no job 'dry_run'"):
        start_job(planned.workspace, ticket.id, "dry_run")
    _, job = ticket, jobs_of(ticket).job("export")
    with pytest.raises(Refused, match="what is to run is not what was approved"):
        LocalEngine(planned.workspace).submit(job.launch, approved=Approved(ticket.id))
    assert planned.workspace.run_count() == 0


def test_a_rejected_or_expired_fix_starts_nothing(planned: Planned) -> None:
    task, finding = signed_task(planned), confirmed(planned)
    (planned.pack / "export.py").write_text(MENDED)
    rejected = asked(planned, task, finding, "export")
    planned.reject(rejected.id, "say why the pack changes")
    with pytest.raises(Refused, match="is rejected: say why the pack changes"):
        start_job(planned.workspace, rejected.id, "export")
    policy = planned.workspace.approvals.trust.policy_file
    policy.write_text(policy.read_text().replace("[[rule]]", f"{BRIEF}\n[[rule]]", 1))
    task = signed_task(planned)  # of the changed pack, under the changed policy
    (planned.pack / "export.py").write_text(MENDED + "\n")
    late = asked(planned, task, finding, "export")
    planned.approve(late.id)
    until(lambda: planned.workspace.approvals.ticket(late.id).state is TicketState.EXPIRED, 10)
    with pytest.raises(Refused, match="is expired"):
        start_job(planned.workspace, late.id, "export")
    assert planned.workspace.run_count() == 0


def test_a_finding_whose_confirmation_no_longer_holds_carries_no_fix(planned: Planned) -> None:
    task, finding = signed_task(planned), confirmed(planned)
    (planned.pack / "export.py").write_text(MENDED)
    ticket = asked(planned, task, finding, "export")
    planned.approve(ticket.id)
    other = confirmed(planned)
    forged(planned, finding, Findings(planned.workspace).get(other).ticket)
    with pytest.raises(Refused, match=f"confirms another finding than {finding}"):
        start_job(planned.workspace, ticket.id, "export")


def test_a_rerun_changes_nothing_and_a_fix_is_rerun_under_a_fix(planned: Planned) -> None:
    task, finding = signed_task(planned), confirmed(planned)
    (planned.pack / "export.py").write_text(MENDED)
    with pytest.raises(Refused) as caught:
        draft_rerun(planned.workspace, task, "export")
    assert "export would not be what" in caught.value.message
    assert f'plan_draft(task="{task}", fix=FINDING)' in caught.value.next_step
    ticket = asked(planned, task, finding, "export", attempts=1)
    planned.approve(ticket.id)
    with pytest.raises(UsageError, match="its jobs run once more under a fix") as told:
        draft_rerun(planned.workspace, ticket.id, "export")
    assert f'plan_draft(task="{task}", fix="{finding}", rerun=JOB)' in told.value.next_step
    (planned.pack / "export.py").write_text("raise SystemExit('no')\n")
    failing = asked(planned, task, finding, "export", attempts=1)
    planned.approve(failing.id)
    ran(planned, failing.id, "export")
    with pytest.raises(Refused, match="allows 1 attempts of export") as spent:
        start_job(planned.workspace, failing.id, "export")
    assert f'plan_draft(task="{task}", fix="{finding}", rerun="export")' in spent.value.next_step
    assert asked(planned, task, finding, "export", attempts=1).id not in (ticket.id, failing.id)


def test_a_fix_may_follow_a_fix(planned: Planned) -> None:
    task, finding = signed_task(planned), confirmed(planned)
    planned.target.write_text(planned.target.read_text().replace("1e-5", "2e-5"))
    first = asked(planned, task, finding, "dry_run")
    planned.approve(first.id)
    planned.target.write_text(planned.target.read_text().replace("2e-5", "3e-5"))
    second = draft_fix(planned.workspace, first.id, finding)
    assert [(one.name, one.before, one.after) for one in second.changes] == [
        ("learning_rate", "2e-05", "3e-05")
    ]
    assert '-  "learning_rate": 2e-05' in second.diff


def test_a_diff_is_bounded_and_says_what_was_cut() -> None:
    lines = unified([("a", "", "x\n" * MAX_DIFF), ("b", "same", "same")])
    assert sum(map(len, lines)) < MAX_DIFF
    assert lines[-1] == f"[cut here: {MAX_DIFF + 3 - len(lines) + 1} lines more]"
    assert not any("b, signed" in line for line in lines)


def test_a_fix_is_small_json_and_holds_no_bound(planned: Planned) -> None:
    task, finding = signed_task(planned), confirmed(planned)
    (planned.pack / "export.py").write_text(MENDED)
    content = draft_fix(planned.workspace, task, finding).model_dump(mode="json")
    assert not {"bound", "tolerance", "rule", "skip"} & set(content)
    assert len(json.dumps(content)) < 200_000


def test_a_fix_that_builds_nothing_says_so(planned: Planned) -> None:
    task, finding = signed_task(planned), confirmed(planned)
    (planned.pack / "export.py").write_text(MENDED)
    ticket = asked(planned, task, finding)
    planned.approve(ticket.id)
    with pytest.raises(UsageError, match=f"{ticket.id} covers no building"):
        anyio.run(build_environment, planned.workspace, ticket.id)


@pytest.mark.environment
def test_an_environment_that_a_fix_changes_is_built_under_it(
    planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pins.txt").write_text(pinned(write_wheel(tmp_path, "leaf", "2.0")))
    for name, value in only_from(tmp_path).items():
        monkeypatch.setenv(name, value)
    task, finding = signed_task(planned), confirmed(planned)
    text = planned.target.read_text()
    planned.target.write_text(text.replace('python = "venv/bin/python"', 'requirements = "pins.txt"'))
    ticket = asked(planned, task, finding, "dry_run")
    fix = jobs_of(ticket)
    assert isinstance(fix, Fix)
    assert fix.checks == ("image",)  # it judges another environment; the dry run is judged by none
    assert fix.environment.digest in ticket.request.uses
    with pytest.raises(Refused, match="pending is not approved"):
        anyio.run(build_environment, planned.workspace, ticket.id)
    planned.approve(ticket.id)
    python = anyio.run(build_environment, planned.workspace, ticket.id)
    assert python == Path(fix.environment.python)
    run = ran(planned, ticket.id, "dry_run")
    assert planned.workspace.run(run).job.interpreter == str(python)
    assert planned.workspace.verify() == []
