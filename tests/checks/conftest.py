"""A tiny release and its right rows, for every test of the data check."""

import copy
from pathlib import Path

import pytest

from tests.checks import tiny_release
from tests.checks.judged_rows import Row
from tests.checks.tiny_release import write_release


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_release(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="module")
def clean() -> list[Row]:
    return tiny_release.rows()


@pytest.fixture
def rows(clean: list[Row]) -> list[Row]:
    return copy.deepcopy(clean)
