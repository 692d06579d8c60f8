"""How long decisions take: the time that a request was on the screen before it was signed.

It is noted in the audit log in the same transaction as the decision. Decisions with the plain verbs are not
measured, and are counted as such.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from approvals.audit import AuditLog
from approvals.queue import Approvals
from approvals.signatures import sign
from approvals.statement import Statement
from approvals.ticket import Ticket
from approvals.transactions import write_transaction

REVIEWED = "approval_reviewed"
HASTY_MS = 5000
"""A decision after less time on the screen was hardly read."""


class Stopwatch:
    """How long each request has been on the screen, in all."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._shown: dict[str, float] = {}
        self._current, self._since = "", clock()

    def show(self, ticket_id: str) -> None:
        """From now on this request is on the screen; "" for none."""
        now = self._clock()
        if self._current:
            self._shown[self._current] = self._shown.get(self._current, 0.0) + now - self._since
        self._current, self._since = ticket_id, now

    def milliseconds(self, ticket_id: str) -> int:
        """So long it has been on the screen."""
        self.show(self._current)
        return round(1000 * self._shown.get(ticket_id, 0.0))


def sign_and_record(approvals: Approvals, statement: Statement, shown_ms: int) -> Ticket:
    """Sign exactly this statement, on the terminal (the example's key: without one), and record it.

    Raises `Refused`.
    """
    trust = approvals.trust
    key = trust.key_of(statement.signer)
    signature = sign(statement.bytes(), key, trust.namespace, tty=not trust.is_example)
    with write_transaction(approvals.connection):
        ticket = approvals.record(statement.ticket, statement, signature)
        AuditLog(approvals.connection).append(
            REVIEWED, statement.ticket, {"signer": statement.signer, "shown_ms": shown_ms}
        )
    return ticket


@dataclass(frozen=True)
class Reviews:
    """What the log says about all decisions so far."""

    times_ms: tuple[int, ...]
    decisions: int

    @property
    def line(self) -> str:
        """For the head of the screen."""
        if not self.decisions:
            return "no decision yet"
        unmeasured = self.decisions - len(self.times_ms)
        parts = [f"{unmeasured} by verb, not timed"] if unmeasured else []
        if self.times_ms:
            hasty = sum(each < HASTY_MS for each in self.times_ms)
            parts = [f"median review {duration(self.median_ms // 1000)}", f"under 5 s: {hasty}", *parts]
        return " · ".join(parts)

    @property
    def median_ms(self) -> int:
        """The median time on the screen."""
        return round(statistics.median(self.times_ms))


def reviews(approvals: Approvals) -> Reviews:
    """Read what was noted."""
    noted = (
        entry.detail.get("shown_ms") for entry in AuditLog(approvals.connection).matching("event", REVIEWED)
    )
    (decisions,) = approvals.connection.execute("select count(*) from decisions").fetchone()
    return Reviews(tuple(ms for ms in noted if isinstance(ms, int)), int(decisions))


def duration(seconds: int) -> str:
    """A time in its two largest units."""
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    hours, minutes = seconds // 3600, seconds % 3600 // 60
    return f"{hours // 24} d {hours % 24} h" if hours >= 24 else f"{hours} h {minutes} min"
