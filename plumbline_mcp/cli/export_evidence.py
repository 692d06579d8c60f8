"""``plumbline export-evidence FINDING``: everything that a third party needs to check a finding."""

from pathlib import Path
from typing import Annotated

import typer

from plumbline_mcp.cli.finding import Id
from plumbline_mcp.cli.options import Home, Json, paragraphs

NAME = "export-evidence"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        name=NAME,
        help=paragraphs(export_evidence.__doc__),
        short_help="Write a finding's evidence into one file.",
    )(export_evidence)


def export_evidence(
    identifier: Id,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where to; FINDING.evidence.tar by default.")
    ] = None,
    json_output: Json = False,
    home: Home = None,
) -> None:
    """Write a finding's evidence archive: finding, verdicts, sealed records, verifications, signatures, log.

    It is checked anywhere, without this workspace: plumbline verify-evidence FILE --allowed-signers FILE

    Example: plumbline export-evidence finding-0001
    """
    from checks.records.runs import sha256_file
    from plumbline_mcp.cli.screen import console, print_json, untrusted
    from plumbline_mcp.findings.archive import export_evidence as write
    from plumbline_mcp.workspace import Workspace

    workspace = Workspace.open(home, create=False)
    written = write(workspace, identifier, out or Path.cwd() / f"{identifier}.evidence.tar")
    sha256, size = sha256_file(written)
    if json_output:
        print_json({"file": str(written), "sha256": sha256, "size": size})
    else:
        console().print(untrusted(f"{written} ({size:,} bytes, sha256 {sha256})"), soft_wrap=True)
