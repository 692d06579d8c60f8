"""``plumbline reevaluate``: judge stored records again with the installed version."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from plumbline_mcp.cli.options import ExitCode, Home, Json, Quiet, paragraphs

if TYPE_CHECKING:
    from plumbline_mcp.scan.reevaluation import Reevaluation
    from plumbline_mcp.workspace import Workspace


NAME = "reevaluate"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        name=NAME,
        help=paragraphs(reevaluate.__doc__),
        short_help="Judge stored records again with this version.",
    )(reevaluate)


def reevaluate(
    identifiers: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="Verdicts; default: all of them.")
    ] = None,
    of: Annotated[
        str, typer.Option(metavar="VERSION", help="Only verdicts of this version: plumbline version list.")
    ] = "",
    json_output: Json = False,
    quiet: Quiet = False,
    home: Home = None,
) -> int:
    """List each verdict that the installed version gives differently, and why; the old verdicts stay.

    Where the version that gave them is described here (plumbline version list), what differs between it and
    this one in rules, reference libraries and files is said first.

    Exit codes: 0 nothing changed, 1 a verdict changed, 2 a record changed or is gone, 3 usage error.

    Example: plumbline reevaluate --json
    """
    import anyio

    from plumbline_mcp.cli.progress import shown_progress
    from plumbline_mcp.cli.screen import print_json
    from plumbline_mcp.scan.reevaluation import reevaluate as judge_again
    from plumbline_mcp.workspace import Workspace

    workspace = Workspace.open(home, create=False)

    async def judged() -> "list[Reevaluation]":
        with shown_progress("reevaluate", quiet or json_output) as progress:
            return await judge_again(workspace, identifiers or (), progress, of)

    results = anyio.run(judged)
    if json_output:
        print_json(results)
    else:
        _print_versions(workspace, results)
        _print(results)
    return _exit_code(results)


def _print_versions(workspace: "Workspace", results: "list[Reevaluation]") -> None:
    """From which version to which, and what differs, as far as it is known here."""
    from plumbline_mcp.cli.screen import console, untrusted
    from plumbline_mcp.errors import UsageError
    from plumbline_mcp.scan.versions import content_of, difference, installed

    now = installed()
    for name in dict.fromkeys(result.version_before for result in results if result.version_before):
        if name.removesuffix("+dev") == now.name:
            continue
        try:
            found = difference(content_of(workspace, name), now)
        except UsageError:
            told = "not described here"
        else:
            changed = [f"{rule}: {old} -> {new}" for rule, (old, new) in found.rules.items()]
            changed += [f"{library}: {old} -> {new}" for library, (old, new) in found.pins.items()]
            told = "; ".join([*changed, f"{len(found.files)} other files"])
        console().print(untrusted(f"{name} -> {now.name}: {told}"), soft_wrap=True)


def _print(results: "list[Reevaluation]") -> None:
    from plumbline_mcp.cli.screen import console, outcome_text, table, untrusted

    def row(result: "Reevaluation") -> list[Any]:
        return [
            untrusted(result.before),
            outcome_text(result.outcome_before),
            untrusted(result.after or ""),
            outcome_text(result.outcome_after) if result.outcome_after else untrusted(""),
            untrusted(result.change.value.replace("_", " ")),
            untrusted("; ".join(result.why)),
        ]

    if results:
        console().print(table("before", "", "now", "", "change", "why", rows=map(row, results)))
    else:
        console().print("no verdicts yet")


def _exit_code(results: "list[Reevaluation]") -> ExitCode:
    met = {result.change.value for result in results}
    if "changed" in met:
        return ExitCode.FAIL
    return ExitCode.COULD_NOT_JUDGE if met - {"same"} else ExitCode.PASS
