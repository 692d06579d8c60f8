"""What killed processes left beside a place is swept; what living ones write is not."""

import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from plumbline_mcp.report import write_report
from plumbline_mcp.scan import preparing
from plumbline_mcp.temporaries import sweep_temporaries, temporary_beside
from plumbline_mcp.workspace import Workspace
from tests.plumbline_mcp.stored_examples import verdict


@pytest.fixture(scope="module")
def dead() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_names_are_hidden_beside_the_place_and_never_the_same(tmp_path: Path) -> None:
    names = {temporary_beside(tmp_path / "page.html") for _ in range(50)}
    assert len(names) == 50
    assert {name.parent for name in names} == {tmp_path}
    assert all(name.name.startswith(f".page.html.{os.getpid()}.") for name in names)


def test_only_what_dead_processes_left_is_removed(tmp_path: Path, dead: int) -> None:
    left, folder = (tmp_path / f".{name}.{dead}.0123abcd.part" for name in ("page.html", "release"))
    left.write_text("half")
    (folder / "inside").mkdir(parents=True)
    mine = temporary_beside(tmp_path / "page.html")
    mine.write_text("being written")
    others = [tmp_path / name for name in ("page.html", f"page.{dead}.part", f".x.{dead}.part")]
    for path in others:
        path.write_text("the user's")
    sweep_temporaries(tmp_path)
    assert set(tmp_path.iterdir()) == {mine, *others}
    sweep_temporaries(tmp_path / "nowhere")


def test_a_link_is_removed_and_not_what_it_names(tmp_path: Path, dead: int) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / f".release.{dead}.0123abcd.part").symlink_to(tmp_path / "kept")
    sweep_temporaries(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_report_sweeps_what_a_killed_report_left(tmp_path: Path, dead: int) -> None:
    workspace = Workspace.open(tmp_path / "home")
    stored = workspace.verdict(workspace.add_verdict(verdict(), {}).id)
    left = tmp_path / "out" / f".report.html.{dead}.0123abcd.part"
    left.parent.mkdir()
    left.write_text("<html>")
    write_report([stored], left.parent)
    assert sorted(path.name for path in left.parent.iterdir()) == ["report.html", "report.md"]


def test_a_scan_sweeps_what_a_killed_scan_left_of_its_release(tmp_path: Path, dead: int) -> None:
    folder = tmp_path / "example" / "0123456789ab"
    left = folder.with_name(f".{folder.name}.{dead}.0123abcd.part")
    (left / "release").mkdir(parents=True)
    spec = {"spec": {}, "rows": 3}
    made = anyio.run(preparing._build_release, folder, spec, lambda *_: None)
    assert made.workload.is_file()
    assert list(folder.parent.iterdir()) == [folder]
    (folder / "release" / "stray").write_text("of another build")
    anyio.run(preparing._build_release, folder, spec, lambda *_: None)
    assert list(folder.parent.iterdir()) == [folder]
    assert not (folder / "release" / "stray").exists()
