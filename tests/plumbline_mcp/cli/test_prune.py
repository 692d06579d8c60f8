"""``plumbline prune`` lists first, asks, and removes only then."""

import json
from pathlib import Path

import pytest

from plumbline_mcp.cli.options import ExitCode
from plumbline_mcp.workspace import Workspace
from tests.plumbline_mcp.cli.launching import plumbline
from tests.plumbline_mcp.scan.test_pruning import sealed


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A workspace in which the same job ran twice."""
    workspace = Workspace.open(tmp_path / "home")
    for run in ("rows-0001", "rows-0002"):
        sealed(workspace, run)
    return workspace.home


def test_without_remove_it_lists_and_keeps(home: Path) -> None:
    ended = plumbline("prune", home=home)
    assert ended.returncode == 0
    assert "rows-0001" in ended.stdout
    assert "rows-0002 is the same job again" in " ".join(ended.stdout.split())
    assert "nothing was removed; next: plumbline prune --remove" in ended.stdout
    assert (home / "runs/rows-0001").is_dir()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--remove",), "nobody is there to be asked"),
        (("--remove", "--json"), "nobody is there to be asked"),
        (("--yes",), "it belongs to --remove"),
        (("rows-0009",), "there is no run"),
    ],
)
def test_nothing_goes_unasked(home: Path, given: tuple[str, ...], said: str) -> None:
    ended = plumbline("prune", *given, home=home)
    assert ended.returncode == ExitCode.USAGE
    assert said in ended.stdout + ended.stderr
    assert (home / "runs/rows-0001").is_dir()


def test_what_goes_is_told_and_the_run_stays_known(home: Path) -> None:
    ended = plumbline("prune", "--remove", "--yes", "--json", home=home)
    told = json.loads(ended.stdout)
    assert (told["removed"], [one["run_id"] for one in told["runs"]]) == (True, ["rows-0001"])
    assert [path.name for path in (home / "runs").iterdir()] == ["rows-0002"]
    assert "its folder is gone" in plumbline("list", "runs", home=home, COLUMNS="200").stdout
    assert "nothing may go" in plumbline("prune", home=home).stdout
