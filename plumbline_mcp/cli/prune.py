"""``plumbline prune``: the folders of runs that nothing rests on any more."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from plumbline_mcp.cli.options import FLAG, ExitCode, Home, Json, paragraphs

if TYPE_CHECKING:
    from plumbline_mcp.scan.pruning import Unneeded

NAME = "prune"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        name=NAME, help=paragraphs(prune.__doc__), short_help="List or remove run folders that nothing needs."
    )(prune)


def prune(
    identifiers: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="Runs; default: all that nothing needs.")
    ] = None,
    remove: Annotated[
        bool, typer.Option("--remove", metavar=FLAG, help="Remove them; without it they are only listed.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", metavar=FLAG, help="With --remove: do not ask.")] = False,
    json_output: Json = False,
    home: Home = None,
) -> int:
    """List the folders of finished runs that nothing rests on any more; with --remove they go.

    A folder stays that a verdict which counts, a finding or another run's job rests on, and a run that still
    waits for its check. Verdicts that newer ones took the place of stay readable, but cannot be judged again:
    they are named. Each removal is an entry of the audit log.

    Example: plumbline prune --remove
    """
    from plumbline_mcp.cli.screen import print_json
    from plumbline_mcp.scan.pruning import remove as removed
    from plumbline_mcp.scan.pruning import unneeded
    from plumbline_mcp.workspace import Workspace

    if yes and not remove:
        raise typer.BadParameter("it belongs to --remove", param_hint="--yes")
    workspace = Workspace.open(home, create=False)
    found = unneeded(workspace, identifiers or [])
    if not json_output:
        _print(found, removing=remove)
    if remove and found:
        if not yes:
            _ask(len(found), can_ask=sys.stdin.isatty() and not json_output)
        removed(workspace, found)
    if json_output:
        print_json({"removed": remove, "runs": [one.model_dump(mode="json") for one in found]})
    elif remove and found:
        from plumbline_mcp.cli.screen import console

        console().print(f"removed: {len(found)}")
    return ExitCode.PASS


def _ask(count: int, *, can_ask: bool) -> None:
    from plumbline_mcp.errors import UsageError

    if not can_ask:
        raise UsageError("nobody is there to be asked", "give --yes to remove them without a question")
    if not typer.confirm(f"remove the folders of {count} runs for good?", default=False, err=True):
        raise UsageError("nothing was removed", "repeat it and answer y")


def _print(found: "list[Unneeded]", *, removing: bool) -> None:
    from plumbline_mcp.cli.screen import console, table, untrusted

    out = console()
    if not found:
        out.print("nothing may go: each run folder is needed, or waits for its check")
        return
    cells = (
        [
            untrusted(one.run_id, limit=60),
            untrusted(f"{one.bytes / 1e6:,.1f} MB"),
            untrusted(", ".join(one.verdicts) or "none"),
            untrusted(one.why),
        ]
        for one in found
    )
    out.print(table("run", "size", "verdicts that lose their evidence", "why it may go", rows=cells))
    out.print(f"together: {sum(one.bytes for one in found) / 1e6:,.1f} MB")
    if not removing:
        out.print("nothing was removed; next: plumbline prune --remove")
