"""What a request changes against the version of it that reviewers approved last."""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field

from approvals.decisions import signed_statement
from approvals.errors import Refused
from approvals.queue import Approvals
from approvals.screen.document import request_lines, shown_digest
from approvals.screen.rows import Kind, Row, head
from approvals.statement import Decision, Request
from approvals.ticket import Decided, Ticket
from approvals.visible import visible_line

CONTEXT = 3
"""Equal lines shown around a change."""
MAX_COMPARED = 2000
"""Lines between equal beginning and end that are matched one by one; more are shown as all old, all new."""
_PAGE = 50
_MAX_LOOKED_AT = 500
"""Earlier tickets that are looked at for a version that was approved."""

_Block = tuple[int, int, int, int]
"""``old[a:b]`` became ``new[c:d]``."""


@dataclass(frozen=True)
class Approved:
    """A version that was approved: its ticket, and who signed it with a signature that holds today."""

    ticket: Ticket
    signers: tuple[str, ...]
    issued: int


@dataclass(frozen=True)
class Comparison:
    """The request's lines and what is new in them."""

    approved: Approved | None
    new: list[str]
    rows: list[Row] = field(repr=False)
    changed: int
    """Lines added or removed."""
    sha256: str
    """Digest of the request that the lines show."""

    @property
    def summary(self) -> str:
        """In one line, for the facts."""
        if self.approved is None:
            return f"nothing like it was approved before: all {len(self.new)} lines are new"
        named = f"{self.approved.ticket.id}, approved by {', '.join(self.approved.signers)}"
        return f"{self.changed} lines differ from {named}" if self.changed else f"nothing: as {named}"


def compare(approvals: Approvals, ticket: Ticket) -> Comparison:
    """Hold a ticket's request against the last approved version."""
    approved, new = last_approved(approvals, ticket), request_lines(ticket.request)
    old = request_lines(approved.ticket.request) if approved else []
    blocks = changed_blocks(old, new)
    changed = sum(b - a + d - c for a, b, c, d in blocks)
    rows = list(_rows(old, new, blocks, CONTEXT if approved else 0))
    return Comparison(approved, new, rows, changed, shown_digest(new))


def last_approved(approvals: Approvals, ticket: Ticket) -> Approved | None:
    """The newest earlier version of the same kind of request whose signatures hold; None without one.

    A state in the database is not believed: whoever could write it could make a version that nobody
    approved the one to compare with, and hide what is new. The same kind is: the same action, and the same
    task, title, or a subject that is the same by digest.
    """
    after, looked_at = ticket.id, 0
    while looked_at < _MAX_LOOKED_AT and (page := approvals.tickets(limit=_PAGE, after=after)):
        for earlier in page:
            if _alike(earlier.request, ticket.request) and (held := _held(approvals, earlier)):
                return held
        after, looked_at = page[-1].id, looked_at + len(page)
    return None


def changed_blocks(old: list[str], new: list[str]) -> list[_Block]:
    """Where two lists of lines differ, in order."""
    first = next((n for n, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), None)
    start = min(len(old), len(new)) if first is None else first
    most = min(len(old), len(new)) - start
    backwards = zip(reversed(old), reversed(new), strict=False)
    end = next((n for n, pair in enumerate(backwards) if n >= most or pair[0] != pair[1]), most)
    left, right = old[start : len(old) - end], new[start : len(new) - end]
    if not left and not right:
        return []
    if max(len(left), len(right)) > MAX_COMPARED:
        return [(start, start + len(left), start, start + len(right))]
    matched = difflib.SequenceMatcher(None, left, right).get_opcodes()
    return [(start + a, start + b, start + c, start + d) for tag, a, b, c, d in matched if tag != "equal"]


def _rows(old: list[str], new: list[str], blocks: list[_Block], context: int) -> Iterator[Row]:
    """A unified diff; runs of equal lines are folded into one row that counts them."""
    done = 0
    for number, (a, b, c, d) in enumerate(blocks):
        yield from _equal(new[done:c], context if number else 0, context)
        yield from (Row(f"- {line}", Kind.REMOVED) for line in old[a:b])
        yield from (Row(f"+ {line}", Kind.ADDED) for line in new[c:d])
        done = d
    yield from _equal(new[done:], context if blocks else 0, 0)
    if not blocks:
        yield head("no line differs")


def _equal(lines: list[str], before: int, after: int) -> Iterator[Row]:
    """The first and last of equal lines, and how many there are between."""
    if len(lines) <= before + after + 1:
        yield from (Row(f"  {line}") for line in lines)
        return
    yield from (Row(f"  {line}") for line in lines[:before])
    yield Row(f"  … {len(lines) - before - after} equal lines (Raw shows them)", Kind.DIM)
    yield from (Row(f"  {line}") for line in lines[len(lines) - after :])


def _alike(one: Request, other: Request) -> bool:
    if one.action is not other.action:
        return False
    shared = set(one.subjects.items()) & set(other.subjects.items())
    return bool(shared) or one.title == other.title or (one.under == other.under != "")


def _held(approvals: Approvals, ticket: Ticket) -> Approved | None:
    """The ticket as an approved version, when enough different signatures about it hold today."""
    decisions = ticket.decisions
    if not decisions or any(each.decision is not Decision.APPROVE for each in decisions):
        return None
    try:
        needed = approvals.trust.policy().rule_for(ticket.request).signers
        signers = tuple(sorted({_signer(approvals, ticket, each) for each in decisions}))
    except Refused:
        return None
    enough = len(signers) >= needed
    return Approved(ticket, signers, max(each.issued for each in decisions)) if enough else None


def _signer(approvals: Approvals, ticket: Ticket, decided: Decided) -> str:
    """Who signed that this very request may be done. Raises `Refused` when the signature does not hold."""
    statement = signed_statement(decided.statement, decided.signature, approvals.trust)
    said = (statement.workspace, statement.ticket, statement.request_sha256, statement.decision)
    if said != (approvals.workspace_id, ticket.id, ticket.request.sha256, Decision.APPROVE):
        raise Refused(f"the statement is not about {visible_line(ticket.id)}", "have it signed again")
    return statement.signer
