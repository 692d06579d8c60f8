"""What the screen says about one request, as rows: the facts on top, and a view for each question."""

import time
from dataclasses import dataclass
from enum import StrEnum

from approvals.audit import AuditLog
from approvals.errors import Refused
from approvals.policy import Rule
from approvals.queue import Approvals
from approvals.screen.comparison import Comparison
from approvals.screen.reviews import duration
from approvals.screen.rows import Kind, Row, head, labelled, quoted
from approvals.statement import Decision
from approvals.tables import use_rows
from approvals.ticket import Ticket, TicketState
from approvals.visible import visible_line

MAX_ENTRIES = 500
"""Entries of the audit log and earlier tickets in a history."""
_TITLE = 60
"""Characters of a title among the facts; the summary has all."""

_TIER = {
    "T0": "the example's key: keeps nobody apart",
    "T1": "one user asks and signs; the passphrase is the gate",
    "T2": "asked by another user",
    "T3": "asked by another user, signed with a token",
}


class View(StrEnum):
    """The views of a request, in the order of the tabs."""

    SUMMARY = "Summary"
    DIFF = "Diff"
    STATEMENT = "Statement"
    EVIDENCE = "Evidence"
    HISTORY = "History"
    RAW = "Raw"


@dataclass(frozen=True)
class Shown:
    """A ticket as it is on the screen."""

    ticket: Ticket
    comparison: Comparison
    rule: Rule | None
    """None where the policy of today has no such rule."""
    rejections: int
    """How often the same request was rejected before."""

    @property
    def sha256(self) -> str:
        """Digest of the request, computed from the lines that are shown."""
        return self.comparison.sha256


def facts(shown: Shown, now: int) -> list[Row]:
    """What a reviewer has to know first: what changes, cost, who asks, rule, tier, time left."""
    ticket, request = shown.ticket, shown.ticket.request
    under = f"under {request.under}" if request.under else ""
    again = f"rejected before: {shown.rejections}" if shown.rejections else ""
    rule = f"rule {ticket.rule} ({_signers(shown)})"
    return [
        Row(visible_line(f"{request.action.value}: {_clipped(request.title)}"), Kind.HEAD),
        *labelled(
            [
                ("changes", shown.comparison.summary),
                ("cost", _joined(cost(ticket), under)),
                ("asked by", _joined(request.requester, rule, again)),
                ("tier", f"{ticket.tier}: {_TIER.get(ticket.tier, 'unknown')}"),
                ("state", _joined(_state(ticket), _left(ticket, now))),
            ],
            width=8,
        ),
    ]


def summary(shown: Shown) -> list[Row]:
    """All facts in full, with the digests that were computed from what is shown."""
    ticket, request = shown.ticket, shown.ticket.request
    stored = "as the queue has it" if shown.sha256 == request.sha256 else "! NOT what the queue has"
    rows = labelled(
        [
            ("ticket", ticket.id),
            ("title", request.title),
            ("action", request.action.value),
            ("asked", _moment(ticket.created)),
            ("void from", _moment(ticket.expires)),
            ("uses left", f"{ticket.uses_left} of {len(request.allowed_uses) * request.attempts}"),
            ("reason", ticket.reason),
            ("request", f"sha256 {shown.sha256} ({stored})"),
            ("content", f"sha256 {request.content_sha256}"),
            ("policy", f"sha256 {ticket.policy_sha256}"),
        ]
    )
    rows.append(head(f"acts on {len(request.subjects)} things, by SHA-256"))
    rows += [
        row
        for name, sha256 in sorted(request.subjects.items())
        for row in (quoted(name), Row(f"│   {sha256}"))
    ]
    rows.append(head(f"allows {len(request.allowed_uses)} digests, each {request.attempts} times"))
    return rows + [Row(f"│ {each}") for each in request.allowed_uses]


def statement(approvals: Approvals, shown: Shown) -> list[Row]:
    """The bytes that an approval would sign now; the dialog shows and signs its own, with the reason."""
    try:
        signer = approvals.trust.local_signer()
        reason = "(the reason that you give)"
        drafted = approvals.draft(shown.ticket.id, Decision.APPROVE, signer, reason, seen=shown.sha256)
    except Refused as refused:
        return [head("no approval can be signed here"), *refusal(refused)]
    said = [head(f"an approval by {signer} would sign these {len(drafted.bytes())} bytes, with your reason:")]
    return [*said, quoted(drafted.bytes().decode("ascii")), *labelled([("sha256", drafted.sha256)])]


def evidence(shown: Shown) -> list[Row]:
    """What the requester names as evidence."""
    named = shown.ticket.request.evidence
    if not named:
        return [head("the request names no evidence")]
    return [
        head(f"{len(named)} named by {visible_line(shown.ticket.request.requester)}"),
        *map(quoted, named),
    ]


def history(approvals: Approvals, shown: Shown) -> list[Row]:
    """Decisions, uses, earlier tickets of the same request, and its entries in the audit log."""
    ticket = shown.ticket
    rows = [head(f"decisions: {len(ticket.decisions)}")]
    for each in ticket.decisions:
        own = " (asked for it too)" if each.self_approved else ""
        rows.append(
            quoted(f"{_moment(each.issued)} {each.decision.value} by {each.signer}{own}, {each.tier}")
        )
        rows += [quoted(f"  {each.reason}")] if each.reason else []
    uses = use_rows(approvals.connection, ticket.id)
    rows.append(head(f"uses: {len(uses)}"))
    rows += [
        quoted(f"{_moment(use.used)} {use.use_sha256} attempt {use.attempt}") for use in uses[:MAX_ENTRIES]
    ]
    rows.append(head("tickets of the same request"))
    rows += [
        quoted(f"{each.id} {each.state.value} {each.reason}") for each in same_request(approvals, ticket)
    ]
    rows.append(head("audit log"))
    entries = list(AuditLog(approvals.connection).matching("subject", ticket.id))
    rows += [quoted(f"{each.seq} {each.at} {each.event}") for each in entries[-MAX_ENTRIES:]]
    return rows


def raw(shown: Shown) -> list[Row]:
    """The whole request, line by line."""
    return [quoted(line) for line in shown.comparison.new]


def rows_of(view: View, approvals: Approvals, shown: Shown) -> list[Row]:
    """The rows of one view."""
    if view is View.DIFF:
        return shown.comparison.rows
    if view is View.STATEMENT:
        return statement(approvals, shown)
    if view is View.HISTORY:
        return history(approvals, shown)
    return {View.SUMMARY: summary, View.EVIDENCE: evidence, View.RAW: raw}[view](shown)


def refusal(refused: Refused) -> list[Row]:
    """A refusal and its next step."""
    rows = [Row(f"! {visible_line(refused.message, 1000)}", Kind.WARN)]
    return rows + ([Row(f"  next: {visible_line(refused.next_step, 1000)}")] if refused.next_step else [])


def same_request(approvals: Approvals, ticket: Ticket) -> list[Ticket]:
    """The other tickets that ask for the same, oldest first."""
    prefix = ticket.id.rpartition("-")[0]
    sql = "select id from requests where prefix = ? and id != ? order by n limit ?"
    found = approvals.connection.execute(sql, (prefix, ticket.id, MAX_ENTRIES)).fetchall()
    return [approvals.ticket(identifier) for (identifier,) in found]


def rejections(approvals: Approvals, ticket: Ticket) -> int:
    """How often the same request was rejected before."""
    return sum(each.state is TicketState.REJECTED for each in same_request(approvals, ticket))


def cost(ticket: Ticket) -> str:
    """Node-hours and how often something may run."""
    request = ticket.request
    uses = len(request.allowed_uses) * request.attempts
    return f"{request.node_millihours / 1000:g} node-hours, {uses} use{'s' if uses > 1 else ''}"


def list_lines(ticket: Ticket, now: int) -> tuple[str, str]:
    """A ticket in a list, not escaped yet: what, then which, who, time left and cost."""
    request = ticket.request
    left = _left(ticket, now) if ticket.state.open else ticket.state.value
    hours = f"{request.node_millihours / 1000:g} node-hours"
    return (
        f"{request.action.value}: {request.title}",
        f"  {ticket.id} · {request.requester} · {left} · {hours}",
    )


def _signers(shown: Shown) -> str:
    if shown.rule is None:
        return "which the policy of today does not have"
    signed = len({each.signer for each in shown.ticket.decisions if each.decision is Decision.APPROVE})
    return f"{signed} of {shown.rule.signers} signed"


def _state(ticket: Ticket) -> str:
    return "waits: NO DECISION yet" if ticket.state is TicketState.PENDING else ticket.state.value


def _left(ticket: Ticket, now: int) -> str:
    if not ticket.state.open:
        return ""
    return f"{duration(ticket.expires - now)} left" if ticket.expires > now else "expired"


def _joined(*parts: str) -> str:
    return " · ".join(part for part in parts if part)


def _clipped(title: str) -> str:
    return title if len(title) <= _TITLE else f"{title[:_TITLE]}… (all of it: Summary)"


def _moment(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
