"""Checks that an agent proposed: files in the workspace, run confined, outside the version until accepted.

A proposed check is the code of whoever wrote it. It cannot change how anything else is judged, because it
runs in a process of its own that can write nothing, reach nobody and start nothing; and what it says about
its own subject is its word alone, which each of its verdicts says. A reviewer who signs its text accepts it
into the next version; its verdicts then name who did.
"""

import hashlib
import json
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import JsonValue, ValidationError

import checks
from approvals.errors import Refused
from approvals.statement import Action, Request
from approvals.ticket import Ticket, TicketState
from approvals.used import hold_used
from checks.check import Progress
from checks.errors import Inconclusive, NotEvaluated
from checks.records.runs import file_evidence, is_run_folder
from checks.verdict import Evidence, Frozen, Outcome, Part, Verdict
from plumbline_mcp import workers
from plumbline_mcp.engines.confinement.choosing import AUTOMATIC
from plumbline_mcp.errors import UsageError, WorkerCrashed, WorkerTimedOut
from plumbline_mcp.scan.proposed_child import CHECK, REQUEST, SCRATCH
from plumbline_mcp.scan.proposed_running import Limits
from plumbline_mcp.scan.seals import broken_seal, run_of
from plumbline_mcp.version import OUTSIDE, system_version
from plumbline_mcp.workspace import RunState, Workspace
from plumbline_mcp.workspace.location import DATABASE

FOLDER = "proposed"
MAX_BYTES = 2**18
"""Of a check's file: what a reviewer can read."""
TEXT_SHA256 = "proposed_sha256"
"""Among the inputs of a stored verdict: the text that judged."""
_NAME = re.compile(r"^[a-z][a-z0-9_]{0,29}$")
_RUNNING = "running-"
_EXTRA_S = 60.0
_RUN = "plumbline_mcp.scan.proposed_running:run"


class Proposed(Frozen):
    """A proposed check as it lies in the workspace now."""

    name: str
    sha256: str
    source: str
    accepted_by: tuple[str, ...] = ()
    ticket: str | None = None

    @property
    def standing(self) -> str:
        """What each of its verdicts says of it."""
        if self.accepted_by:
            return f"accepted for the next version by {', '.join(self.accepted_by)} ({self.ticket})"
        return "outside the version: no reviewer accepted it"


def add(workspace: Workspace, name: str, source: str) -> Proposed:
    """Put a check's text into the workspace; the same name takes the place of an earlier one.

    It is not run and not loaded. Raises `UsageError`.
    """
    _refuse_name(name)
    try:
        data = source.encode()
    except UnicodeEncodeError as error:
        raise UsageError("the check's text cannot be written as UTF-8", "take its surrogates out") from error
    if not 0 < len(data) <= MAX_BYTES:
        raise UsageError(f"a check's file holds 1 to {MAX_BYTES} bytes, not {len(data)}", "shorten it")
    folder = _folder(workspace)
    new = folder / f".{name}.{secrets.token_hex(4)}"
    try:
        new.write_bytes(data)
        new.replace(folder / f"{name}.py")
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    workspace.audit.append("check_proposed", f"{OUTSIDE}{name}", {"sha256": hashlib.sha256(data).hexdigest()})
    return get(workspace, name)


def get(workspace: Workspace, name: str) -> Proposed:
    """A proposed check, and who accepted this very text. Raises `UsageError`."""
    _refuse_name(name)
    path = _folder(workspace) / f"{name}.py"
    if path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_BYTES:
        near = ", ".join(names(workspace)) or "none"
        raise UsageError(f"there is no proposed check {name!r} (there are: {near})", "propose it first")
    data = path.read_bytes()
    try:
        source = data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no UTF-8 text", "propose it again") from error
    proposed = Proposed(name=name, sha256=hashlib.sha256(data).hexdigest(), source=source)
    return _with_acceptance(workspace, proposed)


def names(workspace: Workspace) -> list[str]:
    """The proposed checks of the workspace."""
    found = sorted(path.stem for path in _folder(workspace).glob("*.py") if not path.is_symlink())
    return [name for name in found if _NAME.match(name)]


def ask(workspace: Workspace, name: str, requester: str) -> Ticket:
    """Ask that a check be accepted into the next version: what is signed is its whole text."""
    proposed = get(workspace, name)
    content: dict[str, JsonValue] = {"name": name, "sha256": proposed.sha256, "source": proposed.source}
    with workspace.write_tx():
        return workspace.approvals.request(
            Request(
                action=Action.CHECK,
                title=f"accept the check {name!r} into the next version",
                content=content,
                subjects={f"check {name}": proposed.sha256},
                requester=requester,
            )
        )


def accept(workspace: Workspace, ticket_id: str) -> Proposed:
    """Use the signed approval up; the text that lies there has to be the signed one. Raises `Refused`."""
    ticket = workspace.approvals.ticket(ticket_id)
    if ticket.request.action is not Action.CHECK or not isinstance(ticket.request.content, dict):
        raise Refused(f"{ticket_id} accepts no check", "ask for it: plumbline proposed ask NAME")
    name = str(ticket.request.content.get("name"))
    measured = {f"check {name}": get(workspace, name).sha256}
    with workspace.write_tx():
        workspace.approvals.consume(ticket_id, ticket.request.content_sha256, subjects=measured)
    return get(workspace, name)


async def run_proposed(
    workspace: Workspace,
    name: str,
    inputs: Mapping[str, JsonValue],
    *,
    progress: Progress | None = None,
    limits: Limits | None = None,
    confinement: str = AUTOMATIC,
) -> Verdict:
    """Judge with a proposed check, confined, and store its verdict, marked as outside the version.

    Texts in ``inputs`` that name a run of the workspace or an absolute path that exists may be read. Raises
    `UsageError` for inputs that it may not be given.
    """
    proposed, limits = get(workspace, name), limits or Limits()
    given = {key: _resolved(workspace, value) for key, value in inputs.items()}
    reads = _readable(workspace, given)
    verdict = _unsealed(workspace, proposed, given, reads)
    if verdict is None:
        verdict = await _judged(workspace, proposed, given, reads, progress, limits, confinement)
    return workspace.add_verdict(verdict, {TEXT_SHA256: proposed.sha256, **given})


async def _judged(
    workspace: Workspace,
    proposed: Proposed,
    given: dict[str, JsonValue],
    reads: list[Path],
    progress: Progress | None,
    limits: Limits,
    confinement: str,
) -> Verdict:
    folder = _prepared(workspace, proposed, given, limits)
    payload = {
        "folder": str(folder),
        "reads": [str(path) for path in reads],
        "protected": [str(path) for path in _protected(workspace)],
        "limits": asdict(limits),
        "confinement": confinement,
    }
    started = datetime.now(UTC)
    try:
        told = await workers.call(_RUN, payload, progress=progress, timeout_s=limits.seconds + _EXTRA_S)
        verdict = _marked(proposed, given, told["answer"]).model_copy(
            update={"confinement": str(told["confinement"])}
        )
    except NotEvaluated as error:
        verdict = _stated(proposed, given, Outcome.NOT_EVALUATED, error.message, error.next_step)
    except (Inconclusive, WorkerCrashed, WorkerTimedOut) as error:
        verdict = _stated(proposed, given, Outcome.INCONCLUSIVE, error.message, error.next_step)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    spent = (datetime.now(UTC) - started).total_seconds()
    return verdict.model_copy(
        update={
            "started": started.isoformat(timespec="seconds"),
            "seconds": round(spent, 3),
            "evidence": _evidence(workspace, proposed, reads),
        }
    )


def _prepared(workspace: Workspace, proposed: Proposed, given: dict[str, JsonValue], limits: Limits) -> Path:
    """A folder with the check's text and the request; the check can write in its scratch folder alone."""
    folder = _folder(workspace) / f"{_RUNNING}{secrets.token_hex(8)}"
    folder.mkdir(mode=0o700)
    (folder / SCRATCH).mkdir()
    (folder / CHECK).write_bytes(proposed.source.encode())
    trust = workspace.approvals.trust
    files = (workspace.home / DATABASE, trust.allowed_signers, trust.policy_file)
    held = {"limits": limits.for_child(), "protected": [str(path) for path in files]}
    request = {"inputs": given, **held}
    (folder / REQUEST).write_text(json.dumps(request), encoding="utf-8")
    return folder


def _marked(proposed: Proposed, given: dict[str, JsonValue], answer: dict[str, Any]) -> Verdict:
    """The check's own verdict, with everything that it cannot know or must not claim said by us."""
    try:
        verdict = Verdict.model_validate(answer["verdict"])
    except (KeyError, ValidationError) as error:
        told = str(answer.get("problem") or f"its answer is no verdict: {str(error).splitlines()[0]}")
        return _stated(proposed, given, Outcome.INCONCLUSIVE, f"the proposed check failed: {told[:400]}", "")
    said = {
        "next_step": "",
        "reference": f"the proposed check's own word: {verdict.reference}",
        "stand_ins": (_mark(proposed), *(f"it says: {text}" for text in verdict.stand_ins[:20])),
        "parts": tuple(map(_without_advice, verdict.parts)),
    }
    return verdict.model_copy(update={**_ours(proposed), **said})


def _without_advice(part: Part) -> Part:
    """A part whose problems name no next step and cite nothing: an unknown file advises nobody."""
    advice = {"next_step": None, "citation": None}
    return part.model_copy(
        update={"problems": tuple(problem.model_copy(update=advice) for problem in part.problems)}
    )


def _stated(
    proposed: Proposed, given: dict[str, JsonValue], outcome: Outcome, reason: str, next_step: str
) -> Verdict:
    stated = Verdict(check="", outcome=outcome, reason=reason, next_step=next_step, settings=given)
    return stated.model_copy(update={**_ours(proposed), "stand_ins": (_mark(proposed),)})


def _ours(proposed: Proposed) -> dict[str, Any]:
    accepted = "accepted" if proposed.accepted_by else "outside"
    return {
        "id": "",
        "check": f"{OUTSIDE}{proposed.name}",
        "system_version": f"{system_version()} ({accepted}: {proposed.name} {proposed.sha256[:12]})",
        "run_id": None,
        "approval": "none",
        "confinement": "none",
    }


def _mark(proposed: Proposed) -> str:
    return f"proposed check {proposed.name} (sha256 {proposed.sha256}), {proposed.standing}"


def _evidence(workspace: Workspace, proposed: Proposed, reads: list[Path]) -> tuple[Evidence, ...]:
    """What we digested ourselves: the check's text and its input files; of a run, its manifest."""
    text = proposed.source.encode()
    path = _folder(workspace) / f"{proposed.name}.py"
    own = Evidence(path=str(path), sha256=proposed.sha256, size=len(text), role="proposed check")
    files = [read / "manifest.json" if is_run_folder(read) else read for read in reads]
    return (own, *(file_evidence(file, "input") for file in files if file.is_file()))


def _unsealed(
    workspace: Workspace, proposed: Proposed, given: dict[str, JsonValue], reads: list[Path]
) -> Verdict | None:
    for path in reads:
        if is_run_folder(path) and (reason := broken_seal(workspace, path)):
            step = "rerun the procedure; a changed record is never judged"
            return _stated(proposed, given, Outcome.INCONCLUSIVE, reason, step)
        if reason := _not_sealed(workspace, path):
            return _stated(proposed, given, Outcome.INCONCLUSIVE, reason, "wait until the run is over")
    return None


def _not_sealed(workspace: Workspace, path: Path) -> str | None:
    """Why a folder among the workspace's runs is not judged: what a job still writes is no evidence."""
    run, place = run_of(workspace, path), path.resolve()
    if run is None:
        inside = place.parent == workspace.runs.resolve()
        return f"{place.name} is no run that this workspace knows" if inside else None
    return None if run.state is RunState.SEALED else f"run {run.run_id} is {run.state}, not sealed"


def _resolved(workspace: Workspace, value: JsonValue) -> JsonValue:
    """A run id of this workspace as its folder; anything else as it is."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_-]{1,80}", value):
        folder = workspace.runs / value
        return str(folder) if is_run_folder(folder) else value
    return value


def _readable(workspace: Workspace, given: Mapping[str, JsonValue]) -> list[Path]:
    """Files and folders among the inputs. Raises `UsageError` where one leads to the workspace or trust."""
    protected = _protected(workspace)
    found = []
    for path in _paths(given):
        place = path.resolve()
        if place.parent == workspace.runs.resolve():
            found.append(path)
        elif any(place.is_relative_to(one) or one.is_relative_to(place) for one in protected):
            raise UsageError(
                f"{path} leads to the workspace or the trust roots",
                "give the folder of a sealed run, or files elsewhere",
            )
        else:
            found.append(path)
    return found


def _protected(workspace: Workspace) -> list[Path]:
    return [workspace.home.resolve(), workspace.approvals.trust.folder.resolve()]


def _paths(given: Mapping[str, JsonValue]) -> Iterator[Path]:
    for value in given.values():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and text.startswith("/") and "\0" not in text and len(text) < 4096:
                path = Path(text)
                if path.exists():
                    yield path


def _with_acceptance(workspace: Workspace, proposed: Proposed) -> Proposed:
    """Who accepted this very text, when that still holds."""
    sql = (
        "select id from requests where json_extract(request, '$.action') = 'check'"
        " and json_extract(request, '$.content.sha256') = :sha256 order by seq desc"
    )
    for row in workspace.query(sql, {"sha256": proposed.sha256}):
        approvals = workspace.approvals
        ticket = approvals.ticket(str(row["id"]))
        about = {"name": proposed.name, "sha256": proposed.sha256, "source": proposed.source}
        if ticket.state is TicketState.USED and ticket.request.content == about:
            try:
                hold_used(
                    approvals, ticket.id, f"ask for it again: plumbline proposed accept {proposed.name}"
                )
            except Refused:
                continue
            signers = tuple(dict.fromkeys(one.signer for one in ticket.decisions))
            return proposed.model_copy(update={"accepted_by": signers, "ticket": ticket.id})
    return proposed


def _folder(workspace: Workspace) -> Path:
    folder = workspace.home / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _refuse_name(name: str) -> None:
    if not _NAME.match(name) or name in checks.discover():
        raise UsageError(
            f"{name[:80]!r} cannot name a proposed check",
            "take lower-case letters, digits and _, at most 30, and no check's name",
        )
