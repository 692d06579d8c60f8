"""Tokens: what counts is what a reviewer signed, until it is revoked or ends, or the key that signed is."""

import hashlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from approvals.audit import AuditLog
from approvals.errors import Refused
from approvals.tables import insert, request_row
from approvals.trust import TrustRoots
from approvals.trust_folder import TRUST_VARIABLE
from plumbline_mcp.errors import UsageError
from plumbline_mcp.server.tokens import Tokens, TokenState, start_token_counts
from plumbline_mcp.workspace import Workspace
from tests.plumbline_mcp.server.roles import Site, approve, make_site, mint


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path / "trust"))
    return make_site(tmp_path)


def test_a_signed_token_counts_and_is_listed_without_itself(site: Site) -> None:
    minted = mint(site, "verifier", "second")
    found = site.tokens.find(minted.token)
    assert found is not None
    assert (found.name, found.role, found.state) == ("second", "verifier", "active")
    assert (found.signers, found.requester) == (("ada",), "operator")
    assert found.sha256 == hashlib.sha256(minted.token.encode()).hexdigest()
    assert minted.token not in json.dumps([one.model_dump(mode="json") for one in site.tokens.listed()])


@pytest.mark.parametrize("text", ["", "x", "plumbline_", "plumbline_é", "\udc80", "a" * 9999, "' or 1=1 --"])
def test_any_other_text_is_nobody(site: Site, text: str) -> None:
    mint(site, "agent", "a1")
    assert site.tokens.find(text) is None


def test_a_token_waits_for_its_signature_and_is_activated_by_its_first_use(site: Site) -> None:
    minted = site.tokens.ask("agent", "a1", 5, "operator")
    assert minted.listed.state == TokenState.WAITING
    assert site.tokens.find(minted.token) is None
    with pytest.raises(Refused, match="pending is not approved"):
        site.tokens.activate(minted.listed.ticket)
    approve(site.workspace.approvals, minted.listed.ticket, site.ada)
    for _ in range(2):
        found = site.tokens.find(minted.token)
        assert found is not None
        assert found.state == TokenState.ACTIVE
    assert site.workspace.approvals.ticket(minted.listed.ticket).uses_left == 0


def test_a_rejected_a_revoked_and_an_ended_token_are_nobody(site: Site) -> None:
    rejected = site.tokens.ask("agent", "a1", 5, "operator")
    approve(site.workspace.approvals, rejected.listed.ticket, site.ada, "reject")
    revoked = mint(site, "agent", "a2")
    site.tokens.revoke("a2")
    ended = mint(site, "agent", "a3", days=1)
    later = Tokens(site.workspace, clock=lambda: ended.listed.ends + 1)
    for tokens, minted, state in (
        (site.tokens, rejected, "void"),
        (site.tokens, revoked, "revoked"),
        (later, ended, "expired"),
    ):
        assert tokens.find(minted.token) is None
        (listed,) = [one for one in tokens.listed() if one.ticket == minted.listed.ticket]
        assert listed.state == state
    assert site.tokens.find(ended.token) is not None


def test_a_revoked_token_that_was_signed_afterwards_stays_revoked(site: Site) -> None:
    minted = site.tokens.ask("agent", "a1", 5, "operator")
    site.tokens.revoke("a1")
    approve(site.workspace.approvals, minted.listed.ticket, site.ada)
    assert site.tokens.find(minted.token) is None
    with pytest.raises(Refused, match="is revoked"):
        site.tokens.activate(minted.listed.ticket)


def test_a_token_ends_with_the_revocation_of_the_key_that_signed_it(site: Site) -> None:
    minted, tokens = mint(site, "agent", "a1"), site.tokens
    assert tokens.find(minted.token) is not None
    TrustRoots().revoke("ada")
    with pytest.raises(Refused, match="revoked"):
        tokens.find(minted.token)


def test_a_policy_that_wants_more_signatures_ends_a_token_with_fewer(site: Site) -> None:
    minted, tokens = mint(site, "agent", "a1"), site.tokens
    trust = TrustRoots()
    strict = trust.policy_file.read_text().replace("signers = 1", "signers = 2")
    trust.policy_file.write_text(strict)
    with pytest.raises(Refused, match="today's policy wants 2"):
        tokens.find(minted.token)


def without_triggers(connection: sqlite3.Connection) -> None:
    for (name,) in connection.execute("select name from sqlite_master where type = 'trigger'").fetchall():
        connection.execute(f"drop trigger {name}")


def another_role(connection: sqlite3.Connection, ticket: str) -> None:
    connection.execute("update requests set request = replace(request, '\"verifier\"', '\"agent\"')")


def another_role_and_digest(connection: sqlite3.Connection, ticket: str) -> None:
    another_role(connection, ticket)
    row = request_row(connection, ticket)
    assert row is not None
    digest = hashlib.sha256(row.request.encode()).hexdigest()
    connection.execute("update requests set sha256 = ?", (digest,))


def rebuilt_log(connection: sqlite3.Connection, ticket: str) -> None:
    """The whole log is written anew around the changed row, as somebody who owns the file can."""
    another_role_and_digest(connection, ticket)
    row = request_row(connection, ticket)
    assert row is not None
    entries = list(AuditLog(connection).entries())
    connection.execute("delete from audit")
    for one in entries:
        changed = row.facts() if (one.event, one.subject) == ("approval_requested", ticket) else one.detail
        AuditLog(connection).append(one.event, one.subject, changed)


def another_decision(connection: sqlite3.Connection, ticket: str) -> None:
    connection.execute("update decisions set signature = replace(signature, 'A', 'B')")


def use_removed(connection: sqlite3.Connection, ticket: str) -> None:
    connection.execute("delete from uses")


@pytest.mark.parametrize(
    "change", [another_role, another_role_and_digest, rebuilt_log, another_decision, use_removed]
)
def test_a_changed_row_is_noticed_when_the_token_is_used(
    site: Site, change: Callable[[sqlite3.Connection, str], None]
) -> None:
    minted = mint(site, "verifier", "second")
    assert site.tokens.find(minted.token) is not None
    connection = site.workspace.approvals.connection
    without_triggers(connection)
    change(connection, minted.listed.ticket)
    with pytest.raises(Refused):
        site.tokens.find(minted.token)


def test_a_row_that_was_never_signed_is_nobody_even_marked_as_used(site: Site) -> None:
    minted = site.tokens.ask("agent", "a1", 5, "operator")
    connection = site.workspace.approvals.connection
    content = minted.listed.ticket
    row = request_row(connection, content)
    assert row is not None
    connection.execute("update requests set state = 'used'")
    with pytest.raises(Refused):
        site.tokens.find(minted.token)
    use = site.workspace.approvals.ticket(content).request.content_sha256
    insert(connection, "uses", {"ticket": content, "use_sha256": use, "attempt": 1, "used": row.created})
    AuditLog(connection).append("approval_used", content, {"use": use, "attempt": 1})
    with pytest.raises(Refused, match="0 signatures; today's policy wants 1"):
        site.tokens.find(minted.token)


def test_a_name_stands_for_one_token_at_a_time(site: Site) -> None:
    mint(site, "agent", "a1")
    with pytest.raises(UsageError, match="there is a token of 'a1' already"):
        site.tokens.ask("verifier", "a1", 5, "operator")
    site.tokens.revoke("a1")
    mint(site, "verifier", "a1")


@pytest.mark.parametrize("name", ["recompute", "verifier", "example", "", "a b", "a,b", "x" * 65, "*"])
def test_a_name_that_could_be_taken_for_another_is_refused(site: Site, name: str) -> None:
    with pytest.raises(UsageError):
        site.tokens.ask("agent", name, 5, "operator")
    assert site.tokens.listed() == []


def test_the_token_of_a_start_counts_until_somebody_can_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path / "trust"))
    assert start_token_counts(tmp_path / "home")
    make_site(tmp_path)
    assert not start_token_counts(tmp_path / "home")
    Workspace.open(tmp_path / "example", kind="example")
    assert start_token_counts(tmp_path / "example")
    for name in ("ada", "grace"):
        TrustRoots().revoke(name)
    assert start_token_counts(tmp_path / "home")
    (tmp_path / "trust").chmod(0o777)
    with pytest.raises(Refused, match="others can write"):
        start_token_counts(tmp_path / "home")
