"""Who asks on the command line: the account that runs the program, not what the environment says it is."""

import os

from approvals.accounts import PRINCIPAL, account_name
from plumbline_mcp.errors import UsageError


def who_asks(named: str = "") -> tuple[str, int]:
    """The requester's name, and as which user of the system they ask.

    Without a name it is that of the account; an account without a name that can be signed is `uid-N`. Under
    sudo it is the account that called sudo, and no other name may be given: the user of the system is root
    then, which says nothing of who asks. Raises `UsageError` for a name that cannot be signed.
    """
    uid = os.getuid()
    by_sudo = os.environ.get("SUDO_UID", "") if uid == 0 else ""
    account = account_name(int(by_sudo) if by_sudo.isdecimal() else uid)
    if named and not PRINCIPAL.fullmatch(named):
        raise UsageError(
            f"{named[:80]!r} is no name of a requester",
            "letters, digits and . _ @ + - (64 at most): --as NAME",
        )
    if named not in ("", account) and by_sudo.isdecimal():
        raise UsageError(f"under sudo it is {account} who asks, not {named}", "leave --as out")
    return named or account, uid
