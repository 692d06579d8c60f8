"""What each token attends to and where it stands, in the data check: attention masks, positions, padding."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest

from checks.verdict import Caught, Outcome
from tests.checks import tiny_release
from tests.checks.judged_rows import Row, failures, judged, only, pad, part
from tests.checks.test_data_packing import packed
from tests.checks.tiny_release import write_release

PAD, STOP = (tiny_release.tokenizer().token_to_id(text) for text in ("<pad>", "<|end|>"))


def masked_by_id(each: Row, token: int) -> Row:
    return each | {"attention_mask": [int(found != token) for found in each["input_ids"]]}


def test_a_mask_made_from_the_pad_id_hides_real_stop_tokens(tmp_path: Path, rows: list[Row]) -> None:
    release = write_release(tmp_path / "release", pad="<|end|>")
    dump = [masked_by_id(pad(each, 120, "<|end|>"), STOP) for each in rows]
    problem = only(judged(tmp_path, release, dump), "ids/content", "attention-masked")
    assert (problem.place.row, problem.place.token) == (0, rows[0]["input_ids"].index(STOP))
    assert str(STOP) in str(problem.found)


def test_a_token_left_out_in_a_later_epoch_is_found(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    whole = [each | {"attention_mask": [1] * len(each["input_ids"])} for each in rows]
    dump = [each | {"epoch": epoch} for epoch in (1, 2) for each in whole]
    verdict = judged(tmp_path, release, dump)
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert {injection.fault: injection.result for injection in verdict.injected}[
        "token left out of attention"
    ] is Caught.CAUGHT
    dump[15] = copy.deepcopy(dump[15])
    dump[15]["attention_mask"][6] = 0
    problem = only(judged(tmp_path, release, dump), "ids/content", "attention-masked")
    assert (problem.place.epoch, problem.place.row, problem.place.token) == (2, 3, 6)


def counted(each: Row) -> Row:
    return each | {"position_ids": list(range(len(each["input_ids"])))}


@pytest.mark.parametrize("packing", ["none", "documents"])
def test_positions_of_rows_alone_in_their_sequence_are_judged(
    tmp_path: Path, release: Path, rows: list[Row], packing: str
) -> None:
    dump = [counted(each) for each in rows]
    verdict = judged(tmp_path, release, dump, packing=packing)
    assert part(verdict, "ids/positions").outcome is Outcome.PASS
    dump[4]["position_ids"] = [0] * len(dump[4]["input_ids"])
    problem = only(judged(tmp_path, release, dump, packing=packing), "ids/positions", "positions-differ")
    assert (problem.place.row, problem.place.token) in {(4, 1), (None, 1)}
    assert problem.place.sequence == 4


def left_padded(each: Row, position: Callable[[int, int], int]) -> Row:
    """Positions as ``position(place in the sequence, padding)`` says."""
    padded = pad(each, 120, left=True, mask=True)
    filler = padded["attention_mask"].count(0)
    return padded | {"position_ids": [position(n, filler) for n in range(120)]}


@pytest.mark.parametrize("known", [True, False])
def test_left_padding_under_a_mask_of_ones_is_named(
    tmp_path: Path, release: Path, rows: list[Row], known: bool
) -> None:
    dump = [pad(each, 120, left=True) | {"attention_mask": [1] * 120} for each in rows]
    dump = [each | ({"row_id": number} if known else {}) for number, each in enumerate(dump)]
    verdict = judged(tmp_path, release, dump)
    problem = only(verdict, "ids/content", "padding-attended")
    assert f"{120 - len(rows[0]['input_ids'])} token(s) of padding lie before the row" in problem.message
    assert (part(verdict, "labels").outcome, problem.found) == (Outcome.PASS, "attention 1")


def test_a_first_token_doubled_is_no_padding_where_it_also_pads(tmp_path: Path, rows: list[Row]) -> None:
    release = write_release(tmp_path / "release", pad="<s>")
    doubled = [
        {
            "input_ids": [each["input_ids"][0], *each["input_ids"]],
            "labels": [-100, *each["labels"]],
            "attention_mask": [1] * (len(each["input_ids"]) + 1),
        }
        for each in rows
    ]
    only(judged(tmp_path, release, doubled), "ids/content", "double-bos")


def test_left_padding_is_not_counted_into_positions(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    right = [left_padded(each, lambda n, filler: max(n - filler, 0)) for each in rows]
    ones = [left_padded(each, lambda n, filler: n - filler if n >= filler else 1) for each in rows]
    assert judged(tmp_path, release, right).outcome is Outcome.PASS
    assert judged(tmp_path, release, ones).outcome is Outcome.PASS
    wrong = [left_padded(each, lambda n, filler: n) for each in rows]
    only(judged(tmp_path, release, wrong), "ids/positions", "positions-differ")


def test_positions_of_a_later_epoch_are_judged(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    dump = [counted(each) | {"epoch": epoch} for epoch in (1, 2) for each in rows]
    assert judged(tmp_path, release, dump).outcome is Outcome.PASS
    dump[14]["position_ids"] = [0] * len(dump[14]["input_ids"])
    problem = only(judged(tmp_path, release, dump), "ids/positions", "positions-differ")
    assert (problem.place.epoch, problem.place.sequence) == (2, 14)


def tail_padded(each: Row, *, mask: bool, known: bool, counted: bool = False, token: int = PAD) -> Row:
    """A packed sequence filled up to 260 tokens."""
    missing = 260 - len(each["input_ids"])
    made = each | {
        "input_ids": each["input_ids"] + [token] * missing,
        "labels": each["labels"] + [-100] * missing,
        "position_ids": each["position_ids"] + (list(range(missing)) if counted else [0] * missing),
    }
    if mask:
        made["attention_mask"] = [1] * len(each["input_ids"]) + [0] * missing
    return made if known else {k: v for k, v in made.items() if k not in ("seq_lens", "row_ids")}


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("token", [PAD, STOP])
def test_padding_behind_a_pack_is_no_row(
    tmp_path: Path, release: Path, rows: list[Row], mask: bool, known: bool, counted: bool, token: int
) -> None:
    dump = [tail_padded(each, mask=mask, known=known, counted=counted, token=token) for each in packed(rows)]
    verdict = judged(tmp_path, release, dump, packing="documents")
    assert verdict.outcome is Outcome.PASS, verdict.reason


def test_other_text_behind_a_pack_is_an_unexpected_row(
    tmp_path: Path, release: Path, rows: list[Row]
) -> None:
    dump = [tail_padded(each, mask=False, known=True) for each in packed(rows)]
    dump[1]["input_ids"][-3:] = [5, 6, 7]
    assert failures(judged(tmp_path, release, dump, packing="documents"))["ids/content"] == {"row-unexpected"}


@pytest.mark.parametrize("known", [True, False])
def test_supervised_padding_behind_a_pack_is_found(
    tmp_path: Path, release: Path, rows: list[Row], known: bool
) -> None:
    dump = [tail_padded(each, mask=True, known=known) for each in packed(rows)]
    dump[2]["labels"][-5:] = [PAD] * 5
    problem = only(judged(tmp_path, release, dump, packing="documents"), "labels", "token-wrongly-supervised")
    assert problem.place.sequence == 2
    assert "5 token(s) of padding" in problem.message


def test_unlabelled_padding_that_attention_covers_is_noted(
    tmp_path: Path, release: Path, rows: list[Row]
) -> None:
    dump = [pad(each, 120) | {"attention_mask": [1] * 120} for each in rows]
    verdict = judged(tmp_path, release, dump)
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert part(verdict, "ids/content").notes == (
        "12 rows end in unlabelled padding that the attention mask covers",
    )
    shuffled = judged(tmp_path, release, dump[::-1], shuffle=True)
    assert shuffled.outcome is Outcome.PASS, shuffled.reason
    dump[3]["input_ids"][-1] = STOP
    assert failures(judged(tmp_path, release, dump))["ids/content"] == {"content-differs"}


def test_padding_before_a_row_needs_a_mask(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    """Without one every token of the row sees the padding; behind the row it changes nothing."""
    verdict = judged(tmp_path, release, [pad(each, 120, left=True) for each in rows])
    assert verdict.outcome is Outcome.NOT_EVALUATED
    assert {(name, problem.code) for name, problem in verdict.problems()} == {
        ("ids/content", "padding-unmasked")
    }
    assert "attention_mask" in part(verdict, "ids/content").problems[0].next_step


def _numbered(rows: list[Row], shift: int = 0) -> list[Row]:
    """Three rows a sequence; the mask numbers them, with the first edge ``shift`` tokens late."""
    packs = []
    for first in range(0, len(rows), 3):
        group = rows[first : first + 3]
        lengths = [len(each["input_ids"]) for each in group]
        edges = [lengths[0] + shift, lengths[1] - shift, lengths[2]]
        packs.append(
            {
                "input_ids": [token for each in group for token in each["input_ids"]],
                "labels": [label for each in group for label in each["labels"]],
                "position_ids": [at for length in lengths for at in range(length)],
                "attention_mask": [number for number, length in enumerate(edges, 1) for _ in range(length)],
            }
        )
    return packs


def test_a_mask_that_numbers_packed_rows_passes(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    verdict = judged(tmp_path, release, _numbered(rows), packing="documents")
    assert verdict.outcome is Outcome.PASS, verdict.reason


def test_a_mask_that_numbers_packed_rows_wrongly_decides_nothing(
    tmp_path: Path, release: Path, rows: list[Row]
) -> None:
    verdict = judged(tmp_path, release, _numbered(rows, shift=1), packing="documents")
    assert verdict.outcome is Outcome.INCONCLUSIVE
    found = part(verdict, "ids/content").problems
    assert {problem.code for problem in found} == {"attention-misnumbered"}
    assert all(problem.next_step for problem in found)
    together = _numbered(rows)
    together[1]["attention_mask"] = [min(number, 2) for number in together[1]["attention_mask"]]
    verdict = judged(tmp_path, release, together, packing="documents")
    assert [problem.place.sequence for problem in part(verdict, "ids/content").problems] == [1]
    alone = [each | {"attention_mask": [1] * len(each["input_ids"])} for each in rows]
    alone[4]["attention_mask"][5:] = [2] * len(alone[4]["attention_mask"][5:])
    verdict = judged(tmp_path, release, alone)
    assert [(p.place.sequence, p.place.token) for p in part(verdict, "ids/content").problems] == [(4, 5)]
