"""The hash-chained, append-only audit log: one table of an SQLite database.

Entry ``n`` carries the hash of entry ``n - 1``; its own hash is the SHA-256 of its canonical JSON (sorted
keys, no spaces, ASCII). Triggers refuse changes, which stops accidents; whoever owns the file can still
rewrite it, so what counts is the chain, and a `head` that was noted elsewhere (a cut tail leaves a chain
that is whole in itself).
"""

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter

from approvals.canonical import canonical, digest
from approvals.transactions import write_transaction

GENESIS = "0" * 64
"""What stands for the hash of the entry before the first."""

TABLE = """
create table audit (
    seq integer primary key,
    at text not null,
    event text not null,
    subject text not null,
    detail text not null,
    prev text not null,
    hash text not null unique
) strict
"""

# `insert or replace` deletes without firing a delete trigger unless recursive_triggers is on, so the
# insert trigger itself refuses every number that is not the next one.
TRIGGERS = (
    """
    create trigger audit_only_next before insert on audit
    when new.seq is not (select coalesce(max(seq), 0) + 1 from audit)
      or new.prev is not coalesce((select hash from audit order by seq desc limit 1), hex(zeroblob(32)))
    begin select raise(abort, 'the audit log is append-only'); end
    """,
    """
    create trigger audit_no_update before update on audit
    begin select raise(abort, 'the audit log is append-only'); end
    """,
    """
    create trigger audit_no_delete before delete on audit
    begin select raise(abort, 'the audit log is append-only'); end
    """,
)

_DETAIL = TypeAdapter(dict[str, JsonValue])


class AuditEntry(BaseModel):
    """One event; immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seq: int = Field(ge=1)
    at: str = Field(description="UTC, ISO 8601")
    event: str = Field(pattern=r"^[a-z][a-z_]*$")
    subject: str = Field(description="id of what it is about: data-0007, rows-0002, ...")
    detail: dict[str, JsonValue] = {}
    prev: str = Field(pattern=r"^[0-9a-f]{64}$")
    hash: str = Field("", pattern=r"^([0-9a-f]{64})?$")

    def computed_hash(self) -> str:
        """SHA-256 (hex) of the canonical JSON of everything but the hash itself."""
        return digest(self.model_dump(mode="json", exclude={"hash"}))


class Break(BaseModel):
    """The first entry at which the chain does not hold."""

    model_config = ConfigDict(frozen=True)

    seq: int
    reason: str


class AuditLog:
    """The log in one database connection. Create its table first, with `create`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def create(self) -> None:
        """Create table and triggers."""
        for statement in (TABLE, *TRIGGERS):
            self._connection.execute(statement)

    def append(self, event: str, subject: str, detail: dict[str, JsonValue] | None = None) -> AuditEntry:
        """Add an entry: inside the open transaction, which must be a write transaction, or in its own."""
        with write_transaction(self._connection):
            seq, prev = self.last()
            entry = AuditEntry(
                seq=seq + 1,
                at=datetime.now(UTC).isoformat(timespec="milliseconds"),
                event=event,
                subject=subject,
                detail=detail or {},
                prev=prev,
            )
            entry = entry.model_copy(update={"hash": entry.computed_hash()})
            row = entry.model_dump(mode="json") | {"detail": canonical(entry.detail)}
            self._connection.execute(
                "insert into audit (seq, at, event, subject, detail, prev, hash)"
                " values (:seq, :at, :event, :subject, :detail, :prev, :hash)",
                row,
            )
        return entry

    def head(self) -> str:
        """Hash of the last entry: note it elsewhere to notice a cut tail."""
        return self.last()[1]

    def entries(self, after: int = 0, limit: int | None = None) -> Iterator[AuditEntry]:
        """Entries from number ``after + 1`` on. Raises `ValueError` for a row that is no entry."""
        for row in self._rows(after, -1 if limit is None else limit):
            yield _entry(row)

    def matching(self, column: Literal["event", "subject"], value: str) -> Iterator[AuditEntry]:
        """Entries of one kind of event, or about one subject, oldest first."""
        for row in self._connection.execute(
            f"select seq, at, event, subject, detail, prev, hash from audit where {column} = ? order by seq",  # noqa: S608 - one of two names
            (value,),
        ):
            yield _entry(row)

    def verify(self, head: str | None = None) -> Break | None:
        """Recompute the chain; None when it is whole, else its first broken entry.

        With ``head``, a hash noted earlier, the log must also still contain that entry.
        """
        expected, before, found = 1, GENESIS, head is None or head == GENESIS
        for row in self._rows(0, -1):
            reason = _broken(row, expected, before)
            if reason:
                return Break(seq=expected, reason=reason)
            before, expected = str(row[6]), expected + 1
            found = found or before == head
        if not found:
            return Break(
                seq=expected, reason=f"the entry with hash {head} is gone: the log was cut or replaced"
            )
        return None

    def last(self) -> tuple[int, str]:
        """Number and hash of the last entry: (0, `GENESIS`) while there is none."""
        row = self._connection.execute("select seq, hash from audit order by seq desc limit 1").fetchone()
        return (int(row[0]), str(row[1])) if row else (0, GENESIS)

    def _rows(self, after: int, limit: int) -> Iterator[tuple[object, ...]]:
        yield from self._connection.execute(
            "select seq, at, event, subject, detail, prev, hash from audit"
            " where seq > ? order by seq limit ?",
            (after, limit),
        )


def _broken(row: tuple[object, ...], expected: int, before: str) -> str:
    try:
        entry = _entry(row)
    except ValueError as error:
        return f"entry {expected} is no audit entry: {str(error).splitlines()[0]}"
    if entry.seq != expected:
        return f"entry {expected} is missing (the next one is {entry.seq})"
    if entry.prev != before:
        return f"entry {expected} does not follow the one before it"
    if canonical(entry.detail) != row[4] or entry.computed_hash() != entry.hash:
        return f"entry {expected} was changed: its content does not give its hash"
    return ""


def _entry(row: tuple[object, ...]) -> AuditEntry:
    seq, at, event, subject, detail, prev, digest = row
    return AuditEntry.model_validate(
        {
            "seq": seq,
            "at": at,
            "event": event,
            "subject": subject,
            "detail": _DETAIL.validate_json(str(detail)),
            "prev": prev,
            "hash": digest,
        }
    )
