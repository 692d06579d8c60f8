"""The screen in the states that matter, at two sizes, as text: its snapshots lie in `snapshots/`."""

import itertools
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

from textual.pilot import Pilot

from approvals.statement import Action
from approvals.trust import TrustRoots
from tests.approvals.reviewers import START, Queue, new_queue, request
from tests.approvals.screen.playing import play, press, read_diff, screen_text, type_in
from tests.plumbline_mcp.handmade_verdicts import HOSTILE

FOLDER = Path(__file__).parent / "snapshots"
SIZES = ((80, 24), (120, 40))
JOB = "#!/bin/bash\nset -e\nsrun --nodes=8 train.sh --lr 0.0002\n"


class _Frozen(datetime):
    @classmethod
    def now(cls, tz: object = None) -> "_Frozen":
        return cls(2027, 1, 15, 8, 0, 0, tzinfo=UTC)


def scenes(size: tuple[int, int]) -> dict[str, str]:
    """Each scene's name and text."""
    numbers = itertools.count(1)
    with (
        tempfile.TemporaryDirectory() as folder,
        patch("secrets.token_hex", lambda length: f"{next(numbers):0{2 * length}x}"),
        patch("approvals.audit.datetime", _Frozen),
    ):
        return _played(_filled(TrustRoots.example(Path(folder))), size)


def _filled(trust: TrustRoots) -> Queue:
    """A plan that changes an approved one, a finding whose texts deceive, and what is over."""
    queue = new_queue(trust)
    hostile = "".join(HOSTILE.values())
    asked = [
        request(title="train on 4 nodes", content={"job.sh": JOB.replace("8", "4"), "seed": 1}),
        request(title="too long", content={"steps": 10**6}),
        request(title="train on 8 nodes", content={"job.sh": JOB, "seed": 1}, node_millihours=3000),
        request(action=Action.FINDING, title=hostile[:200], content={hostile: hostile}, evidence=(hostile,)),
        request(title="taken back", content=0),
    ]
    tickets = []
    for each in asked:
        queue.clock.now += 60
        tickets.append(queue.approvals.request(each))
    queue.approvals.decide(tickets[0].id, "approve", "example")
    queue.approvals.decide(tickets[1].id, "reject", "example", "1000 steps are enough")
    queue.approvals.withdraw(tickets[4].id, "agent")
    queue.clock.now = START + 3600
    return queue


def _played(queue: Queue, size: tuple[int, int]) -> dict[str, str]:
    found: dict[str, str] = {}

    async def steps(pilot: Pilot[None]) -> None:
        found["list"] = screen_text(pilot)
        found["hostile-summary"] = await press(pilot, "enter")
        found["hostile-raw"] = await press(pilot, "left")
        await press(pilot, "escape", "right", "down")
        found["summary"] = await press(pilot, "enter")
        found["diff"] = await read_diff(pilot)
        found["statement"] = await press(pilot, "tab")
        await press(pilot, "a")
        found["approve"] = await type_in(pilot, "as the task says")
        await press(pilot, "escape", "x")
        found["reject"] = await press(pilot, "ctrl+y")
        found["no-decision"] = await press(pilot, "escape")
        await press(pilot, "2", "enter", "tab", "tab")
        found["history"] = screen_text(pilot)
        found["expired"] = await press(pilot, "3")
        found["help"] = await press(pilot, "question_mark")

    play(queue, steps, size)
    return found


def path_of(name: str, size: tuple[int, int]) -> Path:
    """Where a snapshot lies."""
    return FOLDER / f"{name}-{size[0]}x{size[1]}.txt"
