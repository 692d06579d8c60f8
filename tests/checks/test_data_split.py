"""Rows that packing split into pieces, each a document of its own somewhere in the packs."""

import random
from pathlib import Path

import pytest

from checks.verdict import Outcome
from tests.checks import tiny_release
from tests.checks.judged_rows import Row, failures, judged, only, part

LENGTH = 48
"""Rows of the tiny release have 31, 32 or 63 to 65 tokens: a short one and the rest of a long one fit."""
Piece = dict[str, list[int]]


def split(rows: list[Row], length: int = LENGTH) -> list[Piece]:
    """Slices of each row, in order; nothing before a piece predicts its first token."""
    pieces = []
    for each in rows:
        for start in range(0, len(each["input_ids"]), length):
            part = {name: each[name][start : start + length] for name in ("input_ids", "labels")}
            pieces.append({**part, "labels": [-100, *part["labels"][1:]]})
    return pieces


def packed(pieces: list[Piece], length: int = LENGTH) -> list[Row]:
    """Each piece in the first pack that has room, longest first (a stranger's packing)."""
    packs: list[list[Piece]] = []
    for piece in sorted(pieces, key=lambda piece: -len(piece["input_ids"])):
        size = len(piece["input_ids"])
        room = (p for p in packs if sum(len(each["input_ids"]) for each in p) + size <= length)
        pack = next(room, None)
        if pack is None:
            packs.append([piece])
        else:
            pack.append(piece)
    return [sequence(pack) for pack in packs]


def sequence(pack: list[Piece]) -> Row:
    sizes = [len(piece["input_ids"]) for piece in pack]
    return {
        "input_ids": [token for piece in pack for token in piece["input_ids"]],
        "labels": [label for piece in pack for label in piece["labels"]],
        "position_ids": [n for size in sizes for n in range(size)],
        "seq_lens": sizes,
    }


def lengths(rows: list[Row]) -> list[int]:
    return [len(each["input_ids"]) for each in rows]


@pytest.mark.parametrize("limit", [None, LENGTH, 4 * LENGTH])
def test_pieces_that_make_up_their_rows_pass_wherever_they_lie(
    tmp_path: Path, release: Path, rows: list[Row], limit: int | None
) -> None:
    assert max(lengths(rows)) > LENGTH
    dump = packed(split(rows))
    random.Random(5).shuffle(dump)
    verdict = judged(tmp_path, release, dump, packing="documents", max_length=limit)
    assert verdict.outcome is Outcome.PASS, verdict.reason
    measured = {each.name: each.value for each in part(verdict, "ids/packing").measurements}
    assert measured["rows split into pieces"] == sum(length > LENGTH for length in lengths(rows))
    assert measured["longest piece"] == LENGTH
    assert "no token of them is lost" in part(verdict, "ids/packing").notes[0]
    results = {each.fault: str(each.result) for each in verdict.injected}
    assert results == dict.fromkeys(results, "caught")


def test_pieces_are_found_by_positions_where_no_lengths_are_recorded(
    tmp_path: Path, release: Path, rows: list[Row]
) -> None:
    dump = [{k: v for k, v in each.items() if k != "seq_lens"} for each in packed(split(rows))]
    assert judged(tmp_path, release, dump, packing="documents").outcome is Outcome.PASS


def test_pieces_may_name_their_rows(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    named = [{**piece, "row": [n]} for n, each in enumerate(rows) for piece in split([each])]
    dump = [{**sequence([piece]), "row_ids": piece["row"]} for piece in named]
    assert judged(tmp_path, release, dump, packing="documents").outcome is Outcome.PASS
    other = next(each for each in dump if each["seq_lens"] == [LENGTH])
    other["row_ids"] = [other["row_ids"][0] + 1]
    assert "ids/content" in failures(judged(tmp_path, release, dump, packing="documents"))


def test_labels_one_ahead_end_at_the_piece(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    ahead = [{**piece, "labels": [*piece["labels"][1:], -100]} for piece in split(rows)]
    verdict = judged(tmp_path, release, packed(ahead), packing="documents", labels="shifted")
    assert verdict.outcome is Outcome.PASS, verdict.reason


def test_padding_behind_a_piece_is_no_token_of_it(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    pad = tiny_release.tokenizer().token_to_id("<pad>")
    dump = packed(split(rows))
    for each in dump:
        missing = LENGTH - len(each["input_ids"])
        each["input_ids"] += [pad] * missing
        each["labels"] += [-100] * missing
        each["position_ids"] += [0] * missing
    assert judged(tmp_path, release, dump, packing="documents").outcome is Outcome.PASS
    short = next(each for each in dump if each["input_ids"][-1] == pad)
    short["labels"][-1] = pad
    found = failures(judged(tmp_path, release, dump, packing="documents"))
    assert "row-unexpected" in found["ids/content"]  # what the loss covers is no padding


def test_every_epoch_and_rank_is_put_together_by_itself(
    tmp_path: Path, release: Path, rows: list[Row]
) -> None:
    dump = [
        {**each, "epoch": epoch, "rank": number % 2}
        for epoch in (1, 2)
        for number, each in enumerate(packed(split(rows)))
    ]
    assert judged(tmp_path, release, dump, packing="documents").outcome is Outcome.PASS
    last = max(number for number, each in enumerate(dump) if LENGTH in each["seq_lens"])
    verdict = judged(tmp_path, release, [*dump[:last], *dump[last + 1 :]], packing="documents")
    assert "row-dropped" in failures(verdict)["ids/coverage"]


@pytest.mark.parametrize("which", [0, -1])
@pytest.mark.parametrize("limit", [None, LENGTH])
def test_a_piece_that_is_lost_fails_at_its_row(
    tmp_path: Path, release: Path, rows: list[Row], which: int, limit: int | None
) -> None:
    lost = next(n for n, length in enumerate(lengths(rows)) if length > LENGTH)
    pieces = split(rows[:lost]) + split(rows[lost + 1 :])
    own = split([rows[lost]])
    del own[which]
    verdict = judged(tmp_path, release, packed(pieces + own), packing="documents", max_length=limit)
    assert verdict.outcome is Outcome.FAIL
    problems = part(verdict, "ids/content").problems
    assert [each.place.row for each in problems if each.code == "row-missing"] == [lost]
    (alone,) = (each for each in problems if each.code == "row-unexpected")
    assert alone.place.row == lost
    held = f"{LENGTH} to {lengths(rows)[lost]}" if which == 0 else f"0 to {LENGTH}"
    assert f"its tokens {held}" in alone.message


def test_a_piece_that_is_there_twice_fails(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    pieces = split(rows)
    twice = next(piece for piece in pieces if len(piece["input_ids"]) == LENGTH)
    found = failures(judged(tmp_path, release, packed([*pieces, twice]), packing="documents"))
    assert found == {"ids/content": {"row-unexpected"}}


def test_pieces_longer_than_the_recipe_allows_are_none(
    tmp_path: Path, release: Path, rows: list[Row]
) -> None:
    verdict = judged(tmp_path, release, packed(split(rows)), packing="documents", max_length=LENGTH - 1)
    assert "ids/content" in failures(verdict)


def test_rows_cut_at_the_maximum_length_are_no_pieces(tmp_path: Path, release: Path, rows: list[Row]) -> None:
    kept = [{name: each[name][:LENGTH] for name in ("input_ids", "labels")} for each in rows]
    verdict = judged(tmp_path, release, packed(kept), packing="documents", max_length=LENGTH)
    assert failures(verdict).keys() <= {"labels", "stop"}  # a cut may leave a row nothing to supervise
    assert not part(verdict, "ids/packing").notes


def test_positions_that_run_on_into_a_piece_ignore_the_boundary(
    tmp_path: Path, release: Path, rows: list[Row]
) -> None:
    dump = packed(split(rows))
    for each in dump:
        each["position_ids"] = list(range(len(each["input_ids"])))
    verdict = judged(tmp_path, release, dump, packing="documents")
    assert failures(verdict) == {"ids/packing": {"boundary-ignored"}}


def test_the_first_token_of_a_later_piece_has_nothing_of_its_row_before_it(
    tmp_path: Path, release: Path, rows: list[Row]
) -> None:
    """A label there is without effect at the start of a sequence, and wrong behind another document."""
    supervised = next(each for each in rows if len(each["input_ids"]) > LENGTH)
    at = next(n for n, label in enumerate(supervised["labels"]) if label != -100 and n > 10)
    own = [
        {name: supervised[name][low:high] for name in ("input_ids", "labels")}
        for low, high in ((0, at), (at, len(supervised["input_ids"])))
    ]
    others = [each for each in rows if each is not supervised]
    whole = [{name: each[name] for name in ("input_ids", "labels")} for each in others]
    alone = [sequence([piece]) for piece in (*own, *whole)]
    assert judged(tmp_path, release, alone, packing="documents").outcome is Outcome.PASS
    behind = [sequence([own[0]]), sequence([whole[0], own[1]]), *(sequence([one]) for one in whole[1:])]
    problem = only(
        judged(tmp_path, release, behind, packing="documents"), "labels", "token-wrongly-supervised"
    )
    assert "later piece" in problem.message
    assert (problem.place.row, problem.place.token) == (rows.index(supervised), at)
    own[1]["labels"] = [-100, *own[1]["labels"][1:]]
    behind[1] = sequence([whole[0], own[1]])
    assert judged(tmp_path, release, behind, packing="documents").outcome is Outcome.PASS
