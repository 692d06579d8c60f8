"""The queue of requests, decisions and uses: tables on the workspace's own database connection.

A state that a row shows is for people to see. What may run is decided by `Approvals.verify` and
`Approvals.consume` alone, which hold the request, the signed statements, the policy of today and the audit
log against one another at the moment of use.
"""

import sqlite3
import time
from collections.abc import Callable

from approvals.statement import Decision, Request, Statement
from approvals.ticket import Ticket, TicketState
from approvals.trust import TrustRoots


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
        self.connection = connection
        self.trust = trust
        self.workspace_id = workspace_id
        self.kind = kind
        self.clock = clock

    def request(self, request: Request) -> Ticket:
        """Ask: the open ticket of the same request, or a new one. Raises `Refused` (no rule, no policy,
        three rejections, a task that does not cover it, another request open under the same content).
        """
        raise NotImplementedError

    def ticket(self, ticket_id: str) -> Ticket:
        """The ticket of that id. Raises `Refused` when there is none."""
        raise NotImplementedError

    def tickets(
        self, state: TicketState | str | None = None, limit: int = 50, after: str | None = None
    ) -> list[Ticket]:
        """Tickets, newest first; ``after`` is the id of the last one seen."""
        raise NotImplementedError

    def withdraw(self, ticket_id: str, requester: str, reason: str = "") -> Ticket:
        """Take an own open request back. Raises `Refused` for one of somebody else, or one that is over."""
        raise NotImplementedError

    def draft(self, ticket_id: str, decision: Decision | str, signer: str, reason: str = "") -> Statement:
        """What the signer has to sign. Raises `Refused` where the signature could not count."""
        raise NotImplementedError

    def record(self, ticket_id: str, statement: Statement, signature: str) -> Ticket:
        """Take a signed decision into the queue. Raises `Refused` when anything about it does not hold."""
        raise NotImplementedError

    def verify(self, ticket_id: str) -> Ticket:
        """Hold everything against everything, now. Raises `Refused` naming what does not hold."""
        raise NotImplementedError

    def consume(self, ticket_id: str, use: str, attempt: int = 1) -> Ticket:
        """Verify and mark one use, inside the caller's write transaction: commit it, then run.

        ``use`` is one of the request's digests, ``attempt`` 1 to ``request.attempts``. Raises `Refused`.
        """
        raise NotImplementedError
