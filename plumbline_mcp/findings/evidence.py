"""Checks an evidence archive offline, with the reader's own list of keys: no workspace and no network.

Everything is held against everything: digests of every file, the finding against verdicts, runs and
evidence, each comparison made anew, each step against the states, the audit log's chain, and the signatures
(`plumbline_mcp.findings.evidence_signatures`).
"""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel, Field, TypeAdapter

from approvals.audit import AuditEntry
from approvals.trust import EXAMPLE_NAMESPACE, NAMESPACE, TrustRoots
from checks.verdict import Frozen, Verdict
from plumbline_mcp.errors import UsageError
from plumbline_mcp.findings import tar
from plumbline_mcp.findings.archive import INDEX, ArchivedTicket, Entry, Index, spelled, spelled_index
from plumbline_mcp.findings.comparison import Result, compare
from plumbline_mcp.findings.evidence_signatures import (
    AGAIN,
    LogSegment,
    Signed,
    adapted,
    expected_request,
    parsed,
    signed,
)
from plumbline_mcp.findings.finding import Finding
from plumbline_mcp.findings.integrity import same_steps
from plumbline_mcp.findings.records import Event, Kept, Verification, verification_digest
from plumbline_mcp.findings.states import SIGNED, State, check_step
from plumbline_mcp.findings.tar import EvidenceRefused, Member

_JSON_LIMIT = 2**26
_VERIFICATIONS = TypeAdapter(list[Verification])
_EVENTS = TypeAdapter(list[Event])


class _Manifest(BaseModel):
    """What of a run's manifest is read."""

    files: dict[str, Entry]


class EvidenceReport(Frozen):
    """What an archive proves."""

    finding: Finding
    state: State
    signatures: tuple[Signed, ...]
    example: bool = Field(
        False, description="signed with the throwaway example key: proves nothing to others"
    )
    verifications: tuple[str, ...] = Field(description="who rebuilt it, how, and what came out")
    verdicts: int
    files: int
    records: int = Field(description="sealed files whose bytes are in the archive")
    entries: int = Field(description="entries of the audit log")

    @property
    def confirmed(self) -> bool:
        """Whether reviewers signed it whom the reader lists, each of them."""
        return self.state in SIGNED and not self.example and all(one.listed for one in self.signatures)


def verify_evidence(
    archive: Path, allowed_signers: Path, revoked: Path | None = None, example: bool = False
) -> EvidenceReport:
    """Check an archive. Raises `EvidenceRefused` for the first thing that does not hold.

    A signer whom the reader does not list is no fault of the archive: the report says so.
    ``allowed_signers`` is the reader's own file in OpenSSH's format; ``example`` accepts the namespace of the
    throwaway example key, which proves nothing but that the archive is whole.
    """
    try:
        file = archive.expanduser().open("rb")
    except OSError as error:
        raise UsageError(f"{archive} cannot be read: {error.strerror}", "name an evidence archive") from error
    with file, _roots(allowed_signers, revoked, example) as trust:
        return _Archive.open(file).report(trust)


@contextmanager
def _roots(allowed_signers: Path, revoked: Path | None, example: bool) -> Iterator[TrustRoots]:
    """Trust roots made of the reader's own files, in a private folder, for one verification."""
    files = {"allowed_signers": allowed_signers} | ({"revoked": revoked} if revoked else {})
    with tempfile.TemporaryDirectory(prefix="plumbline-evidence-") as folder:
        for name, path in files.items():
            if not path.expanduser().is_file():
                raise UsageError(
                    f"there is no file {path}", f"name your own {name} file, as ssh-keygen reads it"
                )
            shutil.copyfile(path.expanduser(), Path(folder, name))
            Path(folder, name).chmod(0o600)
        try:
            yield TrustRoots(Path(folder), EXAMPLE_NAMESPACE if example else NAMESPACE)
        except EvidenceRefused as error:  # said of our copy: the reader knows the file by their own path
            said = error.message
            for name, path in files.items():
                said = said.replace(str(Path(folder, name)), str(path))
            raise EvidenceRefused(said, error.next_step) from error


@dataclass(frozen=True)
class _Archive:
    """An archive whose bytes are the ones its index names."""

    file: IO[bytes]
    files: dict[str, Member]
    index: Index

    @classmethod
    def open(cls, file: IO[bytes]) -> "_Archive":
        """Read names and digests. Raises `EvidenceRefused`."""
        found = tar.members(file)
        if not found or found[0].name != INDEX:
            raise EvidenceRefused(f"the archive does not begin with {INDEX}", AGAIN)
        raw = tar.content(file, found[0], _JSON_LIMIT)
        index = parsed(Index, raw, INDEX)
        if spelled_index(index) != raw:
            raise EvidenceRefused(f"{INDEX} is not in its one spelling", AGAIN)
        names = [member.name for member in found[1:]]
        if names != sorted(index.files):
            raise EvidenceRefused("the archive does not hold the files that its index names", AGAIN)
        for member in found[1:]:
            entry = index.files[member.name]
            if entry.size != member.size or entry.sha256 != tar.sha256(file, member):
                raise EvidenceRefused(f"{member.name} is not the file that the index names", AGAIN)
        return cls(file, {member.name: member for member in found}, index)

    def report(self, trust: TrustRoots) -> EvidenceReport:
        """Hold everything against everything."""
        finding = self._finding()
        verifications = self._verifications(finding)
        events = self._events(finding)
        runs = sum(self._run(finding, run_id) for run_id in finding.run_sha256)
        for name in finding.verdicts:
            self._verdict(finding, name)
        for handle in finding.evidence:
            if handle.source not in finding.run_sha256 and handle.source not in finding.verdicts:
                raise EvidenceRefused(f"evidence of {handle.source} is not in the archive", AGAIN)
        log = self._log(finding, verifications, events)
        signed = self._signatures(finding, verifications, events, log, trust)
        self._refuse_others(finding, events)
        return EvidenceReport(
            finding=finding.model_copy(update={"state": events[-1].state}),
            state=events[-1].state,
            signatures=signed,
            example=bool(signed) and trust.is_example,
            verifications=tuple(
                f"{one.principal} ({one.way}): {one.comparison.result if one.comparison else 'not submitted'}"
                for one in verifications
            ),
            verdicts=len(finding.verdicts),
            files=len(self.files),
            records=runs,
            entries=len(log.entries),
        )

    # --- what was found ---------------------------------------------------------------------------------

    def _finding(self) -> Finding:
        finding = parsed(Finding, self._read("finding.json"), "finding.json")
        if finding.id != self.index.finding:
            raise EvidenceRefused("the index names another finding", AGAIN)
        return finding

    def _verifications(self, finding: Finding) -> list[Verification]:
        raw = self._plain("verifications.json")
        kept = Kept(folder="")
        given = (
            [one | {"kept": kept} for one in raw if isinstance(one, dict)] if isinstance(raw, list) else []
        )
        found = adapted(_VERIFICATIONS, given, "verifications.json")
        for one in found:
            if one.finding != finding.id:
                raise EvidenceRefused(f"{one.id} is about another finding", AGAIN)
            if one.submission is not None and compare(finding.claim, one.submission) != one.comparison:
                raise EvidenceRefused(f"the comparison of {one.id} is not what its answer gives", AGAIN)
        return found

    def _events(self, finding: Finding) -> list[Event]:
        events = adapted(_EVENTS, self._plain("events.json"), "events.json")
        if not events or events[0].state is not State.PROPOSED or events[0].actor != finding.proposer:
            raise EvidenceRefused(f"{finding.id} does not begin as proposed", AGAIN)
        for before, after in pairwise(events):
            try:
                check_step(finding.id, before.state, after.state)
            except UsageError as error:
                raise EvidenceRefused(error.message, AGAIN) from error
        if any(event.finding != finding.id for event in events):
            raise EvidenceRefused("an event is about another finding", AGAIN)
        return events

    def _verdict(self, finding: Finding, name: str) -> None:
        place = f"verdicts/{name}.json"
        if self._sha256(place) != finding.verdict_sha256[name]:
            raise EvidenceRefused(f"{name} is not the verdict that the finding rests on", AGAIN)
        verdict = parsed(Verdict, self._read(place), place)
        known = {(evidence.path, evidence.sha256) for evidence in verdict.evidence}
        for handle in finding.evidence:
            if handle.source != name:
                continue
            if not any(path.endswith(handle.file) and sha == handle.sha256 for path, sha in known):
                raise EvidenceRefused(f"{handle.file} is no evidence of {name}", AGAIN)

    def _run(self, finding: Finding, run_id: str) -> int:
        """How many files of a run are in the archive; each is the one that was sealed."""
        place = f"runs/{run_id}/"
        if self._sha256(f"{place}manifest.json") != finding.run_sha256[run_id]:
            raise EvidenceRefused(f"the manifest of {run_id} is not the sealed one", AGAIN)
        manifest = parsed(_Manifest, self._read(f"{place}manifest.json"), f"{place}manifest.json")
        sealed = {name: entry.sha256 for name, entry in manifest.files.items()}
        held = [name for name in self.files if name.startswith(place) and not name.endswith("/manifest.json")]
        for name in held:
            if self._sha256(name) != sealed.get(name.removeprefix(place)):
                raise EvidenceRefused(f"{name} is not the file that was sealed", AGAIN)
        for handle in finding.evidence:
            if handle.source == run_id and sealed.get(handle.file) != handle.sha256:
                raise EvidenceRefused(f"{handle.file} of {run_id} was sealed with another digest", AGAIN)
        return len(held)

    # --- the audit log ----------------------------------------------------------------------------------

    def _log(self, finding: Finding, verifications: list[Verification], events: list[Event]) -> LogSegment:
        lines = self._read("audit.jsonl").splitlines(keepends=True)
        entries = [parsed(AuditEntry, line, "audit.jsonl") for line in lines]
        if [spelled(entry.model_dump(mode="json")).encode() for entry in entries] != lines:
            raise EvidenceRefused("audit.jsonl is not in its one spelling", AGAIN)
        log = LogSegment(entries)
        log.refuse_broken()
        log.need("finding_proposed", finding.id, {"sha256": finding.sha256})
        for name, sha256 in finding.verdict_sha256.items():
            log.need("verdict_stored", name, {"sha256": sha256})
        for name, sha256 in finding.run_sha256.items():
            log.need("run_sealed", name, {"manifest_sha256": sha256})
        for one in verifications:
            log.need("verification_taken", one.id, {"finding": finding.id, "principal": one.principal})
            if one.submitted is not None:
                log.need("verification_submitted", one.id, {"sha256": verification_digest(one)})
        if not same_steps(events, [entry for entry in log.entries if entry.subject == finding.id]):
            raise EvidenceRefused(f"the steps of {finding.id} are not those of the audit log", AGAIN)
        return log

    def _signatures(
        self,
        finding: Finding,
        verifications: list[Verification],
        events: list[Event],
        log: LogSegment,
        trust: TrustRoots,
    ) -> tuple[Signed, ...]:
        last = events[-1]
        if last.state in SIGNED:
            rebuilt = {event.verification for event in events if event.state is State.REBUILT}
            agreed = {v.id for v in verifications if v.comparison and v.comparison.result is Result.AGREE}
            if not rebuilt <= agreed:
                raise EvidenceRefused(f"{finding.id} was not rebuilt by a verification that agrees", AGAIN)
        if last.ticket is None:
            if last.state in SIGNED:
                raise EvidenceRefused(f"{finding.id} is {last.state} without an approval", AGAIN)
            return ()
        name = f"approvals/{last.ticket}.json"
        ticket = adapted(TypeAdapter(ArchivedTicket), self._plain(name), name)
        return signed(ticket, last, expected_request(finding, verifications), log, trust)

    def _refuse_others(self, finding: Finding, events: list[Event]) -> None:
        """Every file of the archive is one that was checked."""
        known = {INDEX, "finding.json", "events.json", "verifications.json", "audit.jsonl"}
        known |= {f"verdicts/{name}.json" for name in finding.verdicts}
        known |= {f"approvals/{events[-1].ticket}.json"}
        runs = tuple(f"runs/{run_id}/" for run_id in finding.run_sha256)
        others = [name for name in self.files if name not in known and not name.startswith(runs)]
        if others:
            raise EvidenceRefused(f"{others[0]} belongs to no part of the finding", AGAIN)

    # --- reading ----------------------------------------------------------------------------------------

    def _read(self, name: str) -> bytes:
        if name not in self.files:
            raise EvidenceRefused(f"the archive holds no {name}", AGAIN)
        return tar.content(self.file, self.files[name], _JSON_LIMIT)

    def _plain(self, name: str) -> Any:
        raw = self._read(name)
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise EvidenceRefused(f"{name} is no JSON", AGAIN) from error
        if spelled(value).encode() != raw:
            raise EvidenceRefused(f"{name} is not in its one spelling", AGAIN)
        return value

    def _sha256(self, name: str) -> str:
        if name not in self.index.files:
            raise EvidenceRefused(f"the archive holds no {name}", AGAIN)
        return self.index.files[name].sha256
