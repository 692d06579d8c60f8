"""A task and a plan on a terminal: what they cover, each job's digest and cost, and what to do next."""

import json
from collections.abc import Callable
from typing import TypeVar

from approvals.ticket import Ticket, TicketState
from plumbline_mcp.cli.screen import console, labelled, print_json, table, untrusted
from plumbline_mcp.cli.ticket_view import plain
from plumbline_mcp.scan.costs import shown
from plumbline_mcp.scan.plan import Fix, Plan
from plumbline_mcp.scan.planned import Rendered
from plumbline_mcp.scan.task import Task

T = TypeVar("T")

_SHOWN_JOBS = 40
_SHOWN_CHANGES = 40


def asking(what: str, make: Callable[[], T], quiet: bool) -> T:
    """What ``make`` makes; a large model is read meanwhile."""
    from plumbline_mcp.cli.progress import shown_progress

    with shown_progress(what, quiet) as progress:
        progress(0, None, "rendering the jobs, and digesting what they run and read")
        return make()


def print_task(ticket: Ticket, task: Task, as_json: bool) -> None:
    """A task with its ticket."""
    if as_json:
        print_json(
            {"ticket": plain(ticket), "covers": task.covers, "checks": task.checks, "jobs": _plain(task)}
        )
        return
    environment = task.environment
    ready = "" if environment.built else ", to be built"
    facts = {
        "task:   ": f"{ticket.id} ({ticket.state.value}): {ticket.request.title}",
        "target: ": f"{task.target} (sha256 {task.target_sha256[:12]})",
        "runs in:": f" {environment.python} ({environment.kind}{ready}, {environment.digest[:12]})",
        "covers: ": ", ".join(task.covers),
        "checks: ": ", ".join(task.checks),
        "cap:    ": f"{shown(task.cap_node_millihours)}, its plans included",
    }
    _print(ticket, task, facts)


def print_plan(ticket: Ticket, plan: Plan, as_json: bool) -> None:
    """A plan with its ticket."""
    if as_json:
        told = {"ticket": plain(ticket), "task": plan.task, "checks": plan.checks, "jobs": _plain(plan)}
        if isinstance(plan, Fix):
            told["fix"] = plan.model_dump(mode="json", include={"finding", "said", "of", "changes", "diff"})
        print_json(told)
        return
    expected, most = shown(plan.cost.node_millihours), shown(plan.cost.most_node_millihours)
    facts = {
        "plan:   ": f"{ticket.id} ({ticket.state.value}): {ticket.request.title}",
        "under:  ": plan.task,
        "checks: ": ", ".join(plan.checks),
        "cost:   ": f"{expected} expected, {most} at most, an attempt of each job",
    }
    if isinstance(plan, Fix):
        facts |= {"fix of: ": f"{plan.of}, for {plan.finding}: {plan.said}"}
    _print(ticket, plan, facts)
    if isinstance(plan, Fix):
        _print_changes(plan)


def _print_changes(fix: Fix) -> None:
    """What a fix changes, by digest or value, and its text as a diff."""
    out = console()
    rows = (
        [untrusted(one.name), untrusted(one.before), untrusted(one.after), untrusted(", ".join(one.jobs))]
        for one in fix.changes[:_SHOWN_CHANGES]
    )
    out.print(table("changes", "signed", "now", "in", rows=rows))
    if len(fix.changes) > _SHOWN_CHANGES:
        out.print(f"and {len(fix.changes) - _SHOWN_CHANGES} more: --json lists all")
    for text in fix.diff:
        out.print(untrusted(f"│ {text}", limit=10**6), soft_wrap=True)


def _print(ticket: Ticket, rendered: Rendered, facts: dict[str, str]) -> None:
    out = console()
    for label, text in facts.items():
        out.print(labelled(label, text), soft_wrap=True)
    rows = (
        [
            untrusted(job.name),
            untrusted(", ".join(f"{name}={json.dumps(value)}" for name, value in job.changed.items())),
            untrusted(job.digest[:12]),
            untrusted(f"{job.cost.node_millihours / 1000:g}"),
            untrusted(job.cost.estimated),
        ]
        for job in rendered.jobs[:_SHOWN_JOBS]
    )
    if rendered.jobs:
        out.print(table("job", "changed", "digest", "node-hours", "as estimated", rows=rows))
    if len(rendered.jobs) > _SHOWN_JOBS:
        out.print(f"and {len(rendered.jobs) - _SHOWN_JOBS} more: --json lists all")
    out.print(labelled("next:   ", _next(ticket)), soft_wrap=True)


def _next(ticket: Ticket) -> str:
    if ticket.state is TicketState.PENDING:
        return f"plumbline queue approve {ticket.id}, or reject it"
    if ticket.state in (TicketState.APPROVED, TicketState.USED):
        return f"plumbline job start {ticket.id} JOB, or the tool job_start"
    return f"it is {ticket.state.value}: draft it again"


def _plain(rendered: Rendered) -> list[dict[str, object]]:
    return [
        {"name": job.name, "digest": job.digest, "changed": job.changed, **job.cost.model_dump()}
        for job in rendered.jobs
    ]
