"""Holds stored findings, their steps and verifications against the audit log."""

import sqlite3
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from approvals.audit import AuditEntry
from plumbline_mcp.errors import WorkspaceError
from plumbline_mcp.findings.records import Event, event_of, finding_of, verification_digest, verification_of
from plumbline_mcp.findings.states import State


def broken_findings(connection: sqlite3.Connection, entries: Iterable[AuditEntry]) -> list[str]:
    """Every finding and verification that is not the one of the log, and every one that is gone."""
    log: dict[str, list[AuditEntry]] = {}
    for entry in entries:
        if entry.event.startswith(("finding_", "verification_")):
            log.setdefault(entry.subject, []).append(entry)
    findings = {row["id"]: row for row in _rows(connection, "findings")}
    verifications = {row["id"]: row for row in _rows(connection, "verifications")}
    gone = sorted(log.keys() - findings.keys() - verifications.keys())
    problems = [f"{name} is gone" for name in gone]
    steps: dict[str, list[Event]] = {}
    for row in _rows(connection, "finding_events order by seq"):
        steps.setdefault(str(row["finding"]), []).append(event_of(row))
    for name, row in findings.items():
        if not _same_finding(row, steps.get(name, []), log.get(name, [])):
            problems.append(f"{name} is not the finding that was stored")
    for name, row in verifications.items():
        if not _same_verification(row, log.get(name, [])):
            problems.append(f"{name} is not the verification that was stored")
    return problems


def _same_finding(row: dict[str, Any], steps: list[Event], log: list[AuditEntry]) -> bool:
    try:
        finding = finding_of(row, State.PROPOSED)
    except WorkspaceError:
        return False
    return same_steps(steps, log) and bool(log) and log[0].detail.get("sha256") == finding.sha256


def same_steps(steps: list[Event], log: list[AuditEntry]) -> bool:
    """Whether a finding's steps are those that the log noted, in their order."""
    return len(steps) == len(log) and all(
        entry.event == f"finding_{step.state}" and step.noted.items() <= entry.detail.items()
        for step, entry in zip(steps, log, strict=True)
    )


def _same_verification(row: dict[str, Any], log: list[AuditEntry]) -> bool:
    try:
        found = verification_of(row)
    except (ValidationError, ValueError):
        return False
    events = [entry.event for entry in log]
    if events != ["verification_taken", *(["verification_submitted"] if found.submitted else [])]:
        return False
    taken = (
        log[0].detail.get("finding") == found.finding and log[0].detail.get("principal") == found.principal
    )
    return taken and (found.submitted is None or log[1].detail.get("sha256") == verification_digest(found))


def _rows(connection: sqlite3.Connection, table: str) -> list[dict[str, Any]]:
    cursor = connection.execute(f"select * from {table}")  # noqa: S608 - own names
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]
