"""``plumbline report``: stored verdicts as one HTML page and one Markdown page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plumbline_mcp.cli.options import FLAG, Home, Json, paragraphs

if TYPE_CHECKING:
    from plumbline_mcp.workspace import StoredVerdict, Workspace

_CONSIDERED = 500
"""The newest verdicts among which the latest of each check and its inputs is looked for."""


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
        typer.Argument(
            metavar="ID", help="Verdicts; default: the latest of each check on each set of inputs."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where to write; reports/latest in the workspace by default."),
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", metavar=FLAG, help="Every verdict of the workspace.")
    ] = False,
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
    chosen = _chosen(workspace, identifiers or [], all_)
    left_out = _left_out(workspace, chosen)
    written = write_report(chosen, output or workspace.home / "reports" / "latest", left_out=left_out)
    if json_output:
        print_json(written)
    else:
        if left_out:
            console().print(untrusted(left_out, "dim"))
        for path in (written.html, written.markdown):
            console().print(untrusted(path), soft_wrap=True)
    if browse:
        import webbrowser

        webbrowser.open(written.html.as_uri())


def _chosen(workspace: "Workspace", identifiers: list[str], everything: bool) -> "list[StoredVerdict]":
    """The named verdicts, all, or the latest of each subject. Raises `UsageError`: there is none."""
    from plumbline_mcp.errors import UsageError
    from plumbline_mcp.report.subjects import newest_of_each

    if identifiers and everything:
        raise typer.BadParameter("name verdicts or take all of them, not both", param_hint="--all")
    if identifiers:
        return [workspace.verdict(name) for name in dict.fromkeys(identifiers)]
    limit = max(workspace.verdict_count(), 1) if everything else _CONSIDERED
    found = workspace.verdicts(limit=limit)
    if not found:
        raise UsageError(f"there is no verdict in {workspace.home} yet", "plumbline check --help")
    return found[::-1] if everything else newest_of_each(found)


def _left_out(workspace: "Workspace", chosen: "list[StoredVerdict]") -> str:
    """How many verdicts are not in the report, and how they would be; empty when none is left out."""
    failed = sum(stored.verdict.outcome.value == "fail" for stored in chosen)
    absent = workspace.verdict_count() - len(chosen)
    if absent <= 0:
        return ""
    failures = workspace.verdict_count(outcome="fail") - failed
    return (
        f"{absent} of this workspace's verdicts {'is' if absent == 1 else 'are'} not in this report"
        f" ({failures} of them failed); plumbline report --all includes them,"
        " plumbline report ID ... chooses."
    )
