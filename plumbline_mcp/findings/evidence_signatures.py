"""The audit log and the signatures of an evidence archive, held against the reader's own keys.

What a reviewer signed names the finding, its verdicts, runs and verifications by digest, and the head of the
audit log: whoever changes one of them needs another signature.
"""

import hashlib
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, Field, JsonValue, TypeAdapter, ValidationError

from approvals import signatures
from approvals.audit import AuditEntry
from approvals.errors import Refused
from approvals.policy import Policy, Rule
from approvals.statement import Action, Decision, Request, Statement
from approvals.trust import TrustRoots
from checks.verdict import Frozen
from plumbline_mcp.findings.archive import ArchivedDecision, ArchivedTicket
from plumbline_mcp.findings.confirming import finding_content, finding_subjects
from plumbline_mcp.findings.finding import Finding
from plumbline_mcp.findings.records import Event, Verification
from plumbline_mcp.findings.states import State
from plumbline_mcp.findings.tar import EvidenceRefused

AGAIN = "fetch the archive again, or ask whoever made it"
_ACTIONS = {State.CONFIRMED: {Action.FINDING}, State.DEPARTURE: {Action.DEPARTURE}}

ModelT = TypeVar("ModelT", bound=BaseModel)
ValueT = TypeVar("ValueT")


class Signed(Frozen):
    """A signature that holds."""

    signer: str
    listed: bool = Field(True, description="whether the reader's own list names the signer")
    decision: Decision
    reason: str
    issued: str = Field(description="UTC, ISO 8601")
    tier: str = Field(description="T0 to T3: how well requester and reviewer were separated")
    self_approved: bool


@dataclass(frozen=True)
class Expected:
    """What has to have been signed."""

    finding: JsonValue
    subjects: dict[str, str]


def expected_request(finding: Finding, verifications: list[Verification]) -> Expected:
    """What a request about this finding with these verifications holds."""
    return Expected(finding_content(finding), finding_subjects(finding, verifications))


class LogSegment:
    """Entries of an audit log that follow each other."""

    def __init__(self, entries: list[AuditEntry]) -> None:
        self.entries = entries

    def refuse_broken(self) -> None:
        """Raise `EvidenceRefused` at the first entry that does not follow from the one before it."""
        before: AuditEntry | None = None
        for entry in self.entries:
            follows = before is None or (entry.seq == before.seq + 1 and entry.prev == before.hash)
            if not follows or entry.computed_hash() != entry.hash:
                raise EvidenceRefused(f"entry {entry.seq} of the audit log does not hold", AGAIN)
            before = entry

    def need(self, event: str, subject: str, detail: dict[str, JsonValue]) -> AuditEntry:
        """The one entry of this event, with these details. Raises `EvidenceRefused`."""
        noted = [entry for entry in self.entries if (entry.event, entry.subject) == (event, subject)]
        if len(noted) != 1 or any(noted[0].detail.get(name) != value for name, value in detail.items()):
            raise EvidenceRefused(f"the audit log does not hold {event} of {subject} as it is here", AGAIN)
        return noted[0]

    def refuse_unseen(self, statement: Statement) -> None:
        """Raise `EvidenceRefused` when the log that the signer saw is another one than this."""
        seen = {(entry.seq, entry.hash) for entry in self.entries}
        seen |= {(entry.seq - 1, entry.prev) for entry in self.entries[:1]}
        if (statement.log_length, statement.log_head) not in seen:
            raise EvidenceRefused(f"{statement.signer} signed another audit log than this one", AGAIN)


def signed(
    ticket: ArchivedTicket, last: Event, expected: Expected, log: LogSegment, trust: TrustRoots
) -> tuple[Signed, ...]:
    """The decisions about a finding, when they hold and give its last state. Raises `EvidenceRefused`."""
    request = ticket.request
    content = request.content if isinstance(request.content, dict) else {}
    same = content.get("finding") == expected.finding and request.subjects == expected.subjects
    wanted = _ACTIONS.get(last.state, {Action.FINDING, Action.DEPARTURE})
    if ticket.id != last.ticket or request.action not in wanted or not same:
        raise EvidenceRefused("what was signed is not this finding with this evidence", AGAIN)
    rule, policy = _rule(str(content.get("policy", "")), request)
    moment = _used(log, ticket.id, last)
    held = [_held(one, ticket, log, trust, moment) for one in ticket.decisions]
    for statement in held:
        _refuse_statement(statement, request, rule, policy)
    if last.state is State.REFUSED:
        if not any(statement.decision is Decision.REJECT for statement in held):
            raise EvidenceRefused("the finding is refused and nobody rejected it", AGAIN)
    elif any(statement.decision is Decision.REJECT for statement in held):
        raise EvidenceRefused("the finding was rejected", AGAIN)
    elif len({statement.signer for statement in held}) < rule.signers:
        raise EvidenceRefused("the finding has fewer signatures than its policy wants", AGAIN)
    deciding = [one for one in held if (one.decision is Decision.REJECT) == (last.state is State.REFUSED)]
    if last.reason not in {one.reason for one in deciding} or not {one.signer for one in deciding} >= set(
        last.actor.split(", ")
    ):
        raise EvidenceRefused("the last step of the finding is not by its signers", AGAIN)
    return tuple(_told(statement, request, trust) for statement in held)


def _used(log: LogSegment, ticket: str, last: Event) -> int:
    """When the approval was used, or the finding refused, in seconds since 1970."""
    refused = last.state is State.REFUSED
    entry = (
        log.need("finding_refused", last.finding, {}) if refused else log.need("approval_used", ticket, {})
    )
    return int(datetime.fromisoformat(entry.at).timestamp())


def _held(
    decision: ArchivedDecision, ticket: ArchivedTicket, log: LogSegment, trust: TrustRoots, moment: int
) -> Statement:
    """A statement whose signature holds, and which is about this request and this log."""
    try:
        statement = Statement.parse(decision.statement)
        _verify(statement, decision.signature, trust)
    except Refused as error:
        raise EvidenceRefused(error.message, "is this signer in your allowed_signers file?") from error
    request = ticket.request
    about = (statement.ticket, statement.request_sha256, statement.content_sha256, statement.subjects)
    if about != (ticket.id, request.sha256, request.content_sha256, request.subjects):
        raise EvidenceRefused(f"{statement.signer} signed another request", AGAIN)
    if not statement.issued <= moment < statement.expires:
        raise EvidenceRefused(f"the decision of {statement.signer} was used outside its time", AGAIN)
    log.refuse_unseen(statement)
    noted = [entry.detail for entry in log.entries if entry.subject == ticket.id]
    if not any(detail.get("statement_sha256") == statement.sha256 for detail in noted):
        raise EvidenceRefused(f"the audit log does not hold the decision of {statement.signer}", AGAIN)
    return statement


def _verify(statement: Statement, signature: str, trust: TrustRoots) -> None:
    """Raise `Refused` for a signature that does not hold; an unlisted signer's is tried by its own key."""
    data, signer, namespace = statement.bytes(), statement.signer, trust.namespace
    trust.check()
    if trust.lists(signer):
        signatures.verify(data, signature, signer, trust, namespace, statement.issued)
    else:
        signatures.verify_unlisted(data, signature, signer, namespace)


def _refuse_statement(statement: Statement, request: Request, rule: Rule, policy: str) -> None:
    """Raise `EvidenceRefused` where the policy does not let this signature count."""
    if statement.policy_sha256 != policy or statement.rule != rule.name:
        raise EvidenceRefused(f"{statement.signer} signed under another policy", AGAIN)
    try:
        rule.refuse_signer(statement.signer, (request.requester,))  # accounts are of another machine
    except Refused as error:
        raise EvidenceRefused(error.message, error.next_step) from error


def _rule(text: str, request: Request) -> tuple[Rule, str]:
    """The rule that the request came under, and the digest of its policy."""
    with tempfile.TemporaryDirectory(prefix="plumbline-policy-") as folder:
        path = Path(folder) / "policy.toml"
        path.write_bytes(text.encode())
        try:
            rule = Policy.load(path).rule_for(request)
        except Refused as error:
            raise EvidenceRefused(f"the policy of that day: {error.message}", AGAIN) from error
    return rule, hashlib.sha256(text.encode()).hexdigest()


def _told(statement: Statement, request: Request, trust: TrustRoots) -> Signed:
    return Signed(
        signer=statement.signer,
        listed=trust.lists(statement.signer),
        decision=statement.decision,
        reason=statement.reason,
        issued=datetime.fromtimestamp(statement.issued, UTC).isoformat(timespec="seconds"),
        tier=statement.tier,
        self_approved=statement.signer == request.requester,
    )


def parsed(model: type[ModelT], raw: bytes, name: str) -> ModelT:
    """A model from its JSON. Raises `EvidenceRefused`."""
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        raise EvidenceRefused(f"{name} does not fit its form: {_said(error)}", AGAIN) from error


def adapted(adapter: TypeAdapter[ValueT], value: Any, name: str) -> ValueT:
    """A value in its form. Raises `EvidenceRefused`."""
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise EvidenceRefused(f"{name} does not fit its form: {_said(error)}", AGAIN) from error


def _said(error: ValidationError) -> str:
    return str(error.errors(include_url=False)[0]["msg"])[:200]
