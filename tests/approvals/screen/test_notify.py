"""The reviewer's command: an argument list, a bounded line, no shell, and never in the way."""

import asyncio
from pathlib import Path

import pytest

from approvals.screen import notify
from approvals.screen.notify import notice, tell
from approvals.ticket import Ticket
from tests.approvals.reviewers import Queue, request
from tests.approvals.screen.playing import noticed, other, play, screen_text
from tests.plumbline_mcp.handmade_verdicts import HOSTILE


@pytest.fixture
def ticket(queue: Queue) -> Ticket:
    return queue.approvals.request(request())


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_the_line_is_visible_and_bounded(queue: Queue, text: str) -> None:
    line = notice([queue.approvals.request(request(title=(text * 50)[:200]))] * 3)
    assert line.startswith("waits for a signature (and 2 more): A-")
    assert line.isprintable()
    assert len(line) < 300


def test_it_is_the_last_argument(ticket: Ticket, tmp_path: Path) -> None:
    said = asyncio.run(
        tell(["/bin/sh", "-c", f'printf "%s" "$2" > {tmp_path}/told', "name", "first"], [ticket])
    )
    assert (said, (tmp_path / "told").read_text()) == ("", notice([ticket]))


def test_what_goes_wrong_is_a_sentence(ticket: Ticket, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "cannot be started: No such file" in asyncio.run(tell(["/nonexistent"], [ticket]))
    assert asyncio.run(tell(["/bin/false"], [ticket])) == "/bin/false ended with code 1"
    monkeypatch.setattr(notify, "TIMEOUT_S", 0.2)
    assert "was stopped" in asyncio.run(tell(["/bin/sh", "-c", "exec sleep 60"], [ticket]))


def test_only_new_requests_are_told(example: Queue, tmp_path: Path) -> None:
    told = tmp_path / "told"
    command = ("/bin/sh", "-c", f'echo "$1" >> {told}', "name")
    example.approvals.request(request(title="old"))

    async def steps(pilot: object) -> None:
        for content in (1, 2):
            other(example).approvals.request(request(title=f"new {content}", content=content))
            await noticed(pilot)  # type: ignore[arg-type]
            await pilot.app.workers.wait_for_complete()  # type: ignore[attr-defined]
        assert "Enter open" in screen_text(pilot)  # type: ignore[arg-type]

    play(example, steps, notify=command)  # type: ignore[arg-type]
    assert [line.rpartition(": ")[2] for line in told.read_text().splitlines()] == ["new 1", "new 2"]
