"""From what a proposer says to a finding: verdicts looked up, evidence held against what was sealed."""

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

import checks
from approvals.visible import visible_line
from checks.errors import Inconclusive
from checks.records.runs import RunFolder
from checks.verdict import Outcome, Part, Place, Problem, Verdict
from plumbline_mcp.errors import UsageError
from plumbline_mcp.findings.copying import measured_values
from plumbline_mcp.findings.finding import Claim, Finding, Handle, Proposal
from plumbline_mcp.findings.questions import Where
from plumbline_mcp.findings.records import StoredFinding
from plumbline_mcp.findings.states import State
from plumbline_mcp.findings.store import Findings
from plumbline_mcp.scan.seals import broken_seal
from plumbline_mcp.version import system_version
from plumbline_mcp.workspace import RunState, StoredVerdict, Workspace

_SPAN_AFTER = re.compile(r":(bytes|row|line|tensor) [^:]*$")
_FIRST = ("records/", "output/", "exit/", "logs/")
_WORKED_OUT = {"place", "values", "evidence", "framework"}
"""What a finding has otherwise than as it was said."""
_MOST_FILES = 50
"""Evidence of one finding, as many files as a proposer may name: a reviewer reads the list."""


def proposal_of(given: dict[str, Any]) -> Proposal:
    """What was said, checked; evidence may be given as text. Raises `UsageError` with field and value."""
    said_so = {name: value for name, value in given.items() if value is not None}
    said_so["evidence"] = [handle_of(one) for one in said_so.get("evidence", ())]
    try:
        return Proposal.model_validate(said_so)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"]) or "the proposal"
        met = "" if first["type"] == "missing" else f" (got {visible_line(repr(first.get('input')), 80)})"
        said = first["msg"].removeprefix("Value error, ")
        known = ", ".join(Proposal.model_fields)
        raise UsageError(f"{name}: {said}{met}", f"a proposal has: {known}") from error


def handle_of(given: Any) -> Any:
    """A handle written as ``SOURCE:FILE`` or ``SOURCE:FILE:SPAN``. Raises `UsageError`.

    Anything but a text is left as it is.
    """
    if not isinstance(given, str):
        return given
    source, _, rest = given.partition(":")
    file, _, span = rest.rpartition(":") if _SPAN_AFTER.search(rest) else (rest, "", "")
    if not source or not file:
        raise UsageError(
            f"{visible_line(given, 80)!r} is no evidence", "write RUN:FILE or RUN:FILE:SPAN, e.g. :row 3"
        )
    return {"source": source, "file": file, "span": span}


def propose(workspace: Workspace, proposal: Proposal, proposer: str) -> StoredFinding:
    """Store a finding as proposed. Raises `UsageError` and `Inconclusive` for evidence that does not hold."""
    if len(set(proposal.verdicts)) < len(proposal.verdicts):
        raise UsageError("a verdict is named twice", "name each verdict once")
    stored = [workspace.verdict(name) for name in proposal.verdicts]
    first = stored[0].verdict
    claim = _claim(first, proposal)
    handles = tuple(_sealed(workspace, stored, handle) for handle in proposal.evidence)
    runs = _runs(workspace, stored, handles)
    framework = _framework(workspace, stored[0], proposal.framework)
    if not handles:
        handles = _own_evidence(workspace, first, claim.place)

    def make(finding_id: str, now: str) -> Finding:
        return Finding(
            id=finding_id,
            **proposal.model_dump(exclude=_WORKED_OUT),
            place=Place.model_validate(claim.place),
            verdict_sha256={one.verdict.id: one.sha256 for one in stored},
            run_sha256=runs,
            evidence=handles,
            claim=claim,
            framework=framework,
            proposer=proposer,
            created=now,
            system_version=str(system_version()),
        )

    return Findings(workspace).propose(make)


def waiting(workspace: Workspace, proposal: Proposal, proposer: str) -> str | None:
    """The finding of the same proposer with the same words that waits to be rebuilt; None: no such."""
    store = Findings(workspace)
    told = proposal.model_dump(exclude=_WORKED_OUT)
    for finding in store.page(State.PROPOSED, limit=200):
        if finding.proposer != proposer or finding.verdicts != proposal.verdicts:
            continue
        claim = _claim(workspace.verdict(finding.verdicts[0]).verdict, proposal)
        named = {(one.source, one.file, one.span) for one in proposal.evidence}
        same = finding.model_dump(include=set(told)) == told and finding.claim == claim
        held = {(one.source, one.file, one.span) for one in finding.evidence}
        if same and named in (set(), held) and proposal.framework in ("", finding.framework):
            return finding.id
    return None


def _framework(workspace: Workspace, stored: StoredVerdict, said: str) -> str:
    """The framework that a verdict is about, as it, its run or its inputs name it, else as the proposer says.

    Raises `UsageError` where nobody says, or the proposer says another one.
    """
    verdict = stored.verdict
    known = verdict.target.get("framework", "")
    if not known and verdict.run_id:
        known = workspace.run(verdict.run_id).job.framework
    known = known or Path(str(stored.inputs.get("framework") or "")).name
    if said not in ("", known) and known:
        raise UsageError(
            f"{verdict.id} is of {visible_line(known, 80)}, not of {visible_line(said, 80)}",
            "leave the framework out: the verdict names it",
        )
    if not (known or said):
        raise UsageError(
            f"nothing says which framework {verdict.id} is about, and a finding is a cause on one framework",
            "name it: --framework NAME, over MCP framework",
        )
    return known or said


def _claim(verdict: Verdict, proposal: Proposal) -> Claim:
    """What has to be rebuilt: the verdict's outcome, the place and values that the proposer states."""
    if verdict.outcome not in (Outcome.PASS, Outcome.FAIL):
        raise UsageError(
            f"{verdict.id} is {verdict.outcome}: nothing in it can be rebuilt",
            "name first a verdict that is fail (or pass, for what is wrong elsewhere)",
        )
    if verdict.check not in checks.discover():
        raise UsageError(
            f"{verdict.id} is of {visible_line(verdict.check, 80)!r}, no check of this version: nobody could"
            " rebuild it",
            "name first a verdict of a check that `plumbline list checks` shows",
        )
    outcome: Literal["pass", "fail"] = "fail" if verdict.outcome is Outcome.FAIL else "pass"
    problem = _first_problem(verdict)
    place: Where = _where(problem.place) if problem else {}
    if proposal.place is not None:
        place = _where(proposal.place)
    return Claim(
        check=verdict.check,
        outcome=outcome,
        code=problem.code if problem else "",
        place=place,
        values=_stated(verdict, proposal.values),
        measured=measured_values(verdict, failing=True),
    )


def _first_problem(verdict: Verdict) -> Problem | None:
    """The problem that the verdict's reason names, else the first that fails."""
    failing = [
        (part, problem)
        for part in verdict.parts
        if part.applicable
        for problem in part.problems
        if problem.outcome is Outcome.FAIL
    ]
    if not failing:
        return None

    def first(pair: tuple[Part, Problem]) -> bool:
        return verdict.reason.startswith(f"{pair[0].name}: ") and str(pair[1].place) in verdict.reason

    return next((pair for pair in failing if first(pair)), failing[0])[1]


def _where(place: Place) -> Where:
    return place.model_dump(exclude_none=True)


def _stated(verdict: Verdict, values: dict[str, float]) -> dict[str, float]:
    known = measured_values(verdict)
    for name in values:
        if name not in known:
            listed = ", ".join(sorted(known)[:5]) or "none"
            raise UsageError(
                f"{verdict.id} did not measure {visible_line(name, 120)!r}", f"it measured: {listed}"
            )
    return values


def _sealed(workspace: Workspace, stored: list[StoredVerdict], handle: Handle) -> Handle:
    """The handle with the digest of its file as it was sealed. Raises `UsageError`, `Inconclusive`."""
    verdict = next((one.verdict for one in stored if one.verdict.id == handle.source), None)
    if verdict is not None:
        known = {evidence.path: evidence.sha256 for evidence in verdict.evidence}
        found = known.get(handle.file) or _by_name(known, handle.file)
        where = f"the evidence of {verdict.id}"
    else:
        manifest = _sealed_run(workspace, handle.source).manifest
        known = {name: digest for name, (digest, _) in manifest.items()}
        found, where = known.get(handle.file), f"the manifest of {handle.source}"
    if found is None:
        near = ", ".join(sorted(known)[:3]) or "nothing"
        shown = visible_line(handle.file, 120)
        raise UsageError(f"{shown!r} is not in {where}", f"that holds {near}, ...; manifest_read lists all")
    if handle.sha256 and handle.sha256 != found:
        raise UsageError(
            f"{visible_line(handle.file, 120)} was sealed as {found[:12]}, not {handle.sha256[:12]}",
            "leave the digest out: it is filled in",
        )
    return handle.model_copy(update={"sha256": found})


def _by_name(known: dict[str, str], file: str) -> str | None:
    """The one path of the evidence that ends with this name."""
    fitting = {digest for path, digest in known.items() if path.endswith(f"/{file}")}
    return fitting.pop() if len(fitting) == 1 else None


def _sealed_run(workspace: Workspace, run_id: str) -> RunFolder:
    run = workspace.run(run_id)
    if run.state is not RunState.SEALED:
        raise UsageError(f"run {run_id} is {run.state}: only a sealed run is evidence", "name a sealed run")
    folder = workspace.runs / run_id
    if reason := broken_seal(workspace, folder):
        raise Inconclusive(reason, "rerun the procedure; a changed record is no evidence")
    return RunFolder.open(folder)


def _runs(workspace: Workspace, stored: list[StoredVerdict], handles: tuple[Handle, ...]) -> dict[str, str]:
    """Digest of the manifest of every run that the finding rests on."""
    named = {one.verdict.run_id for one in stored if one.verdict.run_id}
    named |= {handle.source for handle in handles if handle.source not in {s.verdict.id for s in stored}}
    digests = {}
    for run_id in sorted(named):
        _sealed_run(workspace, run_id)
        digests[run_id] = workspace.run(run_id).manifest_sha256 or ""
    return digests


def _own_evidence(workspace: Workspace, verdict: Verdict, place: Where) -> tuple[Handle, ...]:
    """What the verdict itself rests on, where the proposer names nothing: the files of the place, else all.

    Of more than a reviewer reads those of the place's rank; raises `UsageError` where that is too much too.
    """
    if verdict.run_id:
        run = workspace.runs / verdict.run_id
        own = [Path(e.path) for e in verdict.evidence if Path(e.path).is_relative_to(run)]
        manifest = _sealed_run(workspace, verdict.run_id).manifest
        names = sorted({path.relative_to(run).as_posix() for path in own} & manifest.keys(), key=_order)
        known = [Handle(source=verdict.run_id, file=name, sha256=manifest[name][0]) for name in names]
    else:
        kept = [evidence for evidence in verdict.evidence if len(evidence.sha256) == 64]
        known = [Handle(source=verdict.id, file=e.path, sha256=e.sha256) for e in kept]
    files = _files_at(verdict, place)
    there = [one for one in known if any(f"/{one.file}".endswith(f"/{file}") for file in files)]
    span = _span(place)
    found = tuple(one.model_copy(update={"span": span}) for one in there) or tuple(known)
    if len(found) > _MOST_FILES:
        found = _of_rank(found, place) or found
    if len(found) > _MOST_FILES:
        first = ", ".join(visible_line(one.file, 120) for one in found[:3])
        raise UsageError(
            f"{verdict.id} rests on {len(found)} files, and the place does not say which of them: a finding"
            f" names {_MOST_FILES} at most",
            f"name those that show it as evidence, RUN:FILE; there are {first}, ...",
        )
    return found


def _files_at(verdict: Verdict, place: Where) -> set[str]:
    """The file that a place names; of a tensor alone the files of the verdict's problems there."""
    if not place:
        return set()
    if file := place.get("file"):
        return {str(file)}
    problems = (problem for part in verdict.parts for problem in part.problems)
    wheres = (_where(problem.place) for problem in problems if problem.outcome is Outcome.FAIL)
    return {str(where["file"]) for where in wheres if where.get("file") and place.items() <= where.items()}


def _of_rank(handles: tuple[Handle, ...], place: Where) -> tuple[Handle, ...]:
    """Those that the place's rank recorded or logged."""
    rank = place.get("rank")
    if not isinstance(rank, int):
        return ()
    return tuple(one for one in handles if f"rank-{rank:05d}" in re.split(r"[/.]", one.file))


def _order(name: str) -> tuple[int, str]:
    """Records before outputs before logs."""
    fitting = (number for number, prefix in enumerate(_FIRST) if name.startswith(prefix))
    return next(fitting, len(_FIRST)), name


def _span(place: Where) -> str:
    if isinstance(place.get("row"), int):
        return f"row {place['row']}"
    tensor = str(place.get("tensor", ""))
    return f"tensor {tensor}" if tensor.isprintable() and 0 < len(tensor) <= 300 else ""
