"""The right side of the screen: one request with its facts, its views, and how far it was read."""

from textual.app import ComposeResult
from textual.containers import Vertical

from approvals.errors import Refused
from approvals.queue import Approvals
from approvals.screen.comparison import compare
from approvals.screen.lines import Lines, Rows
from approvals.screen.rows import Row, head
from approvals.screen.views import Shown, View, facts, refusal, rejections, rows_of
from approvals.ticket import Ticket


class Review(Vertical):
    """Shows one request at a time."""

    def __init__(self, approvals: Approvals) -> None:
        super().__init__(id="review")
        self.approvals = approvals
        self.shown: Shown | None = None
        self.view = View.SUMMARY
        self._read: set[tuple[str, str, str]] = set()

    def compose(self) -> ComposeResult:
        """Facts on top, the tabs, the rows."""
        yield Rows(id="facts")
        yield Rows(id="views")
        yield Lines(id="body")

    @property
    def lines(self) -> Lines:
        """The rows of the view."""
        return self.query_one("#body", Lines)

    @property
    def was_read(self) -> bool:
        """Whether the diff of what is shown was on the screen to its end."""
        return self.shown is not None and _key(self.shown) in self._read

    def show(self, ticket: Ticket | None, now: int) -> None:
        """Show this request as it is now; None empties the side.

        One that changed is shown from its beginning: its end on the screen must not count as read.
        """
        before, self.shown = self.shown, self._looked_at(ticket) if ticket else None
        same = before is not None and self.shown is not None and _key(before) == _key(self.shown)
        self.tick(now)
        self._show_rows(keep_place=same)

    def turn(self, step: int) -> None:
        """The next view (1), or the one before (-1)."""
        views = list(View)
        self.view = views[(views.index(self.view) + step) % len(views)]
        self._show_rows()

    def tick(self, now: int) -> None:
        """Tell the facts anew: time goes on."""
        rows = facts(self.shown, now) if self.shown else [head("nothing is selected")]
        self.query_one("#facts", Rows).show(rows)

    def note_place(self) -> None:
        """Called when the rows moved: the diff counts as read once its last row is on the screen."""
        if self.shown and self.view is View.DIFF and self.lines.at_end:
            self._read.add(_key(self.shown))

    def show_tabs(self) -> None:
        """The names of the views, the one that is shown in brackets, and the place in it."""
        names = (f"[{view}]" if view is self.view else f" {view} " for view in View)
        self.query_one("#views", Rows).show([head(f"{''.join(names)}  {self.lines.place}")])

    def _looked_at(self, ticket: Ticket) -> Shown:
        try:
            rule = next((r for r in self.approvals.trust.policy().rules if r.name == ticket.rule), None)
        except Refused:
            rule = None
        comparison = compare(self.approvals, ticket)
        return Shown(ticket, comparison, rule, rejections(self.approvals, ticket))

    def _show_rows(self, keep_place: bool = False) -> None:
        self.lines.show(self._rows(), keep_place)
        self.show_tabs()

    def _rows(self) -> list[Row]:
        if self.shown is None:
            return []
        try:
            return rows_of(self.view, self.approvals, self.shown)
        except Refused as refused:
            return refusal(refused)


def _key(shown: Shown) -> tuple[str, str, str]:
    """What was read: another request, or another version to compare with, has to be read again."""
    approved = shown.comparison.approved
    return shown.ticket.id, shown.sha256, approved.ticket.id if approved else ""
