"""A request as a reviewer reads it on a terminal: every text of the requester is made visible first."""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from approvals.accounts import names_of_requester
from approvals.statement import Request
from approvals.ticket import Ticket, TicketState
from plumbline_mcp.cli.screen import console, table, untrusted
from plumbline_mcp.errors import UsageError

_STYLE = {
    TicketState.PENDING: "yellow",
    TicketState.APPROVED: "green",
    TicketState.USED: "green",
    TicketState.REJECTED: "bold red",
}
_BRIEF = ("ticket", "what", "expires", "reason")
_SIGNED = ("ticket", "what", "asked by", "node-hours", "rule", "tier", "request")
_MAX_FILE = 64 * 1024
_SHOWN_SUBJECTS = 50


def plain(ticket: Ticket) -> dict[str, Any]:
    """A ticket as JSON, with the digests that are signed."""
    digests = {"content_sha256": ticket.request.content_sha256, "request_sha256": ticket.request.sha256}
    return ticket.model_dump(mode="json") | digests


def ticket_table(tickets: Iterable[Ticket]) -> Table:
    """A line for each ticket."""
    cells = (
        [
            untrusted(ticket.id).append(f"\n{_day(ticket.created)}", "dim"),
            _state(ticket),
            untrusted(ticket.request.requester),
            untrusted(_hours(ticket)),
            untrusted(f"{ticket.request.action.value}: {ticket.request.title}"),
        ]
        for ticket in tickets
    )
    return table("ticket, asked (UTC)", "state", "asked by", "node-hours", "what", rows=cells)


def print_ticket(ticket: Ticket, brief: bool = False, stderr: bool = False) -> None:
    """Facts, and unless ``brief`` what it acts on, what was decided and the content that is signed.

    ``stderr``: beside an answer in JSON.
    """
    out = console(stderr=stderr)
    rows = [*_rows(ticket, _BRIEF if brief else None), [untrusted("state"), _state(ticket)]]
    out.print(table("of the request", "value", rows=rows))
    if brief:
        return
    if ticket.request.subjects:
        out.print(table("acts on", "sha256", rows=_subjects(ticket)))
    if ticket.decisions:
        decided = (
            [
                untrusted(each.decision.value),
                untrusted(f"{each.signer}{' (asked for it too)' if each.self_approved else ''}"),
                untrusted(each.tier),
                untrusted(_day(each.issued)),
                untrusted(each.reason),
            ]
            for each in ticket.decisions
        )
        out.print(table("decision", "by", "tier", "when (UTC)", "reason", rows=decided))
    out.print(Text("content:", style="bold"))
    for line in json.dumps(ticket.request.content, indent=2, sort_keys=True).splitlines():
        out.print(untrusted(f"│ {line}", limit=10**7), soft_wrap=True)


def print_before_signing(ticket: Ticket, decision: str, stderr: bool = False) -> None:
    """The whole request, and below it once more what counts: a content may be longer than the screen."""
    print_ticket(ticket, stderr=stderr)
    rows = [[untrusted("decision"), untrusted(decision)], *_rows(ticket, _SIGNED)]
    console(stderr=stderr).print(table("to be signed", "value", rows=rows))


def small_text(path: Path) -> str:
    """The text of a statement or a signature. Raises `UsageError` for what cannot be one."""
    with path.open("rb") as file:
        data = file.read(_MAX_FILE + 1)
    if len(data) > _MAX_FILE or not data.isascii():
        raise UsageError(f"{path} is no statement and no signature", "name what --statement-to wrote")
    return data.decode("ascii")


def _asked_by(request: Request) -> str:
    """The requester, and the account where it has another name."""
    name, *account = names_of_requester(request)
    return name if account in ([], [name]) else f"{name} (account {account[0]})"


def _rows(ticket: Ticket, shown: tuple[str, ...] | None = None) -> list[list[Text]]:
    """What there is of these facts, by name; all of them by default."""
    request = ticket.request
    facts: dict[str, object] = {
        "ticket": ticket.id,
        "what": f"{request.action.value}: {request.title}",
        "asked by": _asked_by(request),
        "under": request.under,
        "node-hours": _hours(ticket),
        "uses left": f"{ticket.uses_left} of {len(request.allowed_uses) * request.attempts}",
        "rule": ticket.rule,
        "tier": ticket.tier,
        "expires": f"{_day(ticket.expires)} UTC ({_left(ticket)})",
        "reason": ticket.reason,
        "content": f"sha256 {request.content_sha256}",
        "request": f"sha256 {request.sha256}",
        "evidence": ", ".join(request.evidence),
    }
    return [[untrusted(name), untrusted(facts[name], limit=4000)] for name in shown or facts if facts[name]]


def _subjects(ticket: Ticket) -> list[list[Text]]:
    named = sorted(ticket.request.subjects.items())
    rows = [[untrusted(name), untrusted(sha256)] for name, sha256 in named[:_SHOWN_SUBJECTS]]
    more = len(named) - len(rows)
    return [*rows, [untrusted(f"and {more} more: --json lists all"), untrusted("")]] if more else rows


def _state(ticket: Ticket) -> Text:
    text = ticket.state.value
    if ticket.state is TicketState.PENDING and ticket.decisions:
        text += f", {len(ticket.decisions)} signed"
    return Text(text, style=_STYLE.get(ticket.state, "dim"))


def _hours(ticket: Ticket) -> str:
    return f"{ticket.request.node_millihours / 1000:g}"


def _day(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))


def _left(ticket: Ticket) -> str:
    left = ticket.expires - int(time.time())
    if left <= 0:
        return "over"
    hours, minutes = left // 3600, left % 3600 // 60
    return f"{hours // 24} d {hours % 24} h left" if hours >= 24 else f"{hours} h {minutes} min left"
