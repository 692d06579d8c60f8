"""The SQLite database: connections, the one write transaction, migrations, and errors one can act on."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from sqlite_utils import Database
from sqlite_utils.migrations import Migrations

from approvals import tables
from approvals.audit import AuditLog
from plumbline_mcp.errors import WorkspaceError
from plumbline_mcp.findings import tables as finding_tables

BUSY_TIMEOUT_S = 30

migrations = Migrations("plumbline")

_KNOWN_ERRORS = {
    "SQLITE_FULL": ("there is no space left", "free space and repeat; nothing was half written"),
    "SQLITE_IOERR_SHMSIZE": ("there is no space left", "free space and repeat; nothing was half written"),
    "SQLITE_IOERR_WRITE": ("it cannot be written", "check disk space and file size limits, then repeat"),
    "SQLITE_IOERR_FSYNC": ("it cannot be written", "check disk space and the disk, then repeat"),
    "SQLITE_BUSY": (f"another process has been writing for {BUSY_TIMEOUT_S} s", "wait for it and repeat"),
    "SQLITE_READONLY": ("it is read-only", "set PLUMBLINE_HOME to a folder that you can write"),
    "SQLITE_CANTOPEN": ("it cannot be opened", "check the folder's permissions and free space"),
    "SQLITE_NOTADB": ("it is no database", "move the file away, or set PLUMBLINE_HOME to another folder"),
    "SQLITE_CORRUPT": ("it is damaged", "restore a copy, or set PLUMBLINE_HOME to a new folder"),
}


def connect(path: Path) -> Database:
    """Open a connection for one thread, with every migration applied. Raises `WorkspaceError`.

    ``synchronous=FULL``: what was stored survives a power loss. ``trusted_schema=OFF``: a database that
    came with somebody's repository cannot run functions through its schema.
    """
    with explained(path):
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        database = Database(connection, execute_plugins=False)
        try:
            for pragma in ("busy_timeout=30000", "trusted_schema=off", "foreign_keys=on", "synchronous=full"):
                connection.execute(f"pragma {pragma}")
            _use_wal(connection)
            _migrate(database, path)
        except BaseException:
            connection.close()
            raise
    return database


@contextmanager
def write_tx(database: Database) -> Iterator[Database]:
    """The one way to write: ``BEGIN IMMEDIATE`` takes the write lock before anything is read.

    A deferred transaction that reads first loses updates or fails at once when another process writes
    meanwhile, whatever the busy time-out. Keep it short; await nothing inside.
    """
    database.conn.execute("begin immediate")
    try:
        yield database
        database.conn.execute("commit")
    except BaseException:
        if database.conn.in_transaction:
            database.conn.rollback()
        raise


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into a `WorkspaceError` that says what to do."""
    try:
        yield
    except sqlite3.IntegrityError:
        raise  # a broken promise of our own code, not of the disk
    except sqlite3.DatabaseError as error:
        _explain(path, error)


def _explain(path: Path, error: sqlite3.DatabaseError) -> NoReturn:
    name = getattr(error, "sqlite_errorname", "")
    known = next((_KNOWN_ERRORS[prefix] for prefix in _KNOWN_ERRORS if name.startswith(prefix)), None)
    what, next_step = known or (str(error), "repeat; if it stays, restore a copy of the database")
    raise WorkspaceError(
        f"the database {path} cannot be used: {what} ({name or 'SQLite'})", next_step
    ) from error


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to write-ahead logging; SQLite does not apply the busy time-out while another one switches."""
    last = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("pragma journal_mode=wal")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > last:
                raise
            time.sleep(0.02)
        else:
            return


def _migrate(database: Database, path: Path) -> None:
    """Apply what is pending. Inside one `write_tx`: several first openers at once fail otherwise."""
    if not _unknown(database, path) and not migrations.pending(database):
        return
    with write_tx(database):
        _unknown(database, path)
        migrations.apply(database)


def _unknown(database: Database, path: Path) -> bool:
    """Whether the database is new. Raises `WorkspaceError` for one of a newer version or another program."""
    tables = set(database.table_names())
    if tables and migrations.migrations_table not in tables:
        raise WorkspaceError(
            f"{path} is not a database of this program (tables: {', '.join(sorted(tables))[:80]})",
            "set PLUMBLINE_HOME to another folder",
        )
    applied = {migration.name for migration in migrations.applied(database)}
    newer = sorted(applied - {migration.name for migration in migrations._migrations})  # noqa: SLF001 - no public list
    if newer:
        raise WorkspaceError(
            f"{path} was written by a newer version of this program (it has {newer[-1]!r})",
            "upgrade this program, or set PLUMBLINE_HOME to another folder",
        )
    return not tables


@migrations(name="0001_verdicts_runs_ids")
def _first(database: Database) -> None:
    for statement in (
        "create table ids (kind text primary key, last integer not null check (last > 0)) strict",
        """create table runs (
            run_id text primary key, procedure text not null, framework text not null,
            state text not null check (state in ('running', 'sealed', 'removed', 'lost')),
            created text not null, ended text, manifest_sha256 text,
            job text not null,
            check ((state = 'sealed') = (manifest_sha256 is not null))
        ) strict""",
        """create table verdicts (
            seq integer primary key autoincrement, id text not null unique, check_name text not null,
            outcome text not null check (outcome in ('pass', 'fail', 'inconclusive', 'not_evaluated')),
            run_id text, created text not null,
            inputs text not null,
            verdict text not null, sha256 text not null
        ) strict""",
        "create index verdicts_by_check on verdicts (check_name, outcome)",
        "create index verdicts_by_run on verdicts (run_id)",
        """create trigger verdicts_no_update before update on verdicts
            begin select raise(abort, 'a stored verdict is never changed'); end""",
        """create trigger verdicts_no_delete before delete on verdicts
            begin select raise(abort, 'a stored verdict is never removed'); end""",
        """create trigger verdicts_no_replace before insert on verdicts
            when exists (select 1 from verdicts where id = new.id or seq = new.seq)
            begin select raise(abort, 'a stored verdict is never changed'); end""",
    ):
        database.execute(statement)


@migrations(name="0002_audit")
def _audit(database: Database) -> None:
    AuditLog(database.conn).create()


@migrations(name="0003_submitted_runs")
def _submitted(database: Database) -> None:
    """Runs get a key that is given once, a state before they run, and how they ended.

    SQLite cannot change a check constraint, so the table is made anew; a run that was in progress keeps its
    state and is swept when nobody runs it.
    """
    for statement in (
        "alter table runs rename to runs_before",
        """create table runs (
            run_id text primary key, procedure text not null, framework text not null,
            state text not null check (state in ('submitting', 'running', 'sealed', 'removed', 'lost')),
            created text not null, ended text, manifest_sha256 text,
            job text not null,
            key text unique, reason text not null default '',
            outcome text check (outcome in ('succeeded', 'failed', 'cancelled', 'timed_out')),
            check ((state = 'sealed') = (manifest_sha256 is not null))
        ) strict""",
        """insert into runs (rowid, run_id, procedure, framework, state, created, ended, manifest_sha256, job)
            select rowid, run_id, procedure, framework, state, created, ended, manifest_sha256, job
            from runs_before""",
        "drop table runs_before",
    ):
        database.execute(statement)


@migrations(name="0004_approvals")
def _approvals(database: Database) -> None:
    tables.create(database.conn)


@migrations(name="0005_findings")
def _findings(database: Database) -> None:
    finding_tables.create(database.conn)
