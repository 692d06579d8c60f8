"""Any changed byte of the audit log is found, and any recomputed tail that a signed head precedes."""

import random
import sqlite3
import sys

import pytest

from approvals.errors import Refused
from approvals.witness import broken_log
from tests.approvals import attacks
from tests.approvals.reviewers import Queue, Reviewer, request

COLUMNS = ("at", "event", "subject", "detail", "prev", "hash")
BYTES = 500


@pytest.fixture
def decided(queue: Queue, ada: Reviewer) -> Queue:
    """A log in which ada signed three heads, with entries after the last."""
    for number in range(3):
        ticket = queue.approve(queue.approvals.request(request(content=f"plan {number}")), ada)
        queue.approvals.consume(ticket.id, "c3" * 32)
    return queue


def heads(connection: sqlite3.Connection) -> list[int]:
    sql = "select json_extract(statement, '$.log_length') from decisions order by seq"
    return [number for (number,) in connection.execute(sql)]


def test_a_log_with_signed_heads_is_whole(decided: Queue) -> None:
    assert broken_log(decided.connection) is None
    assert heads(decided.connection) == [2, 5, 8]


def test_any_changed_byte_is_found_and_its_entry_named(
    decided: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    rng, found = random.Random(11), 0
    for _ in range(BYTES):
        queue = decided.copy()
        attacks.disarm(queue.connection)
        (length,) = queue.connection.execute("select max(seq) from audit").fetchone()
        seq, column = rng.randrange(1, length + 1), rng.choice(COLUMNS)
        (text,) = queue.connection.execute(f"select {column} from audit where seq = {seq}").fetchone()  # noqa: S608
        data = bytearray(text.encode())
        data[rng.randrange(len(data))] ^= rng.randrange(1, 128)
        attacks.edit(queue.connection, "audit", column, data.decode(errors="replace"), f"seq = {seq}")
        broken = broken_log(queue.connection)
        assert broken is not None, (seq, column, bytes(data))
        assert broken.seq == seq
        assert f"entry {seq} " in broken.reason
        found += 1
    with capsys.disabled():
        sys.stdout.write(f"\n{found} of {BYTES} changed bytes of the log found, entry named\n")


def test_white_space_in_an_entry_is_a_change(decided: Queue) -> None:
    attacks.edit(decided.connection, "audit", "detail", '{"kind": "real"}', "seq = 1")
    broken = broken_log(decided.connection)
    assert broken is not None
    assert broken.seq == 1


def test_a_recomputed_tail_before_a_signed_head_is_found_and_the_head_named(
    decided: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    signed = heads(decided.connection)
    for first in range(1, signed[-1] + 1):
        queue = decided.copy()
        attacks.rewrite_log(queue.connection, first, lambda e: e.model_copy(update={"at": "2020-01-01"}))
        broken = broken_log(queue.connection)
        following = next(head for head in signed if head >= first)
        before = max([head for head in signed if head < first], default=0)
        assert broken is not None
        assert broken.seq == following
        assert f"entry {following} is not the one that ada saw" in broken.reason
        assert f"after entry {before}" in broken.reason
        with pytest.raises(Refused, match="audit log does not hold"):
            queue.approvals.verify(queue.approvals.tickets()[0].id)
    with capsys.disabled():
        sys.stdout.write(f"\n{signed[-1]} of {signed[-1]} recomputed tails before a signed head found\n")


def test_a_shorter_recomputed_log_lacks_the_signed_head(decided: Queue) -> None:
    attacks.rewrite_log(decided.connection, 3, lambda entry: None)
    broken = broken_log(decided.connection)
    assert broken is not None
    assert broken.seq == 5


def test_what_nobody_signed_since_can_be_rewritten_and_only_the_rows_tell(decided: Queue) -> None:
    """The limit: after the last signed head only rows that lost their entries show it."""
    attacks.rewrite_log(decided.connection, 9, lambda entry: None)
    assert broken_log(decided.connection) is None
    with pytest.raises(Refused, match="there are 3 decisions, and the audit log holds 2"):
        decided.approvals.verify(decided.approvals.tickets()[0].id)
