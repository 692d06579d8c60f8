"""The audit log and those who saw it: each signed statement holds the log's head of that moment.

A chain that somebody recomputed is whole in itself. It no longer holds the heads that reviewers signed.
"""

import sqlite3
from typing import Literal

from approvals.audit import AuditEntry, AuditLog, Break
from approvals.errors import Refused
from approvals.statement import Statement

_HEADS = """
select d.ticket, d.signer, json_extract(d.statement, '$.log_length') as n, a.hash is not null and
       a.hash = json_extract(d.statement, '$.log_head') as held
from (select * from decisions where json_valid(statement)) d
left join audit a on a.seq = json_extract(d.statement, '$.log_length')
where n > 0 order by n
"""


def broken_log(connection: sqlite3.Connection) -> Break | None:
    """The first entry that does not hold: by the chain, or against what a signer saw; None when all do.

    For a recomputed tail that is the signed entry itself, and the reason names the last one that still holds:
    the change lies between the two.
    """
    if broken := AuditLog(connection).verify():
        return broken
    good = 0
    for ticket, signer, number, held in connection.execute(_HEADS):
        if not held:
            return Break(
                seq=number,
                reason=f"entry {number} is not the one that {signer} saw when deciding {ticket}: the log was"
                f" cut or replaced after entry {good}",
            )
        good = number
    return None


def refuse_broken_log(connection: sqlite3.Connection) -> None:
    """Raise `Refused` when the audit log does not hold."""
    if broken := broken_log(connection):
        raise Refused(
            f"the audit log does not hold: {broken.reason}",
            "nothing is run on it: restore a copy of the database, or begin a new workspace",
        )


def refuse_unseen(connection: sqlite3.Connection, statement: Statement) -> None:
    """Raise `Refused` when this log does not hold the entry that the signer saw."""
    row = connection.execute("select hash from audit where seq = ?", (statement.log_length,)).fetchone()
    if row is None or row[0] != statement.log_head:
        raise Refused(
            f"{statement.signer} signed another log: entry {statement.log_length} is not the one in it",
            "draft the decision again and have it signed",
        )


def entries(
    connection: sqlite3.Connection, column: Literal["event", "subject"], value: str
) -> list[AuditEntry]:
    """The entries about one subject, or of one kind, oldest first."""
    return list(AuditLog(connection).matching(column, value))
