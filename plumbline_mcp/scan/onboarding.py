"""The first scan: the embedded release through its framework, three verdicts and a report."""

from pathlib import Path

from checks.check import Progress, silent
from checks.verdict import Frozen, Outcome, Verdict, combine
from plumbline_mcp.report import write_report
from plumbline_mcp.scan.embedded import scan_embedded
from plumbline_mcp.scan.example_workload import WORKLOAD_ROWS
from plumbline_mcp.scan.fault_entries import Corpus, FaultEntry, load_corpus
from plumbline_mcp.scan.fault_scoring import EntryResult, score
from plumbline_mcp.temporaries import sweep_temporaries
from plumbline_mcp.workspace import Workspace

CLEAN = FaultEntry(
    id="embedded-release",
    title="The embedded release, nothing planted",
    mechanism="none",
    pattern=1,
    silent=True,
    source="built by plumbline",
    clean=True,
    rows=WORKLOAD_ROWS,
)
"""The scan of `plumbline onboard` without a plant."""


class OnboardResult(Frozen):
    """What the first scan found."""

    outcome: Outcome
    verdicts: tuple[Verdict, ...]
    report: Path
    markdown: Path
    plant: str | None = None
    result: EntryResult


async def onboard(
    workspace: Workspace,
    plant: str | None = None,
    progress: Progress | None = None,
    corpus: Path | None = None,
) -> OnboardResult:
    """Scan the embedded release, with the fault of entry ``plant`` when one is named.

    Raises `UsageError` (no such entry, no corpus here) and `NotEvaluated` (the environment cannot be built).
    """
    report = progress or silent
    found, entry = _entry(plant, corpus)
    verdicts = await scan_embedded(workspace, entry, found, progress=report)
    outcome = combine(verdict.outcome for verdict in verdicts)
    stored = [workspace.verdict(verdict.id) for verdict in verdicts]
    reports = workspace.home / "reports"
    for folder in reports.glob("onboard-*"):
        sweep_temporaries(folder)
    result = score(entry, verdicts)
    folder = reports / f"onboard-{verdicts[-1].id}"
    files = write_report(stored, folder, planted=_planted(entry, result) if plant else "")
    return OnboardResult(
        outcome=outcome,
        verdicts=tuple(verdicts),
        report=files.html,
        markdown=files.markdown,
        plant=plant,
        result=result,
    )


def _planted(entry: FaultEntry, result: EntryResult) -> str:
    """For the head of the report: which fault the scan planted, and whether it was found."""
    also = f"; also seen: {', '.join(result.extra)}" if result.extra else ""
    return f"{entry.id} ({entry.title}): {result.score.value.replace('_', ' ')}{also}"


def _entry(plant: str | None, folder: Path | None) -> tuple[Corpus | None, FaultEntry]:
    if plant is None:
        return None, CLEAN
    corpus = load_corpus(folder)
    return corpus, corpus.entry(plant)
