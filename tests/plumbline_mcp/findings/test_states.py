"""No state of a finding is skipped, none is left twice, and nothing that was written is changed."""

import sqlite3
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plumbline_mcp.errors import UsageError, WorkspaceError
from plumbline_mcp.findings.states import NEXT, SIGNED, State
from plumbline_mcp.findings.store import Findings
from plumbline_mcp.workspace import Workspace
from tests.plumbline_mcp.findings import made

LEGAL = {
    ("proposed", "rebuilt"),
    ("proposed", "disputed"),
    ("rebuilt", "confirmed"),
    ("rebuilt", "departure"),
    ("rebuilt", "refused"),
    ("disputed", "refused"),
}
"""Written down a second time, from the issue's text."""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace.open(tmp_path_factory.mktemp("states") / "home")


def test_the_only_ways_are_the_stated_ones() -> None:
    assert {(now.value, after.value) for now, follow in NEXT.items() for after in follow} == LEGAL
    assert {state for state in State if state.final} == {State.CONFIRMED, State.DEPARTURE, State.REFUSED}


@given(st.lists(st.sampled_from(list(State)), min_size=1, max_size=8))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_tried_in_whatever_order_only_legal_steps_are_taken(
    workspace: Workspace, tried: list[State]
) -> None:
    store = Findings(workspace)
    finding = made.propose(workspace).finding.id
    taken = [State.PROPOSED]
    for state in tried:
        consume = (lambda: None) if state in SIGNED else None
        if (taken[-1].value, state.value) in LEGAL:
            store.step(finding, state, "somebody", consume=consume)
            taken.append(state)
        else:
            with pytest.raises(UsageError, match=f"is {taken[-1]}: it cannot become {state}"):
                store.step(finding, state, "somebody", consume=consume)
    assert [event.state for event in store.events(finding)] == taken
    assert store.get(finding).state is taken[-1]


@pytest.mark.parametrize("state", sorted(SIGNED))
def test_nothing_but_a_used_up_approval_confirms(workspace: Workspace, state: State) -> None:
    store = Findings(workspace)
    finding = made.propose(workspace).finding.id
    store.step(finding, State.REBUILT, "verifier")
    with pytest.raises(UsageError, match="only a reviewer's signature"):
        store.step(finding, state, "somebody")

    def refused() -> None:
        raise UsageError("the approval does not hold")

    with pytest.raises(UsageError, match="does not hold"):
        store.step(finding, state, "somebody", consume=refused)
    assert store.get(finding).state is State.REBUILT
    assert not [e for e in workspace.audit.entries() if (e.event, e.subject) == (f"finding_{state}", finding)]


def test_each_step_is_in_the_audit_log_with_the_digest_of_what_was_proposed(workspace: Workspace) -> None:
    store = Findings(workspace)
    stored = made.propose(workspace)
    store.step(stored.finding.id, State.DISPUTED, "verifier", reason="another rank", verification="v")
    store.step(stored.finding.id, State.REFUSED, "reviewer")
    noted = [entry for entry in workspace.audit.entries() if entry.subject == stored.finding.id]
    assert [entry.event for entry in noted] == ["finding_proposed", "finding_disputed", "finding_refused"]
    assert noted[0].detail["sha256"] == stored.finding.sha256
    assert workspace.audit.verify() is None


@pytest.mark.parametrize(
    "statement",
    [
        "update findings set proposer = 'x'",
        "delete from findings",
        "insert or replace into findings select * from findings limit 1",
        "update finding_events set state = 'confirmed'",
        "delete from finding_events",
        "insert or replace into finding_events select * from finding_events limit 1",
        "delete from verifications",
    ],
)
def test_rows_are_only_added(workspace: Workspace, statement: str) -> None:
    finding = made.propose(workspace).finding.id
    made.taken(workspace, finding)
    with pytest.raises(sqlite3.IntegrityError, match="never"), workspace.write_tx() as database:
        database.execute(statement)


def test_a_finding_whose_row_was_edited_all_the_same_is_not_read(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path / "home")
    finding = made.propose(workspace).finding.id
    with workspace.write_tx() as database:
        database.execute("drop trigger findings_no_update")
        database.execute("update findings set finding = replace(finding, 'local norm', 'global norm')")
    with pytest.raises(WorkspaceError, match="not the finding that was stored"):
        Findings(workspace).get(finding)
    assert any(finding in problem for problem in workspace.verify())


def test_findings_are_listed_by_state_newest_first_and_in_pages(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path / "home")
    store = Findings(workspace)
    ids = [made.propose(workspace).finding.id for _ in range(5)]
    store.step(ids[1], State.REBUILT, "verifier")
    assert [finding.id for finding in store.page()] == ids[::-1]
    assert [finding.id for finding in store.page(State.REBUILT)] == [ids[1]]
    assert [finding.id for finding in store.page(limit=2, after=ids[3])] == [ids[2], ids[1]]
    assert (store.count(), store.count("rebuilt")) == (5, 1)


def test_an_unknown_finding_is_named_with_its_neighbours(workspace: Workspace) -> None:
    made.propose(workspace)
    with pytest.raises(UsageError, match="no finding 'finding-9999'") as raised:
        Findings(workspace).get("finding-9999")
    assert "the nearest are finding-" in raised.value.next_step
