"""Only a reviewer's signature about exactly this finding closes a rebuilt one."""

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from approvals.statement import Action
from approvals.ticket import TicketState
from plumbline_mcp.errors import UsageError
from plumbline_mcp.findings import confirming
from plumbline_mcp.findings.states import State
from plumbline_mcp.findings.store import Findings
from plumbline_mcp.workspace import Workspace
from tests.plumbline_mcp.findings import faulty_export
from tests.plumbline_mcp.findings.faulty_export import PROPOSER, Faulty
from tests.plumbline_mcp.findings.reviewing import (
    REVIEWER,
    confirmed,
    decided,
    make_roots,
    rebuilt,
)

pytestmark = pytest.mark.usefixtures("no_recompute")


@pytest.fixture
def workspace(faulty: Faulty) -> Workspace:
    return faulty.workspace


def test_an_approved_finding_is_confirmed_and_its_approval_used_up(
    faulty: Faulty, workspace: Workspace
) -> None:
    stored = confirmed(workspace, faulty_export.found(faulty, title="A finding that gets confirmed"))
    assert stored.state is State.CONFIRMED
    assert (stored.events[-1].actor, stored.events[-1].reason) == (REVIEWER, "seen in the raw file")
    assert stored.ticket
    assert workspace.approvals.ticket(stored.ticket).state is TicketState.USED
    events = [e.event for e in workspace.audit.entries() if e.subject in (stored.finding.id, stored.ticket)]
    assert events[-3:] == ["approval_decided", "approval_used", "finding_confirmed"]
    with pytest.raises(UsageError, match="is confirmed"):
        confirming.decide(workspace, stored.finding.id, PROPOSER)
    assert workspace.verify() == []


def test_a_departure_names_where_it_is_documented(faulty: Faulty, workspace: Workspace) -> None:
    stored = confirmed(workspace, faulty_export.found(faulty), departure="manual 4.2, section 3")
    assert stored.state is State.DEPARTURE
    request = workspace.approvals.ticket(stored.ticket or "").request
    assert request.action is Action.DEPARTURE
    assert isinstance(request.content, dict)
    assert request.content["documented"] == "manual 4.2, section 3"


def test_a_rejected_finding_is_refused_with_the_reviewers_reason(
    faulty: Faulty, workspace: Workspace
) -> None:
    stored = rebuilt(workspace, faulty_export.found(faulty))
    ticket = confirming.ask(workspace, stored.finding.id, PROPOSER)
    decided(workspace, ticket, "reject", "this is how the release is published")
    closed = confirming.decide(workspace, stored.finding.id, PROPOSER)
    assert closed.state is State.REFUSED
    assert closed.events[-1].reason == "this is how the release is published"
    assert closed.events[-1].actor == REVIEWER


def test_while_nobody_decided_it_stays_rebuilt_with_one_open_ticket(
    faulty: Faulty, workspace: Workspace
) -> None:
    finding = rebuilt(workspace, faulty_export.found(faulty)).finding.id
    for requester in (PROPOSER, PROPOSER, "somebody-else"):
        assert confirming.decide(workspace, finding, requester).state is State.REBUILT
    open_ones = [t for t in workspace.approvals.tickets(TicketState.PENDING) if finding in t.request.title]
    assert len(open_ones) == 1
    ticket = confirming.open_ticket(workspace, Findings(workspace).get(finding))
    assert ticket == open_ones[0]
    workspace.approvals.withdraw(ticket.id, PROPOSER)


@pytest.mark.parametrize("state", [State.PROPOSED, State.DISPUTED])
def test_what_was_not_rebuilt_cannot_be_put_before_a_reviewer(
    faulty: Faulty, workspace: Workspace, state: State
) -> None:
    stored = faulty_export.found(faulty)
    if state is State.DISPUTED:
        Findings(workspace).step(stored.finding.id, State.DISPUTED, "verifier")
    for ask in (confirming.ask, confirming.decide):
        with pytest.raises(UsageError, match=f"is {state}: only a rebuilt finding is decided"):
            ask(workspace, stored.finding.id, PROPOSER)


def test_an_approval_of_another_finding_or_an_edited_row_confirms_nothing(faulty: Faulty) -> None:
    workspace = faulty.workspace
    mine = rebuilt(workspace, faulty_export.found(faulty, title="Mine"))
    ticket = confirming.ask(workspace, mine.finding.id, PROPOSER)
    with workspace.write_tx() as database:
        database.execute("update requests set state = 'approved' where id = ?", [ticket.id])
    with pytest.raises(UsageError):
        confirming.decide(workspace, mine.finding.id, PROPOSER)
    with workspace.write_tx() as database:
        database.execute("update requests set state = 'rejected' where id = ?", [ticket.id])
    with pytest.raises(UsageError, match="holds no decision"):
        confirming.decide(workspace, mine.finding.id, PROPOSER)
    assert Findings(workspace).get(mine.finding.id).state is State.REBUILT
    with workspace.write_tx() as database:
        database.execute("update requests set state = 'pending' where id = ?", [ticket.id])
    workspace.approvals.withdraw(ticket.id, PROPOSER)
    assert workspace.verify() == []


def test_what_a_verifier_said_cannot_change_after_the_signature(faulty: Faulty, workspace: Workspace) -> None:
    """What is signed names every verification by digest."""
    stored = rebuilt(workspace, faulty_export.found(faulty))
    ticket = confirming.ask(workspace, stored.finding.id, PROPOSER)
    decided(workspace, ticket, "approve", "seen")
    edit = "update verifications set submission = json_set(submission, '$.reason', ?) where finding = ?"
    with workspace.write_tx() as database:
        database.execute("drop trigger verifications_once")
        database.execute(edit, ["another", stored.finding.id])
    assert any("is not the verification that was stored" in problem for problem in workspace.verify())
    with pytest.raises(UsageError, match=r"is not finding-.* as it is now"):
        confirming.decide(workspace, stored.finding.id, PROPOSER)
    assert Findings(workspace).get(stored.finding.id).state is State.REBUILT
    with workspace.write_tx() as database:
        database.execute(edit, ["", stored.finding.id])
    assert workspace.verify() == []
    assert confirming.decide(workspace, stored.finding.id, PROPOSER).state is State.CONFIRMED


def test_a_disputed_finding_is_closed_with_a_reason_and_a_rebuilt_one_not_like_this(
    faulty: Faulty, workspace: Workspace
) -> None:
    finding = faulty_export.found(faulty).finding.id
    with pytest.raises(UsageError, match="only a disputed finding"):
        confirming.refuse(workspace, finding, PROPOSER, "wrong")
    Findings(workspace).step(finding, State.DISPUTED, "verifier")
    with pytest.raises(UsageError, match="with a reason"):
        confirming.refuse(workspace, finding, PROPOSER, " ")
    assert confirming.refuse(workspace, finding, PROPOSER, "it was the other layer").state is State.REFUSED


def test_without_a_policy_the_next_step_says_how_to_get_one(
    faulty: Faulty,
    workspace: Workspace,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finding = rebuilt(workspace, faulty_export.found(faulty)).finding.id
    roots = make_roots(tmp_path_factory.mktemp("none") / "roots")
    (roots / "policy.toml").unlink()
    monkeypatch.setenv("PLUMBLINE_TRUST", str(roots))
    with pytest.raises(UsageError, match="no policy") as raised:
        confirming.decide(workspace, finding, PROPOSER)
    assert "plumbline policy use" in raised.value.next_step


def test_a_confirmation_that_is_cut_off_leaves_neither_use_nor_state(
    faulty: Faulty, workspace: Workspace
) -> None:
    """The use of the approval and the finding's step are one transaction."""
    stored = rebuilt(workspace, faulty_export.found(faulty))
    ticket = confirming.ask(workspace, stored.finding.id, PROPOSER)
    decided(workspace, ticket, "approve", "seen")
    with workspace.write_tx() as database:
        database.execute(
            "create trigger full before insert on finding_events begin select raise(abort, 'disk full'); end"
        )
    with pytest.raises(sqlite3.IntegrityError, match="disk full"):
        confirming.decide(workspace, stored.finding.id, PROPOSER)
    with workspace.write_tx() as database:
        database.execute("drop trigger full")
    assert workspace.approvals.ticket(ticket.id).state is TicketState.APPROVED
    assert confirming.decide(workspace, stored.finding.id, PROPOSER).state is State.CONFIRMED


def test_of_eight_that_close_a_finding_at_once_one_does(faulty: Faulty, workspace: Workspace) -> None:
    stored = rebuilt(workspace, faulty_export.found(faulty))
    finding = stored.finding.id
    decided(workspace, confirming.ask(workspace, finding, PROPOSER), "approve", "seen")
    start = threading.Barrier(8)

    def close() -> str:
        own = Workspace.open(workspace.home)
        start.wait()
        try:
            return confirming.decide(own, finding, PROPOSER).state.value
        except UsageError as error:
            return error.message
        finally:
            own.close()

    with ThreadPoolExecutor(8) as pool:
        said = [one.result() for one in [pool.submit(close) for _ in range(8)]]
    assert said.count("confirmed") == 1, said
    assert [event.state for event in Findings(workspace).events(finding)].count(State.CONFIRMED) == 1
    assert workspace.verify() == []
