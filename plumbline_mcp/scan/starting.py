"""Starts a job of a signed task or plan: what would run now is held against what was signed.

The launch comes out of the signed content, never from the caller. Which attempt it is follows from the runs:
one that is still active, or succeeded, is answered; after a failure the next attempt is taken. So a call that
is made again, because its answer was lost, starts nothing twice.
"""

from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread

from approvals.errors import Refused
from approvals.tables import use_rows
from approvals.ticket import Ticket, TicketState
from checks.check import Progress, silent
from plumbline_mcp.engines.admission import altered
from plumbline_mcp.engines.contents import Contents
from plumbline_mcp.engines.engine import Approved, State
from plumbline_mcp.engines.environments import is_built
from plumbline_mcp.engines.job_digest import TEXT, job_content, job_text
from plumbline_mcp.engines.launching import prepare
from plumbline_mcp.engines.local.engine import UNSTARTED, LocalEngine
from plumbline_mcp.errors import UsageError
from plumbline_mcp.scan.fixing import hold_fix
from plumbline_mcp.scan.plan import Fix, builder_of, jobs_of
from plumbline_mcp.scan.planned import PlannedJob
from plumbline_mcp.scan.target import load_target, planned_python, prepared_python
from plumbline_mcp.scan.task import refuse_changed
from plumbline_mcp.workspace import Workspace


@dataclass(frozen=True)
class Started:
    """A job under an approval, started by this call or by an earlier one."""

    run_id: str
    attempt: int
    new: bool


def covered_job(workspace: Workspace, ticket_id: str, name: str) -> tuple[Ticket, PlannedJob]:
    """A ticket and its job of that name. Raises `Refused` and `UsageError` for what is not there."""
    ticket = workspace.approvals.ticket(ticket_id)
    try:
        return ticket, jobs_of(ticket).job(name)
    except UsageError as error:
        raise UsageError(f"{ticket_id}: {error.message}", error.next_step) from error


def start_job(
    workspace: Workspace,
    ticket_id: str,
    name: str,
    attempt: int | None = None,
    engine: LocalEngine | None = None,
) -> Started:
    """Start the job of that name. Raises `Refused` when it is not approved as it is, or its cap is used.

    Raises `UsageError`, `BadInput` and `BuildError` when it cannot be launched at all.
    """
    ticket, job = covered_job(workspace, ticket_id, name)
    engine = engine or LocalEngine(workspace)
    refuse_closed(ticket)
    if attempt is None:
        found, attempt = _standing(workspace, engine, ticket, job)
        if found:
            return Started(found, attempt, new=False)
    elif attempt in _runs(workspace, ticket, job):
        raise Refused(
            f"attempt {attempt} of {job.name} was used: run {_runs(workspace, ticket, job)[attempt]}",
            "leave `attempt` out: the next one is taken after a failure",
        )
    if attempt > ticket.request.attempts:
        raise Refused(
            f"{ticket.id} allows {ticket.request.attempts} attempts of {job.name}, not {attempt}",
            f"ask for {_once_more(ticket, job)}",
        )
    hold_fix(workspace, ticket)
    _refuse_altered(workspace, ticket, job)
    approved = Approved(ticket.id, attempt, job.cost.node_millihours)
    return Started(engine.submit(job.launch, approved=approved), attempt, new=True)


def refuse_closed(ticket: Ticket) -> None:
    """Raise `Refused`, with the reviewer's reason, for a ticket that can no longer be used."""
    said = f": {ticket.reason}" if ticket.reason else ""
    again = {
        TicketState.REJECTED: "change what was rejected, then draft it again",
        TicketState.EXPIRED: "draft it again, and have the new ticket signed",
        TicketState.WITHDRAWN: "draft it again, and have the new ticket signed",
    }
    if ticket.state in again:
        raise Refused(f"{ticket.id} is {ticket.state.value}{said}", again[ticket.state])


def _once_more(ticket: Ticket, job: PlannedJob) -> str:
    """The request under which a job whose attempts are used can run again."""
    covered = jobs_of(ticket)
    if isinstance(covered, Fix):
        return f'the fix again: plan_draft(task="{covered.of}", fix="{covered.finding}", rerun="{job.name}")'
    return f'a rerun: plan_draft(task="{ticket.id}", rerun="{job.name}")'


def _standing(
    workspace: Workspace, engine: LocalEngine, ticket: Ticket, job: PlannedJob
) -> tuple[str | None, int]:
    """The run that answers a call without an attempt, and its attempt; or None and the next attempt."""
    runs = _runs(workspace, ticket, job)
    if not runs:
        return None, 1
    last = max(runs)
    status = engine.status(runs[last])
    started = status.state in (State.QUEUED, State.RUNNING) and status.reason != UNSTARTED
    if started or status.state is State.SUCCEEDED:
        return runs[last], last
    return None, last + (0 if status.reason == UNSTARTED else 1)


def _runs(workspace: Workspace, ticket: Ticket, job: PlannedJob) -> dict[int, str]:
    """The runs of a job under a ticket, by attempt."""
    keys = {
        number: Approved(ticket.id, number).key(job.digest)
        for number in range(1, ticket.request.attempts + 1)
    }
    found = {number: workspace.run_of_key(key) for number, key in keys.items()}
    return {number: run.run_id for number, run in found.items() if run is not None}


def _refuse_altered(workspace: Workspace, ticket: Ticket, job: PlannedJob) -> None:
    """Raise `Refused` that names each part of the job that is not what was signed."""
    prepared = prepare(job.launch, "unnamed")
    found = job_content(prepared, Contents(workspace.home))
    if found.digest != job.digest:
        signed = jobs_of(ticket).texts[job.content.digests[TEXT]]
        raise altered(job.content, found, ticket.id, job_text(prepared), signed)


async def build_environment(workspace: Workspace, ticket_id: str, progress: Progress = silent) -> Path:
    """Build the environment of a signed task or fix; returns its interpreter. One that is there is not built
    again.

    Raises `Refused` (not approved, its attempts are used, the target is another one), `UsageError` and
    `BuildError`.
    """
    ticket = workspace.approvals.ticket(ticket_id)
    signed = builder_of(ticket)
    python = Path(signed.environment.python)
    if not signed.builds:
        raise UsageError(f"{ticket.id} covers no building: {python} was there", "start its jobs")
    refuse_closed(ticket)
    refuse_changed(ticket, signed)
    hold_fix(workspace, ticket)
    if is_built(python):
        workspace.approvals.verify(ticket.id)
        return python
    target, images = load_target(Path(signed.target)), workspace.home / "images"
    wanted, _ = await anyio.to_thread.run_sync(planned_python, target, images)
    _refuse_other_environment("would be", wanted, ticket, python)  # before pip sees a list that nobody signed
    _consume_build(workspace, ticket, signed.environment.digest)
    made = await prepared_python(target, images, progress)
    _refuse_other_environment("was", made, ticket, python)
    return made


def _refuse_other_environment(tense: str, found: Path, ticket: Ticket, signed: Path) -> None:
    """Raise `Refused` for another environment: the place of each follows from what it is built of."""
    if found != signed:
        raise Refused(
            f"{found} {tense} built, and {ticket.id} names {signed}: the requirements, torch or Python are"
            " others than at drafting",
            "restore them, or draft the task again and have that signed",
        )


def _consume_build(workspace: Workspace, ticket: Ticket, use: str) -> None:
    with workspace.write_tx() as database:
        used = [row.attempt for row in use_rows(database.conn, ticket.id) if row.use_sha256 == use]
        workspace.approvals.consume(ticket.id, use, max(used, default=0) + 1)
