from pathlib import Path

import pytest

from approvals.trust import TrustRoots
from tests.approvals.reviewers import Queue, new_queue


@pytest.fixture(scope="session")
def example_trust(tmp_path_factory: pytest.TempPathFactory) -> TrustRoots:
    return TrustRoots.example(tmp_path_factory.mktemp("example"))


@pytest.fixture
def example(example_trust: TrustRoots, tmp_path: Path) -> Queue:
    """A queue whose reviewer needs no passphrase; other processes can write its database."""
    return new_queue(example_trust, tmp_path / "plumbline.db")


@pytest.fixture
def real(solo: TrustRoots, tmp_path: Path) -> Queue:
    """A queue of two reviewers, whose keys lie here."""
    return new_queue(solo, tmp_path / "plumbline.db")
