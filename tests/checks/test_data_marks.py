"""Messages of the workload that say what they weigh in the loss, in the data check."""

import json
from pathlib import Path
from typing import Any

import pytest

from checks.records.turn_marks import mark_of
from checks.verdict import Outcome, Verdict
from tests.checks import tiny_release
from tests.checks.judged_rows import Row, failures, judged, only, part
from tests.checks.tiny_release import WORKLOAD, write_workload

FIRST = 2  # the first reply of row 0, which has two


def marked(tmp_path: Path, message: int = FIRST, row: int = 0, **mark: Any) -> Path:
    """The workload with one message of a row marked."""
    chats = [[dict(each) for each in chat] for chat in WORKLOAD]
    chats[row][message] |= mark
    return write_workload(tmp_path / "marked.jsonl", chats)


def followed(rows: list[Row], row: int = 0) -> list[Row]:
    """The rows with the first reply of a row left out of the loss."""
    labels, made = rows[row]["labels"], list(rows)
    on = [at for at, label in enumerate(labels) if label != -100]
    end = next(b for a, b in zip(on, [*on[1:], len(labels)], strict=True) if b != a + 1)
    gap = labels.index(-100, on[0])
    made[row] = rows[row] | {"labels": [-100] * gap + labels[gap:]}
    assert on[0] < gap < end
    return made


def problems(verdict: Verdict) -> list[tuple[str, Outcome, int | None, int | None]]:
    found = part(verdict, "labels").problems
    return [(each.code, each.outcome, each.place.row, each.place.turn) for each in found]


MARKS: list[dict[str, Any]] = [
    {"weight": 0},
    {"weight": 0.0},
    {"train": False},
    {"training": False},
    {"loss": False},
    {"masked": True},
]


@pytest.mark.parametrize("mark", MARKS)
def test_a_reply_that_says_it_weighs_nothing(
    tmp_path: Path, release: Path, rows: list[Row], mark: dict[str, Any]
) -> None:
    """Rows that follow it pass, rows that do not are never passed in silence; the recipe may decide both."""
    workload = marked(tmp_path, **mark)
    verdict = judged(tmp_path, release, followed(rows), workload=workload)
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert any("say what they weigh in the loss (1 x " in note for note in part(verdict, "labels").notes)
    verdict = judged(tmp_path, release, rows, workload=workload)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert problems(verdict) == [("mark-undecided", Outcome.INCONCLUSIVE, 0, FIRST)]
    assert "--supervise marked" in (part(verdict, "labels").problems[0].next_step or "")
    verdict = judged(tmp_path, release, rows, workload=workload, supervise="marked")
    problem = only(verdict, "labels", "token-wrongly-supervised")
    assert (problem.place.row, problem.place.turn) == (0, FIRST)
    assert judged(tmp_path, release, rows, workload=workload, supervise="all").outcome is Outcome.PASS
    verdict = judged(tmp_path, release, followed(rows), workload=workload, supervise="marked")
    assert verdict.outcome is Outcome.PASS
    verdict = judged(tmp_path, release, followed(rows), workload=workload, supervise="all")
    assert failures(verdict)["labels"] == {"token-not-supervised"}


@pytest.mark.parametrize(
    "mark", [{"weight": 1}, {"train": True}, {"loss": True}, {"masked": False}, {"train": "split"}]
)
def test_a_mark_that_says_what_holds_without_one_changes_nothing(
    tmp_path: Path, release: Path, rows: list[Row], mark: dict[str, Any]
) -> None:
    verdict = judged(tmp_path, release, rows, workload=marked(tmp_path, **mark))
    assert verdict.outcome is Outcome.PASS
    assert not any("say what they weigh" in note for note in part(verdict, "labels").notes)


@pytest.mark.parametrize("mark", [{"train_detail": [{"begin_offset": 0, "end_offset": 3, "train": False}]}])
@pytest.mark.parametrize("supervise", [None, "marked"])
def test_parts_of_a_reply_are_undecided(
    tmp_path: Path, release: Path, rows: list[Row], mark: dict[str, Any], supervise: str | None
) -> None:
    workload = marked(tmp_path, **mark)
    for dump in (rows, followed(rows)):
        verdict = judged(tmp_path, release, dump, workload=workload, supervise=supervise)
        assert problems(verdict) == [("mark-undecided", Outcome.INCONCLUSIVE, 0, FIRST)]


def test_a_user_turn_that_is_to_be_trained_is_undecided(
    tmp_path: Path, release: Path, rows: list[Row]
) -> None:
    workload = marked(tmp_path, message=1, train=True)
    assert judged(tmp_path, release, rows, workload=workload, supervise="all").outcome is Outcome.PASS
    for dump in (rows, [rows[0] | {"labels": rows[0]["input_ids"][:12] + rows[0]["labels"][12:]}, *rows[1:]]):
        verdict = judged(tmp_path, release, dump, workload=workload)
        assert ("mark-undecided", Outcome.INCONCLUSIVE, 0, 1) in problems(verdict)
    verdict = judged(tmp_path, release, rows, workload=marked(tmp_path, message=1, weight=1))
    assert verdict.outcome is Outcome.PASS  # OpenAI reads the weight of replies alone


def weighted(rows: list[Row], value: float) -> list[Row]:
    """Loss weights of 1, and another one over the first reply of row 0."""
    gap = followed(rows)[0]["labels"]
    return [
        each
        | {
            "loss_weights": [
                value if not number and gap[at] == -100 != label else 1.0
                for at, label in enumerate(each["labels"])
            ]
        }
        for number, each in enumerate(rows)
    ]


@pytest.mark.parametrize("scale", [1.0, 1 / 3])
def test_weights_between_0_and_1_are_compared(
    tmp_path: Path, release: Path, rows: list[Row], scale: float
) -> None:
    workload = marked(tmp_path, weight=0.3)
    right = [
        each | {"loss_weights": [weight * scale for weight in each["loss_weights"]]}
        for each in weighted(rows, 0.3)
    ]
    for supervise in (None, "marked"):
        verdict = judged(tmp_path, release, right, workload=workload, supervise=supervise)
        assert verdict.outcome is Outcome.PASS, verdict.reason
    for wrong in (rows, weighted(rows, 0.6)):
        verdict = judged(tmp_path, release, wrong, workload=workload)
        assert problems(verdict) == [("weight-differs", Outcome.INCONCLUSIVE, 0, FIRST)]
        problem = only(
            judged(tmp_path, release, wrong, workload=workload, supervise="marked"),
            "labels",
            "weight-differs",
        )
        assert (problem.expected, problem.place.turn) == ("a weight of 0.3", FIRST)


def test_marks_of_sharegpt_messages_are_read(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    path = tmp_path / "sharegpt.jsonl"
    chats = [[{"from": names[m["role"]], "value": m["content"]} for m in chat] for chat in WORKLOAD]
    chats[0][FIRST]["weight"] = 0  # type: ignore[assignment]
    path.write_text("".join(json.dumps({"conversations": chat}) + "\n" for chat in chats), encoding="utf-8")
    assert judged(tmp_path, release, rows, workload=path).outcome is Outcome.INCONCLUSIVE
    assert judged(tmp_path, release, followed(rows), workload=path).outcome is Outcome.PASS


def test_the_last_reply_alone_is_supervised_whatever_it_says(
    tmp_path: Path, release: Path, rows: list[Row]
) -> None:
    workload = marked(tmp_path, message=FIRST, weight=0)
    verdict = judged(tmp_path, release, tiny_release.rows("last"), workload=workload, supervise="last")
    assert verdict.outcome is Outcome.PASS
    assert "not read, as the recipe says" in part(verdict, "labels").notes[-1]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"role": "assistant", "weight": 0}, "weight: 0"),
        ({"role": "assistant", "weight": 0.5}, "weight: 0.5"),
        ({"role": "assistant", "train": False}, "train: false"),
        ({"role": "user", "train": True}, "train: true"),
        ({"role": "user", "weight": 1}, None),
        ({"role": "user", "loss": True}, None),
        ({"role": "user", "weight": 0}, None),
        ({"role": "assistant", "weight": -1}, None),
        ({"role": "assistant", "weight": float("nan")}, None),
        ({"role": "assistant", "weight": "0"}, None),
        ({"role": "assistant", "loss": 0.37}, None),
        ({"role": "assistant", "train_detail": []}, None),
        ({"role": "assistant"}, None),
    ],
)
def test_a_mark_is_what_departs_from_what_holds_without_one(
    message: dict[str, Any], said: str | None
) -> None:
    found = mark_of(message)
    assert (None if found is None else str(found)) == said
