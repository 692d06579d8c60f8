"""Checks that run: one whose client gave up waiting goes on, and the same call made again waits for it.

Many clients drop a call after 60 s, and a connection that breaks loses its answer; neither may lose a check
of a large checkpoint. The verdict is stored when the check ends, whoever waits.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from checks.check import Progress
from checks.verdict import Verdict


@dataclass
class Running:
    """One check in progress and whoever listens to it."""

    name: str
    task: "asyncio.Task[Verdict]"
    started: float = field(default_factory=time.monotonic)


class RunningChecks:
    """The checks of one server that run now, by what was asked."""

    def __init__(self) -> None:
        self._running: dict[str, Running] = {}
        self._listeners: dict[str, list[Progress]] = {}

    def names(self) -> list[str]:
        """What runs now and for how long."""
        return [f"{one.name} ({time.monotonic() - one.started:.0f} s)" for one in self._running.values()]

    async def wait(
        self, name: str, key: str, start: Callable[[Progress], Awaitable[Verdict]], progress: Progress
    ) -> Verdict:
        """Start a check, or join the one that was asked with the same ``key``; raises what it raises."""
        listeners = self._listeners.setdefault(key, [])
        listeners.append(progress)
        try:
            if key not in self._running:
                self._running[key] = self._started(name, key, start)
            return await asyncio.shield(self._running[key].task)
        finally:
            listeners.remove(progress)

    def _started(self, name: str, key: str, start: Callable[[Progress], Awaitable[Verdict]]) -> Running:
        def tell(done: float, total: float | None, message: str) -> None:
            for listener in list(self._listeners.get(key, ())):
                listener(done, total, message)

        async def run() -> Verdict:
            return await start(tell)

        def ended(task: "asyncio.Task[Verdict]") -> None:
            self._running.pop(key, None)
            self._listeners.pop(key, None)
            if not task.cancelled():
                task.exception()  # looked at: nobody may be left who awaits it

        task = asyncio.get_running_loop().create_task(run())
        task.add_done_callback(ended)
        return Running(name, task)
