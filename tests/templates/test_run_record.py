"""A run folder, from both sides: what the runner writes fits the schema, and the readers take it."""

import json
import sys
from pathlib import Path

import anyio
import pytest

from checks.errors import Inconclusive
from checks.records.run_rows import read_run_rows
from checks.records.runs import RunFolder
from plumbline_mcp.engines.foreground import run
from plumbline_mcp.engines.launching import Launch
from plumbline_mcp.workspace import Workspace
from tests.plumbline_mcp.engines.small_pack import write_pack
from tests.templates.test_recorder import fits, header


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    place = tmp_path_factory.mktemp("run")
    (place / "model").mkdir()
    (place / "workload.jsonl").write_text("{}\n")
    launch = Launch(
        framework=str(write_pack(place / "pack")),
        procedure="rows",
        interpreter=Path(sys.executable),
        inputs={"model": place / "model", "workload": place / "workload.jsonl"},
    )
    return anyio.run(run, Workspace.open(place / "home"), launch)


def test_every_file_that_the_runner_writes_fits_the_schema(folder: RunFolder) -> None:
    fits("job", json.loads((folder.path / "job.json").read_text()))
    fits("exit", json.loads((folder.path / "exit/rank-00000.json").read_text()))
    fits("ending", json.loads((folder.path / "exit/job.json").read_text()))
    fits("manifest", json.loads((folder.path / "manifest.json").read_text()))
    fits("environment", json.loads((folder.path / "records/rank-00000/environment.json").read_text()))
    for name in folder.files("records/rank-00000/rows-"):
        fits("rows", header(folder.path / name))


def test_the_readers_take_what_the_recorder_wrote(folder: RunFolder) -> None:
    rows = read_run_rows(RunFolder.open(folder.path))
    assert rows.problems == ()
    assert [(each.epoch, list(each.rows)) for each in rows.dump.sequences] == [
        (1, [0]),
        (1, [1]),
        (2, [1]),
    ]


def test_a_record_of_an_unknown_format_is_refused(folder: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text((folder.path / "manifest.json").read_text())
    (tmp_path / "job.json").write_text(
        (folder.path / "job.json").read_text().replace('"format": 1', '"format": 2')
    )
    with pytest.raises(Inconclusive, match="record format 2 is unknown"):
        RunFolder.open(tmp_path)
