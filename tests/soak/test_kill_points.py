"""Ten seeded kill points over the installed program; ``make soak`` plays more, over every program."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.left_behind import Facts
from tests.soak.points import Clean, Point, choose, play, rehearse
from tests.soak.processes import belonging, descendants, wait_until_gone
from tests.soak.programs import QUICK, Inputs, Place, Program

POINTS = list(choose(QUICK, 10, seed=20261130))


class Rehearsed:
    """Clean runs, each made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._inputs, self._made = folder, Inputs(folder / "inputs"), dict[str, Clean]()

    def clean(self, name: str) -> Clean:
        if name not in self._made:
            program = self._inputs.program(name)
            self._made[name] = rehearse(program, self._folder / "rehearsal" / name, warm=False)
        return self._made[name]


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Rehearsed:
    return Rehearsed(tmp_path_factory.mktemp("soak"))


def _named(point: Point) -> str:
    return f"{point.program}-{point.signal}-{point.fraction:.2f}".replace(" ", "-")


@pytest.mark.parametrize("point", POINTS, ids=_named)
def test_a_program_stopped_at_any_moment_leaves_nothing_and_runs_again(
    point: Point, rehearsed: Rehearsed, tmp_path: Path
) -> None:
    played = play(rehearsed.clean(point.program), point, tmp_path / "place")
    assert played.violations == []


def test_the_points_cover_every_quick_program_and_mostly_kill() -> None:
    assert {point.program for point in POINTS} == set(QUICK)
    assert sum(point.signal == "KILL" for point in POINTS) >= 4
    assert list(choose(QUICK, 10, seed=20261130)) == POINTS


HOSTILE = """#!/bin/sh
if [ -e again ]; then exit 5; fi
touch again
mkdir -p "$PLUMBLINE_HOME/reports/latest"
echo '<html>' > "$PLUMBLINE_HOME/reports/latest/report.html"
touch "$PLUMBLINE_HOME/reports/latest/.report.md.1234567.0123abcd.part"
setsid sleep 60 &
sleep 60
"""


def test_the_soak_sees_what_it_looks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that leaves a process, half a page and a temporary file, and does not run again."""
    monkeypatch.setattr("tests.soak.points.GRACE_S", 0.5)
    script = tmp_path / "hostile"
    script.write_text(HOSTILE)
    script.chmod(0o700)
    program = Program("hostile", (), launcher=script)
    facts, kept = Facts((), (), ("reports/latest/report.html",)), {"home/reports", "home/reports/latest"}
    clean = Clean(program, 1.0, 0, facts, frozenset(kept), {}, 0)
    played = play(clean, Point("hostile", "TERM", 0.9), tmp_path / "place")
    assert any("survived: sleep 60" in text for text in played.survivors)
    assert "home/reports/latest/report.html is not whole" in " ".join(played.half_written)
    assert any(".report.md-N.part was left behind" in text for text in played.half_written)
    assert any("exit code 5 where a clean run has 0" in text for text in played.rerun)
    assert not belonging(tmp_path / "place", set(), os.getpid())


def test_a_process_that_hides_its_folder_is_known_as_a_descendant(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", "import subprocess; subprocess.run(['/bin/sleep', '60'], cwd='/', env={})"],
        cwd=Place(tmp_path).make().folder,
    )
    while not any(one.command == "/bin/sleep 60" for one in descendants(parent.pid)):
        pass
    known = descendants(parent.pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert [one.command for one in belonging(tmp_path, known, parent.pid)] == ["/bin/sleep 60"]
    assert [one.command for one in belonging(tmp_path, set(), parent.pid)] == []
    wait_until_gone(tmp_path, known, parent.pid, 0.0)
    assert wait_until_gone(tmp_path, known, parent.pid, 5.0)[1] == []
