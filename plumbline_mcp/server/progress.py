"""Carries a check's progress to the client as notifications, and shows that a silent check still runs."""

import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.server.mcpserver import Context

from approvals.errors import Refused
from approvals.visible import visible_line
from checks.check import Progress
from checks.errors import CheckError
from plumbline_mcp.errors import PlumblineError

HEARTBEAT_S = 10.0
"""After so long without news the client hears that the work goes on: many clients give up after 60 s."""
_WAITING = 100


@asynccontextmanager
async def reported(ctx: Context[Any, Any]) -> AsyncIterator[Progress]:
    """A progress callable whose news reach the client while the body runs."""
    send, receive = anyio.create_memory_object_stream[str](_WAITING)

    def progress(done: float, total: float | None, message: str) -> None:
        with suppress(anyio.WouldBlock):  # a client that reads slower than the check works misses some news
            send.send_nowait(_text(done, total, message))

    failure: Exception | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(_forward, ctx, receive)
        try:
            yield progress
        except (CheckError, PlumblineError, Refused) as error:
            failure = error  # raised below: the task group would wrap it
        finally:
            group.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _text(done: float, total: float | None, message: str) -> str:
    counted = f"{done:g}" if total is None else f"{done:g}/{total:g}"
    return visible_line(f"{message} {counted}", 200)


async def _forward(ctx: Context[Any, Any], news: MemoryObjectReceiveStream[str]) -> None:
    """Counts the news: the protocol wants a value that only grows, and each phase of a check begins at 0."""
    started, text = time.monotonic(), "started"
    for number in range(1, 10**9):
        with anyio.move_on_after(HEARTBEAT_S) as waiting:
            text = await news.receive()
        late = f" ({math.floor(time.monotonic() - started)} s)" if waiting.cancelled_caught else ""
        await ctx.report_progress(number, None, text + late)
