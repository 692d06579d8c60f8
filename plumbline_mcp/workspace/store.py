"""The workspace as the rest of the program sees it: ids, verdicts, runs and the audit log."""

import difflib
import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import JsonValue
from sqlite_utils import Database

from approvals.audit import AuditLog
from approvals.origin import EXAMPLE, REAL, Origin, origin
from approvals.queue import Approvals
from approvals.trust import TrustRoots
from checks.records.runs import Job
from checks.verdict import Outcome, Verdict
from plumbline_mcp.errors import UsageError, WorkspaceError
from plumbline_mcp.workspace.database import connect, explained, write_tx
from plumbline_mcp.workspace.integrity import broken_records
from plumbline_mcp.workspace.location import (
    DATABASE,
    HOME_VARIABLE,
    default_home,
    make_private,
    refuse_network,
)
from plumbline_mcp.workspace.records import (
    KIND_PATTERN,
    SHA256_PATTERN,
    RunOutcome,
    RunRow,
    RunState,
    StoredRun,
    StoredVerdict,
    VerdictRow,
    sha256_text,
)

EXAMPLE_TRUST = "example-trust"
"""Folder of the throwaway key, in the home of an example workspace."""


class Workspace:
    """An open workspace; safe to use from several threads and processes at once."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.runs = home / "runs"
        self._path = home / DATABASE
        self._local = threading.local()

    @classmethod
    def open(cls, home: Path | None = None, create: bool = True, kind: str | None = None) -> "Workspace":
        """Open ``home`` (default: ``PLUMBLINE_HOME``, else ``.plumbline`` here), made when missing.

        ``kind`` ("real" or "example") is what a new one becomes, for good (default "real"), and what one that
        is there has to be. Raises `WorkspaceError`: a network file system, a newer database, no space,
        another kind, or, with ``create=False``, nothing there.
        """
        home = (home or default_home()).expanduser().absolute()
        refuse_network(home)
        if not create and not (home / DATABASE).is_file():
            raise WorkspaceError(
                f"there is no workspace at {home}", "run a check, or name another folder with PLUMBLINE_HOME"
            )
        make_private(home)
        workspace = cls(home)
        found = workspace._origin(kind or REAL)  # opened now, so that an unusable one is met here
        if kind not in (None, found.kind):
            raise WorkspaceError(
                f"the workspace {home} is a {found.kind} one, not of kind {kind!r}",
                f"name another folder with {HOME_VARIABLE}",
            )
        return workspace

    @property
    def _database(self) -> Database:
        """This thread's connection."""
        if not hasattr(self._local, "database"):
            self._local.database = connect(self._path)
        found: Database = self._local.database
        return found

    def close(self) -> None:
        """Close this thread's connection; the next use opens another."""
        if hasattr(self._local, "database"):
            self._local.database.close()
            del self._local.database

    @property
    def audit(self) -> AuditLog:
        """The audit log, on this thread's connection."""
        return AuditLog(self._database.conn)

    @property
    def kind(self) -> str:
        """What it was made as: "real", or "example", whose approvals the throwaway key signs."""
        return self._origin().kind

    @property
    def approvals(self) -> Approvals:
        """The approvals, on this thread's connection. Raises `approvals.errors.Refused`."""
        found = self._origin()
        example = found.kind == EXAMPLE
        trust = TrustRoots.example(self.home / EXAMPLE_TRUST) if example else TrustRoots()
        return Approvals(self._database.conn, trust, found.id, found.kind)

    def _origin(self, kind: str = REAL) -> Origin:
        with explained(self._path):
            return origin(self._database.conn, kind)

    @contextmanager
    def write_tx(self) -> Iterator[Database]:
        """One write transaction: all or nothing. Raises `WorkspaceError` (disk full, locked too long)."""
        with explained(self._path), write_tx(self._database) as database:
            yield database

    def new_id(self, kind: str) -> str:
        """The next id of a kind, e.g. ``data-0007``; never given twice, also not after a crash."""
        with self.write_tx() as database:
            return _next_id(database, kind)

    # --- verdicts ---------------------------------------------------------------------------------------

    def add_verdict(self, verdict: Verdict, inputs: dict[str, Any]) -> Verdict:
        """Store a verdict and its audit entry in one transaction; returns it with its new id."""
        asked = json.dumps(inputs, sort_keys=True, allow_nan=False, default=_path_text)
        with self.write_tx() as database:
            stored = verdict.model_copy(update={"id": _next_id(database, verdict.check)})
            text = stored.model_dump_json()
            row = VerdictRow(
                id=stored.id,
                check_name=stored.check,
                outcome=stored.outcome,
                run_id=stored.run_id,
                created=_now(),
                inputs=asked,
                verdict=text,
                sha256=sha256_text(text),
            )
            database.table("verdicts").insert(row.model_dump(mode="json"))
            detail: dict[str, JsonValue] = {"outcome": row.outcome.value, "sha256": row.sha256}
            AuditLog(database.conn).append("verdict_stored", stored.id, detail)
        return stored

    def verdict(self, verdict_id: str) -> StoredVerdict:
        """The verdict of that id. Raises `UsageError` with the nearest ids."""
        row = self._one("select * from verdicts where id = ?", verdict_id)
        if row is None:
            raise self._unknown("verdict", verdict_id, "select id from verdicts order by seq desc limit 2000")
        return StoredVerdict.of(row)

    def verdicts(
        self,
        check: str | None = None,
        outcome: Outcome | str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> list[StoredVerdict]:
        """Verdicts, newest first; ``after`` is the id of the last one seen."""
        sql, values = _filtered({"check_name": check, "outcome": outcome})
        if after is not None:
            sql += " and seq < coalesce((select seq from verdicts where id = :after), 0)"
        values |= {"after": after, "limit": limit}
        return [
            StoredVerdict.of(row)
            for row in self.query(
                f"select * from verdicts where {sql} order by seq desc limit :limit",  # noqa: S608 - own column names
                values,
            )
        ]

    def verdict_count(self, check: str | None = None, outcome: Outcome | str | None = None) -> int:
        """How many verdicts there are."""
        sql, values = _filtered({"check_name": check, "outcome": outcome})
        return int(self.query(f"select count(*) as n from verdicts where {sql}", values)[0]["n"])  # noqa: S608 - own column names

    # --- runs -------------------------------------------------------------------------------------------

    def add_run(self, job: Job, state: RunState | str = RunState.RUNNING) -> StoredRun:
        """Register a run before anything of it starts. Raises `UsageError` when the id is taken."""
        with self.write_tx() as database:
            if database.table("runs").count_where("run_id = ?", [job.run_id]):
                raise UsageError(f"there is already a run {job.run_id!r}", "take a new id for each run")
            return _insert_run(database, job, RunState(state), None)

    def claim_run(
        self, key: str, kind: str, make: Callable[[str], Job], admit: Callable[[], object] | None = None
    ) -> tuple[StoredRun, bool]:
        """The run of a key and whether this call made it: the same key twice is one run.

        ``admit`` is asked first, and ``make`` gives the job for the new id, both inside the transaction: they
        must be quick, and nothing is stored when they raise.
        """
        with self.write_tx() as database:
            row = next(iter(database.query("select * from runs where key = ?", [key])), None)
            if row is not None:
                return StoredRun.of(row), False
            if admit is not None:
                admit()
            job = make(_next_id(database, kind))
            return _insert_run(database, job, RunState.SUBMITTING, key), True

    def start_run(self, job: Job) -> StoredRun:
        """Note that a submitted run is about to start, with the job as it was written."""
        with self.write_tx() as database:
            row = _active_row(database, job.run_id)
            new = RunRow.model_validate(row | {"state": RunState.RUNNING, "job": job.model_dump_json()})
            changed = {name: new.model_dump(mode="json")[name] for name in ("state", "job")}
            database.table("runs").update(job.run_id, changed)
            detail: dict[str, JsonValue] = {"job_sha256": sha256_text(new.job)}
            AuditLog(database.conn).append("run_started", job.run_id, detail)
        return StoredRun.of(new.model_dump(mode="json"))

    def seal_run(
        self, run_id: str, manifest_sha256: str, outcome: RunOutcome | None = None, reason: str = ""
    ) -> StoredRun:
        """Note the digest of a finished run's manifest; only a run that is not over can be sealed, once."""
        if not re.fullmatch(SHA256_PATTERN, manifest_sha256):
            raise UsageError(f"{manifest_sha256[:80]!r} is no SHA-256 digest", "give 64 hexadecimal digits")
        ended = {"state": RunState.SEALED, "manifest_sha256": manifest_sha256, "outcome": outcome}
        detail: dict[str, JsonValue] = {"manifest_sha256": manifest_sha256}
        return self._end(
            run_id, ended | {"reason": reason}, detail | ({"outcome": outcome} if outcome else {})
        )

    def end_run(self, run_id: str, state: RunState | str, reason: str = "") -> StoredRun:
        """End a run without records: ``removed`` (its folder is gone) or ``lost`` (its processes are)."""
        return self._end(run_id, {"state": RunState(state), "reason": reason}, {"reason": reason})

    def run_of_key(self, key: str) -> StoredRun | None:
        """The run that was submitted under a key."""
        row = self._one("select * from runs where key = ?", key)
        return None if row is None else StoredRun.of(row)

    def run(self, run_id: str) -> StoredRun:
        """The run of that id. Raises `UsageError` with the nearest ids."""
        row = self._one("select * from runs where run_id = ?", run_id)
        if row is None:
            raise self._unknown("run", run_id, "select run_id as id from runs order by rowid desc limit 2000")
        return StoredRun.of(row)

    def runs_list(
        self, state: RunState | str | None = None, limit: int = 50, after: str | None = None
    ) -> list[StoredRun]:
        """Runs, newest first; ``after`` is the id of the last one seen."""
        sql, values = _filtered({"state": state})
        if after is not None:
            sql += " and rowid < coalesce((select rowid from runs where run_id = :after), 0)"
        values |= {"after": after, "limit": limit}
        return [
            StoredRun.of(row)
            for row in self.query(f"select * from runs where {sql} order by rowid desc limit :limit", values)  # noqa: S608 - own column names
        ]

    def run_count(self, state: RunState | str | None = None) -> int:
        """How many runs there are."""
        sql, values = _filtered({"state": state})
        return int(self.query(f"select count(*) as n from runs where {sql}", values)[0]["n"])  # noqa: S608 - own column names

    def verify(self) -> list[str]:
        """What does not hold: the audit chain, or a verdict or sealed run that its entry does not match."""
        with explained(self._path):
            return broken_records(self._database)

    # --- reading and ending -----------------------------------------------------------------------------

    def _end(self, run_id: str, ended: dict[str, Any], detail: dict[str, JsonValue]) -> StoredRun:
        self.run(run_id)
        with self.write_tx() as database:
            row = _active_row(database, run_id)
            changed = ended | {"ended": _now()}
            new = RunRow.model_validate(row | changed).model_dump(mode="json")
            database.table("runs").update(run_id, {name: new[name] for name in changed})
            AuditLog(database.conn).append(f"run_{new['state']}", run_id, detail)
        return StoredRun.of(new)

    def _one(self, sql: str, value: str) -> dict[str, Any] | None:
        with explained(self._path):
            return next(iter(self._database.query(sql, [value])), None)

    def query(self, sql: str, values: dict[str, Any] | Sequence[Any]) -> list[dict[str, Any]]:
        """The rows of a reading statement of our own. Raises `WorkspaceError`."""
        with explained(self._path):
            return list(self._database.query(sql, values))

    def _unknown(self, kind: str, wanted: str, sql: str) -> UsageError:
        known = [str(row["id"]) for row in self.query(sql, {})]
        near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.0)
        hint = f"the nearest are {', '.join(near)}" if near else f"there is no {kind} in this workspace yet"
        return UsageError(f"there is no {kind} {wanted[:80]!r}", hint)


def _insert_run(database: Database, job: Job, state: RunState, key: str | None) -> StoredRun:
    row = RunRow(
        run_id=job.run_id,
        procedure=job.procedure,
        framework=job.framework,
        state=state,
        created=_now(),
        job=job.model_dump_json(),
        key=key,
    ).model_dump(mode="json")
    database.table("runs").insert(row)
    event = "run_submitted" if state is RunState.SUBMITTING else "run_started"
    AuditLog(database.conn).append(event, job.run_id, {"job_sha256": sha256_text(row["job"])})
    return StoredRun.of(row)


def _active_row(database: Database, run_id: str) -> dict[str, Any]:
    row: dict[str, Any] = next(iter(database.query("select * from runs where run_id = ?", [run_id])))
    if RunState(row["state"]).over:
        raise UsageError(f"run {run_id} has already ended ({row['state']})", "take a new id for each run")
    return row


def _next_id(database: Database, kind: str) -> str:
    if not re.fullmatch(KIND_PATTERN, kind):
        raise UsageError(f"{kind!r} cannot name a kind of id", "use lower-case letters, digits and _")
    (number,) = database.conn.execute(
        "insert into ids (kind, last) values (?, 1)"
        " on conflict (kind) do update set last = last + 1 returning last",
        (kind,),
    ).fetchone()
    return f"{kind}-{number:04d}"


def _filtered(columns: dict[str, str | None]) -> tuple[str, dict[str, Any]]:
    """A ``where`` clause for the columns that are asked for."""
    values: dict[str, Any] = {name: str(value) for name, value in columns.items() if value is not None}
    return " and ".join(["1", *(f"{name} = :{name}" for name in values)]), values


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _path_text(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be stored as an input")
