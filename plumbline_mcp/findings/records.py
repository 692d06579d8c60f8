"""The rows of findings, events and verifications as immutable models."""

import json
from enum import StrEnum
from typing import Any

from pydantic import Field, JsonValue, ValidationError

from approvals.canonical import canonical, digest
from checks.verdict import Frozen
from plumbline_mcp.errors import WorkspaceError
from plumbline_mcp.findings.comparison import Comparison
from plumbline_mcp.findings.finding import Finding
from plumbline_mcp.findings.questions import Question, Submission
from plumbline_mcp.findings.states import State


class Way(StrEnum):
    """How a verifier works."""

    RECOMPUTE = "recompute"
    """The separately written recomputation, in a fresh process."""
    AGENT = "agent"
    """A second agent over MCP, with a verifier's token."""
    COMMAND = "command"
    """A program that the person named."""


class Event(Frozen):
    """One step of a finding."""

    finding: str
    at: str = Field(description="UTC, ISO 8601")
    state: State
    actor: str
    reason: str = ""
    verification: str | None = None
    ticket: str | None = None

    @property
    def noted(self) -> dict[str, JsonValue]:
        """What the audit log says of it."""
        return {"actor": self.actor, "event_sha256": digest(self.model_dump(mode="json"))}


class Kept(Frozen):
    """What the server alone knows of a neutral copy: never shown to a verifier."""

    folder: str = Field(description="where the copy lies; relative to the workspace")
    names: dict[str, str] = Field({}, description="neutral name to what it stands for")
    originals: dict[str, str] = Field(
        {}, description="sha256 of each file, by its path in the copy, before it was rewritten"
    )
    rewritten: tuple[str, ...] = Field((), description="what was rewritten, by path in the copy")
    left_out: tuple[str, ...] = Field((), description="what was left out, and why")


class Verification(Frozen):
    """One attempt to rebuild a finding."""

    id: str
    finding: str
    principal: str
    way: Way
    taken: str = Field(description="UTC, ISO 8601")
    question: Question
    kept: Kept
    submitted: str | None = None
    submission: Submission | None = None
    comparison: Comparison | None = None

    @property
    def sha256(self) -> str:
        """Digest of question, submission and comparison."""
        return verification_digest(self)


class StoredFinding(Frozen):
    """A finding with everything that happened to it."""

    finding: Finding
    events: tuple[Event, ...]
    verifications: tuple[Verification, ...] = ()

    @property
    def state(self) -> State:
        """Its state."""
        return self.finding.state

    @property
    def ticket(self) -> str | None:
        """The approval that closed it, or the one that was asked for last."""
        return next((event.ticket for event in reversed(self.events) if event.ticket), None)


def verification_digest(verification: Verification) -> str:
    """SHA-256 (hex) of a verification without what the server alone knows; numbers as text."""
    told = verification.model_dump(mode="json", exclude={"kept"})
    return digest(json.loads(json.dumps(told), parse_float=str))


def finding_of(row: dict[str, Any], state: str) -> Finding:
    """The finding of a row. Raises `WorkspaceError` when it is not the one that was stored."""
    try:
        finding = Finding.model_validate_json(row["finding"])
    except ValidationError as error:
        raise _damaged(row["id"], str(error).splitlines()[0]) from error
    if finding.sha256 != row["sha256"] or finding.id != row["id"]:
        raise _damaged(row["id"], "its content does not give its digest")
    return finding.model_copy(update={"state": State(state)})


def event_of(row: dict[str, Any]) -> Event:
    """The event of a row."""
    return Event.model_validate({name: row[name] for name in Event.model_fields})


def verification_of(row: dict[str, Any]) -> Verification:
    """The verification of a row."""
    parsed = {
        name: json.loads(row[name]) if row[name] is not None else None
        for name in ("question", "kept", "submission", "comparison")
    }
    return Verification.model_validate({**row, **parsed})


def as_json(value: Frozen | Question | Submission) -> str:
    """A model as it is stored."""
    return canonical(value.model_dump(mode="json"))


def _damaged(finding: str, why: str) -> WorkspaceError:
    return WorkspaceError(
        f"{finding} is not the finding that was stored: {why}", "restore a copy of the database"
    )
