"""The first scan: the embedded release or a user's target through its framework; verdicts and a report."""

from collections.abc import Callable
from pathlib import Path

from pydantic import Field

from checks.check import Progress, silent
from checks.verdict import Frozen, Outcome, Verdict
from plumbline_mcp.findings.store import Findings
from plumbline_mcp.report import write_report
from plumbline_mcp.scan.embedded import scan_embedded
from plumbline_mcp.scan.example_workload import WORKLOAD_ROWS
from plumbline_mcp.scan.fault_entries import Corpus, FaultEntry, load_corpus
from plumbline_mcp.scan.fault_scoring import EntryResult, score
from plumbline_mcp.scan.scanning import DryRun, Scan
from plumbline_mcp.scan.separation import separation
from plumbline_mcp.scan.served import Reviewer, Served, can_be_served, scan_entry, scan_target
from plumbline_mcp.scan.steps import StepProgress
from plumbline_mcp.scan.target import load_target, planned_python, prepared_python
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
    """What a first scan found."""

    outcome: Outcome
    verdicts: tuple[Verdict, ...]
    dry_run: DryRun | None = None
    not_reached: tuple[str, ...] = ()
    report: Path | None = None
    markdown: Path | None = None
    target: Path | None = None
    plant: str | None = None
    result: EntryResult | None = None
    findings: tuple[str, ...] = ()
    unfound: tuple[str, ...] = Field((), description="failing verdicts without a finding, and why")
    stopped: str = Field("", description="why the agent went no further")


async def onboard(
    workspace: Workspace,
    reviewer: Callable[[], Reviewer],
    plant: str | None = None,
    progress: Progress | None = None,
    corpus: Path | None = None,
) -> OnboardResult:
    """Scan the embedded release through the MCP server, with the fault of entry ``plant`` when one is named.

    ``reviewer`` makes who answers each request that has to be signed, and raises where nobody can. A fault
    that no target can hold is planted by playing the scan's steps here; nothing is signed then. Raises
    `UsageError` (no such entry, no corpus here, nobody to ask) and `BuildError` (the environment cannot be
    built).
    """
    found, entry = _entry(plant, corpus)
    if can_be_served(entry):
        served = await scan_entry(workspace, entry, found, reviewer(), progress or silent)
    else:
        played = await scan_embedded(workspace, entry, found, progress=progress or silent)
        served = Served(scanned=played)
    result = score(entry, served.scanned)
    made = reported(workspace, served, _planted(entry, result) if plant else "")
    return made.model_copy(update={"plant": plant, "result": result})


async def onboard_target(
    workspace: Workspace, path: Path, reviewer: Callable[[], Reviewer], progress: Progress | None = None
) -> OnboardResult:
    """Scan the target of a ``target.toml`` through the MCP server; ``reviewer`` like `onboard`'s.

    Raises `UsageError` (the file does not fit, nobody may sign), `BuildError` (its environment cannot be
    built), `NotEvaluated` (no runtime here starts its image) and `PlumblineError` (the server refused).
    """
    target = load_target(path)
    python, _ = planned_python(target, workspace.home / "images")
    served = await scan_target(workspace, target.path, python, reviewer(), progress or silent)
    return reported(workspace, served).model_copy(update={"target": target.path})


async def onboard_unsigned(
    workspace: Workspace, path: Path, progress: Progress | None = None
) -> OnboardResult:
    """Scan the target of a ``target.toml`` with jobs that are started here and say approval none.

    Raises `UsageError` (the file does not fit), `BuildError` (its environment cannot be built) and
    `NotEvaluated` (no runtime here starts its image).
    """
    target = load_target(path)
    steps = target.scan_steps()
    told = StepProgress(1 + sum(step.parts for step in steps), progress or silent)
    report = told.begin("preparing the framework's environment")
    python = await prepared_python(target, workspace.home / "images", report)
    scanned = await Scan(workspace, target.subject(python), steps, told).run()
    return reported(workspace, Served(scanned=scanned)).model_copy(update={"target": target.path})


def reported(workspace: Workspace, served: Served, planted: str = "") -> OnboardResult:
    """The result of a scan, with its report written; a scan that judged nothing has none."""
    scanned = served.scanned
    result = OnboardResult(
        outcome=scanned.outcome,
        verdicts=scanned.verdicts,
        dry_run=scanned.dry_run,
        not_reached=scanned.not_reached,
        findings=served.findings,
        unfound=served.unfound,
        stopped=served.stopped,
    )
    if not scanned.verdicts:
        return result
    reports = workspace.home / "reports"
    for folder in reports.glob("onboard-*"):
        sweep_temporaries(folder)
    stored = [workspace.verdict(verdict.id) for verdict in scanned.verdicts]
    folder = reports / f"onboard-{scanned.verdicts[-1].id}"
    found = [Findings(workspace).get(name).finding for name in served.findings]
    files = write_report(stored, folder, planted=planted, trust=separation(workspace), findings=found)
    return result.model_copy(update={"report": files.html, "markdown": files.markdown})


def _planted(entry: FaultEntry, result: EntryResult) -> str:
    """For the head of the report: which fault the scan planted, and whether it was found."""
    also = f"; also seen: {', '.join(result.extra)}" if result.extra else ""
    return f"{entry.id} ({entry.title}): {result.score.value.replace('_', ' ')}{also}"


def _entry(plant: str | None, folder: Path | None) -> tuple[Corpus | None, FaultEntry]:
    if plant is None:
        return None, CLEAN
    corpus = load_corpus(folder)
    return corpus, corpus.entry(plant)
