"""Token ids on a tiny release: clean rows pass; each fault is found at its place and nowhere else."""

import copy
from pathlib import Path

from checks.verdict import Caught, Outcome
from tests.checks import tiny_release
from tests.checks.judged_rows import Row, failures, judged, only, pad, part


def test_a_clean_single_pass_dump_passes(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    verdict = judged(tmp_path, release, rows)
    assert verdict.outcome is Outcome.PASS, verdict.reason
    unjudged = [part.name for part in verdict.parts if not part.applicable]
    assert unjudged == ["ids/positions", "ids/packing", "ids/epochs"]
    assert str(part(verdict, "labels").coverage) == "18 of 18 turns"
    results = {injection.fault: injection.result for injection in verdict.injected}
    assert results.pop("packed boundary ignored") is Caught.NOT_APPLICABLE
    assert results.pop("token lost where a row is cut") is Caught.NOT_APPLICABLE
    assert set(results.values()) == {Caught.CAUGHT}


def test_settings_and_evidence_are_in_the_verdict(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    verdict = judged(tmp_path, release, rows, template_kwargs={"thinking": True}, max_length=4096)
    assert verdict.settings["template_kwargs"] == {"thinking": True}
    assert "the template reads no variable 'thinking'" in part(verdict, "labels").notes
    assert verdict.settings["max_length"] == 4096
    assert verdict.settings["stop_tokens"] == "'<|end|>'"
    assert {evidence.role for evidence in verdict.evidence} == {"workload", "release", "rows"}


def test_rows_in_record_layout_with_two_epochs_pass(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    dump = [each | {"epoch": epoch} for epoch in (1, 2) for each in rows]
    verdict = judged(tmp_path, release, dump)
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert part(verdict, "ids/epochs").outcome is Outcome.PASS


# --- ids ---------------------------------------------------------------------------------------------------


def test_a_changed_token_is_content_at_row_and_token(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    rows[3]["input_ids"][5] += 1
    problem = only(judged(tmp_path, release, rows), "ids/content", "content-differs")
    assert (problem.place.row, problem.place.token) == (3, 5)


def test_a_doubled_begin_token_is_named(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    for each in rows:
        each["input_ids"].insert(0, each["input_ids"][0])
        each["labels"].insert(0, -100)
    verdict = judged(tmp_path, release, rows)
    problem = only(verdict, "ids/content", "double-bos")
    assert (problem.place.row, problem.place.token) == (0, 1)
    assert part(verdict, "ids/content").problem_count == len(rows)


def test_a_row_that_is_never_there_is_missing(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    del rows[4]
    problem = only(judged(tmp_path, release, rows), "ids/content", "row-missing")
    assert problem.place.row == 4


def test_a_row_that_one_epoch_lacks_is_dropped(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    dump = [each | {"epoch": epoch, "row_id": n} for epoch in (1, 2) for n, each in enumerate(rows)]
    del dump[4]
    problem = only(judged(tmp_path, release, dump), "ids/coverage", "row-dropped")
    assert (problem.place.row, problem.place.epoch) == (4, 1)


def test_a_row_that_comes_twice_is_repeated(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    verdict = judged(tmp_path, release, [*rows, rows[2]], shuffle=True)
    problem = only(verdict, "ids/coverage", "row-repeated")
    assert problem.place.row == 2
    assert "DistributedSampler" in str(problem.next_step)


def test_a_row_of_no_conversation_is_unexpected(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    extra = {"input_ids": [1, 2, 3], "labels": [-100, 2, 3]}
    assert (
        only(judged(tmp_path, release, [*rows, extra]), "ids/content", "row-unexpected").place.sequence == 12
    )


def test_a_row_id_outside_the_workload_is_unexpected(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    dump = [each | {"row_id": n} for n, each in enumerate(rows)] + [rows[0] | {"row_id": 99}]
    assert only(judged(tmp_path, release, dump), "ids/content", "row-unexpected").place.row == 99


def test_another_order_fails_unless_the_recipe_shuffles(
    tmp_path: Path, release: Path, rows: list[Row]
) -> None:
    dump = rows[::-1]
    assert only(judged(tmp_path, release, dump), "ids/order", "order-differs").place.row == 10
    verdict = judged(tmp_path, release, dump, shuffle=True)
    assert verdict.outcome is Outcome.PASS
    assert not part(verdict, "ids/order").applicable


def test_rows_without_ids_are_found_by_their_tokens(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    dump = [rows[5], rows[1], *(each for n, each in enumerate(rows) if n not in (1, 5))]
    padded = [pad(each, 40) for each in dump]
    assert judged(tmp_path, release, padded, shuffle=True).outcome is Outcome.PASS


def test_a_row_cut_where_the_recipe_cuts_passes(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    dump = [{name: values[:64] for name, values in each.items()} for each in rows]
    verdict = judged(tmp_path, release, dump, max_length=64)
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert (
        part(verdict, "ids/truncation").measurements[0].value
        == sum(len(r["input_ids"]) > 64 for r in rows)
        > 0
    )


def test_a_row_cut_elsewhere_is_truncation(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    rows[2] = {name: values[:-6] for name, values in rows[2].items()}
    problem = only(judged(tmp_path, release, rows), "ids/truncation", "truncation-differs")
    assert problem.place.row == 2


def test_a_row_cut_on_the_left_is_truncation(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    rows[1] = {name: values[4:] for name, values in rows[1].items()}
    problem = only(judged(tmp_path, release, rows), "ids/truncation", "truncation-differs")
    assert "cut on the left" in problem.message


def test_a_row_longer_than_the_maximum_is_truncation(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    verdict = judged(tmp_path, release, rows, max_length=40)
    assert "truncation-differs" in failures(verdict)["ids/truncation"]


def test_the_templates_padding_after_the_last_stop_may_be_missing(
    tmp_path: Path, release: Path, rows: list[Row]
) -> None:
    dump = [{name: values[:-1] for name, values in each.items()} for each in rows]
    assert judged(tmp_path, release, dump).outcome is Outcome.PASS


def test_a_later_epoch_with_other_tokens_differs(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    dump = [
        copy.deepcopy(each) | {"epoch": epoch, "row_id": n} for epoch in (1, 2) for n, each in enumerate(rows)
    ]
    dump[-1]["input_ids"][4] += 1
    problem = only(judged(tmp_path, release, dump), "ids/epochs", "epoch-differs")
    assert (problem.place.row, problem.place.epoch) == (11, 2)


def test_a_later_epoch_with_other_labels_differs(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    dump = [copy.deepcopy(each) | {"epoch": epoch} for epoch in (1, 2) for each in rows]
    dump[13]["labels"] = [-100] * len(dump[13]["labels"])
    assert only(judged(tmp_path, release, dump), "ids/epochs", "epoch-differs").place.row == 1


def test_rows_that_fit_nothing_show_no_order(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    for row in rows:
        row.pop("row_id", None)
        row["input_ids"] = [number + 1 for number in row["input_ids"]]
        row["labels"] = [-100] * len(row["input_ids"])
    verdict = judged(tmp_path, release, rows)
    assert verdict.outcome is Outcome.FAIL
    for name in ("ids/order", "ids/coverage"):
        assert part(verdict, name).outcome is Outcome.NOT_EVALUATED


def test_tokens_are_told_as_text(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    at = rows[1]["input_ids"].index(tiny_release.tokenizer().token_to_id("Ċ"))
    rows[1]["input_ids"][at] = tiny_release.tokenizer().token_to_id("Ġ")
    problem = only(judged(tmp_path, release, rows), "ids/content", "content-differs")
    newline, blank = (tiny_release.tokenizer().token_to_id(text) for text in ("Ċ", "Ġ"))
    assert str(problem.expected).startswith(f"{newline} '\\n', ")
    assert str(problem.found).startswith(f"{blank} ' ', ")
