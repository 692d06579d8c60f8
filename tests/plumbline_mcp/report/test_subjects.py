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
    inputs = {"model": model, "workload": "/w/train.jsonl", "rows": rows, "supervise": None, **more}
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


def test_a_long_name_keeps_what_tells_it_apart() -> None:
    names = [
        f"gpt-oss-20b-finetuned-on-conversations-{'x' * 40}-learning-rate-{rate}" for rate in ("1e-5", "2e-5")
    ]
    first, second = (subject(stored(1, f"/r/{name}"))[0] for name in names)
    assert first.endswith("learning-rate-1e-5")
    assert second.endswith("learning-rate-2e-5")
    assert max(len(first), len(second)) <= 60
    assert subject(stored(1, "/r/export-of-the-second-attempt"))[0] == "export-of-the-second-attempt"


def test_the_head_of_a_report_says_which_run_was_held_by_what(tmp_path: Path) -> None:
    held = {"rows-0001": "landlock (not held: network)", "rows-0002": "none", "rows-0003": "none"}
    verdicts = [stored(1, "/r/a.jsonl")]
    for number, (run, confinement) in enumerate(held.items(), start=2):
        one = stored(number, f"/home/runs/{run}")
        verdict = one.verdict.model_copy(update={"run_id": run, "confinement": confinement})
        verdicts.append(one.model_copy(update={"verdict": verdict}))
    text = write_report(verdicts, tmp_path).markdown.read_text(encoding="utf-8")
    (line,) = [line for line in text.splitlines() if "confinement of jobs" in line]
    assert "landlock (not held: network): run rows-0001;" in line
    assert "none: run rows-0002 and rows-0003;" in line
    assert line.endswith("no job: verdict data-0001 judged files as given")
