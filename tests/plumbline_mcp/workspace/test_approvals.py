"""A workspace's own approvals: its id and kind, and what `verify` says of edited rows."""

import threading
from pathlib import Path

import pytest

from approvals.statement import Request
from plumbline_mcp.errors import WorkspaceError
from plumbline_mcp.workspace import Workspace
from tests.approvals import attacks

ASKED = Request(action="plan", title="a plan", content={"steps": 3}, requester="agent")


def test_a_workspace_has_one_id_and_kind_for_good(tmp_path: Path) -> None:
    real, example = Workspace.open(tmp_path / "real"), Workspace.open(tmp_path / "example", kind="example")
    assert (real.kind, example.kind) == ("real", "example")
    assert real.approvals.workspace_id != example.approvals.workspace_id
    assert Workspace.open(tmp_path / "example").kind == "example"
    assert Workspace.open(tmp_path / "real").approvals.workspace_id == real.approvals.workspace_id
    for home, kind in (("real", "example"), ("example", "real")):
        with pytest.raises(WorkspaceError, match=f"is a {home} one, not of kind '{kind}'"):
            Workspace.open(tmp_path / home, kind=kind)


def test_first_openers_at_once_agree_on_the_id(tmp_path: Path) -> None:
    ids: set[str] = set()
    openers = [
        threading.Thread(target=lambda: ids.add(Workspace.open(tmp_path / "home").approvals.workspace_id))
        for _ in range(8)
    ]
    for opener in openers:
        opener.start()
    for opener in openers:
        opener.join()
    assert len(ids) == 1


def test_an_example_signs_with_its_throwaway_key_and_says_t0(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path / "home", kind="example")
    with workspace.write_tx():
        ticket = workspace.approvals.request(ASKED)
    assert ticket.tier == "T0"
    assert workspace.approvals.decide(ticket.id, "approve", "example").state == "approved"
    with workspace.write_tx():
        workspace.approvals.consume(ticket.id, ASKED.content_sha256)
    assert workspace.verify() == []


def test_a_real_workspace_never_takes_the_trust_roots_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLUMBLINE_TRUST", str(tmp_path / "trust"))
    workspace = Workspace.open(tmp_path / "home")
    assert workspace.approvals.trust.folder == tmp_path / "trust"
    assert not workspace.approvals.trust.is_example


@pytest.mark.parametrize(
    "sql",
    [
        "update requests set expires = expires + 1",
        "update requests set request = '{}'",
        "delete from requests",
        "update decisions set statement = '{}'",
        "update decisions set signer = 'ada'",
        "delete from decisions",
        "update uses set attempt = 2",
        "delete from uses",
    ],
)
def test_verify_names_an_approval_that_was_edited(tmp_path: Path, sql: str) -> None:
    workspace = Workspace.open(tmp_path / "home", kind="example")
    approvals = workspace.approvals
    ticket = approvals.request(ASKED)
    approvals.decide(ticket.id, "approve", "example")
    approvals.consume(ticket.id, ASKED.content_sha256)
    attacks.disarm(approvals.connection)
    approvals.connection.execute(sql)
    (problem,) = workspace.verify()
    assert ticket.id in problem


def test_verify_names_the_head_that_a_recomputed_log_lacks(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path / "home", kind="example")
    approvals = workspace.approvals
    approvals.decide(approvals.request(ASKED).id, "approve", "example")
    attacks.rewrite_log(approvals.connection, 2, lambda e: e.model_copy(update={"at": "2020-01-01"}))
    (problem,) = workspace.verify()
    assert "entry 2 is not the one that example saw" in problem
