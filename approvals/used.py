"""Whether what was approved and used once is still what its reviewers signed: tokens, accepted checks.

`approvals.gate` answers this for what is about to be used. Here the use lies in the past, so neither the
ticket's expiry nor a change of the policy's text ends it; a revoked key and a stricter rule do.
"""

from approvals import tables
from approvals.decisions import Asked, counted
from approvals.errors import Refused
from approvals.gate import DECIDED, REQUESTED, USED
from approvals.queue import Approvals
from approvals.statement import Decision, Request, Statement, stored_request
from approvals.tables import DecisionRow, RequestRow
from approvals.witness import entries

_EVENTS = frozenset({REQUESTED, DECIDED, USED})


def hold_used(approvals: Approvals, ticket_id: str, again: str) -> Request:
    """The request of a ticket that was used for its whole content. Raises `Refused` where that does not hold.

    Rows and log entries say the same, and every signature counts. ``again`` is the next step of whoever meets
    a refusal.
    """
    connection = approvals.connection
    row = tables.request_row(connection, ticket_id)
    if row is None:
        raise Refused(f"there is no request {ticket_id[:80]!r}", again)
    request = stored_request(row.request)
    decisions, uses = (
        tables.decision_rows(connection, ticket_id),
        tables.use_rows(connection, ticket_id),
    )
    stored = [
        (REQUESTED, row.facts()),
        *((DECIDED, each.facts()) for each in decisions),
        *((USED, each.facts()) for each in uses),
    ]
    logged = [(one.event, one.detail) for one in entries(connection, "subject", ticket_id)]
    whole = stored == [one for one in logged if one[0] in _EVENTS] and request.sha256 == row.sha256
    if not whole or [one.use_sha256 for one in uses] != [request.content_sha256]:
        raise Refused(f"the request {ticket_id} is not the one that was signed and used", again)
    _hold_signatures(approvals, row, request, decisions, again)
    return request


def _hold_signatures(
    approvals: Approvals, row: RequestRow, request: Request, decisions: list[DecisionRow], again: str
) -> None:
    """As many reviewers as the rule wants today signed it, with keys that are not revoked.

    A key is looked at as of when it signed: what was signed outlives the key's last day.
    """
    rule = approvals.trust.policy().rule_for(request)
    asked = Asked(row, request, rule.model_copy(update={"name": row.rule}), approvals.workspace_id)
    statements = [Statement.parse(each.statement) for each in decisions]
    for statement, each in zip(statements, decisions, strict=True):
        counted(asked, statement, each.signature, approvals.trust, statement.issued)
    signers = {one.signer for one in statements if one.decision is Decision.APPROVE}
    if len(signers) < rule.signers or any(one.decision is Decision.REJECT for one in statements):
        raise Refused(f"{row.id} has {len(signers)} signatures; today's policy wants {rule.signers}", again)
