"""Findings, comparisons and evidence on a terminal."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.table import Table

from plumbline_mcp.cli.screen import console, labelled, table, untrusted
from plumbline_mcp.findings.comparison import Comparison
from plumbline_mcp.findings.finding import Finding
from plumbline_mcp.findings.records import StoredFinding, Verification

if TYPE_CHECKING:
    from plumbline_mcp.findings.evidence import EvidenceReport


def findings_table(findings: Iterable[Finding]) -> Table:
    """One row a finding."""
    rows = (
        [
            untrusted(one.id),
            untrusted(one.state),
            untrusted(f"{int(one.pattern)} {'silent' if one.silent else 'loud'}"),
            untrusted(one.framework, limit=40),
            untrusted(one.title),
        ]
        for one in findings
    )
    return table("finding", "state", "pattern", "framework", "title", rows=rows)


def print_finding(stored: StoredFinding, step: str = "", unprepared: str = "") -> None:
    """A finding with its evidence, verifications and steps; ``unprepared``: why no verifier gets it."""
    screen, finding = console(), stored.finding
    facts = {
        "finding": f"{finding.id} ({finding.state})",
        "title": finding.title,
        "pattern": f"{int(finding.pattern)}, {finding.pattern.words}",
        "noticed": "no: silent" if finding.silent else "yes: loud",
        "place": str(finding.place) or "not said",
        "cause": finding.cause,
        "cause lies in": finding.cause_place,
        "fix": finding.fix,
        "cheapest check": finding.cheapest_check,
        "also check": "; ".join(finding.also_check),
        "verdicts": ", ".join(finding.verdicts),
        "framework": finding.framework,
        "proposed by": f"{finding.proposer}, {finding.created[:16]} UTC",
    }
    values = "; ".join(f"{name} = {value!r}" for name, value in finding.claim.values.items())
    facts |= {"stated values": values} if values else {}
    facts |= {"not verifiable": unprepared} if unprepared else {}
    rows = ([untrusted(name), untrusted(value, limit=4000)] for name, value in facts.items() if value)
    screen.print(table("of the finding", "", rows=rows))
    handles = (
        [untrusted(h.source), untrusted(h.sha256[:12]), untrusted(h.span), untrusted(h.file)]
        for h in finding.evidence
    )
    if finding.evidence:
        screen.print(table("evidence", "sha256", "where", "file", rows=handles))
    for one in stored.verifications:
        print_verification(one)
    steps = (
        [
            untrusted(e.at[:16]),
            untrusted(e.state),
            untrusted(e.actor),
            untrusted(e.ticket or e.verification or ""),
            untrusted(e.reason),
        ]
        for e in stored.events
    )
    screen.print(table("UTC", "state", "by", "through", "why", rows=steps))
    if step:
        screen.print(labelled("next: ", step, "dim"), soft_wrap=True)


def print_verification(one: Verification) -> None:
    """What a verifier answered beside the claim."""
    screen = console()
    result = str(one.comparison.result) if one.comparison else "not submitted"
    screen.print(labelled(f"{one.id}: ", f"{one.principal} ({one.way}): {result}"))
    if one.kept.left_out:
        screen.print(labelled("  left out of the copy: ", "; ".join(one.kept.left_out), "dim"))
    if one.comparison is not None:
        screen.print(comparison_table(one.comparison))


def comparison_table(comparison: Comparison) -> Table:
    """Every compared thing."""
    rows = (
        [
            untrusted(f.name),
            untrusted(f.result),
            untrusted(f.tolerance),
            untrusted(f.claimed),
            untrusted(f.found),
        ]
        for f in comparison.fields
    )
    return table("compared", "result", "tolerance", "claimed", "found", rows=rows)


def print_evidence(report: "EvidenceReport") -> None:
    """What an archive proves."""
    screen, finding = console(), report.finding
    signed = [
        f"{one.decision} by {one.signer}, {one.issued} ({one.tier}"
        + (", self-approved" if one.self_approved else "")
        + f"): {one.reason}"
        for one in report.signatures
    ]
    proof = "the throwaway example key signed: it proves nothing to others" if report.example else ""
    if others := [one.signer for one in report.signatures if not one.listed]:
        proof = f"your list does not name {', '.join(others)}: this proves only that the archive is whole"
    facts = {
        "finding": f"{finding.id}: {finding.title}",
        "state": str(report.state),
        "signed": "; ".join(signed) or "by nobody",
        "note": proof,
        "rebuilt by": "; ".join(report.verifications) or "nobody",
        "cause": finding.cause,
        "place": str(finding.place),
        "files": str(report.files),
        "sealed records": str(report.records),
        "verdicts": str(report.verdicts),
        "audit entries": str(report.entries),
    }
    rows = ([untrusted(name), untrusted(value, limit=4000)] for name, value in facts.items() if value)
    screen.print(table("the archive holds", "", rows=rows))
