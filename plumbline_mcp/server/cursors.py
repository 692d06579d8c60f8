"""Opaque cursors: where a list goes on, bound to the tool and the arguments it began with."""

import base64
import hashlib
import json
from typing import Any

from plumbline_mcp.errors import UsageError


def encode(tool: str, arguments: dict[str, Any], position: int | str) -> str:
    """A cursor for the rest of a list."""
    raw = json.dumps([_bound(tool, arguments), position]).encode()
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def decode(cursor: str | None, tool: str, arguments: dict[str, Any]) -> int | str | None:
    """The position in a cursor, None without one. Raises `UsageError` for one of another call."""
    if cursor is None:
        return None
    try:
        bound, position = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), "-_", validate=True))
    except (ValueError, TypeError):
        bound, position = None, None
    if bound != _bound(tool, arguments) or not isinstance(position, int | str):
        raise UsageError(
            f"the cursor {cursor[:40]!r} does not belong to this call of {tool}",
            f"call {tool} without a cursor, or with the arguments that the cursor came from",
        )
    return position


def offset(cursor: str | None, tool: str, arguments: dict[str, Any]) -> int:
    """The position of a cursor that counts entries. Raises `UsageError`."""
    position = decode(cursor, tool, arguments)
    if not isinstance(position, int) or position < 0:
        return 0
    return position


def _bound(tool: str, arguments: dict[str, Any]) -> str:
    body = json.dumps([tool, arguments], sort_keys=True, default=str)
    return hashlib.sha256(body.encode()).hexdigest()[:16]
