"""The tables of findings: what was proposed and what happened to it are only ever added to."""

import sqlite3

_APPEND_ONLY = ("findings", "finding_events")

_TABLES = (
    """create table findings (
        seq integer primary key autoincrement, id text not null unique, proposer text not null,
        created text not null,
        finding text not null, sha256 text not null
    ) strict""",
    """create table finding_events (
        seq integer primary key autoincrement, finding text not null references findings (id),
        at text not null, state text not null check (
            state in ('proposed', 'rebuilt', 'disputed', 'confirmed', 'departure', 'refused')),
        actor text not null, reason text not null, verification text, ticket text
    ) strict""",
    """create table verifications (
        id text primary key, finding text not null references findings (id),
        principal text not null, way text not null check (way in ('recompute', 'agent', 'command')),
        taken text not null, question text not null, kept text not null,
        submitted text, submission text, comparison text,
        check ((submitted is null) = (submission is null) and (submitted is null) = (comparison is null))
    ) strict""",
    "create index finding_events_by_finding on finding_events (finding, seq)",
    "create index verifications_by_finding on verifications (finding)",
    """create trigger verifications_once before update on verifications when old.submitted is not null
        begin select raise(abort, 'a submission is never changed'); end""",
    """create trigger verifications_no_delete before delete on verifications
        begin select raise(abort, 'a verification is never removed'); end""",
)


def create(connection: sqlite3.Connection) -> None:
    """Create tables and triggers. The state of a finding is that of its last event."""
    for statement in _TABLES:
        connection.execute(statement)
    for name in _APPEND_ONLY:
        key = "id = new.id or seq = new.seq" if name == "findings" else "seq = new.seq"
        for when, what in (("update", "changed"), ("delete", "removed")):
            connection.execute(
                f"create trigger {name}_no_{when} before {when} on {name}"
                f" begin select raise(abort, 'a row of {name} is never {what}'); end"
            )
        connection.execute(
            f"create trigger {name}_no_replace before insert on {name}"  # noqa: S608 - own names
            f" when exists (select 1 from {name} where {key})"
            f" begin select raise(abort, 'a row of {name} is never changed'); end"
        )
