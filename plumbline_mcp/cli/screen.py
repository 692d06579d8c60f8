"""Writing on a terminal: text that we did not write is made visible first, and is never markup."""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import IO, Any

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from approvals.visible import visible_line
from checks.verdict import Caught, Outcome

_NOT_A_TERMINAL = 100
"""Columns when the output is a pipe or a file and COLUMNS is not set."""

_STYLE = {
    Outcome.PASS: "green",
    Outcome.FAIL: "bold red",
    Outcome.INCONCLUSIVE: "yellow",
    Outcome.NOT_EVALUATED: "dim",
}
_SIGN = {Outcome.PASS: "✓", Outcome.FAIL: "✗", Outcome.INCONCLUSIVE: "?", Outcome.NOT_EVALUATED: "–"}
_CAUGHT = {
    Caught.CAUGHT: ("✓", "green"),
    Caught.MISSED: ("✗", "bold red"),
    Caught.NOT_APPLICABLE: ("–", "dim"),
}


def console(stderr: bool = False) -> Console:
    """A console on standard output or error; it honours NO_COLOR and COLUMNS."""
    stream: IO[str] = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _NOT_A_TERMINAL
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False, width=width)


def untrusted(text: object, style: str = "", limit: int = 600) -> Text:
    """A text from a record, a repository or a model: control and direction characters are shown, not obeyed.

    Line ends are shown too: a text must not be able to forge a line of ours.
    """
    return Text(visible_line(str(text), limit), style=style)


def labelled(label: str, value: object, style: str = "bold", limit: int = 600) -> Text:
    """A label of ours in its own style, then an untrusted value."""
    return Text.assemble((label, style), untrusted(value, limit=limit))


def outcome_text(outcome: Outcome, applicable: bool = True) -> Text:
    """A sign and a word in the outcome's colour (the colour is never the only sign)."""
    if not applicable:
        return Text("· not applicable", style="dim")
    return Text(f"{_SIGN[outcome]} {outcome.value.replace('_', ' ')}", style=_STYLE[outcome])


def caught_text(caught: Caught) -> Text:
    """What became of an injected fault."""
    sign, style = _CAUGHT[caught]
    return Text(f"{sign} {caught.value.replace('_', ' ')}", style=style)


def table(*columns: str, rows: Iterable[Sequence[RenderableType]], title: str | None = None) -> Table:
    """A plain table that folds long cells; the last column takes the room that is left."""
    made = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        made.add_column(column, overflow="fold", ratio=1 if index == len(columns) - 1 else None)
    for row in rows:
        made.add_row(*row)
    return made


def print_json(value: Any) -> None:
    """A model, or plain data, as JSON on standard output; ASCII only, and what is not a number is null.

    So no character of a record reaches the terminal as itself, and every JSON reader can read it.
    """
    from pydantic_core import to_json

    plain = json.loads(to_json(value, inf_nan_mode="null"))
    sys.stdout.write(json.dumps(plain, indent=2, ensure_ascii=True) + "\n")
