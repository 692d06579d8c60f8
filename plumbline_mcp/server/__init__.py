"""The MCP server: the checks, the records and the verdicts as typed tools for coding agents.

Nothing here imports torch, transformers, pyarrow or matplotlib; what needs them runs in workers. The three
functions import the rest when they are called, because workers import this package too.
"""

import gc
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp.server import MCPServer


def build_server(home: Path | None = None) -> "MCPServer[None]":
    """The server over the workspace at ``home`` (default: ``PLUMBLINE_HOME``, else ``.plumbline`` here)."""
    from plumbline_mcp.server.application import build

    return build(home)


def serve_stdio(home: Path | None = None) -> None:
    """Serve on standard input and output until the client closes them."""
    gc.disable()  # while modules are imported there is nothing to collect; looking takes a fifth of the start
    from plumbline_mcp.server.transports import stdio

    stdio(home)


def serve_http(port: int = 0, home: Path | None = None) -> None:
    """Serve streamable HTTP on loopback until interrupted; port 0 takes a free one.

    One random bearer token is made for each start and printed, with the client's configuration, on
    standard error. Raises `UsageError` when the port is taken.
    """
    from plumbline_mcp.server.transports import http

    http(port, home)
