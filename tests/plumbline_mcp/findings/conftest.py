from pathlib import Path

import pytest

from approvals.trust_folder import TRUST_VARIABLE
from plumbline_mcp.findings import verification
from tests.plumbline_mcp.findings import faulty_export, reviewing
from tests.plumbline_mcp.findings.faulty_export import Faulty


@pytest.fixture(scope="session")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trust roots with one reviewer."""
    return reviewing.make_roots(tmp_path_factory.mktemp("trust") / "roots")


@pytest.fixture(scope="session")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Faulty:
    """A real run with a planted fault and its failing verdict; tests add findings to its workspace."""
    return faulty_export.make(tmp_path_factory.mktemp("faulty"))


@pytest.fixture(autouse=True)
def _trusted(roots: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRUST_VARIABLE, str(roots))


@pytest.fixture
def no_recompute(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no recomputation of any check existed: then an agent's agreement counts."""
    monkeypatch.setattr(verification, "recomputed_checks", frozenset)
