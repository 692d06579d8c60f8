"""``plumbline show ID``: one verdict or one run."""

from typing import TYPE_CHECKING, Annotated

import typer

from plumbline_mcp.cli.options import Home, Json, paragraphs

if TYPE_CHECKING:
    from plumbline_mcp.workspace import StoredRun, StoredVerdict, Workspace


NAME = "show"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(name=NAME, help=paragraphs(show.__doc__), short_help="Show one verdict or one run.")(show)


def show(
    identifier: Annotated[str, typer.Argument(metavar="ID", help="A verdict or a run, as `list` names it.")],
    json_output: Json = False,
    home: Home = None,
) -> None:
    """Show one stored verdict with its problems and evidence, or one run with how it ended and its log.

    Example: plumbline show data-0001
    """
    from plumbline_mcp.cli.screen import print_json
    from plumbline_mcp.workspace import StoredVerdict, Workspace

    workspace = Workspace.open(home, create=False)
    found = _find(workspace, identifier)
    if json_output:
        print_json(found)
    elif isinstance(found, StoredVerdict):
        _print_stored(found, workspace)
    else:
        _print_run(found, workspace)


def _find(workspace: "Workspace", identifier: str) -> "StoredVerdict | StoredRun":
    from plumbline_mcp.errors import UsageError

    try:
        return workspace.verdict(identifier)
    except UsageError as no_verdict:
        try:
            return workspace.run(identifier)
        except UsageError:
            raise UsageError(
                f"there is neither a verdict nor a run {identifier[:80]!r}", no_verdict.next_step
            ) from no_verdict


def _print_stored(stored: "StoredVerdict", workspace: "Workspace") -> None:
    from plumbline_mcp.cli.screen import console, table, untrusted
    from plumbline_mcp.cli.verdict_view import print_verdict

    verdict = stored.verdict
    print_verdict(stored, workspace.home, problems=None)
    rows = [
        [untrusted(e.role), untrusted(e.sha256[:12]), untrusted(e.size), untrusted(e.path)]
        for e in verdict.evidence
    ]
    if rows:
        console().print(table("evidence", "sha256", "bytes", "path", rows=rows))
    settings = [[untrusted(name), untrusted(value)] for name, value in verdict.settings.items()]
    if settings:
        console().print(table("setting", "value", rows=settings))


def _print_run(run: "StoredRun", workspace: "Workspace") -> None:
    from plumbline_mcp.cli.run_view import open_run, print_ranks
    from plumbline_mcp.cli.screen import console, table, untrusted

    job = run.job
    facts = {
        "run": run.run_id,
        "state": run.state.value,
        "outcome": run.outcome.value if run.outcome else "",
        "reason": run.reason,
        "procedure": job.procedure,
        "framework": job.framework,
        "started": run.created,
        "ended": run.ended or "",
        "manifest": run.manifest_sha256 or "not sealed",
        "approval": job.approval,
        "engine": job.engine,
        "confinement": job.confinement,
        "planted": ", ".join(job.plants) or "nothing",
        "folder": str(workspace.runs / run.run_id),
        **job.target,
    }
    console().print(
        table("of the run", "value", rows=([untrusted(k), untrusted(v)] for k, v in facts.items() if v))
    )
    folder, why = open_run(workspace, run)
    if folder:
        print_ranks(console(), folder)
    else:
        console().print(untrusted(f"its records cannot be read: {why}"))
