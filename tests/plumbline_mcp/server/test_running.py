"""Progress reaches the client; a check whose client gives up goes on, and the same call waits for it."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from checks.check import Progress
from checks.errors import BadInput
from checks.verdict import Verdict
from plumbline_mcp.server import progress as progress_module
from plumbline_mcp.server.progress import reported
from plumbline_mcp.server.running import RunningChecks
from tests.plumbline_mcp.stored_examples import verdict

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Work:
    """A check that waits until it may go on."""

    def __init__(self) -> None:
        self.go, self.begun, self.tell = asyncio.Event(), 0, None

    async def run(self, tell: Progress) -> Verdict:
        self.begun, self.tell = self.begun + 1, tell  # type: ignore[assignment]
        await self.go.wait()
        return verdict()

    def start(self, tell: Progress) -> Awaitable[Verdict]:
        return self.run(tell)


def news(heard: list[Any]) -> Progress:
    def hear(done: float, total: float | None, message: str) -> None:
        heard.append((done, total, message))

    return hear


async def test_a_check_goes_on_when_its_client_gives_up_and_the_same_call_joins_it() -> None:
    running, work, heard = RunningChecks(), Work(), []
    first = asyncio.create_task(running.wait("check_data", "key", work.start, news([])))
    await asyncio.sleep(0.01)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert running.names() == ["check_data (0 s)"]
    second = asyncio.create_task(running.wait("check_data", "key", work.start, news(heard)))
    await asyncio.sleep(0.01)
    assert work.tell is not None
    work.tell(1, 2, "half")
    work.go.set()
    assert await second == verdict()
    assert heard == [(1, 2, "half")]
    assert work.begun == 1
    await asyncio.sleep(0.01)
    assert running.names() == []


async def test_other_arguments_and_a_later_call_are_checks_of_their_own() -> None:
    running, work = RunningChecks(), Work()
    work.go.set()
    for key in ("a", "b", "a"):
        assert await running.wait("check_data", key, work.start, news([])) == verdict()
        await asyncio.sleep(0.01)
    assert work.begun == 3


async def test_a_failure_reaches_whoever_waits_and_is_not_kept() -> None:
    running = RunningChecks()

    async def fail(tell: Progress) -> Verdict:
        raise BadInput("no such file")

    for _ in range(2):
        with pytest.raises(BadInput, match="no such file"):
            await running.wait("check_data", "key", fail, news([]))
        await asyncio.sleep(0.01)
    assert running.names() == []


class Client:
    """Records what is reported."""

    def __init__(self) -> None:
        self.heard: list[tuple[float, float | None, str | None]] = []

    async def report_progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.heard.append((progress, total, message))


async def test_progress_grows_over_phases_and_is_escaped() -> None:
    client: Any = Client()
    async with reported(client) as tell:
        for phase in ("reading", "judging \x1b[2J"):
            for done in (0, 1):
                tell(done, 2, phase)
                await asyncio.sleep(0.01)
    assert [number for number, _, _ in client.heard] == [1, 2, 3, 4]
    assert client.heard[1][2] == "reading 1/2"
    assert client.heard[3][2] == "judging \\x1b[2J 1/2"


async def test_a_silent_check_says_that_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "HEARTBEAT_S", 0.02)
    client: Any = Client()
    async with reported(client) as tell:
        tell(5, None, "hashing")
        await asyncio.sleep(0.1)
    assert [message for _, _, message in client.heard][:2] == ["hashing 5", "hashing 5 (0 s)"]


async def test_a_foreseen_failure_passes_through_unwrapped() -> None:
    client: Any = Client()
    with pytest.raises(BadInput, match="exactly this"):
        async with reported(client):
            raise BadInput("exactly this")
