"""Accounts of this machine's operating system, as names that can stand in a request."""

import pwd
import re

from approvals.statement import Request

PRINCIPAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")


def account_name(uid: int) -> str:
    """The name of an account, `uid-N` where it has none that can stand in a request."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        name = ""
    return name if PRINCIPAL.fullmatch(name) else f"uid-{uid}"


def names_of_requester(request: Request) -> tuple[str, ...]:
    """Who asks: by the name that they gave, and by the account they asked from, where that is known."""
    account = () if request.requester_uid is None else (account_name(request.requester_uid),)
    return (request.requester, *account)
