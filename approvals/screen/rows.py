"""A row of a view: a text and what kind of text it is."""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from approvals.visible import visible_line

MAX_TEXT = 2**22
"""Characters of one row: more than the largest request has."""


class Kind(StrEnum):
    """What a row is. The kind chooses the style; the text itself carries the sign (``+``, ``-``, ``!``)."""

    PLAIN = "plain"
    HEAD = "head"
    DIM = "dim"
    WARN = "warn"
    ADDED = "added"
    REMOVED = "removed"


class Row(NamedTuple):
    """One row, before it is cut to the width of the screen."""

    text: str
    kind: Kind = Kind.PLAIN


def head(text: str) -> Row:
    """A heading of ours."""
    return Row(text, Kind.HEAD)


def quoted(text: str) -> Row:
    """What somebody else wrote, on one row behind a bar."""
    return Row(f"│ {visible_line(text, MAX_TEXT)}")


def labelled(facts: Iterable[tuple[str, str]], width: int = 11) -> list[Row]:
    """A row for each fact that there is: a label of ours, then the value made visible."""
    return [Row(f"{name:<{width}} {visible_line(value, MAX_TEXT)}") for name, value in facts if value]
