"""An agent, its reviewer and its job, as real programs: what `tests.soak.agent_points` kills one at a time.

The agent is a client of ``plumbline serve``; the reviewer is ``plumbline queue approve``, which signs with
ssh-keygen; the job tells a listener of ours that it began and that it ended, so that what ran is counted by
the job itself and not by the workspace. Whatever is killed, the agent starts the server again where it died,
and makes its last call again.
"""

import json
import socketserver
import subprocess
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from plumbline_mcp.workspace import Workspace
from tests.plumbline_mcp.cli.launching import LAUNCHER, environment
from tests.plumbline_mcp.scan.planned_target import planned_target
from tests.soak.processes import Living, belonging, descendants, living
from tests.soak.programs import Place

STDIO, HTTP = "stdio", "http"
SUPERVISOR = "plumbline_mcp.engines.local.supervisor"
WORKER = "plumbline_mcp.worker"
ATTEMPTS = 3
UNSTARTED = "did not start"
CALL_S = 90.0
"""How long a call may take on a busy machine; one that takes longer hangs."""
DECIDED = {"approved", "used"}

JOB = """
import os, socket, time

def _mark(job, what):
    with socket.create_connection(("127.0.0.1", {port}), 30) as told:
        told.sendall(f"{{what}} {{job['run_id']}} {{os.getpid()}}\\n".encode())
        told.shutdown(socket.SHUT_WR)
        told.recv(1)

def train(job, recorder, progress):
    _mark(job, "began")
    time.sleep(0.4)
    _mark(job, "ended")
    return []
"""


class Marks:
    """What jobs said themselves: ``(began or ended, run, pid)`` in the order in which it came."""

    def __init__(self) -> None:
        marks: list[tuple[str, str, str]] = []

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                what, run, pid = self.rfile.readline().decode().split()
                marks.append((what, run, pid))
                self.wfile.write(b"k")

        self.told = marks
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.port = int(self._server.server_address[1])

    def close(self) -> None:
        """Listen no longer."""
        self._server.shutdown()
        self._server.server_close()

    def count(self) -> Counter[tuple[str, str]]:
        """How often each run began and ended."""
        return Counter((what, run) for what, run, _ in self.told)


@dataclass
class Told:
    """What the programs acknowledged: it has to be there ever after."""

    tickets: list[str] = field(default_factory=list)
    decisions: dict[str, str] = field(default_factory=dict)
    """The statement that was signed, by ticket."""
    runs: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Ticket and attempt, by run."""
    verdicts: dict[str, str] = field(default_factory=dict)
    """Outcome, by id."""


class Site:
    """One workspace with a signed task, and everybody who works in it."""

    def __init__(self, folder: Path, transport: str) -> None:
        self.place, self.transport, self.marks = Place(folder).make(), transport, Marks()
        planned = planned_target(folder)
        (planned.pack / "training.py").write_text(JOB.format(port=self.marks.port))
        planned.workspace.close()
        self.target, self.pack, self.python = planned.target, planned.pack, folder / "venv/bin/python"
        self.told = Told()
        self.task = ""
        self.round = 0
        self.server: subprocess.Popen[str] | None = None

    @property
    def variables(self) -> dict[str, str]:
        """The environment of every program."""
        return environment(self.place.home, TMPDIR=str(self.place.temporary))

    def workspace(self) -> Workspace:
        """To look; close it."""
        return Workspace.open(self.place.home, create=False)

    def processes(self) -> list[Living]:
        """Everything of this place but the server itself."""
        found = belonging(self.place.folder, set(), 0)
        return [one for one in found if not _is_server(one)]

    def servers(self) -> list[Living]:
        """The servers of this place."""
        return [one for one in belonging(self.place.folder, set(), 0) if _is_server(one)]

    def victims(self, kind: str) -> list[Living]:
        """The processes of that kind that live now."""
        if kind == "server":
            return self.servers()
        mark = str(self.place.folder)
        if kind == "check":
            return [one for one in belonging(self.place.folder, set(), 0) if WORKER in one.command]
        supervisors = [one for one in _all(mark) if SUPERVISOR in one.command]
        if kind == "supervisor":
            return supervisors
        return [one for known in supervisors for one in descendants(known.pid)]

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """A server and a session with it; over HTTP a server that still lives is used again."""
        if self.transport == STDIO:
            server = StdioServerParameters(
                command=str(LAUNCHER), args=["serve"], cwd=self.place.folder, env=self.variables
            )
            async with Client(server) as client:
                yield client
            return
        said = await anyio.to_thread.run_sync(self._serving)
        web = httpx2.AsyncClient(headers=said["mcpServers"]["plumbline"]["headers"], timeout=CALL_S)
        async with web, Client(streamable_http_client(said["url"], http_client=web)) as client:
            yield client

    def _serving(self) -> dict[str, Any]:
        self.end_server()
        self.server = subprocess.Popen(
            [LAUNCHER, "serve", "--http", "--json"],
            cwd=self.place.folder,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert self.server.stdout is not None
        line = self.server.stdout.readline()
        said: dict[str, Any] = json.loads(line) if line else {}
        if not said:
            raise ConnectionError("the server ended before it served")
        return said

    def end_server(self) -> None:
        """Tell the HTTP server to end, if there is one, and wait for it."""
        if self.server is not None:
            self.server.terminate()
            self.server.communicate(timeout=CALL_S)
            self.server = None

    def close(self) -> None:
        """End what is ours."""
        self.end_server()
        self.marks.close()


class Agent:
    """Goes through one round: asks, waits, starts, follows and checks; goes on wherever it was cut."""

    def __init__(self, site: Site) -> None:
        self.site = site
        site.round += 1
        self.number = site.round
        self.ticket = self.run = self.verdict = ""
        self.reviewing: subprocess.Popen[str] | None = None
        self.unstarted = False
        self.times: dict[str, float] = {}

    async def play(self, client: Client) -> None:
        """The whole round; what was acknowledged is not asked for again."""
        if not self.site.task:
            task = await self._call(client, "task_draft", target=str(self.site.target))
            self.site.told.tickets.append(task["ticket"])
            await self._approved(client, task["ticket"])
            self.site.task = task["ticket"]
        if not self.ticket:
            grid = {"steps": [self.number]}
            asked = {"task": self.site.task, "grid": grid, "attempts": ATTEMPTS}
            self.ticket = (await self._call(client, "plan_draft", **asked))["ticket"]
            self.site.told.tickets.append(self.ticket)
        await self._approved(client, self.ticket)
        await self._ran(client)
        while not self.verdict:
            found = await self._call(
                client, "check_optimizer_step", run=self.run, framework=str(self.site.pack)
            )
            self.site.told.verdicts[found["id"]] = found["outcome"]
            self.verdict = "" if "worker" in found["untrusted_reason"] else found["id"]

    async def _approved(self, client: Client, ticket: str) -> None:
        """Wait until the reviewer signed; their program is started again where it was killed."""
        began = time.monotonic()
        while (await self._call(client, "approval_wait", ticket=ticket, max_s=0))["state"] not in DECIDED:
            await anyio.to_thread.run_sync(self._review, ticket, abandon_on_cancel=True)
        self.times.setdefault("queue", time.monotonic() - began)

    def _review(self, ticket: str) -> None:
        """``plumbline queue approve``; what it acknowledges is kept."""
        if self.reviewing is not None and self.reviewing.poll() is None:
            self.reviewing.wait(CALL_S)
            return
        command = [LAUNCHER, "queue", "approve", ticket, "--as", "example", "--json"]
        self.reviewing = subprocess.Popen(
            command,
            cwd=self.site.place.folder,
            env=self.site.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        out, error = self.reviewing.communicate(timeout=CALL_S)
        if self.reviewing.returncode == 0:
            self.site.told.decisions[ticket] = json.loads(out)["decisions"][-1]["statement"]
        elif self.reviewing.returncode != -9 and "already" not in error + out:
            raise RuntimeError(f"queue approve ended with {self.reviewing.returncode}: {error[-300:]}")

    async def _ran(self, client: Client) -> None:
        """Start the job until an attempt of it succeeded."""
        succeeded = False
        while not succeeded:
            try:
                started = await self._call(client, "job_start", ticket=self.ticket, job="train_step-001")
            except RuntimeError as refused:  # its supervisor was killed at once: the answer says run it again
                if UNSTARTED not in str(refused) or self.unstarted:
                    raise
                self.unstarted = True
                continue
            self.run = started["run_id"]
            self.site.told.runs[self.run] = (self.ticket, started["attempt"])
            state = "running"
            while state in ("queued", "running"):
                await anyio.sleep(0.1)
                state = (await self._call(client, "job_status", run_id=self.run))["state"]
            succeeded = state == "succeeded"

    async def _call(self, client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
        """The structured answer. Raises `RuntimeError` for a refusal, `TimeoutError` where a call hangs."""
        with anyio.fail_after(CALL_S):
            result = await client.call_tool(tool, arguments)
        if result.is_error or result.structured_content is None:
            raise RuntimeError(f"{tool} was refused: {result.content}")
        return result.structured_content


def _is_server(one: Living) -> bool:
    return "plumbline_mcp serve" in one.command


def _all(mark: str) -> list[Living]:
    return [one for one in living() if mark in one.command]
