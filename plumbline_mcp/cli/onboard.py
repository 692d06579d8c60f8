"""``plumbline onboard``: the example scan, on a release that is built on the spot."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plumbline_mcp.cli.options import Home, Json, Quiet, exit_code, paragraphs

if TYPE_CHECKING:
    from plumbline_mcp.scan.onboarding import OnboardResult
    from plumbline_mcp.workspace import Workspace

NAME = "onboard"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        name=NAME,
        help=paragraphs(onboard.__doc__),
        short_help="Take the first scan: of an embedded release, or of your target.",
    )(onboard)


def onboard(
    target: Annotated[
        Path | None,
        typer.Argument(
            metavar="TARGET.toml",
            help="Your own target, as `plumbline init` writes it; without one the embedded release.",
            show_default=False,
        ),
    ] = None,
    plant: Annotated[
        str | None,
        typer.Option(metavar="FAULT", help="Plant this fault first; `plumbline faults list` names them."),
    ] = None,
    corpus: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Where the fault is described; tests/faults of this checkout by default."
        ),
    ] = None,
    json_output: Json = False,
    quiet: Quiet = False,
    home: Home = None,
) -> int:
    """Take the first scan of a target: environment, dry run, rows, load, first steps, export; write a report.

    Without a target a tiny release is built on the spot. Nothing is downloaded but the packages of the
    framework's environment, once. A dry run that fails ends the scan with the framework's own sentence.
    With --plant the scan of the tiny release has to find that fault, at its place, and nothing else: exit
    code 1 is then what is wanted.

    Example: plumbline onboard --plant stop-token-unlabelled
    """
    import anyio

    from plumbline_mcp.cli.progress import shown_progress
    from plumbline_mcp.cli.screen import print_json
    from plumbline_mcp.scan.onboarding import onboard as scan
    from plumbline_mcp.scan.onboarding import onboard_target
    from plumbline_mcp.workspace import Workspace

    if target is not None and plant is not None:
        raise typer.BadParameter("a fault is planted into the embedded release alone", param_hint="--plant")
    workspace = Workspace.open(home)

    async def scanned() -> "OnboardResult":
        with shown_progress("onboard", quiet or json_output) as progress:
            if target is not None:
                return await onboard_target(workspace, target, progress)
            return await scan(workspace, plant, progress, corpus)

    result = anyio.run(scanned)
    if json_output:
        print_json(result)
    else:
        _print(result, workspace)
    return exit_code(result.outcome)


def _print(result: "OnboardResult", workspace: "Workspace") -> None:
    from rich.text import Text

    from checks.verdict import Outcome
    from plumbline_mcp.cli.screen import console, labelled, outcome_text, table, untrusted
    from plumbline_mcp.cli.verdict_view import print_verdict

    out = console()
    for verdict in result.verdicts:
        if verdict.outcome is not Outcome.PASS:
            print_verdict(workspace.verdict(verdict.id), workspace.home, out)
            out.print()
    rows = (
        [untrusted(v.id), untrusted(v.check), outcome_text(v.outcome), untrusted(v.reason)]
        for v in result.verdicts
    )
    out.print(table("verdict", "check", "outcome", "reason", rows=rows))
    if result.dry_run is not None and not result.dry_run.started:
        out.print(labelled("not started: ", f"{result.dry_run.sentence} ({result.dry_run.run_id})"))
        out.print(labelled("not reached: ", ", ".join(result.not_reached) or "nothing was left"))
    if result.result is not None and result.plant is not None:
        out.print(labelled("planted: ", f"{result.plant}: {result.result.score.value}"))
        for extra in result.result.extra:
            out.print(labelled("  also seen: ", extra, "dim"))
    if result.report is not None:
        out.print(labelled("report:  ", result.report), soft_wrap=True)
    out.print(Text.assemble(("outcome: ", "bold"), outcome_text(result.outcome)))
