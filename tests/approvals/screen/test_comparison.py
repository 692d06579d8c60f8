"""What a request changes, and against which version."""

import random

import pytest

from approvals.screen.comparison import MAX_COMPARED, changed_blocks, compare, last_approved
from approvals.screen.document import request_lines
from approvals.screen.rows import Kind
from approvals.statement import Action
from approvals.trust import TrustRoots
from tests.approvals.reviewers import Queue, Reviewer, new_queue, request, trusting


def patched(old: list[str], new: list[str]) -> list[str]:
    """The new lines, from the old ones and the blocks."""
    made, done = [], 0
    for a, b, c, d in changed_blocks(old, new):
        made += old[done:a] + new[c:d]
        done = b
    return made + old[done:]


@pytest.mark.parametrize("seed", range(200))
def test_the_blocks_turn_the_old_lines_into_the_new(seed: int) -> None:
    chance = random.Random(seed)
    old = [chance.choice("abcd") for _ in range(chance.randrange(12))]
    new = [line for line in old if chance.random() < 0.7]
    for _ in range(chance.randrange(3)):
        new.insert(chance.randrange(len(new) + 1), chance.choice("abcde"))
    assert patched(old, new) == new
    assert all(a < b or c < d for a, b, c, d in changed_blocks(old, new))
    assert (changed_blocks(old, new) == []) == (old == new)


def test_very_long_requests_are_shown_as_all_old_all_new() -> None:
    old = ["same", *(f"{n}" for n in range(MAX_COMPARED + 1)), "end"]
    new = ["same", *(f"{n if n % 2 else -n - 1}" for n in range(MAX_COMPARED + 1)), "end"]
    assert changed_blocks(old, new) == [(1, MAX_COMPARED + 2, 1, MAX_COMPARED + 2)]
    assert len(changed_blocks(old[:-2], new[:-2])) == 1000  # one fewer is matched
    assert patched(old, new) == new


def test_the_first_request_is_new_line_by_line(queue: Queue) -> None:
    found = compare(queue.approvals, queue.approvals.request(request()))
    assert found.approved is None
    assert [row.text for row in found.rows] == [f"+ {line}" for line in request_lines(request())]
    assert found.sha256 == request().sha256
    assert "nothing like it was approved before" in found.summary


def test_a_change_is_shown_with_the_lines_around_it(queue: Queue, ada: Reviewer) -> None:
    before = queue.approve(queue.approvals.request(request(content={"a": 1, "lr": 0.1, "z": 3})), ada)
    found = compare(queue.approvals, queue.approvals.request(request(content={"a": 1, "lr": 0.2, "z": 3})))
    assert found.approved is not None
    assert (found.approved.ticket.id, found.approved.signers) == (before.id, ("ada",))
    changes = [row.text for row in found.rows if row.kind in (Kind.ADDED, Kind.REMOVED)]
    assert changes == ['-     "lr": 0.1,', '+     "lr": 0.2,']
    assert found.changed == 2
    assert any("equal lines" in row.text for row in found.rows)
    equal = sum(row.text.startswith("  ") and "equal lines" not in row.text for row in found.rows)
    hidden = sum(int(row.text.split()[1]) for row in found.rows if "equal lines" in row.text)
    assert equal + hidden + 1 == len(found.new)


def test_other_subjects_and_cost_are_differences_too(queue: Queue, ada: Reviewer) -> None:
    queue.approve(queue.approvals.request(request()), ada)
    queue.approvals.consume(queue.approvals.tickets()[0].id, "c3" * 32)
    ticket = queue.approvals.request(
        request(content={"n": 2}, subjects={"pack": "b2" * 32}, node_millihours=9)
    )
    texts = [row.text for row in compare(queue.approvals, ticket).rows]
    assert '-   "node_millihours": 1500,' in texts
    assert '+   "node_millihours": 9,' in texts
    assert f'-     "model/weights.safetensors": "{"a1" * 32}",' in texts


def test_a_request_of_another_kind_is_not_compared_with(queue: Queue, ada: Reviewer) -> None:
    queue.approve(queue.approvals.request(request()), ada)
    for changed in (
        {"action": Action.TASK},
        {"title": "another", "subjects": {"model/weights.safetensors": "ee" * 32}},
    ):
        ticket = queue.approvals.request(request(content=str(changed), **changed))
        assert last_approved(queue.approvals, ticket) is None


def test_later_ones_and_undecided_and_rejected_ones_do_not_count(queue: Queue, ada: Reviewer) -> None:
    rejected = queue.approvals.request(request(content=0))
    queue.approve(rejected, ada, decision="reject")
    approved_then_rejected = queue.approvals.request(request(content=1))
    queue.approve(approved_then_rejected, ada)
    queue.approve(approved_then_rejected, ada, decision="reject")
    queue.approvals.request(request(content=2))
    ticket = queue.approvals.request(request(content=3))
    queue.approve(queue.approvals.request(request(content=4)), ada)
    assert last_approved(queue.approvals, ticket) is None


def test_a_version_that_nobody_signed_is_not_believed(queue: Queue, ada: Reviewer) -> None:
    """Whoever writes the database could otherwise hide what is new behind a version of their own."""
    good = queue.approve(queue.approvals.request(request(content="good")), ada)
    forged = queue.approvals.request(request(content="evil"))
    queue.connection.execute("update requests set state = 'approved' where id = ?", (forged.id,))
    stolen = queue.connection.execute("select * from decisions").fetchone()
    queue.connection.execute(
        "insert into decisions (ticket, signer, decision, statement, sha256, signature)"
        " values (?, ?, ?, ?, ?, ?)",
        (forged.id, *stolen[2:5], "f" * 64, stolen[6]),
    )
    ticket = queue.approvals.request(request(content="evil, again"))
    found = last_approved(queue.approvals, ticket)
    assert found is not None
    assert found.ticket.id == good.id


def test_a_row_that_was_changed_after_it_was_signed_is_not_believed(queue: Queue, ada: Reviewer) -> None:
    approved = queue.approve(queue.approvals.request(request(content="good")), ada)
    queue.connection.execute("drop trigger requests_no_update")
    queue.connection.execute(
        "update requests set request = replace(request, '\"good\"', '\"evil\"') where id = ?", (approved.id,)
    )
    ticket = queue.approvals.request(request(content="evil, again"))
    assert last_approved(queue.approvals, ticket) is None


def test_a_signature_of_a_revoked_key_is_not_believed(
    tmp_path_factory: pytest.TempPathFactory, ada: Reviewer, grace: Reviewer
) -> None:
    queue = new_queue(trusting(tmp_path_factory.mktemp("trust"), "solo", ada, grace))
    queue.approve(queue.approvals.request(request(content=1)), ada)
    ticket = queue.approvals.request(request(content=2))
    assert last_approved(queue.approvals, ticket) is not None
    queue.trust.revoke("ada")
    assert last_approved(queue.approvals, ticket) is None


def test_where_two_have_to_sign_one_is_not_enough(team: TrustRoots, ada: Reviewer, grace: Reviewer) -> None:
    queue = new_queue(team)
    first = queue.approvals.request(request(action=Action.CHECK, content=1, node_millihours=0))
    second = queue.approvals.request(request(action=Action.CHECK, content=2, node_millihours=0))
    queue.approve(first, ada)
    queue.connection.execute("update requests set state = 'approved'")
    assert last_approved(queue.approvals, second) is None
    queue.connection.execute("update requests set state = 'pending'")
    queue.approve(first, grace)
    found = last_approved(queue.approvals, second)
    assert found is not None
    assert found.signers == ("ada", "grace")
