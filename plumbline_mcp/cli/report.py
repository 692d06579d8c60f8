"""``plumbline report``: stored verdicts as one HTML page and one Markdown page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plumbline_mcp.cli.options import FLAG, Home, Json, paragraphs

if TYPE_CHECKING:
    from plumbline_mcp.workspace import StoredVerdict, Workspace

_CONSIDERED = 200
"""The newest verdicts among which the latest of each check and target is looked for."""


NAME = "report"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        name=NAME,
        help=paragraphs(report.__doc__),
        short_help="Write verdicts as an HTML and a Markdown page.",
    )(report)


def report(
    identifiers: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Verdicts; default: the latest of each check and target."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where to write; reports/latest in the workspace by default."),
    ] = None,
    browse: Annotated[bool, typer.Option("--open", metavar=FLAG, help="Open the page in a browser.")] = False,
    json_output: Json = False,
    home: Home = None,
) -> None:
    """Write report.html (one self-contained page) and report.md from stored verdicts.

    Example: plumbline report --output scan-of-today
    """
    from plumbline_mcp.cli.screen import console, print_json, untrusted
    from plumbline_mcp.report import write_report
    from plumbline_mcp.workspace import Workspace

    workspace = Workspace.open(home, create=False)
    chosen = [workspace.verdict(name) for name in identifiers or ()] or latest(workspace)
    written = write_report(chosen, output or workspace.home / "reports" / "latest")
    if json_output:
        print_json(written)
    else:
        for path in (written.html, written.markdown):
            console().print(untrusted(path), soft_wrap=True)
    if browse:
        import webbrowser

        webbrowser.open(written.html.as_uri())


def latest(workspace: "Workspace") -> "list[StoredVerdict]":
    """The newest verdict of each check on each target, oldest first. Raises `UsageError`: none is stored."""
    from plumbline_mcp.errors import UsageError

    newest: dict[str, StoredVerdict] = {}
    for stored in workspace.verdicts(limit=_CONSIDERED):
        verdict = stored.verdict
        newest.setdefault(f"{verdict.check} {sorted(verdict.target.items())}", stored)
    if not newest:
        raise UsageError(f"there is no verdict in {workspace.home} yet", "plumbline check --help")
    return list(newest.values())[::-1]
