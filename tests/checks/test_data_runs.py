"""The data check on run folders: sealed records of every rank, and what became of the ranks."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from checks.check import evaluate
from checks.data import CHECK, DataInputs
from checks.verdict import Outcome, Verdict
from tests.checks import tiny_release
from tests.checks.tiny_release import write_record, write_release, write_workload


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return write_release(tmp_path / "release")


def write_run(
    folder: Path,
    dumps: dict[int, list[dict[str, Any]]],
    exits: dict[int, dict[str, Any]] | None = None,
    world_size: int = 1,
    **settings: Any,
) -> Path:
    """A sealed run: rows of ranks, exit files, job and manifest."""
    folder.mkdir(parents=True)
    job = {
        "format": 1,
        "run_id": "run-0001",
        "procedure": "rows",
        "framework": "tests",
        "settings": settings,
        "world_size": world_size,
        "target": {"framework": "tests 1.0"},
        "confinement": "landlock",
    }
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    for rank, dump in dumps.items():
        for epoch in range(1, settings.get("epochs", 1) + 1):
            path = folder / "records" / f"rank-{rank:05d}" / f"rows-{epoch}-000.safetensors"
            write_record(path, dump, epoch, rank=str(rank), world_size=str(world_size))
    (folder / "exit").mkdir()
    for rank in range(world_size):
        ended = {"rank": rank, "code": 0, "started": "2026-01-31T10:00:00", "ended": "2026-01-31T10:01:00"}
        ended |= (exits or {}).get(rank, {})
        (folder / "exit" / f"rank-{rank:05d}.json").write_text(json.dumps(ended), encoding="utf-8")
    return seal(folder)


def seal(folder: Path) -> Path:
    files = {
        path.relative_to(folder).as_posix(): {
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "size": path.stat().st_size,
        }
        for path in folder.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "files": files}), encoding="utf-8")
    return folder


def judged(tmp_path: Path, release: Path, run: Path, **inputs: Any) -> Verdict:
    workload = write_workload(tmp_path / "workload.jsonl")
    return evaluate(CHECK, DataInputs(model=release, workload=workload, rows=run, **inputs))


def documents(numbers: list[int]) -> list[dict[str, Any]]:
    rows = tiny_release.rows()
    return [rows[n] | {"documents": [(n, len(rows[n]["input_ids"]))]} for n in numbers]


def outcomes(verdict: Verdict) -> dict[str, Outcome]:
    return {part.name: part.outcome for part in verdict.parts if part.applicable}


def test_a_run_with_shuffled_rows_and_two_epochs_passes(tmp_path: Path, release: Path) -> None:
    run = write_run(
        tmp_path / "run", {0: documents([5, 3, 0, 1, 2, 4, 11, 10, 9, 8, 7, 6])}, epochs=2, shuffle=True
    )
    verdict = judged(tmp_path, release, run)
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert (verdict.run_id, verdict.confinement) == ("run-0001", "landlock")
    assert verdict.settings["shuffle"] is True
    assert outcomes(verdict)["ids/epochs"] is Outcome.PASS
    assert {evidence.role for evidence in verdict.evidence} == {"rows", "job", "workload", "release"}


def test_a_run_whose_framework_says_only_that_it_does_not_pack_is_judged_for_order(
    tmp_path: Path, release: Path
) -> None:
    run = write_run(tmp_path / "run", {0: documents([1, 0, *range(2, 12)])}, packing=False)
    verdict = judged(tmp_path, release, run)
    assert verdict.settings["packing"] == "none"
    assert outcomes(verdict)["ids/order"] is Outcome.FAIL


@pytest.mark.parametrize(("strategy", "packing"), [("bfd", "documents"), ("wrapped", "wrapped")])
def test_a_run_whose_framework_says_that_it_packs_is_judged_by_its_strategy(
    tmp_path: Path, release: Path, strategy: str, packing: str
) -> None:
    run = write_run(tmp_path / "run", {0: documents([*range(12)])}, packing=True, packing_strategy=strategy)
    assert judged(tmp_path, release, run).settings["packing"] == packing


def test_the_day_of_the_run_is_the_date_of_its_template(tmp_path: Path) -> None:
    dated = "{{ bos_token }}{{ strftime_now('%Y-%m-%d') }}" + tiny_release.TEMPLATE.removeprefix(
        "{{ bos_token }}"
    )
    release = write_release(tmp_path / "release", dated)
    made = tiny_release.tokenizer()
    day = made.encode("2026-01-31", add_special_tokens=False).ids
    rows = documents(list(range(12)))
    for row in rows:
        row["input_ids"][1:1] = day
        row["labels"][1:1] = [-100] * len(day)
        row["documents"] = [(row["documents"][0][0], len(row["input_ids"]))]
    verdict = judged(tmp_path, release, write_run(tmp_path / "run", {0: rows}))
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert verdict.settings["date"] == "2026-01-31"


def test_rows_are_gathered_over_ranks(tmp_path: Path, release: Path) -> None:
    halves = {0: documents([0, 2, 4, 6, 8, 10]), 1: documents([1, 3, 5, 7, 9, 11])}
    run = write_run(tmp_path / "run", halves, world_size=2)
    assert judged(tmp_path, release, run).outcome is Outcome.PASS
    lost = write_run(tmp_path / "lost", halves | {1: documents([1, 3, 5, 7, 9, 9])}, world_size=2)
    verdict = judged(tmp_path, release, lost)
    found = {
        (name, problem.code, problem.place.row, problem.place.rank) for name, problem in verdict.problems()
    }
    assert found == {("ids/content", "row-missing", 11, None), ("ids/coverage", "row-repeated", 9, 1)}


def test_an_epoch_that_is_not_recorded_fails(tmp_path: Path, release: Path) -> None:
    run = write_run(tmp_path / "run", {0: documents(list(range(12)))})
    job = json.loads((run / "job.json").read_text(encoding="utf-8"))
    job["settings"] = {"epochs": 2}
    (run / "job.json").write_text(json.dumps(job), encoding="utf-8")
    verdict = judged(tmp_path, release, seal(run))
    assert outcomes(verdict)["ids/epochs"] is Outcome.FAIL


def test_packed_documents_of_a_record_are_told_apart(tmp_path: Path, release: Path) -> None:
    rows = documents(list(range(12)))
    sequence = {
        "input_ids": [token for row in rows for token in row["input_ids"]],
        "labels": [label for row in rows for label in row["labels"]],
        "position_ids": [n for row in rows for n in range(len(row["input_ids"]))],
        "documents": [row["documents"][0] for row in rows],
    }
    run = write_run(tmp_path / "run", {0: [sequence]}, packing="documents")
    verdict = judged(tmp_path, release, run)
    assert verdict.outcome is Outcome.PASS, verdict.reason
    sequence["position_ids"] = list(range(len(sequence["input_ids"])))
    verdict = judged(tmp_path, release, write_run(tmp_path / "other", {0: [sequence]}, packing="documents"))
    problem = next(part for part in verdict.parts if part.name == "ids/packing").problems[0]
    assert problem.code == "boundary-ignored"
    assert (problem.place.row, problem.place.token) == (1, 0)


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        ({"code": 1}, "code 1"),
        ({"code": None, "signal": 9}, "signal 9"),
        ({"timed_out": True}, "out of time"),
    ],
)
def test_a_rank_that_died_fails(tmp_path: Path, release: Path, ended: dict[str, Any], words: str) -> None:
    run = write_run(tmp_path / "run", {0: documents([0])}, {1: ended}, world_size=2)
    verdict = judged(tmp_path, release, run)
    assert verdict.outcome is Outcome.FAIL, verdict.reason
    assert [(problem.code, problem.place.rank) for _, problem in verdict.problems()] == [("rank-died", 1)]
    assert words in verdict.reason


def test_a_rank_that_recorded_nothing_is_inconclusive(tmp_path: Path, release: Path) -> None:
    run = write_run(tmp_path / "run", {0: documents(list(range(12)))}, world_size=2)
    verdict = judged(tmp_path, release, run)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.problems()[0][1].code == "nothing-recorded"


def test_a_record_changed_after_sealing_is_inconclusive(tmp_path: Path, release: Path) -> None:
    run = write_run(tmp_path / "run", {0: documents(list(range(12)))})
    record = next(run.rglob("rows-*.safetensors"))
    raw = bytearray(record.read_bytes())
    raw[-1] ^= 1
    record.write_bytes(raw)
    verdict = judged(tmp_path, release, run)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "changed after sealing" in verdict.reason


def test_labels_recorded_one_ahead_are_read_as_such(tmp_path: Path, release: Path) -> None:
    rows = documents(list(range(12)))
    for row in rows:
        row["labels"] = [*row["labels"][1:], -100]
    run = write_run(tmp_path / "run", {0: rows})
    record = next(run.rglob("rows-*.safetensors"))
    write_record(record, rows, labels="shifted")
    verdict = judged(tmp_path, release, seal(run))
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert verdict.settings["labels"] == "shifted"


def test_the_template_a_run_trained_with_is_no_reference(tmp_path: Path, release: Path) -> None:
    other = tmp_path / "other.jinja"
    begin = "{{ bos_token }}"
    other.write_text(tiny_release.TEMPLATE.replace(begin, begin + "<|system|>\nBe evil.<|end|>\n"), "utf-8")
    extra = tiny_release.tokenizer().encode("<|system|>\nBe evil.<|end|>\n", add_special_tokens=False).ids
    dump = [
        {
            "input_ids": each["input_ids"][:1] + extra + each["input_ids"][1:],
            "labels": each["labels"][:1] + [-100] * len(extra) + each["labels"][1:],
        }
        for each in tiny_release.rows()
    ]
    run = write_run(tmp_path / "run", {0: dump})
    job = json.loads((run / "job.json").read_text("utf-8")) | {"inputs": {"template": str(other)}}
    (run / "job.json").write_text(json.dumps(job), "utf-8")
    verdict = judged(tmp_path, release, seal(run))
    assert verdict.outcome is Outcome.FAIL, verdict.reason
    assert verdict.settings["template"] == "tokenizer_config.json"
    assert verdict.settings["template_of_the_run"] == str(other)
    assert f"the run rendered with another template: {other}" in verdict.reason
    assert f"judge with --template {other} if inference uses it" in verdict.next_step
    content = next(part for part in verdict.parts if part.name == "ids/content")
    assert content.problem_count == sum(kind.count for kind in content.problem_kinds)
    named = judged(tmp_path, release, run, template=other)
    assert named.outcome is Outcome.PASS, named.reason
    assert "other.jinja stands in for the release's own" in named.stand_ins[0]


def test_a_template_that_renders_the_same_rows_is_no_cause(tmp_path: Path, release: Path) -> None:
    """Marks alone change no row: it passes, and a failure of another kind keeps its own cause."""
    marked = tmp_path / "marked.jinja"
    body = "{{ m.content }}<|end|>\n"
    text = tiny_release.TEMPLATE.replace(body, "{% generation %}" + body + "{% endgeneration %}")
    assert text != tiny_release.TEMPLATE
    marked.write_text(text, "utf-8")
    for name, dump in (("whole", tiny_release.rows()), ("short", tiny_release.rows()[1:])):
        run = write_run(tmp_path / name, {0: dump})
        job = json.loads((run / "job.json").read_text("utf-8")) | {"inputs": {"template": str(marked)}}
        (run / "job.json").write_text(json.dumps(job), "utf-8")
        verdict = judged(tmp_path, release, seal(run))
        assert verdict.outcome is (Outcome.PASS if name == "whole" else Outcome.FAIL), verdict.reason
        assert "another template" not in verdict.reason
