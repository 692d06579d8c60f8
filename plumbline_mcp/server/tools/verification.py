"""For verifiers alone: take a question, read the neutral records, submit an answer. Never the claim.

A verifier sees no finding, verdict, run or path of ours: questions come in the order in which findings were
proposed, the copy names everything neutrally, and an answer is met with nothing but that it was received.
"""

import base64
import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import anyio.to_thread
from mcp.types import ToolAnnotations
from pydantic import Field, JsonValue

from approvals.visible import visible
from checks.errors import BadInput, CheckError
from plumbline_mcp.errors import PlumblineError, UsageError
from plumbline_mcp.findings.questions import RebuiltProblem
from plumbline_mcp.server.located import open_inside
from plumbline_mcp.server.roles import Role, caller
from plumbline_mcp.server.toolset import READS, Toolset
from plumbline_mcp.server.views import RESULT_LIMIT, View, line, texts

if TYPE_CHECKING:
    from plumbline_mcp.findings.records import Verification

_VERIFIER = (Role.VERIFIER,)
_ANSWERS = ToolAnnotations(
    read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False
)
_TAKES = ToolAnnotations(
    read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)
_FILES_PAGE = 200
_TEXT_BYTES = 16_000
_READ_LIMIT_S = 600.0
_CLOSED = "this question is closed"


class QuestionView(View):
    """What is to be judged anew."""

    verification: str
    check: str
    question: str
    records: tuple[str, ...]
    files: dict[str, str]
    inputs: dict[str, JsonValue] = Field(description="the check's arguments; paths are paths in the copy")
    values: tuple[str, ...] = Field(description="names of the values that are asked for")
    next: str


class RecordsView(View):
    """A piece of the neutral copy."""

    total: int = Field(description="files, bytes, tensors or sequences there are")
    untrusted_files: dict[str, int] = Field({}, description="path to bytes")
    untrusted_text: str = ""
    base64: str = ""
    untrusted_rows: tuple[dict[str, JsonValue], ...] = ()
    untrusted_tensors: tuple[dict[str, JsonValue], ...] = ()
    values: tuple[float | int | str, ...] = ()
    next: str


class ReceivedView(View):
    """That an answer was received; what it means is not for the verifier."""

    verification: str
    received: bool
    next: str


_Id = Annotated[str, Field(description="as verification_take gave it")]


def add_tools(toolset: Toolset) -> None:
    """Add ``verification_take``, ``verification_records`` and ``verification_submit``."""

    def verification_take() -> QuestionView:
        """Take the next question. Until it is answered, the same one is given again."""
        return _told(_taken(toolset))

    async def verification_records(
        verification: _Id,
        kind: Annotated[
            Literal["files", "text", "bytes", "tensors", "rows"],
            Field(description="list files; a file as text or base64; tensors; recorded rows"),
        ] = "files",
        path: Annotated[str, Field(description="in the copy, e.g. record-1/job.json")] = "",
        first: Annotated[int, Field(ge=0, description="file, byte, element or sequence to begin at")] = 0,
        count: Annotated[int, Field(ge=1, le=_TEXT_BYTES, description="how many of them")] = 512,
        tensor: Annotated[str | None, Field(description="this one's values; without: the list")] = None,
    ) -> RecordsView:
        """Read the copy that a question came with: sealed records and what they are judged against."""
        return await _records(toolset, verification, kind, path, first, count, tensor)

    def verification_submit(
        verification: _Id,
        outcome: Literal["pass", "fail", "inconclusive"],
        reason: Annotated[str, Field(description="one sentence; of inconclusive: what is missing")] = "",
        values: Annotated[dict[str, float] | None, Field(description="by the names that were asked")] = None,
        place: Annotated[
            dict[str, int | str] | None,
            Field(description="where the fault lies: rank, step, row, token, tensor, field, file, ..."),
        ] = None,
        problems: Annotated[list[RebuiltProblem] | None, Field(description="every problem found")] = None,
    ) -> ReceivedView:
        """Answer a question, once. State only what you saw in the records."""
        answer: dict[str, Any] = {
            "outcome": outcome,
            "reason": reason,
            "values": values or {},
            "place": place or {},
        }
        answer["problems"] = [one.model_dump(mode="json") for one in problems or ()]
        return _submitted(toolset, verification, answer)

    toolset.add(verification_take, QuestionView, title="Take a question", annotations=_TAKES, roles=_VERIFIER)
    toolset.add(
        verification_records, RecordsView, title="Read the records", annotations=READS, roles=_VERIFIER
    )
    toolset.add(
        verification_submit, ReceivedView, title="Answer a question", annotations=_ANSWERS, roles=_VERIFIER
    )


# --- taking and answering -------------------------------------------------------------------------------


def _taken(toolset: Toolset) -> "Verification":
    from plumbline_mcp.findings.verification import take_next

    try:
        taken = take_next(toolset.workspace, caller().name)
    except (CheckError, PlumblineError) as error:  # what it says may name what was found where
        raise UsageError(
            "the next question cannot be put now", "tell the operator; they can see why"
        ) from error
    if taken is None:
        raise UsageError("no question is open for you", "wait until a finding was proposed by somebody else")
    return taken


def _told(taken: "Verification") -> QuestionView:
    question = taken.question
    return QuestionView(
        verification=taken.id,
        check=question.check,
        question=question.text,
        records=question.records,
        files=texts(question.files),
        inputs=question.inputs,
        values=question.values[:100],
        next=f'verification_records(verification="{taken.id}"), then verification_submit(...)',
    )


def _submitted(toolset: Toolset, verification: str, answer: dict[str, Any]) -> ReceivedView:
    from plumbline_mcp.findings.recomputing import submission_of
    from plumbline_mcp.findings.verification import submit

    _own(toolset, verification)
    submission = submission_of(json.dumps(answer).encode())
    try:
        submit(toolset.workspace, verification, caller().name, submission)
    except UsageError as error:
        raise UsageError(f"{verification}: {_CLOSED}", "verification_take()") from error
    return ReceivedView(verification=verification, received=True, next="verification_take()")


def _own(toolset: Toolset, verification: str) -> "Verification":
    """A question that this caller took and has not answered. Raises `UsageError` that names no finding."""
    from plumbline_mcp.findings.records import Way
    from plumbline_mcp.findings.store import Findings

    name = line(verification, 40)
    try:
        taken = Findings(toolset.workspace).verification(verification)
    except UsageError as error:
        raise UsageError(f"there is no question {name!r} of yours", "verification_take()") from error
    if (taken.principal, taken.way) != (caller().name, Way.AGENT):
        raise UsageError(f"there is no question {name!r} of yours", "verification_take()")
    if taken.submitted is not None:
        raise UsageError(f"{name}: {_CLOSED}", "verification_take()")
    return taken


# --- reading the copy -----------------------------------------------------------------------------------


async def _records(
    toolset: Toolset, verification: str, kind: str, path: str, first: int, count: int, tensor: str | None
) -> RecordsView:
    taken = await anyio.to_thread.run_sync(_own, toolset, verification)
    root = toolset.workspace.home / taken.kept.folder
    if not root.is_dir():
        raise UsageError(f"{verification}: {_CLOSED}", "verification_take()")
    if kind == "files":
        return await anyio.to_thread.run_sync(_listed, root, path, first)
    if kind in ("text", "bytes"):
        return await anyio.to_thread.run_sync(partial(_raw, root, path, kind, first, count))
    try:
        if kind == "rows":
            return await _rows(root, path, first, count, "model" in taken.question.files)
        return await _tensors(root, path, first, count, tensor)
    except (CheckError, PlumblineError) as error:  # said of a path: the copy's own is not for the verifier
        said = error.message.replace(f"{root}/", "").replace(str(root), "the copy")
        raise BadInput(said, 'verification_records(kind="files") lists what there is') from error


def _listed(root: Path, path: str, first: int) -> RecordsView:
    found = sorted(one.relative_to(root).as_posix() for one in root.rglob("*") if one.is_file())
    found = [name for name in found if name.startswith(path)]
    shown = found[first : first + _FILES_PAGE]
    end = first + len(shown)
    return RecordsView(
        total=len(found),
        untrusted_files={line(name, 300): (root / name).stat().st_size for name in shown},
        next=f"the same call with first={end}" if end < len(found) else 'kind="text" or "tensors", path=...',
    )


def _raw(root: Path, path: str, kind: str, first: int, count: int) -> RecordsView:
    with open_inside(root, path) as descriptor:
        total = os.fstat(descriptor).st_size
        raw = os.pread(descriptor, min(count, _TEXT_BYTES), first)
    end = first + len(raw)
    step = f"the same call with first={end}" if end < total else ""
    if kind == "bytes":
        return RecordsView(total=total, base64=base64.b64encode(raw).decode(), next=step)
    return RecordsView(
        total=total, untrusted_text=visible(raw.decode("utf-8", "replace"), RESULT_LIMIT), next=step
    )


async def _rows(root: Path, path: str, first: int, count: int, has_model: bool) -> RecordsView:
    payload = _place(root, path) | {
        "model": str(root / "files" / "model") if has_model else None,
        "first": first,
        "count": min(count, 5),
        "token": None,
        "window": 8,
    }
    answer = await _worker("plumbline_mcp.server.reading.rows:read_rows", payload)
    end = first + len(answer["rows"])
    step = f"the same call with first={end}" if end < answer["total"] else ""
    return RecordsView(total=answer["total"], untrusted_rows=tuple(answer["rows"]), next=step)


async def _tensors(root: Path, path: str, first: int, count: int, tensor: str | None) -> RecordsView:
    place = _place(root, path)
    if tensor is None:
        listing = {"contains": "", "norms": False, "skip": first, "limit": min(count, _FILES_PAGE)}
        answer = await _worker("plumbline_mcp.server.reading.tensors:list_tensors", place | listing)
        end = first + len(answer["tensors"])
        step = f"the same call with first={end}" if end < answer["total"] else "name one with tensor=..."
        return RecordsView(total=answer["total"], untrusted_tensors=tuple(answer["tensors"]), next=step)
    asked = {"tensor": tensor, "first": first, "count": min(count, 512)}
    answer = await _worker("plumbline_mcp.server.reading.tensors:read_tensor", place | asked)
    return RecordsView(
        total=len(answer["values"]),
        untrusted_tensors=(answer["tensor"],),
        values=tuple(answer["values"]),
        next=f"the same call with first={first + len(answer['values'])}",
    )


def _place(root: Path, path: str) -> dict[str, Any]:
    """A file or folder of the copy for a reader: what is named lies below it, without a link on the way."""
    parts = path.split("/")
    if {"", ".", ".."} & set(parts) or "\0" in path:
        raise BadInput(f"{line(path)!r} is no path in the copy", 'verification_records(kind="files")')
    wanted = root.joinpath(*parts)
    if not wanted.exists() or wanted.resolve() != wanted.absolute().parent.resolve() / wanted.name:
        raise BadInput(f"there is no {line(path)!r} in the copy", 'verification_records(kind="files")')
    return {"path": str(wanted), "run": None, "manifest_sha256": None}


async def _worker(function: str, payload: dict[str, Any]) -> Any:
    from plumbline_mcp import workers

    return await workers.call(function, payload, timeout_s=_READ_LIMIT_S)
