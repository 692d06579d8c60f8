"""What a verdict judged: said in a few words, and what keeps two verdicts apart."""

from pathlib import Path

from checks.verdict import Outcome, Verdict
from plumbline_mcp.report import write_report
from plumbline_mcp.report.subjects import inputs_of, subject
from plumbline_mcp.workspace import StoredVerdict


def stored(
    number: int, rows: str, outcome: Outcome = Outcome.PASS, model: str = "/m/tiny", **more: object
) -> StoredVerdict:
    verdict = Verdict(
        id=f"data-{number:04d}", check="data", outcome=outcome, reason="one reason", target={"model": model}
    )
    inputs = {"model": model, "workload": "/w/train.jsonl", "rows": rows, "supervise": "all", **more}
    return StoredVerdict.model_validate(
        {"verdict": verdict, "inputs": inputs, "created": f"2026-11-30T12:00:0{number}", "sha256": "ab" * 32}
    )


def test_a_subject_names_the_rows_the_model_and_settings_that_are_no_defaults() -> None:
    assert subject(stored(1, "/r/a.jsonl")) == ("a.jsonl", "of tiny")
    told = subject(stored(1, "/r/a.jsonl", supervise="last", template="/t/chat.jinja"))
    assert set(told) == {"a.jsonl", "of tiny", "supervise last", "template chat.jinja"}


def test_a_check_of_a_run_names_the_run() -> None:
    for check, more, told in (
        ("optimizer_step", {}, ("train_step-0001",)),
        ("load", {"model": "/m/tiny"}, ("train_step-0001", "of tiny")),
    ):
        verdict = Verdict(check=check, outcome=Outcome.PASS, reason="all")
        inputs = {"run": "/home/runs/train_step-0001", **more}
        judged = StoredVerdict(verdict=verdict, inputs=inputs, created="2026-11-30", sha256="ab" * 32)
        assert subject(judged) == told


def test_an_interpreter_is_named_with_its_environment() -> None:
    verdict = Verdict(check="image", outcome=Outcome.PASS, reason="all")
    inputs = {"python": "/envs/" + "f" * 64 + "/bin/python", "framework": "transformers"}
    image = StoredVerdict(verdict=verdict, inputs=inputs, created="2026-11-30", sha256="ab" * 32)
    assert subject(image) == ("ffffffffffff…/bin/python", "for transformers")


def test_inputs_are_listed_without_defaults_and_what_the_target_states() -> None:
    assert inputs_of(stored(1, "/r/a.jsonl")) == (("workload", "/w/train.jsonl"), ("rows", "/r/a.jsonl"))
    assert ("columns", '{"a": 1}') in inputs_of(stored(1, "/r/a.jsonl", columns={"a": 1}))


def test_a_path_is_told_apart_from_the_name_that_the_target_has() -> None:
    named = stored(1, "/r/a.jsonl").model_copy(update={"inputs": {"model": "/m/tiny-copy"}})
    assert inputs_of(named) == (("model given", "/m/tiny-copy"),)


def test_a_check_that_this_version_does_not_know_has_a_subject() -> None:
    verdict = Verdict(check="loss", outcome=Outcome.PASS, reason="all")
    old = StoredVerdict(verdict=verdict, inputs={"rows": "/r/x"}, created="2026-11-30", sha256="ab" * 32)
    assert subject(old) == ("x",)
    assert inputs_of(old) == (("rows", "/r/x"),)


def test_the_table_of_both_pages_says_which_verdict_judged_what(tmp_path: Path) -> None:
    files = write_report([stored(1, "/r/a.jsonl"), stored(2, "/r/b.jsonl", Outcome.FAIL)], tmp_path)
    rows = [
        line for line in files.markdown.read_text(encoding="utf-8").splitlines() if line.startswith("| data")
    ]
    assert [row.split(" | ")[:4] for row in rows] == [
        ["| data-0002", "data", "b.jsonl, of tiny", "✗ fail"],
        ["| data-0001", "data", "a.jsonl, of tiny", "✓ pass"],
    ]
    page = files.html.read_text(encoding="utf-8")
    assert page.index("b.jsonl, of tiny") < page.index("a.jsonl, of tiny")
    assert "/w/train.jsonl" in page
