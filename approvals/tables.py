"""The tables of the queue, and their rows as immutable models.

The triggers stop accidents. Whoever owns the file can drop them, so nothing that counts rests on a row:
`approvals.gate` holds rows, signed statements and the audit log against one another.
"""

import sqlite3
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from approvals.errors import Refused
from approvals.ticket import TicketState

TABLES = (
    """create table workspace (
        one integer primary key check (one = 1),
        id text not null, kind text not null check (kind in ('real', 'example'))
    ) strict""",
    """create table requests (
        seq integer primary key autoincrement, id text not null unique,
        prefix text not null, n integer not null check (n > 0),
        request text not null, sha256 text not null, nonce text not null unique,
        created integer not null, expires integer not null,
        rule text not null, policy_sha256 text not null, tier text not null,
        state text not null check (state in ('pending', 'approved', 'rejected', 'withdrawn', 'used')),
        reason text not null default '',
        unique (prefix, n)
    ) strict""",
    """create table decisions (
        seq integer primary key autoincrement,
        ticket text not null references requests (id), signer text not null, decision text not null,
        statement text not null, sha256 text not null unique, signature text not null,
        unique (ticket, signer, decision)
    ) strict""",
    """create table uses (
        seq integer primary key autoincrement,
        ticket text not null references requests (id), use_sha256 text not null,
        attempt integer not null check (attempt > 0), used integer not null,
        unique (ticket, use_sha256, attempt)
    ) strict""",
    "create index requests_by_state on requests (state, seq)",
)


def _kept(table: str, key: str, change: str = "update") -> tuple[str, ...]:
    """Triggers of a table whose rows are never removed, nor replaced, nor changed (in some columns)."""
    message = f"select raise(abort, 'a row of {table} is never changed')"
    present = f"exists (select 1 from {table} where {key})"  # noqa: S608 - our own names
    return (
        f"create trigger {table}_no_update before {change} on {table} begin {message}; end",
        f"create trigger {table}_no_delete before delete on {table} begin {message}; end",
        f"create trigger {table}_no_replace before insert on {table} when {present} begin {message}; end",
    )


TRIGGERS = (
    *_kept("workspace", "one = new.one"),
    *_kept(
        "requests",
        "id = new.id or seq = new.seq or nonce = new.nonce or (prefix = new.prefix and n = new.n)",
        "update of seq, id, prefix, n, request, sha256, nonce, created, expires, rule, policy_sha256, tier",
    ),
    *_kept(
        "decisions",
        "seq = new.seq or sha256 = new.sha256"
        " or (ticket = new.ticket and signer = new.signer and decision = new.decision)",
    ),
    *_kept(
        "uses",
        "seq = new.seq or (ticket = new.ticket and use_sha256 = new.use_sha256 and attempt = new.attempt)",
    ),
)


class RequestRow(BaseModel):
    """A row of `requests`."""

    model_config = ConfigDict(frozen=True)

    seq: int
    id: str
    prefix: str
    n: int
    request: str
    sha256: str
    nonce: str
    created: int
    expires: int
    rule: str
    policy_sha256: str
    tier: str
    state: TicketState
    reason: str

    def facts(self) -> dict[str, Any]:
        """What the audit log holds about it from the moment it was asked."""
        return self.model_dump(
            mode="json",
            include={"sha256", "nonce", "created", "expires", "rule", "policy_sha256", "tier"},
        )


class DecisionRow(BaseModel):
    """A row of `decisions`."""

    model_config = ConfigDict(frozen=True)

    seq: int
    ticket: str
    signer: str
    decision: str
    statement: str
    sha256: str
    signature: str

    def facts(self) -> dict[str, Any]:
        """What the audit log holds about it."""
        return {"statement_sha256": self.sha256, "decision": self.decision, "signer": self.signer}


class UseRow(BaseModel):
    """A row of `uses`."""

    model_config = ConfigDict(frozen=True)

    seq: int
    ticket: str
    use_sha256: str
    attempt: int
    used: int

    def facts(self) -> dict[str, Any]:
        """What the audit log holds about it."""
        return {"use": self.use_sha256, "attempt": self.attempt}


_Row = TypeVar("_Row", bound=BaseModel)


def create(connection: sqlite3.Connection) -> None:
    """Create tables and triggers; the audit log's table has to be there."""
    for statement in (*TABLES, *TRIGGERS):
        connection.execute(statement)


def rows(
    connection: sqlite3.Connection, model: type[_Row], sql: str, values: dict[str, Any] | tuple[Any, ...] = ()
) -> list[_Row]:
    """The rows of a query as models. Raises `Refused` for a row that is none."""
    cursor = connection.execute(sql, values)
    names = [column[0] for column in cursor.description]
    try:
        return [model.model_validate(dict(zip(names, row, strict=True))) for row in cursor]
    except ValidationError as error:
        raise Refused(
            f"a row of the queue is damaged: {str(error).splitlines()[0]}", "restore a copy of the database"
        ) from error


def insert(connection: sqlite3.Connection, table: str, values: dict[str, Any]) -> None:
    """Add a row; the names are our own."""
    columns = ", ".join(values)
    marks = ", ".join(f":{name}" for name in values)
    connection.execute(f"insert into {table} ({columns}) values ({marks})", values)  # noqa: S608 - own names


def request_row(connection: sqlite3.Connection, ticket_id: str) -> RequestRow | None:
    """The row of a ticket."""
    return next(iter(rows(connection, RequestRow, "select * from requests where id = ?", (ticket_id,))), None)


def decision_rows(connection: sqlite3.Connection, ticket_id: str) -> list[DecisionRow]:
    """The decisions about a ticket, oldest first."""
    sql = "select * from decisions where ticket = ? order by seq"
    return rows(connection, DecisionRow, sql, (ticket_id,))


def use_rows(connection: sqlite3.Connection, ticket_id: str) -> list[UseRow]:
    """The uses of a ticket, oldest first."""
    return rows(connection, UseRow, "select * from uses where ticket = ? order by seq", (ticket_id,))
