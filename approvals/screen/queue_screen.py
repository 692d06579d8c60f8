"""The screen: lists on the left (or alone, where it is narrow), the request on the right."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import Screen

from approvals.errors import Refused
from approvals.queue import Approvals
from approvals.screen import sections
from approvals.screen.dialog import DecisionDialog
from approvals.screen.help import HelpScreen
from approvals.screen.lines import Lines, Rows
from approvals.screen.notify import tell
from approvals.screen.review import Review
from approvals.screen.reviews import Stopwatch, reviews
from approvals.screen.rows import Kind, Row, head
from approvals.screen.sections import Section
from approvals.screen.ticket_list import TicketList
from approvals.screen.views import refusal
from approvals.statement import Decision
from approvals.ticket import Ticket, TicketState
from approvals.visible import visible_line

POLL_S = 0.25
"""How often SQLite is asked whether another process wrote: one number, no table is read."""
KEYS = "Enter open · Tab view · a approve · x reject · 1-3 lists · / filter · ? help · q"
OFF = "approve is off until the diff was shown to its end (Tab: Diff, then space)"
READ = "the diff was read to its end: a approves, x rejects"
_DECIDABLE = {
    Decision.APPROVE: {TicketState.PENDING},
    Decision.REJECT: {TicketState.PENDING, TicketState.APPROVED},
}


class QueueScreen(Screen[None]):
    """Keeps the lists as the database has them; decides nothing itself."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(n), f"section({n})") for n in (1, 2, 3)),
        Binding("tab,right", "turn(1)"),
        Binding("shift+tab,left", "turn(-1)"),
        Binding("escape", "back"),
        Binding("slash", "filter"),
        Binding("question_mark", "help"),
        Binding("a", "decide('approve')"),
        Binding("x", "decide('reject')"),
        Binding("q", "app.quit"),
    ]

    def __init__(self, approvals: Approvals, notify: Sequence[str], clock: Callable[[], float]) -> None:
        """``clock`` gives seconds since 1970."""
        super().__init__()
        self.approvals, self.section = approvals, Section.WAITING
        self.decided: list[Ticket] = []
        self._clock, self._stopwatch = clock, Stopwatch()
        self._notify, self._known = tuple(notify), set[str]()
        self._dialog: DecisionDialog | None = None
        self._version, self._next_expiry = -1, 0
        self._says_state = True

    def compose(self) -> ComposeResult:
        """Head, the two sides, what was said last, keys."""
        yield Rows(id="title")
        with Horizontal(id="panes"):
            with Vertical(id="lists"):
                yield TicketList()
            yield Review(self.approvals)
        yield Rows(id="status")
        yield Rows([Row(KEYS, Kind.DIM)], id="keys")

    def on_mount(self) -> None:
        """Read once, then whenever another process wrote."""
        self._known = {ticket.id for ticket in sections.load(self.approvals, Section.WAITING)}
        self.reload()
        self.tickets.focus_list()
        self.set_interval(POLL_S, self.poll)
        self.set_interval(1.0, self.tick)

    @property
    def tickets(self) -> TicketList:
        """The left side."""
        return self.query_one(TicketList)

    @property
    def review(self) -> Review:
        """The right side."""
        return self.query_one(Review)

    @property
    def reviewing(self) -> bool:
        """Whether the request itself is on the screen, and not the list alone."""
        return self.has_class("-wide") or self.has_class("reviewing")

    def say(self, rows: list[Row]) -> None:
        """Say something in the line above the keys; it stays there while the rows move."""
        self._says_state = False
        self.query_one("#status", Rows).show(rows)

    # --- what the database has --------------------------------------------------------------------------

    def now(self) -> int:
        """Seconds since 1970."""
        return int(self._clock())

    def poll(self) -> None:
        """Read again when another process wrote."""
        if self._data_version() != self._version:
            self.reload()

    def tick(self) -> None:
        """Time went on: the time that is left changes, and a request may be over."""
        if 0 < self._next_expiry <= self.now():
            self.reload()
        self.review.tick(self.now())

    def reload(self) -> None:
        """Read the lists again; what is selected stays selected, also when it left its list."""
        self._version = self._data_version()
        try:
            waiting = sections.load(self.approvals, Section.WAITING)
            waits = self.section is Section.WAITING
            self.tickets.show(waiting if waits else sections.load(self.approvals, self.section), self.now())
            self._show_title()
            self._show_selected()
        except Refused as refused:
            self.say(refusal(refused))
            return
        self._next_expiry = min((ticket.expires for ticket in waiting), default=0)
        self._tell_of([ticket for ticket in waiting if ticket.id not in self._known])
        if self._dialog is not None and self._dialog.stale:
            self._dialog.close_stale()

    def _data_version(self) -> int:
        (version,) = self.approvals.connection.execute("pragma data_version").fetchone()
        return int(version)

    def _tell_of(self, new: Sequence[Ticket]) -> None:
        self._known |= {ticket.id for ticket in new}
        if new and self._notify:
            self.run_worker(self._run_command(new))

    async def _run_command(self, new: Sequence[Ticket]) -> None:
        if wrong := await tell(self._notify, new):
            self.say([Row(f"! notification: {visible_line(wrong)}", Kind.WARN)])

    # --- what is shown ----------------------------------------------------------------------------------

    def _show_title(self) -> None:
        names = []
        for number, section in enumerate(Section, 1):
            name = f"{number} {section} {sections.count(self.approvals, section)}"
            names.append(f"[{name}]" if section is self.section else f" {name} ")
        line = f"{''.join(names)}  {reviews(self.approvals).line}"
        self.query_one("#title", Rows).show([head(line)])

    def _show_selected(self) -> None:
        selected = self.tickets.selected
        ticket = self.approvals.ticket(selected) if selected else None
        shown = self.review.shown
        if shown is None or ticket is None or shown.ticket != ticket:
            self.review.show(ticket, self.now())
            self._say_state()
        self._stopwatch.show(selected if self.reviewing else "")

    def _say_state(self) -> None:
        shown = self.review.shown
        if shown is None or not self.reviewing or shown.ticket.state is not TicketState.PENDING:
            self.say([])
        else:
            self.say([Row(READ if self.review.was_read else OFF)])
        self._says_state = True

    def on_ticket_list_chosen(self, message: TicketList.Chosen) -> None:
        """The cursor moved, or Enter opened a request."""
        if message.opened:
            self.add_class("reviewing")
            self.review.lines.focus()
        try:
            self._show_selected()
            self._say_state()
        except Refused as refused:
            self.say(refusal(refused))

    def on_lines_moved(self, message: Lines.Moved) -> None:
        """The rows moved: perhaps the diff was now read to its end."""
        message.stop()
        before = self.review.was_read
        if self.reviewing:
            self.review.note_place()
        self.review.show_tabs()
        if self.review.was_read != before and self._says_state:
            self._say_state()

    def on_resize(self, event: events.Resize) -> None:
        """A wider screen shows the request beside the list."""
        self.call_after_refresh(self._show_selected)

    # --- keys -------------------------------------------------------------------------------------------

    def action_section(self, number: int) -> None:
        """Another list."""
        self.section = list(Section)[number - 1]
        self.remove_class("reviewing")
        self.tickets.forget()
        self.reload()
        self.tickets.focus_list()

    def action_turn(self, step: int) -> None:
        """Another view of the request."""
        self.review.turn(step)
        self._say_state()

    def action_back(self) -> None:
        """Back to the list, without a filter."""
        self.remove_class("reviewing")
        self.tickets.end_filter()
        self.tickets.focus_list()
        self._show_selected()

    def action_filter(self) -> None:
        """Look for words."""
        self.remove_class("reviewing")
        self.tickets.begin_filter()

    def action_help(self) -> None:
        """Show the keys."""
        self.app.push_screen(HelpScreen())

    def action_decide(self, name: str) -> None:
        """Open the dialog in which it can be signed, unless something stands against it."""
        shown, decision = self.review.shown, Decision(name)
        if shown is None or not self.reviewing:
            self.say([Row("! open a request first: Enter", Kind.WARN)])
        elif shown.ticket.state not in _DECIDABLE[decision]:
            self.say([Row(f"! {shown.ticket.id} is {shown.ticket.state.value} already", Kind.WARN)])
        elif decision is Decision.APPROVE and not self.review.was_read:
            self.say([Row(f"! {OFF}", Kind.WARN)])
            self._says_state = True
        else:
            spent = self._stopwatch.milliseconds
            self._dialog = DecisionDialog(
                self.approvals, shown, decision, lambda: spent(shown.ticket.id), self.decided
            )
            self.app.push_screen(self._dialog, self._dialog_closed)

    def _dialog_closed(self, signed: Ticket | None) -> None:
        dialog, self._dialog = self._dialog, None
        self.reload()
        if signed is not None and dialog is not None:
            self.say(
                [Row(f"signed: {dialog.decision.value} {signed.id}, now {signed.state.value}", Kind.HEAD)]
            )
        elif dialog is not None:
            why = " It changed while the dialog was open: read it again." if dialog.closed_as_stale else ""
            self.say([Row(f"NO DECISION on {dialog.shown.ticket.id}.{why}", Kind.HEAD)])
