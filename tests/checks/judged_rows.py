"""Rows of the tiny release, judged by the data check, and what the verdict says."""

from pathlib import Path
from typing import Any

from checks.check import evaluate
from checks.data import CHECK, DataInputs
from checks.verdict import Outcome, Part, Problem, Verdict
from tests.checks import tiny_release
from tests.checks.tiny_release import write_rows, write_workload

Row = dict[str, Any]


def judged(tmp_path: Path, release: Path, dump: list[Row] | Path, **inputs: Any) -> Verdict:
    workload = inputs.pop("workload", None) or write_workload(tmp_path / "workload.jsonl")
    path = dump if isinstance(dump, Path) else write_rows(tmp_path / "rows.jsonl", dump)
    return evaluate(CHECK, DataInputs(model=release, workload=workload, rows=path, **inputs))


def part(verdict: Verdict, name: str) -> Part:
    return next(part for part in verdict.parts if part.name == name)


def failures(verdict: Verdict) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, problem in verdict.problems():
        if problem.outcome is Outcome.FAIL:
            found.setdefault(name, set()).add(problem.code)
    return found


def only(verdict: Verdict, name: str, code: str) -> Problem:
    """The first problem, after asserting that this code in this part is the only failure."""
    assert failures(verdict) == {name: {code}}
    assert verdict.outcome is Outcome.FAIL
    return part(verdict, name).problems[0]


def pad(each: Row, length: int, filler: str = "<pad>", *, left: bool = False, mask: bool = False) -> Row:
    missing = length - len(each["input_ids"])
    if missing <= 0:
        return each
    pads = [tiny_release.tokenizer().token_to_id(filler)] * missing
    real = len(each["input_ids"])
    join = (lambda new, old: new + old) if left else (lambda new, old: old + new)
    padded = {"input_ids": join(pads, each["input_ids"]), "labels": join([-100] * missing, each["labels"])}
    return padded | ({"attention_mask": join([0] * missing, [1] * real)} if mask else {})
