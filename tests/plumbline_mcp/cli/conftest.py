from pathlib import Path

import pytest

from checks.records.runs import Job
from plumbline_mcp.workspace import Workspace
from tests.plumbline_mcp import handmade_verdicts


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with one verdict of each check and one run; do not write into it."""
    home = tmp_path_factory.mktemp("filled") / "home"
    workspace = Workspace.open(home)
    for verdict in (
        handmade_verdicts.data_fail(),
        handmade_verdicts.export_inconclusive(),
        handmade_verdicts.image_pass(),
    ):
        workspace.add_verdict(verdict, {"model": "/m"})
    workspace.add_run(Job(run_id="rows-0001", procedure="rows", framework="transformers"))
    workspace.seal_run("rows-0001", "ab" * 32)
    workspace.close()  # the whole database is then in its one file
    return home


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a verdict whose every text tries to deceive."""
    home = tmp_path_factory.mktemp("hostile") / "home"
    Workspace.open(home).add_verdict(handmade_verdicts.hostile(), {})
    return home
