"""``plumbline check NAME``: one command per discovered check, generated from the check itself."""

import inspect
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from plumbline_mcp.cli.options import EXIT_CODES, Home, Json, Quiet, exit_code, paragraphs

_HELP = f"""Run one check on your own files: no task, no signature, no queue.

A path may also be the id of a run in the workspace. {EXIT_CODES}

Example: plumbline check image --python venv/bin/python --framework transformers
"""


class CheckGroup(TyperGroup):
    """Builds its commands when they are first asked for: the checks are imported only then."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the checks, in the order of the training lifecycle."""
        self._discover()
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a check, None when there is no such check."""
        self._discover()
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the arguments name; the names are known before a suggestion is made."""
        self._discover()
        return super().resolve_command(ctx, args)

    def _discover(self) -> None:
        if not self.commands:
            import checks

            self.commands = {name: _command(check) for name, check in checks.discover().items()}


NAME = "check"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.add_typer(
        typer.Typer(cls=CheckGroup, add_completion=False, rich_markup_mode=None),
        name=NAME,
        help=paragraphs(_HELP),
        short_help="Run one check on your own files.",
        no_args_is_help=False,
    )


def _command(check: Any) -> Any:
    """The typer command of one check."""
    from plumbline_mcp.cli.inputs import given, parameters

    def run(*, json_output: bool, quiet: bool, home: Any, time_limit: float | None, **values: Any) -> int:
        return _run(check.name, given(check.inputs, values), json_output, quiet, home, time_limit)

    shared = [
        _keyword("time_limit", _TimeLimit, None),
        _keyword("json_output", Json, False),
        _keyword("quiet", Quiet, False),
        _keyword("home", Home, None),
    ]
    made = [*parameters(check.inputs), *shared]
    run.__signature__ = inspect.Signature(made)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in made}
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name=check.name, help=_help(check), short_help=_plain(check.question))(run)
    return get_command(app)


_TimeLimit = Annotated[
    float | None,
    typer.Option(
        "--time-limit",
        min=1,
        metavar="SECONDS",
        help="Stop after this long (4 hours by default); the verdict is then inconclusive.",
    ),
]


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _help(check: Any) -> str:
    return "\n\n".join(
        (
            _plain(check.question),
            f"Reference: {_plain(check.reference)}",
            f"Rule: {_plain(check.rule)}",
            f"Example: {_plain(check.example)}",
            EXIT_CODES,
        )
    )


def _plain(text: str) -> str:
    return " ".join(text.split())


def _run(
    name: str, inputs: dict[str, Any], as_json: bool, quiet: bool, home: Any, time_limit: float | None
) -> int:
    import anyio

    from plumbline_mcp.cli.progress import shown_progress
    from plumbline_mcp.cli.screen import print_json
    from plumbline_mcp.cli.verdict_view import print_verdict
    from plumbline_mcp.scan.service import run_check
    from plumbline_mcp.workspace import Workspace

    workspace = Workspace.open(home)
    limit = {} if time_limit is None else {"timeout_s": time_limit}

    async def judged() -> Any:
        with shown_progress(f"check {name}", quiet or as_json) as progress:
            return await run_check(workspace, name, inputs, progress=progress, **limit)

    verdict = anyio.run(judged)
    if as_json:
        print_json(verdict)
    else:
        print_verdict(workspace.verdict(verdict.id), workspace.home)
    return exit_code(verdict.outcome)
