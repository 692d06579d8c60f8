"""``plumbline verify-evidence FILE``: check an evidence archive offline, with one's own keys."""

from pathlib import Path
from typing import Annotated

import typer

from plumbline_mcp.cli.options import FLAG, ExitCode, Json, paragraphs

NAME = "verify-evidence"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        name=NAME,
        help=paragraphs(verify_evidence.__doc__),
        short_help="Check an evidence archive with your own keys.",
    )(verify_evidence)


def verify_evidence(
    archive: Annotated[
        Path, typer.Argument(metavar="FILE", help="The archive, as `export-evidence` wrote it.")
    ],
    allowed_signers: Annotated[
        Path, typer.Option(metavar="FILE", help="Whose signatures you accept, in OpenSSH's format.")
    ],
    revoked: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keys that no longer count, one a line.")
    ] = None,
    example: Annotated[
        bool,
        typer.Option("--example", metavar=FLAG, help="Accept the throwaway example key: it proves nothing."),
    ] = False,
    json_output: Json = False,
) -> int:
    """Hold everything in an archive against everything else, and the signatures against your own file.

    Needs no workspace and no network. Nothing is unpacked.

    Exit codes: 0 it holds and a reviewer of yours signed it, 1 it does not hold, 2 it holds and nobody you
    accept signed it, 3 usage error.

    Example: plumbline verify-evidence finding-0001.evidence.tar --allowed-signers my_signers
    """
    from plumbline_mcp.cli.finding_view import print_evidence
    from plumbline_mcp.cli.screen import console, labelled, print_json
    from plumbline_mcp.findings.evidence import verify_evidence as check
    from plumbline_mcp.findings.tar import EvidenceRefused

    try:
        report = check(archive, allowed_signers, revoked, example)
    except EvidenceRefused as error:
        if json_output:
            told = {"holds": False, "reason": error.message, "next_step": error.next_step}
            print_json(told | {"exit_code": int(ExitCode.FAIL)})
        else:
            console(stderr=True).print(labelled("refused: ", error.message), soft_wrap=True)
            console(stderr=True).print(labelled("  next: ", error.next_step, "dim"), soft_wrap=True)
        return ExitCode.FAIL
    if json_output:
        print_json(report.model_dump(mode="json") | {"holds": True, "confirmed": report.confirmed})
    else:
        print_evidence(report)
    return ExitCode.PASS if report.confirmed else ExitCode.COULD_NOT_JUDGE
