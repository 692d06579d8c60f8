"""Each program is killed once while an agent works; ``make soak`` plays two hundred points."""

from collections.abc import Iterator

import pytest

from tests.soak.agent import STDIO, Agent, Site
from tests.soak.agent_points import (
    VICTIMS,
    AgentPlayed,
    AgentPoint,
    Soaked,
    choose,
    judge,
    left_over,
    play_in,
)

POINTS = list(choose(5, seed=20261130))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("agent") / "workspace", STDIO)
    yield made
    made.close()


@pytest.fixture(scope="module")
def soaked(site: Site) -> Soaked:
    found = Soaked()
    play_in(site, POINTS, found)
    return found


def test_nothing_is_lost_and_nothing_runs_twice_whoever_is_killed(soaked: Soaked) -> None:
    assert [one.violations for one in soaked.played] == [[] for _ in POINTS]
    assert soaked.violations == []
    assert {one.point.victim for one in soaked.played} == set(VICTIMS)
    assert any(one.killed for one in soaked.played)  # on a busy machine the others may have ended before
    assert soaked.runs["succeeded"] == len(POINTS) + 3  # the measured rounds and the last one


def test_the_soak_sees_what_it_looks_for(site: Site, soaked: Soaked) -> None:
    agent, played = Agent(site), AgentPlayed(AgentPoint("nobody", 0.0), STDIO)
    run, (ticket, _) = list(site.told.runs.items())[-1]
    agent.ticket, agent.run = ticket, run
    assert judge(site, agent, played) == []

    site.marks.told.append(("began", run, "1"))
    assert f"{run} began 2 times, stored: True" in judge(site, agent, played)
    site.marks.told.pop()
    site.marks.told.append(("began", "train_step-0999", "1"))
    assert "train_step-0999 began 1 times, stored: False" in judge(site, agent, played)
    site.marks.told.pop()

    decided = site.told.decisions[ticket]
    site.told.decisions[ticket] = decided.replace("approve", "reject")
    assert f"the decision about {ticket} is lost or changed" in judge(site, agent, played)
    site.told.decisions[ticket] = decided
    site.told.tickets.append("A-0123456789-1")
    assert "the request A-0123456789-1 is lost" in judge(site, agent, played)
    site.told.tickets.pop()
    site.told.verdicts["image-0099"] = "pass"
    assert "image-0099 was told as pass and is stored as None" in judge(site, agent, played)
    del site.told.verdicts["image-0099"]

    agent.run = "train_step-0998"
    assert any(f"the job of {ticket} succeeded as ['{run}']" in one for one in judge(site, agent, played))
    (site.place.temporary / "plumbline-sign-left").mkdir()
    assert "tmp/plumbline-sign-left was left" in left_over(site)


def test_the_points_are_seeded() -> None:
    assert list(choose(5, seed=20261130)) == POINTS != list(choose(5, seed=1))
