"""How well requester and reviewer are kept apart, told from users, modes and the kind of key."""

import os
from pathlib import Path

import pytest

from approvals.tiers import Tier, request_tier, statement_tier
from approvals.trust import TrustRoots
from tests.approvals.reviewers import new_queue, request

STRANGER = 54_321
"""A user number without an account."""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    path = home / "plumbline.db"
    path.touch(mode=0o600)
    return path


def test_an_example_is_never_more_than_t0(database: Path) -> None:
    assert request_tier("example", database, STRANGER) is Tier.T0


@pytest.mark.parametrize("uid", [None, 0, os.geteuid()])
def test_the_same_user_or_root_or_an_unknown_one_is_t1(database: Path, uid: int | None) -> None:
    assert request_tier("real", database, uid) is Tier.T1


def test_another_user_who_cannot_write_the_database_is_t2(database: Path) -> None:
    assert request_tier("real", database, STRANGER) is Tier.T2
    assert request_tier("real", None, STRANGER) is Tier.T1


@pytest.mark.parametrize("what", ["plumbline.db", "plumbline.db-wal", ".", ".."])
def test_another_user_who_can_write_it_or_a_folder_above_is_t1(database: Path, what: str) -> None:
    path = database.parent / what
    if not path.exists():
        path.touch()
    path.chmod(path.stat().st_mode | 0o002)
    assert request_tier("real", database, STRANGER) is Tier.T1


def test_a_sticky_folder_above_keeps_others_out(database: Path) -> None:
    database.parent.parent.chmod(0o1777)
    assert request_tier("real", database, STRANGER) is Tier.T2


@pytest.mark.skipif(os.geteuid() != 0, reason="to give a file away needs root")
def test_another_user_who_owns_something_of_it_is_t1(database: Path) -> None:
    os.chown(database.parent, STRANGER, -1)
    assert request_tier("real", database, STRANGER) is Tier.T1


def test_a_token_lifts_t2_to_t3_and_nothing_else() -> None:
    lifted = {tier: statement_tier(tier, hardware=True).value for tier in ("T0", "T1", "T2")}
    assert lifted == {"T0": "T0", "T1": "T1", "T2": "T3"}
    assert statement_tier("T2", hardware=False) is Tier.T2


def test_the_tier_stands_in_ticket_and_statement(tmp_path: Path, solo: TrustRoots) -> None:
    (tmp_path / "home").mkdir(mode=0o700)
    queue = new_queue(solo, tmp_path / "home" / "plumbline.db")
    (tmp_path / "home" / "plumbline.db").chmod(0o600)
    ticket = queue.approvals.request(request(requester_uid=STRANGER))
    assert ticket.tier == "T2"
    assert queue.approvals.draft(ticket.id, "approve", "ada").tier == "T2"
    assert queue.approvals.request(request(content="x")).tier == "T1"
