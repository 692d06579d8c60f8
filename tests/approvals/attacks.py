"""What somebody does who owns the database file: drops the triggers, edits rows, recomputes the log."""

import json
import sqlite3
from collections.abc import Callable
from typing import Any

from approvals.audit import GENESIS, AuditEntry, AuditLog
from approvals.canonical import canonical
from approvals.statement import Statement


def disarm(connection: sqlite3.Connection) -> None:
    """Drop every trigger and stop looking at references."""
    connection.execute("pragma foreign_keys=off")
    for (name,) in connection.execute("select name from sqlite_master where type = 'trigger'").fetchall():
        connection.execute(f"drop trigger {name}")


def rewrite_log(
    connection: sqlite3.Connection,
    first: int,
    change: Callable[[AuditEntry], AuditEntry | None],
) -> None:
    """Replace entry ``first`` and all after it by a chain that is whole in itself; None leaves one out."""
    disarm(connection)
    old = list(AuditLog(connection).entries())
    connection.execute("delete from audit where seq >= ?", (first,))
    prev = old[first - 2].hash if first > 1 else GENESIS
    number = first
    for entry in old[first - 1 :]:
        changed = change(entry)
        if changed is None:
            continue
        made = changed.model_copy(update={"seq": number, "prev": prev, "hash": ""})
        prev = made.computed_hash()
        row = made.model_dump(mode="json") | {"detail": canonical(made.detail), "hash": prev}
        connection.execute(
            "insert into audit values (:seq, :at, :event, :subject, :detail, :prev, :hash)", row
        )
        number += 1


def with_detail(entry: AuditEntry, event: str, subject: str, **changed: Any) -> AuditEntry:
    """The entry with other details, when it is that event about that subject."""
    if (entry.event, entry.subject) != (event, subject):
        return entry
    return entry.model_copy(update={"detail": entry.detail | changed})


def seq_of(connection: sqlite3.Connection, event: str, subject: str) -> int:
    """Number of the first entry of an event about a subject."""
    sql = "select min(seq) from audit where event = ? and subject = ?"
    return int(connection.execute(sql, (event, subject)).fetchone()[0])


def edit(connection: sqlite3.Connection, table: str, column: str, value: object, where: str = "1") -> None:
    """Change a column of rows."""
    disarm(connection)
    connection.execute(f"update {table} set {column} = ? where {where}", (value,))  # noqa: S608


def edit_request(connection: sqlite3.Connection, ticket: str, thorough: bool, **changed: Any) -> None:
    """Change what was asked; thoroughly: its digest and the audit log, whose chain is recomputed, too."""
    from approvals.statement import Request, as_stored

    disarm(connection)
    (text,) = connection.execute("select request from requests where id = ?", (ticket,)).fetchone()
    request = Request.model_validate(json.loads(text) | changed)
    sql = "update requests set request = ? where id = ?"
    connection.execute(sql, (as_stored(request), ticket))
    if not thorough:
        return
    connection.execute("update requests set sha256 = ? where id = ?", (request.sha256, ticket))
    rewrite_log(
        connection,
        seq_of(connection, "approval_requested", ticket),
        lambda entry: with_detail(entry, "approval_requested", ticket, sha256=request.sha256),
    )


def plant(connection: sqlite3.Connection, ticket: str, statement: Statement, signature: str) -> None:
    """Put a decision into rows and log as `Approvals.record` would, without asking it."""
    disarm(connection)
    connection.execute("alter table decisions rename to kept")
    connection.execute("create table decisions as select * from kept")  # without its constraints
    connection.execute("drop table kept")
    row = (ticket, statement.signer, statement.decision.value, statement.text(), statement.sha256, signature)
    connection.execute(
        "insert into decisions (seq, ticket, signer, decision, statement, sha256, signature)"
        " values ((select coalesce(max(seq), 0) + 1 from decisions), ?, ?, ?, ?, ?, ?)",
        row,
    )
    detail = {
        "statement_sha256": statement.sha256,
        "decision": statement.decision.value,
        "signer": statement.signer,
    }
    AuditLog(connection).append("approval_decided", ticket, detail)
    connection.execute("update requests set state = 'approved' where id = ?", (ticket,))
