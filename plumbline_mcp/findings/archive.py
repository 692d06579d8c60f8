"""The evidence archive of a finding: everything that a third party needs to check it without us.

    evidence.json          what is in the archive, with the digest of each file; always first
    approvals/             the request, with the policy of that day, and the signed statements
    audit.jsonl            the audit log from the first entry about the finding's evidence to the last
    events.json            every step of the finding
    finding.json           the finding as it was proposed
    runs/<id>/             each sealed run's manifest, spec, exit files, logs, records, and the files that
                           the finding names; the manifest holds the digests of all the others too
    verdicts/<id>.json     each verdict, as it was stored
    verifications.json     what was asked, answered and compared

The same finding gives the same bytes. `plumbline_mcp.findings.evidence` reads it.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from approvals.audit import AuditEntry
from approvals.canonical import canonical
from approvals.statement import Request
from approvals.ticket import Ticket
from checks.errors import Inconclusive
from checks.records.runs import RunFolder, sha256_file
from checks.verdict import Frozen
from plumbline_mcp.errors import UsageError
from plumbline_mcp.findings import tar
from plumbline_mcp.findings.finding import Finding
from plumbline_mcp.findings.records import StoredFinding
from plumbline_mcp.findings.store import Findings
from plumbline_mcp.scan.seals import broken_seal
from plumbline_mcp.temporaries import temporary_beside
from plumbline_mcp.workspace import Workspace

INDEX = "evidence.json"
_RUN_PARTS = ("job.json", "job.sh", "exit/", "logs/", "records/")


class Entry(Frozen):
    """A file of the archive."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size: int = Field(ge=0)


class Index(Frozen):
    """``evidence.json``."""

    format: Literal[1] = 1
    kind: Literal["plumbline-evidence"] = "plumbline-evidence"
    finding: str
    files: dict[str, Entry]


class ArchivedDecision(Frozen):
    """What was signed, and the signature."""

    statement: str = Field(max_length=2**20)
    signature: str = Field(max_length=2**16)


class ArchivedTicket(Frozen):
    """What of an approval is evidence."""

    id: str
    request: Request
    decisions: tuple[ArchivedDecision, ...] = Field(max_length=100)


@dataclass
class _Pack:
    """Files on their way into an archive."""

    files: dict[str, bytes | Path] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)

    def text(self, name: str, content: str) -> None:
        raw = content.encode()
        self.files[name] = raw
        self.entries[name] = Entry(sha256=hashlib.sha256(raw).hexdigest(), size=len(raw))

    def file(self, name: str, path: Path, sha256: str) -> None:
        """A file as it was sealed. Raises `Inconclusive` when it is another one now."""
        found, size = sha256_file(path)
        if found != sha256:
            raise Inconclusive(f"{path} is not the file that was sealed", "rerun the procedure")
        if tar.fits(name, size):  # another stays behind: the manifest holds its digest
            self.files[name] = path
            self.entries[name] = Entry(sha256=sha256, size=size)


def export_evidence(workspace: Workspace, finding_id: str, target: Path) -> Path:
    """Write the evidence archive of a finding. Raises `UsageError` when ``target`` is there already."""
    stored = Findings(workspace).get(finding_id)
    target = target.expanduser().absolute()
    if target.exists() or target.is_symlink():
        raise UsageError(f"there is already a file {target}", "name another file with --out")
    pack = _packed(workspace, stored)
    index = Index(finding=finding_id, files=pack.entries)
    files: list[tuple[str, bytes | Path]] = [(INDEX, spelled_index(index)), *sorted(pack.files.items())]
    temporary = temporary_beside(target)
    try:
        with temporary.open("xb") as file:
            tar.write(file, files)
        temporary.rename(target)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def spelled_index(index: Index) -> bytes:
    """The index in its one spelling."""
    return canonical(index.model_dump(mode="json")).encode() + b"\n"


def spelled(value: Any) -> str:
    """Plain data in its one spelling."""
    return canonical(value) + "\n"


def _packed(workspace: Workspace, stored: StoredFinding) -> _Pack:
    pack = _Pack()
    finding = stored.finding
    pack.text("finding.json", spelled(finding.model_dump(mode="json", exclude={"state"})))
    pack.text("events.json", spelled([event.model_dump(mode="json") for event in stored.events]))
    pack.text(
        "verifications.json",
        spelled([one.model_dump(mode="json", exclude={"kept"}) for one in stored.verifications]),
    )
    for name in finding.verdicts:
        pack.text(f"verdicts/{name}.json", _verdict_text(workspace, name, finding.verdict_sha256[name]))
    for run_id in finding.run_sha256:
        _pack_run(pack, workspace, finding, run_id)
    tickets = _tickets(workspace, stored)
    for ticket in tickets:
        pack.text(f"approvals/{ticket.id}.json", spelled(_archived(ticket).model_dump(mode="json")))
    segment = _segment(workspace, stored, tickets)
    pack.text("audit.jsonl", "".join(spelled(entry.model_dump(mode="json")) for entry in segment))
    return pack


def _archived(ticket: Ticket) -> ArchivedTicket:
    decided = (ArchivedDecision(statement=one.statement, signature=one.signature) for one in ticket.decisions)
    return ArchivedTicket(id=ticket.id, request=ticket.request, decisions=tuple(decided))


def _verdict_text(workspace: Workspace, name: str, sha256: str) -> str:
    rows = workspace.query("select verdict from verdicts where id = ?", [name])
    text = str(rows[0]["verdict"]) if rows else ""
    if hashlib.sha256(text.encode()).hexdigest() != sha256:
        raise Inconclusive(f"verdict {name} is not the one that the finding rests on", "restore a copy")
    return text


def _pack_run(pack: _Pack, workspace: Workspace, finding: Finding, run_id: str) -> None:
    folder = workspace.runs / run_id
    if reason := broken_seal(workspace, folder):
        raise Inconclusive(reason, "rerun the procedure; a changed record is no evidence")
    run = RunFolder.open(folder)
    named = {handle.file for handle in finding.evidence if handle.source == run_id}
    pack.file(f"runs/{run_id}/manifest.json", folder / "manifest.json", finding.run_sha256[run_id])
    for name, (sha256, _) in run.manifest.items():
        if name.startswith(_RUN_PARTS) or name in named:
            pack.file(f"runs/{run_id}/{name}", folder / name, sha256)


def _tickets(workspace: Workspace, stored: StoredFinding) -> list[Ticket]:
    """The approval that closed the finding."""
    return [workspace.approvals.ticket(stored.ticket)] if stored.ticket else []


def _segment(workspace: Workspace, stored: StoredFinding, tickets: Iterable[Ticket]) -> list[AuditEntry]:
    """The log from the first entry that the archive needs to the last, with all between: a whole chain."""
    finding = stored.finding
    subjects = {finding.id, *finding.verdicts, *finding.run_sha256, *(ticket.id for ticket in tickets)}
    subjects |= {one.id for one in stored.verifications}
    heads = set(_heads(tickets))
    entries = list(workspace.audit.entries())
    needed = [entry.seq for entry in entries if entry.subject in subjects or entry.hash in heads]
    return [entry for entry in entries if min(needed) <= entry.seq <= max(needed)]


def _heads(tickets: Iterable[Ticket]) -> Iterator[str]:
    for ticket in tickets:
        for decided in ticket.decisions:
            yield str(json.loads(decided.statement).get("log_head", ""))
