"""Take a question, answer it, compare: who verifies never sees the claim, and never verifies their own.

A recomputation decides alone. Where one exists for the check, another agent's agreement is kept but does not
make a finding rebuilt: two agents may share a mistake, the recomputation shares no code and no model with
them. Only where the recomputation was asked and its own answer is that it cannot decide does an agent's
agreement count, and the finding says so. A recomputation that decides, but gives no value or field of the
place that the proposer states, lets no agent decide instead. A dispute by anybody disputes.
"""

import secrets
import shutil
import tempfile
import time
from pathlib import Path

from checks.errors import CheckError
from plumbline_mcp.errors import PlumblineError, UsageError
from plumbline_mcp.findings.comparison import Comparison, Result, compare
from plumbline_mcp.findings.copying import prepare
from plumbline_mcp.findings.questions import Submission
from plumbline_mcp.findings.recomputing import recompute, recomputed_checks, run_verifier
from plumbline_mcp.findings.records import StoredFinding, Verification, Way
from plumbline_mcp.findings.states import State
from plumbline_mcp.findings.store import Findings
from plumbline_mcp.workspace import Workspace

RECOMPUTE_PRINCIPAL = "recompute"
"""Who a recomputation is: no person and no agent can be called so."""
FOLDER = "verification"
COMMAND_LIMIT_S = 4 * 3600.0
_AGREEMENT_COUNTS = "the recomputation cannot decide it; another agent's agreement alone rebuilt it"
_NEW_S = 24 * 3600.0
"""A copy that is younger may still be in the making."""


def take(
    workspace: Workspace,
    finding_id: str,
    principal: str,
    way: Way = Way.AGENT,
    folder: Path | None = None,
) -> Verification:
    """Prepare the neutral copy of a finding for a verifier. Raises `UsageError` for its own proposer.

    ``folder`` is an empty or absent folder; by default one below the workspace, for verifiers that read
    through the server.
    """
    store = Findings(workspace)
    stored = store.get(finding_id)
    _refuse_own(stored, principal, way)
    if stored.state is not State.PROPOSED:
        raise UsageError(
            f"{finding_id} is {stored.state}: it is not open to verification",
            "propose a new finding to have it rebuilt again",
        )
    finding = stored.finding
    place = folder or workspace.home / FOLDER / secrets.token_hex(8)
    try:
        first = workspace.verdict(finding.verdicts[0])
        hidden = (finding.id, *finding.verdicts)
        prepared = prepare(workspace, first, place, hidden)
        verification_id = workspace.new_id("verification")
        return store.take(store.new_verification(finding_id, principal, way, verification_id, prepared))
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise


def take_next(workspace: Workspace, principal: str) -> Verification | None:
    """The oldest question, of a finding of somebody else, that this verifier has not answered; else None.

    One that was taken and not answered is given again, with the same copy. A finding whose copy cannot be
    prepared (evidence is gone or changed) is passed over: it says so itself, the verifier learns nothing.
    """
    store = Findings(workspace)
    _sweep(workspace)
    for finding_id in store.open_to(principal):
        own = [one for one in store.get(finding_id).verifications if one.principal == principal]
        if any(one.submitted is not None for one in own):
            continue
        there = (one for one in own if one.way is Way.AGENT and (workspace.home / one.kept.folder).is_dir())
        try:
            return next(there, None) or take(workspace, finding_id, principal)
        except (CheckError, PlumblineError) as error:
            store.note_unprepared(finding_id, error.message)
    return None


def _sweep(workspace: Workspace) -> None:
    """Remove the copies of questions that are answered or closed: releases are large."""
    folder = workspace.home / FOLDER
    wanted = Findings(workspace).copies_in_use()
    for path in folder.iterdir() if folder.is_dir() else ():
        if f"{FOLDER}/{path.name}" not in wanted and time.time() - path.stat().st_mtime > _NEW_S:
            shutil.rmtree(path, ignore_errors=True)


def submit(
    workspace: Workspace, verification_id: str, principal: str, submission: Submission
) -> Verification:
    """Store a verifier's answer, compare it, and take the finding to the state that follows."""
    store = Findings(workspace)
    taken = store.verification(verification_id)
    if taken.principal != principal:
        raise UsageError(
            f"{verification_id} was taken by another verifier", "take the question yourself before you answer"
        )
    stored = store.get(taken.finding)
    comparison = compare(stored.finding.claim, submission)
    state, reason = _followed(stored, taken, comparison)
    answered = store.submit(verification_id, submission, comparison, state, reason)
    if taken.way is Way.RECOMPUTE and comparison.result is Result.UNDECIDED and _cannot_decide(submission):
        _count_agreement(store, taken.finding)
    if taken.way is Way.AGENT:  # the others remove their own
        shutil.rmtree(workspace.home / taken.kept.folder, ignore_errors=True)
    return answered


def verify_by_recompute(workspace: Workspace, finding_id: str) -> Verification:
    """Have a finding recomputed in a fresh process. Raises `UsageError` where no recomputation exists."""
    stored = Findings(workspace).get(finding_id)
    check = stored.finding.claim.check
    if check not in recomputed_checks():
        known = ", ".join(sorted(recomputed_checks())) or "none"
        raise UsageError(
            f"there is no recomputation of the check {check!r} (there is of: {known})",
            f'have it rebuilt by another agent: plumbline verify {finding_id} --command "..."',
        )
    with tempfile.TemporaryDirectory(prefix="plumbline-question-") as folder:
        question = Path(folder) / "question"
        taken = take(workspace, finding_id, RECOMPUTE_PRINCIPAL, Way.RECOMPUTE, question)
        return submit(workspace, taken.id, RECOMPUTE_PRINCIPAL, recompute(question))


def verify_by_command(
    workspace: Workspace,
    finding_id: str,
    principal: str,
    command: list[str],
    token_file: Path | None = None,
    timeout_s: float = COMMAND_LIMIT_S,
) -> Verification:
    """Have a finding rebuilt by a program that is started in the neutral copy and prints its submission.

    The copy lies outside the workspace and is removed afterwards.
    """
    environment = {} if token_file is None else {"PLUMBLINE_TOKEN_FILE": str(_private(token_file))}
    with tempfile.TemporaryDirectory(prefix="plumbline-question-") as folder:
        question = Path(folder) / "question"
        taken = take(workspace, finding_id, principal, Way.COMMAND, question)
        submission = run_verifier(command, question, environment, timeout_s)
        return submit(workspace, taken.id, principal, submission)


def _refuse_own(stored: StoredFinding, principal: str, way: Way) -> None:
    if (principal == RECOMPUTE_PRINCIPAL) != (way is Way.RECOMPUTE):
        raise UsageError(f"a verifier cannot be called {principal!r}", "choose another name")
    if principal == stored.finding.proposer:
        raise UsageError(
            f"{principal} proposed {stored.finding.id}: whoever proposes does not verify",
            "let another principal rebuild it",
        )


def _followed(stored: StoredFinding, taken: Verification, comparison: Comparison) -> tuple[State | None, str]:
    """The state that follows from a comparison, if one does, and why."""
    if comparison.result is Result.DISPUTE:
        return State.DISPUTED, comparison.why()
    if comparison.result is Result.UNDECIDED:
        return None, comparison.why()
    if taken.way is Way.RECOMPUTE or stored.finding.claim.check not in recomputed_checks():
        return State.REBUILT, ""
    if any(one.way is Way.RECOMPUTE and _cannot_decide(one.submission) for one in stored.verifications):
        return State.REBUILT, _AGREEMENT_COUNTS
    return None, "an agent's agreement alone does not rebuild what can be recomputed"


def _count_agreement(store: Findings, finding_id: str) -> None:
    """An agent agreed before the recomputation was found unable to decide: its agreement counts now."""
    agreed = _agreed(store.get(finding_id))
    if agreed is not None:
        store.step(
            finding_id,
            State.REBUILT,
            agreed.principal,
            reason=_AGREEMENT_COUNTS,
            verification=agreed.id,
        )


def _agreed(stored: StoredFinding) -> Verification | None:
    """The first agreement of anybody but the recomputation."""
    return next(
        (
            one
            for one in stored.verifications
            if one.comparison is not None
            and one.comparison.result is Result.AGREE
            and one.way is not Way.RECOMPUTE
        ),
        None,
    )


def _cannot_decide(submission: Submission | None) -> bool:
    """Whether a recomputation itself says that the records do not decide."""
    return submission is not None and submission.outcome == "inconclusive"


def _private(token_file: Path) -> Path:
    path = token_file.expanduser().absolute()
    if not path.is_file() or path.stat().st_mode & 0o077:
        raise UsageError(f"{path} is no file that its owner alone can read", f"chmod 600 {path}, then repeat")
    return path
