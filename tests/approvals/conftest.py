from pathlib import Path

import pytest

from approvals.trust import TrustRoots
from tests.approvals.reviewers import Queue, Reviewer, make_reviewer, new_queue, trusting


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys")


@pytest.fixture(scope="session")
def ada(keys: Path) -> Reviewer:
    return make_reviewer("ada", keys)


@pytest.fixture(scope="session")
def grace(keys: Path) -> Reviewer:
    return make_reviewer("grace", keys)


@pytest.fixture(scope="session")
def mallory(keys: Path) -> Reviewer:
    """Somebody whose key nobody enrolled."""
    return make_reviewer("mallory", keys)


@pytest.fixture(scope="session")
def solo(tmp_path_factory: pytest.TempPathFactory, ada: Reviewer, grace: Reviewer) -> TrustRoots:
    return trusting(tmp_path_factory.mktemp("solo"), "solo", ada, grace)


@pytest.fixture(scope="session")
def team(tmp_path_factory: pytest.TempPathFactory, ada: Reviewer, grace: Reviewer) -> TrustRoots:
    return trusting(tmp_path_factory.mktemp("team"), "team", ada, grace)


@pytest.fixture
def queue(solo: TrustRoots) -> Queue:
    return new_queue(solo)


@pytest.fixture
def team_queue(team: TrustRoots) -> Queue:
    return new_queue(team)
