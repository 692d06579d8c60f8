"""The queue of requests, decisions and uses: tables on the workspace's own database connection.

A state that a row shows is for people to see. What may run is decided by `Approvals.verify` and
`Approvals.consume` alone, which hold the request, the signed statements, the policy of today and the audit
log against one another at the moment of use.
"""

import secrets
import sqlite3
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from approvals import tables, witness
from approvals.accounts import names_of_requester
from approvals.audit import AuditLog
from approvals.decisions import Asked, counted, refuse_silence, statement_about
from approvals.errors import Refused
from approvals.gate import (
    DECIDED,
    REQUESTED,
    USED,
    WITHDRAWN,
    Gate,
    refuse_other_subjects,
    refuse_other_use,
    refuse_used_up,
    ticket_prefix,
    uses_left,
)
from approvals.origin import EXAMPLE, Origin
from approvals.policy import Policy, Rule
from approvals.signatures import sign
from approvals.statement import Action, Decision, Request, Statement, as_stored, stored_request
from approvals.tables import RequestRow
from approvals.ticket import Decided, Ticket, TicketState
from approvals.tiers import request_tier, statement_tier
from approvals.transactions import read_transaction, write_transaction
from approvals.trust import TrustRoots

MAX_REJECTIONS = 3
"""So often the same request may be rejected before it is refused at once."""

_STATE = """case when state in ('pending', 'approved') and expires <= :now then 'expired' else state end"""

_BINDING = ("subjects", "allowed_uses", "attempts", "under", "node_millihours")
"""What has to be equal for two requests to be the same one; title and evidence may be worded anew."""


class Approvals:
    """Requests, decisions and uses of one workspace, on one connection (one thread)."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        trust: TrustRoots,
        workspace_id: str,
        kind: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if trust.is_example != (kind == EXAMPLE):
            raise Refused(
                f"the trust roots {trust.folder} are not those of a workspace of kind {kind!r}",
                "sign with an enrolled key; the example's counts in an example workspace alone",
            )
        self.connection = connection
        self.trust = trust
        self.workspace_id = workspace_id
        self.kind = kind
        self._clock = clock
        self._gate = Gate(connection, trust, Origin(id=workspace_id, kind=kind))

    # --- asking -----------------------------------------------------------------------------------------

    def request(self, request: Request) -> Ticket:
        """Ask: the open ticket of the same request, or a new one, inside the caller's write transaction.

        Raises `Refused`: no policy, no rule that fits, three rejections, a task that does not cover it, the
        same content open with other subjects, uses or cost.
        """
        with write_transaction(self.connection):
            now = self._now()
            policy = self.trust.policy()
            rule = policy.rule_for(request)
            prefix = ticket_prefix(self.workspace_id, request)
            last = self._last(prefix)
            if last is not None and self._state(last, now).open:
                if self._stands(last, request, policy):
                    return self.ticket(last.id)
                self._close(last, "the policy changed before it was used")
            self._refuse_rejected(prefix)
            self._refuse_uncovered(request, now)
            number = 1 if last is None else last.n + 1
            return self._ask(request, rule, policy, f"{prefix}-{number}", now)

    def withdraw(self, ticket_id: str, requester: str, reason: str = "") -> Ticket:
        """Take an own open request back. Raises `Refused` for one of somebody else, or one that is over."""
        with write_transaction(self.connection):
            row = self._row(ticket_id)
            request, state = stored_request(row.request), self._state(row, self._now())
            if request.requester != requester:
                raise Refused(f"{row.id} was asked by {request.requester}", "only that one can withdraw it")
            if not state.open:
                raise Refused(f"{row.id} is {state.value} already", "there is nothing to withdraw")
            self._close(row, reason or "withdrawn by its requester")
        return self.ticket(ticket_id)

    # --- reading ----------------------------------------------------------------------------------------

    def ticket(self, ticket_id: str) -> Ticket:
        """The ticket of that id. Raises `Refused` when there is none."""
        with read_transaction(self.connection):
            return self._shown(self._row(ticket_id), self._now())

    def tickets(
        self, state: TicketState | str | None = None, limit: int = 50, after: str | None = None
    ) -> list[Ticket]:
        """Tickets, newest first; ``after`` is the id of the last one seen."""
        now = self._now()
        sql = f"""select * from requests where (:state is null or {_STATE} = :state)
            and (:after is null or seq < coalesce((select seq from requests where id = :after), 0))
            order by seq desc limit :limit"""  # noqa: S608 - our own expression
        wanted = None if state is None else TicketState(state).value
        values = {"now": now, "state": wanted, "after": after, "limit": limit}
        with read_transaction(self.connection):
            return [self._shown(row, now) for row in tables.rows(self.connection, RequestRow, sql, values)]

    def count(self, state: TicketState | str | None = None) -> int:
        """How many tickets there are."""
        wanted = None if state is None else TicketState(state).value
        sql = f"select count(*) from requests where (:state is null or {_STATE} = :state)"  # noqa: S608 - our own expression
        (number,) = self.connection.execute(sql, {"now": self._now(), "state": wanted}).fetchone()
        return int(number)

    # --- deciding ---------------------------------------------------------------------------------------

    def draft(
        self, ticket_id: str, decision: Decision | str, signer: str, reason: str = "", seen: str = ""
    ) -> Statement:
        """What the signer has to sign. Raises `Refused` where the signature could not count.

        ``seen`` is the digest of the request that was shown to the signer: another one is refused.
        """
        decision, now = Decision(decision), self._now()
        with read_transaction(self.connection):
            self._gate.hold_log()
            asked = self._decidable(ticket_id, decision, signer, now)
            length, head = AuditLog(self.connection).last()
        if seen not in ("", asked.request.sha256):
            raise Refused(f"{ticket_id} changed while it was shown", "read it again before signing")
        asked.rule.refuse_signer(signer, names_of_requester(asked.request))
        refuse_silence(asked.request, decision, reason)
        in_token = all(enrolled.key.hardware for enrolled in self.trust.signers_of(signer))
        return statement_about(
            asked,
            {
                "decision": decision,
                "signer": signer,
                "reason": reason,
                "issued": now,
                "tier": statement_tier(asked.row.tier, in_token).value,
                "log_head": head,
                "log_length": length,
            },
        )

    def record(self, ticket_id: str, statement: Statement, signature: str) -> Ticket:
        """Take a signed decision into the queue. Raises `Refused` when anything about it does not hold."""
        with write_transaction(self.connection):
            now = self._now()
            self._gate.hold_log()
            asked = self._decidable(ticket_id, statement.decision, statement.signer, now)
            witness.refuse_unseen(self.connection, statement)
            counted(asked, statement, signature, self.trust, now)
            row = {
                "ticket": asked.row.id,
                "signer": statement.signer,
                "decision": statement.decision.value,
                "statement": statement.text(),
                "sha256": statement.sha256,
                "signature": signature,
            }
            tables.insert(self.connection, "decisions", row)
            self._note(DECIDED, asked.row.id, tables.decision_rows(self.connection, asked.row.id)[-1].facts())
            self._set_state(asked.row.id, self._decided_state(asked), statement.reason)
        return self.ticket(ticket_id)

    def decide(
        self,
        ticket_id: str,
        decision: Decision | str,
        signer: str,
        reason: str = "",
        key: Path | None = None,
        seen: str = "",
    ) -> Ticket:
        """Draft, sign on the terminal (the example's key: without one) and record. Raises `Refused`.

        ``key`` is the private key, by default the one that was enrolled on this machine. ``seen`` is that of
        `draft`.
        """
        statement = self.draft(ticket_id, decision, signer, reason, seen)
        private = key or self.trust.key_of(signer)
        signature = sign(statement.bytes(), private, self.trust.namespace, tty=not self.trust.is_example)
        return self.record(ticket_id, statement, signature)

    # --- using ------------------------------------------------------------------------------------------

    def verify(self, ticket_id: str) -> Ticket:
        """Hold everything against everything, now. Raises `Refused` naming what does not hold."""
        with read_transaction(self.connection):
            held = self._gate.hold(ticket_id, self._now())
            refuse_used_up(held)
            return self.ticket(ticket_id)

    def consume(
        self, ticket_id: str, use: str, attempt: int = 1, subjects: Mapping[str, str] | None = None
    ) -> Ticket:
        """Verify and mark one use, inside the caller's write transaction: commit it, then run.

        ``use`` is one of the request's digests, ``attempt`` 1 to ``request.attempts``. ``subjects`` are
        digests that were measured now: each has to be the one that was approved. Raises `Refused`.
        """
        with write_transaction(self.connection):
            now = self._now()
            held = self._gate.hold(ticket_id, now)
            refuse_other_use(held, use, attempt)
            refuse_other_subjects(held, subjects or {})
            refuse_used_up(held)
            values = {"ticket": held.row.id, "use_sha256": use, "attempt": attempt, "used": now}
            tables.insert(self.connection, "uses", values)
            self._note(USED, held.row.id, {"use": use, "attempt": attempt})
            if held.uses_left == 1:
                self._set_state(held.row.id, TicketState.USED, held.row.reason)
            return self.ticket(ticket_id)

    # --- steps ------------------------------------------------------------------------------------------

    def _now(self) -> int:
        return int(self._clock())

    def _note(self, event: str, ticket_id: str, detail: dict[str, Any]) -> None:
        AuditLog(self.connection).append(event, ticket_id, detail)

    def _row(self, ticket_id: str) -> RequestRow:
        row = tables.request_row(self.connection, ticket_id)
        if row is None:
            raise Refused(f"there is no approval {ticket_id[:80]!r}", "see them: plumbline queue list")
        return row

    def _last(self, prefix: str) -> RequestRow | None:
        sql = "select * from requests where prefix = ? order by n desc limit 1"
        return next(iter(tables.rows(self.connection, RequestRow, sql, (prefix,))), None)

    def _state(self, row: RequestRow, now: int) -> TicketState:
        return TicketState.EXPIRED if row.state.open and row.expires <= now else row.state

    def _set_state(self, ticket_id: str, state: TicketState, reason: str) -> None:
        sql = "update requests set state = ?, reason = ? where id = ?"
        self.connection.execute(sql, (state.value, reason, ticket_id))

    def _close(self, row: RequestRow, reason: str) -> None:
        self._set_state(row.id, TicketState.WITHDRAWN, reason)
        self._note(WITHDRAWN, row.id, {"reason": reason})

    def _stands(self, last: RequestRow, request: Request, policy: Policy) -> bool:
        """Whether the open ticket is this request's; False when the policy changed. Raises `Refused`."""
        if last.policy_sha256 != policy.sha256:
            return False
        before = stored_request(last.request)
        for name in _BINDING:
            if getattr(before, name) != getattr(request, name):
                raise Refused(
                    f"{last.id} asks for the same content with other {name.removeprefix('allowed_')}",
                    f"wait for it, or withdraw {last.id} first",
                )
        return True

    def _refuse_rejected(self, prefix: str) -> None:
        sql = "select count(*) from requests where prefix = ? and state = 'rejected'"
        if self.connection.execute(sql, (prefix,)).fetchone()[0] >= MAX_REJECTIONS:
            raise Refused(
                f"this was rejected {MAX_REJECTIONS} times", "change what was rejected; read the reasons"
            )

    def _refuse_uncovered(self, request: Request, now: int) -> None:
        """A request under a task: the task is open or used, and its cap of node-hours leaves enough."""
        if not request.under:
            return
        row = self._row(request.under)
        task, state = stored_request(row.request), self._state(row, now)
        if task.action is not Action.TASK or state not in (TicketState.APPROVED, TicketState.USED):
            raise Refused(
                f"{row.id} is no signed task (a {task.action.value}, {state.value})",
                "name the ticket of an approved task",
            )
        left = task.node_millihours - self._taken(row.id, now)
        if request.node_millihours > left:
            raise Refused(
                f"this costs {request.node_millihours / 1000:g} node-hours; the task {row.id} leaves"
                f" {max(left, 0) / 1000:g} of {task.node_millihours / 1000:g}",
                "ask for less, or for a task with a higher cap",
            )

    def _taken(self, task_id: str, now: int) -> int:
        """Thousandths of a node-hour that the requests under a task take: an open one its cost, a closed one
        the share of its uses that began, rounded up. A further attempt of the same use is in no cost.
        """
        sql = "select * from requests where json_extract(request, '$.under') = ?"
        taken = 0
        for row in tables.rows(self.connection, RequestRow, sql, (task_id,)):
            request, state = stored_request(row.request), self._state(row, now)
            most = used = len(request.allowed_uses)
            if not state.open and state is not TicketState.USED:
                used = len({use.use_sha256 for use in tables.use_rows(self.connection, row.id)})
            taken += -(-request.node_millihours * used // most)
        return taken

    def _ask(self, request: Request, rule: Rule, policy: Policy, ticket_id: str, now: int) -> Ticket:
        prefix, _, number = ticket_id.rpartition("-")
        values = {
            "id": ticket_id,
            "prefix": prefix,
            "n": int(number),
            "request": as_stored(request),
            "sha256": request.sha256,
            "nonce": secrets.token_hex(16),
            "created": now,
            "expires": now + rule.expires_s,
            "rule": rule.name,
            "policy_sha256": policy.sha256,
            "tier": request_tier(self.kind, self._database(), request.requester_uid).value,
            "state": TicketState.PENDING.value,
        }
        if stored_request(as_stored(request)).sha256 != request.sha256:
            raise Refused("the content does not come back from JSON as it went in", "give plain JSON values")
        tables.insert(self.connection, "requests", values)
        row = self._row(ticket_id)
        self._note(REQUESTED, ticket_id, row.facts())
        return self._shown(row, now)

    def _database(self) -> Path | None:
        """The file of the connection's database; None when it lies in memory."""
        names = {row[1]: row[2] for row in self.connection.execute("pragma database_list")}
        return Path(names["main"]) if names.get("main") else None

    def _decidable(self, ticket_id: str, decision: Decision, signer: str, now: int) -> Asked:
        """An open request that this signer has not decided so yet. An approval can be followed by a
        rejection until it is used.
        """
        row = self._row(ticket_id)
        state = self._state(row, now)
        allowed = {TicketState.PENDING} | ({TicketState.APPROVED} if decision is Decision.REJECT else set())
        if state not in allowed:
            raise Refused(f"{row.id} is {state.value} already", "decide one that is pending: plumbline queue")
        sql = "select count(*) from decisions where ticket = ? and signer = ? and decision = ?"
        if self.connection.execute(sql, (row.id, signer, decision.value)).fetchone()[0]:
            raise Refused(f"{signer} has decided {row.id} so already", "another reviewer has to sign")
        return self._gate.asked(ticket_id, now)

    def _decided_state(self, asked: Asked) -> TicketState:
        decisions = tables.decision_rows(self.connection, asked.row.id)
        if any(decision.decision == Decision.REJECT for decision in decisions):
            return TicketState.REJECTED
        enough = len({decision.signer for decision in decisions}) >= asked.rule.signers
        return TicketState.APPROVED if enough else TicketState.PENDING

    def _shown(self, row: RequestRow, now: int) -> Ticket:
        request = stored_request(row.request)
        decided = tuple(_decided(each, request) for each in tables.decision_rows(self.connection, row.id))
        return Ticket(
            id=row.id,
            request=request,
            rule=row.rule,
            state=self._state(row, now),
            created=row.created,
            expires=row.expires,
            decisions=decided,
            uses_left=uses_left(request, tables.use_rows(self.connection, row.id)),
            reason=row.reason,
            tier=row.tier,
            policy_sha256=row.policy_sha256,
            nonce=row.nonce,
        )


def _decided(row: tables.DecisionRow, request: Request) -> Decided:
    statement = Statement.parse(row.statement)
    return Decided(
        signer=statement.signer,
        decision=statement.decision,
        reason=statement.reason,
        issued=statement.issued,
        tier=statement.tier,
        self_approved=statement.signer in names_of_requester(request),
        sha256=row.sha256,
        statement=row.statement,
        signature=row.signature,
    )
