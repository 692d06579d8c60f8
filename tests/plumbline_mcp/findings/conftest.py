import pytest

from tests.plumbline_mcp.findings import faulty_export
from tests.plumbline_mcp.findings.faulty_export import Faulty


@pytest.fixture(scope="session")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Faulty:
    """A real run with a planted fault and its failing verdict; tests add findings to its workspace."""
    return faulty_export.make(tmp_path_factory.mktemp("faulty"))
