"""The audit log and those who saw it: each signed statement holds the log's head of that moment.

A chain that somebody recomputed is whole in itself. It no longer holds the heads that reviewers signed.
"""

import sqlite3
from collections.abc import Iterator
from typing import Literal, NamedTuple

from approvals.audit import AuditEntry, AuditLog, Break
from approvals.errors import Refused
from approvals.statement import Statement


def broken_log(connection: sqlite3.Connection) -> Break | None:
    """The first entry that does not hold: by the chain, or against what a signer saw; None when all do.

    For a recomputed tail that is the signed entry itself, and the reason names the last one that still holds:
    the change lies between the two.
    """
    if broken := AuditLog(connection).verify():
        return broken
    good = 0
    for seen in sorted(_seen(connection), key=lambda seen: seen.number):
        if not seen.text_holds:
            return Break(
                seq=seen.number, reason=f"the statement of {seen.signer} about {seen.ticket} was changed"
            )
        if _hash_of(connection, seen.number) != seen.head:
            return Break(
                seq=seen.number,
                reason=f"entry {seen.number} is not the one that {seen.signer} saw when deciding"
                f" {seen.ticket}: the log was cut or replaced after entry {good}",
            )
        good = seen.number
    return None


class _Seen(NamedTuple):
    """What one signer saw."""

    ticket: str
    signer: str
    number: int
    head: str
    text_holds: bool


def _seen(connection: sqlite3.Connection) -> Iterator[_Seen]:
    for ticket, signer, text, sha256 in connection.execute(
        "select ticket, signer, statement, sha256 from decisions"
    ):
        try:
            statement = Statement.parse(text)
        except Refused:
            yield _Seen(ticket, signer, 0, "", text_holds=False)
        else:
            holds = statement.sha256 == sha256
            yield _Seen(ticket, signer, statement.log_length, statement.log_head, holds)


def _hash_of(connection: sqlite3.Connection, number: int) -> str:
    row = connection.execute("select hash from audit where seq = ?", (number,)).fetchone()
    return str(row[0]) if row else ""


def refuse_broken_log(connection: sqlite3.Connection) -> None:
    """Raise `Refused` when the audit log does not hold."""
    if broken := broken_log(connection):
        raise Refused(
            f"the audit log does not hold: {broken.reason}",
            "nothing is run on it: restore a copy of the database, or begin a new workspace",
        )


def refuse_unseen(connection: sqlite3.Connection, statement: Statement) -> None:
    """Raise `Refused` when this log does not hold the entry that the signer saw."""
    if _hash_of(connection, statement.log_length) != statement.log_head:
        raise Refused(
            f"{statement.signer} signed another log: entry {statement.log_length} is not the one in it",
            "draft the decision again and have it signed",
        )


def entries(
    connection: sqlite3.Connection, column: Literal["event", "subject"], value: str
) -> list[AuditEntry]:
    """The entries about one subject, or of one kind, oldest first."""
    return list(AuditLog(connection).matching(column, value))
