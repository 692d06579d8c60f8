"""The rows of the database as immutable models: nothing is written or returned but through them."""

import hashlib
import json
from enum import StrEnum
from typing import Any

from pydantic import Field, JsonValue

from checks.records.runs import Job
from checks.verdict import Frozen, Outcome, Verdict

ID_PATTERN = r"^[a-z][a-z0-9_]{0,39}-[0-9]{4,12}$"
KIND_PATTERN = r"^[a-z][a-z0-9_]{0,39}$"
SHA256_PATTERN = r"^[0-9a-f]{64}$"
_RUN_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"


class RunState(StrEnum):
    """How far a run is."""

    SUBMITTING = "submitting"
    """It has an id and is about to be started."""
    RUNNING = "running"
    SEALED = "sealed"
    REMOVED = "removed"
    LOST = "lost"

    @property
    def over(self) -> bool:
        """Whether nothing more happens to it."""
        return self not in (RunState.SUBMITTING, RunState.RUNNING)


class RunOutcome(StrEnum):
    """How a sealed run ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"


class RunRow(Frozen):
    """A row of ``runs``."""

    run_id: str = Field(pattern=_RUN_ID_PATTERN)
    procedure: str
    framework: str
    state: RunState
    created: str
    ended: str | None = None
    manifest_sha256: str | None = Field(None, pattern=SHA256_PATTERN)
    job: str
    key: str | None = None
    outcome: RunOutcome | None = None
    reason: str = ""


class VerdictRow(Frozen):
    """A row of ``verdicts``: the columns that are searched, and the whole as JSON."""

    id: str = Field(pattern=ID_PATTERN)
    check_name: str
    outcome: Outcome
    run_id: str | None
    created: str
    inputs: str
    verdict: str
    sha256: str = Field(pattern=SHA256_PATTERN)


class StoredRun(Frozen):
    """A run that the workspace knows."""

    run_id: str
    state: RunState
    created: str = Field(description="UTC, ISO 8601")
    ended: str | None = None
    manifest_sha256: str | None = None
    job: Job
    key: str | None = Field(None, description="the same submission made twice has one key and is one run")
    outcome: RunOutcome | None = Field(None, description="of a sealed run; older ones have none")
    reason: str = Field("", description="why it ended so, where that has to be said")

    @classmethod
    def of(cls, row: dict[str, Any]) -> "StoredRun":
        """The run of a database row."""
        known = RunRow.model_validate(row)
        return cls(
            run_id=known.run_id,
            state=known.state,
            created=known.created,
            ended=known.ended,
            manifest_sha256=known.manifest_sha256,
            job=Job.model_validate_json(known.job),
            key=known.key,
            outcome=known.outcome,
            reason=known.reason,
        )


class StoredVerdict(Frozen):
    """A verdict with the inputs it was asked for."""

    verdict: Verdict
    inputs: dict[str, JsonValue]
    created: str = Field(description="UTC, ISO 8601")
    sha256: str = Field(description="of the stored JSON text; the audit log holds it too")

    @classmethod
    def of(cls, row: dict[str, Any]) -> "StoredVerdict":
        """The verdict of a database row."""
        known = VerdictRow.model_validate({name: row[name] for name in VerdictRow.model_fields})
        return cls(
            verdict=Verdict.model_validate_json(known.verdict),
            inputs=json.loads(known.inputs),
            created=known.created,
            sha256=known.sha256,
        )


def sha256_text(text: str) -> str:
    """SHA-256 (hex) of a text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()
