"""How a part counts its problems, and what a verdict's headline names."""

from pathlib import Path
from typing import Any

import pytest

from checks.conversations.causes import first_cause
from checks.verdict import Coverage, Outcome, Place, Problem, ProblemKind, part_of
from tests.checks import tiny_release
from tests.checks.judged_rows import judged, part
from tests.checks.tiny_release import write_release, write_workload


def problems(code: str, count: int, outcome: Outcome = Outcome.FAIL) -> list[Problem]:
    return [
        Problem(code=code, outcome=outcome, message=f"{code} {n}", place=Place(row=n)) for n in range(count)
    ]


def test_every_problem_of_each_kind_is_counted_and_a_rare_kind_is_listed() -> None:
    met = part_of("labels", [*problems("frequent", 7473), *problems("rare", 2)], limit=50)
    assert met.problem_count == 7475
    assert met.kinds() == (
        ProblemKind(code="frequent", outcome=Outcome.FAIL, count=7473),
        ProblemKind(code="rare", outcome=Outcome.FAIL, count=2),
    )
    assert [problem.code for problem in met.problems] == ["frequent"] * 48 + ["rare"] * 2
    assert [problem.place.row for problem in met.problems[:48]] == list(range(48))


def test_failures_are_listed_before_what_is_undecided() -> None:
    met = part_of("labels", [*problems("open", 60, Outcome.INCONCLUSIVE), *problems("wrong", 60)], limit=50)
    assert [problem.code for problem in met.problems] == ["wrong"] * 25 + ["open"] * 25


def test_coverage_reads_well() -> None:
    assert str(Coverage(judged=501, total=501, unit="rows")) == "501 of 501 rows"
    assert str(Coverage(judged=1204, total=7473, unit="rows")) == "1,204 of 7,473 rows"


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Eighty rows: each is the same short conversation with another number."""
    folder = tmp_path_factory.mktemp("many")
    chats = [
        [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": f"{n} apples."}]
        for n in range(80)
    ]
    workload = write_workload(folder / "workload.jsonl", chats)
    rows = [tiny_release.row(chat) for chat in chats]
    return {"release": write_release(folder / "release"), "workload": workload, "rows": rows}


STOP = tiny_release.tokenizer().token_to_id("<|end|>")


def test_a_stop_token_that_is_never_supervised_is_the_headline(tmp_path: Path, many: dict[str, Any]) -> None:
    dump = [
        each | {"labels": [-100 if label == STOP else label for label in each["labels"]]}
        for each in many["rows"]
    ]
    verdict = judged(tmp_path, many["release"], dump, workload=many["workload"])
    assert verdict.reason.startswith("stop: the turn never teaches the model to stop")
    assert "and 79 more like it; also 80 × labels/token-not-supervised" in verdict.reason
    assert "stop token" in verdict.next_step
    labels = part(verdict, "labels")
    assert (len(labels.problems), labels.kinds()[0].count) == (50, 80)


def test_a_reply_that_is_not_supervised_comes_before_its_stop_token(
    tmp_path: Path, many: dict[str, Any]
) -> None:
    dump = [
        each | {"labels": [label if number % 2 else -100 for number, label in enumerate(each["labels"])]}
        for each in many["rows"]
    ]
    verdict = judged(tmp_path, many["release"], dump, workload=many["workload"])
    assert verdict.reason.startswith("labels: ")
    assert "× stop/stop-unlabelled" in verdict.reason


def test_other_rows_come_before_their_labels() -> None:
    parts = [
        part_of("ids/order", problems("order-differs", 3)),
        part_of("labels", problems("token-not-supervised", 3)),
        part_of("ids/content", [*problems("row-missing", 1), *problems("content-differs", 1)]),
    ]
    found = first_cause(parts)
    assert found is not None
    assert (found[0].name, found[1].code) == ("ids/content", "content-differs")
