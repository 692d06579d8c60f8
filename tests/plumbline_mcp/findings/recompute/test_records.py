"""One altered element changes the answer; hostile and missing records are inconclusive, never a pass."""

import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from plumbline_mcp.findings.questions import Question, Submission
from plumbline_mcp.findings.recompute import known, recompute
from tests.checks.trained_runs import seal
from tests.plumbline_mcp.findings.recompute.judged import Judged, changed_bytes, element

STEP = "records/rank-00000/step-000001.safetensors"
UP = "layers.0.up_proj.weight"
ALTERED = {
    f"after.{UP}": "update-differs",
    f"state.after.{UP}.exp_avg": "state-differs",
    f"grad.used.{UP}": "clip-differs",
    "micro.0.token_weight": "token-weights-differ",
    "micro.1.logprob": "further-loss-term",
}
"""Tensor to what shows: a log-probability alone cannot be told from a loss with a further term."""


def flip(run: Path, copy: Path, name: str, tensor: str, at: int) -> Path:
    """A run sealed anew with one bit of one element's exponent turned over."""
    place = element(run / name, tensor, at)
    return changed_bytes(run, copy, name, lambda raw: raw.__setitem__(place, raw[place] ^ 1))


def ask(run: Path, check: str = "optimizer_step", **more: Any) -> Submission:
    return recompute(run.parent, Question(check=check, records=(run.name,), **more))


def supervised(run: Path, tensor: str) -> int:
    """An element that a supervised token's record holds."""
    values = load_file(run / STEP)[tensor].reshape(-1)
    return int(np.flatnonzero(values)[0])


@pytest.mark.parametrize("tensor", ALTERED)
def test_one_altered_element_of_a_step_is_told_where_it_is(
    single: dict[str, Path], tmp_path: Path, tensor: str
) -> None:
    run = single["adamw"]
    assert ask(run).outcome == "pass"
    answer = ask(flip(run, tmp_path / "altered", STEP, tensor, supervised(run, tensor)))
    assert answer.outcome == ("inconclusive" if tensor == "micro.1.logprob" else "fail")
    assert ALTERED[tensor] in {problem.code for problem in answer.problems}
    met = [problem.where for problem in answer.problems if problem.code == ALTERED[tensor]]
    assert met[0]["step"] == 1
    assert tensor.startswith("micro") or met[0]["tensor"] == UP


def test_an_element_altered_after_sealing_is_inconclusive(single: dict[str, Path], tmp_path: Path) -> None:
    run = shutil.copytree(single["adamw"], tmp_path / "altered")
    raw = bytearray((run / STEP).read_bytes())
    raw[-1] ^= 1
    (run / STEP).write_bytes(raw)
    answer = ask(run)
    assert (answer.outcome, answer.problems) == ("inconclusive", ())
    assert "was changed after it was sealed" in answer.reason


def test_one_altered_element_of_a_load_is_told(loads: dict[str, Judged], tmp_path: Path) -> None:
    folder = shutil.copytree(loads["clean"].folder, tmp_path / "load")
    name = "records/rank-00000/loaded-2-000.safetensors"
    tensor = "model.layers.0.mlp.up_proj.weight"
    flip(folder / "record-1", folder / "record-2", name, tensor, 7)
    asked = loads["clean"].asked.model_copy(update={"records": ("record-2",)})
    answer = recompute(folder, asked)
    assert answer.outcome == "inconclusive"
    assert answer.problems[0].where == {"tensor": tensor}


def test_one_altered_element_of_an_export_fails_where_it_is(
    exports: dict[str, Judged], tmp_path: Path
) -> None:
    folder = shutil.copytree(exports["clean"].folder, tmp_path / "export")
    file, tensor = folder / "record-1" / "model.safetensors", "model.layers.1.mlp.down_proj.weight"
    place = element(file, tensor, 11)
    raw = bytearray(file.read_bytes())
    raw[place] ^= 1
    file.write_bytes(raw)
    answer = recompute(folder, exports["clean"].asked)
    assert answer.outcome == "fail"
    assert answer.place == {"tensor": tensor, "file": "model.safetensors"}
    assert answer.values["values: elements that differ"] == 1


def test_one_altered_label_fails_where_it_is(dumps: dict[str, Judged], tmp_path: Path) -> None:
    folder = shutil.copytree(dumps["clean"].folder, tmp_path / "rows")
    lines = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    at = next(n for n, label in enumerate(lines[5]["labels"]) if label != -100)
    lines[5]["labels"][at] += 1
    (folder / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    answer = recompute(folder, dumps["clean"].asked)
    assert answer.outcome == "fail"
    assert (answer.place["row"], answer.place["token"]) == (5, at)


def _no_manifest(run: Path) -> None:
    (run / "manifest.json").unlink()


def _no_step(run: Path) -> None:
    for path in run.glob("records/rank-*/step-*"):
        path.unlink()
    seal(run)


def _long_header(run: Path) -> None:
    (run / STEP).write_bytes(struct.pack("<Q", 2**60) + b"{}")
    seal(run)


def _tensor_outside(run: Path) -> None:
    header = json.dumps({"after.x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 1 << 40]}}).encode()
    (run / STEP).write_bytes(struct.pack("<Q", len(header)) + header)
    seal(run)


def _deep_line(run: Path) -> None:
    (run / "records/rank-00000/steps.jsonl").write_text("[" * 100_000 + "\n")
    seal(run)


def _nothing_fits(run: Path) -> None:
    line = {"step": 1, "groups": 7, "micro_batches": {"a": 1}, "clip": [1], "gradient_squares_raw": []}
    (run / "records/rank-00000/steps.jsonl").write_text(json.dumps(line) + "\n")
    seal(run)


def _odd_numbers(run: Path) -> None:
    path = run / "records/rank-00000/steps.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["groups"][0]["lr"] = {"a": 1}
    lines[0]["micro_batches"][0]["rows"] = "many"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    seal(run)


def _a_link_out(run: Path) -> None:
    target = run.parent / "elsewhere"
    target.write_bytes((run / STEP).read_bytes())
    seal(run)
    (run / STEP).unlink()
    (run / STEP).symlink_to(target)


def _recorder_failed(run: Path) -> None:
    (run / "records/rank-00000/recorder-failed.json").write_text(json.dumps({"what": "x", "why": "y"}))
    seal(run)


HOSTILE: tuple[Callable[[Path], None], ...] = (
    _no_manifest, _no_step, _long_header, _tensor_outside, _deep_line, _nothing_fits, _a_link_out,
    _recorder_failed,
)  # fmt: skip


@pytest.mark.parametrize("spoil", HOSTILE, ids=lambda each: each.__name__)
def test_a_record_that_does_not_hold_is_inconclusive(
    single: dict[str, Path], tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    run = shutil.copytree(single["adamw"], tmp_path / "run")
    spoil(run)
    answer = ask(run)
    assert answer.outcome == "inconclusive"
    assert answer.reason


def test_numbers_that_are_none_never_pass(single: dict[str, Path], tmp_path: Path) -> None:
    run = shutil.copytree(single["adamw"], tmp_path / "run")
    _odd_numbers(run)
    assert ask(run).outcome != "pass"


def test_records_of_random_bytes_are_answered_and_never_raise(
    single: dict[str, Path], builds: dict[str, Judged], loads: dict[str, Judged], tmp_path: Path
) -> None:
    random = Random(7)
    build = shutil.copytree(builds["gpt-oss"].folder, tmp_path / "build")
    load = shutil.copytree(loads["clean"].folder, tmp_path / "load")
    shutil.copytree(single["adamw"], tmp_path / "training" / "record-1")
    asked = Question(check="optimizer_step", records=("record-1",))
    folders = {build: builds["gpt-oss"].asked, load: loads["clean"].asked, tmp_path / "training": asked}
    for folder, question in folders.items():
        run = folder / "record-1"
        files = [path for path in run.rglob("*") if path.suffix in (".json", ".jsonl", ".safetensors")]
        for _ in range(20):
            path = random.choice([each for each in files if each.name != "manifest.json"])
            right = path.read_bytes()
            raw = bytearray(right)
            for _ in range(random.randint(1, 12)):
                raw[random.randrange(min(len(raw), 4000))] = random.randrange(256)
            path.write_bytes(raw)
            seal(run)
            assert recompute(folder, question).reason
            path.write_bytes(right)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"attention_bias": None}, "config-unknown"),
        ({"model_type": "unheard_of"}, "value-unknown"),
        ({"rope_parameters": {"rope_type": "unheard_of", "rope_theta": 1e4}}, "buffer-unknown"),
    ],
)
def test_what_a_configuration_does_not_give_of_a_build_is_no_pass(
    builds: dict[str, Judged], tmp_path: Path, change: dict[str, Any], code: str
) -> None:
    one = builds["clean"]
    folder = shutil.copytree(one.folder, tmp_path / "build")
    config = json.loads((folder / "release" / "config.json").read_text()) | change
    stated = {key: value for key, value in config.items() if value is not None}
    (folder / "release" / "config.json").write_text(json.dumps(stated))
    answer = recompute(folder, one.asked)
    assert answer.outcome != "pass"
    assert code in {problem.code for problem in answer.problems}


def test_modules_that_were_not_recorded_decide_nothing(builds: dict[str, Judged], tmp_path: Path) -> None:
    one = builds["clean"]
    folder = shutil.copytree(one.folder, tmp_path / "build")
    (folder / "record-1" / "records/rank-00000/built.jsonl").unlink()
    seal(folder / "record-1")
    assert recompute(folder, one.asked).outcome == "inconclusive"


def test_what_has_no_recomputation_says_so() -> None:
    answer = recompute(Path("/nonexistent"), Question(check="serving"))
    assert (answer.outcome, answer.reason) == ("inconclusive", "there is no recompute of the check serving")
    for check in known():
        assert recompute(Path("/nonexistent"), Question(check=check)).outcome == "inconclusive"


def test_the_program_answers_from_a_folder_alone(loads: dict[str, Judged], tmp_path: Path) -> None:
    """No workspace, no verdict and no database: the copied folder, and a process that sees no user's path."""
    one = loads["transposed"]
    folder = shutil.copytree(one.folder, tmp_path / "anywhere")
    (folder / "question.json").write_text(one.asked.model_dump_json())
    (folder / "numpy.py").write_text("raise SystemExit('taken over')")
    command = [sys.executable, "-I", "-m", "plumbline_mcp.findings.recompute", str(folder)]
    done = subprocess.run(
        [*command, str(folder / "question.json")],
        cwd=folder,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert Submission.model_validate_json(done.stdout) == one.answer()
    assert one.answer().outcome == "fail"
    wrong = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (wrong.returncode, "usage:" in wrong.stderr) == (3, True)
