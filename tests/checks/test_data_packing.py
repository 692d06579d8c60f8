"""Padding and packing in the data check."""

from pathlib import Path

import pytest

from checks.verdict import Caught, Outcome
from tests.checks import tiny_release
from tests.checks.judged_rows import Row, failures, judged, only, pad, part
from tests.checks.tiny_release import write_release


@pytest.mark.parametrize(("left", "mask"), [(False, False), (False, True), (True, True)])
def test_padding_on_either_side_passes(
    tmp_path: Path, release: Path, rows: list[Row], left: bool, mask: bool
) -> None:
    dump = [pad(each, 120, left=left, mask=mask) for each in rows]
    verdict = judged(tmp_path, release, dump)
    assert verdict.outcome is Outcome.PASS, verdict.reason


def test_padding_with_the_stop_token_passes_and_its_mask_does_not_hide_the_stop(
    tmp_path: Path, rows: list[Row]
) -> None:
    release = write_release(tmp_path / "release", pad="<|end|>")
    dump = [pad(each, 120, "<|end|>") for each in rows]
    assert judged(tmp_path, release, dump).outcome is Outcome.PASS
    stop = tiny_release.tokenizer().token_to_id("<|end|>")
    for each in dump:
        each["labels"] = [
            -100 if token == stop else label
            for token, label in zip(each["input_ids"], each["labels"], strict=True)
        ]
    found = failures(judged(tmp_path, release, dump))
    assert found == {"labels": {"token-not-supervised"}, "stop": {"stop-unlabelled"}}


def test_supervised_padding_is_wrongly_supervised(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    dump = [pad(each, 120) for each in rows]
    dump[6]["labels"] = [
        label if label != -100 or n < 100 else dump[6]["input_ids"][n]
        for n, label in enumerate(dump[6]["labels"])
    ]
    problem = only(judged(tmp_path, release, dump), "labels", "token-wrongly-supervised")
    assert problem.place.row == 6
    assert "padding" in problem.message


def packed(rows: list[Row], size: int = 3) -> list[Row]:
    dump = []
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        dump.append(
            {
                "input_ids": [token for each in some for token in each["input_ids"]],
                "labels": [label for each in some for label in each["labels"]],
                "position_ids": [n for each in some for n in range(len(each["input_ids"]))],
                "seq_lens": [len(each["input_ids"]) for each in some],
                "row_ids": list(range(start, start + len(some))),
            }
        )
    return dump


def test_packed_rows_that_keep_their_edges_pass(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    verdict = judged(tmp_path, release, packed(rows), packing="documents")
    assert verdict.outcome is Outcome.PASS, verdict.reason
    results = {injection.fault: injection.result for injection in verdict.injected}
    assert results.pop("token lost where a row is cut") is Caught.NOT_APPLICABLE
    assert set(results.values()) == {Caught.CAUGHT}


def test_packed_rows_are_cut_where_nothing_says_so(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    dump = [{k: v for k, v in each.items() if k not in ("seq_lens", "row_ids")} for each in packed(rows)]
    assert judged(tmp_path, release, dump, packing="documents").outcome is Outcome.PASS


@pytest.mark.parametrize("known", [True, False])
def test_positions_that_run_on_ignore_the_boundary(
    tmp_path: Path, release: Path, rows: list[Row], known: bool
) -> None:
    dump = packed(rows)
    for each in dump:
        each["position_ids"] = list(range(len(each["input_ids"])))
        if not known:
            del each["seq_lens"], each["row_ids"]
    problem = only(judged(tmp_path, release, dump, packing="documents"), "ids/packing", "boundary-ignored")
    assert (problem.place.row, problem.place.sequence, problem.place.token) == (
        None,
        0,
        0,
    ) or problem.place.row == 1


def test_packed_rows_without_positions_are_not_evaluated(
    tmp_path: Path, release: Path, rows: list[Row]
) -> None:
    dump = [{k: v for k, v in each.items() if k != "position_ids"} for each in packed(rows)]
    verdict = judged(tmp_path, release, dump, packing="documents")
    assert part(verdict, "ids/packing").outcome is Outcome.NOT_EVALUATED
    assert verdict.outcome is Outcome.NOT_EVALUATED


def test_packed_rows_fail_where_the_recipe_packs_none(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    assert "packing-differs" in failures(judged(tmp_path, release, packed(rows)))["ids/packing"]


@pytest.mark.parametrize("lengths", [[], [0], [0, 0]])
def test_lengths_that_say_nothing_are_none(
    tmp_path: Path, release: Path, rows: list[Row], lengths: list[int]
) -> None:
    """Also where labels are one ahead and name a token behind the last."""
    assert judged(tmp_path, release, [each | {"seq_lens": lengths} for each in rows]).outcome is Outcome.PASS
    ahead = [
        {"input_ids": each["input_ids"][:-2], "labels": each["labels"][1:-1], "seq_lens": lengths}
        for each in rows
    ]
    assert judged(tmp_path, release, ahead, labels="shifted").outcome is Outcome.PASS
