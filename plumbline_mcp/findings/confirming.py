"""A reviewer decides about a rebuilt finding: asked for as an approval, confirmed only by using one up.

What is signed is the finding by content: its text, its claim, the digests of verdicts, runs and evidence, and
what each verifier answered. A finding that a reviewer rejects is refused, with the reason.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pydantic import JsonValue

from approvals.canonical import digest
from approvals.decisions import signed_statement
from approvals.errors import Refused
from approvals.statement import Action, Decision, Request
from approvals.ticket import Ticket, TicketState
from plumbline_mcp.errors import UsageError
from plumbline_mcp.findings.finding import Finding, spelled
from plumbline_mcp.findings.records import StoredFinding, Verification, verification_digest
from plumbline_mcp.findings.states import State
from plumbline_mcp.findings.store import Findings
from plumbline_mcp.workspace import Workspace

_STATE = {Action.FINDING: State.CONFIRMED, Action.DEPARTURE: State.DEPARTURE}


def finding_content(finding: Finding) -> JsonValue:
    """The finding as it stands in what is signed: without its state, numbers as text."""
    told: JsonValue = spelled(finding.model_dump(mode="json", exclude={"state"}))
    return told


def finding_subjects(finding: Finding, verifications: Iterable[Verification]) -> dict[str, str]:
    """Digests of the finding, its verdicts, its runs and every verification that was answered."""
    subjects = {"finding": finding.sha256}
    subjects |= {f"verdict {name}": sha256 for name, sha256 in finding.verdict_sha256.items()}
    subjects |= {f"run {name}": sha256 for name, sha256 in finding.run_sha256.items()}
    answered = [one for one in verifications if one.submitted]
    return subjects | {f"verification {one.id}": verification_digest(one) for one in answered}


def request_of(
    stored: StoredFinding, requester: str, policy: str, departure: str = "", uid: int | None = None
) -> Request:
    """What the reviewer is asked; ``departure`` cites where the framework documents it.

    ``policy`` is the text of today's policy, so that whoever reads the evidence later has it. ``uid``: as
    which user of the system they ask; None where it is not known.
    """
    finding = stored.finding
    kind = "accept as documented departure" if departure else "confirm"
    verifiers: list[JsonValue] = [
        {"id": one.id, "principal": one.principal, "way": str(one.way), "result": str(one.comparison.result)}
        for one in stored.verifications
        if one.comparison is not None
    ]
    content: dict[str, JsonValue] = {
        "finding": finding_content(finding),
        "state": str(finding.state),
        "verifications": verifiers,
        "policy": policy,
    }
    if departure:
        content["documented"] = departure
    return Request(
        action=Action.DEPARTURE if departure else Action.FINDING,
        title=f"{kind} {finding.id}: {finding.title}"[:200],
        content=content,
        subjects=finding_subjects(finding, stored.verifications),
        requester=requester,
        requester_uid=uid,
        evidence=tuple(f"{one.source} {one.file} {one.span}".strip()[:200] for one in finding.evidence),
    )


def ask(
    workspace: Workspace, finding_id: str, requester: str, departure: str = "", uid: int | None = None
) -> Ticket:
    """Put a rebuilt finding before the reviewers; the same call again gives the same open ticket."""
    stored = Findings(workspace).get(finding_id)
    if stored.state is not State.REBUILT:
        step = {
            State.PROPOSED: f"have it rebuilt first: plumbline verify {finding_id} --recompute",
            State.DISPUTED: "propose a new finding with what the verifier saw",
        }.get(stored.state, "nothing follows")
        raise UsageError(f"{finding_id} is {stored.state}: only a rebuilt finding is decided", step)
    with _foreseen():
        request = request_of(stored, requester, _policy(workspace), departure, uid)
        return workspace.approvals.request(request)


def decide(
    workspace: Workspace, finding_id: str, requester: str, departure: str = "", uid: int | None = None
) -> StoredFinding:
    """Take a rebuilt finding to what its reviewers signed; it stays where it is while nobody has.

    Approved: the approval is used up and the finding confirmed (or accepted as a departure), together.
    Rejected: refused, with the reviewer's reason. Raises `UsageError` for an approval that does not hold.
    """
    store = Findings(workspace)
    with _foreseen():
        ticket = _asked(workspace, store.get(finding_id), departure)
    if ticket is None:
        ticket = ask(workspace, finding_id, requester, departure, uid)
    if ticket.state is TicketState.APPROVED:
        return _confirmed(store, finding_id, ticket)
    if ticket.state is TicketState.REJECTED:
        return _refused(store, finding_id, ticket)
    return store.get(finding_id)


def refuse(workspace: Workspace, finding_id: str, actor: str, reason: str) -> StoredFinding:
    """Close a disputed finding. A rebuilt one is refused only by a reviewer's signed rejection."""
    store = Findings(workspace)
    state = store.get(finding_id).state
    if state is not State.DISPUTED:
        raise UsageError(
            f"{finding_id} is {state}: only a disputed finding is closed without a signature",
            f"plumbline finding confirm {finding_id}; a reviewer may then reject it",
        )
    if len(reason.strip()) < 3:
        raise UsageError("a finding is refused with a reason", 'give one: --reason "..."')
    return store.step(finding_id, State.REFUSED, actor, reason=reason)


def open_ticket(workspace: Workspace, stored: StoredFinding) -> Ticket | None:
    """The newest request about a finding, whoever asked; None where nobody has."""
    return _newest(workspace, stored, None)


def _asked(workspace: Workspace, stored: StoredFinding, departure: str) -> Ticket | None:
    """The request about the finding as it is now that is waiting or decided, if there is one."""
    if stored.state is not State.REBUILT:
        return None
    ticket = _newest(workspace, stored, Action.DEPARTURE if departure else Action.FINDING)
    if ticket is None or not (ticket.state.open or ticket.state is TicketState.REJECTED):
        return None
    wanted = request_of(stored, ticket.request.requester, _policy(workspace), departure)
    return ticket if wanted.content_sha256 == ticket.request.content_sha256 else None


def _newest(workspace: Workspace, stored: StoredFinding, action: Action | None) -> Ticket | None:
    after = None
    while page := workspace.approvals.tickets(limit=200, after=after):
        for ticket in page:
            about = ticket.request.subjects.get("finding") == stored.finding.sha256
            if about and ticket.request.action in ((action,) if action else _STATE):
                return ticket
        after = page[-1].id
    return None


def _confirmed(store: Findings, finding_id: str, ticket: Ticket) -> StoredFinding:
    approvals = store.workspace.approvals
    stored = store.get(finding_id)
    departure = _documented(ticket)
    with _foreseen():
        policy = _policy(store.workspace)
    wanted = request_of(stored, ticket.request.requester, policy, departure)
    if digest(wanted.content) != ticket.request.content_sha256 or wanted.subjects != ticket.request.subjects:
        raise UsageError(
            f"what {ticket.id} approves is not {finding_id} as it is now",
            f"ask again: plumbline finding confirm {finding_id}",
        )

    def consume() -> None:
        approvals.consume(ticket.id, wanted.content_sha256, 1, wanted.subjects)

    with _foreseen():
        return store.step(
            finding_id,
            _STATE[ticket.request.action],
            ", ".join(sorted({one.signer for one in ticket.decisions})),
            reason=ticket.reason,
            ticket=ticket.id,
            consume=consume,
        )


def _refused(store: Findings, finding_id: str, ticket: Ticket) -> StoredFinding:
    """Refuse a finding where the rejection is really signed: a row alone decides nothing."""
    approvals = store.workspace.approvals
    rejected = [one for one in ticket.decisions if one.decision is Decision.REJECT]
    if not rejected:
        raise UsageError(f"{ticket.id} is rejected and holds no decision", "withdraw it and ask again")
    last = rejected[-1]
    with _foreseen():
        statement = signed_statement(last.statement, last.signature, approvals.trust)
    if (statement.ticket, statement.request_sha256) != (ticket.id, ticket.request.sha256):
        raise UsageError(f"the rejection of {ticket.id} is about another request", "ask again")
    return store.step(finding_id, State.REFUSED, statement.signer, reason=statement.reason, ticket=ticket.id)


@contextmanager
def _foreseen() -> Iterator[None]:
    """A refusal of the approvals as an error of the program."""
    try:
        yield
    except Refused as error:
        raise UsageError(error.message, error.next_step) from error


def _policy(workspace: Workspace) -> str:
    """The text of today's policy. Raises `Refused` when there is none."""
    trust = workspace.approvals.trust
    trust.policy()
    return trust.policy_file.read_text(encoding="utf-8")


def _documented(ticket: Ticket) -> str:
    content = ticket.request.content
    return str(content.get("documented", "")) if isinstance(content, dict) else ""
