"""Task and plan for the agent: drafted from a target and put before the reviewers. Nothing is run here."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import anyio.to_thread
from mcp.server.mcpserver import Context
from pydantic import Field, JsonValue

from approvals.ticket import TicketState
from plumbline_mcp.errors import UsageError
from plumbline_mcp.server.progress import reported
from plumbline_mcp.server.roles import caller, peer_uid
from plumbline_mcp.server.tools.approvals import ASKS, TicketArgument, moment, next_call
from plumbline_mcp.server.toolset import Toolset
from plumbline_mcp.server.views import RESULT_LIMIT, View, line, size, take, texts

if TYPE_CHECKING:
    from approvals.ticket import Ticket
    from plumbline_mcp.scan.calls import CheckCall
    from plumbline_mcp.scan.planned import PlannedJob, Rendered

_MOST_ATTEMPTS = 10
_SHOWN_CHANGES = 20
_OUTLINED = ("ticket", "state", "node_hours", "jobs", "calls", "next")


class JobRow(View):
    """One job that the signature would cover."""

    name: str
    digest: str
    untrusted_changed: dict[str, str] = Field(description="settings that differ from the recipe")
    node_hours: float
    estimated: str


class CallRow(View):
    """One check of the scan, and how it is called."""

    tool: str
    under: Literal["task", "plan"] = Field(description="which signature covers its jobs")
    jobs: tuple[str, ...] = Field(description="of this draft, whose runs it judges")
    run_argument: str | None = Field(description="takes the run id of such a job")
    arguments: dict[str, JsonValue]


class DraftView(View):
    """What was asked for. A reviewer sees it in full and signs it at a terminal."""

    ticket: str
    state: TicketState
    action: str
    untrusted_title: str
    covers: tuple[str, ...]
    node_hours: float = Field(description="of a task: the cap of it and its plans; of a plan: expected")
    most_node_hours: float = Field(description="one attempt of each job, at its time limit")
    attempts: int = Field(description="of each job")
    jobs_total: int
    jobs: tuple[JobRow, ...]
    calls: tuple[CallRow, ...] = Field((), description="the checks that judge what the jobs leave")
    digest: str
    expires_at: str
    next: str


def add_tools(toolset: Toolset) -> None:
    """Add ``task_draft`` and ``plan_draft``."""

    async def task_draft(
        ctx: Context,
        target: Annotated[str, Field(description="path of a target.toml")],
        node_hours: Annotated[
            float | None, Field(ge=0, le=1e6, description="cap; by default what the whole scan can take")
        ] = None,
    ) -> DraftView:
        """Ask for a task: building the environment, dry run, checks without training, the first run.

        Nothing is built or started. The same draft is the same ticket. Next: approval_wait.
        """
        return await _drafted(ctx, partial(_task, toolset, ctx, target, node_hours))

    async def plan_draft(
        ctx: Context,
        task: TicketArgument,
        checks: Annotated[list[str] | None, Field(description="by default all that train")] = None,
        grid: Annotated[
            dict[str, list[JsonValue]] | None,
            Field(description='settings to vary, at most 200 jobs: {"learning_rate": [1e-5, 1e-4]}'),
        ] = None,
        attempts: Annotated[int, Field(ge=1, le=_MOST_ATTEMPTS, description="of each job")] = 2,
        rerun: Annotated[
            str | None, Field(description="instead: a job of `task`, or of that plan, once more")
        ] = None,
        fix: Annotated[
            str | None,
            Field(
                description="a confirmed finding: its jobs (or `rerun`) as the change made for it left them"
            ),
        ] = None,
    ) -> DraftView:
        """Ask for the jobs that train, under a signed task: each rendered, by digest, with its cost."""
        if (rerun or fix) and (checks or grid):
            kind = "fix" if fix else "rerun"
            raise UsageError(
                f"a {kind} takes neither checks nor a grid", f"leave them out, or leave {kind} out"
            )
        if fix is not None:
            return await _drafted(ctx, partial(_fix, toolset, ctx, task, fix, rerun, attempts))
        if rerun is not None:
            return await _drafted(ctx, partial(_rerun, toolset, ctx, task, rerun))
        return await _drafted(ctx, partial(_plan, toolset, ctx, task, checks or [], grid or {}, attempts))

    toolset.add(task_draft, DraftView, title="Draft a task", annotations=ASKS)
    toolset.add(plan_draft, DraftView, title="Draft a plan", annotations=ASKS, outlined=_OUTLINED)


async def _drafted(ctx: Context, draft: Callable[[], DraftView]) -> DraftView:
    """A large model takes minutes to digest: the client hears that the work goes on."""
    async with reported(ctx):
        return await anyio.to_thread.run_sync(draft)


def _task(toolset: Toolset, ctx: Context, target: str, node_hours: float | None) -> DraftView:
    from plumbline_mcp.scan.calls import check_calls
    from plumbline_mcp.scan.task import draft_task, request_task  # takes long to import
    from plumbline_mcp.server.located import located

    task = draft_task(toolset.workspace, located(toolset, target), node_hours)
    ticket = request_task(toolset.workspace, task, caller().name, peer_uid(ctx))
    covers = (*task.covers, *(f"check {name}" for name in task.checks))
    return _view(ticket, task, covers, check_calls(task, task.jobs))


def _plan(
    toolset: Toolset,
    ctx: Context,
    task: str,
    checks: list[str],
    grid: dict[str, list[JsonValue]],
    attempts: int,
) -> DraftView:
    from plumbline_mcp.scan.calls import check_calls
    from plumbline_mcp.scan.plan import draft_plan, request_plan
    from plumbline_mcp.scan.task import task_of

    plan = draft_plan(toolset.workspace, task, checks, grid, attempts)
    ticket = request_plan(toolset.workspace, plan, caller().name, peer_uid(ctx))
    calls = check_calls(task_of(toolset.workspace.approvals.ticket(plan.task)), plan.jobs, plan.checks)
    return _view(ticket, plan, tuple(f"check {name}" for name in plan.checks), calls)


def _rerun(toolset: Toolset, ctx: Context, ticket_id: str, job: str) -> DraftView:
    from approvals.statement import Action
    from plumbline_mcp.scan.plan import draft_rerun, request_plan

    plan = draft_rerun(toolset.workspace, ticket_id, job)
    ticket = request_plan(toolset.workspace, plan, caller().name, peer_uid(ctx), Action.RERUN)
    return _view(ticket, plan, (f"once more: {job}",))


def _fix(
    toolset: Toolset, ctx: Context, ticket_id: str, finding: str, job: str | None, attempts: int
) -> DraftView:
    from plumbline_mcp.scan.fixing import draft_fix
    from plumbline_mcp.scan.plan import request_plan

    fix = draft_fix(toolset.workspace, ticket_id, finding, job, attempts)
    ticket = request_plan(toolset.workspace, fix, caller().name, peer_uid(ctx))
    covers = (f"fix for {finding}", *(f"check {name}" for name in fix.checks))
    changes = (
        f"{line(one.name, 80)}: {line(one.before, 80)} -> {line(one.after, 80)}" for one in fix.changes
    )
    return _view(ticket, fix, (*covers, *itertools.islice(changes, _SHOWN_CHANGES)))


def _view(
    ticket: "Ticket", rendered: "Rendered", covers: tuple[str, ...], calls: "tuple[CheckCall, ...]" = ()
) -> DraftView:
    head = DraftView(
        ticket=ticket.id,
        state=ticket.state,
        action=ticket.request.action.value,
        untrusted_title=line(ticket.request.title),
        covers=covers,
        node_hours=ticket.request.node_millihours / 1000,
        most_node_hours=rendered.most_node_millihours / 1000,
        attempts=ticket.request.attempts,
        jobs_total=len(rendered.jobs),
        jobs=(),
        calls=tuple(map(_call, calls)),
        digest=ticket.request.content_sha256,
        expires_at=moment(ticket.expires),
        next=next_call(ticket),
    )
    rows = take(map(_row, rendered.jobs), RESULT_LIMIT - size(head))
    return head.model_copy(update={"jobs": tuple(rows)})


def _call(call: "CheckCall") -> CallRow:
    return CallRow(
        tool=f"check_{call.check}",
        under=call.under,
        jobs=tuple(line(name) for name in call.jobs),
        run_argument=call.run_argument,
        arguments=dict(call.arguments),
    )


def _row(job: "PlannedJob") -> JobRow:
    return JobRow(
        name=job.name,
        digest=job.digest,
        untrusted_changed=texts(job.changed),
        node_hours=job.cost.node_millihours / 1000,
        estimated=line(job.cost.estimated),
    )
