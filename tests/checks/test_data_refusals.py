"""What the data check cannot judge, and what it cannot use."""

import json
from pathlib import Path

import pytest

from checks.data import CHECK, DataInputs
from checks.errors import BadInput
from checks.verdict import Outcome
from tests.checks import tiny_release
from tests.checks.judged_rows import Row, judged, only, part
from tests.checks.tiny_release import write_release, write_rows, write_workload


def test_a_release_without_template_is_not_evaluated(tmp_path: Path, rows: list[Row]) -> None:
    release = write_release(tmp_path / "release", template=None)
    verdict = judged(tmp_path, release, rows)
    assert verdict.outcome is Outcome.NOT_EVALUATED
    assert "no chat template" in verdict.reason
    assert "--template" in verdict.next_step
    template = tmp_path / "own.jinja"
    template.write_text(tiny_release.TEMPLATE, encoding="utf-8")
    verdict = judged(tmp_path, release, rows, template=template)
    assert verdict.outcome is Outcome.PASS
    assert verdict.stand_ins


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('no thanks') }}", "no thanks"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "did not end"),
        ("{{ 'x' * 99999999999 }}", "memory"),
        ("{% if %}", "does not compile"),
        ("{{ strftime_now('%Y') }}", "--date"),
    ],
)
def test_a_template_that_gives_no_text_is_not_evaluated(
    tmp_path: Path, rows: list[Row], template: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("checks.references.rendering.RENDER_SECONDS", 0.2)
    release = write_release(tmp_path / "release", template)
    verdict = judged(tmp_path, release, rows)
    assert verdict.outcome is Outcome.NOT_EVALUATED
    assert words in f"{verdict.reason} {verdict.next_step}"


def test_a_template_that_refuses_one_row_leaves_that_row_inconclusive(
    tmp_path: Path, rows: list[Row]
) -> None:
    condition = "messages|length == 2 and '7' in messages[0].content"
    refusing = "{% if " + condition + " %}{{ raise_exception('seven') }}{% endif %}"
    release = write_release(tmp_path / "release", refusing + tiny_release.TEMPLATE)
    verdict = judged(tmp_path, release, rows)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert {(p.code, p.place.row) for p in part(verdict, "ids/content").problems} == {("not-rendered", 7)}


def test_a_release_without_tokenizer_is_not_evaluated(tmp_path: Path, rows: list[Row]) -> None:
    release = write_release(tmp_path / "release")
    (release / "tokenizer.json").unlink()
    assert "tokenizer.json" in judged(tmp_path, release, rows).reason
    (release / "tokenizer.json").write_text("{", encoding="utf-8")
    verdict = judged(tmp_path, release, rows)
    assert verdict.outcome is Outcome.NOT_EVALUATED
    assert "is no tokenizer" in verdict.reason


def test_no_rows_at_all_is_not_evaluated(tmp_path: Path, release: Path) -> None:
    verdict = judged(tmp_path, release, [])
    assert verdict.outcome is Outcome.NOT_EVALUATED
    assert "0 rows" in verdict.reason


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"input_ids": [1, 2', "line 2 is not valid JSON"),
        ('{"input_ids": [1, NaN]}', "NaN is no JSON value"),
        ('{"input_ids": [1, 99999999999]}', "99999999999"),
        ('{"input_ids": [1, 2.5]}', "item 1 is '2.5'"),
        ('{"input_ids": [1, true]}', "'True'"),
        ('{"input_ids": [[1], [2]]}', "no flat list"),
        ('{"input_ids": [1, 2], "labels": [1]}', "1 values for 2 tokens"),
        ('{"ids": [1, 2]}', "has no input_ids"),
        ('{"input_ids": [1, 2], "row_id": "seven"}', "row_id is 'seven'"),
        ('{"input_ids": [1, 2], "seq_lens": [2, 2]}', "seq_lens add up to 4"),
    ],
)
def test_a_row_that_does_not_fit_is_a_usage_error_naming_its_line(
    tmp_path: Path, release: Path, line: str, words: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"input_ids": [1], "labels": [-100]}\n' + line, encoding="utf-8")
    with pytest.raises(BadInput) as error:
        judged(tmp_path, release, path)
    assert words in error.value.message
    assert "line 2" in error.value.message


@pytest.mark.parametrize("token", [-5, 2_000_000_000])
def test_ids_outside_the_vocabulary_are_content(
    tmp_path: Path, release: Path, rows: list[Row], token: int
) -> None:
    rows[2]["input_ids"][3] = token
    rows[2]["labels"] = [-100] * len(rows[2]["labels"])
    problem = only(judged(tmp_path, release, rows), "ids/content", "content-differs")
    assert (problem.place.row, problem.place.token) == (2, 3)
    assert str(token) in (problem.found or "")


def test_an_unknown_framework_or_date_is_a_usage_error(
    tmp_path: Path, release: Path, rows: list[Row]
) -> None:
    with pytest.raises(BadInput, match="no connection pack"):
        judged(tmp_path, release, rows, framework="nobody")
    with pytest.raises(BadInput, match="is not one"):
        judged(tmp_path, release, rows, date="yesterday")


def test_the_judge_changes_nothing_in_its_case(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    path = write_rows(tmp_path / "rows.jsonl", rows)
    inputs = DataInputs(model=release, workload=write_workload(tmp_path / "w.jsonl"), rows=path)
    case = CHECK.open(inputs, lambda *_: None)
    before = json.dumps([d.sequence.ids.tolist() for d in case.rows.documents])
    first = CHECK.judge(case, lambda *_: None)
    for fault in CHECK.faults[:5]:
        fault.plant(CHECK.smallest(case))
    assert CHECK.judge(case, lambda *_: None) == first
    assert json.dumps([d.sequence.ids.tolist() for d in case.rows.documents]) == before


def test_a_release_that_is_not_there_is_bad_input(tmp_path: Path, rows: list[Row]) -> None:
    with pytest.raises(BadInput, match="there is no folder"):
        judged(tmp_path, tmp_path / "nowhere", rows)
