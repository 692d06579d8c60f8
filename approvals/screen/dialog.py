"""The decision: who signs, why, and the exact bytes. Nothing is preselected, and Enter does nothing."""

import sys
from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input

from approvals.decisions import refuse_silence
from approvals.errors import Refused
from approvals.queue import Approvals
from approvals.screen.lines import Lines, PlainInput, Rows
from approvals.screen.reviews import sign_and_record
from approvals.screen.rows import Kind, Row, head, labelled, quoted
from approvals.screen.views import Shown, cost, refusal
from approvals.statement import MAX_REASON, REASONED, Decision, Statement
from approvals.ticket import Ticket
from approvals.visible import visible_line

KEYS = "Ctrl+Y sign these bytes · Tab next field · Esc NO DECISION"


class DecisionDialog(ModalScreen[Ticket | None]):
    """Gives the ticket as it is after the signature, or None: no decision."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+y", "sign", priority=True),
        Binding("escape", "leave", priority=True),
    ]

    def __init__(
        self,
        approvals: Approvals,
        shown: Shown,
        decision: Decision,
        milliseconds: Callable[[], int],
        decided: list[Ticket],
    ) -> None:
        """``milliseconds`` says how long the request has been on the screen; what is signed is added to
        ``decided`` at once, so that it is known whatever happens to the screen then.
        """
        super().__init__()
        self.approvals, self.shown, self.decision = approvals, shown, decision
        self.statement: Statement | None = None
        self._milliseconds, self._decided = milliseconds, decided
        self.closed_as_stale = False
        self._signers = signers_here(approvals)
        self._said: list[Row] = []

    def compose(self) -> ComposeResult:
        """Facts, signer (asked where several could), reason, the bytes, what is wrong, keys."""
        with Vertical(id="dialog"):
            yield Rows(self._head(), id="dialog-head")
            if len(self._signers) > 1:
                yield PlainInput(placeholder=f"who signs: {', '.join(self._signers)}", id="signer")
            yield PlainInput(placeholder=self._reason_wanted(), id="reason", max_length=MAX_REASON)
            yield Lines(id="bytes")
            yield Rows(id="dialog-said")
            yield Rows([head(KEYS)], id="dialog-keys")

    def on_mount(self) -> None:
        """Draft what would be signed now."""
        self._draft()

    def on_input_changed(self, event: Input.Changed) -> None:
        """The statement holds signer and reason."""
        event.stop()
        self._draft()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter signs nothing."""
        event.stop()

    @property
    def stale(self) -> bool:
        """Whether the request is no longer as it is shown here."""
        try:
            return self.approvals.ticket(self.shown.ticket.id) != self.shown.ticket
        except Refused:
            return True

    def close_stale(self) -> None:
        """Close it without a decision, because the request changed."""
        self.closed_as_stale = True
        self.action_leave()

    def action_leave(self) -> None:
        """No decision."""
        if self.is_current:  # a key may have waited while it was closed
            self.dismiss(None)

    def action_sign(self) -> None:
        """Sign the bytes that are shown, with the screen put away while ssh-keygen asks."""
        if not self.is_current:
            return
        if self.stale:
            self.close_stale()
            return
        if self.statement is None:
            self._say([Row("! nothing was signed", Kind.WARN), *self._said])
            return
        try:
            ticket = self._signed(self.statement)
        except Refused as refused:
            self._draft()  # another one: the log may have gone on
            self._say(refusal(refused))
            return
        self.dismiss(ticket)

    def _signed(self, statement: Statement) -> Ticket:
        if self.approvals.trust.is_example:
            return self._sign_now(statement)
        if self.app.is_headless:
            raise Refused("there is no terminal on which the passphrase could be asked", "sign at a terminal")
        refused: Refused | None = None
        with self.app.suspend():
            sys.stdout.write(f"{statement.decision.value} {statement.ticket}: sha256 {statement.sha256}\n")
            sys.stdout.flush()
            try:
                return self._sign_now(statement)
            except Refused as error:  # raised below: the screen has to come back first
                refused = error
        raise refused

    def _sign_now(self, statement: Statement) -> Ticket:
        ticket = sign_and_record(self.approvals, statement, self._milliseconds())
        self._decided.append(ticket)
        return ticket

    def _draft(self) -> None:
        reason, self.statement = self.query_one("#reason", Input).value, None
        ticket, quiet = self.shown.ticket, False
        try:
            self.statement = self.approvals.draft(
                ticket.id, self.decision, self._signer(), reason, seen=self.shown.sha256
            )
        except Refused as refused:
            wanting = self._wanting(reason)
            quiet = wanting is not None and wanting.message == refused.message
            self._said = refusal(wanting if wanting is not None and quiet else refused)
            self.query_one(Lines).show([head("nothing could be signed yet")])
        else:
            self._said = []
            signed = self.statement.bytes()
            self.query_one(Lines).show(
                [
                    head(f"{self.statement.signer} signs these {len(signed)} bytes:"),
                    quoted(signed.decode("ascii")),
                    Row(f"sha256 {self.statement.sha256}"),
                ]
            )
        self._say([] if quiet else self._said)  # a reason that is still to be typed is no mistake yet

    def _signer(self) -> str:
        if len(self._signers) == 1:
            return self._signers[0]
        if not self._signers:
            raise Refused(
                "no reviewer's key lies here",
                f"plumbline queue {self.decision.value} {self.shown.ticket.id} --as NAME --statement-to FILE",
            )
        named = self.query_one("#signer", Input).value.strip()
        if named not in self._signers:
            raise Refused("it is not said who signs", f"type one of {', '.join(self._signers)}")
        return named

    def _wanting(self, reason: str) -> Refused | None:
        """What is said to who signs without the reason that it needs."""
        try:
            refuse_silence(self.shown.ticket.request, self.decision, reason)
        except Refused as refused:
            return Refused(refused.message, "type it into the field above")
        return None

    def _head(self) -> list[Row]:
        ticket, request = self.shown.ticket, self.shown.ticket.request
        title = visible_line(f"{self.decision.value.upper()} {ticket.id}?  {request.action.value}")
        facts = [
            ("title", request.title[:100]),
            ("cost", f"{cost(ticket)}, asked by {request.requester}, tier {ticket.tier}"),
            ("sha256", self.shown.sha256),
        ]
        return [head(title), *labelled(facts, width=6)]

    def _reason_wanted(self) -> str:
        if self.decision is Decision.REJECT:
            return "reason (needed): what would be accepted?"
        needed = self.shown.ticket.request.action in REASONED
        return "reason (needed): why does it hold?" if needed else "reason (may stay empty)"

    def _say(self, rows: list[Row]) -> None:
        self.query_one("#dialog-said", Rows).show(rows)


def signers_here(approvals: Approvals) -> list[str]:
    """Whose private keys lie on this machine and count. Raises nothing: none without trust roots."""
    try:
        enrolled = approvals.trust.enrolled()
    except Refused:
        return []
    here = {s.principal for s in enrolled if not s.revoked and approvals.trust.key_of(s.principal).exists()}
    return sorted(here)
