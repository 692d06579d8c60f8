"""``plumbline serve``: the MCP server."""

from pathlib import Path
from typing import Annotated

import typer

from plumbline_mcp.cli.options import FLAG, Home, paragraphs

NAME = "serve"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        name=NAME,
        help=paragraphs(serve.__doc__),
        short_help="Serve the same abilities to coding agents (MCP).",
    )(serve)


def serve(
    http: Annotated[
        bool, typer.Option("--http", metavar=FLAG, help="HTTP on loopback instead of standard input.")
    ] = False,
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Port for --http; 0 takes a free one.")
    ] = 0,
    python: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="Interpreter that agents may have judged by check_image; may be given several times.",
        ),
    ] = None,
    json_output: Annotated[
        bool,
        typer.Option(
            "--json",
            metavar=FLAG,
            help="With --http: address, token and configuration as one line of JSON on standard output.",
        ),
    ] = False,
    home: Home = None,
) -> None:
    """Serve checks, verdicts and records as MCP tools, on standard input and output or over HTTP.

    check_image runs the interpreter of the environment it judges, so it takes only interpreters that you name
    here, that a check or a run from the command line used in this workspace, or that Plumbline built.

    HTTP listens on loopback only and wants a token. While no reviewer is enrolled, one of this start is
    printed: on standard error for people, with --json on standard output for programs, once it listens. With
    a reviewer, tokens are minted: plumbline token mint.

    Example: plumbline serve --python venv/bin/python
    """
    from plumbline_mcp.server import serve_http, serve_stdio

    if http:
        serve_http(port, home, python or (), announce_json=json_output)
    elif port:
        raise typer.BadParameter("a port is for --http; standard input has none", param_hint="--port")
    elif json_output:
        raise typer.BadParameter(
            "standard output carries the protocol, JSON already; add --http to have the address told",
            param_hint="--json",
        )
    else:
        serve_stdio(home, python or ())
