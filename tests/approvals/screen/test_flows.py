"""The screen played with keys alone, at 80x24, on a real queue with the real ssh-keygen."""

import re

import pytest
from textual.pilot import Pilot

from approvals.screen.queue_screen import OFF, READ
from approvals.screen.reviews import REVIEWED
from approvals.statement import Action, Decision
from approvals.ticket import Ticket, TicketState
from tests.approvals.reviewers import Queue, Reviewer, request
from tests.approvals.screen.playing import noticed, other, play, press, read_diff, screen_text, type_in

LONG = {"jobs": [{"name": f"job {n}", "steps": n} for n in range(60)]}


def decisions(queue: Queue) -> int:
    return int(queue.connection.execute("select count(*) from decisions").fetchone()[0])


def ask(queue: Queue, **changed: object) -> Ticket:
    queue.clock.now += 1  # the list is in the order of asking
    return queue.approvals.request(request(**changed))


# --- deciding ---------------------------------------------------------------------------------------------


def test_read_to_its_end_and_signed_it_is_approved(example: Queue) -> None:
    ticket = ask(example, content=LONG)

    async def steps(pilot: Pilot[None]) -> None:
        assert READ in await read_diff(pilot)
        shown = await press(pilot, "a")
        assert f"APPROVE {ticket.id}?" in shown
        assert "example signs these" in shown
        assert f"signed: approve {ticket.id}, now approved" in await press(pilot, "ctrl+y")

    app = play(example, steps)
    held = example.approvals.verify(ticket.id)
    assert (held.state, held.decisions[0].signer) == ("approved", "example")
    assert app.farewell() == f"signed: {ticket.id}, approved\n"


def test_exactly_the_bytes_that_are_shown_are_signed(example: Queue) -> None:
    ticket, seen = ask(example), ""

    async def steps(pilot: Pilot[None]) -> None:
        nonlocal seen
        await read_diff(pilot)
        await press(pilot, "a")
        await type_in(pilot, "fits the plan")
        seen = shown_bytes(pilot)
        await press(pilot, "ctrl+y")

    play(example, steps, size=(120, 40))
    (decided,) = example.approvals.ticket(ticket.id).decisions
    assert decided.reason == "fits the plan"
    assert decided.statement in seen
    assert decided.sha256 in seen


def shown_bytes(pilot: Pilot[None]) -> str:
    """The statement on the screen, its cut lines put together again."""
    text = screen_text(pilot)
    lines = [line.strip(" │▁▂▃▄▅▆▇█") for line in text[text.index("signs these") :].splitlines()[1:]]
    return "".join(line.removeprefix("↪ ") for line in lines)


def test_enter_approves_nothing_wherever_it_is_pressed(example: Queue) -> None:
    ask(example)

    async def steps(pilot: Pilot[None]) -> None:
        await press(pilot, *["enter"] * 5)
        await read_diff(pilot)
        await press(pilot, *["enter"] * 5)
        shown = await press(pilot, "a", "enter", "enter", "tab", "enter", "tab", "enter", "space", "enter")
        assert "Ctrl+Y sign these bytes" in shown

    app = play(example, steps)
    assert decisions(example) == 0
    assert app.farewell() == "NO DECISION\n"


@pytest.mark.parametrize("view", range(6))
def test_approve_is_off_until_the_diff_was_shown_to_its_end(example: Queue, view: int) -> None:
    ask(example, content=LONG)

    async def steps(pilot: Pilot[None]) -> None:
        assert "open a request first" in await press(pilot, "a")
        await press(pilot, "enter", *["tab"] * view)
        assert f"! {OFF}" in await press(pilot, "a")
        if view != 1:  # the end of another view is not the diff's
            assert f"! {OFF}" in await press(pilot, "G", "a")
        await press(pilot, *["tab"] * (7 - view))
        assert f"! {OFF}" in await press(pilot, "space", "a")
        assert READ in await press(pilot, *["space"] * 20)
        assert "APPROVE A-" in await press(pilot, "a")

    play(example, steps)


def test_what_was_read_of_one_request_does_not_count_for_another(example: Queue) -> None:
    ask(example, content=LONG)
    ask(example, content=[*LONG["jobs"], 1], title="another")

    async def steps(pilot: Pilot[None]) -> None:
        assert READ in await read_diff(pilot)
        shown = await press(pilot, "escape", "down", "enter")
        assert "[Diff]" in shown
        assert OFF in shown
        assert f"! {OFF}" in await press(pilot, "a")
        assert READ in await press(pilot, "escape", "up", "enter")

    play(example, steps)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_a_diff_that_fits_is_at_its_end_once_it_is_shown(example: Queue, size: tuple[int, int]) -> None:
    ask(example, content=1, subjects={}, uses=())

    async def steps(pilot: Pilot[None]) -> None:
        assert READ not in screen_text(pilot)
        shown = await press(pilot, "enter", "tab")
        assert READ in shown

    play(example, steps, size)


def test_a_rejection_needs_a_reason(example: Queue) -> None:
    ticket = ask(example)

    async def steps(pilot: Pilot[None]) -> None:
        assert "needs a reason" not in await press(pilot, "enter", "x")
        shown = await press(pilot, "ctrl+y")
        assert "! nothing was signed" in shown
        assert "--reason" not in shown
        assert "a rejection needs a reason" in shown
        await type_in(pilot, "   ")
        assert "a rejection needs a reason" in await press(pilot, "ctrl+y")
        await type_in(pilot, "use 8 nodes")
        assert f"signed: reject {ticket.id}, now rejected" in await press(pilot, "ctrl+y")

    play(example, steps)
    (decided,) = example.approvals.ticket(ticket.id).decisions
    assert (decided.decision, decided.reason.strip()) == (Decision.REJECT, "use 8 nodes")


@pytest.mark.parametrize("action", [Action.FINDING, Action.DEPARTURE])
def test_to_accept_a_finding_needs_a_reason(example: Queue, action: Action) -> None:
    ticket = ask(example, action=action)

    async def steps(pilot: Pilot[None]) -> None:
        await read_diff(pilot)
        assert f"to approve a {action.value} needs a reason" in await press(pilot, "a", "ctrl+y")
        assert decisions(example) == 0
        await type_in(pilot, "the records show it")
        assert "now approved" in await press(pilot, "ctrl+y")

    play(example, steps)
    assert example.approvals.verify(ticket.id).reason == "the records show it"


def test_what_was_approved_can_be_rejected_and_not_approved_twice(example: Queue) -> None:
    ticket = ask(example)

    async def steps(pilot: Pilot[None]) -> None:
        await read_diff(pilot)
        await press(pilot, "a", "ctrl+y", "2", "enter")
        assert f"! {ticket.id} is approved already" in await press(pilot, "a")
        await press(pilot, "x")
        await type_in(pilot, "no")
        assert "now rejected" in await press(pilot, "ctrl+y")
        assert f"! {ticket.id} is rejected already" in await press(pilot, "x")

    play(example, steps)


def test_with_two_reviewers_nobody_is_preselected(real: Queue) -> None:
    ticket = ask(real)

    async def steps(pilot: Pilot[None]) -> None:
        await read_diff(pilot)
        shown = await press(pilot, "a")
        assert "who signs: ada, grace" in shown
        assert "it is not said who signs" in await press(pilot, "ctrl+y")
        await type_in(pilot, "mallory")
        assert "it is not said who signs" in await press(pilot, "ctrl+y")
        await press(pilot, *["backspace"] * 7)
        assert "grace signs these" in await type_in(pilot, "grace")

    play(real, steps)
    assert real.approvals.ticket(ticket.id).decisions == ()


def test_where_the_passphrase_cannot_be_asked_nothing_is_signed(real: Queue) -> None:
    ask(real)

    async def steps(pilot: Pilot[None]) -> None:
        await read_diff(pilot)
        await press(pilot, "a")
        await type_in(pilot, "ada")
        assert "there is no terminal on which the passphrase could be asked" in await press(pilot, "ctrl+y")
        assert "NO DECISION on" in await press(pilot, "escape")

    app = play(real, steps)
    assert (decisions(real), app.farewell()) == (0, "NO DECISION\n")


# --- what changes meanwhile -------------------------------------------------------------------------------


def withdraw(queue: Queue, ticket: Ticket) -> None:
    queue.approvals.withdraw(ticket.id, "agent")


def approve(queue: Queue, ticket: Ticket) -> None:
    queue.approvals.decide(ticket.id, "approve", "example")


def change_row(queue: Queue, ticket: Ticket) -> None:
    queue.connection.execute("drop trigger requests_no_update")
    changed = "update requests set request = replace(request, '1500', '9500') where id = ?"
    queue.connection.execute(changed, (ticket.id,))


@pytest.mark.parametrize("change", [withdraw, approve, change_row])
@pytest.mark.parametrize("seen_first", [True, False], ids=["noticed", "before it is noticed"])
def test_a_change_while_it_is_open_closes_the_dialog(
    example: Queue, change: object, seen_first: bool
) -> None:
    ticket = ask(example)

    async def steps(pilot: Pilot[None]) -> None:
        await read_diff(pilot)
        assert "APPROVE A-" in await press(pilot, "a")
        change(other(example), ticket)
        shown = await (noticed(pilot) if seen_first else press(pilot, "ctrl+y"))
        assert f"NO DECISION on {ticket.id}. It changed while the dialog was open" in shown
        await press(pilot, "ctrl+y")

    before = 1 if change is approve else 0
    app = play(example, steps)
    assert (decisions(example), app.farewell()) == (before, "NO DECISION\n")


def test_what_changed_has_to_be_read_from_its_beginning(example: Queue) -> None:
    ticket = ask(example, content=LONG)

    async def steps(pilot: Pilot[None]) -> None:
        assert READ in await read_diff(pilot)
        change_row(other(example), ticket)
        shown = await noticed(pilot)
        assert OFF in shown
        assert '+   "action": "plan",' in shown
        assert f"! {OFF}" in await press(pilot, "a")

    play(example, steps)


def test_another_request_leaves_the_dialog_open(example: Queue) -> None:
    ask(example)

    async def steps(pilot: Pilot[None]) -> None:
        await read_diff(pilot)
        await press(pilot, "a")
        ask(other(example), content="new")
        assert "APPROVE A-" in await noticed(pilot)
        assert "now approved" in await press(pilot, "ctrl+y")

    play(example, steps)


def test_a_row_that_was_changed_is_not_signed_even_when_it_is_shown(example: Queue) -> None:
    ticket = ask(example)
    change_row(example, ticket)

    async def steps(pilot: Pilot[None]) -> None:
        assert "9.5 node-hours" in await read_diff(pilot)
        assert "is not the one that was asked" in await press(pilot, "a")
        await press(pilot, "ctrl+y")

    play(example, steps)
    assert decisions(example) == 0


def test_the_list_is_live_and_the_cursor_stays(example: Queue) -> None:
    first = ask(example, title="first")

    async def steps(pilot: Pilot[None]) -> None:
        assert "[1 Waiting 1]" in screen_text(pilot)
        ask(other(example), action=Action.VERSION, title="second", node_millihours=0)
        shown = await noticed(pilot)
        assert "[1 Waiting 2]" in shown
        assert shown.index("second") < shown.index("first")  # by risk
        assert first.id in await press(pilot, "enter")
        assert "plan: first" in screen_text(pilot)

    play(example, steps)


def test_the_change_of_another_process_is_noticed_by_itself(example: Queue) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        ask(other(example), title="came by itself")
        await pilot.pause(1)
        assert "came by itself" in screen_text(pilot)

    play(example, steps)


def test_what_is_read_stays_on_the_screen_when_another_reviewer_decides_it(example: Queue) -> None:
    ticket = ask(example)
    ask(example, title="next", content=2)

    async def steps(pilot: Pilot[None]) -> None:
        await press(pilot, "enter", "tab")
        approve(other(example), ticket)
        shown = await noticed(pilot)
        assert "train the recipe" in shown
        assert "state    approved" in shown
        assert f"! {ticket.id} is approved already" in await press(pilot, "G", "a")

    play(example, steps)


def test_a_request_that_expires_leaves_the_waiting(example: Queue) -> None:
    ticket = ask(example)

    async def steps(pilot: Pilot[None]) -> None:
        await press(pilot, "enter")
        example.clock.now = ticket.expires - 1
        pilot.app.queue.tick()  # type: ignore[attr-defined]
        await pilot.pause()
        assert "1 s left" in screen_text(pilot)
        example.clock.now = ticket.expires
        pilot.app.queue.tick()  # type: ignore[attr-defined]
        await pilot.pause()
        shown = screen_text(pilot)
        assert "[1 Waiting 0] 2 Decided 0  3 Expired 1" in shown
        assert f"! {ticket.id} is expired already" in await press(pilot, "tab", "G", "a")
        assert "plan: train the recipe" in await press(pilot, "3")

    play(example, steps)


# --- lists, views, keys -----------------------------------------------------------------------------------


def test_the_three_lists(example: Queue) -> None:
    approve(example, ask(example, title="one", content=1))
    withdraw(example, ask(example, title="two", content=2))
    ask(example, title="three", content=3)

    async def steps(pilot: Pilot[None]) -> None:
        for key, there in (("1", "three"), ("2", "one"), ("3", "two")):
            shown = await press(pilot, key)
            assert [name for name in ("one", "two", "three") if f"plan: {name}" in shown] == [there]

    play(example, steps)


def test_words_filter_the_list_and_no_letter_of_them_decides(example: Queue) -> None:
    ask(example, title="axq 123", content=1)
    ask(example, title="other", content=2)

    async def steps(pilot: Pilot[None]) -> None:
        await press(pilot, "slash")
        shown = await type_in(pilot, "axq 1")
        assert "axq 123" in shown
        assert "other" not in shown
        assert "plan: axq 123" in await press(pilot, "enter", "down", "enter")
        assert "other" in await press(pilot, "escape")

    play(example, steps)


def test_what_is_pasted_is_made_visible(example: Queue) -> None:
    from textual import events

    ask(example)

    async def steps(pilot: Pilot[None]) -> None:
        await press(pilot, "enter", "x")
        pilot.app.screen.query_one("#reason").post_message(events.Paste("no \u202e\x9b2J"))
        await pilot.pause()
        assert r"no \u{202e}\x9b2J" in screen_text(pilot)
        await press(pilot, "ctrl+y")

    play(example, steps)
    assert example.approvals.tickets()[0].reason == r"no \u{202e}\x9b2J"


def test_every_view_tells_its_part(example: Queue) -> None:
    rejected = ask(example, evidence=("data-0001",))
    example.approvals.decide(rejected.id, "reject", "example", "too long")
    ticket = ask(example, evidence=("data-0001",))
    size = (120, 60)

    async def steps(pilot: Pilot[None]) -> None:
        shown = await press(pilot, "enter")
        assert "rejected before: 1" in shown
        for text in (ticket.id, ticket.request.sha256, ticket.request.content_sha256, "a1" * 32, "c3" * 32):
            assert text in shown or text in joined(shown)
        assert "an approval by example would sign these" in await press(pilot, "tab", "tab")
        assert "│ data-0001" in await press(pilot, "tab")
        shown = await press(pilot, "tab")
        assert f"│ {rejected.id} rejected too long" in shown
        assert "approval_requested" in shown
        assert '│   "title": "train the recipe",' in await press(pilot, "tab")
        assert "[Summary]" in await press(pilot, "right")
        assert "[Raw]" in await press(pilot, "left")

    play(example, steps, size)


def joined(shown: str) -> str:
    """The right side's lines, with what was cut put together again."""
    lines = [line.partition("│")[2].strip() for line in shown.splitlines()]
    return re.sub(r"\n↪ ", "", "\n".join(lines))


def test_the_keys_are_told(example: Queue) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        assert "a              approve; off until" in await press(pilot, "question_mark")
        assert "a              approve; off until" not in await press(pilot, "escape")

    play(example, steps)


def test_times_are_counted_and_hasty_decisions_shown(example: Queue) -> None:
    by_verb = ask(example, content="by verb")
    approve(example, by_verb)
    first, second = ask(example, content=1), ask(example, content=2)

    async def steps(pilot: Pilot[None]) -> None:
        assert "1 by verb, not timed" in screen_text(pilot)
        stopwatch, now = pilot.app.queue._stopwatch, [0.0]  # type: ignore[attr-defined]
        stopwatch._clock = lambda: now[0]
        stopwatch._since = 0.0
        await read_diff(pilot)
        now[0] = 90.0
        await press(pilot, "a", "ctrl+y", "1")
        now[0] = 1000.0  # in the list alone nothing is on the screen
        await press(pilot, "enter", "G")
        now[0] = 1003.0
        shown = await press(pilot, "a", "ctrl+y")
        told = shown.replace("\n↪ ", "")
        assert "median review 46 s · under 5 s: 1 · 1 by verb, not timed" in told

    play(example, steps)
    assert {first.id, second.id} == {
        subject
        for (subject,) in example.connection.execute("select subject from audit where event = ?", (REVIEWED,))
    }
    assert example.approvals.verify(first.id).state is TicketState.APPROVED


def test_the_screen_fails_with_what_went_wrong_and_no_decision(example: Queue) -> None:
    ask(example)

    async def steps(pilot: Pilot[None]) -> None:
        await read_diff(pilot)
        other(example).connection.execute("drop table uses")
        await press(pilot, "tab", "tab", "tab")

    with pytest.raises(Exception, match="no such table: uses"):
        play(example, steps)


def test_a_reviewer_without_a_key_here_is_told_how_to_sign_elsewhere(real: Queue, ada: Reviewer) -> None:
    ticket = ask(real)
    real.trust.folder.joinpath("keys").rename(real.trust.folder / "away")

    async def steps(pilot: Pilot[None]) -> None:
        await read_diff(pilot)
        shown = await press(pilot, "a", "ctrl+y")
        assert "no reviewer's key lies here" in shown
        assert f"plumbline queue approve {ticket.id} --as NAME --statement-to" in shown

    try:
        play(real, steps)
    finally:
        real.trust.folder.joinpath("away").rename(real.trust.folder / "keys")
    assert ada.name == "ada"
