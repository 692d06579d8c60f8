"""``plumbline queue``: what waits for a reviewer's signature, and signing it."""

import importlib.util
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plumbline_mcp.cli.options import ExitCode, Home, Json
from plumbline_mcp.cli.signing import Key, Signer
from plumbline_mcp.cli.verbs import add_group

if TYPE_CHECKING:
    from approvals.queue import Approvals
    from approvals.ticket import Ticket

NAME = "queue"

_HELP = """Requests that wait for a signature. Without a verb: the screen (on a terminal, with the extra
`screen` installed), else the list. Decisions are signed at a terminal; pending is not approved.

Example: plumbline queue list --state pending
"""
_POLL_S = 1.0


class StateName(StrEnum):
    """The states, as `approvals.ticket.TicketState` (not imported here: help must not wait for pydantic)."""

    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    USED = "used"


_Id = Annotated[str, typer.Argument(metavar="ID", help="The ticket, as `plumbline queue list` names it.")]
_To = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write what is to be signed, to sign it on another machine."),
]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    add_group(
        app,
        NAME,
        _HELP,
        "Show, approve and reject what waits for a signature.",
        (
            ("list", list_, "List requests and how they stand."),
            ("show", show, "Show one request in full."),
            ("approve", approve, "Sign that it may be done."),
            ("reject", reject, "Sign that it may not."),
            ("record", record, "Take in a decision that was signed elsewhere."),
            ("wait", wait, "Wait until it is decided."),
        ),
        callback=queue,
    )


def queue(
    context: typer.Context,
    notify: Annotated[
        str,
        typer.Option(
            metavar="COMMAND", help="While the screen is open, run this with a line about each new request."
        ),
    ] = "",
    home: Home = None,
) -> None:
    """Open the screen where there is one, else list and say how to get it."""
    if context.invoked_subcommand is not None:
        return
    command = _words(notify)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        list_(home=home)
    elif importlib.util.find_spec("textual"):
        from approvals import screen

        with _approvals(home) as approvals:
            screen.run(approvals, command)
    else:
        from approvals.screen import INSTALL
        from plumbline_mcp.cli.screen import console

        list_(home=home)
        console(stderr=True).print(f"for the screen: {INSTALL}")


def list_(
    state: Annotated[StateName | None, typer.Option(help="Only those in this state.")] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=1000, help="At most so many, newest first.")
    ] = 20,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Go on after this ticket.")] = None,
    json_output: Json = False,
    home: Home = None,
) -> None:
    """List requests, newest first: what is asked, by whom, at which cost, and how it stands.

    Example: plumbline queue list --state pending
    """
    from plumbline_mcp.cli.screen import console, print_json
    from plumbline_mcp.cli.ticket_view import plain, ticket_table

    with _approvals(home) as approvals:
        tickets = approvals.tickets(state.value if state else None, limit, after)
    if json_output:
        print_json([plain(ticket) for ticket in tickets])
    elif tickets:
        console().print(ticket_table(tickets))
    else:
        console().print(f"nothing is {state.value}" if state else "nothing was asked for yet")


def show(identifier: _Id, json_output: Json = False, home: Home = None) -> None:
    """Show one request in full: what it allows on what, its cost, rule, tier, decisions, and its content.

    Example: plumbline queue show A-5ba3ad3b8e-1
    """
    with _approvals(home) as approvals:
        _show(approvals.ticket(identifier), json_output)


def approve(
    identifier: _Id,
    as_: Signer = "",
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; findings need one.")] = "",
    key: Key = None,
    statement_to: _To = None,
    json_output: Json = False,
    home: Home = None,
) -> None:
    """Sign that a request may be done. The passphrase (or the touch) is asked on the terminal.

    In an example workspace the throwaway key signs: after a y on the terminal, or without one with
    --as example. With --statement-to nothing is signed here: sign the file where your key lies
    (ssh-keygen -Y sign -n plumbline-approval@v1 -f KEY FILE), then plumbline queue record FILE FILE.sig

    Example: plumbline queue approve A-5ba3ad3b8e-1 --as ada
    """
    with _approvals(home) as approvals:
        _decide(approvals, identifier, "approve", as_, reason, key, statement_to, json_output)


def reject(
    identifier: _Id,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="What would be accepted instead.")],
    as_: Signer = "",
    key: Key = None,
    statement_to: _To = None,
    json_output: Json = False,
    home: Home = None,
) -> None:
    """Sign that a request may not be done, and say what would be accepted. It also stops what was approved
    and is not used yet.

    Example: plumbline queue reject A-5ba3ad3b8e-1 --reason "8 nodes are enough" --as ada
    """
    with _approvals(home) as approvals:
        _decide(approvals, identifier, "reject", as_, reason, key, statement_to, json_output)


def record(
    statement: Annotated[Path, typer.Argument(metavar="FILE", help="What --statement-to wrote.")],
    signature: Annotated[Path, typer.Argument(metavar="FILE.sig", help="Its signature.")],
    json_output: Json = False,
    home: Home = None,
) -> None:
    """Take in a decision that was signed on another machine.

    Example: plumbline queue record statement.json statement.json.sig
    """
    from approvals.statement import Statement
    from plumbline_mcp.cli.ticket_view import small_text

    signed = Statement.parse(small_text(statement).rstrip("\n"))
    with _approvals(home) as approvals:
        _show(approvals.record(signed.ticket, signed, small_text(signature)), json_output, brief=True)


def wait(
    identifier: _Id,
    timeout: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Wait no longer.")] = 1800,
    json_output: Json = False,
    home: Home = None,
) -> int:
    """Wait until a request is decided. Waiting decides nothing.

    Exit codes: 0 approved (or used), 1 rejected, 2 pending, expired or withdrawn, 3 usage error or crash.

    Example: plumbline queue wait A-5ba3ad3b8e-1 --timeout 600
    """
    end = time.monotonic() + timeout
    with _approvals(home) as approvals:
        while (ticket := approvals.ticket(identifier)).state.value == "pending" and time.monotonic() < end:
            time.sleep(min(_POLL_S, max(end - time.monotonic(), 0)))
    _show(ticket, json_output, brief=True)
    if ticket.state.value in ("approved", "used"):
        return ExitCode.PASS
    return ExitCode.FAIL if ticket.state.value == "rejected" else ExitCode.COULD_NOT_JUDGE


def _decide(
    approvals: "Approvals",
    identifier: str,
    decision: str,
    signer: str,
    reason: str,
    key: Path | None,
    statement_to: Path | None,
    json_output: bool,
) -> None:
    from plumbline_mcp.cli.ticket_view import print_before_signing

    named, signer = bool(signer), signer or approvals.trust.local_signer()
    if statement_to:
        _write_statement(approvals, identifier, decision, signer, reason, statement_to, json_output)
        return
    ticket = approvals.ticket(identifier)
    print_before_signing(ticket, decision, stderr=json_output)
    if approvals.trust.is_example:
        _ask_for_example(decision, named)
    _show(
        approvals.decide(identifier, decision, signer, reason, key, ticket.request.sha256),
        json_output,
        brief=True,
    )


def _ask_for_example(decision: str, named: bool) -> None:
    """The throwaway key has no passphrase that could be the question."""
    from plumbline_mcp.errors import UsageError

    if sys.stdin.isatty():
        if not typer.confirm(f"{decision} it with the example's throwaway key?", default=False, err=True):
            raise UsageError("nothing was signed", "repeat it and answer y")
    elif not named:
        raise UsageError("there is no terminal to ask on", "say that the example's key signs: --as example")


def _write_statement(
    approvals: "Approvals",
    identifier: str,
    decision: str,
    signer: str,
    reason: str,
    path: Path,
    json_output: bool,
) -> None:
    from plumbline_mcp.cli.screen import console, labelled, print_json

    statement = approvals.draft(identifier, decision, signer, reason)
    with path.open("xb") as file:
        file.write(statement.bytes())
    command = f"ssh-keygen -Y sign -n {approvals.trust.namespace} -f KEY {path}"
    if json_output:
        print_json({"statement": str(path), "sha256": statement.sha256, "sign": command})
        return
    console().print(labelled("written: ", path), soft_wrap=True)
    console().print(labelled("next:    ", command), soft_wrap=True)
    console().print(labelled("then:    ", f"plumbline queue record {path} {path}.sig"), soft_wrap=True)


def _show(ticket: "Ticket", json_output: bool, brief: bool = False) -> None:
    from plumbline_mcp.cli.screen import print_json
    from plumbline_mcp.cli.ticket_view import plain, print_ticket

    if json_output:
        print_json(plain(ticket))
    else:
        print_ticket(ticket, brief)


def _words(command: str) -> list[str]:
    """The words of a command, as a shell would cut them; no shell runs it."""
    from plumbline_mcp.errors import UsageError

    try:
        return shlex.split(command)
    except ValueError as error:
        raise UsageError(
            f"--notify {command!r} is no command: {error}", "quote it as a shell would want it"
        ) from error


@contextmanager
def _approvals(home: Path | None) -> Iterator["Approvals"]:
    """The approvals of the workspace that is there: to look is no reason to make one."""
    from plumbline_mcp.workspace import Workspace
    from plumbline_mcp.workspace.database import explained
    from plumbline_mcp.workspace.location import DATABASE

    workspace = Workspace.open(home, create=False)
    with explained(workspace.home / DATABASE):
        yield workspace.approvals
