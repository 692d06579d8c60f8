"""The recorder in jobs of its own kind: loads, failures of the recorder, injection into foreign commands."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.templates.played import JOBS, QUIET, lines, step_file
from tests.templates.test_recorder import OLD_PYTHONS, RECORDER, fits, header, is_python_3_9

# Loads


def test_a_load_shows_what_it_left_out(tmp_path: Path) -> None:
    shutil.copytree(RECORDER, tmp_path / "hooks/plumbline_recorder")
    done = subprocess.run(
        [sys.executable, str(JOBS / "loading.py"), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    folder = tmp_path / "records/rank-00000"
    for line in lines(folder, "fills"):
        fits("fill_line", line)
    passes = []
    for number in (1, 2):
        path = folder / f"loaded-{number}-000.safetensors"
        fits("loaded_tensors", header(path))
        passes.append(load_file(path))
    first, second = passes
    assert np.isnan(first["b.bias"]).all()
    assert np.isnan(second["b.bias"]).all()
    assert first["counts"].view(np.uint8).tolist() == [0xA5] * 12
    assert second["counts"].view(np.uint8).tolist() == [0x5A] * 12
    for name in ("a.weight", "a.bias", "b.weight", "e.weight", "h.weight"):
        assert np.isfinite(first[name]).all()
        np.testing.assert_array_equal(first[name], second[name])
    found = {(line["when"], line["name"]): line for line in lines(folder, "model")}
    for line in found.values():
        fits("model_line", line)
    assert found["loaded-1", "b.bias"]["nonfinite"] == 3
    assert found["loaded-1", "h.weight"]["same_as"] == "e.weight"
    assert found["meta", "a.weight"]["sha256"] is None
    assert found["loaded-1", "scratch"]["persistent"] is False
    filled = {name for line in lines(folder, "fills") for name in line["names"]}
    assert "scratch" not in filled


def test_memory_that_a_load_is_handed_is_filled_though_it_held_the_right_values(tmp_path: Path) -> None:
    shutil.copytree(RECORDER, tmp_path / "hooks/plumbline_recorder")
    command = [sys.executable, str(JOBS / "loading.py"), str(tmp_path), "recycled"]
    subprocess.run(command, capture_output=True, check=True)
    folder = tmp_path / "records/rank-00000"
    found = lines(folder, "fills")
    for line in found:
        fits("fill_line", line)
    assert {(line["pass"], line["point"], line["pattern"]) for line in found} == {
        (number, "handed-out", pattern) for number in (1, 2) for pattern in ("nan", "largest")
    }
    assert {name for line in found for name in line["names"] if line["pattern"] == "largest"} == {"counts"}
    for number in (1, 2):
        tensors = load_file(folder / f"loaded-{number}-000.safetensors")
        left = {name: np.isnan(value).sum(-1).tolist() for name, value in tensors.items() if value.ndim == 2}
        assert left.pop("a.weight") == [0, 0, 0, 0, 3]
        assert not any(any(rows) for rows in left.values())


def test_a_second_load_call_does_not_wipe_the_first(tmp_path: Path) -> None:
    shutil.copytree(RECORDER, tmp_path / "hooks/plumbline_recorder")
    command = [sys.executable, str(JOBS / "loading.py"), str(tmp_path), "in-parts"]
    subprocess.run(command, capture_output=True, check=True)
    for number in (1, 2):
        tensors = load_file(tmp_path / f"records/rank-00000/loaded-{number}-000.safetensors")
        assert all(np.isfinite(value).all() for value in tensors.values())


# Failures


def failing(tmp_path: Path, how: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    shutil.copytree(RECORDER, tmp_path / "hooks/plumbline_recorder")
    command = [sys.executable, str(JOBS / "failing.py"), str(tmp_path), how]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done, tmp_path / "records/rank-00000"


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    return failing(tmp_path_factory.mktemp("clean"), "clean")[0]


@pytest.mark.parametrize("how", ["full-disk", "file-limit", "old-torch"])
def test_a_failing_recorder_lets_the_training_go_on_and_says_so(
    clean: subprocess.CompletedProcess[str], tmp_path: Path, how: str
) -> None:
    done, folder = failing(tmp_path / "bad", how)
    assert done.returncode == 0, done.stderr
    assert done.stdout == clean.stdout, "the training ends the same"
    assert "the recorder stopped" in done.stderr
    mark = json.loads((folder / "recorder-failed.json").read_text())
    fits("recorder_failed", mark)
    expected = {
        "full-disk": "No space left on device",
        "file-limit": "File too large",
        "old-torch": "cannot import name",
    }[how]
    assert expected in mark["why"]
    assert json.loads((folder / "recorder.json").read_text())["state"] == "recording"
    assert list(folder.glob("*.part")) == []


def test_the_recorder_runs_on_python_3_9_and_marks_that_torch_is_missing(tmp_path: Path) -> None:
    python = next((path for path in OLD_PYTHONS if path.is_file() and is_python_3_9(path)), None)
    if python is None:
        pytest.skip("no Python 3.9 found (pyenv or python3.9 on the PATH)")
    shutil.copytree(RECORDER, tmp_path / "hooks/plumbline_recorder")
    program = f"""
import ast, sys, types
from pathlib import Path
sys.path.append({str(tmp_path / "hooks")!r})
for path in Path({str(tmp_path / "hooks")!r}).rglob("*.py"):
    ast.parse(path.read_text())
from plumbline_recorder.training_recorder import TrainingRecorder
records = Path({str(tmp_path / "records")!r})
job = {{"settings": {{"record_steps": [1]}}}}
recorder = TrainingRecorder(types.SimpleNamespace(records=records, job=job, rank=0, world_size=1))
recorder.install()
recorder.logged(1, {{"loss": 1.0}})
recorder.close()
"""
    done = subprocess.run([python, "-I", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    mark = json.loads((tmp_path / "records/recorder-failed.json").read_text())
    assert "No module named 'torch'" in mark["why"]
    fits("recorder", json.loads((tmp_path / "records/recorder.json").read_text()))


# Injection


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_foreign_command_is_recorded_through_sitecustomize(tmp_path: Path, ranks: int) -> None:
    shutil.copytree(RECORDER, tmp_path / "hooks/plumbline_recorder")
    (tmp_path / "job.json").write_text('{"settings": {"record_steps": [2]}}')
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    )
    inject = {
        "PYTHONPATH": str(tmp_path / "hooks/plumbline_recorder/inject"),
        "PLUMBLINE_JOB": str(tmp_path / "job.json"),
    }
    for name, more in {"plain": {}, "recorded": inject}.items():
        command = [sys.executable, *launcher, str(JOBS / "foreign.py"), str(tmp_path / name)]
        subprocess.run(command, env=os.environ | QUIET | more, capture_output=True, check=True, cwd=tmp_path)
    plain, recorded = (
        {path.name: path.read_text() for path in (tmp_path / name).iterdir()}
        for name in ("plain", "recorded")
    )
    assert plain.keys() == {str(rank) for rank in range(ranks)}
    assert plain == recorded
    assert len(list((tmp_path / "records").iterdir())) == ranks, "workers and launchers record nothing"
    for rank in range(ranks):
        folder = tmp_path / f"records/rank-{rank:05d}"
        assert json.loads((folder / "recorder.json").read_text())["state"] == "complete"
        found = lines(folder, "steps")
        assert [line["recorded"] for line in found] == ["metrics", "full", "metrics", "metrics"]
        assert all(line["clip"]["max_norm"] == 0.1 for line in found), (
            "a clip that was imported early is seen"
        )
        assert all(line["micro_batches"][0]["supervised"] == 10 for line in found)
        assert step_file(folder, 2).keys() >= {"grad.raw.0.weight", "micro.0.token_weight"}


def test_the_environments_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own/sitecustomize.py").write_text("print('own one ran')")
    path = os.pathsep.join([str(RECORDER / "inject"), str(tmp_path / "own")])
    environment = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", "print('main')"], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:2] == ["own one ran", "main"]
    isolated = [sys.executable, "-I", "-c", "print('main')"]
    assert (
        subprocess.run(isolated, env=environment, capture_output=True, text=True, check=True).stdout
        == "main\n"
    )
