"""``python -m tests.soak.agent_points [--points N] [--seed S]``: kill server, reviewer's program, supervisor,
job and check worker while an agent works, with SIGKILL at seeded moments.

The agent starts the server again and goes on. After each point: every decision, run and verdict that was
acknowledged is there as it was, every approved attempt ran at most once (counted by the jobs themselves),
every job is sealed or marked lost, and rows, signatures and audit log hold. At the end of a workspace no
process and no temporary file is left.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from approvals.errors import Refused
from plumbline_mcp.engines.engine import Approved
from plumbline_mcp.workspace import RunState, StoredRun, Workspace
from tests.soak import left_behind
from tests.soak.agent import HTTP, STDIO, Agent, Site

VICTIMS = ("server", "queue", "supervisor", "job", "check")
SEEN = ("supervisor", "job", "check")
"""Victims that are found among the processes of a place."""
POINTS_IN_A_WORKSPACE = 10
ROUND_S = 300.0
"""A round takes a few seconds; one that hangs is a violation."""
SETTLE_S = 30.0
MOST_SERVERS = 5
_POLL_S = 0.03


@dataclass(frozen=True)
class AgentPoint:
    """Who is killed, and when: ``fraction`` of the seconds that it lives in a clean round."""

    victim: str
    fraction: float
    which: float = 0.0
    """Of several processes of a job, the one at this share of the list."""


@dataclass
class AgentPlayed:
    """What came of a point."""

    point: AgentPoint
    transport: str
    killed: bool = False
    attempts: int = 0
    servers: int = 0
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)


@dataclass
class Soaked:
    """What came of all points."""

    played: list[AgentPlayed] = field(default_factory=list)
    decisions: int = 0
    verdicts: int = 0
    runs: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    @property
    def broken(self) -> int:
        """How many points and workspaces were violated."""
        return sum(bool(one.violations) for one in self.played) + len(self.violations)


def choose(count: int, seed: int) -> Iterator[AgentPoint]:
    """Points over the victims in turn, each at a seeded moment."""
    moments = random.Random(seed)
    for index in range(count):
        yield AgentPoint(VICTIMS[index % len(VICTIMS)], moments.uniform(0.0, 1.0), moments.uniform(0.0, 1.0))


def soak(folder: Path, count: int, seed: int, a_workspace: int = POINTS_IN_A_WORKSPACE) -> Soaked:
    """Play the points, several in each workspace; every other workspace is served over HTTP."""
    soaked, points = Soaked(), list(choose(count, seed))
    for number, first in enumerate(range(0, count, a_workspace)):
        place = folder / f"workspace-{number:03d}"
        place.mkdir(parents=True)
        site = Site(place, (STDIO, HTTP)[number % 2])
        try:
            play_in(site, points[first : first + a_workspace], soaked)
        finally:
            site.close()
        if not soaked.broken:
            shutil.rmtree(place)
    return soaked


def play_in(site: Site, points: list[AgentPoint], soaked: Soaked) -> None:
    """A clean round that is measured, the points, and a clean round that finds nothing in its way."""
    lives = _measured(site)
    for point in points:
        played = AgentPlayed(point, site.transport)
        soaked.played.append(played)
        began = time.monotonic()
        played.violations += _went(site, played, lives)
        played.seconds = time.monotonic() - began
        _say(f"[{len(soaked.played)}] {site.transport}: {_line(played)}", played.violations)
    last = AgentPlayed(AgentPoint("nobody", 0.0), site.transport)
    found = _went(site, last, lives)
    site.end_server()
    found += left_over(site)
    soaked.violations += [f"{site.place.folder.name}: {problem}" for problem in found]
    _say(f"{site.place.folder.name} ends: {'VIOLATED' if found else 'ok'}", found)
    _count(site, soaked)


def _went(site: Site, played: AgentPlayed, lives: dict[str, float]) -> list[str]:
    """Play a round and judge what it left."""
    agent = Agent(site)
    try:
        anyio.run(_round, site, agent, played, lives)
    except Exception as error:  # noqa: BLE001 - whatever stops the agent is the violation that is looked for
        inner = _first(error)
        return [f"the agent could not go on: {type(inner).__name__}: {str(inner)[:300]}"]
    return judge(site, agent, played)


async def _round(site: Site, agent: Agent, played: AgentPlayed, lives: dict[str, float]) -> None:
    with anyio.fail_after(ROUND_S):
        async with anyio.create_task_group() as group:
            group.start_soon(_kill, site, agent, played, lives)
            await _go_on(site, agent, played)
            group.cancel_scope.cancel()


async def _go_on(site: Site, agent: Agent, played: AgentPlayed) -> None:
    """Serve the agent until its round is over; again with a new server where that was killed."""
    for number in range(1, MOST_SERVERS + 1):
        played.servers, done = number, False
        with anyio.CancelScope() as scope:
            try:
                async with site.client() as client, anyio.create_task_group() as group:
                    group.start_soon(_watch, site, scope)
                    await agent.play(client)
                    done = True
                    group.cancel_scope.cancel()
            except Exception as error:
                if not done and (played.point.victim != "server" or not played.killed):
                    raise _first(error) from error
        if done:
            return
        if played.point.victim != "server":
            raise RuntimeError(f"the server is gone, and the {played.point.victim} was to be killed")
    raise RuntimeError(f"{MOST_SERVERS} servers did not get through one round")


def _first(error: Exception) -> Exception:
    """What is inside groups of errors."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


async def _watch(site: Site, scope: anyio.CancelScope) -> None:
    """End the session when its server is gone: a client may wait for an answer that never comes."""
    while site.servers():
        await anyio.sleep(0.1)
    scope.cancel()


async def _kill(site: Site, agent: Agent, played: AgentPlayed, lives: dict[str, float]) -> None:
    """Send SIGKILL once, to one process, at the moment of the point."""
    point = played.point
    if point.victim == "queue":
        while agent.reviewing is None:
            await anyio.sleep(_POLL_S)
        await anyio.sleep(point.fraction * lives["queue"])
        played.killed = agent.reviewing.poll() is None
        agent.reviewing.kill()
        return
    while point.victim != "nobody" and not site.victims(point.victim):
        await anyio.sleep(_POLL_S)
    await anyio.sleep(point.fraction * lives.get(point.victim, 0.0))
    if found := site.victims(point.victim) if point.victim != "nobody" else []:
        with suppress(ProcessLookupError):
            os.kill(found[int(point.which * len(found)) % len(found)].pid, signal.SIGKILL)
            played.killed = True


def _measured(site: Site) -> dict[str, float]:
    """Seconds that each victim lives in a clean round; the first one asks for the task too."""
    seen: dict[str, list[float]] = {kind: [] for kind in SEEN}

    async def watched(agent: Agent) -> None:
        async def look() -> None:
            while True:
                for kind in SEEN:
                    seen[kind] += [time.monotonic()] if site.victims(kind) else []
                await anyio.sleep(_POLL_S)

        async with anyio.create_task_group() as group:
            group.start_soon(look)
            await _go_on(site, agent, AgentPlayed(AgentPoint("nobody", 0.0), site.transport))
            group.cancel_scope.cancel()

    for _ in range(2):
        agent, began = Agent(site), time.monotonic()
        for moments in seen.values():
            moments.clear()
        anyio.run(watched, agent)
    lives = {kind: max(moments) - min(moments) for kind, moments in seen.items()}
    return lives | {"queue": agent.times["queue"], "server": time.monotonic() - began}


def judge(site: Site, agent: Agent, played: AgentPlayed) -> list[str]:
    """What a point leaves, held against what was acknowledged and what the jobs said."""
    found = [f"process {one.pid} went on: {one.command[:150]}" for one in _settled(site)]
    workspace = site.workspace()
    try:
        runs = workspace.runs_list(limit=left_behind.MANY)
        played.attempts = sum(run.job.approval == agent.ticket for run in runs)
        found += workspace.verify()
        found += _acknowledged(site, workspace)
        found += [*_executions(site, runs), *_uses(workspace, runs)]
        succeeded = [run.run_id for run in runs if run.job.approval == agent.ticket and _succeeded(run)]
        if succeeded != [agent.run]:
            found.append(f"the job of {agent.ticket} succeeded as {succeeded}; the agent knows {agent.run}")
    finally:
        workspace.close()
    return found + left_behind.half_written(site.place, {})


def _settled(site: Site) -> list[object]:
    """Processes that do not end by themselves."""
    until = time.monotonic() + SETTLE_S
    while (left := site.processes()) and time.monotonic() < until:
        time.sleep(0.05)
    return list(left)


def _acknowledged(site: Site, workspace: Workspace) -> Iterator[str]:
    """Everything that a program told its caller is there, as it was told."""
    told = site.told
    for ticket in told.tickets:
        try:
            workspace.approvals.ticket(ticket)
        except Refused:
            yield f"the request {ticket} is lost"
    for ticket, statement in told.decisions.items():
        if statement not in [one.statement for one in workspace.approvals.ticket(ticket).decisions]:
            yield f"the decision about {ticket} is lost or changed"
    stored = {one.verdict.id: one.verdict.outcome for one in workspace.verdicts(limit=left_behind.MANY)}
    for verdict, outcome in told.verdicts.items():
        if stored.get(verdict) != outcome:
            yield f"{verdict} was told as {outcome} and is stored as {stored.get(verdict)}"


def _executions(site: Site, runs: list[StoredRun]) -> Iterator[str]:
    """No run began twice, and every run came to its end."""
    marks, known = site.marks.count(), {run.run_id: run for run in runs}
    for (what, run_id), count in marks.items():
        if count > 1 or run_id not in known:
            yield f"{run_id} {what} {count} times, stored: {run_id in known}"
    for run_id, (ticket, _) in site.told.runs.items():
        if run_id not in known or known[run_id].job.approval != ticket:
            yield f"{run_id} was told to run under {ticket} and does not"
    for run in runs:
        began, ended = marks["began", run.run_id], marks["ended", run.run_id]
        if not run.state.over:
            yield f"{run.run_id} is {run.state}"
        if _succeeded(run) and (began, ended) != (1, 1):
            yield f"{run.run_id} succeeded; it began {began} and ended {ended} times"
        if run.state is RunState.REMOVED and began:
            yield f"{run.run_id} counts as not started, and began"


def _uses(workspace: Workspace, runs: list[StoredRun]) -> Iterator[str]:
    """Each attempt that was used has its run, and each run used one."""
    by_key = {run.key: run.run_id for run in runs}
    uses = workspace.query("select ticket, use_sha256, attempt from uses", {})
    keys = {Approved(str(row["ticket"]), int(row["attempt"])).key(str(row["use_sha256"])) for row in uses}
    for key in keys ^ by_key.keys():
        yield f"{by_key.get(key, 'no run')} has the key {key}, used: {key in keys}"
    if len(by_key) < len(runs) or len(keys) < len(uses):
        yield f"{len(runs)} runs with {len(by_key)} keys, {len(uses)} uses with {len(keys)}"


def _succeeded(run: StoredRun) -> bool:
    return run.state is RunState.SEALED and str(run.outcome or "") in ("", "succeeded")


def left_over(site: Site) -> list[str]:
    """What nobody needs once everything ended: processes, temporary files, folders that are not sealed."""
    found = [f"process {one.pid} survived: {one.command[:150]}" for one in site.servers() + _settled(site)]
    found += [f"{path.relative_to(site.place.folder)} was left" for path in site.place.temporary.rglob("*")]
    hidden = (path for path in (site.place.home / "runs").iterdir() if path.name.startswith("."))
    found += [f"{path.name} was left in runs" for path in hidden]
    return found + left_behind.unfinished_runs(site.place) + left_behind.doctor(site.place)


def _count(site: Site, soaked: Soaked) -> None:
    soaked.decisions += len(site.told.decisions)
    soaked.verdicts += len(site.told.verdicts)
    workspace = site.workspace()
    for run in workspace.runs_list(limit=left_behind.MANY):
        ended = run.outcome if run.state is RunState.SEALED and run.outcome else run.state
        soaked.runs[str(ended)] += 1
    workspace.close()


def report(soaked: Soaked, seed: int) -> str:
    """The totals."""
    lines = []
    for victim in VICTIMS:
        group = [one for one in soaked.played if one.point.victim == victim]
        killed, again = sum(one.killed for one in group), sum(one.attempts > 1 for one in group)
        bad = sum(bool(one.violations) for one in group)
        lines.append(
            f"{victim}: {len(group)} points, {killed} killed while they lived, {again} times another attempt"
            f" was needed, {bad} violated"
        )
    ended = ", ".join(f"{count} {state}" for state, count in soaked.runs.most_common())
    lines.append(
        f"{len(soaked.played)} points (seed {seed}): {soaked.decisions} decisions and"
        f" {soaked.verdicts} verdicts acknowledged; runs: {ended}; {soaked.broken} violated"
    )
    return "\n".join(lines)


def _line(played: AgentPlayed) -> str:
    point = played.point
    how = f"killed at {point.fraction:.2f}" if played.killed else "had ended"
    said = f"{played.attempts} attempts, {played.servers} servers, {played.seconds:.1f} s"
    return f"{point.victim} {how}: {said}: {'VIOLATED' if played.violations else 'ok'}"


def _say(text: str, violations: list[str]) -> None:
    sys.stderr.write("\n    ".join([text, *violations]) + "\n")
    sys.stderr.flush()


def main() -> int:
    """Play the points and print the totals; 1 when anything was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.agent_points", description=__doc__)
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--seed", type=int, default=20261130)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="plumbline-agent-"))
    soaked = soak(folder, asked.points, asked.seed)
    sys.stdout.write(report(soaked, asked.seed) + "\n")
    if soaked.broken:
        sys.stdout.write(f"the workspaces are kept in {folder}\n")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
