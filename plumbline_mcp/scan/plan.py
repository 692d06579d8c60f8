"""The plan: what a reviewer signs next. It names the jobs that train, each rendered and by digest: the
recipe, and a bounded grid of settings around it.
"""

import difflib
import itertools
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue

from approvals.errors import Refused
from approvals.statement import Action
from approvals.ticket import Ticket, TicketState
from checks.references.packs import Pack
from checks.verdict import Frozen
from plumbline_mcp.engines.job_digest import TEXT, job_text
from plumbline_mcp.engines.launching import prepare, setting_hint
from plumbline_mcp.errors import UsageError
from plumbline_mcp.scan.labels import fix_label
from plumbline_mcp.scan.planned import ATTEMPTS, Rendered, planned_job, subjects
from plumbline_mcp.scan.task import (
    TARGET_FILE,
    Aimed,
    Drafter,
    Task,
    ask,
    content_of,
    planned_procedures,
    refuse_changed,
    task_of,
)
from plumbline_mcp.workspace import Workspace

MAX_JOBS = 200
"""Jobs of one plan: what a reviewer can still look through."""

Grid = Mapping[str, list[JsonValue]]
_Wanted = tuple[str, str, dict[str, JsonValue]]


class PlanCost(Frozen):
    """What the plan's jobs cost, one attempt of each."""

    node_millihours: int
    most_node_millihours: int


class Plan(Rendered):
    """The content of the request."""

    format: Literal[1] = 1
    task: str = Field(description="ticket of the task that it comes under")
    task_sha256: str = Field(description="digest of that task's content")
    checks: tuple[str, ...] = Field(description="checks that judge what the jobs leave")
    grid: dict[str, list[JsonValue]] = Field(description="the values of each setting that is varied")
    attempts: int
    cost: PlanCost


class Change(Frozen):
    """One thing that a fix changes in what jobs run or read; a digest where it is a file or a folder."""

    name: str
    before: str
    after: str
    jobs: tuple[str, ...] = Field(description="jobs that it changes")


class Fix(Plan, Aimed):
    """The content of a request for a fix: jobs that were signed, with content that a finding led to.

    It names what changes and nothing of how it is judged: no content of a job holds a bound or a rule.
    """

    of: str = Field(description="ticket of the task or plan whose jobs these are")
    finding: str = Field(description="the confirmed finding that it is for")
    finding_sha256: str
    said: str = Field(description="the fix or workaround that the finding names")
    changes: tuple[Change, ...]
    diff: tuple[str, ...] = Field(description="what of it is text: the lines of a unified diff")

    @property
    def uses(self) -> tuple[str, ...]:
        """The digests that are signed: of the jobs, and of an environment that has to be built."""
        return (*self.builds, *super().uses)


def draft_plan(
    workspace: Workspace,
    task_ticket: str,
    checks: Iterable[str] = (),
    grid: Grid | None = None,
    attempts: int = ATTEMPTS,
) -> Plan:
    """The plan of a signed task: the jobs of these checks over a grid of settings; all that train by default.

    Raises `UsageError` (no such check, setting or task; more than `MAX_JOBS`), `BadInput`, and `Refused` when
    the target is not what the task names.
    """
    ticket = workspace.approvals.ticket(task_ticket)
    task, grid = task_of(ticket), dict(grid or {})
    refuse_undecided(ticket)
    refuse_changed(ticket, task)
    drafter = Drafter(workspace, Path(task.target))
    steps = _steps(drafter, checks)
    _refuse_unknown(drafter.pack, steps.values(), grid)
    rendered = drafter.renderer.jobs(_wanted(drafter.pack, steps.values(), grid)).unique()
    return Plan(
        jobs=rendered.jobs,
        texts=rendered.texts,
        task=ticket.id,
        task_sha256=ticket.request.content_sha256,
        checks=tuple(steps),
        grid=grid,
        attempts=attempts,
        cost=PlanCost(
            node_millihours=rendered.node_millihours, most_node_millihours=rendered.most_node_millihours
        ),
    )


def draft_rerun(workspace: Workspace, ticket_id: str, name: str) -> Plan:
    """One more run of a job of a task or a plan, unchanged: a plan of one job and one attempt.

    Raises `UsageError` for what is not there or not signed, `BadInput`, and `Refused` for a job that would
    not be what was signed: that is a fix (`plumbline_mcp.scan.fixing`) or another task.
    """
    ticket = workspace.approvals.ticket(ticket_id)
    covered = jobs_of(ticket)
    if isinstance(covered, Fix):
        again = f'plan_draft(task="{covered.of}", fix="{covered.finding}", rerun=JOB)'
        raise UsageError(f"{ticket.id} is a fix: its jobs run once more under a fix", f"ask for it: {again}")
    task = ticket if isinstance(covered, Task) else workspace.approvals.ticket(covered.task)
    refuse_undecided(task)
    known = covered.job(name)
    prepared = prepare(known.launch, "unnamed")
    job = planned_job(workspace, known.name, known.changed, prepared)
    if job.digest != known.digest:
        differences = "; ".join(job.content.differences(known.content))
        raise Refused(
            f"{known.name} would not be what {ticket.id} names: {differences[:600]}",
            "a rerun changes nothing: restore it; where a confirmed finding asks for the change, ask for a"
            f' fix: plan_draft(task="{ticket.id}", fix=FINDING); else draft a new task',
        )
    return Plan(
        jobs=(job,),
        texts={job.content.digests[TEXT]: job_text(prepared)},
        task=task.id,
        task_sha256=task.request.content_sha256,
        checks=(),
        grid={},
        attempts=1,
        cost=PlanCost(
            node_millihours=job.cost.node_millihours, most_node_millihours=job.cost.most_node_millihours
        ),
    )


def request_plan(
    workspace: Workspace,
    plan: Plan,
    requester: str,
    requester_uid: int | None = None,
    action: Action = Action.PLAN,
) -> Ticket:
    """Ask for a plan, a rerun or a fix: the ticket of it, or the open one of the same.

    Raises `Refused`, `UsageError`.
    """
    again = " once more" if action is Action.RERUN else ""
    procedures = ", ".join(dict.fromkeys(job.launch.procedure for job in plan.jobs)) + again
    task = task_of(workspace.approvals.ticket(plan.task))
    title = f"{len(plan.jobs)} job{'s' if len(plan.jobs) > 1 else ''} of {task.framework}: {procedures}"
    named = {TARGET_FILE: task.target_sha256}
    if isinstance(plan, Fix):
        action, title = Action.FIX, f"{fix_label(plan.finding)}: {title}"
        named = {TARGET_FILE: plan.target_sha256, "finding": plan.finding_sha256}
    return ask(
        workspace,
        action=action,
        title=title[:200],
        content=plan.model_dump(mode="json"),
        subjects=subjects(plan, named),
        requester=requester,
        requester_uid=requester_uid,
        under=plan.task,
        node_millihours=plan.cost.node_millihours,
        attempts=plan.attempts,
        uses=plan.uses,
    )


def jobs_of(ticket: Ticket) -> Task | Plan:
    """The task or plan of a ticket. Raises `UsageError` for a ticket that covers no job."""
    if ticket.request.action is Action.TASK:
        return task_of(ticket)
    if ticket.request.action in (Action.PLAN, Action.RERUN):
        return content_of(ticket, Plan)
    if ticket.request.action is Action.FIX:
        return content_of(ticket, Fix)
    raise UsageError(
        f"{ticket.id} is a {ticket.request.action.value}: it covers no job",
        "name the ticket of a task or a plan",
    )


def builder_of(ticket: Ticket) -> Aimed:
    """The task or fix of a ticket, which may build an environment. Raises `UsageError` when it is neither."""
    return content_of(ticket, Fix) if ticket.request.action is Action.FIX else task_of(ticket)


def refuse_undecided(ticket: Ticket) -> None:
    """Raise `UsageError` unless a ticket is signed."""
    if ticket.state not in (TicketState.APPROVED, TicketState.USED):
        kind = ticket.request.action
        comes = "a plan comes under a signed task" if kind is Action.TASK else "it has to be signed first"
        raise UsageError(
            f"the {kind} {ticket.id} is {ticket.state.value}: {comes}",
            f'approval_wait(ticket="{ticket.id}")'
            if ticket.state is TicketState.PENDING
            else f"draft the {kind} again",
        )


def _steps(drafter: Drafter, checks: Iterable[str]) -> dict[str, str]:
    """Check to procedure, of the checks that are wanted and train."""
    planned = planned_procedures(drafter.target)
    known = {step.name: step.procedure for step in drafter.target.scan_steps() if step.procedure in planned}
    chosen = list(checks) or list(known)
    for name in chosen:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"those that train: {', '.join(known) or 'none'}"
            raise UsageError(f"no job of this target trains for check {name[:80]!r}", hint)
    if not chosen:
        raise UsageError(
            "no step of this target trains, so there is nothing to plan",
            "the task covers all of it; name more steps in the target",
        )
    return {name: str(known[name]) for name in chosen}


def _refuse_unknown(pack: Pack, procedures: Iterable[str], grid: Grid) -> None:
    known = {name for procedure in procedures for name in pack.procedure_settings(procedure)}
    for name, values in grid.items():
        if name not in known:
            raise UsageError(
                f"no job of this plan has a setting {name[:80]!r}", setting_hint(name, sorted(known))
            )
        if not values:
            raise UsageError(f"the grid names no value of {name}", f'give a list: {{"{name}": [1, 2]}}')


def _wanted(pack: Pack, procedures: Iterable[str], grid: Grid) -> list[_Wanted]:
    """Name, procedure and changed settings of each job."""
    found: list[_Wanted] = []
    for procedure in dict.fromkeys(procedures):
        varied = {name: grid[name] for name in grid if name in pack.procedure_settings(procedure)}
        if len(found) + math.prod(map(len, varied.values())) > MAX_JOBS:
            raise UsageError(
                f"the grid has more than {MAX_JOBS} jobs",
                "vary fewer values at once: a reviewer reads each job",
            )
        for number, values in enumerate(itertools.product(*varied.values()), start=1):
            name = f"{procedure}-{number:03d}" if varied else procedure
            found.append((name, procedure, dict(zip(varied, values, strict=True))))
    return found
