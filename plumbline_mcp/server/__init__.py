"""The MCP server: the checks, the records and the verdicts as typed tools for coding agents.

Nothing here imports torch, transformers, pyarrow or matplotlib; what needs them runs in workers. The three
functions import the rest when they are called, because workers import this package too.
"""

import gc
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp.server import MCPServer


def build_server(home: Path | None = None, pythons: Iterable[Path] = ()) -> "MCPServer[None]":
    """The server over the workspace at ``home`` (default: ``PLUMBLINE_HOME``, else ``.plumbline`` here).

    ``pythons`` are interpreters that its tools may run.
    """
    from plumbline_mcp.server.application import build

    return build(home, pythons)


def serve_stdio(home: Path | None = None, pythons: Iterable[Path] = ()) -> None:
    """Serve on standard input and output until the client closes them.

    Ctrl-C ends it at once: a thread that waits for input would hold a slower end up for ever. What it started
    ends with it, and what it stores is stored whole.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.disable()  # while modules are imported there is nothing to collect; looking takes a fifth of the start
    from plumbline_mcp.server.transports import stdio

    stdio(home, pythons)


def serve_http(
    port: int = 0, home: Path | None = None, pythons: Iterable[Path] = (), *, announce_json: bool = False
) -> None:
    """Serve streamable HTTP on loopback until interrupted; port 0 takes a free one.

    The client's configuration is printed on standard error, or as one line of JSON on standard output, with
    one random bearer token of this start; where a reviewer is enrolled tokens are minted instead. Raises
    `UsageError` when the port is taken.
    """
    from plumbline_mcp.server.transports import http

    http(port, home, pythons, announce_json=announce_json)
