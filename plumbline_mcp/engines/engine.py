"""What an engine does: start a job once, say how it stands, end it. Logs and records are files of the run.

`plumbline_mcp.engines.logs` and `checks.records.runs.RunFolder` read those, the same under every engine.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Protocol

from pydantic import Field

from checks.verdict import Frozen
from plumbline_mcp.engines.launching import Launch
from plumbline_mcp.workspace import RunOutcome, RunState, StoredRun


class State(StrEnum):
    """How a job stands. An engine maps its own words to these; one that it does not know is an error."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    """Whoever ran it is gone and it was not sealed: there are no records."""

    @property
    def over(self) -> bool:
        """Whether nothing more happens to it."""
        return self not in (State.QUEUED, State.RUNNING)


class Status(Frozen):
    """How a job stood when it was asked for."""

    run_id: str
    state: State
    reason: str = Field("", description="why, where the state alone does not say it")
    exit_code: int | None = Field(None, description="of the first rank that failed, or 0 of a success")
    signal: int | None = Field(None, description="that ended the first rank that failed")
    failed_rank: int | None = Field(None, description="the first rank that failed; the others were stopped")
    restarts: int = 0
    nodes: tuple[str, ...] = ()
    submitted: str = ""
    started: str = ""
    ended: str = ""
    seen_at: str = Field(default_factory=lambda: now())


@dataclass(frozen=True)
class Approved:
    """The approval that a job is submitted under: which ticket, which of its attempts, at which cost."""

    ticket: str
    attempt: int = 1
    node_millihours: int = 0
    """What the job is expected to take, as it was signed."""

    def key(self, digest: str) -> str:
        """The key of the submission of a job: one run for each ticket, job and attempt."""
        return f"{self.ticket} {digest} {self.attempt}"


class Engine(Protocol):
    """One way to run jobs. A job is named by its run's id; its run folder is the same under every engine."""

    name: str

    def submit(self, launch: Launch, key: str | None = None, approved: Approved | None = None) -> str:
        """Start a job, or queue it, and return its run's id. The same key twice is one job and one id.

        ``approved`` names the approval that the job consumes, in the transaction that stores its submission;
        ticket, job and attempt are then its key. Raises `approvals.errors.Refused` when it is not approved,
        `UsageError` and `BadInput` (an unusable launch), `BuildError` (nothing was started).
        """

    def status(self, run_id: str) -> Status:
        """How the job stands now. Raises `UsageError` for an unknown run."""

    def cancel(self, run_id: str, grace_s: float | None = None) -> None:
        """Ask for its end; it is sealed with what it recorded. No error when it is already over."""

    def find(self, key: str) -> str | None:
        """The run that was submitted under a key, if there is one."""


_OUTCOMES = {
    RunOutcome.SUCCEEDED: State.SUCCEEDED,
    RunOutcome.FAILED: State.FAILED,
    RunOutcome.CANCELLED: State.CANCELLED,
    RunOutcome.TIMED_OUT: State.TIMED_OUT,
}


def final_state(run: StoredRun) -> State:
    """The state of a run that is over, from what was stored. A sealed run of before has no outcome."""
    if run.state is RunState.SEALED:
        return _OUTCOMES[run.outcome or RunOutcome.SUCCEEDED]
    return {RunState.REMOVED: State.CANCELLED, RunState.LOST: State.LOST}[run.state]


def now() -> str:
    """The time as it is stored: UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
