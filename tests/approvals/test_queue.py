"""What a requester and a reviewer meet in the queue."""

import itertools
import sqlite3
import types
from typing import Any

import pytest

from approvals import accounts
from approvals.audit import AuditLog
from approvals.errors import Refused
from approvals.queue import Approvals
from approvals.statement import Action, Statement
from approvals.ticket import TicketState
from approvals.transactions import write_transaction
from approvals.trust import TrustRoots
from tests.approvals.reviewers import START, Queue, Reviewer, new_queue, request, signed

FIRST, SECOND = "c3" * 32, "d4" * 32
DAY = 86_400


def test_a_new_request_is_pending_and_says_what_it_needs(queue: Queue) -> None:
    ticket = queue.approvals.request(request())
    assert (ticket.state, ticket.rule, ticket.tier, ticket.uses_left) == ("pending", "run", "T1", 4)
    assert (ticket.created, ticket.expires) == (START, START + 14 * DAY)
    assert ticket.policy_sha256 == queue.trust.policy().sha256
    assert queue.approvals.ticket(ticket.id) == ticket
    with pytest.raises(Refused, match=r"0 of 1 signatures .*: pending is not approved"):
        queue.approvals.verify(ticket.id)


def test_the_same_request_is_the_same_ticket_until_it_is_over(queue: Queue, ada: Reviewer) -> None:
    approvals = queue.approvals
    first = approvals.request(request())
    assert approvals.request(request(title="worded anew", evidence=("data-0001",))).id == first.id
    queue.approve(first, ada)
    assert approvals.request(request()).id == first.id
    approvals.withdraw(first.id, "agent")
    second = approvals.request(request())
    assert (first.id.rpartition("-")[0], second.id) == (second.id.rpartition("-")[0], f"{first.id[:-1]}2")


def test_the_id_follows_from_action_content_requester_and_workspace(queue: Queue, solo: TrustRoots) -> None:
    approvals = queue.approvals
    ids = [
        approvals.request(changed).id
        for changed in (
            request(),
            request(action=Action.RERUN),
            request(content="x"),
            request(requester="somebody"),
        )
    ] + [new_queue(solo).approvals.request(request()).id]
    assert len({each.rpartition("-")[0] for each in ids}) == 5


@pytest.mark.parametrize(
    "changed",
    [{"subjects": {}}, {"uses": (FIRST,)}, {"attempts": 1}, {"node_millihours": 1}],
)
def test_the_same_content_with_something_else_that_binds_waits_for_the_open_ticket(
    queue: Queue, changed: dict[str, Any]
) -> None:
    ticket = queue.approvals.request(request())
    with pytest.raises(Refused, match=f"{ticket.id} asks for the same content with other") as refused:
        queue.approvals.request(request(**changed))
    assert f"withdraw {ticket.id} first" in refused.value.next_step


def test_a_signed_decision_approves_and_its_uses_are_counted(queue: Queue, ada: Reviewer) -> None:
    approvals = queue.approvals
    ticket = queue.approve(approvals.request(request()), ada)
    assert ticket.state is TicketState.APPROVED
    assert [(d.signer, d.reason, d.self_approved) for d in ticket.decisions] == [
        ("ada", "as discussed", False)
    ]
    assert approvals.verify(ticket.id) == ticket
    left = [
        approvals.consume(ticket.id, use, attempt).uses_left
        for use, attempt in [(FIRST, 1), (SECOND, 1), (FIRST, 2)]
    ]
    assert left == [3, 2, 1]
    assert approvals.consume(ticket.id, SECOND, 2).state is TicketState.USED
    with pytest.raises(Refused, match="was used up"):
        approvals.verify(ticket.id)


def test_a_request_without_uses_may_use_its_content_once(queue: Queue, ada: Reviewer) -> None:
    asked = request(uses=(), attempts=1)
    ticket = queue.approve(queue.approvals.request(asked), ada)
    assert queue.approvals.consume(ticket.id, asked.content_sha256).state is TicketState.USED


def test_each_step_is_an_entry_of_the_audit_log(queue: Queue, ada: Reviewer) -> None:
    ticket = queue.approve(queue.approvals.request(request()), ada)
    queue.approvals.consume(ticket.id, FIRST)
    queue.approvals.withdraw(ticket.id, "agent", "not needed")
    entries = [entry for entry in AuditLog(queue.connection).entries() if entry.subject == ticket.id]
    assert [entry.event for entry in entries] == [
        "approval_requested",
        "approval_decided",
        "approval_used",
        "approval_withdrawn",
    ]
    assert entries[0].detail["sha256"] == request().sha256
    assert entries[1].detail == {
        "statement_sha256": ticket.decisions[0].sha256,
        "decision": "approve",
        "signer": "ada",
    }
    assert entries[2].detail == {"use": FIRST, "attempt": 1}
    assert entries[3].detail == {"reason": "not needed"}


def test_the_caller_that_fails_after_a_use_has_not_used_it(queue: Queue, ada: Reviewer) -> None:
    ticket = queue.approve(queue.approvals.request(request()), ada)
    with pytest.raises(RuntimeError), write_transaction(queue.connection):  # noqa: PT012
        queue.approvals.consume(ticket.id, FIRST)
        raise RuntimeError
    assert queue.approvals.ticket(ticket.id).uses_left == 4
    queue.approvals.consume(ticket.id, FIRST)


def test_what_expired_is_void_and_asked_anew(queue: Queue, ada: Reviewer) -> None:
    ticket = queue.approve(queue.approvals.request(request()), ada)
    queue.clock.now = ticket.expires
    assert queue.approvals.ticket(ticket.id).state is TicketState.EXPIRED
    with pytest.raises(Refused, match=f"{ticket.id} expired"):
        queue.approvals.verify(ticket.id)
    assert queue.approvals.request(request()).id.endswith("-2")


def test_a_rejection_tells_why_and_the_third_ends_it(queue: Queue, ada: Reviewer) -> None:
    for _ in range(3):
        ticket = queue.approve(queue.approvals.request(request()), ada, decision="reject")
        assert (ticket.state, ticket.reason) == ("rejected", "as discussed")
    with pytest.raises(Refused, match="this was rejected 3 times"):
        queue.approvals.request(request())
    assert queue.approvals.request(request(requester="somebody")).state is TicketState.PENDING


def test_an_approval_can_be_rejected_until_it_is_used(queue: Queue, ada: Reviewer, grace: Reviewer) -> None:
    ticket = queue.approve(queue.approvals.request(request()), ada)
    queue.approvals.consume(ticket.id, FIRST)
    assert queue.approve(ticket, grace, decision="reject").state is TicketState.REJECTED
    with pytest.raises(Refused, match="was rejected by grace: as discussed"):
        queue.approvals.consume(ticket.id, SECOND)


@pytest.mark.parametrize(
    ("action", "decision"), [("plan", "reject"), ("finding", "approve"), ("departure", "approve")]
)
def test_a_rejection_and_the_acceptance_of_a_finding_need_a_reason(
    queue: Queue, action: str, decision: str
) -> None:
    ticket = queue.approvals.request(request(action=action))
    with pytest.raises(Refused, match="reason"):
        queue.approvals.draft(ticket.id, decision, "ada", " ")


def test_nobody_signs_twice(queue: Queue, team_queue: Queue, ada: Reviewer) -> None:
    ticket = team_queue.approvals.request(request(action="check"))
    assert team_queue.approve(ticket, ada).state is TicketState.PENDING
    with pytest.raises(Refused, match="ada has decided"):
        team_queue.approvals.draft(ticket.id, "approve", "ada")


def test_two_reviewers_approve_together(team_queue: Queue, ada: Reviewer, grace: Reviewer) -> None:
    ticket = team_queue.approve(team_queue.approvals.request(request(action="version")), ada, grace)
    assert ticket.state is TicketState.APPROVED
    assert team_queue.approvals.verify(ticket.id).id == ticket.id


def test_in_a_team_whoever_asks_does_not_sign(team_queue: Queue, grace: Reviewer) -> None:
    ticket = team_queue.approvals.request(request(requester="ada"))
    with pytest.raises(Refused, match="ada asked for this and may not sign it"):
        team_queue.approvals.draft(ticket.id, "approve", "ada")
    assert team_queue.approve(ticket, grace).state is TicketState.APPROVED


def test_alone_whoever_asks_may_sign_and_it_shows(queue: Queue, ada: Reviewer) -> None:
    ticket = queue.approve(queue.approvals.request(request(requester="ada")), ada)
    assert ticket.decisions[0].self_approved


def test_only_the_requester_withdraws_and_only_what_is_open(queue: Queue) -> None:
    ticket = queue.approvals.request(request())
    with pytest.raises(Refused, match="was asked by agent"):
        queue.approvals.withdraw(ticket.id, "somebody")
    assert queue.approvals.withdraw(ticket.id, "agent").state is TicketState.WITHDRAWN
    with pytest.raises(Refused, match="is withdrawn already"):
        queue.approvals.withdraw(ticket.id, "agent")


def test_a_reviewer_who_asked_under_another_name_may_not_sign_where_the_requester_may_not(
    team: TrustRoots, ada: Reviewer, grace: Reviewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_ada = types.SimpleNamespace(pw_name="ada")
    monkeypatch.setattr(accounts.pwd, "getpwuid", lambda uid: of_ada if uid == 1007 else _no_account())
    queue = new_queue(team)
    ticket = queue.approvals.request(request(requester="bob", requester_uid=1007))
    statement = queue.approvals.draft(ticket.id, "approve", "grace")
    with pytest.raises(Refused, match="ada asked for this and may not sign it"):
        queue.approvals.draft(ticket.id, "approve", "ada")
    forged = Statement.model_validate(statement.model_dump() | {"signer": "ada"})
    with pytest.raises(Refused, match="ada asked for this and may not sign it"):
        queue.approvals.record(ticket.id, forged, signed(forged, ada, team.namespace))
    approved = queue.approvals.record(ticket.id, statement, signed(statement, grace, team.namespace))
    assert not approved.decisions[0].self_approved
    other = queue.approvals.request(request(content="x", requester="bob", requester_uid=1008))
    queue.approve(other, ada)


def _no_account() -> None:
    raise KeyError


def test_under_a_task_the_costs_add_up_to_its_cap(queue: Queue, ada: Reviewer) -> None:
    approvals = queue.approvals
    task = approvals.request(request(action="task", node_millihours=4000))
    plan = request(content="a", under=task.id)
    with pytest.raises(Refused, match=r"is no signed task \(a task, pending\)"):
        approvals.request(plan)
    queue.approve(task, ada)
    approvals.request(plan)
    approvals.request(request(content="b", under=task.id))
    with pytest.raises(Refused, match=r"costs 1.5 node-hours; the task .* leaves 1 of 4"):
        approvals.request(request(content="c", under=task.id))
    with pytest.raises(Refused, match=r"is no signed task \(a plan"):
        approvals.request(request(content="d", under=approvals.tickets()[0].id))


@pytest.mark.parametrize("closed", ["withdrawn", "rejected", "expired"])
def test_what_was_used_of_a_closed_request_stays_under_the_cap(
    queue: Queue, ada: Reviewer, closed: str
) -> None:
    approvals = queue.approvals
    task = approvals.request(request(action="task", node_millihours=2000))
    queue.approve(task, ada)
    with write_transaction(queue.connection):  # a task whose uses are used does not expire
        for use, attempt in itertools.product(request().uses, (1, 2)):
            approvals.consume(task.id, use, attempt)
    plan = approvals.request(request(content="a", under=task.id))  # 1.5 node-hours for two jobs
    queue.approve(plan, ada)
    with write_transaction(queue.connection):
        approvals.consume(plan.id, request().uses[0], 1)
        approvals.consume(plan.id, request().uses[0], 2)
    if closed == "withdrawn":
        approvals.withdraw(plan.id, "agent")
    elif closed == "rejected":
        queue.approve(plan, ada, decision="reject")
    else:
        queue.clock.now += 15 * DAY
    assert approvals.ticket(plan.id).state == closed
    with pytest.raises(Refused, match=r"costs 1.5 node-hours; the task .* leaves 1.25 of 2"):
        approvals.request(request(content="b", under=task.id))
    approvals.request(request(content="c", under=task.id, node_millihours=1250))


def test_a_request_that_no_rule_fits_is_refused(queue: Queue) -> None:
    with pytest.raises(Refused, match="no rule of the policy 'solo' allows plan at 1000"):
        queue.approvals.request(request(node_millihours=1_000_001))


def test_an_open_ticket_of_another_policy_is_closed_when_asked_again(queue: Queue, team: TrustRoots) -> None:
    first = queue.approvals.request(request())
    queue.trust = team
    with pytest.raises(Refused, match="the policy changed since"):
        queue.approvals.draft(first.id, "approve", "ada")
    second = queue.approvals.request(request())
    assert second.id.endswith("-2")
    assert queue.approvals.ticket(first.id).state is TicketState.WITHDRAWN


def test_what_changed_while_it_was_shown_is_not_signed(queue: Queue) -> None:
    ticket = queue.approvals.request(request())
    queue.approvals.draft(ticket.id, "approve", "ada", seen=ticket.request.sha256)
    with pytest.raises(Refused, match="changed while it was shown"):
        queue.approvals.draft(ticket.id, "approve", "ada", seen="0" * 64)


def test_tickets_are_listed_by_state_newest_first_in_pages(queue: Queue, ada: Reviewer) -> None:
    approvals = queue.approvals
    ids = [approvals.request(request(content=str(number))).id for number in range(5)]
    queue.approve(ids[1], ada)
    assert [ticket.id for ticket in approvals.tickets()] == ids[::-1]
    assert [ticket.id for ticket in approvals.tickets(limit=2, after=ids[3])] == [ids[2], ids[1]]
    assert [ticket.id for ticket in approvals.tickets("approved")] == [ids[1]]
    assert (approvals.count(), approvals.count("pending")) == (5, 4)
    queue.clock.now += 365 * DAY
    assert approvals.count("expired") == 5


def test_an_unknown_ticket_is_refused_with_what_to_do(queue: Queue) -> None:
    for call in (queue.approvals.ticket, queue.approvals.verify):
        with pytest.raises(Refused, match="there is no approval 'A-x'") as refused:
            call("A-x")
        assert refused.value.next_step == "see them: plumbline queue list"


def test_a_statement_holds_everything_and_no_number_that_could_be_spelt_twice(queue: Queue) -> None:
    ticket = queue.approvals.request(request())
    statement = queue.approvals.draft(ticket.id, "approve", "ada")
    text = statement.bytes().decode("ascii")
    assert Statement.parse(text) == statement
    assert statement.content_sha256 == request().content_sha256
    assert statement.uses == (FIRST, SECOND)
    assert (statement.log_length, statement.log_head) == AuditLog(queue.connection).last()
    assert "." not in text.replace("model/weights.safetensors", "")
    with pytest.raises(Refused, match="canonical spelling"):
        Statement.parse(text.replace('"v":1', '"v": 1'))
    with pytest.raises(Refused, match="this is no statement"):
        Statement.parse(text.replace('"v":1', '"v":2'))


def test_a_statement_signed_before_other_entries_came_still_counts(queue: Queue, ada: Reviewer) -> None:
    ticket = queue.approvals.request(request())
    statement = queue.approvals.draft(ticket.id, "approve", "ada")
    AuditLog(queue.connection).append("verdict_stored", "data-0001")
    signature = signed(statement, ada, queue.trust.namespace)
    assert queue.approvals.record(ticket.id, statement, signature).state is TicketState.APPROVED


def test_the_example_keys_roots_are_taken_by_no_real_workspace(
    queue: Queue, tmp_path_factory: pytest.TempPathFactory
) -> None:
    example = TrustRoots.example(tmp_path_factory.mktemp("example"))
    with pytest.raises(Refused, match="are not those of a workspace of kind 'real'"):
        Approvals(queue.connection, example, "0" * 32, "real")


@pytest.mark.parametrize(
    "sql",
    [
        "update requests set sha256 = 'x'",
        "delete from requests",
        "insert or replace into requests select * from requests",
        "update decisions set signer = 'grace'",
        "delete from decisions",
        "insert or replace into decisions select * from decisions",
        "update uses set attempt = 2",
        "delete from uses",
        "insert or replace into uses select * from uses",
        "update workspace set kind = 'example'",
        "insert or replace into workspace values (1, 'x', 'example')",
    ],
)
def test_rows_are_not_changed_by_accident(queue: Queue, ada: Reviewer, sql: str) -> None:
    ticket = queue.approve(queue.approvals.request(request()), ada)
    queue.approvals.consume(ticket.id, FIRST)
    with pytest.raises(sqlite3.IntegrityError, match="is never changed"):
        queue.connection.execute(sql)
