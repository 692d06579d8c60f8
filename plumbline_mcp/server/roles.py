"""Who calls a tool: the role and the name that the token of this request stands for.

Over HTTP every request carries a bearer token, and each is looked up anew: a role belongs to a token, never
to a connection. On standard input and output there is no token: whoever started the server is the agent.
"""

import ipaddress
import socket
import sys
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from plumbline_mcp.errors import UsageError


class Role(StrEnum):
    """What a token allows."""

    AGENT = "agent"
    """Judges files, asks for approvals, proposes findings."""
    VERIFIER = "verifier"
    """Answers neutral questions about sealed records, and sees nothing else."""
    READ_ONLY = "read-only"
    """Reads verdicts and records; stores nothing and starts nothing."""


READERS = (Role.AGENT, Role.READ_ONLY)
EVERYONE = tuple(Role)

STDIO_NAME = "agent"
"""The caller's name where no token says it."""

_TABLES = {4: Path("/proc/net/tcp"), 6: Path("/proc/net/tcp6")}


@dataclass(frozen=True)
class Caller:
    """Who makes this request."""

    name: str
    role: Role
    token: str = ""
    """Ticket under which its token was minted; empty for the token of a start and without a token."""


def caller() -> Caller:
    """Who makes the request that is being answered; the agent where there are no tokens."""
    from mcp.server.auth.middleware.auth_context import get_access_token

    access = get_access_token()
    if access is None:
        return Caller(STDIO_NAME, Role.AGENT)
    (role,) = access.scopes
    return Caller(access.client_id, Role(role), access.subject or "")


def require_role(what: str, roles: Collection[Role]) -> None:
    """Raise `UsageError` when the caller's role is none of those that ``what`` is for."""
    role = caller().role
    if role not in roles:
        named = " or ".join(sorted(roles))
        raise UsageError(
            f"{what} is for the role {named}; the token of this request is of the role {role}",
            "call a tool of tools/list, or ask a reviewer: plumbline token mint",
        )


def peer_uid(context: Any) -> int | None:
    """The operating-system user at the other end of a loopback connection, as the kernel says it.

    ``context`` is the tool's `Context`. None on standard input and output, or when the kernel does not say.
    """
    request = context.request_context.request
    if request is None or request.client is None or not request.scope.get("server"):
        return None
    return socket_owner(tuple(request.client), tuple(request.scope["server"]))


def socket_owner(local: tuple[str, int], remote: tuple[str, int]) -> int | None:
    """Who made the TCP socket with these ends (address, port) on this machine; None when it is not there.

    Also for ends that are no addresses.
    """
    try:
        table = _TABLES[ipaddress.ip_address(local[0]).version]
        ends = [_end(*local), _end(*remote)]
        lines = table.read_text().splitlines()[1:]
    except (ValueError, OSError):
        return None
    found = [line.split() for line in lines]
    return next((int(fields[7]) for fields in found if fields[1:3] == ends), None)


def _end(address: str, port: int) -> str:
    """An address as /proc/net/tcp writes it: words of four bytes in the machine's order."""
    packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    order = -1 if sys.byteorder == "little" else 1
    words = [packed[at : at + 4][::order] for at in range(0, len(packed), 4)]
    return f"{b''.join(words).hex().upper()}:{port:04X}"
