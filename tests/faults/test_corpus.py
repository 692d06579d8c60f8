"""The recall corpus: every entry is valid, and the quick ones are found where they were planted."""

from pathlib import Path

import anyio
import pytest

from plumbline_mcp.scan import faults
from plumbline_mcp.scan.fault_entries import load_corpus
from plumbline_mcp.scan.fault_scoring import Score
from plumbline_mcp.workspace import Workspace

HERE = Path(__file__).parent


def test_every_entry_is_valid_and_every_plant_is_used() -> None:
    corpus = load_corpus(HERE)
    used = {name for entry in corpus.entries for name in entry.plant.scripts}
    assert used == {path.name for path in (HERE / "plants").glob("*.py")}


def test_each_check_has_planted_faults_and_a_clean_counterpart() -> None:
    corpus = load_corpus(HERE)
    for check in ("image", "data", "build", "load", "optimizer_step", "export"):
        assert any(expected.check == check for entry in corpus.entries for expected in entry.expect)
        assert any(entry.clean and check in entry.checks for entry in corpus.entries)
        quick = [entry for entry in corpus.entries if entry.quick and check in entry.checks]
        assert {entry.clean for entry in quick} == {True, False}


@pytest.mark.environment
def test_quick_entries_are_found_at_their_place_and_clean_ones_stay_quiet(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path / "home")
    played = anyio.run(lambda: faults.run(workspace, HERE, quick=True, jobs=2))
    wrong = {r.id: (r.score.value, r.seen, r.extra, r.reason) for r in played.results if not _good(r.score)}
    assert not wrong
    assert played.good
    assert played.faults_found == played.faults > 0


def _good(score: Score) -> bool:
    return score in (Score.FOUND, Score.QUIET)


_IDLE = """
id = "idle"
title = "A plant that does nothing"
mechanism = "none"
pattern = 1
silent = true
source = "this test"
checks = ["data"]
rows = 8

[plant]
hook = "idle.py"

[[expect]]
check = "data"
part = "stop"
code = "stop-unlabelled"
"""


@pytest.mark.environment
def test_a_plant_that_does_nothing_is_reported_as_missed(tmp_path: Path) -> None:
    (tmp_path / "corpus" / "entries").mkdir(parents=True)
    (tmp_path / "corpus" / "plants").mkdir()
    (tmp_path / "corpus" / "entries" / "idle.toml").write_text(_IDLE)
    (tmp_path / "corpus" / "plants" / "idle.py").write_text('"""Nothing."""\n')
    workspace = Workspace.open(tmp_path / "home")
    played = anyio.run(lambda: faults.run(workspace, tmp_path / "corpus"))
    assert [result.score for result in played.results] == [Score.MISSED]
    assert not played.good
