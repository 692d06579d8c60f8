"""The options of the verbs that sign, and signing what was shown."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from approvals.queue import Approvals
    from approvals.ticket import Ticket

Signer = Annotated[
    str, typer.Option("--as", metavar="NAME", help="Who signs; by default whose key lies here.")
]
Key = Annotated[
    Path | None,
    typer.Option("--key", metavar="FILE", help="The private key; by default the one enrolled here."),
]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept with the signature.")]


def approve_shown(
    approvals: "Approvals", ticket: "Ticket", signer: str, reason: str, key: Path | None, *, stderr: bool
) -> "Ticket":
    """Show the whole request (``stderr``: beside an answer in JSON), then sign that very text.

    Raises `approvals.errors.Refused`, also where the request is another one by then.
    """
    from plumbline_mcp.cli.ticket_view import print_before_signing

    print_before_signing(ticket, "approve", stderr=stderr)
    return approvals.decide(ticket.id, "approve", signer, reason, key, ticket.request.sha256)
