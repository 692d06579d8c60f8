"""``plumbline token``: who may use the server over HTTP, and as what."""

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plumbline_mcp.cli.options import FLAG, Home, Json
from plumbline_mcp.cli.signing import Key, Reason, Signer, approve_shown
from plumbline_mcp.cli.verbs import add_group

if TYPE_CHECKING:
    from plumbline_mcp.server.tokens import Token, Tokens

NAME = "token"

_HELP = """Tokens for the server over HTTP: minted under a reviewer's signature, stored as digests only.

Example: plumbline token list
"""


class RoleName(StrEnum):
    """The roles, as `plumbline_mcp.server.roles.Role` (not imported here: help must not wait for it)."""

    AGENT = "agent"
    VERIFIER = "verifier"
    READ_ONLY = "read-only"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    add_group(
        app,
        NAME,
        _HELP,
        "Mint, list and revoke tokens for HTTP.",
        (
            ("mint", mint, "Make a token and have it signed."),
            ("list", list_, "List the tokens, never the tokens themselves."),
            ("revoke", revoke, "Stop a token from counting."),
        ),
    )


def mint(
    role: Annotated[RoleName, typer.Argument(metavar="ROLE", help="agent, verifier or read-only.")],
    name: Annotated[str, typer.Option(metavar="NAME", help="Who uses it, as requests will name them.")],
    days: Annotated[int, typer.Option(metavar="N", min=1, max=366, help="How long it counts.")] = 90,
    to: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the token into a new file (mode 0600), do not print it."),
    ] = None,
    later: Annotated[
        bool,
        typer.Option(
            "--later", metavar=FLAG, help="Only ask: it counts once plumbline queue approve signed it."
        ),
    ] = False,
    as_: Signer = "",
    key: Key = None,
    reason: Reason = "",
    json_output: Json = False,
    home: Home = None,
) -> None:
    """Make a token for one role and have a reviewer sign it (the passphrase is asked on the terminal).

    agent judges, asks and proposes; verifier answers neutral questions about sealed records and sees nothing
    else; read-only reads. The token is shown once, or written with --to; only its digest is kept. Where the
    policy lets nobody sign what they asked for, use --later: the token counts once the ticket is signed.

    Example: plumbline token mint verifier --name second-agent --to verifier.token
    """
    from plumbline_mcp.cli.screen import console, labelled, print_json
    from plumbline_mcp.cli.who import who_asks

    tokens = _tokens(home)
    _refuse_existing(to)
    minted = tokens.ask(role.value, name, days, who_asks()[0])
    listed = minted.listed if later else _signed(tokens, minted.listed, as_, key, reason, stderr=json_output)
    if to:
        _write(to, minted.token)
    if json_output:
        shown = {"token": None if to else minted.token, "file": str(to) if to else None}
        print_json({**listed.model_dump(mode="json"), **shown})
        return
    out = console()
    out.print(labelled("ticket: ", listed.ticket))
    out.print(labelled("role:   ", f"{listed.role} ({listed.name})"))
    out.print(labelled("token:  ", f"in {to}" if to else minted.token), soft_wrap=True)
    if later:
        out.print(labelled("next:   ", f"plumbline queue approve {listed.ticket}"))


def list_(json_output: Json = False, home: Home = None) -> None:
    """List the tokens: whose, which role, how each stands, who signed it. Only digests are kept.

    Example: plumbline token list --json
    """
    from plumbline_mcp.cli.screen import console, print_json, table, untrusted
    from plumbline_mcp.server.tokens import until

    listed = _tokens(home).listed()
    if json_output:
        print_json([one.model_dump(mode="json") for one in listed])
        return
    texts = (
        (one.name, one.role, one.state, until(one.ends), ", ".join(one.signers) or "nobody", one.ticket)
        for one in listed
    )
    cells = ([untrusted(text) for text in row] for row in texts)
    if listed:
        console().print(table("name", "role", "state", "until (UTC)", "signed by", "ticket", rows=cells))
    else:
        console().print("no token was minted yet; next: plumbline token mint ROLE --name NAME")


def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A token's name, or its ticket.")],
    json_output: Json = False,
    home: Home = None,
) -> None:
    """Stop a token from counting, from the next request on. It needs no signature: it takes rights away.

    Example: plumbline token revoke second-agent
    """
    from plumbline_mcp.cli.screen import console, labelled, print_json

    revoked = _tokens(home).revoke(name)
    if json_output:
        print_json([one.model_dump(mode="json") for one in revoked])
        return
    for one in revoked:
        console().print(labelled("revoked: ", f"{one.name} ({one.role}), {one.ticket}"))


def _signed(
    tokens: "Tokens", listed: "Token", signer: str, key: Path | None, reason: str, *, stderr: bool
) -> "Token":
    """Shown, signed and counting; when nobody signs, its request does not stay behind. Raises `Refused`."""
    from approvals.errors import Refused

    approvals = tokens.approvals
    try:
        signer = signer or approvals.trust.local_signer()
        approve_shown(approvals, approvals.ticket(listed.ticket), signer, reason, key, stderr=stderr)
        return tokens.activate(listed.ticket)
    except Refused as error:
        tokens.revoke(listed.ticket)
        raise Refused(
            f"the token was not signed: {error.message}",
            f"{error.next_step}; or mint it with --later, and have another reviewer approve it",
        ) from error


def _refuse_existing(path: Path | None) -> None:
    from plumbline_mcp.errors import UsageError

    if path is not None and (path.exists() or path.is_symlink()):
        raise UsageError(f"{path} exists already", "name a new file: a token is never written over another")


def _write(path: Path, token: str) -> None:
    """The token alone, readable by its owner alone from the first byte on."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token + "\n")


def _tokens(home: Path | None) -> "Tokens":
    from plumbline_mcp.server.tokens import Tokens
    from plumbline_mcp.workspace import Workspace

    return Tokens(Workspace.open(home))
