"""Loss weights, loss masks and what the loss covers outside rows and first epochs, in the data check."""

import copy
from pathlib import Path
from typing import Any

import pytest

from checks.errors import BadInput
from checks.verdict import Outcome
from tests.checks import tiny_release
from tests.checks.judged_rows import Row, failures, judged, only, pad, part
from tests.checks.records.test_rows import save_to_disk
from tests.checks.tiny_release import write_record, write_rows

PAD = tiny_release.tokenizer().token_to_id("<pad>")


def with_weights(rows: list[Row], value: float, name: str = "loss_weights") -> list[Row]:
    return [each | {name: [value] * len(each["input_ids"])} for each in rows]


WRITERS = {
    "JSONL": lambda folder, dump: write_rows(folder / "rows.jsonl", dump),
    "safetensors": lambda folder, dump: write_record(folder / "rows.safetensors", dump),
    "saved data set": lambda folder, dump: save_to_disk(folder / "saved", dump),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_weights_are_read_in_every_format(tmp_path: Path, release: Path, rows: list[Row], kind: str) -> None:
    for value, outcome in ((1.0, Outcome.PASS), (0.0, Outcome.FAIL)):
        folder = tmp_path / str(value)
        folder.mkdir()
        verdict = judged(tmp_path, release, WRITERS[kind](folder, with_weights(rows, value)))
        assert verdict.outcome is outcome, verdict.reason
    assert failures(verdict) == {"labels": {"no-supervised-token"}, "stop": {"stop-unlabelled"}}


@pytest.mark.parametrize("name", ["loss_weight", "weights"])
def test_weights_are_read_under_their_other_names_and_for_a_whole_row(
    tmp_path: Path, release: Path, rows: list[Row], name: str
) -> None:
    assert failures(judged(tmp_path, release, with_weights(rows, 0.0, name)))["labels"] == {
        "no-supervised-token"
    }
    rows[2][name] = 0
    problem = judged(tmp_path, release, rows).problems()[0][1]
    assert (problem.code, problem.place.row) == ("no-supervised-token", 2)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_a_weight_that_no_loss_can_use_fails(
    tmp_path: Path, release: Path, rows: list[Row], value: float
) -> None:
    dump = with_weights(rows, 1.0)
    dump[3]["loss_weights"][4] = value
    record = write_record(tmp_path / "rows.safetensors", dump)
    problem = only(judged(tmp_path, release, record), "labels", "weight-invalid")
    assert (problem.place.sequence, problem.place.token, problem.found) == (3, 4, str(value))


def test_unequal_weights_that_nothing_explains_are_not_passed(
    tmp_path: Path, release: Path, rows: list[Row]
) -> None:
    dump = with_weights(rows, 1.0)
    dump[3]["loss_weights"] = [0.25] * len(dump[3]["input_ids"])
    verdict = judged(tmp_path, release, dump)
    found = part(verdict, "labels")
    assert (verdict.outcome, found.outcome) == (Outcome.INCONCLUSIVE, Outcome.INCONCLUSIVE)
    problem = found.problems[0]
    assert (problem.code, problem.place.row, problem.place.turn) == ("weight-differs", 3, 1)
    assert (problem.expected, problem.found) == ("a weight of 1", "0.25")
    assert any("loss weights from 0.25 to 1 (unequal inside 0 rows)" in note for note in found.notes)


@pytest.mark.parametrize("value", [0.5, 1 / 3, 7.0])
def test_equal_weights_pass_whatever_they_are(
    tmp_path: Path, release: Path, rows: list[Row], value: float
) -> None:
    assert judged(tmp_path, release, with_weights(rows, value)).outcome is Outcome.PASS


@pytest.mark.parametrize("kind", ["JSONL", "saved data set"])
def test_a_loss_mask_of_floats_weighs_tokens(
    tmp_path: Path, release: Path, rows: list[Row], kind: str
) -> None:
    dump = [each | {"loss_mask": [float(label != -100) for label in each["labels"]]} for each in rows]
    assert judged(tmp_path, release, WRITERS[kind](tmp_path, dump)).outcome is Outcome.PASS
    dump[3]["loss_mask"] = [value / 4 for value in dump[3]["loss_mask"]]
    (tmp_path / "unequal").mkdir()
    verdict = judged(tmp_path, release, WRITERS[kind](tmp_path / "unequal", dump))
    problem = part(verdict, "labels").problems[0]
    assert (verdict.outcome, problem.code, problem.place.row) == (Outcome.INCONCLUSIVE, "weight-differs", 3)


def test_every_loss_mask_takes_labels_away(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    zeros = [each | {"loss_mask": [0] * len(each["input_ids"])} for each in rows]
    verdict = judged(tmp_path, release, zeros)
    assert failures(verdict)["labels"] == {"no-supervised-token"}
    assert verdict.settings["labels_from"] == "column labels and column loss_mask"
    assert "labels count only where no loss mask is 0: loss_mask" in part(verdict, "labels").notes
    masks = [
        {
            "input_ids": each["input_ids"],
            "assistant_masks": [int(label != -100) for label in each["labels"]],
            "completion_mask": [1] * len(each["input_ids"]),
        }
        for each in rows
    ]
    assert judged(tmp_path, release, masks).outcome is Outcome.PASS
    masks[1]["completion_mask"] = [0] * len(masks[1]["input_ids"])
    verdict = judged(tmp_path, release, masks)
    assert failures(verdict)["labels"] == {"no-supervised-token"}
    assert part(verdict, "labels").problems[0].place.row == 1


def test_labels_everywhere_with_a_right_loss_mask_pass(
    tmp_path: Path, release: Path, rows: list[Row]
) -> None:
    dump = [
        {
            "input_ids": each["input_ids"],
            "labels": each["input_ids"],
            "loss_mask": [int(label != -100) for label in each["labels"]],
        }
        for each in rows
    ]
    assert judged(tmp_path, release, dump).outcome is Outcome.PASS


@pytest.mark.parametrize("kind", ["JSONL", "saved data set"])
def test_columns_that_are_not_read_are_named(
    tmp_path: Path, release: Path, rows: list[Row], kind: str
) -> None:
    dump = [each | {"shift_labels": [-100], "source": "a"} for each in rows]
    verdict = judged(tmp_path, release, WRITERS[kind](tmp_path, dump))
    assert "columns of the rows that are not read: shift_labels, source" in part(verdict, "labels").notes


def test_rows_without_labels_beside_labelled_ones_are_not_passed(
    tmp_path: Path, release: Path, rows: list[Row]
) -> None:
    for each in rows[::2]:  # these have two replies each, the others one
        del each["labels"]
    verdict = judged(tmp_path, release, rows)
    assert verdict.outcome is Outcome.NOT_EVALUATED
    for name, coverage in (("labels", "6 of 18 turns"), ("stop", "6 of 12 rows")):
        found = part(verdict, name)
        assert (found.outcome, str(found.coverage)) == (Outcome.NOT_EVALUATED, coverage)
        assert [problem.place.row for problem in found.problems] == [0, 2, 4, 6, 8, 10]


def test_weights_of_a_later_epoch_are_compared(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    dump = [each | {"epoch": epoch} for epoch in (1, 2) for each in with_weights(rows, 1.0)]
    assert judged(tmp_path, release, dump).outcome is Outcome.PASS
    dump[17] = dump[17] | {"loss_weights": [0.0] * len(dump[17]["input_ids"])}
    problem = only(judged(tmp_path, release, dump), "ids/epochs", "epoch-differs")
    assert (problem.place.row, problem.place.epoch) == (5, 2)


@pytest.mark.parametrize("mask", [True, False])
def test_supervised_padding_of_a_later_epoch_is_found(
    tmp_path: Path, release: Path, rows: list[Row], mask: bool
) -> None:
    dump: list[dict[str, Any]] = [
        copy.deepcopy(pad(each, 120, mask=mask)) | {"epoch": epoch} for epoch in (1, 2) for each in rows
    ]
    assert judged(tmp_path, release, dump).outcome is Outcome.PASS
    dump[20]["labels"][-4:] = [PAD] * 4
    problem = only(judged(tmp_path, release, dump), "labels", "token-wrongly-supervised")
    assert (problem.place.sequence, problem.place.epoch) == (20, 2)
    assert "4 token(s) of padding" in problem.message


def test_weights_that_do_not_fit_are_refused(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    for value in ("much", [1.0], [[1.0]], True):
        dump = [each | {"weights": value} for each in rows]
        with pytest.raises(BadInput, match="weights"):
            judged(tmp_path, release, dump)
