"""Findings in the workspace: every step checked, added only, and noted in the audit log."""

import difflib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from pydantic import JsonValue
from sqlite_utils import Database

from approvals.audit import AuditLog
from plumbline_mcp.errors import UsageError
from plumbline_mcp.findings.comparison import Comparison
from plumbline_mcp.findings.finding import Finding
from plumbline_mcp.findings.questions import Submission
from plumbline_mcp.findings.records import (
    Event,
    Kept,
    StoredFinding,
    Verification,
    as_json,
    event_of,
    finding_of,
    verification_digest,
    verification_of,
)
from plumbline_mcp.findings.states import SIGNED, State, check_step
from plumbline_mcp.workspace import Workspace

UNPREPARED = "question_unprepared"
"""Of the audit log: a finding could not be handed to a verifier. No step of it."""
_STATE = "(select state from finding_events where finding = findings.id order by seq desc limit 1)"


class Findings:
    """The findings of one workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    # --- findings ---------------------------------------------------------------------------------------

    def propose(self, make: Callable[[str, str], Finding]) -> StoredFinding:
        """Store a new finding; ``make`` gives it for its id and time, and must be quick."""
        finding_id, now = self.workspace.new_id("finding"), _now()
        finding = make(finding_id, now)
        with self.workspace.write_tx() as database:
            row = {
                "id": finding.id,
                "proposer": finding.proposer,
                "created": now,
                "finding": finding.model_dump_json(exclude={"state"}),
                "sha256": finding.sha256,
            }
            database.table("findings").insert(row)
            event = Event(finding=finding.id, at=now, state=State.PROPOSED, actor=finding.proposer)
            _add_event(database, event, {"sha256": finding.sha256})
        return self.get(finding_id)

    def get(self, finding_id: str) -> StoredFinding:
        """A finding with its events and verifications. Raises `UsageError` with the nearest ids."""
        rows = self._all(f"select *, {_STATE} as state from findings where id = ?", [finding_id])  # noqa: S608 - own text
        if not rows:
            raise self._unknown(finding_id)
        return StoredFinding(
            finding=finding_of(rows[0], str(rows[0]["state"])),
            events=tuple(self.events(finding_id)),
            verifications=tuple(
                verification_of(row)
                for row in self._all(
                    "select * from verifications where finding = ? order by id", [finding_id]
                )
            ),
        )

    def events(self, finding_id: str) -> list[Event]:
        """Every step of a finding, oldest first."""
        rows = self._all("select * from finding_events where finding = ? order by seq", [finding_id])
        return [event_of(row) for row in rows]

    def page(
        self, state: State | str | None = None, limit: int = 50, after: str | None = None
    ) -> list[Finding]:
        """Findings, newest first; ``after`` is the id of the last one seen."""
        wanted = None if state is None else str(State(state))
        rows = self._all(
            f"select *, {_STATE} as state from findings"  # noqa: S608 - own text
            f" where (:state is null or {_STATE} = :state)"
            " and (:after is null or seq < coalesce((select seq from findings where id = :after), 0))"
            " order by seq desc limit :limit",
            {"state": wanted, "after": after, "limit": limit},
        )
        return [finding_of(row, str(row["state"])) for row in rows]

    def every(self) -> list[Finding]:
        """Every finding, newest first."""
        return self.page(limit=-1)  # to SQLite no limit

    def count(self, state: State | str | None = None) -> int:
        """How many findings there are."""
        wanted = None if state is None else str(State(state))
        sql = f"select count(*) as n from findings where (:state is null or {_STATE} = :state)"  # noqa: S608 - own text
        return int(self._all(sql, {"state": wanted})[0]["n"])

    def step(
        self,
        finding_id: str,
        state: State,
        actor: str,
        *,
        reason: str = "",
        verification: str | None = None,
        ticket: str | None = None,
        consume: Callable[[], None] | None = None,
    ) -> StoredFinding:
        """Take a finding to its next state. Raises `UsageError` for a step that does not exist.

        ``consume`` uses an approval up inside the same transaction; the signed states cannot do without.
        """
        if (state in SIGNED) != (consume is not None):
            raise UsageError(
                f"{finding_id} cannot become {state} like this: only a reviewer's signature gives that state",
                f"plumbline finding confirm {finding_id}",
            )
        with self.workspace.write_tx() as database:
            check_step(finding_id, self._state(finding_id), state)
            if consume is not None:
                consume()
            event = Event(
                finding=finding_id,
                at=_now(),
                state=state,
                actor=actor,
                reason=reason,
                verification=verification,
                ticket=ticket,
            )
            _add_event(database, event, {})
        return self.get(finding_id)

    # --- verifications ----------------------------------------------------------------------------------

    def take(self, verification: Verification) -> Verification:
        """Store that a verifier took a question. The finding has to be open."""
        with self.workspace.write_tx() as database:
            self._open(verification.finding)
            row = {
                "id": verification.id,
                "finding": verification.finding,
                "principal": verification.principal,
                "way": str(verification.way),
                "taken": verification.taken,
                "question": as_json(verification.question),
                "kept": as_json(verification.kept),
            }
            database.table("verifications").insert(row)
            detail: dict[str, JsonValue] = {
                "finding": verification.finding,
                "principal": verification.principal,
                "way": str(verification.way),
            }
            AuditLog(database.conn).append("verification_taken", verification.id, detail)
        return self.verification(verification.id)

    def submit(
        self,
        verification_id: str,
        submission: Submission,
        comparison: Comparison,
        state: State | None,
        reason: str,
    ) -> Verification:
        """Store a verifier's answer, once, and the state that follows from it, in one transaction."""
        with self.workspace.write_tx() as database:
            taken = self.verification(verification_id)
            if taken.submitted is not None:
                raise UsageError(
                    f"{verification_id} was submitted already", "take the question again to answer it anew"
                )
            self._open(taken.finding)
            now = _now()
            answered = taken.model_copy(
                update={"submitted": now, "submission": submission, "comparison": comparison}
            )
            values = {
                "submitted": now,
                "submission": as_json(submission),
                "comparison": as_json(comparison),
            }
            database.table("verifications").update(verification_id, values)
            detail: dict[str, JsonValue] = {
                "finding": taken.finding,
                "result": str(comparison.result),
                "sha256": verification_digest(answered),
            }
            AuditLog(database.conn).append("verification_submitted", verification_id, detail)
            if state is not None:
                check_step(taken.finding, self._state(taken.finding), state)
                event = Event(
                    finding=taken.finding,
                    at=now,
                    state=state,
                    actor=taken.principal,
                    reason=reason,
                    verification=verification_id,
                )
                _add_event(database, event, {})
        return self.verification(verification_id)

    def verification(self, verification_id: str) -> Verification:
        """A verification. Raises `UsageError`."""
        rows = self._all("select * from verifications where id = ?", [verification_id])
        if not rows:
            raise UsageError(f"there is no verification {verification_id[:80]!r}", "take a question first")
        return verification_of(rows[0])

    def new_verification(
        self, finding_id: str, principal: str, way: str, verification_id: str, prepared: tuple[Any, Kept]
    ) -> Verification:
        """A verification that was just prepared; not stored yet."""
        question, kept = prepared
        return Verification.model_validate(
            {
                "id": verification_id,
                "finding": finding_id,
                "principal": principal,
                "way": way,
                "taken": _now(),
                "question": question,
                "kept": kept,
            }
        )

    def open_to(self, principal: str) -> list[str]:
        """Findings that wait for a verifier and were proposed by somebody else, oldest first."""
        sql = f"select id from findings where {_STATE} = 'proposed' and proposer != ? order by seq"  # noqa: S608 - own text
        return [str(row["id"]) for row in self._all(sql, [principal])]

    def note_unprepared(self, finding_id: str, reason: str) -> None:
        """Note, once for each reason, why an open finding could not be handed to a verifier."""
        if self._state(finding_id) is not State.PROPOSED or self.unprepared(finding_id) == reason[:500]:
            return
        self.workspace.audit.append(UNPREPARED, finding_id, {"reason": reason[:500]})

    def unprepared(self, finding_id: str) -> str:
        """Why an open finding could not be handed to a verifier the last time; empty: it could."""
        if self._state(finding_id) is not State.PROPOSED:
            return ""
        noted = [
            one for one in self.workspace.audit.matching("subject", finding_id) if one.event == UNPREPARED
        ]
        return str(noted[-1].detail["reason"]) if noted else ""

    def copies_in_use(self) -> set[str]:
        """Folders of the copies whose question is not answered and whose finding is open."""
        rows = self._all(
            "select v.kept from verifications v join findings on findings.id = v.finding"  # noqa: S608 - own text
            f" where v.submitted is null and {_STATE} = 'proposed'",
            [],
        )
        return {str(json.loads(row["kept"])["folder"]) for row in rows}

    # --- reading ----------------------------------------------------------------------------------------

    def _state(self, finding_id: str) -> State:
        rows = self._all(f"select {_STATE} as state from findings where id = ?", [finding_id])  # noqa: S608 - own text
        if not rows:
            raise self._unknown(finding_id)
        return State(rows[0]["state"])

    def _open(self, finding_id: str) -> None:
        state = self._state(finding_id)
        if state is not State.PROPOSED:
            raise UsageError(
                f"{finding_id} is {state}: it is not open to verification",
                "propose a new finding to have it rebuilt again",
            )

    def _all(self, sql: str, values: Any) -> list[dict[str, Any]]:
        return self.workspace.query(sql, values)

    def _unknown(self, wanted: str) -> UsageError:
        known = [
            str(row["id"]) for row in self._all("select id from findings order by seq desc limit 2000", {})
        ]
        near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.0)
        hint = f"the nearest are {', '.join(near)}" if near else "there is no finding in this workspace yet"
        return UsageError(f"there is no finding {wanted[:80]!r}", hint)


def _add_event(database: Database, event: Event, detail: dict[str, JsonValue]) -> None:
    database.table("finding_events").insert(event.model_dump(mode="json"))
    AuditLog(database.conn).append(f"finding_{event.state}", event.finding, event.noted | detail)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
