"""The widgets that show text of others: they escape every row again and cut it to the width.

Nothing is hidden to the right, and a row is never markup.
"""

from typing import ClassVar

from rich.cells import chop_cells
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input

from approvals.screen.rows import MAX_TEXT, Kind, Row
from approvals.visible import visible_line

GOES_ON = "↪ "
STYLES = {
    Kind.PLAIN: Style(),
    Kind.HEAD: Style(bold=True),
    Kind.DIM: Style(dim=True),
    Kind.WARN: Style(bold=True, color="yellow"),
    Kind.ADDED: Style(color="green"),
    Kind.REMOVED: Style(color="red"),
}


def cut(rows: list[Row], width: int) -> list[tuple[str, Kind]]:
    """The rows made visible and cut to the width. What goes on stands behind `GOES_ON`, so that no text can
    be laid out to look like a row of ours.
    """
    pieces = []
    for row in rows:
        first, *more = _chopped(visible_line(row.text, MAX_TEXT), width)
        pieces.append((first, row.kind))
        pieces += [(GOES_ON + each, row.kind) for each in more]
    return pieces


def clipped(text: str, width: int) -> str:
    """One line of at most this width, with a sign where something is missing."""
    shown = visible_line(text, MAX_TEXT)
    first, *more = chop_cells(shown, max(width, 2)) or [""]
    return chop_cells(shown, max(width - 1, 2))[0] + "…" if more else first


def _chopped(text: str, width: int) -> list[str]:
    first = next(iter(chop_cells(text, width)), "")
    return [first, *chop_cells(text[len(first) :], max(width - len(GOES_ON), 2))]


def _strip(piece: tuple[str, Kind], width: int, base: Style) -> Strip:
    text, kind = piece
    return Strip([Segment(text, base + STYLES[kind])]).adjust_cell_length(width, base)


class Rows(Widget):
    """A few rows that do not scroll: facts, messages, keys."""

    ALLOW_SELECT = False

    def __init__(self, rows: list[Row] | None = None, *, id: str) -> None:
        super().__init__(id=id)
        self.rows = rows or []

    def show(self, rows: list[Row]) -> None:
        """Show these rows."""
        if rows != self.rows:
            self.rows = rows
            self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As many lines as the rows take."""
        return len(cut(self.rows, width))

    def render_line(self, y: int) -> Strip:
        """One line of the screen."""
        pieces, width = cut(self.rows, self.size.width), self.size.width
        return _strip(pieces[y], width, self.rich_style) if y < len(pieces) else Strip.blank(width)


class Lines(ScrollView, can_focus=True):
    """Rows of text; `at_end` says whether the last one is on the screen."""

    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        ("j", "scroll_down"),
        ("k", "scroll_up"),
        ("space", "page_down"),
        ("b", "page_up"),
        ("g", "scroll_home"),
        ("G", "scroll_end"),
    ]

    class Moved(Message):
        """The widget scrolled, or shows other rows, or has another size."""

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._rows: list[Row] = []
        self._cut: list[tuple[str, Kind]] = []

    @property
    def at_end(self) -> bool:
        """Whether the last row is on the screen."""
        return self.size.height > 0 and self.scroll_offset.y + self.size.height >= len(self._cut)

    @property
    def place(self) -> str:
        """Which of the rows are on the screen."""
        last = min(self.scroll_offset.y + self.size.height, len(self._cut))
        return f"{last} of {len(self._cut)}"

    def show(self, rows: list[Row], keep_place: bool = False) -> None:
        """Show these rows, from the first on."""
        if keep_place and rows == self._rows:
            return
        self._rows = rows
        self._cut_rows()
        if not keep_place:  # at once: `at_end` must never be about the place in the rows before
            self.scroll_y = self.scroll_target_y = 0
        self.call_after_refresh(self.post_message, self.Moved())

    def on_resize(self, event: events.Resize) -> None:
        """Cut the rows to the new width."""
        self._cut_rows()
        self.call_after_refresh(self.post_message, self.Moved())

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Tell that it moved."""
        super().watch_scroll_y(old_value, new_value)
        self.post_message(self.Moved())

    def render_line(self, y: int) -> Strip:
        """One line of the screen."""
        number, width = self.scroll_offset.y + y, self.size.width
        if number >= len(self._cut):
            return Strip.blank(width, self.rich_style)
        return _strip(self._cut[number], width, self.rich_style)

    def action_page_down(self) -> None:
        """A page on, at once: what is read is counted by what is on the screen."""
        self.scroll_page_down(animate=False)

    def action_page_up(self) -> None:
        """A page back."""
        self.scroll_page_up(animate=False)

    def action_scroll_end(self) -> None:
        """To the end."""
        self.scroll_end(animate=False)

    def action_scroll_home(self) -> None:
        """To the beginning."""
        self.scroll_home(animate=False)

    def action_scroll_down(self) -> None:
        """A line on."""
        self.scroll_down(animate=False)

    def action_scroll_up(self) -> None:
        """A line back."""
        self.scroll_up(animate=False)

    def _cut_rows(self) -> None:
        # One column is left to the scroll bar, so that its coming does not cut anew.
        width = max(self.container_size.width - 1, 1)
        self._cut = cut(self._rows, width)
        self.virtual_size = Size(width, len(self._cut))
        self.refresh()


class PlainInput(Input):
    """A line to type in. What is pasted is made visible too: it may come from what others wrote."""

    def on_mount(self) -> None:
        """A cursor that does not blink: the terminal is written to only when something changes."""
        self.cursor_blink = False

    def replace(self, text: str, start: int, end: int) -> None:
        """Every way of typing and pasting ends here."""
        super().replace(visible_line(text, MAX_TEXT), start, end)
