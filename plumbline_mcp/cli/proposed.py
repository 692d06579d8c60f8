"""``plumbline proposed``: checks that somebody proposed, run confined, outside the version until accepted."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plumbline_mcp.cli.options import ExitCode, Home, Json, Quiet, exit_code
from plumbline_mcp.cli.signing import Key, Reason, approve_shown
from plumbline_mcp.cli.verbs import add_group

if TYPE_CHECKING:
    from checks.verdict import Verdict

NAME = "proposed"

_HELP = """Checks proposed by an agent or by you: files in the workspace, run confined (no network, no other
process, no writing), outside the version until a reviewer accepts their text.

Example: plumbline proposed list
"""

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The proposed check.")]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    add_group(
        app,
        NAME,
        _HELP,
        "Add, run and accept proposed checks.",
        (
            ("add", add, "Put a check's file into the workspace."),
            ("list", list_, "List the proposed checks."),
            ("run", run, "Judge with one, confined."),
            ("accept", accept, "Have a reviewer accept its text."),
        ),
    )


def add(
    file: Annotated[Path, typer.Argument(metavar="FILE.py", help="Defines CHECK; CONTRIBUTING.md says how.")],
    name: Annotated[str, typer.Option(metavar="NAME", help="By default the file's name.")] = "",
    json_output: Json = False,
    home: Home = None,
) -> None:
    """Put a check's file into the workspace. It is neither loaded nor run; an earlier one of the name goes.

    Example: plumbline proposed add lines.py
    """
    from plumbline_mcp.cli.screen import console, labelled, print_json
    from plumbline_mcp.scan import proposed_checks
    from plumbline_mcp.workspace import Workspace

    added = proposed_checks.add(Workspace.open(home), name or file.stem, _text(file))
    if json_output:
        print_json(_plain(added))
        return
    console().print(labelled("proposed: ", f"{added.name}, sha256 {added.sha256}"), soft_wrap=True)
    console().print(labelled("next:     ", f"plumbline proposed run {added.name} --input NAME=VALUE"))


def list_(json_output: Json = False, home: Home = None) -> None:
    """List the proposed checks, and who accepted which text.

    Example: plumbline proposed list --json
    """
    from plumbline_mcp.cli.screen import console, print_json, table, untrusted
    from plumbline_mcp.scan import proposed_checks
    from plumbline_mcp.workspace import Workspace

    workspace = Workspace.open(home, create=False)
    found = [proposed_checks.get(workspace, name) for name in proposed_checks.names(workspace)]
    if json_output:
        print_json([_plain(one) for one in found])
    elif found:
        rows = ([untrusted(text) for text in (one.name, one.sha256[:12], one.standing)] for one in found)
        console().print(table("check", "sha256", "standing", rows=rows))
    else:
        console().print("nothing is proposed; next: plumbline proposed add FILE.py")


def run(
    name: _Name,
    given: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=VALUE", help="A path, a run id, or JSON. Repeatable."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, max=14_400, help="Time limit.")] = 600,
    quiet: Quiet = False,
    json_output: Json = False,
    home: Home = None,
) -> int:
    """Judge with a proposed check and store its verdict, marked as outside the version.

    It reads its inputs and nothing else of yours; where it cannot be confined it is not evaluated.

    Exit codes: as of `plumbline check`.

    Example: plumbline proposed run lines --input file=rows.txt
    """
    import anyio

    from plumbline_mcp.cli.progress import shown_progress
    from plumbline_mcp.cli.screen import print_json
    from plumbline_mcp.cli.verdict_view import print_verdict
    from plumbline_mcp.scan.proposed_checks import run_proposed
    from plumbline_mcp.scan.proposed_running import Limits
    from plumbline_mcp.workspace import Workspace

    workspace = Workspace.open(home)
    inputs = dict(_input(one) for one in given or ())

    async def judged() -> "Verdict":
        with shown_progress(f"proposed {name}", quiet or json_output) as progress:
            limits = Limits(seconds=seconds)
            return await run_proposed(workspace, name, inputs, progress=progress, limits=limits)

    verdict = anyio.run(judged)
    if json_output:
        print_json(verdict)
    else:
        print_verdict(workspace.verdict(verdict.id), workspace.home)
    return exit_code(verdict.outcome)


def accept(
    name: _Name,
    as_: Annotated[str, typer.Option("--as", metavar="NAME", help="Sign now, as this reviewer.")] = "",
    key: Key = None,
    reason: Reason = "",
    json_output: Json = False,
    home: Home = None,
) -> int:
    """Have reviewers accept a check's text into the next version: the whole text is what they sign.

    The first call asks; with --as it also shows the request with the whole text (with --json on standard
    error) and signs it, on the terminal. Called again once enough have signed, it is accepted. A text that
    changed meanwhile is another one.

    Exit codes: 0 accepted, 2 it still waits for a signature, 3 usage error or crash.

    Example: plumbline proposed accept lines --as ada
    """
    from plumbline_mcp.cli.screen import console, labelled, print_json
    from plumbline_mcp.cli.who import who_asks
    from plumbline_mcp.scan import proposed_checks
    from plumbline_mcp.workspace import Workspace

    workspace = Workspace.open(home, create=False)
    proposed = proposed_checks.get(workspace, name)
    if not proposed.accepted_by:
        ticket = proposed_checks.ask(workspace, name, who_asks()[0])
        if as_ and ticket.state.value == "pending":
            ticket = approve_shown(workspace.approvals, ticket, as_, reason, key, stderr=json_output)
        if ticket.state.value == "approved":
            proposed = proposed_checks.accept(workspace, ticket.id)
        else:
            proposed = proposed.model_copy(update={"ticket": ticket.id})
    if json_output:
        print_json(_plain(proposed))
    else:
        console().print(labelled(f"{name}: ", proposed.standing), soft_wrap=True)
        if not proposed.accepted_by:
            again = f"plumbline queue approve {proposed.ticket}, then this command again"
            console().print(labelled("next: ", again), soft_wrap=True)
    return ExitCode.PASS if proposed.accepted_by else ExitCode.COULD_NOT_JUDGE


def _text(path: Path) -> str:
    """A check's file. Raises `UsageError` for one that is too long or no text."""
    from plumbline_mcp.errors import UsageError
    from plumbline_mcp.scan.proposed_checks import MAX_BYTES

    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no UTF-8 text", "name a Python file") from error


def _input(text: str) -> tuple[str, Any]:
    """``NAME=VALUE``: JSON where it is JSON, a path made absolute where there is one, else the text."""
    from plumbline_mcp.errors import UsageError

    name, sign, value = text.partition("=")
    if not sign or not name.isidentifier():
        raise UsageError(f"{text[:80]!r} is no NAME=VALUE", "for example --input file=rows.txt")
    path = Path(value).expanduser()
    if "/" in value or path.exists():
        return name, str(path.absolute())
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _plain(proposed: Any) -> dict[str, Any]:
    plain: dict[str, Any] = proposed.model_dump(mode="json", exclude={"source"})
    return plain | {"standing": proposed.standing}
