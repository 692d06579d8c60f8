"""A scan through the MCP server: a scripted agent on its side, the person who signs on this one.

The person's side makes the target, with the fault of an entry in what the target names, and starts
``plumbline serve`` on standard input and output. The agent gets the path of the target and nothing else.
"""

import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import IO

import anyio
import anyio.to_thread
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError
from pydantic import JsonValue

from approvals.statement import Action
from approvals.ticket import Ticket, TicketState
from approvals.visible import visible_line
from checks.check import Progress
from checks.records.runs import RunFolder
from checks.verdict import Verdict
from plumbline_mcp.engines.local.engine import LocalEngine
from plumbline_mcp.errors import PlumblineError
from plumbline_mcp.scan.fault_entries import Corpus, FaultEntry
from plumbline_mcp.scan.preparing import Made, Preparation
from plumbline_mcp.scan.scanning import Scanned, Shared, dry_run_of
from plumbline_mcp.scan.scripted_agent import ScriptedAgent, ToolRefused, Work
from plumbline_mcp.scan.steps import DRY_RUN, FIRST_RUN, STEPS
from plumbline_mcp.scan.target import checked_target
from plumbline_mcp.scan.target_writing import toml_value
from plumbline_mcp.workspace import StoredRun, Workspace

Reviewer = Callable[[Ticket], Awaitable[bool]]
"""Shown a request that waits. Decides it, or says False: it is left to whoever else may sign."""

_POLL_S = 0.3
_END_S = 30.0
_RUNS = 200
_SAID = 400


@dataclass(frozen=True)
class Served:
    """What came of it."""

    scanned: Scanned
    stopped: str = ""
    findings: tuple[str, ...] = ()
    unfound: tuple[str, ...] = ()


def can_be_served(entry: FaultEntry) -> bool:
    """Whether a target can hold the entry's fault: it lies in the environment or in the settings.

    The others stand in the place of a procedure, or judge with other arguments than the scan's.
    """
    plant = entry.plant
    return not (plant.job or plant.rows_job or plant.edit_release or plant.edit_export or entry.inputs)


async def scan_entry(
    workspace: Workspace, entry: FaultEntry, corpus: Corpus | None, reviewer: Reviewer, progress: Progress
) -> Served:
    """Have the scripted agent scan the entry's target; its verdicts are stored, and its findings.

    Raises `BuildError` and `BadInput` like `scan_embedded`, and like `scan_target`.
    """
    target, python = await _prepared(workspace, entry, corpus, progress)
    return await scan_target(workspace, target, python, reviewer, progress)


async def scan_target(
    workspace: Workspace, target: Path, python: Path | None, reviewer: Reviewer, progress: Progress
) -> Served:
    """Have the scripted agent scan a target file; its verdicts are stored, and its findings.

    ``python`` is an interpreter that a person named: the server may judge it. A job that still runs when the
    scan is stopped is ended and removed. Raises `PlumblineError` where the server ends or refuses.
    """
    reviewing = _Reviewing(workspace, reviewer)
    others = {run.run_id for run in workspace.runs_list(limit=_RUNS) if not run.state.over}
    try:
        work = await _worked(workspace, target, python, reviewing, progress)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(partial(_end_jobs, workspace, reviewing.tickets, others))
    return Served(
        scanned=await anyio.to_thread.run_sync(partial(_scanned, workspace, work)),
        stopped=work.stopped,
        findings=tuple(finding["id"] for finding in work.findings),
        unfound=tuple(work.unfound),
    )


# --- the target -----------------------------------------------------------------------------------------


async def _prepared(
    workspace: Workspace, entry: FaultEntry, corpus: Corpus | None, progress: Progress
) -> tuple[Path, Path | None]:
    """A target file of this scan alone, and the interpreter that it names; None where it is the pack's."""
    name = f"framework-{sha256(entry.id.encode()).hexdigest()[:8]}"  # it says nothing of the plant
    making = Preparation(workspace, entry, corpus, Shared(), name)
    made = await making.release(_step(progress, "building the embedded release"))
    plant, python = entry.plant, None
    if plant.hook or plant.edit_environment or plant.requirements or plant.without_dependencies:
        environment = await making.environment(_step(progress, "preparing the framework's environment"))
        if plant.hook:
            environment = await making.faulty_environment(environment)
        python = environment.python
    folder = workspace.home / "example" / workspace.new_id("scan")
    folder.mkdir(parents=True)
    path, text = folder / "target.toml", target_text(entry, made, python)
    checked_target(path, text)
    path.write_text(text, encoding="utf-8")
    return path, python


def _step(progress: Progress, step: str) -> Progress:
    progress(0, None, step)
    return lambda done, total, message: progress(0, None, f"{step}: {message}" if message else step)


def target_text(entry: FaultEntry, made: Made, python: Path | None) -> str:
    """The entry as a target file. Its first run is as short as its first steps: no check waits for it."""
    settings: dict[str, JsonValue] = {FIRST_RUN: {"steps": 2}, **entry.plant.settings}
    lines = [
        "format = 1",
        f"framework = {toml_value(entry.framework)}",
        f"model = {toml_value(str(made.model))}",
        f"workload = {toml_value(str(made.workload))}",
        f"steps = {toml_value(list(entry.checks))}",
        f"time_limit_s = {toml_value(entry.time_limit_s)}",
        f"recipe = {toml_value(entry.recipe)}",
        f"settings = {toml_value(settings)}",
        "[environment]",
        f"python = {toml_value(str(python))}" if python else "pack = true",
    ]
    return "\n".join(lines) + "\n"


# --- the agent and the reviewer -------------------------------------------------------------------------


async def _worked(
    workspace: Workspace, target: Path, python: Path | None, reviewing: "_Reviewing", progress: Progress
) -> Work:
    """The agent's whole session, with a reviewer beside it."""
    command = ["-I", "-m", "plumbline_mcp", "serve", "--home", str(workspace.home)]
    named = ["--python", str(python)] if python else []
    server = StdioServerParameters(command=sys.executable, args=[*command, *named], env=dict(os.environ))
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        try:
            async with (
                anyio.create_task_group() as group,
                Client(stdio_client(server, errlog=said)) as client,
            ):
                agent = ScriptedAgent(client, progress, reviewing.leaves)
                group.start_soon(reviewing.run, agent.work.tickets)
                work = await agent.scan(str(target))
                group.cancel_scope.cancel()
        except (Exception, BaseExceptionGroup) as error:  # a group of the client's tasks or of ours
            raise _told(error, said) from error
    return work


def _told(error: BaseException, said: IO[str]) -> BaseException:
    """What went wrong, as one sentence; an error of ours stays as it is."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ToolRefused):
        return PlumblineError(f"the server refused the agent's {error.tool}", error.said)
    if isinstance(error, (MCPError, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)):
        said.seek(0)
        last = next((line.strip() for line in reversed(said.readlines()) if line.strip()), "it said nothing")
        return PlumblineError(
            f"the MCP server ended, or stopped answering: {visible_line(last, _SAID)}",
            "run it again; what was judged so far is stored",
        )
    return error


class _Reviewing:
    """Puts each request of the agent before the reviewer."""

    def __init__(self, workspace: Workspace, reviewer: Reviewer) -> None:
        self._workspace, self._reviewer = workspace, reviewer
        self.tickets: list[str] = []
        self._left: set[str] = set()

    async def run(self, asked: Sequence[str]) -> None:
        """Until cancelled; ``asked`` grows with the tickets that the agent waits for."""
        while True:
            for name in asked[len(self.tickets) :]:
                self.tickets.append(name)
                ticket = await anyio.to_thread.run_sync(self._ticket, name)
                if ticket.state is TicketState.PENDING and not await self._reviewer(ticket):
                    self._left.add(name)
            await anyio.sleep(_POLL_S)

    def _ticket(self, name: str) -> Ticket:
        return self._workspace.approvals.ticket(name)  # in the thread that asks: each has its own connection

    def leaves(self, ticket: str, action: str) -> bool:
        """Whether the agent goes on without a decision: jobs have to wait for theirs, the report has not."""
        return ticket in self._left and action not in (Action.TASK, Action.PLAN)


# --- what it left ---------------------------------------------------------------------------------------


def _runs_of(workspace: Workspace, tickets: Sequence[str]) -> list[StoredRun]:
    """Runs under these tickets, newest first."""
    return [run for run in workspace.runs_list(limit=_RUNS) if run.job.approval in tickets]


def _end_jobs(workspace: Workspace, tickets: Sequence[str], others: Collection[str]) -> None:
    """End and remove what still runs, but for ``others``: after a whole scan there is nothing."""
    engine = LocalEngine(workspace)
    runs = [run for run in _runs_of(workspace, tickets) if not run.state.over]
    active = [run.run_id for run in runs if run.run_id not in others]
    for run_id in active:
        engine.cancel(run_id, remove=True, why="the scan was stopped")
    for run_id in active:
        _wait_for_end(engine, run_id)


def _wait_for_end(engine: LocalEngine, run_id: str) -> None:
    deadline = time.monotonic() + _END_S
    while not engine.status(run_id).state.over and time.monotonic() < deadline:
        time.sleep(0.1)


def _scanned(workspace: Workspace, work: Work) -> Scanned:
    """The verdicts in the order of the steps, and how the dry run ended."""
    order = {step.name: number for number, step in enumerate(STEPS)}
    verdicts: list[Verdict] = [workspace.verdict(one["id"]).verdict for one in work.verdicts]
    verdicts.sort(key=lambda verdict: order.get(verdict.check, len(order)))
    runs = [run for run in _runs_of(workspace, work.tickets) if run.job.procedure == DRY_RUN]
    return Scanned(
        verdicts=tuple(verdicts),
        dry_run=dry_run_of(RunFolder.open(workspace.runs / runs[0].run_id)) if runs else None,
        not_reached=tuple(tool.removeprefix("check_") for tool in work.not_reached),
    )
