"""Jobs: started under an approval alone; how they stand, their logs while they run, and their end."""

import asyncio
import codecs
import json
from typing import TYPE_CHECKING, Annotated, Literal

import anyio.to_thread
from mcp.server.mcpserver import Context
from mcp.types import ToolAnnotations
from pydantic import Field

from approvals.ticket import TicketState
from approvals.visible import visible
from checks.check import Progress
from plumbline_mcp.server import cursors
from plumbline_mcp.server.located import known_run, sealed_run
from plumbline_mcp.server.progress import reported
from plumbline_mcp.server.tools.approvals import ASKS, TicketArgument, moment, next_call
from plumbline_mcp.server.toolset import Toolset
from plumbline_mcp.server.views import RESULT_LIMIT, Page, View, line, size, take

if TYPE_CHECKING:
    from approvals.ticket import Ticket
    from plumbline_mcp.engines.local.engine import LocalEngine
    from plumbline_mcp.workspace import StoredRun

ENDS = ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False
)
"""To end a job loses what it had still to do; to end it twice changes nothing more."""

ENVIRONMENT = "environment"
_PAGE = 50
_LOG_BYTES = 16_384
_TEXT_BUDGET = RESULT_LIMIT - 2_000
_MOST_GRACE_S = 600

_RunId = Annotated[str, Field(description="the job's run, e.g. load-0001")]


class JobView(View):
    """How one job stands."""

    run_id: str
    state: Literal["queued", "running", "succeeded", "failed", "cancelled", "timed_out", "lost"]
    untrusted_reason: str
    procedure: str
    ranks: int
    failed_rank: int | None = Field(description="the first rank that failed; the others were stopped")
    exit_code: int | None
    signal: int | None
    submitted: str
    started: str
    ended: str
    approval: str
    confinement: str = Field(description="what holds the job, and what that cannot hold")
    next: str


class JobRow(View):
    """One line of the list."""

    run_id: str
    state: str
    procedure: str
    submitted: str
    untrusted_reason: str


class JobList(Page):
    """Jobs, newest first."""

    jobs: tuple[JobRow, ...]


class JobLog(View):
    """A page of a log."""

    run_id: str
    log: str
    offset: int = Field(description="byte at which the text begins")
    next_offset: int = Field(description="pass it as offset for what follows")
    dropped: int = Field(description="bytes right before this page that were not kept")
    size: int = Field(description="bytes that the job wrote so far")
    state: str
    untrusted_text: str
    next: str


class JobStart(View):
    """What became of a start. `approval_required`: nothing was started, a reviewer has to sign first."""

    status: Literal["approval_required", "started", "already_started", "built"]
    ticket: str
    job: str
    digest: str
    attempt: int | None
    run_id: str | None
    expires_at: str
    next: str


def add_tools(toolset: Toolset) -> None:
    """Add ``job_start``, ``job_list``, ``job_status``, ``job_logs`` and ``job_cancel``."""
    builds: dict[str, asyncio.Task[None]] = {}

    async def job_start(
        ctx: Context,
        ticket: TicketArgument,
        job: Annotated[str, Field(description="its name in the task or plan; `environment` builds that")],
        attempt: Annotated[int | None, Field(ge=1, description="by default the next after a failure")] = None,
    ) -> JobStart:
        """Start a job of a signed task or plan, exactly as it was signed; verified now, each attempt once.

        Called again while it runs, or after it succeeded, it answers with the same run.
        """
        async with reported(ctx) as progress:
            if job == ENVIRONMENT:
                return await _built(toolset, builds, ticket, progress)
            return await anyio.to_thread.run_sync(_started, toolset, ticket, job, attempt)

    def job_list(cursor: str | None = None) -> JobList:
        """List jobs, newest first, with their state."""
        return _list(toolset, cursor)

    def job_status(run_id: _RunId) -> JobView:
        """Say how a job stands: state, reason, the first rank that failed, approval, confinement."""
        return _status(toolset, run_id)

    def job_logs(
        run_id: _RunId,
        rank: Annotated[int, Field(ge=-1, description="-1: of the launcher that starts the ranks")] = 0,
        stream: Literal["out", "err"] = "err",
        offset: Annotated[int, Field(description="byte; negative counts from the end")] = -_LOG_BYTES,
    ) -> JobLog:
        """Read a page of a rank's log, also while it runs; its end by default."""
        return _logs(toolset, run_id, rank, stream, offset)

    def job_cancel(
        run_id: _RunId,
        grace_s: Annotated[
            float | None, Field(ge=0, le=_MOST_GRACE_S, description="seconds after SIGTERM; 3 by default")
        ] = None,
    ) -> JobView:
        """End a job with all that it started; what it recorded is sealed. One that is over stays as it is."""
        _engine(toolset).cancel(known_run(toolset, run_id).run_id, grace_s, why="cancelled over MCP")
        return _status(toolset, run_id)

    toolset.add(job_start, JobStart, title="Start an approved job", annotations=ASKS)
    toolset.add(job_list, JobList, title="List jobs")
    toolset.add(job_status, JobView, title="Status of a job")
    toolset.add(job_logs, JobLog, title="Read a job's log")
    toolset.add(job_cancel, JobView, title="End a job", annotations=ENDS)


def _started(toolset: Toolset, ticket_id: str, name: str, attempt: int | None) -> JobStart:
    from plumbline_mcp.scan.starting import covered_job, start_job

    ticket, job = covered_job(toolset.workspace, ticket_id, name)
    if ticket.state is TicketState.PENDING:
        return _start(ticket, job.name, job.digest)
    started = start_job(toolset.workspace, ticket_id, name, attempt)
    return _start(ticket, job.name, job.digest).model_copy(
        update={
            "status": "started" if started.new else "already_started",
            "attempt": started.attempt,
            "run_id": started.run_id,
            "next": f'job_status(run_id="{started.run_id}")',
        }
    )


def _start(ticket: "Ticket", job: str, digest: str) -> JobStart:
    """The answer while nothing was started."""
    return JobStart(
        status="approval_required",
        ticket=ticket.id,
        job=job,
        digest=digest,
        attempt=None,
        run_id=None,
        expires_at=moment(ticket.expires),
        next=next_call(ticket),
    )


async def _built(
    toolset: Toolset, builds: "dict[str, asyncio.Task[None]]", ticket_id: str, progress: Progress
) -> JobStart:
    """Build the environment of a task or fix. A client that gives up waiting ends nothing: the same call
    joins it.
    """
    from plumbline_mcp.scan.plan import builder_of
    from plumbline_mcp.scan.starting import build_environment
    from plumbline_mcp.scan.task import BUILD

    ticket = toolset.workspace.approvals.ticket(ticket_id)
    signed = builder_of(ticket)
    answer = _start(ticket, BUILD, signed.environment.digest)
    if ticket.state is TicketState.PENDING and signed.builds:
        return answer

    async def build() -> None:
        await build_environment(toolset.workspace, ticket_id, progress)

    if ticket_id not in builds or builds[ticket_id].done():
        builds[ticket_id] = asyncio.get_running_loop().create_task(build())
    await asyncio.shield(builds[ticket_id])
    first = next(iter(signed.jobs), None)
    following = f'job_start(ticket="{ticket_id}", job="{first.name}")' if first else "scan_status()"
    return answer.model_copy(update={"status": "built", "next": following})


def _engine(toolset: Toolset) -> "LocalEngine":
    from plumbline_mcp.engines.local.engine import LocalEngine  # the database takes long to import

    return LocalEngine(toolset.workspace)


def _list(toolset: Toolset, cursor: str | None) -> JobList:
    after = cursors.decode(cursor, "job_list", {})
    stored = toolset.workspace.runs_list(None, _PAGE + 1, None if after is None else str(after))
    head = JobList(total=toolset.workspace.run_count(), jobs=())
    rows = take((_row(toolset, run) for run in stored[:_PAGE]), RESULT_LIMIT - size(head) - 500)
    more = len(rows) < len(stored)
    return head.model_copy(
        update={
            "jobs": tuple(rows),
            "truncated": more,
            "cursor": cursors.encode("job_list", {}, rows[-1].run_id) if more else None,
            "next": f'job_status(run_id="{rows[0].run_id}")' if rows else "scan_status()",
        }
    )


def _row(toolset: Toolset, run: "StoredRun") -> JobRow:
    known = _engine(toolset).seen(run.run_id)
    return JobRow(
        run_id=run.run_id,
        state=known.state,
        procedure=line(run.job.procedure),
        submitted=known.submitted,
        untrusted_reason=line(known.reason),
    )


def _status(toolset: Toolset, run_id: str) -> JobView:
    run = known_run(toolset, run_id)
    known = _engine(toolset).seen(run_id)
    return JobView(
        run_id=run_id,
        state=known.state.value,
        untrusted_reason=line(known.reason),
        procedure=line(run.job.procedure),
        ranks=run.job.world_size,
        failed_rank=known.failed_rank,
        exit_code=known.exit_code,
        signal=known.signal,
        submitted=known.submitted,
        started=known.started,
        ended=known.ended,
        approval=line(run.job.approval),
        confinement=line(run.job.confinement),
        next=_next(run_id, known.state.value, known.failed_rank),
    )


def _next(run_id: str, state: str, failed_rank: int | None) -> str:
    if state in ("queued", "running"):
        return f'job_status(run_id="{run_id}") again, or job_logs(run_id="{run_id}")'
    if state in ("failed", "timed_out"):
        return f'job_logs(run_id="{run_id}", rank={failed_rank or 0})'
    return (
        f'run_show(run_id="{run_id}")'
        if state == "succeeded"
        else "job_start(ticket, job) again, where it ran under an approval"
    )


def _logs(toolset: Toolset, run_id: str, rank: int, stream: Literal["out", "err"], offset: int) -> JobLog:
    from plumbline_mcp.engines.logs import log_name, read_log

    known = _engine(toolset).seen(run_id := known_run(toolset, run_id).run_id)
    whose = None if rank < 0 else rank
    if toolset.workspace.run(run_id).state == "sealed":
        run = sealed_run(toolset, run_id)
        if log_name(whose, stream) in run.manifest:
            run.verified(log_name(whose, stream))  # what was changed after sealing is refused
    page = read_log(toolset.workspace.runs / run_id, whose, stream, offset, _LOG_BYTES)
    text, used = _fitting(page.data, at_end=page.next_offset >= page.size)
    following = page.offset + used
    more = following < page.size or not known.state.over
    return JobLog(
        run_id=run_id,
        log=page.log,
        offset=page.offset,
        next_offset=following,
        dropped=page.dropped,
        size=page.size,
        state=known.state.value,
        untrusted_text=text,
        next=f'job_logs(run_id="{run_id}", rank={rank}, stream="{stream}", offset={following})'
        if more
        else "",
    )


def _fitting(data: bytes, *, at_end: bool) -> tuple[str, int]:
    """The beginning of the data as visible text that fits an answer, and how many bytes it is.

    A character that is cut at the end of a page is left to the next one.
    """
    while True:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(data, final=at_end)
        used = len(data) - len(decoder.getstate()[0])
        shown = visible(text, 20 * len(text) + 1)
        if len(json.dumps(shown, ensure_ascii=False).encode()) <= _TEXT_BUDGET or len(data) < 2:
            return shown, used
        data, at_end = data[: len(data) // 2], False
