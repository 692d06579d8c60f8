"""``plumbline onboard``: the example scan, on a release that is built on the spot."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plumbline_mcp.cli.options import FLAG, Json, Quiet, exit_code, paragraphs
from plumbline_mcp.cli.signing import Signer

if TYPE_CHECKING:
    from plumbline_mcp.scan.onboarding import OnboardResult
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
    signer: Signer = "",
    unsigned: Annotated[
        bool,
        typer.Option(
            "--unsigned", metavar=FLAG, help="Start your target's jobs without a signature: approval none."
        ),
    ] = False,
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

    A scripted agent scans it through the MCP server (`plumbline serve`): task, checks without training, dry
    run, first run, plan, the other jobs, findings and their verification. What it asks for is shown here, and
    you sign it with your key (`plumbline key enrol`), or leave it to `plumbline queue` and the scan waits.
    With --unsigned the same jobs are started for you, and each verdict says approval none. A dry run that
    fails ends the scan with the framework's own sentence.

    Without a target a tiny release is built on the spot. A y then signs with a throwaway key that counts in
    this example alone; without a terminal say --sign example. Nothing is downloaded but the packages of the
    framework's environment, once.

    With --plant the scan of the tiny release has to find that fault, at its place, and nothing else: exit
    code 1 is then what is wanted.

    Example: plumbline onboard target.toml
    """
    import anyio

    from plumbline_mcp.cli.progress import shown_progress
    from plumbline_mcp.cli.reviewing import example_reviewer, own_reviewer
    from plumbline_mcp.cli.screen import print_json
    from plumbline_mcp.scan.onboarding import onboard as scan
    from plumbline_mcp.scan.onboarding import onboard_target, onboard_unsigned
    from plumbline_mcp.workspace import Workspace

    _refuse(target, plant, sign, signer, unsigned)
    example, silenced = target is None, quiet or json_output
    workspace = Workspace.open(
        home or (Path(_EXAMPLE_HOME) if example else None), kind="example" if example else None
    )

    async def scanned() -> "OnboardResult":
        with shown_progress("onboard", silenced) as progress:
            if target is None:
                asked = partial(example_reviewer, workspace, bool(sign), silenced, json_output)
                return await scan(workspace, asked, plant, progress, corpus)
            if unsigned:
                return await onboard_unsigned(workspace, target, progress)
            asked = partial(own_reviewer, workspace, signer, quiet, json_output)
            return await onboard_target(workspace, target, asked, progress)

    result = anyio.run(scanned)
    if json_output:
        print_json(result)
    else:
        _print(result, workspace)
    return exit_code(result.outcome)


def _refuse(target: Path | None, plant: str | None, sign: str, signer: str, unsigned: bool) -> None:
    """Raise for options that do not go together."""
    if target is not None and plant is not None:
        raise typer.BadParameter("a fault is planted into the embedded release alone", param_hint="--plant")
    if target is None and (signer or unsigned):
        raise typer.BadParameter(
            "the embedded release is signed with the example's throwaway key: name a TARGET.toml",
            param_hint="--as" if signer else "--unsigned",
        )
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
