"""The person beside a scan that goes through the server: shown each request, they sign it, or leave it."""

import os
import sys
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import typer

from approvals.errors import Refused
from approvals.statement import REASONED, Decision
from plumbline_mcp.cli.progress import paused
from plumbline_mcp.cli.screen import console, labelled
from plumbline_mcp.cli.ticket_view import print_before_signing
from plumbline_mcp.errors import UsageError

if TYPE_CHECKING:
    from approvals.ticket import Ticket
    from plumbline_mcp.scan.served import Reviewer
    from plumbline_mcp.workspace import Workspace

_YES, _NO = (b"y", b"yes"), (b"n", b"no")
_TYPED = 1024
"""Bytes of an answer."""


def example_reviewer(workspace: "Workspace", signs: bool, quiet: bool, to_stderr: bool) -> "Reviewer":
    """Signs with the throwaway key: everything (``signs``), or what a y on the terminal allows.

    Raises `UsageError` where there is nobody to ask. ``to_stderr``: standard output holds the answer alone.
    """
    if not signs and not sys.stdin.isatty():
        raise UsageError(
            "the task has to be signed, and there is no terminal to ask on",
            "have the example's throwaway key sign: plumbline onboard --sign example, or make onboard"
            " SIGN=example",
        )

    async def answers(ticket: "Ticket") -> bool:
        with paused():
            if signs:
                _say("signed with the example key: ", ticket, quiet)
                yes = True
            else:
                print_before_signing(ticket, "approve", stderr=to_stderr)
                yes = await _typed("approve it with the example's throwaway key? [y/N]: ") in _YES
            reason = "the example scan" if yes else "the answer on the terminal was no"
            await _decide(workspace, ticket, yes, workspace.approvals.trust.local_signer(), reason)
        return True

    return answers


def own_reviewer(workspace: "Workspace", signer: str, quiet: bool, to_stderr: bool) -> "Reviewer":
    """Signs with an enrolled reviewer's own key, on this terminal, or leaves the request to the queue.

    ``signer`` is the reviewer; by default whose key lies here. Raises `UsageError` where no reviewer is
    enrolled, and `Refused` where no policy was chosen: nothing could be approved.
    """
    if not workspace.approvals.trust.reviewers():
        raise UsageError(
            "the jobs of a target are signed by a reviewer, and none is enrolled",
            "once: plumbline key enrol NAME; or start them unsigned: plumbline onboard TARGET.toml"
            " --unsigned",
        )
    workspace.approvals.trust.policy()
    here = signer or _local_signer(workspace)

    async def answers(ticket: "Ticket") -> bool:
        with paused():
            if not here or not sys.stdin.isatty():
                _say("waits for a reviewer (plumbline queue): ", ticket, quiet)
                return False
            print_before_signing(ticket, "approve", stderr=to_stderr)
            return await _asked(workspace, ticket, here)

    return answers


async def _asked(workspace: "Workspace", ticket: "Ticket", signer: str) -> bool:
    """Ask until it is signed, refused or left; what ssh-keygen does not sign is asked about again."""
    while True:
        answer = await _typed(f"y: sign it as {signer}, n: reject it, Enter: leave it to plumbline queue: ")
        if not answer:
            return False
        if answer not in (*_YES, *_NO):
            continue
        yes, reason = answer in _YES, b""
        if not yes or ticket.request.action in REASONED:
            reason = await _typed("why (kept with the signature): ")
        try:
            await _decide(workspace, ticket, yes, signer, reason.decode(errors="replace"))
        except Refused as refused:
            console(stderr=True).print(labelled("not signed: ", f"{refused.message}; {refused.next_step}"))
        else:
            return True


async def _decide(workspace: "Workspace", ticket: "Ticket", yes: bool, signer: str, reason: str) -> None:
    """Sign what was shown, and no other request. Raises `Refused`."""
    decision = Decision.APPROVE if yes else Decision.REJECT
    shown = ticket.request.sha256
    await anyio.to_thread.run_sync(
        lambda: workspace.approvals.decide(ticket.id, decision, signer, reason, None, shown)
    )


async def _typed(question: str) -> bytes:
    """The next line on the terminal; Ctrl-C ends the waiting at once."""
    typer.echo(question, nl=False, err=True)
    await anyio.wait_readable(sys.stdin.fileno())
    answer = os.read(sys.stdin.fileno(), _TYPED)  # a line: what is typed ahead is left to the next question
    return answer.strip()


def _local_signer(workspace: "Workspace") -> str:
    """Whose key lies here; empty where it is nobody's, or not clear whose."""
    try:
        return workspace.approvals.trust.local_signer()
    except Refused:
        return ""


def _say(label: str, ticket: "Ticket", quiet: bool) -> None:
    if not quiet:
        asked = f"{ticket.id}, {ticket.request.action.value}: {ticket.request.title}"
        console(stderr=True).print(labelled(label, asked), soft_wrap=True)
