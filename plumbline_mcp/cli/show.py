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
    identifier: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="A verdict or a run, as `list` names it; verdict:ID or run:ID where both exist.",
        ),
    ],
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
        print_json(found[0])
        return
    for number, one in enumerate(found):
        if number:
            _print_other(one)
        elif isinstance(one, StoredVerdict):
            _print_stored(one, workspace)
        else:
            _print_run(one, workspace)


def _find(workspace: "Workspace", identifier: str) -> "list[StoredVerdict | StoredRun]":
    """The verdict and the run of that id, the one that exists; of a marked id that kind alone."""
    from plumbline_mcp.errors import UsageError

    kind, marked, name = identifier.partition(":")
    if not marked or kind not in ("verdict", "run"):
        kind, name = "", identifier
    found: list[StoredVerdict | StoredRun] = []
    next_step = ""
    for asked, look in (("verdict", workspace.verdict), ("run", workspace.run)):
        if kind in ("", asked):
            try:
                found.append(look(name))
            except UsageError as error:
                next_step = next_step or error.next_step
    if not found:
        what = f"no {kind}" if kind else "neither a verdict nor a run"
        raise UsageError(f"there is {what} {name[:80]!r}", next_step)
    return found


def _print_other(other: "StoredVerdict | StoredRun") -> None:
    """Say that a run has the id of the verdict that was shown: each counts its own."""
    from plumbline_mcp.cli.screen import console, labelled
    from plumbline_mcp.workspace import StoredRun

    if isinstance(other, StoredRun):
        console().print(labelled("a run has this id too: ", f"plumbline show run:{other.run_id}"))


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
