"""``plumbline serve``: the MCP server."""

from typing import Annotated

import typer

from plumbline_mcp.cli.options import Home

NAME = "serve"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(name=NAME, short_help="Serve the same abilities to coding agents (MCP).")(serve)


def serve(
    http: Annotated[bool, typer.Option("--http", help="HTTP on loopback instead of standard input.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port for --http; 0 takes a free one.")] = 0,
    home: Home = None,
) -> None:
    """Serve the checks, verdicts and records as MCP tools; over --http with one random token per start.

    Example: plumbline serve --http --port 8765
    """
    raise NotImplementedError
