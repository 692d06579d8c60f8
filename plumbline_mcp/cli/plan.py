"""``plumbline plan``: the jobs that train, drafted under a signed task."""

from typing import TYPE_CHECKING, Annotated

import typer

from plumbline_mcp.cli.options import Home, Json, Quiet
from plumbline_mcp.cli.task import Requester, Ticket
from plumbline_mcp.cli.verbs import add_group

if TYPE_CHECKING:
    from plumbline_mcp.scan.plan import Plan

NAME = "plan"

_HELP = """A plan names the jobs that train, each rendered and by digest, under a signed task: the recipe,
or a bounded grid of settings around it.

Example: plumbline plan draft A-5ba3ad3b8e-1
"""


def register(app: typer.Typer) -> None:
    """Add the verb."""
    add_group(
        app,
        NAME,
        _HELP,
        "Draft and show a plan.",
        (
            ("draft", draft, "Ask for a plan."),
            ("show", show, "Show the jobs of a plan."),
        ),
    )


def draft(
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK", help="The ticket of a signed task; with --rerun or --fix, or of a plan."
        ),
    ],
    check: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Jobs of this check; may be repeated; all that train by default."),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=[V,...]",
            help="A setting and its values, as JSON; may be repeated; at most 200 jobs.",
        ),
    ] = None,
    attempts: Annotated[int, typer.Option(min=1, max=10, metavar="N", help="So often a job may start.")] = 2,
    rerun: Annotated[
        str | None, typer.Option(metavar="JOB", help="Instead: this job of the task or plan, once more.")
    ] = None,
    fix: Annotated[
        str | None,
        typer.Option(
            metavar="FINDING",
            help="Instead: its jobs (or that of --rerun) as a change for this confirmed finding left them.",
        ),
    ] = None,
    as_: Requester = "",
    json_output: Json = False,
    quiet: Quiet = False,
    home: Home = None,
) -> None:
    """Ask for the jobs that train: every one is rendered and digested, and its cost is told. None is started.

    Example: plumbline plan draft A-5ba3ad3b8e-1 --grid 'learning_rate=[1e-5,1e-4]'
    """
    from approvals.statement import Action
    from plumbline_mcp.cli.inputs import settings_of
    from plumbline_mcp.cli.plan_view import asking, print_plan
    from plumbline_mcp.cli.who import who_asks
    from plumbline_mcp.scan.fixing import draft_fix
    from plumbline_mcp.scan.plan import draft_plan, draft_rerun, request_plan
    from plumbline_mcp.workspace import Workspace

    if (rerun or fix) and (check or grid):
        hint = "--fix" if fix else "--rerun"
        raise typer.BadParameter("it takes neither --check nor --grid", param_hint=hint)

    values = {
        name: value if isinstance(value, list) else [value] for name, value in settings_of(grid or []).items()
    }
    workspace = Workspace.open(home, create=False)

    def make() -> "Plan":
        if fix:
            return draft_fix(workspace, task, fix, rerun, attempts)
        if rerun:
            return draft_rerun(workspace, task, rerun)
        return draft_plan(workspace, task, check or [], values, attempts)

    plan = asking("plan draft", make, quiet or json_output)
    action = Action.RERUN if rerun and not fix else Action.PLAN
    print_plan(request_plan(workspace, plan, *who_asks(as_), action=action), plan, json_output)


def show(identifier: Ticket, json_output: Json = False, home: Home = None) -> None:
    """Show the jobs of a plan with changed settings, digest and cost, and how it stands.

    Example: plumbline plan show A-0c2a9d11f4-1
    """
    from plumbline_mcp.cli.plan_view import print_plan
    from plumbline_mcp.errors import UsageError
    from plumbline_mcp.scan.plan import Plan, jobs_of
    from plumbline_mcp.workspace import Workspace

    ticket = Workspace.open(home, create=False).approvals.ticket(identifier)
    plan = jobs_of(ticket)
    if not isinstance(plan, Plan):
        raise UsageError(f"{ticket.id} is a task, no plan", f"plumbline task show {ticket.id}")
    print_plan(ticket, plan, json_output)
