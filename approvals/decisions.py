"""What a statement has to say about a ticket, and whether a signed one counts."""

from dataclasses import dataclass
from typing import Any

from approvals.accounts import names_of_requester
from approvals.allowed_signers import Signer
from approvals.errors import Refused
from approvals.policy import Policy, Rule
from approvals.signatures import verify
from approvals.statement import REASONED, Decision, Request, Statement
from approvals.tables import RequestRow
from approvals.tiers import statement_tier
from approvals.trust import TrustRoots

CLOCK_SLACK_S = 300
"""How far in the future a statement may have been drafted: clocks of two machines."""


@dataclass(frozen=True)
class Asked:
    """A request as it stands in the queue, with the rule that it comes under today."""

    row: RequestRow
    request: Request
    rule: Rule
    workspace: str


def rule_of_today(row: RequestRow, request: Request, policy: Policy) -> Rule:
    """The rule a ticket comes under. Raises `Refused` when the policy is no longer the ticket's."""
    if policy.sha256 != row.policy_sha256:
        raise Refused(
            f"the policy changed since {row.id} was asked (now {policy.name!r}, {policy.sha256[:12]}…)",
            "request again: the open ticket is closed and a new one made",
        )
    rule = policy.rule_for(request)
    if rule.name != row.rule:
        raise Refused(
            f"{row.id} comes under rule {rule.name!r}, not {row.rule!r} as its row says", "request again"
        )
    return rule


def statement_about(asked: Asked, decided: dict[str, Any]) -> Statement:
    """The statement: the ticket's part from the queue, the decision's part as given."""
    row, request = asked.row, asked.request
    return Statement(
        v=1,
        workspace=asked.workspace,
        ticket=row.id,
        action=request.action,
        content_sha256=request.content_sha256,
        request_sha256=request.sha256,
        subjects=request.subjects,
        uses=request.allowed_uses,
        attempts=request.attempts,
        requester=request.requester,
        under=request.under,
        node_millihours=request.node_millihours,
        nonce=row.nonce,
        expires=row.expires,
        policy_sha256=row.policy_sha256,
        rule=row.rule,
        **decided,
    )


_DECIDED = ("decision", "signer", "reason", "issued", "tier", "log_head", "log_length")


def counted(asked: Asked, statement: Statement, signature: str, trust: TrustRoots, now: int) -> Signer:
    """Whose signature it is, when it counts for this ticket now. Raises `Refused` with what does not hold."""
    expected = statement_about(asked, {name: getattr(statement, name) for name in _DECIDED})
    for name in Statement.model_fields:
        if getattr(expected, name) != getattr(statement, name):
            raise Refused(
                f"the statement of {statement.signer} says something else than {asked.row.id}: {name}",
                "draft the decision again and have it signed",
            )
    if not asked.row.created <= statement.issued <= min(now + CLOCK_SLACK_S, asked.row.expires):
        raise Refused(
            f"the statement of {statement.signer} was drafted outside the life of {asked.row.id}",
            "set the clock, and draft it again",
        )
    asked.rule.refuse_signer(statement.signer, names_of_requester(asked.request))
    refuse_silence(asked.request, statement.decision, statement.reason)
    signer = verify(statement.bytes(), signature, statement.signer, trust, trust.namespace, now)
    if statement.tier not in (asked.row.tier, statement_tier(asked.row.tier, signer.key.hardware)):
        raise Refused(
            f"the statement of {statement.signer} claims tier {statement.tier}; {asked.row.id} has"
            f" {asked.row.tier}",
            "draft the decision again and have it signed",
        )
    return signer


def signed_statement(text: str, signature: str, trust: TrustRoots) -> Statement:
    """The statement whose signature counts as of when it was made; what it is about is the caller's to hold.

    Raises `Refused` for a text that is no statement and for a signature that does not hold.
    """
    statement = Statement.parse(text)
    verify(statement.bytes(), signature, statement.signer, trust, trust.namespace, statement.issued)
    return statement


def refuse_silence(request: Request, decision: Decision, reason: str) -> None:
    """Raise `Refused` where a decision needs a reason and has none."""
    if reason.strip():
        return
    if decision is Decision.REJECT:
        raise Refused("a rejection needs a reason", "say what would be accepted: --reason")
    if request.action in REASONED:
        raise Refused(f"to approve a {request.action.value} needs a reason", "say why it holds: --reason")
