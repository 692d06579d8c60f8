"""The left side of the screen: one list of requests, which can be filtered."""

from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from approvals.screen.lines import PlainInput, clipped
from approvals.screen.sections import fits
from approvals.screen.views import list_lines
from approvals.ticket import Ticket


class TicketList(Vertical):
    """Keeps one request selected by its id, however the list changes around it."""

    class Chosen(Message):
        """The cursor moved to a request; ``opened`` with Enter."""

        def __init__(self, opened: bool) -> None:
            super().__init__()
            self.opened = opened

    def __init__(self) -> None:
        super().__init__()
        self.selected = ""
        self._tickets: list[Ticket] = []
        self._now = 0

    def compose(self) -> ComposeResult:
        """The filter, hidden until it is asked for, and the list."""
        words = PlainInput(placeholder="only those with these words", id="filter")
        words.display = False
        yield words
        yield OptionList(id="list", markup=False)

    def show(self, tickets: list[Ticket], now: int) -> None:
        """Show these; the first is selected where nothing was."""
        self._tickets, self._now = tickets, now
        words = self.query_one("#filter", Input).value
        fitting = [ticket for ticket in tickets if fits(ticket, words)]
        if not self.selected and fitting:
            self.selected = fitting[0].id
        if not self.size.width:  # not laid out yet: `on_resize` comes
            return
        options = self.query_one("#list", OptionList)
        places = [ticket.id for ticket in fitting]
        with options.prevent(OptionList.OptionHighlighted):
            options.set_options(Option(self._line(ticket), ticket.id) for ticket in fitting)
            options.highlighted = places.index(self.selected) if self.selected in places else None

    def on_resize(self, event: events.Resize) -> None:
        """Cut the lines anew."""
        self.show(self._tickets, self._now)

    def forget(self) -> None:
        """Another list is to be shown: select its first."""
        self.selected = ""

    def focus_list(self) -> None:
        """Move the cursor there."""
        self.query_one("#list").focus()

    def begin_filter(self) -> None:
        """Let words be typed."""
        words = self.query_one("#filter", Input)
        words.display = True
        words.focus()

    def end_filter(self) -> None:
        """Show all again."""
        words = self.query_one("#filter", Input)
        words.value, words.display = "", False
        self.show(self._tickets, self._now)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter as it is typed."""
        event.stop()
        self.show(self._tickets, self._now)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter goes to the list."""
        event.stop()
        self.focus_list()

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """The cursor moved."""
        event.stop()
        self._choose(event.option_id, opened=False)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Enter."""
        event.stop()
        self._choose(event.option_id, opened=True)

    def _choose(self, ticket_id: str | None, opened: bool) -> None:
        if ticket_id:
            self.selected = ticket_id
            self.post_message(self.Chosen(opened))

    def _line(self, ticket: Ticket) -> Text:
        """Two lines; each is cut to the list, so that no title can be laid out to look like a request."""
        what, who = (clipped(line, self.size.width - 2) for line in list_lines(ticket, self._now))
        return Text.assemble((what, Style(bold=True)), "\n", (who, Style(dim=True)))
