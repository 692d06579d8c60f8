"""``plumbline verify FINDING``: have a finding rebuilt from the raw records by somebody else."""

import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plumbline_mcp.cli.finding import Id
from plumbline_mcp.cli.options import FLAG, ExitCode, Home, Json, paragraphs

if TYPE_CHECKING:
    from plumbline_mcp.findings.records import Verification
    from plumbline_mcp.workspace import Workspace

NAME = "verify"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        name=NAME, help=paragraphs(verify.__doc__), short_help="Rebuild a finding from the raw records."
    )(verify)


def verify(
    identifier: Id,
    recompute: Annotated[
        bool,
        typer.Option("--recompute", metavar=FLAG, help="By the separately written recomputation (default)."),
    ] = False,
    command: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="By a program that is started in the copy and prints its answer."),
    ] = None,
    as_: Annotated[
        str, typer.Option("--as", metavar="NAME", help="Who the program is; never the proposer.")
    ] = "command",
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A private file whose path the program gets: PLUMBLINE_TOKEN_FILE."
        ),
    ] = None,
    json_output: Json = False,
    home: Home = None,
) -> int:
    """Give a neutral copy of the sealed records to a verifier and compare what it finds with the claim.

    The copy holds records and references under neutral names, and question.json; never the claim, the
    database or a report. A program answers with one JSON object on standard output: outcome (pass, fail,
    inconclusive), values, place, problems (docs/findings.md). Where a recomputation exists, it has to agree:
    a program's agreement alone does not rebuild.

    Exit codes: 0 it agrees, 1 it disputes, 2 it could not decide, 3 usage error.

    Example: plumbline verify finding-0001 --recompute
    """
    from plumbline_mcp.errors import UsageError
    from plumbline_mcp.workspace import Workspace

    if recompute and command:
        raise UsageError("--recompute and --command are two ways", "give one of them")
    if token_file and not command:
        raise UsageError("--token-file goes with --command", 'name the program too: --command "..."')
    workspace = Workspace.open(home, create=False)
    answered = _answered(workspace, identifier, command, as_, token_file)
    _print(workspace, answered, json_output)
    result = str(answered.comparison.result) if answered.comparison else ""
    return {"agree": ExitCode.PASS, "dispute": ExitCode.FAIL}.get(result, ExitCode.COULD_NOT_JUDGE)


def _answered(
    workspace: "Workspace", identifier: str, command: str | None, name: str, token_file: Path | None
) -> "Verification":
    from plumbline_mcp.cli.finding import person
    from plumbline_mcp.errors import UsageError
    from plumbline_mcp.findings.verification import verify_by_command, verify_by_recompute

    if command is None:
        return verify_by_recompute(workspace, identifier)
    words = shlex.split(command)
    if not words:
        raise UsageError("--command is empty", 'name a program: --command "./my-verifier"')
    words[0] = _program(words[0])
    return verify_by_command(workspace, identifier, person(name), words, token_file)


def _program(named: str) -> str:
    """Where the program lies, seen from here: it is started in another folder. Raises `UsageError`."""
    from plumbline_mcp.errors import UsageError

    found = shutil.which(Path(named).expanduser() if named.startswith("~") else named)
    if found is None:
        raise UsageError(
            f"--command: there is no program {named!r} that may be executed, seen from this folder and PATH",
            "name it with its folder (./NAME) and chmod +x it; files among its arguments by absolute path",
        )
    return str(Path(found).absolute())


def _print(workspace: "Workspace", answered: "Verification", json_output: bool) -> None:
    from plumbline_mcp.cli.finding_view import print_verification
    from plumbline_mcp.cli.screen import console, labelled, print_json
    from plumbline_mcp.findings.store import Findings

    finding = Findings(workspace).get(answered.finding).finding
    if json_output:
        told = answered.model_dump(mode="json", exclude={"kept"})
        print_json(told | {"state": finding.state, "left_out": answered.kept.left_out})
        return
    print_verification(answered)
    step = {
        "rebuilt": f"plumbline finding confirm {finding.id}",
        "disputed": "propose a new finding with what the verifier saw",
    }.get(finding.state.value, f"plumbline verify {finding.id} --recompute")
    console().print(labelled(f"{finding.id} is {finding.state}; next: ", step, "dim"), soft_wrap=True)
