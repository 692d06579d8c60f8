"""Holds what is stored against the audit log."""

from typing import Any

from pydantic import JsonValue
from sqlite_utils import Database

from approvals import gate
from approvals.audit import AuditLog
from approvals.witness import broken_log
from plumbline_mcp.findings.integrity import broken_findings
from plumbline_mcp.workspace.records import sha256_text

_RUNS = """
select run_id, job, json_extract(job, '$.approval') as approval, (
    select count(*) from uses where key = ticket || ' ' || use_sha256 || ' ' || attempt
    and ticket = json_extract(job, '$.approval')
) as used
from runs
"""


def _broken_run(row: dict[str, Any], logged: dict[tuple[str, str], dict[str, JsonValue]]) -> list[str]:
    """A run whose job is not the one that was started, or that names an approval that was not used for it."""
    run_id, problems = row["run_id"], []
    noted = logged.get(("run_started", run_id)) or logged.get(("run_submitted", run_id), {})
    if noted.get("job_sha256") != sha256_text(row["job"]):
        problems.append(f"run {run_id} has another job than the one that was started")
    if row["approval"] not in (None, "none") and not row["used"]:
        problems.append(f"run {run_id} names the approval {row['approval']}, which was not used for it")
    return problems


def broken_records(database: Database) -> list[str]:
    """What does not hold: the audit log; else each verdict, run, approval and finding without its entry."""
    if broken := broken_log(database.conn):
        return [f"audit log: {broken.reason}"]
    entries = list(AuditLog(database.conn).entries())
    logged = {(entry.event, entry.subject): entry.detail for entry in entries}
    problems = []
    for row in database.query("select id, sha256, verdict from verdicts"):
        noted = logged.get(("verdict_stored", row["id"]), {}).get("sha256")
        if not noted == row["sha256"] == sha256_text(row["verdict"]):
            problems.append(f"verdict {row['id']} is not the one that was stored")
    for row in database.query("select run_id, manifest_sha256 from runs where state = 'sealed'"):
        noted = logged.get(("run_sealed", row["run_id"]), {}).get("manifest_sha256")
        if noted != row["manifest_sha256"]:
            problems.append(f"run {row['run_id']} has another manifest digest than the one that was sealed")
    problems += [problem for row in database.query(_RUNS) for problem in _broken_run(row, logged)]
    return problems + gate.broken_rows(database.conn) + broken_findings(database.conn, entries)
