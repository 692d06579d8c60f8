"""Approvals for the agent: see how a request stands, wait for it, take it back. No tool decides one."""

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import anyio
from mcp.server.mcpserver import Context
from mcp.types import ToolAnnotations
from pydantic import Field

from approvals.ticket import TicketState
from plumbline_mcp.server import cursors
from plumbline_mcp.server.roles import caller
from plumbline_mcp.server.toolset import Toolset
from plumbline_mcp.server.views import RESULT_LIMIT, Page, View, line, size, take

if TYPE_CHECKING:
    from approvals.ticket import Ticket

ASKS = ToolAnnotations(
    read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)
"""What is asked twice is one request."""
TAKES_BACK = ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False
)

WAIT_S = 45
"""Below the 60 s after which many clients drop a call."""
_MOST_WAIT_S = 280
_POLL_S = 1.0
_PROGRESS_S = 5.0
_PAGE = 50
_BRIEF = ("ticket", "state", "untrusted_reason", "expires_at", "next")

TicketArgument = Annotated[str, Field(description="e.g. A-5ba3ad3b8e-1")]


class ApprovalView(View):
    """How a request stands. Only `approved` may be started, and it is verified again at that moment."""

    ticket: str
    state: TicketState
    action: str
    untrusted_title: str
    requester: str
    node_hours: float
    uses_left: int
    tier: str = Field(description="T0 example, T1 same user, T2 another user, T3 and a hardware key")
    digest: str = Field(description="sha256 of the content that is signed")
    expires_at: str
    untrusted_reason: str = Field(description="the reviewer's")
    next: str


class ApprovalRow(View):
    """One line of the list."""

    ticket: str
    state: TicketState
    action: str
    untrusted_title: str
    requester: str
    node_hours: float


class ApprovalList(Page):
    """Requests, newest first."""

    approvals: tuple[ApprovalRow, ...]


def add_tools(toolset: Toolset) -> None:
    """Add ``approval_wait``, ``approval_list`` and ``approval_withdraw``."""

    async def approval_wait(
        ctx: Context,
        ticket: TicketArgument,
        max_s: Annotated[int, Field(ge=0, le=_MOST_WAIT_S, description="seconds")] = WAIT_S,
    ) -> ApprovalView:
        """Wait until a reviewer decided: pending, approved, rejected, expired, withdrawn or used.

        Pending is not approved: call again, or go on with what needs no approval. A person decides at a
        terminal; nothing an agent can call does.
        """
        return approval_view(await _decided(toolset, ctx, ticket, max_s))

    def approval_list(state: TicketState | None = None, cursor: str | None = None) -> ApprovalList:
        """List requests for approval, newest first."""
        return _list(toolset, state, cursor)

    def approval_withdraw(ticket: TicketArgument) -> ApprovalView:
        """Take your own request back, so that it can no longer be approved or used."""
        return approval_view(toolset.workspace.approvals.withdraw(ticket, caller().name))

    toolset.add(approval_wait, ApprovalView, title="Wait for an approval")
    toolset.add(approval_list, ApprovalList, title="List requests")
    toolset.add(
        approval_withdraw,
        ApprovalView,
        title="Withdraw a request",
        annotations=TAKES_BACK,
        outlined=_BRIEF,
    )


def approval_view(ticket: "Ticket") -> ApprovalView:
    """A ticket as the agent sees it."""
    request = ticket.request
    return ApprovalView(
        ticket=ticket.id,
        state=ticket.state,
        action=request.action.value,
        untrusted_title=line(request.title),
        requester=request.requester,
        node_hours=request.node_millihours / 1000,
        uses_left=ticket.uses_left,
        tier=ticket.tier,
        digest=request.content_sha256,
        expires_at=moment(ticket.expires),
        untrusted_reason=line(ticket.reason, 2000),
        next=next_call(ticket),
    )


def next_call(ticket: "Ticket") -> str:
    """What to do with a ticket in its state."""
    jobs = ticket.request.action in ("task", "plan", "rerun", "fix")
    return {
        TicketState.PENDING: f'approval_wait(ticket="{ticket.id}"); the reviewer: plumbline queue',
        TicketState.APPROVED: f'job_start(ticket="{ticket.id}", job=...)' if jobs else "do what it allows",
        TicketState.REJECTED: "change what the reason says, then draft it again",
        TicketState.EXPIRED: "draft it again: a new ticket has to be signed",
        TicketState.WITHDRAWN: "draft it again: a new ticket has to be signed",
        TicketState.USED: "job_list()" if jobs else "it was used; nothing is left to do",
    }[ticket.state]


def moment(seconds: int) -> str:
    """A time as it is shown: UTC, ISO 8601."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


async def _decided(toolset: Toolset, ctx: Context, ticket_id: str, max_s: int) -> "Ticket":
    """The ticket once it is no longer pending, or as it is when the time is over."""
    began = told = time.monotonic()
    while True:
        ticket = toolset.workspace.approvals.ticket(ticket_id)
        now = time.monotonic()
        if ticket.state is not TicketState.PENDING or now >= began + max_s:
            return ticket
        if now >= told + _PROGRESS_S:
            told = now
            await ctx.report_progress(now - began, max_s, f"{ticket.id} is pending")
        await anyio.sleep(min(_POLL_S, began + max_s - now))


def _list(toolset: Toolset, state: TicketState | None, cursor: str | None) -> ApprovalList:
    approvals = toolset.workspace.approvals
    asked = {"state": None if state is None else state.value}
    after = cursors.decode(cursor, "approval_list", asked)
    tickets = approvals.tickets(state, _PAGE + 1, None if after is None else str(after))
    head = ApprovalList(total=approvals.count(state), approvals=())
    rows = take((_row(ticket) for ticket in tickets[:_PAGE]), RESULT_LIMIT - size(head) - 500)
    more = len(rows) < len(tickets)
    return head.model_copy(
        update={
            "approvals": tuple(rows),
            "truncated": more,
            "cursor": cursors.encode("approval_list", asked, rows[-1].ticket) if more else None,
            "next": f'approval_wait(ticket="{rows[0].ticket}", max_s=0)'
            if rows
            else "task_draft(target=...)",
        }
    )


def _row(ticket: "Ticket") -> ApprovalRow:
    return ApprovalRow(
        ticket=ticket.id,
        state=ticket.state,
        action=ticket.request.action.value,
        untrusted_title=line(ticket.request.title, 120),
        requester=ticket.request.requester,
        node_hours=ticket.request.node_millihours / 1000,
    )
