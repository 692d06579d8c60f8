"""Holds what is stored against the audit log."""

from sqlite_utils import Database

from approvals import gate
from approvals.audit import AuditLog
from approvals.witness import broken_log
from plumbline_mcp.findings.integrity import broken_findings
from plumbline_mcp.workspace.records import sha256_text


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
    return problems + gate.broken_rows(database.conn) + broken_findings(database.conn, entries)
