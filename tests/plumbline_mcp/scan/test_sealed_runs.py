"""Only a run whose manifest is the one that was logged at sealing is judged."""

import json
import shutil
import sys
from pathlib import Path

import anyio
import numpy as np
import pytest
from safetensors.numpy import save_file

from checks.records.runs import Job
from checks.verdict import Outcome, Verdict
from plumbline_mcp.engines import foreground
from plumbline_mcp.engines.local.sweeping import sweep
from plumbline_mcp.engines.sealing import seal
from plumbline_mcp.errors import UsageError
from plumbline_mcp.scan.service import run_check
from plumbline_mcp.workspace import RunState, Workspace
from tests.checks import tiny_release
from tests.plumbline_mcp.engines.small_pack import launch


def release(folder: Path) -> Path:
    made = tiny_release.write_release(folder / "release")
    (made / "config.json").write_text("{}")
    save_file({"w": np.arange(4, dtype=np.float32)}, made / "model.safetensors")
    return made


def exported(workspace: Workspace, folder: Path) -> None:
    body = "import shutil\nshutil.copytree(job['inputs']['model'], output, dirs_exist_ok=True)"
    inputs = {"model": release(folder)}
    anyio.run(foreground.run, workspace, launch(folder, sys.executable, body, inputs=inputs))


def judged(workspace: Workspace, folder: Path, export: str = "export-0001") -> Verdict:
    inputs = {"original": str(folder / "release"), "export": export, "framework": str(folder / "pack")}
    return anyio.run(run_check, workspace, "export", inputs)


def test_a_sealed_run_is_judged(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path / "home")
    exported(workspace, tmp_path)
    verdict = judged(workspace, tmp_path)
    values = next(part for part in verdict.parts if part.name == "values")
    assert values.outcome is Outcome.PASS
    assert "manifest" not in verdict.reason


def test_a_run_that_was_stopped_between_writing_and_logging_its_manifest_is_not_judged(
    tmp_path: Path,
) -> None:
    workspace = Workspace.open(tmp_path / "home")
    exported(workspace, tmp_path)
    unlogged = workspace.runs / "export-0002"
    shutil.copytree(workspace.runs / "export-0001", unlogged)
    job = json.loads((unlogged / "job.json").read_text()) | {"run_id": "export-0002"}
    (unlogged / "job.json").write_text(json.dumps(job))
    seal(unlogged)
    workspace.add_run(Job.model_validate(job))
    verdict = judged(workspace, tmp_path, "export-0002")
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "none was logged" in verdict.reason
    assert "rerun the procedure" in verdict.next_step
    assert sweep(workspace) == ["export-0002"]
    assert workspace.run("export-0002").state is RunState.LOST
    assert not unlogged.exists()


def test_a_run_with_another_manifest_than_the_logged_one_is_not_judged(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path / "home")
    exported(workspace, tmp_path)
    manifest = workspace.runs / "export-0001" / "manifest.json"
    manifest.write_text(manifest.read_text() + "\n")
    verdict = judged(workspace, tmp_path)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "was logged" in verdict.reason


@pytest.mark.parametrize("spelling", ["detour", "link", "copy"])
def test_a_resealed_run_is_found_however_its_path_is_spelled(tmp_path: Path, spelling: str) -> None:
    workspace = Workspace.open(tmp_path / "home")
    exported(workspace, tmp_path)
    run = workspace.runs / "export-0001"
    manifest = run / "manifest.json"
    manifest.write_text(manifest.read_text() + "\n")
    path = workspace.runs / ".." / "runs" / "export-0001"
    if spelling == "link":
        path = tmp_path / "link"
        path.symlink_to(run)
    elif spelling == "copy":
        path = shutil.copytree(run, tmp_path / "copy")
    verdict = judged(workspace, tmp_path, str(path))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "was logged" in verdict.reason


def test_a_folder_here_does_not_shadow_a_run_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = Workspace.open(tmp_path / "home")
    exported(workspace, tmp_path)
    (tmp_path / "cwd" / "export-0001").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "cwd")
    assert judged(workspace, tmp_path).run_id == "export-0001"


def test_the_id_of_a_verdict_is_refused_where_a_run_is_wanted(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path / "home")
    exported(workspace, tmp_path)
    verdict = judged(workspace, tmp_path)
    with pytest.raises(UsageError, match=f"{verdict.id} is a verdict") as refused:
        judged(workspace, tmp_path, verdict.id)
    assert refused.value.next_step == "its run is export-0001"
    lone = workspace.add_verdict(verdict.model_copy(update={"run_id": None}), {})
    with pytest.raises(UsageError, match=f"{lone.id} is a verdict") as refused:
        judged(workspace, tmp_path, lone.id)
    assert f"plumbline show {lone.id}" in refused.value.next_step


def test_a_file_with_the_name_of_a_verdict_is_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace.open(tmp_path / "home")
    exported(workspace, tmp_path)
    verdict = judged(workspace, tmp_path)
    shutil.copytree(workspace.runs / "export-0001" / "output", tmp_path / verdict.id)
    monkeypatch.chdir(tmp_path)
    assert judged(workspace, tmp_path, verdict.id).run_id is None


def test_a_run_of_another_workspace_is_judged_and_said_to_be_one(tmp_path: Path) -> None:
    exported(Workspace.open(tmp_path / "theirs"), tmp_path)
    verdict = judged(Workspace.open(tmp_path / "ours"), tmp_path, str(tmp_path / "theirs/runs/export-0001"))
    assert verdict.run_id is None
    assert "only its own manifest vouches" in verdict.stand_ins[-1]
