"""Settings of processors (images, audio, video) beside the tokenizer, in the export check."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checks.verdict import Caught, Outcome, Verdict
from tests.checks.export_pairs import export_check, write_llama

IMAGES = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "image_mean": [0.48, 0.46, 0.41],
    "image_std": [0.27, 0.26, 0.28],
    "patch_size": 14,
    "max_pixels": 1003520,
    "processor_class": "Qwen2VLProcessor",
}
WHOLE = {"processor_class": "Qwen2VLProcessor", "image_seq_length": 64}


@pytest.fixture
def release(tmp_path: Path) -> Path:
    folder = write_llama(tmp_path / "release")
    write(folder, "preprocessor_config.json", IMAGES)
    write(folder, "processor_config.json", WHOLE)
    return folder


def write(folder: Path, name: str, content: dict[str, Any]) -> None:
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


def judged(release: Path, tmp_path: Path, change: Callable[[Path], object]) -> Verdict:
    export = shutil.copytree(release, tmp_path / "export")
    change(export)
    return export_check(release, export)


def found(verdict: Verdict) -> set[tuple[str, Outcome, str | None, str | None]]:
    return {
        (problem.code, problem.outcome, problem.place.file, problem.place.field)
        for name, problem in verdict.problems()
        if name == "processor"
    }


def outcome(verdict: Verdict) -> Outcome:
    return next(part.outcome for part in verdict.parts if part.name == "processor")


def test_the_releases_processors_pass_and_a_lost_one_is_caught(release: Path, tmp_path: Path) -> None:
    verdict = judged(release, tmp_path, lambda export: None)
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert outcome(verdict) is Outcome.PASS
    assert {each.fault: each.result for each in verdict.injected}["a lost processor"] is Caught.CAUGHT


def test_a_release_without_processors_has_none_to_compare(tmp_path: Path) -> None:
    verdict = judged(write_llama(tmp_path / "plain"), tmp_path, lambda export: None)
    part = next(part for part in verdict.parts if part.name == "processor")
    assert (verdict.outcome, part.applicable) == (Outcome.PASS, False)


def test_a_lost_file_fails(release: Path, tmp_path: Path) -> None:
    verdict = judged(release, tmp_path, lambda export: (export / "preprocessor_config.json").unlink())
    assert found(verdict) == {("file-missing", Outcome.FAIL, "preprocessor_config.json", None)}
    assert verdict.outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("field", "value"), [("max_pixels", 501760), ("image_mean", [0.5, 0.5, 0.5]), ("patch_size", 16)]
)
def test_a_setting_that_differs_fails(release: Path, tmp_path: Path, field: str, value: Any) -> None:
    changed = IMAGES | {field: value}
    verdict = judged(release, tmp_path, lambda export: write(export, "preprocessor_config.json", changed))
    assert found(verdict) == {("field-differs", Outcome.FAIL, "preprocessor_config.json", field)}


def test_a_setting_that_one_side_leaves_to_the_class_is_not_passed(release: Path, tmp_path: Path) -> None:
    changed = IMAGES | {"do_resize": False, "crop_size": None, "patch_size": None}
    verdict = judged(release, tmp_path, lambda export: write(export, "preprocessor_config.json", changed))
    assert found(verdict) == {
        ("field-unknown", Outcome.INCONCLUSIVE, "preprocessor_config.json", name)
        for name in ("do_resize", "patch_size")
    }
    assert verdict.outcome is Outcome.INCONCLUSIVE


def test_processors_inside_one_file_mean_the_same(release: Path, tmp_path: Path) -> None:
    """As transformers 5 writes them, with the fast class."""
    inside = IMAGES | {"image_processor_type": "Qwen2VLImageProcessorFast", "device": None}

    def gather(export: Path, images: dict[str, Any]) -> None:
        (export / "preprocessor_config.json").unlink()
        write(export, "processor_config.json", WHOLE | {"image_processor": images})

    verdict = judged(release, tmp_path, lambda export: gather(export, inside))
    assert verdict.outcome is Outcome.PASS, verdict.reason
    (tmp_path / "again").mkdir()
    verdict = judged(release, tmp_path / "again", lambda export: gather(export, inside | {"patch_size": 16}))
    assert found(verdict) == {("field-differs", Outcome.FAIL, "processor_config.json", "patch_size")}


def test_a_file_that_is_no_object_fails(release: Path, tmp_path: Path) -> None:
    def spoil(export: Path) -> None:
        (export / "preprocessor_config.json").write_text("[1, 2]", encoding="utf-8")

    verdict = judged(release, tmp_path, spoil)
    assert verdict.outcome is Outcome.FAIL
    assert {(each.code, each.place.file) for _, each in verdict.problems()} == {
        ("file-unreadable", "preprocessor_config.json")
    }
