"""Several at once, and one that is killed: no use twice, no decision lost."""

import multiprocessing
import os
import sys
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from approvals.errors import Refused
from approvals.queue import Approvals
from approvals.trust import TrustRoots
from tests.approvals.reviewers import START, Reviewer, connect, new_queue, request
from tests.approvals.soak import report, soak

RACERS = 8
KILL_POINTS = 20
SEED = 4


def _race(path: Path, trust: TrustRoots, ids: tuple[str, str], ticket: str, barrier: Barrier) -> None:
    approvals = Approvals(connect(path), trust, *ids, clock=lambda: START + 60)
    barrier.wait()
    try:
        approvals.consume(ticket, "c3" * 32, 1)
    except Refused as refusal:
        os._exit(1 if "used already" in refusal.message else 2)
    os._exit(0)


def test_of_eight_processes_that_use_one_approval_one_wins(
    tmp_path: Path, solo: TrustRoots, ada: Reviewer
) -> None:
    path = tmp_path / "queue.db"
    queue = new_queue(solo, path)
    queue.connection.execute("pragma journal_mode=wal")
    forking = multiprocessing.get_context("fork")
    for lap in range(5):
        ticket = queue.approve(queue.approvals.request(request(content=f"lap {lap}")), ada).id
        ids, barrier = (queue.approvals.workspace_id, "real"), forking.Barrier(RACERS)
        racers = [
            forking.Process(target=_race, args=(path, solo, ids, ticket, barrier)) for _ in range(RACERS)
        ]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join(60)
        assert sorted(racer.exitcode or 0 for racer in racers) == [0] + [1] * (RACERS - 1)
        assert queue.connection.execute("select count(*) from uses").fetchone() == (lap + 1,)


def test_killed_at_random_moments_it_loses_no_decision_and_repeats_no_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    soaked = soak(tmp_path, KILL_POINTS, SEED)
    with capsys.disabled():
        sys.stdout.write(f"\n{report(soaked, SEED)}\n")
    assert soaked.violations == []
    assert soaked.decisions > 0
    assert soaked.uses > 0
