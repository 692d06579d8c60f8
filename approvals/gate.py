"""Verification at the moment of use: rows, signed statements, policy and audit log held against one another.

Each row may have been edited by whoever owns the file, so each is believed only where a signature, or the
audit log (whose head reviewers sign), says the same.
"""

import hashlib
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from approvals import tables, witness
from approvals.audit import AuditEntry, AuditLog
from approvals.canonical import canonical, digest
from approvals.decisions import Asked, counted, rule_of_today
from approvals.errors import Refused
from approvals.origin import CREATED, Origin
from approvals.statement import Action, Decision, Request, Statement, stored_request
from approvals.tables import DecisionRow, RequestRow, UseRow
from approvals.trust import TrustRoots

REQUESTED = "approval_requested"
DECIDED = "approval_decided"
WITHDRAWN = "approval_withdrawn"
USED = "approval_used"

AGAIN = "request again, and have the new ticket signed"


@dataclass(frozen=True)
class Approved:
    """A ticket that holds at this moment."""

    row: RequestRow
    request: Request
    uses: list[UseRow]

    @property
    def uses_left(self) -> int:
        """How many uses it still has."""
        return uses_left(self.request, self.uses)


def uses_left(request: Request, uses: list[UseRow]) -> int:
    """How many uses a request still has."""
    return len(request.allowed_uses) * request.attempts - len(uses)


def ticket_prefix(workspace: str, request: Request) -> str:
    """What the tickets of the same request share: ``A-<10 hexadecimal digits>``."""
    named = [workspace, request.action.value, request.content_sha256, request.requester]
    return f"A-{digest(named)[:10]}"


class Gate:
    """The verification of one workspace; call it inside one transaction."""

    def __init__(self, connection: sqlite3.Connection, trust: TrustRoots, origin: Origin) -> None:
        self._connection = connection
        self._trust = trust
        self._origin = origin

    def hold(self, ticket_id: str, now: int) -> Approved:
        """The ticket, when it is approved and everything about it holds. Raises `Refused`."""
        self.hold_log()
        return self._hold(ticket_id, now)

    def hold_log(self) -> None:
        """Raise `Refused` when the log does not hold, or is another workspace's."""
        witness.refuse_broken_log(self._connection)
        self._hold_counts()
        noted = [
            (entry.subject, entry.detail.get("kind"))
            for entry in witness.entries(self._connection, "event", CREATED)
        ]
        if noted != [(self._origin.id, self._origin.kind)]:
            raise Refused(
                f"by the audit log this is not the {self._origin.kind} workspace {self._origin.id}",
                "restore a copy of the database, or begin a new workspace",
            )

    def _hold_counts(self) -> None:
        """No row without its entry, no entry without its row, whichever ticket it is about."""
        for table, event in (("requests", REQUESTED), ("decisions", DECIDED), ("uses", USED)):
            sql = f"select (select count(*) from {table}), (select count(*) from audit where event = ?)"  # noqa: S608 - our own names
            stored, noted = self._connection.execute(sql, (event,)).fetchone()
            if stored != noted:
                raise Refused(
                    f"there are {stored} {table}, and the audit log holds {noted}: rows or entries are gone",
                    "restore a copy of the database, or begin a new workspace",
                )

    def asked(self, ticket_id: str, now: int) -> Asked:
        """A request that may be decided or used now: as it was asked, open, under today's policy."""
        row = tables.request_row(self._connection, ticket_id)
        if row is None:
            raise Refused(f"there is no approval {ticket_id[:80]!r}", "see them: plumbline queue list")
        request = stored_request(row.request)
        self._hold_request(row, request)
        if row.expires <= now:
            raise Refused(f"{row.id} expired", AGAIN)
        return Asked(row, request, rule_of_today(row, request, self._trust.policy()), self._origin.id)

    def _hold_request(self, row: RequestRow, request: Request) -> None:
        """The row is the one that was asked, and was not taken back."""
        log = witness.entries(self._connection, "subject", row.id)
        asked = [entry.detail for entry in log if entry.event == REQUESTED]
        if request.sha256 != row.sha256 or asked != [row.facts()]:
            raise Refused(f"the request {row.id} is not the one that was asked: its row was changed", AGAIN)
        prefix = ticket_prefix(self._origin.id, request)
        if (row.prefix, row.id) != (prefix, f"{prefix}-{row.n}"):
            raise Refused(f"the ticket {row.id} is not that of its request", AGAIN)
        if any(entry.event == WITHDRAWN for entry in log):
            raise Refused(f"{row.id} was withdrawn", AGAIN)

    def _hold(self, ticket_id: str, now: int, task: bool = False) -> Approved:
        asked = self.asked(ticket_id, now)
        if task and asked.request.action is not Action.TASK:
            raise Refused(f"{ticket_id} is no task", "request it under the ticket of a signed task")
        self._hold_decisions(asked, now)
        uses = tables.use_rows(self._connection, ticket_id)
        self._hold_rows(asked.row.id, USED, [use.facts() for use in uses])
        if asked.request.under:
            self._hold(asked.request.under, now, task=True)
        return Approved(asked.row, asked.request, uses)

    def _hold_decisions(self, asked: Asked, now: int) -> None:
        """Enough different reviewers approved, none rejected, and every signature counts."""
        decisions = tables.decision_rows(self._connection, asked.row.id)
        self._hold_rows(asked.row.id, DECIDED, [decision.facts() for decision in decisions])
        statements = [self._signed(asked, decision, now) for decision in decisions]
        for statement in statements:
            if statement.decision is Decision.REJECT:
                raise Refused(
                    f"{asked.row.id} was rejected by {statement.signer}: {statement.reason}",
                    "change what was rejected, and request that",
                )
        signers = {statement.signer for statement in statements}
        if len(signers) < asked.rule.signers:
            raise Refused(
                f"{asked.row.id} has {len(signers)} of {asked.rule.signers} signatures"
                f" (rule {asked.rule.name!r}): pending is not approved",
                f"wait for a reviewer: plumbline queue approve {asked.row.id}",
            )

    def _signed(self, asked: Asked, decision: DecisionRow, now: int) -> Statement:
        statement = Statement.parse(decision.statement)
        if decision.facts() != {
            "statement_sha256": statement.sha256,
            "decision": statement.decision.value,
            "signer": statement.signer,
        }:
            raise Refused(f"a decision about {asked.row.id} is not what was signed", AGAIN)
        counted(asked, statement, decision.signature, self._trust, now)
        return statement

    def _hold_rows(self, ticket_id: str, event: str, rows: list[dict[str, object]]) -> None:
        """The rows about a ticket are those that the log holds, in its order."""
        log = witness.entries(self._connection, "subject", ticket_id)
        if [entry.detail for entry in log if entry.event == event] != rows:
            what = "decisions" if event == DECIDED else "uses"
            raise Refused(f"the {what} of {ticket_id} are not those that the audit log holds", AGAIN)


def refuse_used_up(held: Approved) -> None:
    """Raise `Refused` when no use is left."""
    if held.uses_left <= 0:
        raise Refused(f"{held.row.id} was used up", AGAIN)


def refuse_other_use(held: Approved, use: str, attempt: int) -> None:
    """Raise `Refused` for a digest or an attempt that was not signed, or was used."""
    if use not in held.request.allowed_uses:
        raise Refused(
            f"{held.row.id} does not allow {use[:80]}: what is to run is not what was approved",
            "request what is to run now",
        )
    if not 1 <= attempt <= held.request.attempts:
        raise Refused(
            f"{held.row.id} allows attempts 1 to {held.request.attempts}, not {attempt}", "request a rerun"
        )
    if any((each.use_sha256, each.attempt) == (use, attempt) for each in held.uses):
        raise Refused(
            f"{held.row.id} was used already for attempt {attempt} of {use[:12]}…",
            "use the next attempt, or request a rerun",
        )


def refuse_other_subjects(held: Approved, measured: Mapping[str, str]) -> None:
    """Raise `Refused` when a digest measured now is not the one that was signed."""
    for name, sha256 in measured.items():
        approved = held.request.subjects.get(name)
        if approved != sha256:
            was = f"{approved[:12]}…" if approved else "not named"
            raise Refused(
                f"{name[:200]!r} is not what {held.row.id} approved: now {sha256[:12]}…, approved {was}",
                "restore what was approved, or request again",
            )


def broken_rows(connection: sqlite3.Connection) -> list[str]:
    """Requests, decisions and uses that are not those of the audit log, whoever may sign them."""
    log: dict[str, list[AuditEntry]] = {}
    for entry in AuditLog(connection).entries():
        if entry.event in (REQUESTED, DECIDED, USED):
            log.setdefault(entry.subject, []).append(entry)
    ids = {row.id: row for row in tables.rows(connection, RequestRow, "select * from requests")}
    problems = [f"approval {ticket} is gone" for ticket in sorted(log.keys() - ids.keys())]
    for ticket, row in ids.items():
        stored = [
            (REQUESTED, row.facts()),
            *((DECIDED, each.facts()) for each in tables.decision_rows(connection, ticket)),
            *((USED, each.facts()) for each in tables.use_rows(connection, ticket)),
        ]
        noted = [(entry.event, entry.detail) for entry in log.get(ticket, [])]
        whole = hashlib.sha256(row.request.encode()).hexdigest() == row.sha256
        if sorted(stored, key=canonical) != sorted(noted, key=canonical) or not whole:
            problems.append(f"approval {ticket} is not the one that was stored")
    return problems
