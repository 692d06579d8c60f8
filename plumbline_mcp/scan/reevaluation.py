"""Judges stored records again with the installed version and says which verdicts changed, and why."""

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from checks.check import Progress, silent
from checks.errors import CheckError
from checks.records.runs import sha256_file
from checks.references.checkpoints.header import Unreadable, read_header
from checks.verdict import DigestOf, Evidence, Frozen, Outcome, Verdict
from plumbline_mcp.errors import PlumblineError
from plumbline_mcp.scan.proposed_checks import TEXT_SHA256, run_proposed
from plumbline_mcp.scan.service import run_check
from plumbline_mcp.version import OUTSIDE
from plumbline_mcp.workspace import StoredVerdict, Workspace


class Change(StrEnum):
    """What became of one verdict."""

    SAME = "same"
    CHANGED = "changed"
    EVIDENCE_CHANGED = "evidence_changed"
    EVIDENCE_MISSING = "evidence_missing"


class Reevaluation(Frozen):
    """One stored verdict beside what the installed version says of the same records."""

    before: str
    after: str | None = None
    check: str
    change: Change
    outcome_before: Outcome
    outcome_after: Outcome | None = None
    version_before: str = ""
    version_after: str = ""
    why: tuple[str, ...] = ()


async def reevaluate(
    workspace: Workspace, ids: Iterable[str] = (), progress: Progress = silent, version: str = ""
) -> list[Reevaluation]:
    """Judge the given verdicts again, all when none is named; the old ones stay as they are.

    ``version`` takes those alone that this system version gave.

    They are judged in the order in which they were made: the newest verdict is still on the newest records.
    Records that changed since are not judged: another answer would say nothing about the rules.
    """
    chosen = [workspace.verdict(name) for name in ids] or list(_all(workspace))[::-1]
    chosen = [stored for stored in chosen if version in ("", stored.verdict.system_version)]
    chosen.sort(key=lambda stored: stored.created)
    results = []
    for number, stored in enumerate(chosen):
        progress(number, len(chosen), f"judging {stored.verdict.id} again")
        results.append(await _again(workspace, stored))
    progress(len(chosen), len(chosen), "done")
    return results


def _all(workspace: Workspace) -> Iterable[StoredVerdict]:
    after = None
    while page := workspace.verdicts(limit=200, after=after):
        yield from page
        after = page[-1].verdict.id


async def _again(workspace: Workspace, stored: StoredVerdict) -> Reevaluation:
    old = stored.verdict
    gone = evidence_lost(old)
    if gone is not None:
        return _result(old, *gone)
    try:
        new = await _judged_again(workspace, stored)
    except (CheckError, PlumblineError) as error:
        return _result(old, Change.EVIDENCE_MISSING, error.message)
    why = tuple(differences(old, new))
    return Reevaluation(
        before=old.id,
        after=new.id,
        check=old.check,
        change=Change.CHANGED if why else Change.SAME,
        outcome_before=old.outcome,
        outcome_after=new.outcome,
        version_before=old.system_version,
        version_after=new.system_version,
        why=why,
    )


async def _judged_again(workspace: Workspace, stored: StoredVerdict) -> Verdict:
    """By the check of the same name; a proposed one runs confined, as before (its text is evidence)."""
    name, inputs = stored.verdict.check, dict(stored.inputs)
    if not name.startswith(OUTSIDE):
        return await run_check(workspace, name, inputs)
    inputs.pop(TEXT_SHA256, None)
    return await run_proposed(workspace, name.removeprefix(OUTSIDE), inputs)


def _result(old: Verdict, change: Change, why: str) -> Reevaluation:
    return Reevaluation(
        before=old.id,
        check=old.check,
        change=change,
        outcome_before=old.outcome,
        version_before=old.system_version,
        why=(why,),
    )


def evidence_lost(old: Verdict) -> tuple[Change, str] | None:
    """What a verdict's evidence lost since: a file that is gone or is another one; None when all is there."""
    for evidence in old.evidence:
        path = Path(evidence.path)
        if not path.is_file():
            return Change.EVIDENCE_MISSING, f"{path} is gone"
        if evidence.digest_of is DigestOf.ANSWER:
            continue  # asked anew: what a program says is evidence of now
        if path.stat().st_size != evidence.size or _digest(path.resolve(), evidence) != evidence.sha256:
            return Change.EVIDENCE_CHANGED, f"{path} is not the file that was judged"
    return None


def _digest(path: Path, evidence: Evidence) -> str:
    if evidence.digest_of is DigestOf.FILE:
        return sha256_file(path)[0]
    try:
        return read_header(path).sha256
    except Unreadable:
        return ""


def differences(old: Verdict, new: Verdict) -> list[str]:
    """What two verdicts on the same records say differently, part by part."""
    found = [] if old.outcome is new.outcome else [f"outcome: {old.outcome} before, {new.outcome} now"]
    before = {part.name: part for part in old.parts}
    after = {part.name: part for part in new.parts}
    for name in dict.fromkeys((*before, *after)):
        was, now = before.get(name), after.get(name)
        if was is None or now is None:
            found.append(f"part {name}: {'new in' if was is None else 'gone from'} this version")
        elif was.outcome is not now.outcome:
            found.append(f"part {name}: {was.outcome} before, {now.outcome} now ({now.reason or was.reason})")
        else:
            codes = {p.code for p in was.problems} ^ {p.code for p in now.problems}
            found += [f"part {name}: other problems ({', '.join(sorted(codes))})"] if codes else []
    if found and old.system_version != new.system_version:
        found.append(f"judged by {old.system_version} before, {new.system_version} now")
    return found
