"""A request as lines of text that say exactly what it says, and its digest computed from those lines.

The lines are the request's JSON: joined, they parse to the very request. So the digest of what is shown is
computed from what is shown, and not looked up.
"""

import json
import re

from pydantic import JsonValue

from approvals.canonical import digest
from approvals.statement import Request
from approvals.visible import visible_line

CONTINUED = "┊ "
"""Before a line that goes on with the text of the line above: no line of JSON begins so."""

_ONE_CHARACTER = 20
"""More than `visible_line` makes of one character."""

# A line of JSON is cut after each line end inside a string. `\\` is taken as a pair, so that `\\n` (a
# backslash, then an n) is none.
_PIECES = re.compile(r"(?:[^\\]|\\[^n])*\\n|(?:[^\\]|\\[^n])+")


def request_lines(request: Request) -> list[str]:
    """The whole request: title, content, subjects, cost, uses."""
    return lines_of(request.model_dump(mode="json"))


def lines_of(value: JsonValue) -> list[str]:
    """The value as JSON, one member a line; a text of several lines goes on behind `CONTINUED`.

    Characters that a terminal obeys or a reader does not see stand as JSON escapes (``\\u202e``).
    """
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
    hidden = {c for c in set(text) - {"\n"} if visible_line(c, _ONE_CHARACTER) != c}
    escapes = {ord(c): json.dumps(c)[1:-1] for c in hidden}
    pieces = [_PIECES.findall(line) for line in text.translate(escapes).split("\n")]
    return [CONTINUED + piece if n else piece for line in pieces for n, piece in enumerate(line)]


def shown_digest(lines: list[str]) -> str:
    """Digest of the value that the lines show, as `Request.sha256` is computed. Raises `ValueError`."""
    return digest(json.loads("".join(line.removeprefix(CONTINUED) for line in lines)))
