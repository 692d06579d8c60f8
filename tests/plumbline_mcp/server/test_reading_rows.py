"""A run's rows are decoded with the release that the run was started with."""

import json
import shutil
from pathlib import Path
from typing import Any

from checks.check import silent
from plumbline_mcp.server.reading.rows import read_rows
from tests.checks.test_data_runs import documents, seal, write_run
from tests.checks.tiny_release import write_release


def texts(path: Path) -> list[Any]:
    asked = {"path": str(path), "model": None, "first": 0, "count": 1, "token": None, "window": 0}
    return [span["untrusted_text"] for span in read_rows(asked, silent)["rows"][0]["spans"]]


def test_a_run_knows_its_own_tokenizer(tmp_path: Path) -> None:
    release = write_release(tmp_path / "release")
    run = write_run(tmp_path / "run", {0: documents([1])})
    job = json.loads((run / "job.json").read_text()) | {"inputs": {"model": str(release)}}
    (run / "job.json").write_text(json.dumps(job))
    seal(run)
    assert any("apples" in text for text in texts(run))
    shutil.rmtree(release)
    assert set(texts(run)) == {None}
