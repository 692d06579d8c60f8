"""Ten seeded kill points of jobs; ``make soak`` plays a hundred."""

from pathlib import Path

import pytest

from tests.soak.job_points import VICTIMS, Inputs, JobPoint, Lives, choose, play, rehearse

POINTS = list(choose(10, seed=20261130))


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Inputs, Lives]:
    folder = tmp_path_factory.mktemp("jobs")
    inputs = Inputs(folder / "inputs")
    return inputs, rehearse(inputs, folder / "rehearsal")


@pytest.mark.parametrize("point", POINTS, ids=lambda point: f"{point.victim}-{point.fraction:.2f}")
def test_a_job_ends_sealed_or_marked_whoever_is_killed(
    point: JobPoint, rehearsed: tuple[Inputs, Lives], tmp_path: Path
) -> None:
    assert play(*rehearsed, point, tmp_path / "place").violations == []


def test_the_points_cover_every_victim() -> None:
    assert {point.victim for point in POINTS} == set(VICTIMS)
