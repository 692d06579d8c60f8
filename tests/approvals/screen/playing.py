"""Plays the screen as a person at a keyboard does, and reads what stands on it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from textual.pilot import Pilot

from approvals.screen.app import QueueApp
from tests.approvals.reviewers import Queue, connect

Steps = Callable[[Pilot[None]], Awaitable[None]]


def play(queue: Queue, steps: Steps, size: tuple[int, int] = (80, 24), **options: Any) -> QueueApp:
    """Run the screen on this queue and take the steps; what makes it fail is raised."""
    app = QueueApp(queue.approvals, clock=queue.clock, **options)

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await steps(pilot)

    asyncio.run(run())
    return app


def screen_text(pilot: Pilot[None]) -> str:
    """What stands on the screen, line by line, without colour."""
    strips = pilot.app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips) + "\n"


async def press(pilot: Pilot[None], *keys: str) -> str:
    """Press the keys one after the other; what then stands on the screen."""
    for key in keys:
        await pilot.press(key)
        await pilot.pause()
    return screen_text(pilot)


async def type_in(pilot: Pilot[None], text: str) -> str:
    """Type a text."""
    return await press(pilot, *({" ": "space", ",": "comma", "-": "minus"}.get(c, c) for c in text))


def other(queue: Queue) -> Queue:
    """The same queue as another process has it open."""
    (path,) = (row[2] for row in queue.connection.execute("pragma database_list") if row[1] == "main")
    return Queue(connect(path), queue.trust, queue.clock)


async def noticed(pilot: Pilot[None]) -> str:
    """Let the screen notice what another process wrote; what then stands on it."""
    pilot.app.queue.poll()  # type: ignore[attr-defined]
    await pilot.pause()
    return screen_text(pilot)


async def read_diff(pilot: Pilot[None]) -> str:
    """Open the selected request, and its diff, and go to its end."""
    return await press(pilot, "enter", "tab", "G")
