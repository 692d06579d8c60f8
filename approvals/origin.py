"""Which workspace this is: a random id, and whether it was made as an example. Written once."""

import secrets
import sqlite3

from pydantic import BaseModel, ConfigDict

from approvals.audit import AuditLog
from approvals.tables import insert
from approvals.transactions import write_transaction

REAL = "real"
EXAMPLE = "example"
CREATED = "workspace_created"


class Origin(BaseModel):
    """Id (128 bits, hexadecimal) and kind of a workspace; immutable."""

    model_config = ConfigDict(frozen=True)

    id: str
    kind: str


def origin(connection: sqlite3.Connection, kind: str = REAL) -> Origin:
    """The workspace's origin; the first call writes it, with this kind, and into the audit log."""
    found = _stored(connection)
    if found:
        return found
    with write_transaction(connection):
        found = _stored(connection)
        if found:
            return found
        made = Origin(id=secrets.token_hex(16), kind=kind)
        insert(connection, "workspace", {"one": 1, **made.model_dump()})
        AuditLog(connection).append(CREATED, made.id, {"kind": made.kind})
    return made


def _stored(connection: sqlite3.Connection) -> Origin | None:
    row = connection.execute("select id, kind from workspace").fetchone()
    return Origin(id=row[0], kind=row[1]) if row else None
