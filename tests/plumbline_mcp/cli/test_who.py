"""Who asks: the account, whatever the environment says."""

import os
import pwd
import types

import pytest

from plumbline_mcp.cli.ticket_view import _asked_by
from plumbline_mcp.cli.who import who_asks
from plumbline_mcp.errors import UsageError
from tests.approvals.reviewers import request

_ACCOUNTS = {0: "root", 1007: "ada", 1008: "two words"}


def as_account(monkeypatch: pytest.MonkeyPatch, uid: int, sudo_uid: str = "") -> None:
    def of(number: int) -> types.SimpleNamespace:
        return types.SimpleNamespace(pw_name=_ACCOUNTS[number])

    monkeypatch.setattr(os, "getuid", lambda: uid)
    monkeypatch.setattr(pwd, "getpwuid", of)
    monkeypatch.setenv("SUDO_UID", sudo_uid)
    for name in ("USER", "LOGNAME", "USERNAME", "LNAME"):
        monkeypatch.setenv(name, "grace")


@pytest.mark.parametrize(
    ("uid", "sudo_uid", "named", "asks"),
    [
        (1007, "", "", ("ada", 1007)),
        (1007, "0", "", ("ada", 1007)),  # not root: no sudo
        (1007, "", "bob", ("bob", 1007)),
        (1008, "", "", ("uid-1008", 1008)),
        (4321, "", "", ("uid-4321", 4321)),
        (0, "", "", ("root", 0)),
        (0, "1007", "", ("ada", 0)),
        (0, "1007", "ada", ("ada", 0)),
        (0, "4321", "", ("uid-4321", 0)),
        (0, "nobody", "", ("root", 0)),
        (0, str(2**80), "", (f"uid-{2**80}", 0)),
    ],
)
def test_the_account_asks(
    monkeypatch: pytest.MonkeyPatch, uid: int, sudo_uid: str, named: str, asks: tuple[str, int]
) -> None:
    as_account(monkeypatch, uid, sudo_uid)
    assert who_asks(named) == asks


def test_a_request_under_another_name_shows_the_account(monkeypatch: pytest.MonkeyPatch) -> None:
    as_account(monkeypatch, 1007)
    for asks, uid, shown in (("bob", 1007, "bob (account ada)"), ("ada", 1007, "ada"), ("bob", None, "bob")):
        assert _asked_by(request(requester=asks, requester_uid=uid)) == shown


def test_no_other_name_under_sudo_and_none_that_cannot_be_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    as_account(monkeypatch, 0, "1007")
    with pytest.raises(UsageError, match="under sudo it is ada who asks, not bob"):
        who_asks("bob")
    with pytest.raises(UsageError, match="no name of a requester"):
        who_asks("two words")
