"""``plumbline onboard``: the example scan, on a release that is built on the spot."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plumbline_mcp.cli.options import Json, Quiet, exit_code, paragraphs

if TYPE_CHECKING:
    from approvals.ticket import Ticket
    from plumbline_mcp.scan.onboarding import OnboardResult
    from plumbline_mcp.scan.served import Reviewer
    from plumbline_mcp.workspace import Workspace

NAME = "onboard"

_EXAMPLE_HOME = ".plumbline-example"
"""A workspace of its own: what the throwaway key signs must not lie beside what counts."""
_SIGN = "example"


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
    sign: Annotated[
        str,
        typer.Option(
            metavar="example",
            help="The example's throwaway key signs, and nobody is asked.",
        ),
    ] = "",
    json_output: Json = False,
    quiet: Quiet = False,
    home: Annotated[
        Path | None,
        typer.Option(
            "--home",
            metavar="FOLDER",
            envvar="PLUMBLINE_HOME",
            help="The workspace; by default ./.plumbline, of the embedded release ./.plumbline-example.",
        ),
    ] = None,
) -> int:
    """Take the first scan of a target: environment, dry run, rows, load, first steps, export; write a report.

    Without a target a tiny release is built on the spot, and a scripted agent scans it through the MCP server
    (`plumbline serve`): task, checks without training, dry run, first run, plan, the other jobs, findings and
    their verification. What it asks for is shown here, and a y signs it with a throwaway key that counts in
    this example alone; without a terminal say --sign example. Nothing is downloaded but the packages of the
    framework's environment, once. A dry run that fails ends the scan with the framework's own sentence.

    With --plant the scan of the tiny release has to find that fault, at its place, and nothing else: exit
    code 1 is then what is wanted.

    Example: plumbline onboard --plant stop-token-unlabelled --sign example
    """
    import anyio

    from plumbline_mcp.cli.progress import shown_progress
    from plumbline_mcp.cli.screen import print_json
    from plumbline_mcp.scan.onboarding import onboard as scan
    from plumbline_mcp.scan.onboarding import onboard_target
    from plumbline_mcp.workspace import Workspace

    _refuse(target, plant, sign)
    example = target is None
    workspace = Workspace.open(
        home or (Path(_EXAMPLE_HOME) if example else None), kind="example" if example else None
    )
    reviewer = _reviewer(sign, quiet, json_output)

    async def scanned() -> "OnboardResult":
        with shown_progress("onboard", quiet or json_output) as progress:
            if target is not None:
                return await onboard_target(workspace, target, progress)
            return await scan(workspace, plant, progress, corpus, reviewer)

    result = anyio.run(scanned)
    if json_output:
        print_json(result)
    else:
        _print(result, workspace)
    return exit_code(result.outcome)


def _refuse(target: Path | None, plant: str | None, sign: str) -> None:
    """Raise for options that do not go together."""
    if target is not None and plant is not None:
        raise typer.BadParameter("a fault is planted into the embedded release alone", param_hint="--plant")
    if sign not in ("", _SIGN):
        raise typer.BadParameter(
            f"only the example's throwaway key signs here: --sign {_SIGN}", param_hint="--sign"
        )
    if target is not None and sign:
        raise typer.BadParameter(
            "the example's key counts for the embedded release alone; for a target of yours enrol your own:"
            " plumbline key enrol NAME",
            param_hint="--sign",
        )


def _reviewer(sign: str, quiet: bool, json_output: bool) -> "Reviewer | None":
    """Who answers for the person: the person on the terminal, the option, or nobody."""
    if not sign and not sys.stdin.isatty():
        return None

    async def decides(ticket: "Ticket") -> bool:
        if sign:
            _say_signed(ticket, quiet or json_output)
            return True
        return await _asked(ticket, json_output)

    return decides


def _say_signed(ticket: "Ticket", quiet: bool) -> None:
    from plumbline_mcp.cli.progress import paused
    from plumbline_mcp.cli.screen import console, labelled

    if quiet:
        return
    with paused():
        asked = f"{ticket.id}, {ticket.request.action.value}: {ticket.request.title}"
        console(stderr=True).print(labelled("signed with the example key: ", asked), soft_wrap=True)


async def _asked(ticket: "Ticket", json_output: bool) -> bool:
    """Show the request and wait for an answer; Ctrl-C ends the waiting at once."""
    import anyio

    from plumbline_mcp.cli.progress import paused
    from plumbline_mcp.cli.ticket_view import print_before_signing

    with paused():
        print_before_signing(ticket, "approve", stderr=json_output)
        typer.echo("approve it with the example's throwaway key? [y/N]: ", nl=False, err=True)
        await anyio.wait_readable(sys.stdin.fileno())
        answer = os.read(sys.stdin.fileno(), 1024)  # a line: what is typed ahead is left to the next question
        return answer.strip().lower() in (b"y", b"yes")


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
    _print_course(result, workspace)
    if result.result is not None and result.plant is not None:
        out.print(labelled("planted: ", f"{result.plant}: {result.result.score.value}"))
        for extra in result.result.extra:
            out.print(labelled("  also seen: ", extra, "dim"))
    if result.target is None:
        out.print(
            labelled("workspace: ", f"{workspace.home} (plumbline show ID --home FOLDER)"), soft_wrap=True
        )
    if result.report is not None:
        out.print(labelled("report:  ", result.report), soft_wrap=True)
    out.print(Text.assemble(("outcome: ", "bold"), outcome_text(result.outcome)))


def _print_course(result: "OnboardResult", workspace: "Workspace") -> None:
    """Where the scan ended early, and what the agent found."""
    from plumbline_mcp.cli.screen import console, labelled

    out = console()
    if result.dry_run is not None and not result.dry_run.started:
        out.print(labelled("not started: ", f"{result.dry_run.sentence} ({result.dry_run.run_id})"))
        out.print(labelled("not reached: ", ", ".join(result.not_reached) or "nothing was left"))
    elif result.stopped:
        out.print(labelled("stopped: ", result.stopped))
        out.print(labelled("not reached: ", ", ".join(result.not_reached) or "nothing was left"))
    for name in result.findings:
        out.print(labelled("finding: ", _finding(workspace, name)))
    for reason in result.unfound:
        out.print(labelled("no finding: ", reason))


def _finding(workspace: "Workspace", name: str) -> str:
    from plumbline_mcp.findings.finding import Pattern
    from plumbline_mcp.findings.store import Findings

    found = Findings(workspace).get(name).finding
    where = f" at {found.place}" if str(found.place) else ""
    pattern = f"pattern {int(found.pattern)}, {Pattern(found.pattern).words}"
    return f"{name} {found.state.value}: {found.title}{where} ({pattern})"
