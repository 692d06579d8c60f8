import hashlib
import json
import sqlite3
from pathlib import Path

import pytest
from sqlite_utils import Database

from approvals.audit import GENESIS, AuditLog


@pytest.fixture
def connection() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    AuditLog(connection).create()
    return connection


@pytest.fixture
def log(connection: sqlite3.Connection) -> AuditLog:
    log = AuditLog(connection)
    for number in range(1, 6):
        log.append("verdict_stored", f"data-{number:04d}", {"outcome": "pass", "n": number})
    return log


def force(connection: sqlite3.Connection, sql: str) -> None:
    """Change the table as its owner can: without the triggers."""
    for (name,) in connection.execute("select name from sqlite_master where type = 'trigger'").fetchall():
        connection.execute(f"drop trigger {name}")
    connection.execute(sql)


def test_an_empty_log_is_whole_and_its_head_is_the_genesis(connection: sqlite3.Connection) -> None:
    log = AuditLog(connection)
    assert log.verify() is None
    assert log.head() == GENESIS == "0" * 64


def test_each_entry_hashes_its_canonical_json_with_the_hash_before(log: AuditLog) -> None:
    before = "0" * 64
    for entry in log.entries():
        body = {
            "at": entry.at,
            "detail": entry.detail,
            "event": entry.event,
            "prev": before,
            "seq": entry.seq,
            "subject": entry.subject,
        }
        before = hashlib.sha256(json.dumps(body, separators=(",", ":"), sort_keys=True).encode()).hexdigest()
        assert entry.hash == before
    assert log.head() == before
    assert log.verify() is None


@pytest.mark.parametrize(
    "sql",
    [
        "update audit set subject = 'x' where seq = 2",
        "delete from audit where seq = 5",
        "insert or replace into audit select * from audit where seq = 2",
        "replace into audit select 2, at, event, 'x', detail, prev, 'ff' from audit where seq = 2",
        "insert into audit select 9, at, event, subject, detail, hash, 'ff' from audit where seq = 5",
        "insert into audit select 6, at, event, subject, detail, prev, 'ff' from audit where seq = 5",
    ],
)
@pytest.mark.parametrize("recursive_triggers", ["on", "off"])
def test_the_table_refuses_everything_but_the_next_entry(
    log: AuditLog, connection: sqlite3.Connection, sql: str, recursive_triggers: str
) -> None:
    connection.execute(f"pragma recursive_triggers = {recursive_triggers}")
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        connection.execute(sql)
    assert log.verify() is None
    assert len(list(log.entries())) == 5


def test_sqlite_utils_cannot_replace_or_delete(log: AuditLog, connection: sqlite3.Connection) -> None:
    table = Database(connection, execute_plugins=False).table("audit")
    row = next(iter(table.rows_where("seq = 3")))
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        table.insert(row | {"subject": "x"}, replace=True)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        table.delete_where("seq = 3")
    assert log.verify() is None


@pytest.mark.parametrize(
    ("sql", "seq", "reason"),
    [
        ("update audit set subject = 'data-9999' where seq = 3", 3, "changed"),
        ("update audit set detail = '{}' where seq = 1", 1, "changed"),
        ("update audit set detail = 'no json' where seq = 4", 4, "no audit entry"),
        ("update audit set hash = 'short' where seq = 4", 4, "no audit entry"),
        ("delete from audit where seq = 2", 2, "missing"),
        ("update audit set prev = hash where seq = 5", 5, "does not follow"),
    ],
)
def test_verify_names_the_first_broken_entry(
    log: AuditLog, connection: sqlite3.Connection, sql: str, seq: int, reason: str
) -> None:
    force(connection, sql)
    broken = log.verify()
    assert broken is not None
    assert (broken.seq, reason in broken.reason) == (seq, True)


def test_a_rewritten_entry_with_a_fresh_hash_breaks_the_chain_at_the_next(
    log: AuditLog, connection: sqlite3.Connection
) -> None:
    third = list(log.entries())[2].model_copy(update={"subject": "data-9999"})
    force(
        connection,
        f"update audit set subject = 'data-9999', hash = '{third.computed_hash()}' where seq = 3",  # noqa: S608
    )
    broken = log.verify()
    assert broken is not None
    assert broken.seq == 4


def test_a_cut_tail_is_noticed_only_with_a_head_noted_elsewhere(
    log: AuditLog, connection: sqlite3.Connection
) -> None:
    head = log.head()
    assert log.verify(head) is None
    force(connection, "delete from audit where seq > 3")
    assert log.verify() is None
    broken = log.verify(head)
    assert broken is not None
    assert broken.seq == 4


def test_an_entry_in_a_transaction_that_fails_is_not_kept(
    log: AuditLog, connection: sqlite3.Connection
) -> None:
    connection.execute("begin immediate")
    log.append("run_sealed", "rows-0001")
    connection.rollback()
    assert len(list(log.entries())) == 5
    assert log.append("run_sealed", "rows-0001").seq == 6
    assert log.verify() is None


def test_entries_are_read_in_pages(log: AuditLog) -> None:
    assert [entry.seq for entry in log.entries(after=2, limit=2)] == [3, 4]


def test_two_connections_append_without_losing_an_entry(tmp_path: Path) -> None:
    first, second = (sqlite3.connect(tmp_path / "log.db", timeout=30, isolation_level=None) for _ in range(2))
    AuditLog(first).create()
    for number in range(20):
        AuditLog(first if number % 2 else second).append("verdict_stored", f"data-{number:04d}")
    assert AuditLog(first).verify() is None
    assert len(list(AuditLog(second).entries())) == 20
