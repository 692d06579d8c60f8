"""``plumbline report``: stored verdicts as one HTML page and one Markdown page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plumbline_mcp.cli.options import FLAG, Home, Json, paragraphs

if TYPE_CHECKING:
    from plumbline_mcp.report.history import Standing
    from plumbline_mcp.workspace import StoredVerdict, Workspace


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
        typer.Argument(metavar="ID", help="Verdicts; default: the newest of each check on each subject."),
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

    The newest verdict on each subject counts; the earlier ones are listed below it. A subject is a check on
    the same inputs with the same content and options; runs of one procedure with the same inputs and the
    same settings are one subject, and of them the newest run counts. A verdict that decided nothing takes the
    place of no failure. A failure under one setting stays until that setting is judged again, also where the
    file is another one by now (the report says so): one that was made by mistake is left out by naming the
    others.

    Example: plumbline report --output scan-of-today
    """
    from plumbline_mcp.cli.screen import console, print_json, untrusted
    from plumbline_mcp.findings.store import Findings
    from plumbline_mcp.report import write_report
    from plumbline_mcp.scan.separation import separation
    from plumbline_mcp.workspace import Workspace

    workspace = Workspace.open(home, create=False)
    counting = _chosen(workspace, identifiers or [], all_)
    earlier = {one.stored.verdict.id: one.earlier for one in counting if one.earlier}
    since = {one.stored.verdict.id: one.since for one in counting if one.since}
    chosen = [one.stored for one in counting]
    left_out = _left_out(workspace, [*chosen, *(each for many in earlier.values() for each in many)])
    folder = output or workspace.home / "reports" / "latest"
    trust = separation(workspace)
    found = Findings(workspace).every()
    written = write_report(
        chosen, folder, left_out=left_out, earlier=earlier, trust=trust, findings=found, since=since
    )
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


def _chosen(workspace: "Workspace", identifiers: list[str], everything: bool) -> "list[Standing]":
    """The named verdicts, all, or those that count. Raises `UsageError`: there is none."""
    from plumbline_mcp.errors import UsageError
    from plumbline_mcp.report.history import Standing, standing_in

    if identifiers and everything:
        raise typer.BadParameter("name verdicts or take all of them, not both", param_hint="--all")
    if identifiers:
        return [Standing(workspace.verdict(name)) for name in dict.fromkeys(identifiers)]
    count = workspace.verdict_count()
    if not count:
        raise UsageError(f"there is no verdict in {workspace.home} yet", "plumbline check --help")
    if everything:
        return [Standing(stored) for stored in workspace.verdicts(limit=count)[::-1]]
    return standing_in(workspace)


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
