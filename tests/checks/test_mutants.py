"""Every discovered check, with its judge replaced by one that always passes, comes out inconclusive."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaForCausalLM

import checks
from checks.check import Check, Progress, evaluate
from checks.verdict import Caught, Outcome, Part
from tests.checks import built_runs, loaded_runs, tiny_release
from tests.checks.export_pairs import write_llama
from tests.checks.test_image import Image
from tests.checks.trained_runs import train_all


def image_inputs(folder: Path) -> dict[str, Any]:
    image = Image(folder)
    return {"python": image.python, "framework": str(folder / "pack")}


def data_inputs(folder: Path) -> dict[str, Any]:
    return {
        "model": tiny_release.write_release(folder / "release"),
        "workload": tiny_release.write_workload(folder / "workload.jsonl"),
        "rows": tiny_release.write_rows(folder / "rows.jsonl", tiny_release.rows()),
    }


def export_inputs(folder: Path) -> dict[str, Any]:
    original = write_llama(folder / "original")
    return {"original": original, "export": shutil.copytree(original, folder / "export")}


def load_inputs(folder: Path) -> dict[str, Any]:
    release = write_llama(folder / "release")
    model = LlamaForCausalLM.from_pretrained(release, dtype="bfloat16")
    return {"run": loaded_runs.recorded(folder / "run", model, dtype="bfloat16"), "model": release}


def build_inputs(folder: Path) -> dict[str, Any]:
    release = write_llama(folder / "release")
    return {"run": built_runs.built(folder / "run", release), "model": release}


def optimizer_step_inputs(folder: Path) -> dict[str, Any]:
    return {"run": train_all(folder, {"clean": {}})["clean"]}


CLEAN: dict[str, Callable[[Path], dict[str, Any]]] = {
    "image": image_inputs,
    "data": data_inputs,
    "build": build_inputs,
    "load": load_inputs,
    "export": export_inputs,
    "optimizer_step": optimizer_step_inputs,
}


def always_passes(honest: Check[Any, Any]) -> Check[Any, Any]:
    """The same check with a judge that says what the honest one says of a clean input, whatever it sees."""

    class Mutant(type(honest)):  # type: ignore[misc]
        def judge(self, case: Any, progress: Progress) -> list[Part]:
            return [Part(name=fault.part, outcome=Outcome.PASS) for fault in self.faults]

    return Mutant()


def test_every_check_has_a_clean_case_here() -> None:
    assert set(CLEAN) == set(checks.discover())


@pytest.mark.parametrize("name", sorted(checks.discover()))
def test_the_honest_judge_passes_and_the_mutant_does_not(name: str, tmp_path: Path) -> None:
    check = checks.discover()[name]
    inputs = check.inputs.model_validate(CLEAN[name](tmp_path))
    honest, mutant = evaluate(check, inputs), evaluate(always_passes(check), inputs)
    assert honest.outcome is Outcome.PASS
    assert Caught.MISSED not in {injection.result for injection in honest.injected}
    assert Caught.CAUGHT in {injection.result for injection in honest.injected}
    assert mutant.outcome is Outcome.INCONCLUSIVE
    assert "did not catch" in mutant.reason
