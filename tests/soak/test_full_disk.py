"""A disk that fills while the installed program works; ``make soak`` plays more sizes, over every program."""

import contextlib
from pathlib import Path

import pytest

from plumbline_mcp.errors import WorkspaceError
from plumbline_mcp.workspace import Workspace
from tests.soak.full_disk import play_full, small_disk
from tests.soak.points import rehearse
from tests.soak.programs import Inputs, Skipped


def test_a_check_on_a_full_disk_says_so_and_runs_once_there_is_space(tmp_path: Path) -> None:
    clean = rehearse(Inputs(tmp_path / "inputs").program("check data"), tmp_path / "rehearsal", warm=False)
    try:
        filled = play_full(clean, 0.5, tmp_path / "place")
    except Skipped as reason:
        pytest.skip(str(reason))
    assert filled.violations == []
    assert not filled.enough


def test_opening_a_workspace_on_a_full_disk_names_the_space(tmp_path: Path) -> None:
    try:
        with small_disk(tmp_path / "disk", 2**20) as disk:
            workspace = Workspace.open(disk / "home")
            workspace.new_id("data")
            workspace.close()
            _fill(disk / "padding")
            with pytest.raises(WorkspaceError, match="no space left") as refused:
                Workspace.open(disk / "home").new_id("data")
            assert "free space" in refused.value.next_step
            (disk / "padding").unlink()
            assert Workspace.open(disk / "home").new_id("data") == "data-0002"
    except Skipped as reason:
        pytest.skip(str(reason))


def _fill(padding: Path) -> None:
    with contextlib.suppress(OSError), padding.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
