"""``plumbline key``: who may sign approvals."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plumbline_mcp.cli.options import FLAG, Json
from plumbline_mcp.cli.verbs import add_group

if TYPE_CHECKING:
    from approvals.allowed_signers import Signer

NAME = "key"

_HELP = """Reviewers' keys. They lie in PLUMBLINE_TRUST (~/.config/plumbline), outside every workspace.

Example: plumbline key list
"""


def register(app: typer.Typer) -> None:
    """Add the verb."""
    add_group(
        app,
        NAME,
        _HELP,
        "Enrol, list and revoke reviewers' keys.",
        (
            ("enrol", enrol, "Let a key sign approvals."),
            ("list", list_, "List the enrolled keys."),
            ("revoke", revoke, "Stop a key from counting."),
        ),
    )


def enrol(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The reviewer, as approvals will name them.")],
    key: Annotated[
        Path | None,
        typer.Option(metavar="FILE.pub", help="A public key that exists; without it, one is made here."),
    ] = None,
    elsewhere: Annotated[
        bool,
        typer.Option(
            "--elsewhere", metavar=FLAG, help="The private key lies on another machine: not tested here."
        ),
    ] = False,
    valid_before: Annotated[
        str, typer.Option(metavar="YYYYMMDD", help="The key counts until this day begins (UTC).")
    ] = "",
    json_output: Json = False,
) -> None:
    """Let a key sign approvals from now on; without --key, make one and ask for its passphrase.

    A key that opens with an empty passphrase is refused: every program of yours could sign with it. Keys in a
    token (ssh-keygen -t ed25519-sk) are welcome. Use a key for this alone and never load it into an agent.

    Example: plumbline key enrol ada --key ~/.ssh/approvals.pub
    """
    from approvals.trust import TrustRoots
    from plumbline_mcp.cli.screen import console, labelled, print_json

    trust = TrustRoots()
    signer = trust.enrol(name, key, elsewhere, valid_before)
    has_policy = trust.policy_file.exists()
    if json_output:
        print_json(_plain(signer))
        return
    out = console()
    out.print(labelled("enrolled: ", f"{signer.principal}, {signer.key.type} {signer.key.fingerprint}"))
    out.print(labelled("in:       ", trust.allowed_signers), soft_wrap=True)
    if not has_policy:
        out.print(labelled("next:     ", "plumbline policy use solo (or team)"))


def list_(json_output: Json = False) -> None:
    """List the enrolled keys: whose, since when they count, and which are revoked.

    Example: plumbline key list --json
    """
    from approvals.trust import TrustRoots
    from plumbline_mcp.cli.screen import console, print_json, table, untrusted

    trust = TrustRoots()
    signers = trust.enrolled() if trust.folder.exists() else ()
    if json_output:
        print_json([_plain(signer) for signer in signers])
        return
    texts = ((s.principal, _standing(s), s.key.type, s.key.fingerprint) for s in signers)
    cells = ([untrusted(text) for text in row] for row in texts)
    if signers:
        console().print(table("reviewer", "counts", "type", "fingerprint", rows=cells))
    else:
        console().print("no key is enrolled yet; next: plumbline key enrol NAME")


def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A reviewer (all keys), or one fingerprint.")],
    json_output: Json = False,
) -> None:
    """Stop a key from counting, also for what it signed before: what was not yet used is no longer approved.

    Example: plumbline key revoke ada
    """
    from approvals.trust import TrustRoots
    from plumbline_mcp.cli.screen import console, labelled, print_json

    revoked = TrustRoots().revoke(name)
    if json_output:
        print_json([_plain(signer) for signer in revoked])
        return
    for signer in revoked:
        console().print(labelled("revoked: ", f"{signer.principal}, {signer.key.fingerprint}"))


def _standing(signer: "Signer") -> str:
    if signer.revoked:
        return "revoked"
    until = f"until {signer.valid_before}" if signer.valid_before else "yes"
    return f"{until}, passphrase not tested" if signer.elsewhere else until


def _plain(signer: "Signer") -> dict[str, Any]:
    return {
        "principal": signer.principal,
        "type": signer.key.type,
        "fingerprint": signer.key.fingerprint,
        "valid_after": signer.valid_after,
        "valid_before": signer.valid_before,
        "revoked": signer.revoked,
        "elsewhere": signer.elsewhere,
    }
