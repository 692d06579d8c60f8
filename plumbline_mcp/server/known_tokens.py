"""Looks up the token of each HTTP request."""

import hmac
import logging
from pathlib import Path

import anyio.to_thread
from mcp.server.auth.provider import AccessToken

from approvals.errors import Refused
from approvals.visible import visible_line
from plumbline_mcp.errors import PlumblineError
from plumbline_mcp.server.roles import STDIO_NAME, Role
from plumbline_mcp.server.tokens import Token, Tokens, existing_workspace, start_token_counts

_LOG = logging.getLogger(__name__)


class KnownTokens:
    """Looks each request's token up: the one of this start while it counts, and those that were minted.

    ``start`` is the token of this start, empty for none.
    """

    def __init__(self, home: Path | None, start: str = "") -> None:
        self._home = home
        self._start = start.encode()
        self._minted: Tokens | None = None

    async def verify_token(self, token: str) -> AccessToken | None:
        """Who the token stands for, in which role; None for any other text."""
        return await anyio.to_thread.run_sync(self._known, token)

    def _known(self, token: str) -> AccessToken | None:
        try:
            if self._is_start(token):
                return _access(STDIO_NAME, Role.AGENT, None) if start_token_counts(self._home) else None
            found = self._find(token)
        except (PlumblineError, Refused) as error:
            _LOG.warning("a token is refused: %s", visible_line(error.message))
            return None
        return _access(found.name, found.role, found.ticket) if found else None

    def _is_start(self, token: str) -> bool:
        given = token.encode("utf-8", "surrogateescape")
        return bool(self._start) and hmac.compare_digest(given, self._start)

    def _find(self, token: str) -> Token | None:
        if self._minted is None:
            workspace = existing_workspace(self._home)
            if workspace is None:
                return None
            self._minted = Tokens(workspace)
        return self._minted.find(token)


def _access(name: str, role: Role, ticket: str | None) -> AccessToken:
    """``subject`` also keeps the sessions of two tokens apart: one opened with another token is not found."""
    return AccessToken(token="-", client_id=name, scopes=[role.value], subject=ticket)  # noqa: S106 - the token stays here
