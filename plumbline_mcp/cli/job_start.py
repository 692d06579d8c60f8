"""``plumbline job start``: a job of a signed task or plan, as it was signed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plumbline_mcp.cli.options import ExitCode, Home, Json, Quiet

if TYPE_CHECKING:
    from plumbline_mcp.workspace import Workspace


def start(
    ticket: Annotated[str, typer.Argument(metavar="TICKET", help="Of a signed task or plan.")],
    job: Annotated[
        str, typer.Argument(metavar="JOB", help="Its name there; `environment` builds a task's environment.")
    ],
    attempt: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="By default the next one after a failure.")
    ] = None,
    json_output: Json = False,
    quiet: Quiet = False,
    home: Home = None,
) -> int:
    """Start a job of a signed task or plan, exactly as it was signed; it goes on when this program ends.

    The approval is verified now and each attempt is used once. Called again while the job runs, or after it
    succeeded, it names the same run. Exit codes: 0 started, 3 refused, usage error or crash.

    Example: plumbline job start A-5ba3ad3b8e-1 dry_run
    """
    from plumbline_mcp.cli.screen import console, labelled, print_json
    from plumbline_mcp.scan.starting import start_job
    from plumbline_mcp.scan.task import BUILD
    from plumbline_mcp.workspace import Workspace

    workspace = Workspace.open(home, create=False)
    if job == BUILD:
        python = str(_built(workspace, ticket, quiet or json_output))
        if json_output:
            print_json({"python": python, "approval": ticket})
        else:
            console().print(labelled("built:  ", python), soft_wrap=True)
        return ExitCode.PASS
    started = start_job(workspace, ticket, job, attempt)
    found = {"run_id": started.run_id, "attempt": started.attempt, "new": started.new, "approval": ticket}
    if json_output:
        print_json(found | {"folder": str(workspace.runs / started.run_id)})
    else:
        console().print(labelled("run:    ", started.run_id))
        said = "" if started.new else " (started before)"
        console().print(labelled("attempt:", f" {started.attempt}{said}"))
        console().print(labelled("next:   ", f"plumbline job wait {started.run_id}"))
    return ExitCode.PASS


def _built(workspace: "Workspace", ticket: str, quiet: bool) -> Path:
    import anyio

    from plumbline_mcp.cli.progress import shown_progress
    from plumbline_mcp.scan.starting import build_environment

    with shown_progress("job start", quiet) as progress:
        return anyio.run(build_environment, workspace, ticket, progress)
