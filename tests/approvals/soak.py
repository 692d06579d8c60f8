"""``python -m tests.approvals.soak [--points N] [--seed S]``: kill whoever asks, decides and uses.

A process asks for approvals, signs and records them, and uses them in a loop; it notes what it was told.
At a seeded moment it gets SIGKILL, and the next process goes on in the same workspace. Then no decision that
was acknowledged may be missing, no use may have run twice, and rows, signatures and audit log have to hold.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from approvals.errors import Refused
from approvals.queue import Approvals
from approvals.statement import Action, Request
from approvals.ticket import TicketState
from plumbline_mcp.workspace import Workspace

LONGEST_S = 1.0
"""A process lives up to so long; one round of asking, deciding and using takes about a tenth of it."""
POINTS_IN_A_WORKSPACE = 10
USES = ("a1" * 32, "b2" * 32)


@dataclass
class Soaked:
    """What came of all points."""

    points: int = 0
    requests: int = 0
    decisions: int = 0
    uses: int = 0
    interrupted: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


def soak(folder: Path, points: int, seed: int) -> Soaked:
    """Play the points, several in each workspace, and judge each workspace."""
    rng, soaked = random.Random(seed), Soaked()
    for first in range(0, points, POINTS_IN_A_WORKSPACE):
        place = folder / f"workspace-{first:03d}"
        place.mkdir(parents=True)
        for point in range(first, min(first + POINTS_IN_A_WORKSPACE, points)):
            _kill_after(place, rng.uniform(0, LONGEST_S), point)
            soaked.points += 1
            _judge(place, soaked)
        _count(place, soaked)
    return soaked


def _kill_after(place: Path, seconds: float, number: int) -> None:
    """Start the process, kill it, and wait until it is gone."""
    child = os.fork()
    if child == 0:
        try:
            _work(place, number)
        finally:
            os._exit(70)  # it never comes to an end by itself
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        raise AssertionError(f"the process of point {number} ended by itself, see {place / 'errors'}")


def _work(place: Path, number: int) -> None:
    """Go on with what is there, then ask, decide and use for ever."""
    os.dup2(os.open(place / "errors", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600), 2)
    workspace = Workspace.open(place / "home", kind="example")
    approvals = workspace.approvals
    for ticket in approvals.tickets(limit=1000):
        _go_on(workspace, approvals, place, ticket.id)
    for round_ in range(10**6):
        asked = Request(
            action=Action.PLAN,
            title="soak",
            content={"point": number, "round": round_},
            requester="agent",
            uses=USES,
            attempts=2,
        )
        ticket = approvals.request(asked)
        _note(place, "asked", ticket.id)
        _go_on(workspace, approvals, place, ticket.id)


def _go_on(workspace: Workspace, approvals: Approvals, place: Path, ticket_id: str) -> None:
    if approvals.ticket(ticket_id).state is TicketState.PENDING:
        approvals.decide(ticket_id, "approve", "example", "soak")
        _note(place, "decided", ticket_id)
    if approvals.ticket(ticket_id).state is not TicketState.APPROVED:
        return
    for use in USES:
        for attempt in (1, 2):
            try:
                with workspace.write_tx():
                    approvals.consume(ticket_id, use, attempt)
            except Refused as refusal:
                if "used already" not in refusal.message:
                    raise
            else:
                _note(place, "ran", ticket_id, use, str(attempt))


def _note(place: Path, *words: str) -> None:
    """What the caller was told, in one write: the line is there whole or not at all."""
    descriptor = os.open(place / "told", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.write(descriptor, (json.dumps(words) + "\n").encode())
    os.close(descriptor)


def _told(place: Path) -> list[tuple[str, ...]]:
    file = place / "told"
    return [tuple(json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def _judge(place: Path, soaked: Soaked) -> None:
    """Hold the workspace against what was told."""
    workspace = Workspace.open(place / "home", kind="example")
    approvals, told = workspace.approvals, _told(place)
    soaked.violations += [f"{place.name}: {problem}" for problem in workspace.verify()]
    for words in set(told):
        ticket = approvals.ticket(words[1])
        if words[0] == "decided" and not ticket.decisions:
            soaked.violations.append(f"{place.name}: the decision about {ticket.id} is lost")
    for words, count in Counter(told).items():
        if words[0] == "ran" and count > 1:
            soaked.violations.append(f"{place.name}: {words} ran {count} times")
    stored = {tuple(row) for row in _rows(workspace)}
    for words in told:
        if words[0] == "ran" and (words[1], words[2], int(words[3])) not in stored:
            soaked.violations.append(f"{place.name}: the use {words} is lost")
    last = told[-1][0] if told else "nothing"
    soaked.interrupted[f"after {last}"] += 1
    workspace.close()


def _rows(workspace: Workspace) -> list[tuple[str, str, int]]:
    return workspace.approvals.connection.execute("select ticket, use_sha256, attempt from uses").fetchall()


def _count(place: Path, soaked: Soaked) -> None:
    """Every approved ticket still verifies; count what was done."""
    workspace = Workspace.open(place / "home", kind="example")
    approvals = workspace.approvals
    for ticket in approvals.tickets(limit=1000):
        soaked.requests += 1
        soaked.decisions += len(ticket.decisions)
        if ticket.state is TicketState.APPROVED:
            approvals.verify(ticket.id)
    soaked.uses += len(_rows(workspace))
    workspace.close()


def report(soaked: Soaked, seed: int) -> str:
    """Figures in one paragraph."""
    interrupted = ", ".join(f"{count} {where}" for where, count in soaked.interrupted.most_common())
    return (
        f"{soaked.points} processes killed with SIGKILL (seed {seed}): {soaked.requests} requests,"
        f" {soaked.decisions} decisions, {soaked.uses} uses; killed {interrupted};"
        f" {len(soaked.violations)} violations"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.approvals.soak", description=__doc__)
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--seed", type=int, default=20261130)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="plumbline-approvals-"))
    soaked = soak(folder, asked.points, asked.seed)
    print(report(soaked, asked.seed))
    for violation in soaked.violations:
        print(f"  {violation}")
    if soaked.violations:
        print(f"the workspaces are kept in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
