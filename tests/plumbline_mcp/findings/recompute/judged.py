"""Real records judged twice: by the check, and by the recomputation on a question that says nothing of it."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from checks import build, data, export, load, optimizer_step
from checks.check import evaluate
from checks.verdict import Outcome, Problem, Verdict
from plumbline_mcp.findings.comparison import Comparison, compare
from plumbline_mcp.findings.copying import measured_values
from plumbline_mcp.findings.finding import Claim
from plumbline_mcp.findings.questions import Question, Submission
from plumbline_mcp.findings.recompute import recompute
from tests.checks import tiny_release
from tests.checks.loaded_runs import recorded
from tests.checks.trained_runs import seal

Tensors = dict[str, torch.Tensor]
UNASKED = ("units of the bound", "show half of it", "second reference", "locked versions", "byte code")
"""Measurements that hang on how a bound was derived, or on what the recomputation does not look at."""


@dataclass(frozen=True)
class Judged:
    """A record with its verdict; ``asked`` lies in ``folder``."""

    name: str
    verdict: Verdict
    folder: Path
    asked: Question

    def answer(self) -> Submission:
        """The recomputation's answer."""
        return recompute(self.folder, self.asked)

    def headline(self) -> tuple[str, Problem]:
        """The part and the problem that the verdict names first."""
        verdict = self.verdict
        named = [each for each in verdict.problems() if verdict.reason.startswith(f"{each[0]}: ")]
        return next(each for each in named if each[1].outcome is verdict.outcome)

    def place(self) -> dict[str, Any]:
        """Where the fault lies, empty for a pass."""
        if self.verdict.outcome is not Outcome.FAIL:
            return {}
        found: dict[str, Any] = self.headline()[1].place.model_dump(exclude_none=True)
        return found

    def measured(self) -> dict[str, float]:
        """The values that the check measured and the recomputation can give."""
        found = measured_values(self.verdict)
        return {name: value for name, value in found.items() if not any(word in name for word in UNASKED)}

    def claim(self, **changes: Any) -> Claim:
        """The right claim, or one with other fields."""
        fields = {"outcome": str(self.verdict.outcome), "place": self.place(), "values": self.measured()}
        return Claim(check=self.verdict.check, **{**fields, **changes})

    def compared(self, claim: Claim | None = None) -> Comparison:
        """A claim beside the answer."""
        return compare(claim or self.claim(), self.answer())


def training(run: Path) -> Judged:
    """A run of a plain training."""
    verdict = evaluate(optimizer_step.CHECK, optimizer_step.StepInputs(run=run))
    return Judged(run.name, verdict, run.parent, Question(check="optimizer_step", records=(run.name,)))


def loading(folder: Path, release: Path, model: torch.nn.Module, **how: Any) -> Judged:
    """A recorded load of a release that lies in ``folder``."""
    run = recorded(folder / "record-1", model, **how)
    return load_run(run, release)


def load_run(run: Path, release: Path) -> Judged:
    """A sealed load; the release lies beside it."""
    verdict = evaluate(load.CHECK, load.LoadInputs(run=run, model=release))
    files = {"model": release.relative_to(run.parent).as_posix()}
    return Judged(
        run.parent.name, verdict, run.parent, Question(check="load", records=(run.name,), files=files)
    )


def build_run(run: Path, release: Path, **inputs: Any) -> Judged:
    """A sealed build; the release lies beside it."""
    verdict = evaluate(build.CHECK, build.BuildInputs(run=run, model=release, **inputs))
    files = {"model": release.relative_to(run.parent).as_posix()}
    asked = Question(check="build", records=(run.name,), files=files)
    return Judged(run.parent.name, verdict, run.parent, asked)


def exported(folder: Path, **more: str) -> Judged:
    """``folder/original`` and ``folder/record-1``; ``more``: arguments that are folders in there."""
    paths = {name: folder / value for name, value in more.items() if name != "framework"}
    given: dict[str, Any] = {**paths, **({"framework": more["framework"]} if "framework" in more else {})}
    inputs = export.ExportInputs(original=folder / "original", export=folder / "record-1", **given)
    verdict = evaluate(export.CHECK, inputs)
    asked = Question(
        check="export",
        records=("record-1",),
        files={"original": "original"},
        inputs={"original": "original", "export": "record-1", **more},
    )
    return Judged(folder.name, verdict, folder, asked)


def rows(folder: Path, dump: list[dict[str, Any]], release: Path, **settings: Any) -> Judged:
    """A dump of rows of the tiny release's workload, which is copied into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "model").exists():
        shutil.copytree(release, folder / "model")
    workload = tiny_release.write_workload(folder / "workload.jsonl")
    path = tiny_release.write_rows(folder / "rows.jsonl", dump)
    inputs = data.DataInputs(model=folder / "model", workload=workload, rows=path, **settings)
    verdict = evaluate(data.CHECK, inputs)
    asked = Question(
        check="data",
        records=("rows.jsonl",),
        files={"model": "model", "workload": "workload.jsonl"},
        inputs={"rows": "rows.jsonl", **settings},
    )
    return Judged(folder.name, verdict, folder, asked)


def changed_bytes(run: Path, copy: Path, name: str, change: Callable[[bytearray], object]) -> Path:
    """A copy of a run with other bytes in one file, sealed anew."""
    shutil.copytree(run, copy)
    raw = bytearray((copy / name).read_bytes())
    change(raw)
    (copy / name).write_bytes(raw)
    seal(copy)
    return copy


def element(path: Path, tensor: str, at: int) -> int:
    """The byte of a safetensors file at which an element's highest byte lies."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    about = json.loads(raw[8 : 8 + length])[tensor]
    width = {"F32": 4, "BF16": 2, "F64": 8, "I64": 8, "I32": 4}[about["dtype"]]
    return 8 + length + int(about["data_offsets"][0]) + (at + 1) * width - 1
