"""``plumbline task``: what a reviewer signs first, drafted from a target."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plumbline_mcp.cli.options import Home, Json, Quiet
from plumbline_mcp.cli.verbs import add_group

if TYPE_CHECKING:
    from plumbline_mcp.scan.task import Task

NAME = "task"

_HELP = """A task names target, commit, environment and a cap of node-hours. Once it is signed it covers
building the environment, the dry run, the jobs of checks that need no training, and the recipe's first run.

Example: plumbline task draft target.toml
"""

Requester = Annotated[
    str, typer.Option("--as", metavar="NAME", help="Who asks; by default your account, which is kept too.")
]
Ticket = Annotated[str, typer.Argument(metavar="ID", help="Its ticket, as `plumbline queue list` names it.")]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    add_group(
        app,
        NAME,
        _HELP,
        "Draft and show a task.",
        (
            ("draft", draft, "Ask for a task."),
            ("show", show, "Show the jobs of a task."),
        ),
    )


def draft(
    target: Annotated[Path, typer.Argument(metavar="TARGET.toml", help="`plumbline init` writes one.")],
    node_hours: Annotated[
        float | None,
        typer.Option(
            min=0, max=1e6, metavar="N", help="The cap; by default what the whole scan can take at most."
        ),
    ] = None,
    as_: Requester = "",
    json_output: Json = False,
    quiet: Quiet = False,
    home: Home = None,
) -> None:
    """Ask for the task of a target: every job is rendered and digested, nothing is built or started.

    The same draft is the same ticket. A large model is read once: its digest is kept.

    Example: plumbline task draft target.toml --node-hours 4
    """
    from plumbline_mcp.cli.plan_view import asking, print_task
    from plumbline_mcp.cli.who import who_asks
    from plumbline_mcp.scan.task import draft_task, request_task
    from plumbline_mcp.workspace import Workspace

    workspace = Workspace.open(home)

    def make() -> "Task":
        return draft_task(workspace, target, node_hours)

    task = asking("task draft", make, quiet or json_output)
    print_task(request_task(workspace, task, *who_asks(as_)), task, json_output)


def show(identifier: Ticket, json_output: Json = False, home: Home = None) -> None:
    """Show what a task covers: its jobs with digest and cost, and how it stands.

    Example: plumbline task show A-5ba3ad3b8e-1
    """
    from plumbline_mcp.cli.plan_view import print_task
    from plumbline_mcp.scan.task import task_of
    from plumbline_mcp.workspace import Workspace

    ticket = Workspace.open(home, create=False).approvals.ticket(identifier)
    print_task(ticket, task_of(ticket), json_output)
